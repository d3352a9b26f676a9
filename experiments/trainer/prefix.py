"""One sequence for a batch of rollouts: each prompt once, then the answers that continue it.

A group's G rollouts share their prompt, so its hidden states are computed once and every answer
attends to them. Linear layers see one row of N tokens; only attention knows who continues whom:

    packed = pack(input_ids_B_L, mask_B_L, keep, layer_weights)
    model(packed.ids_1_N, position_ids=packed.positions_1_N, layout=packed.layout, ...)

The last token of an answer predicts nothing that is scored, so it is not computed.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._triton import has_triton
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "shared_prefix"
"""Of the attention function, as ``model.set_attn_implementation`` takes it."""


@dataclass(frozen=True)
class Segments:
    """Where U prompts and B answers stand in one sequence; ``group[b]`` is answer b's prompt.

    Starts and lengths are in tokens; an answer's length is without its last token.
    """

    prompts: list[tuple[int, int]]
    answers: list[tuple[int, int]]
    group: list[int]


@dataclass(frozen=True)
class Packed:
    """A batch as one sequence of N tokens, of which M are followed by a scored one."""

    ids_1_N: Tensor
    positions_1_N: Tensor
    layout: Layout
    scored_M: Tensor
    """Place in the sequence before each scored token."""
    targets_M: Tensor
    places_M: Tensor
    """Index of each scored token in the flattened (B, keep)."""


class Layout(ABC):
    """How attention is computed; ``attend`` is called once for each layer.

    Queries are (B, H, N, D); keys and values may have fewer heads. Returns (B, H, N, D).
    """

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Attention of one layer; ``scale`` of None is 1 / sqrt(D)."""


class OneToken(Layout):
    """The next token of each of B rows attends to all of a cache but the padding on its left.

    The heads that share a key stand as rows of one query, so that no key is copied for them.
    """

    def __init__(self, seen_B_L: Tensor | None) -> None:
        self.mask = None if seen_B_L is None else seen_B_L[:, None, None, :]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Attention with the heads of a group in one matrix, under the mask; as `Layout.attend`."""
        shared = q.view(q.shape[0], k.shape[1], -1, q.shape[3])
        return scaled_dot_product_attention(shared, k, v, self.mask, scale=scale).view(q.shape)


class PrefixLayout(Layout):
    """Attention over the one sequence of a packed batch, so that B is 1."""

    @abstractmethod
    def __init__(self, segments: Segments, device: torch.device) -> None: ...

    @abstractmethod
    def equal_heads(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """`attend`, with as many heads in keys and values as in queries."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Attention with keys and values repeated to the heads of ``q``; as `Layout.attend`."""
        repeats = q.shape[1] // k.shape[1]
        if repeats > 1:
            k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
        return self.equal_heads(q, k, v, scale)


