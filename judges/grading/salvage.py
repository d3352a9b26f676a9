"""Finds the JSON values in a reply, whole or in wrecks, in one pass that never goes back.

Python's own decoder says no more of a broken text than where it broke, so that whatever is sound in
it would be read again from each bracket on; here what was complete when it broke is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from judges.grading.spelling import SPACE

_OPENING = re.compile(r"[{\[]")
# Wider than JSON: some judges write no-break spaces between its parts, and tabs in a text.
_BLANK = re.compile(r"\s*+")
_TEXT = re.compile(r'"((?:[^"\\\n\r]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"')
_SCALAR = re.compile(r"(true|false)|null|-?[0-9]++(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+")
# Pairs of what is not JSON: cut off, single quotes, a comma too many, bare words, comments. None of
# these looks beyond the next brace, and a gap has no empty line.
_GAP = re.compile(r"(?:[^\S\n]|,|\n(?!\s*?\n)|//[^\n{}]*+)*+")
_NUMBER = re.compile(r"""(["']?)([0-9]{1,3})\1\s*+:\s*+""")
_VALUE = re.compile(rf""""[^"\n]*+"|'[^'\n]*+'|[A-Za-z_][\w -]*+(?={SPACE}*+[,}}\n])""")
_OTHER_KEY = re.compile(r"""(["'])[^"'\n{}]*+\1\s*+:\s*+""")
# A text with quotation marks of its own kind in it is looked at so far only: else each of many keys
# would be followed to the end of its line.
_OTHER_VALUE = re.compile(
    r"""(?:"[^"\n{}]*+"|'[^'\n{}]*+'|(["'])[^\n{}]{0,500}?\1)(?=\s*+(?:[,}]|\Z))"""
    r"""|[\w.+-]++|\[[^][{}]*+\]"""
)


class Pairs(list[tuple[str, Any]]):
    """A JSON object: its pairs in their order, keys that repeat too."""


@dataclass
class Wreck:
    """An object that is not JSON, up to where it breaks off: its numbers and their values, None for
    one without end."""

    entries: list[tuple[int, Any]]
    cut: bool
    """Whether it breaks off before its end."""


@dataclass(slots=True)
class _Open:
    """A container that is being read."""

    start: int
    items: list[Any]
    """`Pairs` of an object, items of a list."""
    key: str = ""
    inside: list[Any] = field(default_factory=list)
    """Containers in it that are complete."""


def values(text: str) -> Iterator[tuple[int, int, list[Any]]]:
    """(start, end, values) of each container that stands in a text by itself.

    Values are lists, `Pairs`, texts and booleans; numbers and null are None. Of a container that
    breaks off there are those containers in it that are complete, and a `Wreck` for each object
    that is not, if it names any number; it ends where it breaks.
    """
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        stack: list[_Open] = []
        end, whole = _read(text, opening.start(), stack)
        if whole is not None:
            yield opening.start(), end, [whole]
        else:
            rest = list(_rest(text, stack))
            if isinstance(stack[-1].items, Pairs):
                end = max(end, _wreck(text, stack[-1].start)[1])
            if rest:
                yield opening.start(), end, rest
        position = end


def _read(text: str, start: int, stack: list[_Open]) -> tuple[int, list[Any] | None]:
    """The container that begins at ``start`` and where it ends; or where it breaks, and None, with
    what is open there on the stack. A text or number that no comma follows is behind the break."""
    position, awaited, scalar = start, "value", start
    while True:
        mark = text[position : position + 1]
        is_object = bool(stack) and isinstance(stack[-1].items, Pairs)
        if awaited in ("first", "end") and mark == ("}" if is_object else "]"):
            whole = stack.pop().items
            position += 1
            if not stack:
                return position, whole
            _keep(stack[-1], whole)
            stack[-1].inside.append(whole)
            awaited, scalar = "end", 0
        elif awaited == "end":
            if mark != ",":
                return scalar or position, None
            position, awaited = position + 1, "next"
        elif is_object and awaited in ("first", "next"):
            key = _TEXT.match(text, position)
            if key is None:
                return position, None
            stack[-1].key = key[1]
            position = _next(text, key.end())
            if text[position : position + 1] != ":":
                return position, None
            position, awaited = position + 1, "value"
        elif mark and mark in "{[":
            stack.append(_Open(position, Pairs() if mark == "{" else []))
            position, awaited = position + 1, "first"
        else:
            value = (_TEXT if mark == '"' else _SCALAR).match(text, position)
            if value is None:
                return position, None
            # Escapes stay as they are: no verdict is written in them.
            literal = value[1] == "true" if value[1] else None
            _keep(stack[-1], value[1] if mark == '"' else literal)
            scalar, position, awaited = position, value.end(), "end"
        position = _next(text, position)


def _next(text: str, position: int) -> int:
    """Where the next character that is not blank stands."""
    blank = _BLANK.match(text, position)
    return blank.end() if blank else position


def _keep(top: _Open, value: Any) -> None:
    top.items.append((top.key, value) if isinstance(top.items, Pairs) else value)


def _rest(text: str, stack: list[_Open]) -> Iterator[Any]:
    """What is sound in containers that break off, in the order of the text."""
    for container in stack:
        if isinstance(container.items, Pairs):
            wreck, _ = _wreck(text, container.start)
            if wreck.entries:
                yield wreck
        yield from container.inside


def _wreck(text: str, start: int) -> tuple[Wreck, int]:
    """The object that begins at ``start``, and where it ends or breaks off: at the first that is no
    pair, or a number that is written in another way than those before it."""
    values: list[tuple[int, Any]] = []
    quotes: set[str] = set()
    position = start + 1
    while True:
        gap = _GAP.match(text, position)
        position = gap.end() if gap else position
        number = _NUMBER.match(text, position)
        key = number or _OTHER_KEY.match(text, position)
        if key is None or (number and not quotes <= {number[1]}):
            closed = text.startswith("}", position)
            return Wreck(values, cut=not closed), position + closed
        value = _VALUE.match(text, key.end()) if number else None
        if number:
            quotes.add(number[1])
            values.append((int(number[2]), value[0].strip("\"' ") if value else None))
        value = value or _OTHER_VALUE.match(text, key.end())
        position = value.end() if value else key.end()
