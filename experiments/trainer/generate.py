"""A group's answers: each prompt read once, a cache written in place, ended rows left out.

What is drawn at a position of a row depends on seed, step, row and position alone, never on how
many rows are drawn together (`uniforms`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from experiments.trainer import prefix
from experiments.trainer.decode import Guarded
from experiments.trainer.fast import unsupported
from experiments.trainer.prefix import OneToken


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; names and meaning are those of transformers' ``GenerationConfig``."""

    max_new_tokens: int
    eos_token_ids: tuple[int, ...]
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False


def uniforms(seed: int, step: int, rows: int, length: int) -> np.ndarray:
    """Numbers in [0, 1) for each row and position, (rows, length), by the Philox counter.

    Neither ``rows`` nor ``length`` changes what a row has at a position. Source: Salmon et al.,
    "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    return np.stack(
        [
            np.random.Generator(
                np.random.Philox(key=np.array([seed, step], np.uint64), counter=[0, 0, row, 0])
            ).random(length)
            for row in range(rows)
        ]
    )


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    owner_B: Sequence[int],
    sampling: Sampling,
    uniform_B_L: np.ndarray,
    ended: Callable[[dict[int, list[int]]], None] = lambda ids_of: None,
    beat: Callable[[], None] = lambda: None,
) -> list[list[int]]:
    """The completions of B rows as token ids, each with its end token if it came to one.

    Args:
        model: takes ``layout=`` (see `fast.install`), in evaluation mode, without an adapter.
        prompts: token ids of each different prompt.
        owner_B: index of each row's prompt.
        uniform_B_L: what decides the token of a row at a position; ``sampling.greedy`` ignores it.
        ended: called with the ids of the rows that end at a position, as soon as they do.
        beat: called after each position.
    """
    device, width = model.device, max(len(prompt) for prompt in prompts)
    ids_U_L = torch.zeros(len(prompts), width, dtype=torch.long)
    for u, prompt in enumerate(prompts):
        ids_U_L[u, width - len(prompt) :] = torch.tensor(prompt)
    lengths_U = torch.tensor([len(prompt) for prompt in prompts])
    seen_U_L = torch.arange(width) >= width - lengths_U[:, None]
    cache = GroupCache(model.config.get_text_config().num_hidden_layers)
    logits_U_V = model(
        input_ids=ids_U_L.to(device),
        attention_mask=seen_U_L.long().to(device),
        position_ids=(seen_U_L.cumsum(1) - 1).clamp(min=0).to(device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]

    owner = torch.tensor(owner_B)
    cache.spread(owner.to(device), sampling.max_new_tokens)
    logits_R_V, rows_R = logits_U_V[owner.to(device)], torch.arange(len(owner))
    starts_B, seen_B_L = lengths_U[owner], seen_U_L[owner].to(device)
    padded = bool((lengths_U < width).any())
    stops = torch.tensor(sampling.eos_token_ids)
    tokens_B_T = torch.zeros(len(owner), sampling.max_new_tokens, dtype=torch.long)
    completions: list[list[int]] = [[] for _ in owner_B]
    following = Guarded(model, width + sampling.max_new_tokens)
    for position in range(sampling.max_new_tokens):
        uniform_R = torch.from_numpy(uniform_B_L[rows_R.numpy(), position])
        tokens_R = draw(logits_R_V, sampling, uniform_R.to(device)).cpu()
        tokens_B_T[rows_R, position] = tokens_R
        over_R = torch.isin(tokens_R, stops)
        if position == sampling.max_new_tokens - 1:
            over_R[:] = True
        if over_R.any():
            over = rows_R[over_R].tolist()
            ids_of = dict(zip(over, tokens_B_T[over, : position + 1].tolist(), strict=True))
            for row, ids in ids_of.items():
                completions[row] = ids
            ended(ids_of)
            if over_R.all():
                break
            holes, movers = cache.drop(over_R)
            count = len(rows_R) - int(over_R.sum())
            for values in (rows_R, tokens_R, seen_B_L):
                values[holes.to(values.device)] = values[movers.to(values.device)]
            rows_R, tokens_R, seen_B_L = rows_R[:count], tokens_R[:count], seen_B_L[:count]
        seen_B_L = torch.cat([seen_B_L, seen_B_L.new_ones(len(rows_R), 1)], dim=1)
        logits_R_V = following(
            tokens_R.to(device),
            (starts_B[rows_R] + position).to(device),
            cache,
            OneToken(seen_B_L if padded else None),
        )
        beat()
    return completions


def completions(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    padding: int,
    uniform_B_L: np.ndarray,
) -> list[list[int]]:
    """One completion of each prompt: by `generate` where the model can take it, else by
    `seeded_by_transformers`."""
    if unsupported(model) is None:
        model.set_attn_implementation(prefix.NAME)
        return generate(model, prompts, range(len(prompts)), sampling, uniform_B_L)
    return seeded_by_transformers(model, prompts, sampling, padding, uniform_B_L)


def seeded_by_transformers(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    padding: int,
    uniform_B_L: np.ndarray,
) -> list[list[int]]:
    """`by_transformers`, which draws by torch's generator: seeded from ``uniform_B_L``, and
    afterwards as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(int(uniform_B_L[0, 0] * 2**53))
        return by_transformers(model, prompts, sampling, padding)


