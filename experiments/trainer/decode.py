"""One more token of each row by transformers' own operations, without the modules around them.

A small model's forward for one token is mostly Python: modules that call modules, masks that nobody
reads. `decoder` looks a model's weights up once; what it returns then does the model's operations
in the model's order, so that the logits are the same to the bit on CPUs. `Guarded` compares them
with the model's own the first time, and gives up where they differ.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from torch.nn.functional import linear
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from experiments.trainer.prefix import OneToken

log = logging.getLogger(__name__)
FAMILIES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose angles depend on the position alone."""
CLOSE = 64
"""Largest difference of two logits, in rounding errors of the largest one."""
Matrix = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Layer:
    """What one layer computes with; H query heads share KV heads of keys and values."""

    before_attention: Matrix
    q: Matrix
    k: Matrix
    v: Matrix
    q_norm: Matrix | None
    k_norm: Matrix | None
    out: Matrix
    scale: float
    before_mlp: Matrix
    gate: Matrix
    up: Matrix
    activation: Matrix
    down: Matrix


@dataclass(frozen=True)
class Decoder:
    """Callable (tokens (R,), positions (R,), cache, layout) -> logits (R, V)."""

    embed: Matrix
    layers: list[_Layer]
    norm: Matrix
    head: Matrix
    cosines_L_1_D: Tensor
    sines_L_1_D: Tensor

    def __call__(
        self, tokens_R: Tensor, positions_R: Tensor, cache: Any, layout: OneToken
    ) -> Tensor:
        cosines, sines = self.cosines_L_1_D[positions_R], self.sines_L_1_D[positions_R]
        rows, width = len(tokens_R), cosines.shape[-1]
        hidden_R_D = self.embed(tokens_R)
        for layer, kept in zip(self.layers, cache.in_place, strict=True):
            normed = layer.before_attention(hidden_R_D)
            q, k, v = (
                matrix(normed).view(rows, -1, width) for matrix in (layer.q, layer.k, layer.v)
            )
            if layer.q_norm is not None and layer.k_norm is not None:
                q, k = layer.q_norm(q), layer.k_norm(k)
            heads = torch.cat([q, k], dim=1)
            left, right = heads.chunk(2, dim=-1)
            heads = heads * cosines + torch.cat([-right, left], dim=-1) * sines
            q, k = heads[:, : q.shape[1]], heads[:, q.shape[1] :]
            keys, values = kept.update(k[:, :, None], v[:, :, None])
            attended = layout.attend(q[:, :, None], keys, values, layer.scale)
            hidden_R_D = hidden_R_D + layer.out(attended.reshape(rows, -1))
            normed = layer.before_mlp(hidden_R_D)
            inner = layer.activation(layer.gate(normed)) * layer.up(normed)
            hidden_R_D = hidden_R_D + layer.down(inner)
        return self.head(self.norm(hidden_R_D))


def decoder(model: PreTrainedModel, positions: int) -> Decoder | None:
    """How to decode with a model's present weights up to ``positions``; None where its own forward
    has to be called: another family, another kind of layer, an adapter that is not merged."""
    if type(model) not in FAMILIES:
        return None
    inner: Any = model.model
    if inner.rotary_emb.rope_type not in FIXED_ROTATIONS:
        return None
    layers = [_layer(layer) for layer in inner.layers]
    head = _matrix(model.lm_head)
    if head is None or None in layers:
        return None
    embedding = inner.embed_tokens
    places = torch.arange(positions, device=embedding.weight.device)[None]
    cosines, sines = inner.rotary_emb(embedding.weight[:1], places)
    return Decoder(
        embed=embedding.forward,
        layers=[layer for layer in layers if layer is not None],
        norm=inner.norm.forward,
        head=head,
        cosines_L_1_D=cosines[0, :, None],
        sines_L_1_D=sines[0, :, None],
    )


def _layer(layer: Any) -> _Layer | None:
    attention, mlp = layer.self_attn, layer.mlp
    q, k, v, out = (_matrix(getattr(attention, f"{name}_proj")) for name in "qkvo")
    gate, up, down = (_matrix(getattr(mlp, f"{name}_proj")) for name in ("gate", "up", "down"))
    if not (q and k and v and out and gate and up and down):
        return None
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    q_norm, k_norm = (None if norm is None else norm.forward for norm in norms)
    return _Layer(
        before_attention=layer.input_layernorm.forward,
        q=q,
        k=k,
        v=v,
        q_norm=q_norm,
        k_norm=k_norm,
        out=out,
        scale=attention.scaling,
        before_mlp=layer.post_attention_layernorm.forward,
        gate=gate,
        up=up,
        activation=mlp.act_fn.forward,
        down=down,
    )


def _matrix(module: Any) -> Matrix | None:
    """A linear layer's operation; None where it is of another kind or its adapter is at work."""
    if isinstance(module, BaseTunerLayer):
        if not module.disable_adapters:
            return None
        module = module.base_layer
    if type(module) is not torch.nn.Linear:
        return None
    return functools.partial(linear, weight=module.weight, bias=module.bias)


_AGREES: weakref.WeakKeyDictionary[PreTrainedModel, bool] = weakref.WeakKeyDictionary()
"""Models whose decoder was compared with their own forward, and whether it was the same."""


class Guarded:
    """Callable (tokens (R,), positions (R,), cache, layout) -> logits (R, V): by `decoder` where a
    model has one that agrees with its forward, else by its forward."""

    def __init__(self, model: PreTrainedModel, positions: int) -> None:
        self._model = model
        self._decoder = decoder(model, positions) if _AGREES.get(model, True) else None

    def __call__(
        self, tokens_R: Tensor, positions_R: Tensor, cache: Any, layout: OneToken
    ) -> Tensor:
        if self._decoder is None:
            return self._forward(tokens_R, positions_R, cache, layout)
        logits_R_V = self._decoder(tokens_R, positions_R, cache, layout)
        if self._model not in _AGREES:
            cache.back()
            own_R_V = self._forward(tokens_R, positions_R, cache, layout)
            most = CLOSE * torch.finfo(own_R_V.dtype).eps * own_R_V.abs().max()
            worst = (logits_R_V - own_R_V).abs().max()
            _AGREES[self._model] = bool(worst <= most)
            if not _AGREES[self._model]:
                name = type(self._model).__name__
                log.warning(
                    "Tokens are drawn by the model's own forward, which takes longer: what this"
                    " project decodes %s by differs from it by %.1e.",
                    name,
                    worst.item(),
                )
                self._decoder = None
                return own_R_V
        return logits_R_V

    def _forward(
        self, tokens_R: Tensor, positions_R: Tensor, cache: Any, layout: OneToken
    ) -> Tensor:
        return self._model(
            input_ids=tokens_R[:, None],
            attention_mask=tokens_R.new_zeros(1, 1, 1, 1),  # made ready: none is built
            position_ids=positions_R[:, None],
            past_key_values=cache,
            use_cache=True,
            layout=layout,
        ).logits[:, -1]
