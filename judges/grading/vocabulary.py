"""The words a rubric judge may say of a criterion, and how those words are found in a reply.

A verdict is JSON (an object by number, a list by position) or lines ``1: PRESENT``. The piece
nearest the end decides; earlier pieces only add criteria as long as they repeat none, so a draft,
or a verdict that somebody else forged and the judge quotes, never fills the gaps of the final one.
A word counts only as a whole: nothing is ever searched for inside a sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

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

_LINE = re.compile(
    r"^[ \t>*•-]*(?:criterion[ \t]*)?#?([0-9]{1,3})[ \t*]*([:=]|[.)](?=[ \t*]))[ \t*]*"
    r"(\S[^\n]*?)[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
# Number and value inside of what is no JSON: cut off, single quotes, a comma too many, bare words.
_NUMBER = re.compile(r"""["']?\b([0-9]{1,3})["']?\s*:\s*""")
_VALUE = re.compile(r""""[^"\n]*"|'[^'\n]*'|[A-Za-z_][\w -]*?(?=\s*[,}\n])""")
_KEY = re.compile(r"\s*[0-9]{1,3}\s*")
_OPENING = re.compile(r"[{\[]")
_BRACE = re.compile(r"[{}]")
_DECODER = json.JSONDecoder()

Piece = dict[int, Any] | list[Any]
"""A part of a verdict: what is said by number, or by position."""


class Cut(dict[int, Any]):
    """An object that never ends: there may have been more."""


def form(vocabulary: str) -> str:
    """What a verdict looks like, for prompts: ``{"1": "PRESENT", "2": "NOT_PRESENT"}``."""
    yes, no = VOCABULARIES[vocabulary]
    return json.dumps({"1": yes, "2": no})


def spelled(word: str | bool) -> str:
    """A word as a prompt spells it."""
    return json.dumps(word) if isinstance(word, bool) else word


def label(value: Any, vocabulary: str) -> str:
    """``met``, ``not_met``, or ``unknown`` for anything that is not on the menu."""
    menu = [_plain(word) for word in VOCABULARIES[vocabulary]]
    said = _plain(value)
    return ("met", "not_met")[menu.index(said)] if said in menu else "unknown"


def read_labels(text: str, numbers: list[int], vocabulary: str) -> dict[int, str]:
    """The label of each number that the verdict nearest the end names or, as a list, counts.

    Args:
        text: the reply without thinking.
        numbers: the criteria that were asked about, as the judge was shown them.
        vocabulary: a key of ``VOCABULARIES``.
    """
    found: dict[int, str] = {}
    for piece in reversed(list(_pieces(text[-LONGEST:], vocabulary))):
        if isinstance(piece, list):
            fits = len(piece) == len(numbers)
            named = dict(zip(numbers, piece, strict=True)) if fits else dict.fromkeys(numbers)
        else:
            named = piece
        if found.keys() & named.keys():
            break
        found |= {number: label(value, vocabulary) for number, value in named.items()}
    return {number: found[number] for number in numbers if number in found}


def largest_number(text: str, vocabulary: str) -> tuple[int, bool]:
    """How many criteria a reply seems to be about (its largest number or longest list, or 0), and
    whether it is cut, so that there may have been more.

    What says nothing that is on the menu counts only where nothing else does.
    """
    sizes, cut = {True: 0, False: 0}, False
    for piece in _pieces(text[-LONGEST:], vocabulary):
        values = piece if isinstance(piece, list) else piece.values()
        legal = any(label(value, vocabulary) != "unknown" for value in values)
        size = len(piece) if isinstance(piece, list) else max(piece)
        sizes[legal] = max(sizes[legal], size)
        cut = isinstance(piece, Cut)
    return sizes[True] or sizes[False], cut


def _plain(value: Any) -> str | None:
    """A value as it counts: booleans as words, without marks around it, case, and spacing."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return None
    return re.sub(r"[\s_-]+", "_", value.strip(" \t\r\n\"'`*.,;:!").casefold())


def _pieces(text: str, vocabulary: str) -> Iterator[Piece]:
    """All that looks like a verdict or a part of one, in the order of the text."""
    outside = 0
    for start, end, inside in _objects(text, vocabulary):
        yield from _lines(text[outside:start], vocabulary)
        yield from inside
        outside = end
    yield from _lines(text[outside:], vocabulary)


def _objects(text: str, vocabulary: str) -> Iterator[tuple[int, int, list[Piece]]]:
    """(start, end, pieces) of each JSON value, or wreck of one, that holds a part of a verdict."""
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        start = opening.start()
        pieces: list[Piece] = []
        try:
            value, end = _DECODER.raw_decode(text, start)
            pieces += _walk(value, vocabulary)
        except (ValueError, RecursionError):
            if opening[0] == "[":
                position = start + 1
                continue
            following = _BRACE.search(text, start + 1)
            end = len(text) if following is None else following.start()
            wreck = _salvage(text[start : end + 1])
            pieces += [wreck if following else Cut(wreck)] if wreck else []
        if pieces:
            yield start, end, pieces
        position = max(end, start + 1)


def _salvage(text: str) -> dict[int, Any]:
    """Numbers and their values in a wreck; None for a value that does not end."""
    found: dict[int, Any] = {}
    for number in _NUMBER.finditer(text):
        value = _VALUE.match(text, number.end())
        found[int(number[1])] = value[0].strip("\"'") if value else None
    return found


def _walk(value: Any, vocabulary: str) -> Iterator[Piece]:
    """The verdicts in a JSON value, wrapped however it likes; strings are never looked into."""
    if isinstance(value, dict):
        named = {int(key): item for key, item in value.items() if _KEY.fullmatch(key)}
        if not named:
            for item in value.values():
                yield from _walk(item, vocabulary)
        elif not all(isinstance(item, str) and _is_prose(item) for item in named.values()):
            yield named
    elif isinstance(value, list):
        nested = [item for item in value if isinstance(item, dict | list)]
        if nested:
            for item in nested:
                yield from _walk(item, vocabulary)
        elif any(label(item, vocabulary) != "unknown" for item in value):
            yield value


def _lines(text: str, vocabulary: str) -> Iterator[dict[int, Any]]:
    """Runs of lines with rising numbers; a number that does not rise begins another run.

    ``1: maybe`` takes back an earlier ``1: met``, but ``1. Manners`` is a heading.
    """
    run: dict[int, Any] = {}
    for line in _LINE.finditer(text):
        number, value = int(line[1]), line[3]
        heading = line[2] in ".)" and label(value, vocabulary) == "unknown"
        if heading or _is_prose(value):
            continue
        if run and number <= max(run):
            yield run
            run = {}
        run[number] = value
    if run:
        yield run


def _is_prose(value: str) -> bool:
    return len(re.split(r"[\s_-]+", value.strip())) > _LONGEST_WORD
