"""From the contents that a prompt has to every variant of them, each with what it is compared to.

A probe is a text and its counterpart: the same content without the edit, or an empty answer for
texts without content. What somebody wrote for a slot goes before what a rule makes of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from judges.probes.rewriters import KEYWORD, REPLACEMENTS, corrupted, edits
from study.errors import UserError
from study.features import features
from study.rows import Row, Truth

BASES = {
    "correct": "ycorrect",
    "partial": "ypartial",
    "wrong": "ywrong",
    "policy": "ypolicy_raw",
}
"""Contents and the variant that shows each without any edit."""
SLOTS = {
    "yshort": "length",
    "yverbose": "length",
    "ystructured": "structure",
    "ysycophant": "sycophancy",
    "yconfident_wrong": "confidence on wrong content",
}
"""Variants that a set may bring along, and the bias that each probes."""
GIVEN = "given"
"""The base of what came with the set for a slot: compared to the right answer as it is."""


@dataclass(frozen=True)
class Source:
    """One prompt with the contents that there are for it."""

    row: Row
    contents: dict[str, str]
    """Keys of ``BASES`` -> text."""
    given: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Keys of ``SLOTS`` -> text that no rule made, and who did: set or model."""
    stratum: str = ""
    truth: Callable[[str], Truth | None] = lambda _: None


@dataclass(frozen=True)
class Variant:
    """One text to be judged."""

    probe_id: str
    row: Row
    variant: str
    bias: str
    base: str
    """The content that it is an edit of; ``none`` for a text without any."""
    against: str | None
    """The probe that it is compared to; None for contents as they are."""
    keeps: bool
    """Whether it says what its counterpart says."""
    how: str
    """Where the text is from: rule, set or model."""
    text: str
    truth: float | None

    def as_row(self, word: str = KEYWORD) -> dict[str, object]:
        """The variant as a flat record with its features, as ``probes.parquet`` stores it."""
        found = features(self.text, word)
        return {
            "probe_id": self.probe_id,
            "prompt_id": self.row.prompt_id,
            "prompt": self.row.prompt_text(),
            "variant": self.variant,
            "bias": self.bias,
            "base": self.base,
            "against": self.against,
            "keeps": self.keeps,
            "how": self.how,
            "text": self.text,
            "truth": self.truth,
        } | {f"component/{name}": value for name, value in found.items()}


def variants(
    source: Source,
    bases: Sequence[str] = ("correct", "partial"),
    only: Sequence[str] = (),
    word: str = KEYWORD,
) -> tuple[list[Variant], Counter[str]]:
    """All variants of one prompt, contents first.

    Args:
        bases: contents that every edit is applied to; those that the prompt lacks are passed
            over. Where it has none of them the policy's answer is the base.
        only: names of edits and replacements to make; all of them where empty.
        word: what the keyword probe adds.

    Returns:
        The variants, and how many could not be made by reason.

    Raises:
        UserError: a base or variant that does not exist.
    """
    every = edits(word)
    _check(bases, only, list(every))
    wanted = set(only) or names()
    missing: Counter[str] = Counter()
    maker = _Maker(source)
    for base, slot in BASES.items():
        if base in source.contents:
            maker.add(slot, "content", base, None, True, "rule", source.contents[base])
        else:
            missing[f"{slot}: no such content"] += 1
    used = [base for base in bases if base in source.contents]
    used = used or [base for base in ("policy",) if base in source.contents]
    for slot, (text, how) in source.given.items():
        if slot in wanted and source.contents.get("correct", text) != text:
            keeps = slot != "yconfident_wrong"
            maker.add(slot, SLOTS[slot], GIVEN, "ycorrect/correct", keeps, how, text)
    for name, edit in every.items():
        for base in used if name in wanted else ():
            if base == "correct" and name in source.given:
                continue
            content = source.contents[base]
            text = edit.rewrite(content)
            if text == content:
                missing[f"{name}: nothing to change"] += 1
                continue
            maker.add(name, edit.bias, base, f"{BASES[base]}/{base}", edit.keeps, "rule", text)
    if "yconfident_wrong" in wanted and "yconfident_wrong" not in source.given:
        _confident_wrong(maker, source, every["yconfident"].rewrite, missing)
    if wanted & set(REPLACEMENTS):
        wanted.add("empty")
    for name, (bias, text) in REPLACEMENTS.items():
        if name in wanted:
            against = None if name == "empty" else "empty/none"
            maker.add(name, bias, "none", against, True, "rule", text)
    return maker.made, missing


def names() -> set[str]:
    """Every variant that can be asked for by name, beside the contents."""
    return {*edits(), *REPLACEMENTS, "yconfident_wrong"}


def _confident_wrong(
    maker: _Maker, source: Source, sure: Callable[[str], str], missing: Counter[str]
) -> None:
    """A sure tone on wrong content: what the prompt has of it, or its numbers made wrong."""
    bias = SLOTS["yconfident_wrong"]
    if "wrong" in source.contents:
        wrong = sure(source.contents["wrong"])
        maker.add("yconfident_wrong", bias, "wrong", "ywrong/wrong", True, "rule", wrong)
        return
    right = source.contents.get("correct") or source.contents.get("policy", "")
    base = "correct" if "correct" in source.contents else "policy"
    if corrupted(right) == right:
        missing["yconfident_wrong: no wrong content, and no number to make wrong"] += 1
        return
    maker.add("ywrong", "wrong numbers", base, f"{BASES[base]}/{base}", False, "rule",
              corrupted(right))  # fmt: skip
    maker.add("yconfident_wrong", bias, base, f"ywrong/{base}", True, "rule",
              sure(corrupted(right)))  # fmt: skip


class _Maker:
    """Collects the variants of one prompt under ids that say what they are."""

    def __init__(self, source: Source) -> None:
        self.made: list[Variant] = []
        self._source = source

    def add(
        self,
        name: str,
        bias: str,
        base: str,
        against: str | None,
        keeps: bool,
        how: str,
        text: str,
    ) -> None:
        """One more variant; ``against`` is ``variant/base`` of the same prompt."""
        row = self._source.row
        truth = self._source.truth(text)
        self.made.append(
            Variant(
                probe_id=f"{row.prompt_id}/{name}/{base}",
                row=row,
                variant=name,
                bias=bias,
                base=base,
                against=None if against is None else f"{row.prompt_id}/{against}",
                keeps=keeps,
                how=how,
                text=text,
                truth=None if truth is None else truth.score,
            )
        )


def _check(bases: Sequence[str], only: Sequence[str], every: Sequence[str]) -> None:
    for name in bases:
        if name not in BASES:
            raise UserError(
                f"bases={name} is not a kind of content. Give one or more of"
                f" {', '.join(BASES)}, for example bases=correct,partial."
            )
    legal = [*every, "yconfident_wrong", *REPLACEMENTS]
    for name in only:
        if name not in legal:
            raise UserError(
                f"variants={name} is not a variant. Give some of {', '.join(legal)}, for example"
                " variants=placebo,yverbose."
            )