@torch.no_grad()
def by_transformers(
    model: Any, prompts: Sequence[Sequence[int]], sampling: Sampling, padding: int
) -> list[list[int]]:
    """One completion of each prompt by transformers' own ``generate``, each up to its end token."""
    ids_B = [torch.tensor(prompt) for prompt in prompts]
    ids_B_L = pad_sequence(ids_B, True, padding, "left").to(model.device)
    mask_B_L = pad_sequence([torch.ones_like(ids) for ids in ids_B], True, 0, "left")
    sampling_options = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
    before = model.generation_config
    # in place of the model's own, whose penalties would decode behind our back
    model.generation_config = GenerationConfig(
        do_sample=not sampling.greedy,
        eos_token_id=list(sampling.eos_token_ids),
        pad_token_id=padding,
        **({} if sampling.greedy else sampling_options),
    )
    try:
        answers_B_L = model.generate(
            input_ids=ids_B_L,
            attention_mask=mask_B_L.to(model.device),
            max_new_tokens=sampling.max_new_tokens,
        )[:, ids_B_L.shape[1] :].tolist()
    finally:
        model.generation_config = before
    return [_until(tokens, set(sampling.eos_token_ids)) for tokens in answers_B_L]


def _until(tokens: list[int], ends: set[int]) -> list[int]:
    """Tokens up to the first end token, that one included."""
    for place, token in enumerate(tokens):
        if token in ends:
            return tokens[: place + 1]
    return tokens


