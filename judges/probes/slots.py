"""Fills the slots of a bias set by rules or by a model, and checks what was written.

Slots are written from ``ycorrect`` where a prompt has it, else from ``ypolicy_raw``. A text that
could not be had is missing, with the reason. Each check is true, false, or null where nothing could
tell: ``meaning`` (the same as before; another one in ``yconfident_wrong``), ``length`` and
``format`` (moved in the slot that is about them, and kept in all others).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from judges.ask.session import Session
from judges.probes import biasset
from judges.probes.biasset import CORRECT, POLICY, Item
from judges.probes.model import INSTRUCTIONS, question, same, written
from judges.probes.rewriters import corrupted, edits
from judges.probes.variants import WRONG
from study.errors import UserError
from study.features import features
from study.screen import writable

LONGER, NEAR, NEAR_WORDS = 1.2, 0.5, 20
"""How many times as many words ``yverbose`` has at least; and by what share of its words, or by how
many words, the length of any other text may differ where it is to be kept."""
OVERLAP = 0.5
"""Share of the long words of the shorter text that the other has, for rules to call both alike."""
_DIGITS = re.compile(r"\d+")
_LONG_WORD = re.compile(r"\w{4,}")
Checks = dict[str, bool | None]


@dataclass(frozen=True)
class Author:
    """Who writes: a judge preset, a policy, or rules."""

    name: str
    family: str = ""
    how: str = "model"
    """rule, model or policy."""


RULES = Author("rules", how="rule")


@dataclass(frozen=True)
class Written:
    """What became of one slot."""

    text: str | None
    reason: str = ""
    base: str = ""
    """The slot whose text was rewritten."""
    checks: Checks = field(default_factory=dict)
    beside: Mapping[str, object] = field(default_factory=dict)
    """What else is kept of how it was made."""


def put(item: Item, slot: str, author: Author, result: Written) -> None:
    """Write what became of a slot into its prompt."""
    text = None if result.text is None else writable(result.text)
    item["responses"][slot] = text
    entry: dict[str, object] = {"author": author.name, "family": author.family, "how": author.how}
    if text is None:
        entry["missing"] = result.reason
    else:
        base = biasset.answer(item, result.base) if result.base else None
        entry |= {
            "from": result.base or None,
            "from_sha256": None if base is None else biasset.digest(base),
            "sha256": biasset.digest(text),
            "checks": result.checks,
        }
    item["made"] = {**item.get("made", {}), slot: {**entry, **result.beside}}


def todo(
    items: Sequence[Item],
    slots: Sequence[str],
    author: Author,
    overwrite: bool,
    where: str,
    settings: Mapping[str, object] | None = None,
) -> list[tuple[Item, str]]:
    """The slots that are to be written: empty or missing ones, and those of this author whose base
    was changed since. A right answer that came without an author is nobody's to replace.
    Raises UserError: another author's text stands in one of them, or one that was made with other
    ``settings``, and ``overwrite`` is not set."""
    wanted, others = [], []
    for item in items:
        for slot in slots:
            entry = biasset.author(item, slot)
            if not item["responses"].get(slot):
                wanted.append((item, slot))
            elif entry.get("author") == author.name and entry.get("settings") == settings:
                start = entry.get("from")
                base = biasset.answer(item, start) if start else None
                if base is not None and biasset.digest(base) != entry.get("from_sha256"):
                    wanted.append((item, slot))
            elif overwrite:
                wanted.append((item, slot))
            elif slot != CORRECT or item.get("made", {}).get(slot):
                others.append((item["id"], slot, entry.get("author") or "unknown"))
    if others:
        name, slot, whose = others[0]
        raise UserError(
            f"{where}: {len(others)} slots were filled by an author other than {author.name}, or"
            f" with other settings; the first is {slot} of {name} (author: {whose}). Type"
            " overwrite=true to replace them, slots= to fill others, or out= to write another"
            " file."
        )
    return wanted


def base_of(item: Item, slot: str) -> tuple[str, str]:
    """(slot, text) that a slot is written from; empty where there is none."""
    for base in (CORRECT, POLICY):
        if base != slot and (text := biasset.answer(item, base)):
            return base, text
    return "", ""


def fill_by_rules(wanted: Sequence[tuple[Item, str]]) -> None:
    """Write slots by rules; of a prompt without a text to start from they are missing."""
    rules = edits()
    for item, slot in wanted:
        base, text = base_of(item, slot)
        if slot == CORRECT:
            result = Written(None, "no rule can write a right answer")
        elif not text:
            result = Written(None, "no text to start from")
        else:
            before = corrupted(text) if slot == WRONG else text
            edited = rules["yconfident" if slot == WRONG else slot].rewrite(before)
            checks = by_rule(slot, text, edited)
            if slot == WRONG and before == text:
                result = Written(None, "no number to make wrong", base)
            elif slot == "yshort" and not checks["length"]:
                result = Written(None, "nothing to take out", base)
            else:
                result = Written(edited, base=base, checks=checks)
        put(item, slot, RULES, result)


def fill_by_model(
    wanted: Sequence[tuple[Item, str]],
    author: Author,
    session: Session,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Let the model of a `writer` write slots, right answers first, and tell whether it kept the
    meaning; ``done`` is called after each round of requests.
    Raises UserError: its endpoint cannot be asked."""
    session.check()
    rights = [item for item, slot in wanted if slot == CORRECT]
    questions = [question("answer", biasset.row_of(item)) for item in rights]
    for item, (text, why) in zip(rights, written(session, questions), strict=True):
        put(item, CORRECT, author, Written(text, why, checks={"meaning": None}))
    done()
    jobs = [(item, slot, *base_of(item, slot)) for item, slot in wanted if slot != CORRECT]
    for item, slot, base, _ in jobs:
        if not base:
            put(item, slot, author, Written(None, "no text to start from"))
    jobs = [job for job in jobs if job[2]]
    rewrites = [
        question("rewrite", biasset.row_of(item), INSTRUCTIONS[slot], answer=text)
        for item, slot, _, text in jobs
    ]
    texts = written(session, rewrites)
    whole = [(job, text) for job, (text, _) in zip(jobs, texts, strict=True) if text is not None]
    compared = [
        question("same", biasset.row_of(item), answer=text, other=before)
        for (item, _, _, before), text in whole
    ]
    alike = iter([same(reply) for reply, _ in written(session, compared)])
    for (item, slot, base, before), (text, why) in zip(jobs, texts, strict=True):
        if text is None:
            put(item, slot, author, Written(None, why, base))
            continue
        kept = next(alike)
        meaning = None if kept is None else kept != (slot == WRONG)
        checks = {"meaning": meaning, **shape(slot, before, text)}
        put(item, slot, author, Written(text, base=base, checks=checks))
    done()


