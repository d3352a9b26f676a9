"""The policy's log-probabilities by shared prefixes, equal to TRL's and several times faster.

``install(model, temperature)`` teaches a model the packed forward; ``logprobs(...)`` then answers
what TRL's ``_get_per_token_logps_and_entropies`` is asked. What the packed forward cannot do,
`unsupported` says in words, and TRL's own path is taken; `difference` compares the two at the first
step.

Log-probabilities come from hidden states, without all logits at once (`token_logprobs`). With a
frozen head the gradient of token n's log-probability is known in the forward pass:

    d log p(y_n) / d h_n  =  (W[y_n] - sum_v p_n(v) W[v]) / T

It is one row for each token, so backward is one multiplication: two products with the head in all,
where a head that recomputes its logits in backward needs three. A head that is trained itself goes
through TRL's chunked kernel.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import FusedCausalLMOutput

from experiments.trainer import prefix
from experiments.trainer.prefix import Packed, PrefixLayout

LOGITS_AT_ONCE = 2**24
"""Elements of a chunk's logits, N' x V: 64 MiB in float32."""
VOCABULARY_CHUNK = 32768


def token_logprobs(
    hidden_N_D: Tensor, head: torch.nn.Linear, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """(log-probabilities, entropies) of N tokens in nats, float32; entropies carry no gradient.

    Args:
        hidden_N_D: the hidden state before each token.
        head: from hidden states to logits.
        targets_N: the tokens.
        temperature: what logits are divided by.
    """
    if head.weight.requires_grad or (head.bias is not None and head.bias.requires_grad):
        logprobs_N, entropies_N, *_ = ChunkedLogProbFunction.apply(
            hidden_N_D,
            head.weight,
            head.bias,
            targets_N,
            temperature,
            VOCABULARY_CHUNK,
            None,
            1.0,
            ("log_probs", "entropy"),
        )
        return logprobs_N, entropies_N.detach()
    return _FrozenHead.apply(hidden_N_D, head.weight, head.bias, targets_N, temperature)


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_N_D: Tensor,
        weight_V_D: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        length, device = hidden_N_D.shape[0], hidden_N_D.device
        logprobs_N = torch.empty(length, device=device)
        entropies_N = torch.empty(length, device=device)
        slopes_N_D = torch.empty_like(hidden_N_D) if ctx.needs_input_grad[0] else None
        rows = max(1, LOGITS_AT_ONCE // weight_V_D.shape[0])
        for start in range(0, length, rows):
            part = slice(start, start + rows)
            hidden = hidden_N_D[part].to(weight_V_D.dtype)
            logits = torch.nn.functional.linear(hidden, weight_V_D, bias_V).float()
            logits /= temperature
            targets = targets_N[part, None]
            normaliser = logits.logsumexp(-1, keepdim=True)
            logprobs_N[part] = (logits.gather(-1, targets) - normaliser).squeeze(-1)
            logits -= normaliser
            probabilities = logits.exp()
            # p log p of a token that cannot come is 0, and 0 x -inf is not
            logits.clamp_(min=torch.finfo(logits.dtype).min)
            entropies_N[part] = -torch.linalg.vecdot(probabilities, logits)
            if slopes_N_D is not None:
                mean = probabilities.to(weight_V_D.dtype) @ weight_V_D
                slopes_N_D[part] = (weight_V_D[targets_N[part]] - mean) / temperature
        ctx.save_for_backward(slopes_N_D)
        ctx.mark_non_differentiable(entropies_N)
        return logprobs_N, entropies_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (slopes_N_D,) = ctx.saved_tensors
        return slopes_N_D * grads[0][:, None].to(slopes_N_D.dtype), None, None, None, None


SCALED_HEAD = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)
"""Settings of models that change logits after the head."""


def unsupported(model: PreTrainedModel) -> str | None:
    """Why this model cannot take the packed forward, in words; None where it can."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention takes no function from outside"
    if config._attn_implementation not in ("sdpa", prefix.NAME):
        return f"its attention is {config._attn_implementation}, and not sdpa"
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        return "some of its layers do not attend to the whole text"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return "it attends to a sliding window"
    if type(head) is not torch.nn.Linear or not head.weight.is_floating_point():
        return f"its head is a {type(head).__name__}, and not a plain linear layer"
    if any(getattr(config, name, None) is not None for name in SCALED_HEAD):
        return "it changes logits after the head"
    dropouts = [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    if max([*dropouts, getattr(config, "attention_dropout", 0.0)]) > 0:
        return "it has dropout, which each row of a group draws for itself"
    return None


def install(model: PreTrainedModel, temperature: float) -> None:
    """Let ``model(packed=...)`` return log-probabilities and entropies of the scored tokens (M,).

    Args:
        model: without an adapter around it; all other calls go on as before.
        temperature: what logits are divided by.
    """
    model.set_attn_implementation(prefix.NAME)
    original = model.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, packed: Packed | None = None, **kwargs: Any) -> Any:
        if packed is None:
            return original(*args, **kwargs)
        hidden_1_N_D = self.base_model(
            input_ids=packed.ids_1_N,
            position_ids=packed.positions_1_N,
            attention_mask=packed.ids_1_N.new_zeros(1, 1, 1, 1),  # made ready: none is built
            use_cache=False,
            layout=packed.layout,
        ).last_hidden_state
        logprobs_M, entropies_M = token_logprobs(
            hidden_1_N_D[0].index_select(0, packed.scored_M),
            self.get_output_embeddings(),
            packed.targets_M,
            temperature,
        )
        return FusedCausalLMOutput(log_probs=logprobs_M, entropy=entropies_M)

    model.forward = types.MethodType(forward, model)