class Padded(PrefixLayout):
    """Two batched calls, for small models: all prompts, padded to the longest, then all answers.

    The sequence is U rows of the longest prompt and then B rows of the longest answer.
    """

    def __init__(self, segments: Segments, device: torch.device) -> None:
        self.prompt = max(length for _, length in segments.prompts)
        self.answer = max(length for _, length in segments.answers)
        self.group_B = torch.tensor(segments.group, device=device)
        lengths_B = torch.tensor([segments.prompts[u][1] for u in segments.group], device=device)
        columns = torch.arange(self.prompt + self.answer, device=device)
        rows = torch.arange(self.answer, device=device)
        causal = columns[None, :] - self.prompt <= rows[:, None]
        inside = (columns[None, :] < lengths_B[:, None]) | (columns[None, :] >= self.prompt)
        self.mask_B_1_R_L = (causal[None] & inside[:, None, :])[:, None]
        self.split = len(segments.prompts) * self.prompt

    def equal_heads(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Prompts causally, then answers, padded to one length, over prompt and answer."""
        q_U, k_U, v_U = (_rows(x[:, :, : self.split], self.prompt) for x in (q, k, v))
        out = scaled_dot_product_attention(q_U, k_U, v_U, is_causal=True, scale=scale)
        parts = [_flat(out)]
        if self.answer:
            self.mask_B_1_R_L = _added(self.mask_B_1_R_L, q)
            q_B, k_B, v_B = (_rows(x[:, :, self.split :], self.answer) for x in (q, k, v))
            k_B = torch.cat([k_U.index_select(0, self.group_B), k_B], dim=2)
            v_B = torch.cat([v_U.index_select(0, self.group_B), v_B], dim=2)
            out = scaled_dot_product_attention(
                q_B, k_B, v_B, attn_mask=self.mask_B_1_R_L, scale=scale
            )
            parts.append(_flat(out))
        return torch.cat(parts, dim=2)


class Dense(PrefixLayout):
    """One call for each group, over its prompt and all its answers with a mask between them."""

    def __init__(self, segments: Segments, device: torch.device) -> None:
        self.groups: list[tuple[int, int]] = []
        self.masks: list[Tensor] = []
        for u, (start, length) in enumerate(segments.prompts):
            owner = [torch.full((length,), -1)]
            for b, (_, answer) in enumerate(segments.answers):
                if segments.group[b] == u:
                    owner.append(torch.full((answer,), b))
            owner_n = torch.cat(owner).to(device)
            sees = (owner_n[None, :] == -1) | (owner_n[None, :] == owner_n[:, None])
            self.groups.append((start, len(owner_n)))
            self.masks.append(sees.tril())

    def equal_heads(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Each prompt with its answers in one attention, under a mask of its own."""
        self.masks = [_added(mask, q) for mask in self.masks]
        return torch.cat(
            [
                scaled_dot_product_attention(
                    *(x[:, :, start : start + length] for x in (q, k, v)),
                    attn_mask=mask,
                    scale=scale,
                )
                for (start, length), mask in zip(self.groups, self.masks, strict=True)
            ],
            dim=2,
        )


class Loop(PrefixLayout):
    """One call for each prompt and each answer, for long groups: work grows with what is seen."""

    def __init__(self, segments: Segments, device: torch.device) -> None:
        self.prompts = segments.prompts
        self.answers: list[list[tuple[int, int]]] = [[] for _ in segments.prompts]
        self.masks: dict[tuple[int, int], Tensor] = {}
        for (start, length), u in zip(segments.answers, segments.group, strict=True):
            before = segments.prompts[u][1]
            if length:
                self.answers[u].append((start, length))
                sees = torch.ones(length, before + length, dtype=torch.bool, device=device)
                self.masks[length, before + length] = sees.tril(before)

    def equal_heads(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Each prompt causally, then each of its answers over that prompt and itself."""
        parts = []
        self.masks = {shape: _added(mask, q) for shape, mask in self.masks.items()}
        for (start, length), answers in zip(self.prompts, self.answers, strict=True):
            prompt = slice(start, start + length)
            q_p, k_p, v_p = (x[:, :, prompt] for x in (q, k, v))
            parts.append(scaled_dot_product_attention(q_p, k_p, v_p, is_causal=True, scale=scale))
            for first, size in answers:
                answer = slice(first, first + size)
                parts.append(
                    scaled_dot_product_attention(
                        q[:, :, answer],
                        torch.cat([k_p, k[:, :, answer]], dim=2),
                        torch.cat([v_p, v[:, :, answer]], dim=2),
                        attn_mask=self.masks[size, length + size],
                        scale=scale,
                    )
                )
        return torch.cat(parts, dim=2)


class Flex(PrefixLayout):
    """One call for all groups through FlexAttention, for GPUs: keys are not copied for an answer or
    a head, and blocks of tokens that nobody sees cost nothing.

    Source: Dong et al., "Flex Attention", 2024.
    """

    def __init__(self, segments: Segments, device: torch.device) -> None:
        group, owner = torch.zeros(
            2, max(start + length for start, length in segments.prompts + segments.answers)
        ).long()
        for u, (start, length) in enumerate(segments.prompts):
            group[start : start + length], owner[start : start + length] = u, -1
        for b, (start, length) in enumerate(segments.answers):
            group[start : start + length], owner[start : start + length] = segments.group[b], b
        group_N, owner_N = group.to(device), owner.to(device)

        def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
            inside = (owner_N[key] == -1) | (owner_N[key] == owner_N[query])
            return (query >= key) & (group_N[query] == group_N[key]) & inside

        self.mask = block_mask(sees, len(group_N), device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Attention by FlexAttention's kernel, compiled on a GPU; as `Layout.attend`."""
        q, k = q.to(v.dtype), k.to(v.dtype)  # under autocast a norm may have made them wider
        kernel = compiled_flex() if q.is_cuda else flex_attention
        return kernel(q, k, v, block_mask=self.mask, scale=scale, enable_gqa=True)

    def equal_heads(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """As `attend`, which takes any number of heads."""
        return self.attend(q, k, v, scale)


BLOCK = 128
"""Tokens of a side of a block in which a mask is all, nothing, or looked up."""


def block_mask(sees: Any, tokens: int, device: torch.device) -> BlockMask:
    """The blocks of ``sees(batch, head, query, key)`` over N tokens, N x N never in memory at
    once."""
    count = -(-tokens // BLOCK)
    places = torch.arange(tokens, device=device)
    some, every = torch.zeros(2, count, count, dtype=torch.bool, device=device)
    for row in range(count):
        rows = places[row * BLOCK : (row + 1) * BLOCK]
        visible = rows.new_zeros(BLOCK, count * BLOCK, dtype=torch.bool)
        visible[: len(rows), :tokens] = sees(None, None, rows[:, None], places[None])
        blocks = visible.view(BLOCK, count, BLOCK)
        some[row], every[row] = blocks.any(2).any(0), blocks.all(2).all(0)

    def listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
        order = blocks.int().argsort(dim=1, descending=True, stable=True)
        return blocks.sum(1).int()[None, None], order.int()[None, None]

    return BlockMask.from_kv_blocks(
        *listed(some & ~every),
        *listed(every),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(tokens, tokens),
    )


@functools.cache
def compiled_flex() -> Any:
    """FlexAttention as a kernel; of shapes that change it makes one for all."""
    return torch.compile(flex_attention)


def layouts(device: torch.device) -> list[type[PrefixLayout] | None]:
    """What to pack batches by on a device, best first; None is by size, with `choose`."""
    return [Flex, None] if device.type == "cuda" and has_triton() else [None]


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask of booleans as what is added to scores: made once, and not by each layer again."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, -torch.inf)


def _rows(x_1_H_N_D: Tensor, length: int) -> Tensor:
    """(1, H, B * length, D) -> (B, H, length, D)."""
    _, heads, tokens, width = x_1_H_N_D.shape
    return x_1_H_N_D.view(heads, tokens // length, length, width).transpose(0, 1)


def _flat(x_B_H_L_D: Tensor) -> Tensor:
    """(B, H, L, D) -> (1, H, B * L, D)."""
    batch, heads, length, width = x_B_H_L_D.shape
    return x_B_H_L_D.transpose(0, 1).reshape(1, heads, batch * length, width)


DENSE_TOKENS = 700
"""Tokens of a group up to which a mask over all of them costs less than a call for each answer."""
TOKEN_COST = 6 / 50e9
"""Seconds of forward and backward for each token and weight of a layer, at 50 GFLOP/s."""
CALL_COST = 1e-4
"""Seconds of forward and backward that a further call of attention costs in a layer."""


def choose(
    prompts: list[int], answers: list[int], group: list[int], layer_weights: int
) -> type[PrefixLayout]:
    """The fastest layout for prompts and answers of these lengths, in tokens.

    Args:
        group: index of each answer's prompt.
        layer_weights: weights of one layer, which decide what padding costs.
    """
    padding = sum(max(n) * len(n) - sum(n) for n in (prompts, answers))
    if padding * layer_weights * TOKEN_COST < len(prompts) * CALL_COST:
        return Padded
    sizes = list(prompts)
    for answer, index in zip(answers, group, strict=True):
        sizes[index] += answer
    return Dense if max(sizes) <= DENSE_TOKENS else Loop


def pack(
    ids_B_L: Tensor,
    mask_B_L: Tensor,
    keep: int,
    layer_weights: int,
    layout: type[PrefixLayout] | None = None,
) -> Packed:
    """The batch as one sequence.

    Args:
        ids_B_L: prompts padded on the left, completions padded on the right.
        mask_B_L: 1 where there is a token.
        keep: how many of the L columns are completions.
        layer_weights: weights of one layer of the model.
        layout: None takes the fastest one.

    Raises:
        ValueError: a row is not a prompt and then a completion.
    """
    device, before = ids_B_L.device, ids_B_L.shape[1] - keep
    ids, mask = ids_B_L.cpu(), mask_B_L.cpu().int()
    turns = mask.diff(dim=1)
    prompt_lengths = mask[:, :before].sum(1).tolist()
    lengths = mask[:, before:].sum(1).tolist()
    if (turns[:, : before - 1] < 0).any() or (turns[:, before:] > 0).any() or 0 in prompt_lengths:
        raise ValueError("a row is not a prompt padded left and a completion padded right")
    index_of: dict[tuple[int, ...], int] = {}
    group = [
        index_of.setdefault(tuple(row[before - length : before].tolist()), len(index_of))
        for row, length in zip(ids, prompt_lengths, strict=True)
    ]
    prompts = [len(prompt) for prompt in index_of]
    answers = [max(length - 1, 0) for length in lengths]
    layout = layout or choose(prompts, answers, group, layer_weights)
    segments, total = _places(prompts, answers, group, layout)
    packed_ids, positions = torch.zeros(2, total, dtype=torch.long)
    for prompt, (start, length) in zip(index_of, segments.prompts, strict=True):
        packed_ids[start : start + length] = torch.tensor(prompt)
        positions[start : start + length] = torch.arange(length)
    scored, places = [], []
    for b, (start, length) in enumerate(segments.answers):
        first, size = segments.prompts[group[b]]
        packed_ids[start : start + length] = ids[b, before : before + length]
        positions[start : start + length] = torch.arange(size, size + length)
        if lengths[b]:
            scored += [first + size - 1, *range(start, start + length)]
            places += range(b * keep, b * keep + lengths[b])
    places_M = torch.tensor(places, dtype=torch.long)
    return Packed(
        packed_ids[None].to(device),
        positions[None].to(device),
        layout(segments, device),
        torch.tensor(scored, dtype=torch.long, device=device),
        ids[:, before:].flatten()[places_M].to(device),
        places_M.to(device),
    )


def _places(
    prompts: list[int], answers: list[int], group: list[int], layout: type[PrefixLayout]
) -> tuple[Segments, int]:
    """Where each segment stands in the sequence, and how long that is."""
    if layout is Padded:
        row, column = max(prompts), max(answers)
        split = len(prompts) * row
        return Segments(
            [(u * row, length) for u, length in enumerate(prompts)],
            [(split + b * column, length) for b, length in enumerate(answers)],
            group,
        ), split + len(answers) * column
    end = 0
    starts_of_prompts, starts_of_answers = [], [0] * len(answers)
    for u, length in enumerate(prompts):
        starts_of_prompts.append(end)
        end += length
        for b, answer in enumerate(answers):
            if group[b] == u:
                starts_of_answers[b] = end
                end += answer
    return Segments(
        list(zip(starts_of_prompts, prompts, strict=True)),
        list(zip(starts_of_answers, answers, strict=True)),
        group,
    ), end


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over a packed batch; without a ``layout`` it is transformers' own sdpa.

    Args:
        query: (1, H, N, D); key and value may have fewer heads.
        layout: of `Packed`; reaches this function as a keyword argument of the model.
    """
    if layout is None:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            **kwargs,
        )
    out = layout.attend(query, key, value, scaling)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