def draw(logits_R_V: Tensor, sampling: Sampling, uniform_R: Tensor) -> Tensor:
    """A token for each row, (R,): the one in whose share of the distribution its number falls."""
    if sampling.greedy:
        return logits_R_V.argmax(-1)
    scores = logits_R_V.float() / sampling.temperature
    no_ids = torch.empty(0)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(no_ids, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(no_ids, scores)
    shares_R_V = scores.softmax(-1).cumsum(-1, dtype=torch.float64)
    thresholds = uniform_R[:, None] * shares_R_V[:, -1:]
    tokens_R = torch.searchsorted(shares_R_V, thresholds, right=True).squeeze(-1)
    return tokens_R.clamp(max=shares_R_V.shape[1] - 1)


class GroupCache(Cache):
    """Keys and values of U prompts, then of the rows that continue them, written in place."""

    def __init__(self, layers: int) -> None:
        self.in_place = [_InPlace() for _ in range(layers)]
        super().__init__(layers=list(self.in_place))

    def spread(self, owner_B: Tensor, further: int) -> None:
        """Give each row the entries of its prompt, and room for ``further`` tokens or more."""
        for layer in self.in_place:
            layer.spread(owner_B, min(further, 128))

    def drop(self, over_R: Tensor) -> tuple[Tensor, Tensor]:
        """Leave rows out: the last rows that go on move to where earlier ones have ended."""
        count = int((~over_R).sum())
        holes = over_R[:count].nonzero().squeeze(1)
        movers = count + (~over_R[count:]).nonzero().squeeze(1)
        for layer in self.in_place:
            layer.drop(holes, movers, count)
        return holes, movers

    def back(self) -> None:
        """Forget the last token of each row."""
        for layer in self.in_place:
            layer.length -= 1


class _InPlace(CacheLayerMixin):
    """One layer's keys and values (B, H, L, D), of which rows and L in use grow and shrink."""

    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = key_states, value_states
        self.rows, _, self.length, _ = key_states.shape
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return self.keys, self.values
        if self.length == self.keys.shape[2]:
            self.keys, self.values = (
                torch.cat([x, torch.empty_like(x)], dim=2) for x in (self.keys, self.values)
            )
        self.keys[: self.rows, :, self.length] = key_states[:, :, 0]
        self.values[: self.rows, :, self.length] = value_states[:, :, 0]
        self.length += 1
        used = (slice(self.rows), slice(None), slice(self.length))
        return self.keys[used], self.values[used]

    def spread(self, owner_B: Tensor, further: int) -> None:
        """Give each of B rows the cache of its owner, with room for ``further`` tokens."""
        self.rows = len(owner_B)
        self.keys, self.values = (
            torch.cat([x[owner_B], x.new_empty(self.rows, x.shape[1], further, x.shape[3])], dim=2)
            for x in (self.keys, self.values)
        )

    def drop(self, holes: Tensor, movers: Tensor, count: int) -> None:
        """Keep ``count`` rows: those of ``movers`` move to ``holes``."""
        self.rows = count
        for x in (self.keys, self.values):
            x[holes, :, : self.length] = x[movers, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


@contextmanager
def merged(model: Any) -> Generator[PreTrainedModel]:
    """The policy to generate with: in evaluation mode, a LoRA adapter merged into its weights.

    The weights are replaced by others and then put back, so that training goes on from the same
    bits. A layer that cannot be merged keeps its adapter.
    """
    training = model.training
    model.eval()
    try:
        if not isinstance(model, PeftModel):
            yield model
            return
        layers = lora_layers(model)
        if layers is None:
            yield model.get_base_model()
            return
        before = [layer.base_layer.weight.data for layer in layers]
        try:
            for layer in layers:
                weight = layer.base_layer.weight
                with torch.no_grad():
                    deltas = [layer.get_delta_weight(name) for name in layer.active_adapters]
                    weight.data = sum(deltas, start=weight.data)
            with without_adapter(model, layers):
                yield model.get_base_model()
        finally:
            for layer, weight in zip(layers, before, strict=True):
                layer.base_layer.weight.data = weight
    finally:
        model.train(training)


@contextmanager
def without_adapter(model: PeftModel, layers: Sequence[Any] | None) -> Generator[None]:
    """The policy without its adapter; peft's own way looks through every module, and takes several
    milliseconds.

    Args:
        layers: of `lora_layers`; None takes peft's way.
    """
    if layers is None:
        with model.disable_adapter():
            yield
        return
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def lora_layers(model: Any) -> list[Any] | None:
    """The adapted layers; None where one of them is not a plain linear layer under plain LoRA."""
    from peft.tuners.lora import Linear
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    plain = all(
        type(layer) is Linear
        and type(layer.base_layer) is torch.nn.Linear
        and not any(layer.use_dora.values())
        and not any(layer.lora_bias.values())
        for layer in layers
    )
    others = any(isinstance(module, AuxiliaryTrainingWrapper) for module in model.modules())
    return layers if plain and not others else None
