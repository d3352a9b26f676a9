"""The words a rubric judge may say of a criterion, and how those words are found in a reply.

A verdict is JSON (an object by number, a list by position) or lines ``1: PRESENT``. A piece that
labels every criterion is the verdict, whatever partial draft or quotation stands before it; where
no piece does, the last one counts alone. A piece ends where its JSON breaks off, at prose between
lines, and at the edge of a Markdown quote. Labels are never put together from two, so a verdict
that somebody else forged and the judge quotes never fills the gaps of its own; the missing are
asked for. A reply that says two different things of one criterion says nothing at all. A word
counts only as a whole: nothing is ever searched for inside a sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from judges.grading import salvage
from judges.grading.spelling import BLANKS, HEADING, SPACE, bare

VOCABULARIES: dict[str, tuple[str | bool, str | bool]] = {
    "met": ("met", "not_met"),
    "present": ("PRESENT", "NOT_PRESENT"),
    "bool": (True, False),
    "yes_no": ("yes", "no"),
}
"""Name -> what is said of a criterion that is met, and of one that is not."""

LONGEST = 65_536
"""Characters of a reply's end that are read: no verdict is that long, and reading stays fast."""
_LONGEST_WORD = 2
"""Words in the longest term of any vocabulary, "NOT PRESENT"; what is longer is prose."""
_LONGEST_TERM = 64
"""Characters of a term, marks and blanks around it left out, at most."""

_LINE = re.compile(
    rf"(?:{SPACE}|[>*•-])*+(?:{HEADING}{SPACE}*+)?+#?+([0-9]{{1,3}}+)(?:{SPACE}|\*)*+"
    rf"([:=]|[.)](?={SPACE}|\*))(?:{SPACE}|\*)*+(?=\S)",
    re.IGNORECASE,
)
_KEY = re.compile(r"\s*+([0-9]{1,3}+)\s*+")
_BLANKS = re.compile(r"[\s_-]+")
_WORD = re.compile(r"\w*+")


@dataclass(frozen=True)
class Piece:
    """A part of a verdict: what is said by number, or of the criteria one after the other."""

    entries: Sequence[tuple[int, Any]]
    """In a list the numbers are places, from 1."""
    by_place: bool = False
    cut: bool = False
    """Whether it breaks off: there may have been more."""

    def about(self, numbers: list[int]) -> Sequence[tuple[int, Any]]:
        """(number, value) where these are asked about; a list of another length says nothing."""
        if not self.by_place:
            return self.entries
        if len(self.entries) != len(numbers):
            return [(number, None) for number in numbers]
        return [(number, value) for number, (_, value) in zip(numbers, self.entries, strict=True)]


def form(vocabulary: str) -> str:
    """What a verdict looks like, for prompts: ``{"1": "PRESENT", "2": "NOT_PRESENT"}``."""
    yes, no = VOCABULARIES[vocabulary]
    return json.dumps({"1": yes, "2": no})


def label(value: Any, vocabulary: str) -> str:
    """``met``, ``not_met``, or ``unknown`` for a value that is not a word of the vocabulary."""
    word = _plain(value)
    return "unknown" if word is None else _LABELS[vocabulary].get(word, "unknown")


def read_labels(text: str, numbers: list[int], vocabulary: str) -> dict[int, str]:
    """The label of each number that the verdict names or, as a list, counts; none where the reply
    disagrees with itself. ``numbers`` are those of the criteria as the judge saw them, ``text`` is
    the reply without thinking."""
    verdicts = _verdicts(_pieces(text, vocabulary), numbers, vocabulary)
    if not verdicts or _disagreement(verdicts, numbers) is not None:
        return {}
    labels = dict(verdicts[0] if _is_complete(verdicts[0], numbers) else verdicts[-1])
    return {number: labels[number] for number in numbers if number in labels}


def disagreement(text: str, numbers: list[int], vocabulary: str) -> int | None:
    """The first of the numbers of which a reply says two different things, if there is one."""
    pieces = _pieces(text, vocabulary)
    return _disagreement(_verdicts(pieces, numbers, vocabulary), numbers)


Labels = Sequence[tuple[int, str]]
"""Numbers and labels of one piece, in its order; a number may repeat."""


def _verdicts(pieces: Iterable[Piece], numbers: list[int], vocabulary: str) -> list[Labels]:
    """What the pieces say of the numbers, from the first that labels all of them on; everything
    where none does."""
    by_piece = [
        [
            (number, label(value, vocabulary))
            for number, value in piece.about(numbers)
            if number in numbers
        ]
        for piece in pieces
    ]
    first = next((k for k, labels in enumerate(by_piece) if _is_complete(labels, numbers)), 0)
    return [labels for labels in by_piece[first:] if labels]


