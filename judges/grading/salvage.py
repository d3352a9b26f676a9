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
_BRACE = re.compile(r"[{}]")
_BLANK = re.compile(r"[ \t\n\r]*+")
_TEXT = re.compile(r'"((?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"')
_SCALAR = re.compile(r"(true|false)|null|-?[0-9]++(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+")
# Number and value inside of what is not JSON: cut off, single quotes, a comma too many, bare words.
_NUMBER = re.compile(r"""["']?\b([0-9]{1,3})["']?\s*+:\s*+""")
_VALUE = re.compile(rf""""[^"\n]*+"|'[^'\n]*+'|[A-Za-z_][\w -]*+(?={SPACE}*+[,}}\n])""")


class Pairs(list[tuple[str, Any]]):
    """A JSON object: its pairs in their order, keys that repeat too."""


@dataclass
class Wreck:
    """An object that is not JSON: the numbers in it and their values, None for one without end."""

    said: list[tuple[int, Any]]
    cut: bool
    """Whether it never ends."""


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
    that is not, if it names any number.
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
                following = _BRACE.search(text, stack[-1].start + 1)
                end = max(end, len(text) if following is None else following.start())
            if rest:
                yield opening.start(), end, rest
        position = end


def _read(text: str, start: int, stack: list[_Open]) -> tuple[int, list[Any] | None]:
    """The container that begins at ``start`` and where it ends; or where it breaks, and None, with
    what is open there on the stack."""
    position, awaited = start, "value"
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
            awaited = "end"
        elif awaited == "end":
            if mark != ",":
                return position, None
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
            position, awaited = value.end(), "end"
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
            following = _BRACE.search(text, container.start + 1)
            end = len(text) if following is None else following.end()
            numbers = _numbers(text[container.start : end])
            if numbers:
                yield Wreck(numbers, cut=following is None)
        yield from container.inside


def _numbers(text: str) -> list[tuple[int, Any]]:
    values: list[tuple[int, Any]] = []
    position = 0
    while (number := _NUMBER.search(text, position)) is not None:
        value = _VALUE.match(text, number.end())
        values.append((int(number[1]), value[0].strip("\"' ") if value else None))
        position = value.end() if value else number.end()
    return values