def layer_weights(model: PreTrainedModel) -> int:
    """Weights of one layer, on average."""
    config = model.config.get_text_config()
    embeddings = config.vocab_size * config.hidden_size
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    weights = sum(parameter.numel() for parameter in model.parameters())
    return max(1, (weights - embeddings * (1 if tied else 2)) // config.num_hidden_layers)


def logprobs(
    model: Any,
    ids_B_L: Tensor,
    mask_B_L: Tensor,
    keep: int,
    weights: int,
    layout: type[PrefixLayout] | None = None,
) -> tuple[Tensor, ...]:
    """(log-probabilities, entropies) of the completions, each (B, keep), zero where there is none.

    Args:
        model: the policy as the trainer calls it, with its adapter.
        ids_B_L: prompts padded on the left, completions padded on the right.
        mask_B_L: 1 where there is a token.
        keep: columns of completions.
        weights: of one layer, by `layer_weights`.
        layout: None takes the fastest one.

    Raises:
        ValueError: a row is not a prompt and then a completion.
    """
    packed = prefix.pack(ids_B_L, mask_B_L, keep, weights, layout)
    outputs = model(packed=packed)
    return tuple(
        values_M.new_zeros(ids_B_L.shape[0] * keep)
        .index_copy(0, packed.places_M, values_M)
        .view(-1, keep)
        for values_M in (outputs.log_probs, outputs.entropy)
    )


LogprobsOf = Callable[[Any, Tensor, Tensor, int], Tensor]
"""(model, ids_B_L, mask_B_L, keep) -> log-probabilities (B, keep)."""

PADS = 16
CHECKED_TOKENS = 32


def difference(
    model: Any, ids_B_L: Tensor, mask_B_L: Tensor, keep: int, ours: LogprobsOf, trl: LogprobsOf
) -> tuple[float, float]:
    """How far apart the two paths are on two rows, and how far TRL's is from itself.

    Compared are log-probabilities and, where gradients are enabled, those of the first and the last
    trained tensor, relative to their norm. TRL differs from itself when prompts have 16 more pads.

    Returns:
        (our largest difference, TRL's own).
    """
    rows, before = _alike(ids_B_L[:, :-keep]), ids_B_L.shape[1] - keep
    ids, mask = (x[rows, : before + CHECKED_TOKENS] for x in (ids_B_L, mask_B_L))
    width = ids.shape[1] - before
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ends = [trained[0], trained[-1]] if trained and torch.is_grad_enabled() else []

    def outcome(path: LogprobsOf, pads: int) -> tuple[Tensor, list[Tensor]]:
        padded = (torch.nn.functional.pad(x, (pads, 0)) for x in (ids, mask))
        values = path(model, *padded, width)
        grads = torch.autograd.grad(values.sum(), ends, allow_unused=True) if ends else ()
        return values.detach(), [grad for grad in grads if grad is not None]

    base = outcome(trl, 0)

    def distance(other: tuple[Tensor, list[Tensor]]) -> float:
        worst = (other[0] - base[0]).abs().max().item()
        for grad, reference in zip(other[1], base[1], strict=True):
            worst = max(
                worst, ((grad - reference).norm() / reference.norm().clamp(min=1e-6)).item()
            )
        return worst

    return distance(outcome(ours, 0)), distance(outcome(trl, PADS))


def _alike(prompts_B_P: Tensor) -> list[int]:
    """Two rows of one prompt, or the first two where no prompt comes twice."""
    first_row: dict[tuple[int, ...], int] = {}
    for row, prompt in enumerate(prompts_B_P.tolist()):
        if (first := first_row.setdefault(tuple(prompt), row)) != row:
            return [first, row]
    return list(range(min(2, len(prompts_B_P))))


def whole_groups(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A step's micro-batches with the rollouts of a prompt together, each as narrow as its rows.

    Args:
        batches: as TRL split them, shuffled; ``row_index`` is each rollout's place in the step.
    """
    order = torch.cat([batch["row_index"] for batch in batches]).argsort()
    first = batches[0]
    rows_of = {
        name: torch.cat([batch[name] for batch in batches])[order]
        for name, value in first.items()
        if isinstance(value, Tensor) and value.ndim
    }
    size = len(first["row_index"])
    return [
        _trimmed({name: value[start : start + size] for name, value in rows_of.items()}, first)
        for start in range(0, len(order), size)
    ]


def _trimmed(rows: dict[str, Tensor], first: dict[str, Any]) -> dict[str, Any]:
    """Without the columns in which no row has a token; what is not of rows comes from ``first``."""
    width = rows["completion_mask"].shape[1]
    prompt = max(1, int(rows["prompt_mask"].sum(1).max()))
    completion = max(1, int(rows["completion_mask"].sum(1).max()))
    trimmed = dict(first)
    for name, value in rows.items():
        if name.startswith("prompt_"):
            value = value[:, -prompt:]
        elif value.ndim == 2 and value.shape[1] == width:
            value = value[:, :completion]
        trimmed[name] = value
    return trimmed
