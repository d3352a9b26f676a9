"""What a config field may hold: bounds, words and names, enforced wherever a config is read.

``steps: int = bounds.number(40, low=1)`` keeps the bound in the metadata of the dataclass field;
`study.config.schema.freeze` hands every value to `check`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from study.errors import UserError
from study.system.secret_names import is_plain_place, may_hold_key
from study.system.secrets import redact

T = TypeVar("T")
LONGEST_NAME = 64
SHOWN = 80
"""Characters of a refused value that a message repeats."""
MOST_SEED = 2**32 - 1
"""What every generator in use takes: NumPy's is the narrowest."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Number:
    """A finite number; ``low`` and ``high`` are legal themselves, ``above`` and ``below`` not."""

    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None

    def accepts(self, value: Any) -> bool:
        """Whether a number is within the limits."""
        return (
            (self.low is None or self.low <= value)
            and (self.above is None or self.above < value)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )

    def describe(self) -> str:
        """The legal values in words, for messages and help."""
        words = {"low": "{:.12g} or more", "above": "above {:.12g}"}
        words |= {"high": "at most {:.12g}", "below": "below {:.12g}"}
        limits = {name: getattr(self, name) for name in words}
        parts = [words[name].format(n) for name, n in limits.items() if n is not None]
        return f"a number {' and '.join(parts)}" if parts else "a finite number"


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def accepts(self, value: Any) -> bool:
        """Whether a value is one of the words."""
        return value in self.words

    def describe(self) -> str:
        """The legal words, for messages and help."""
        return f"one of {', '.join(word or 'an empty text' for word in self.words)}"


@dataclass(frozen=True)
class Name:
    """A plain name: it becomes a folder, a file or a word of a command line."""

    empty: bool = False
    reserved: tuple[str, ...] = ()

    def accepts(self, value: Any) -> bool:
        """Whether a text is a plain name that is not reserved; an empty one where ``empty``."""
        if value == "":
            return self.empty
        short = len(value) <= LONGEST_NAME and value not in self.reserved
        return short and _NAME.fullmatch(value) is not None

    def describe(self) -> str:
        """The legal names in words, for messages and help."""
        exceptions = f", and not {' or '.join(self.reserved)}" if self.reserved else ""
        return (
            f"a plain name of letters, digits, '.', '_' and '-', not starting with '.' or '-', "
            f"of at most {LONGEST_NAME} characters{exceptions}"
        )


Legal = Number | Choice | Name


class IllegalValue(UserError, ValueError):
    """A value that its key cannot have."""


def number(
    default: Any,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    unit: str = "",
) -> Any:
    """A field that holds a number within bounds; ``unit`` is what it counts or measures."""
    return _field(default, Number(low, above, high, below), {"unit": unit} if unit else {})


def share(default: float, unit: str = "share") -> Any:
    """A field that holds a number from 0 to 1."""
    return number(default, low=0, high=1, unit=unit)


def seed(default: int | None) -> Any:
    """A field that holds a seed."""
    return number(default, low=0, high=MOST_SEED)


def choice(default: Any, *words: str) -> Any:
    """A field that holds one of ``words``."""
    return _field(default, Choice(words))


def name(default: Any, empty: bool = False, reserved: tuple[str, ...] = ()) -> Any:
    """A field that holds a plain name."""
    return _field(default, Name(empty, reserved))


def _field(default: Any, legal: Legal, more: Mapping[str, str] | None = None) -> Any:
    return field(default=default, metadata={"legal": legal, **(more or {})})


def each(*words: str) -> dict[str, Legal]:
    """Metadata of a list or a dict whose items are each one of ``words``."""
    return {"legal": Choice(words)}


NAMES: dict[str, Legal] = {"legal": Name()}
"""Metadata of a list whose items are plain names, or of a dict whose keys are."""
COUNTS: dict[str, Legal] = {"legal": Number(low=1, high=1_000_000)}
"""Metadata of a dict whose values are counts."""


def words_of(cls: Any, key: str) -> tuple[str, ...]:
    """The legal words of the field ``key`` of a dataclass, made by `choice`."""
    (legal,) = (item.metadata["legal"] for item in dataclasses.fields(cls) if item.name == key)
    return legal.words


def check(where: str, value: Any, legal: Legal, default: Any = None) -> None:
    """Refuse a value that is not legal; ``where`` is the full key as it is typed, ``default`` an
    example.
    Raises IllegalValue: with the key, what was given, what is legal and what to type."""
    if not legal.accepts(value):
        refuse(where, value, legal.describe(), default)


def pick(where: str, name: str, table: Mapping[str, T], example: str) -> T:
    """The entry of a table. Raises IllegalValue: there is none of that name; as `check`."""
    check(where, name, Choice(tuple(table)), example)
    return table[name]


def refuse(where: str, value: Any, wanted: str, example: Any = None) -> None:
    """Raise the error of a value that is not legal; one that may be a key is not repeated."""
    advice = ""
    if isinstance(example, bool | int | float | str) and example != "":
        text = str(example).lower() if isinstance(example, bool) else str(example)
        advice = f" Type for example: {where}={text}"
    problem = f"{where}={shown(value)} is not legal:"
    if may_hold_key(where) and not _is_plain(value):
        problem = f"{where} is not legal (its value is not shown, for it may be a key):"
    raise IllegalValue(f"{problem} it must be {wanted}.{advice}")


def _is_plain(value: Any) -> bool:
    """Whether a value is plainly no key: a short number, or an address without one."""
    text = str(value)
    short = not isinstance(value, str | dict | list | tuple) and len(text) < 8
    return short or ("://" in text and is_plain_place(text))


def shown(value: Any) -> str:
    """A refused value as a message repeats it: on one line, cut, and without keys."""
    text = redact(" ".join(str(value).split()))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def check_kind(where: str, value: Any, kind: type, default: Any = None) -> Any:
    """A value as the scalar type that its field says, whole numbers taken for real ones.
    Raises IllegalValue: it has another type, or is not finite."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    wrong = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
    if kind in words and (wrong or (kind is float and not math.isfinite(value))):
        refuse(where, value, f"{words[kind]}{' that is finite' * (kind is float)}", default)
    return value


def check_finite(where: str, value: Any) -> None:
    """Refuse NaN and infinity anywhere inside free options.
    Raises IllegalValue: with the full key."""
    if isinstance(value, dict):
        for key, item in value.items():
            check_finite(f"{where}.{key}", item)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            check_finite(f"{where}.{place}", item)
    elif isinstance(value, float) and not math.isfinite(value):
        refuse(where, value, "a number that is finite")
