"""Log-probabilities and entropies of chosen tokens from hidden states, without all logits at once.

With a frozen head the gradient of token n's log-probability is known in the forward pass:

    d log p(y_n) / d h_n  =  (W[y_n] - sum_v p_n(v) W[v]) / T

It is one row for each token, so backward is one multiplication: two products with the head in all,
where a head that recomputes its logits in backward needs three. A head that is trained itself goes
through TRL's chunked kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from trl.kernels import ChunkedLogProbFunction

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
