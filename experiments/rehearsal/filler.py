"""Text of a wanted length, and a policy that writes it: what stands for answers and reasoning.

A rehearsal needs texts that are as long as real ones, and nothing else of them. The policy has
random weights and a vocabulary of whole phrases: one of its tokens stands for
`TOKENS_AT_ONCE` tokens of a real policy, so that an answer of 1,600 tokens takes 100 steps. All
its tokens are about equally likely, the one that ends an answer too, so that the size of the
vocabulary is the mean length.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from experiments.plan.rates import ANSWER_SHARE, CHARACTERS_PER_TOKEN
from experiments.policies.checkpoints import seal
from experiments.policies.tiny import (
    CHAT_TEMPLATE,
    END,
    PAD,
    ROLES,
    built_once,
    repeatable,
    whole_folder,
)

TOKENS_AT_ONCE = 16
"""Tokens of text that one token of the policy stands for."""
UNKNOWN = "<|unknown|>"
_SYLLABLES = [a + b for a, b in itertools.product("bdfgklmnprstvz", "aeiou")]
_CHOICE = random.Random(0)
WORDS = ["".join(_CHOICE.choices(_SYLLABLES, k=_CHOICE.choice((1, 2, 2, 3)))) for _ in range(4096)]
"""Words without a meaning, which compress about as English does."""


def text_of(tokens: float, random_numbers: random.Random) -> str:
    """Words that take about so many tokens at `CHARACTERS_PER_TOKEN` characters each."""
    characters = round(tokens * CHARACTERS_PER_TOKEN)
    words, length = [], 0
    while length < characters:
        words.append(random_numbers.choice(WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[:characters]


def phrases(most_tokens: int) -> int:
    """Size of the vocabulary with which answers take the mean share `ANSWER_SHARE` of
    ``most_tokens``.

    Lengths are geometric with mean V, cut off at M: their mean is about V (1 - exp(-M / V)), which
    is .4 M at V = .4485 M.
    """
    assert ANSWER_SHARE == 0.4
    return max(8, round(0.4485 * most_tokens))


def build_policy(folder: Path, most_tokens: int) -> Path:
    """The policy whose answers have ``most_tokens`` of its tokens at the most, in ``folder``; made
    where it is missing or damaged."""

    def build(place: Path) -> None:
        _build(place, phrases(most_tokens))

    with built_once(folder, build):
        return folder


def _build(folder: Path, size: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    roles = [f"<|{role}|>" for role in ROLES]
    draw = random.Random(1)
    spoken = [f" {text_of(TOKENS_AT_ONCE - 0.25, draw)}" for _ in range(size - len(roles) - 3)]
    vocabulary = [PAD, END, UNKNOWN, *roles, *spoken]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(vocabulary)}, UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?\S+"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=roles,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=65_536,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=vocabulary.index(END),
        pad_token_id=vocabulary.index(PAD),
    )
    with repeatable(0):
        model = LlamaForCausalLM(config)
        torch.nn.init.normal_(model.lm_head.weight, std=0.01)  # all tokens about equally likely
    with whole_folder(folder) as part:
        model.save_pretrained(part)
        fast.save_pretrained(part)
        seal(part, folder.name)
