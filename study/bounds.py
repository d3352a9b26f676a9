"""What a config field may hold: bounds, words and names, enforced wherever a config is read.

``steps: int = bounds.number(40, low=1)`` keeps the bound in the metadata of the dataclass field;
`study.schema.freeze` hands every value to `check`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import Any

from study.errors import UserError
from study.secrets import redact

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
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )

    def said(self) -> str:
        parts = [
            f"{limit:.12g} or more" if name == "low" else
            f"at most {limit:.12g}" if name == "high" else
            f"{name} {limit:.12g}"
            for name in ("low", "above", "high", "below")
            if (limit := getattr(self, name)) is not None
        ]  # fmt: skip
        return f"a number {' and '.join(parts)}" if parts else "a finite number"


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def accepts(self, value: Any) -> bool:
        return value in self.words

    def said(self) -> str:
        return f"one of {', '.join(word or 'an empty text' for word in self.words)}"


@dataclass(frozen=True)
class Name:
    """A plain name: it becomes a folder, a file or a word of a command line."""

    empty: bool = False
    reserved: tuple[str, ...] = ()

    def accepts(self, value: Any) -> bool:
        if value == "":
            return self.empty
        short = len(value) <= LONGEST_NAME and value not in self.reserved
        return short and _NAME.fullmatch(value) is not None

    def said(self) -> str:
        taken = f", and not {' or '.join(self.reserved)}" if self.reserved else ""
        return (
            f"a plain name of letters, digits, '.', '_' and '-', which begins with none of '.' and "
            f"'-' and has at most {LONGEST_NAME} characters{taken}"
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
) -> Any:
    """A field that holds a number within bounds."""
    return _field(default, Number(low, above, high, below))


def share(default: float) -> Any:
    """A field that holds a number from 0 to 1."""
    return number(default, low=0, high=1)


def seed(default: int | None) -> Any:
    """A field that holds a seed."""
    return number(default, low=0, high=MOST_SEED)


def choice(default: Any, *words: str) -> Any:
    """A field that holds one of ``words``."""
    return _field(default, Choice(words))


def name(default: Any, empty: bool = False, reserved: tuple[str, ...] = ()) -> Any:
    """A field that holds a plain name."""
    return _field(default, Name(empty, reserved))


def _field(default: Any, legal: Legal) -> Any:
    return field(default=default, metadata={"legal": legal})


def each(*words: str) -> dict[str, Legal]:
    """Metadata of a list whose items are each one of ``words``."""
    return {"legal": Choice(words)}


NAMES: dict[str, Legal] = {"legal": Name()}
"""Metadata of a list whose items are plain names, or of a dict whose keys are."""
COUNTS: dict[str, Legal] = {"legal": Number(low=1, high=1_000_000)}
"""Metadata of a dict whose values are counts."""


def legal_of(cls: Any, key: str) -> Legal | None:
    """What the field ``key`` of a dataclass may hold; None where any value of its type will do."""
    return {item.name: item.metadata.get("legal") for item in dataclasses.fields(cls)}[key]


def words_of(cls: Any, key: str) -> tuple[str, ...]:
    """The legal words of a field made by `choice`."""
    legal = legal_of(cls, key)
    assert isinstance(legal, Choice)
    return legal.words


def check(where: str, value: Any, legal: Legal, default: Any = None) -> None:
    """Refuse a value that is not legal.

    Args:
        where: full key, as it is typed.
        default: an example of what is legal; None where there is none.

    Raises:
        IllegalValue: with the key, what was given, what is legal and what to type.
    """
    if not legal.accepts(value):
        refuse(where, value, legal.said(), default)


def check_name(where: str, value: str, empty: bool = False) -> None:
    """Refuse what is not a plain name.

    Raises:
        IllegalValue: it would lead out of its folder, hide in it, or not fit a file system.
    """
    check(where, value, Name(empty))


def refuse(where: str, value: Any, wanted: str, example: Any = None) -> None:
    """Raise the error of a value that is not legal."""
    shown = redact(" ".join(str(value).split()))
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    typed = f" Type for example: {where}={_typed(example)}" if _is_example(example) else ""
    raise IllegalValue(f"{where}={shown} is not legal: it must be {wanted}.{typed}")


def _is_example(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and value != "")


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_kind(where: str, value: Any, kind: type, default: Any = None) -> Any:
    """A value as the scalar type that its field says, whole numbers taken for real ones.

    Raises:
        IllegalValue: it has another type, or is not finite.
    """
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

    Raises:
        IllegalValue: with the full key.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            check_finite(f"{where}.{key}", item)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            check_finite(f"{where}.{place}", item)
    elif isinstance(value, float) and not math.isfinite(value):
        refuse(where, value, "a number that is finite")


def whole(where: str, text: str, low: int, high: int) -> int:
    """The whole number in ``text``, as a command line gives it.

    Raises:
        IllegalValue: there is none, or it is out of bounds.
    """
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < SHOWN):
        refuse(where, text, f"a whole number from {low} to {high}", low)
    check(where, int(text), Number(low=low, high=high), low)
    return int(text)
