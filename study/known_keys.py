"""Blots a known key out of a text, however it is written there.

An endpoint may send a key back as it got it, in other letters' case, with percent signs, as a JSON
or HTML text escapes it, in hexadecimal, or in base64, alone or inside ``user:key`` as Basic
authentication has it. All of these are replaced; the work grows with the text.
"""

from __future__ import annotations

import base64
import functools
import html
import re
from urllib.parse import unquote

BLOT = "***"
LEAST_CODE = 8
"""Characters of base64 or hexadecimal below which a match may be chance."""
LONGEST = 1024
"""Characters of a form that are looked for; what follows goes with them."""
ROUNDS = 4
"""How many escapes inside each other are undone."""
_ESCAPE = re.compile(r"(?<!\\)\\++(?:u00|x)([0-9a-f]{2})", re.IGNORECASE)
_BASE64 = "[A-Za-z0-9+/_-]"


def blot_key(text: str, key: str) -> str:
    """``text`` with every form of ``key`` replaced by ``***``. Where a form stands in it that
    cannot be told from its surroundings, as by escapes of two kinds, the whole text is."""
    forms = _searched(key)
    if not _holds(text, forms):
        return text
    text = _pattern(key).sub(BLOT, text)
    return BLOT if _holds(text, forms) else text


@functools.lru_cache(256)
def _forms(key: str) -> tuple[str, ...]:
    """What is looked for: the key, its base64 wherever in a group of three bytes it begins, less
    the characters that its neighbours have a part in, and its hexadecimal digits."""
    data = key.encode("utf-8", "surrogatepass")
    codes = [data.hex()]
    for offset in range(3):
        code = base64.b64encode(bytes(offset) + data).decode().rstrip("=")
        first, whole = (0, 2, 3)[offset], (offset + len(data)) * 8 // 6
        codes += [code[first:whole], code[first:whole].translate(str.maketrans("+/", "-_"))]
    long = [code for code in dict.fromkeys(codes) if len(code) >= LEAST_CODE]
    return (key, *(code for code in long if code != key))


@functools.lru_cache(256)
def _searched(key: str) -> tuple[str, ...]:
    """The forms, and what reading makes of a key that has a percent sign or a backslash itself."""
    return (*_forms(key), _views(key)[-1])


@functools.lru_cache(256)
def _pattern(key: str) -> re.Pattern[str]:
    plain, *codes = _forms(key)
    tail = r"[^\s\"'<>&]*" if len(plain) > LONGEST else ""
    alternatives = [_spelt(plain) + tail]
    for code in codes:
        more = "*" if len(code) > LONGEST else "{0,4}"
        alternatives.append(f"{_BASE64}{{0,3}}{_spelt(code)}{_BASE64}{more}(?:=|%3d){{0,2}}")
    return re.compile("|".join(alternatives), re.IGNORECASE)


def _spelt(form: str) -> str:
    """A pattern of a form in which any character may be escaped."""
    return "".join(map(_character, form[:LONGEST]))


@functools.cache
def _character(character: str) -> str:
    number = ord(character)
    escaped = "".join(f"%(?:25){{0,3}}{byte:02x}" for byte in character.encode("utf-8", "replace"))
    ways = [re.escape(character), escaped, f"&#0{{0,4}}{number};", f"&#x0{{0,4}}{number:x};"]
    if number < 256:
        ways.append(rf"\\{{1,4}}(?:u00|x){number:02x}")
    if not character.isalnum():
        ways.append(rf"\\{{1,4}}{re.escape(character)}")
        ways.append(re.escape(html.escape(character)))
    return f"(?:{'|'.join(ways)})"


def _holds(text: str, forms: tuple[str, ...]) -> bool:
    for view in _views(text):
        lowered = view.lower()
        if any(form in view or form.lower() in lowered for form in forms):
            return True
    return False


def _views(text: str) -> list[str]:
    """``text`` and what it is with its escapes undone, one round after the other."""
    views = [text]
    for _ in range(ROUNDS if re.search(r"[%&\\]", text) else 0):
        before = len(views)
        for undone in (_without_percent, _without_numbers, _without_backslashes):
            plain = undone(views[-1])
            if plain != views[-1]:
                views.append(plain)
        if len(views) == before:
            break
    return views


def _without_percent(text: str) -> str:
    return html.unescape(unquote(text))


def _without_numbers(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def _without_backslashes(text: str) -> str:
    return re.sub(r"(?<!\\)\\++(?=[^\w\s\\])", "", text).replace("\\\\", "\\")