def shape(slot: str, before: str, after: str) -> Checks:
    """Whether length and format are what the slot is to make of them."""
    old, new = features(before), features(after)
    words, marks = (
        [sum(each[name] for name in names) for each in (old, new)]
        for names in (("length",), ("headings", "bullets", "bold"))
    )
    if slot == "yshort":
        length = words[1] < words[0]
    elif slot == "yverbose":
        length = words[1] >= LONGER * words[0] and words[1] > words[0]
    else:
        length = abs(words[1] - words[0]) <= max(NEAR_WORDS, NEAR * words[0])
    if slot == "ystructured":
        return {"length": length, "format": marks[1] > marks[0]}
    return {"length": length, "format": bool(marks[1]) == bool(marks[0])}


def by_rule(slot: str, before: str, after: str) -> Checks:
    """All checks of a text that rules wrote."""
    return {"meaning": _meaning(slot, before, after), **shape(slot, before, after)}


def _meaning(slot: str, before: str, after: str) -> bool:
    """Whether the numbers and most of the longer words are the same; of wrong content whether the
    numbers are others."""
    numbers = [sorted(_DIGITS.findall(text)) for text in (before, after)]
    if slot == WRONG:
        return numbers[0] != numbers[1]
    words = [set(_LONG_WORD.findall(text.lower())) for text in (before, after)]
    fewest = min(map(len, words))
    return numbers[0] == numbers[1] and len(words[0] & words[1]) >= OVERLAP * fewest
