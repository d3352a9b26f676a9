"""From the contents that a prompt has to every variant of them, each with what it is compared to.

A probe is a text and its counterpart: the same content without the edit, or an empty answer for
texts without content. What somebody wrote for a slot goes before what a rule makes of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

from judges.probes.rewriters import KEYWORD, REPLACEMENTS, corrupted, edits
from study.config.bounds import Choice, check
from study.features import features
from study.rows import Row, RuleTruth, Truth

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
WRONG = "yconfident_wrong"
NAMES = [*edits(), WRONG, *REPLACEMENTS]
"""Every variant that can be asked for by name, beside the contents."""
GIVEN = "given"
"""The base of what came with the set for a slot: compared to the right answer as it is."""


@dataclass(frozen=True)
class Source:
    """One prompt with the contents that there are for it."""

    row: Row
    contents: dict[str, str]
    """Keys of ``BASES`` -> text."""
    slot_texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Keys of ``SLOTS`` -> text that no rule made, and who did: set or model."""
    stratum: str = ""
    truth: Callable[[str], RuleTruth] = lambda _: None
    by: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Slot -> its author and the author's family, where somebody is on record."""
    bases: dict[str, str] = field(default_factory=dict)
    """Slot of ``slot_texts`` -> the content that it was made from, where that is on record."""

    def base_of(self, slot: str) -> str:
        """The content that a text of ``slot_texts`` is compared to; empty where there is none."""
        base = self.bases.get(slot, "correct" if "correct" in self.contents else "policy")
        return base if base in self.contents else ""


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
    author: str = ""
    """Who wrote it, or what it is an edit of; empty where nobody is on record."""
    author_family: str = ""

    def as_row(self, word: str = KEYWORD) -> dict[str, object]:
        """The variant as a flat record with its features, as ``probes.parquet`` stores it."""
        columns = {name: value for name, value in vars(self).items() if name != "row"}
        components = {f"component/{k}": v for k, v in features(self.text, word).items()}
        prompt = {"prompt_id": self.row.prompt_id, "prompt": self.row.prompt_text()}
        prompt["dataset"] = self.row.dataset
        return prompt | columns | components


def variants(
    source: Source,
    bases: Sequence[str] = ("correct", "partial"),
    only: Sequence[str] = (),
    word: str = KEYWORD,
) -> tuple[list[Variant], Counter[str]]:
    """All variants of one prompt, contents first, and how many could not be made by reason.

    Args:
        bases: contents that every edit is applied to; those that the prompt lacks are passed
            over. Where it has none of them the policy's answer is the base.
        only: names of edits and replacements to make; all of them where empty.
        word: what the keyword probe adds.

    Raises UserError: a base or variant that does not exist."""
    every = edits(word)
    for key, names, legal, example in (
        ("bases", bases, BASES, "correct,partial"),
        ("variants", only, NAMES, "placebo,yverbose"),
    ):
        for name in names:
            check(key, name, Choice(tuple(legal)), example)
    wanted = set(only or NAMES)
    missing: Counter[str] = Counter()
    results: list[Variant] = []
    row, contents = source.row, source.contents

    def add(
        name: str, bias: str, base: str, against: str | None, text: str, keeps: bool = True,
        how: str = "rule",
    ) -> None:  # fmt: skip
        """One more variant; ``against`` is ``variant/base`` of the same prompt."""
        truth = source.truth(text)
        score = truth.score if isinstance(truth, Truth) else None
        edit_of = source.base_of(name) if base == GIVEN else base
        author_slot = name if how != "rule" else BASES.get(edit_of, "")
        author, family = source.by.get(author_slot, ("", ""))
        results.append(
            Variant(
                probe_id=f"{row.prompt_id}/{name}/{base}", row=row, variant=name, bias=bias,
                base=base, against=None if against is None else f"{row.prompt_id}/{against}",
                keeps=keeps, how=how, text=text, truth=score, author=author,
                author_family=family,
            )
        )  # fmt: skip

    for base, slot in BASES.items():
        if base in contents:
            add(slot, "content", base, None, contents[base])
        else:
            missing[f"{slot}: no such content"] += 1
    for slot, (text, how) in source.slot_texts.items():
        compared = source.base_of(slot)
        if slot in wanted and contents.get(compared, text) != text:
            against = f"{BASES[compared]}/{compared}"
            add(slot, SLOTS[slot], GIVEN, against, text, slot != WRONG, how)
    used_bases = [base for base in bases if base in contents] or [*{"policy"} & contents.keys()]
    for name, base in product([name for name in every if name in wanted], used_bases):
        if name in source.slot_texts and base == source.base_of(name):
            continue
        text = every[name].rewrite(contents[base])
        if text == contents[base]:
            missing[f"{name}: nothing to change"] += 1
        else:
            add(name, every[name].bias, base, f"{BASES[base]}/{base}", text)
    if WRONG in wanted - source.slot_texts.keys():
        # a sure tone on wrong content: what the prompt has of it, or its numbers made wrong
        base = next((base for base in ("wrong", "correct", "policy") if base in contents), "policy")
        content = contents.get(base, "")
        wrong = content if base == "wrong" else corrupted(content)
        if base != "wrong" and wrong == content:
            missing[f"{WRONG}: no wrong content, and no number to make wrong"] += 1
        else:
            if base != "wrong":
                add("ywrong", "wrong numbers", base, f"{BASES[base]}/{base}", wrong, keeps=False)
            add(WRONG, SLOTS[WRONG], base, f"ywrong/{base}", every["yconfident"].rewrite(wrong))
    if wanted & REPLACEMENTS.keys():
        wanted.add("empty")
    for name, (bias, text) in REPLACEMENTS.items():
        if name in wanted:
            add(name, bias, "none", None if name == "empty" else "empty/none", text)
    return results, missing
