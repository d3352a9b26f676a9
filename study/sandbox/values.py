"""What came back from untrusted code: read as a literal, compared by type and value.

Both happen in the trusted process, on built-in objects made here, so no object of the untrusted
code ever has a say in whether it equals the expected value. The text is hostile: it is read in one
pass without going back, and Python's own reader, which hostile text can exhaust, never sees it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

from study.sandbox.inside.literal import DEPTH, dumps

__all__ = ["dumps", "loads", "same"]

LONGEST = 1 << 20
"""Characters of a literal, at most."""
DIGITS = 4300
"""Digits of a whole number, as many as Python reads by default: reading takes their square."""
SHARED = 256
"""Members of a set or dictionary that may have the same hash: each is compared with the others."""

_NUMBER = r"[0-9]{1,24}+(?:\.[0-9]{1,24}+)?+(?:e[+-]?+[0-9]{1,3}+)?+"
_TOKEN = re.compile(
    r"\s*+(?:"
    r"(?P<text>'(?:[^'\\\n]++|\\.)*+'|\"(?:[^\"\\\n]++|\\.)*+\")"
    r"|(?P<bytes>b'(?:[^'\\\n]++|\\.)*+'|b\"(?:[^\"\\\n]++|\\.)*+\")"
    rf"|(?P<complex>\(-?+{_NUMBER}[+-]{_NUMBER}j\)|-?+{_NUMBER}j)"
    r"|(?P<float>-?+[0-9]{1,24}+(?:\.[0-9]{1,24}+(?:e[+-]?+[0-9]{1,3}+)?+|e[+-]?+[0-9]{1,3}+))"
    rf"|(?P<int>-?+[0-9]{{1,{DIGITS}}}+)"
    r"|(?P<word>None|True|False|set\(\))"
    r"|(?P<mark>[\[\](){},:]))"
)
_ESCAPE = re.compile(r"\\(?:([\\'\"nrt])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))")
_PLAIN = {"n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"None": None, "True": True, "False": False}
_CLOSING = {"[": "]", "(": ")", "{": "}"}


def loads(text: str) -> Any:
    """The value of one literal, as `dumps` writes it; blanks between its parts are passed over.

    Raises:
        ValueError: anything else.
    """
    if len(text) > LONGEST:
        raise ValueError("longer than any literal that is read")
    reader = _Reader(text)
    value = reader.value(DEPTH)
    if text[reader.position :].strip():
        raise ValueError("more than one literal")
    return value


class _Reader:
    """One pass over a text: `position` only grows."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def _next(self) -> re.Match[str]:
        token = _TOKEN.match(self.text, self.position)
        if token is None:
            raise ValueError("not a literal")
        self.position = token.end()
        return token

    def _took(self, mark: str) -> bool:
        """Whether ``mark`` comes next; then it is passed over."""
        token = _TOKEN.match(self.text, self.position)
        if token is None or token["mark"] != mark:
            return False
        self.position = token.end()
        return True

    def value(self, depth: int) -> Any:
        if depth < 0:
            raise ValueError("nested too deeply")
        token = self._next()
        kind, said = token.lastgroup, token[token.lastgroup or 0]
        if kind == "int":
            return int(said)
        if kind == "float":
            return float(said)
        if kind == "text":
            return _ESCAPE.sub(_unescaped, said[1:-1])
        if kind == "bytes":
            if not said.isascii():
                raise ValueError("not a literal")
            return _ESCAPE.sub(_unescaped, said[2:-1]).encode("latin-1")
        if kind == "complex":
            number = complex(said)
            if not math.isfinite(number.real) or not math.isfinite(number.imag):
                raise ValueError("an infinite complex number has no literal")
            return number
        if kind == "word":
            return set() if said == "set()" else _WORDS[said]
        if said not in _CLOSING:
            raise ValueError("not a literal")
        return self._container(said, depth - 1)

    def _container(self, opening: str, depth: int) -> Any:
        closing = _CLOSING[opening]
        items: list[Any] = []
        pairs: list[tuple[Any, Any]] = []
        commas = 0
        while not self._took(closing):
            if commas < len(items):
                raise ValueError("no comma between two items")
            items.append(self.value(depth))
            if opening == "{" and self._took(":"):
                pairs.append((items[-1], self.value(depth)))
            commas += self._took(",")
        if opening == "[":
            return items
        if opening == "(":
            if len(items) == 1 and not commas:
                raise ValueError("a tuple of one has a comma")
            return tuple(items)
        _check_hashes(items)
        if len(pairs) == len(items):
            return dict(pairs)
        if pairs:
            raise ValueError("a dictionary and a set in one")
        return set(items)


def _unescaped(escape: re.Match[str]) -> str:
    if escape[1]:
        return _PLAIN.get(escape[1], escape[1])
    code = escape[2] or escape[3] or escape[4]
    if not code:
        raise ValueError("an escape that is never written")
    return chr(int(code, 16))


def _check_hashes(members: list[Any]) -> None:
    """Refuse members that were chosen to have one hash.

    Raises:
        ValueError: more than ``SHARED`` have the same, or one has none.
    """
    try:
        hashes = Counter(map(hash, members))
    except TypeError as error:
        raise ValueError("a member without a hash") from error
    if len(members) > SHARED and max(hashes.values()) > SHARED:
        raise ValueError("members with the same hash")


def same(value: Any, expected: Any, tolerance: float = 1e-9) -> bool:
    """Whether ``value`` is of the type of ``expected`` and equals it, in every part.

    Args:
        tolerance: relative and absolute, for floats and complex numbers only.
    """
    if type(value) is not type(expected):
        return False
    if isinstance(expected, float):
        if math.isnan(expected) or math.isinf(expected):
            return repr(value) == repr(expected)
        return math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(expected, complex):
        parts = ((value.real, expected.real), (value.imag, expected.imag))
        return all(same(mine, theirs, tolerance) for mine, theirs in parts)
    if isinstance(expected, (list, tuple)):
        return len(value) == len(expected) and all(
            same(mine, theirs, tolerance) for mine, theirs in zip(value, expected, strict=True)
        )
    if isinstance(expected, dict):
        if len(value) != len(expected):
            return False
        mine = {dumps(key): item for key, item in value.items()}
        theirs = {dumps(key): item for key, item in expected.items()}
        return mine.keys() == theirs.keys() and all(
            same(mine[key], theirs[key], tolerance) for key in theirs
        )
    if isinstance(expected, set):
        return len(value) == len(expected) and (
            {dumps(item) for item in value} == {dumps(item) for item in expected}
        )
    return value == expected