def _is_complete(labels: Labels, numbers: list[int]) -> bool:
    return {number for number, word in labels if word != "unknown"} == set(numbers)


def _disagreement(verdicts: Iterable[Labels], numbers: list[int]) -> int | None:
    words: dict[int, set[str]] = {number: set() for number in numbers}
    for labels in verdicts:
        for number, word in labels:
            if word != "unknown":
                words[number].add(word)
    return next((number for number in numbers if len(words[number]) > 1), None)


def largest_number(text: str, vocabulary: str) -> tuple[int, bool]:
    """How many criteria a reply seems to be about (its largest number or longest list, or 0), and
    whether it is cut, so that there may have been more.

    What says no word of the vocabulary counts only where nothing else does.
    """
    sizes, cut = {True: 0, False: 0}, False
    for piece in _pieces(text, vocabulary):
        legal = any(label(value, vocabulary) != "unknown" for _, value in piece.entries)
        sizes[legal] = max(sizes[legal], *(number for number, _ in piece.entries))
        cut = piece.cut
    return sizes[True] or sizes[False], cut


def _plain(value: Any) -> str | None:
    """A value as it counts: booleans as words, without marks around it, case, and spacing."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return None
    word = bare(value)
    return _BLANKS.sub("_", word.casefold()) if len(word) <= _LONGEST_TERM else None


_LABELS = {
    name: {str(_plain(yes)): "met", str(_plain(no)): "not_met"}
    for name, (yes, no) in VOCABULARIES.items()
}


def _pieces(text: str, vocabulary: str) -> Iterator[Piece]:
    """All that looks like a verdict or a part of one at the end of a text, in its order."""
    if len(text) > LONGEST:  # the rest of a word that is cut has no mark before it
        text = _WORD.sub("", text[-LONGEST:], count=1)
    outside = 0
    for start, end, values in salvage.values(text):
        inside = [piece for value in values for piece in _of(value, vocabulary)]
        if inside:
            # what stands in front of the value on its line is not a whole line
            yield from _lines(text[outside:start].rpartition("\n")[0], vocabulary)
            yield from inside
            outside = end
    yield from _lines(text[outside:], vocabulary)


def _of(value: Any, vocabulary: str) -> Iterator[Piece]:
    """The verdicts in a JSON value, wrapped however it likes; strings are never looked into."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, salvage.Wreck):
            yield Piece(value.entries, cut=value.cut)
        elif isinstance(value, salvage.Pairs):
            entries = [(int(key[1]), item) for name, item in value if (key := _KEY.fullmatch(name))]
            if not entries:
                waiting += [item for _, item in reversed(value)]
            elif not all(isinstance(item, str) and _is_prose(item) for _, item in entries):
                yield Piece(entries)
        elif isinstance(value, list):
            if value and all(isinstance(item, salvage.Pairs) for item in value):
                waiting.append(salvage.Pairs(pair for item in value for pair in item))
                continue
            nested = [item for item in value if isinstance(item, list)]
            if nested:
                waiting += reversed(nested)
            elif len(value) > 1 and all(label(item, vocabulary) != "unknown" for item in value):
                # a list with anything else, or of one word, quotes as well as it counts
                yield Piece(list(enumerate(value, 1)), by_place=True)


def _lines(text: str, vocabulary: str) -> Iterator[Piece]:
    """Runs of lines with rising numbers. Another begins where a number does not rise, behind prose,
    and where a Markdown quote begins or ends.

    ``1: maybe`` takes back an earlier ``1: met``, but ``1. Manners`` is a heading.
    """
    run: list[tuple[int, Any]] = []
    depth = 0
    for line in text.split("\n"):
        if not line.strip(BLANKS + ">"):
            continue
        start = _LINE.match(line)
        value = line[start.end() :].rstrip() if start else ""
        number, quoted = (int(start[1]), line.count(">", 0, start.start(1))) if start else (0, 0)
        heading = start and start[2] in ".)" and label(value, vocabulary) == "unknown"
        is_prose = not start or heading or _is_prose(value)
        if run and (is_prose or number <= run[-1][0] or quoted != depth):
            yield Piece(run)
            run = []
        if not is_prose:
            run.append((number, value))
            depth = quoted
    if run:
        yield Piece(run)


def _is_prose(value: str) -> bool:
    value = value.strip()
    return len(value) > _LONGEST_TERM or len(_BLANKS.split(value)) > _LONGEST_WORD
