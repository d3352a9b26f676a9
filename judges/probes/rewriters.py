"""Edits that change how an answer looks and not what it says; each is a pure function of the text.

No phrase added here is an item of the built-in task, and lines stay lines, so what a rule checks of
the content is as it was. What the added words themselves cost (the built-in task charges for what
was not asked for) is part of the truth's own change, which every effect is measured against.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

from study.system.files import read_yaml

TEXTS = read_yaml(Path(__file__).with_name("texts.yaml"))
KEYWORD = "robust"
REPLACEMENTS: dict[str, tuple[str, str]] = {
    name: (bias, text) for name, (bias, text) in TEXTS["replacements"].items()
}
"""Texts without any content that stand in place of an answer: name -> (bias, text)."""
LONGEST_NUMBER = 100
"""Digits of a number that is changed as a whole."""

_LEAD_IN = re.compile(
    rf"(?im)(?:^|(?<=[.!?:] ))(?:{'|'.join(TEXTS['lead_ins'])})[.!:](?:[ \t]+|(?=\n)|\Z)"
)
_WORDY = re.compile("|".join(rf"\b{re.escape(phrase)}" for phrase in TEXTS["wordy"]), re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])[ \t]+(?=[A-Z0-9\"'(])")
_MARKED = re.compile(r"^[ \t]*(?:[-*+•]|\d{1,3}[.)]|#{1,6}|\||```)[ \t]*")
_NUMBER = re.compile(r"(?<!\w)(?<!\d[.,])\d+(?!\w|[.,]\d)")


@dataclass(frozen=True)
class Edit:
    """One way to rewrite a text that keeps what it says."""

    bias: str
    """The bias that it probes."""
    rewrite: Callable[[str], str]
    """Text -> text; the same text where there is nothing to change."""


def shorter(text: str) -> str:
    """Without lead-ins, farewells and roundabout words; the same text where there are none."""
    shortened = _LEAD_IN.sub("", text)
    shortened = _WORDY.sub(
        lambda phrase: _in_case(phrase[0], TEXTS["wordy"][phrase[0].lower()]), shortened
    )
    shortened = "\n".join(line.rstrip() for line in shortened.splitlines()).strip()
    return re.sub(r"\n{3,}", "\n\n", shortened) if shortened else text


def longer(text: str) -> str:
    """With sentences that say nothing: half as many words again, and 20 at least."""
    wanted, padding = max(20, len(text.split()) // 2), cycle(TEXTS["padding"])
    added: list[str] = []
    while wanted > 0:
        added.append(next(padding))
        wanted -= len(added[-1].split())
    return _add("below", " ".join(added), text)


def structured(text: str) -> str:
    """A heading on top, every line a bullet, and its first words bold; lists stay as they are."""
    lines = []
    for line in text.splitlines():
        if not line.strip() or _MARKED.match(line):
            lines.append(line)
            continue
        lines += [f"- {_bold(sentence)}" for sentence in _SENTENCE.split(line.strip())]
    return "\n".join(["# Answer", "", *lines])


def placebo(text: str) -> str:
    """White space alone: blanks where lines end, and a blank line at the end of the text."""
    return "\n".join(f"{line}  " for line in text.splitlines()) + "\n\n"


def corrupted(text: str) -> str:
    """Every whole number one and a half times as large and one more: wrong, and looks the same.
    The same text where there is no number."""
    return _NUMBER.sub(lambda number: _other(number[0]), text)


def _other(digits: str) -> str:
    """Another number of about the size; of one that is absurdly long only the end changes."""
    head, tail = digits[:-LONGEST_NUMBER], digits[-LONGEST_NUMBER:]
    changed = str(int(tail) * 3 // 2 + 1)
    return head + changed[-LONGEST_NUMBER:].zfill(LONGEST_NUMBER) if head else changed


def edits(word: str = KEYWORD) -> dict[str, Edit]:
    """All edits by name, the placebo first; ``word`` is what the keyword edit adds."""
    rules = {"placebo": placebo, "yshort": shorter, "yverbose": longer, "ystructured": structured}
    return {
        name: Edit(bias, partial(_add, *(part.replace("{word}", word) for part in added)))
        if added
        else Edit(bias, rules[name])
        for name, (bias, *added) in TEXTS["edits"].items()
    }


def _add(place: str, added: str, text: str) -> str:
    """A line of its own above or below the text, or more of its last line."""
    if place == "above":
        return f"{added}\n{text}"
    return f"{text.rstrip()}\n{added}" if place == "below" else f"{text} {added}"


def _bold(line: str) -> str:
    """The first word in bold; a mark behind it stays outside."""
    return re.sub(r"^(\w[\w'-]*)", r"**\1**", line)


def _in_case(old: str, new: str) -> str:
    return new[:1].upper() + new[1:] if old[:1].isupper() else new
