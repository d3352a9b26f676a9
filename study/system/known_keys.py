"""Blots a known key out of a text, however it is written there.

An endpoint may send a key back as it got it, in other letters' case, with percent signs, as a JSON
or HTML text escapes it, in hexadecimal, or in base64, alone or inside ``user:key`` as Basic
authentication has it, and with line ends or invisible characters in it. All of these are replaced;
the work grows with the text.
"""

from __future__ import annotations

import base64
import functools
import html
import re
from urllib.parse import quote, unquote

BLOT = "***"
LEAST_CODE = 8
"""Characters of base64 or hexadecimal below which a match may be chance."""
LONGEST = 1024
"""Characters of a form that are looked for; what follows goes with them."""
ROUNDS = 8
"""How many escapes inside each other are undone."""
_ESCAPE = re.compile(
    r"(?<!\\)\\++(?:(?:U000000|u00|x|u\{0{0,6})([0-9a-f]{2})\}?|([01][0-7]{2}))", re.IGNORECASE
)
_EQUALS = re.compile(r"=([0-9a-f]{2})|=\r?\n", re.IGNORECASE)
"""Quoted-printable."""
_HIDDEN = (
    r"[\r\n\x00\xad\u180e\u200b-\u200f\u2060-\u2064\ufeff]"
    r"|\\{1,4}[rn]|\x1b\[[0-9;]{0,9}m"
)
_BREAK = rf"{_HIDDEN}|=\r?\n"
"""What may stand between the characters of a key."""
_GAP = rf"{_BREAK}|\s"
"""What may stand between those of base64."""
_HEX_GAP = rf"{_GAP}|[:,-]|0x"
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
    """What is looked for: the key, its hexadecimal digits, and its base64, also of UTF-16 or with
    percent signs, wherever in a group of three bytes it begins, less the characters that its
    neighbours have a part in."""
    data = key.encode("utf-8", "surrogatepass")
    codes = [data.hex()]
    for each in dict.fromkeys((data, quote(key, safe="").encode(), key.encode("utf-16-le"))):
        for offset in range(3):
            code = base64.b64encode(bytes(offset) + each).decode().rstrip("=")
            first, whole = (0, 2, 3)[offset], (offset + len(each)) * 8 // 6
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
    alternatives = [_spelt(plain, _BREAK) + tail]
    for place, code in enumerate(codes):
        more = "*" if len(code) > LONGEST else "{0,4}"
        spelt = _spelt(code, _HEX_GAP if place == 0 else _GAP)
        alternatives.append(f"{_BASE64}{{0,3}}{spelt}{_BASE64}{more}(?:=|%3d){{0,2}}")
    return re.compile("|".join(alternatives), re.IGNORECASE)


def _spelt(form: str, gap: str) -> str:
    """A pattern of a form in which any character may be escaped, with gaps between them."""
    spelt = _character if gap == _BREAK else _code_character
    return f"(?:{gap})*+".join(map(spelt, form[:LONGEST]))


@functools.cache
def _character(character: str) -> str:
    number = ord(character)
    escaped = "".join(
        f"(?:%(?:25){{0,8}}|=){byte:02x}" for byte in character.encode("utf-8", "replace")
    )
    ways = [re.escape(character), escaped, f"&#0{{0,4}}{number};", f"&#x0{{0,4}}{number:x};"]
    if number < 256:
        ways.append(rf"\\{{1,4}}(?:(?:u00|x|U000000){number:02x}|u\{{0{{0,6}}{number:x}\}})")
    if number < 128:
        ways.append(rf"\\{{1,4}}{number:03o}")
    if not character.isalnum():
        ways.append(rf"\\{{1,4}}{re.escape(character)}")
        ways.append(re.escape(html.escape(character)))
    return f"(?:{'|'.join(ways)})"


@functools.cache
def _code_character(character: str) -> str:
    """The same of base64 and hexadecimal, where letters and digits have fewer ways."""
    if not character.isalnum():
        return _character(character)
    number = f"{ord(character):02x}"
    return rf"(?:{character}|(?:%(?:25){{0,8}}|=|\\{{1,4}}(?:u00|x)){number})"


def _holds(text: str, forms: tuple[str, ...]) -> bool:
    views = [(view, forms) for view in _views(text)]
    if "=" in text:
        plain = _EQUALS.sub(lambda match: chr(int(match[1], 16)) if match[1] else "", text)
        views.append((plain, forms))
    if len(forms[0]) >= LEAST_CODE:
        plain = re.search(r"[\\\x00\x1b]", text) is None and text.isascii()
        whole = "".join(text.splitlines()) if plain else re.sub(_HIDDEN, "", text)
        # Words with blanks between them may well be a key without: its codes alone are looked for.
        joined = "".join(whole.split())
        digits = re.sub("[:,-]|0x", "", joined)
        views += [(whole, forms), (joined, forms[1:-1]), (digits, forms[1:2])]
    for view, searched in views:
        lowered = view.lower()
        if any(form in view or form.lower() in lowered for form in searched):
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
    return _ESCAPE.sub(lambda match: chr(int(match[1] or match[2], 16 if match[1] else 8)), text)


def _without_backslashes(text: str) -> str:
    return re.sub(r"(?<!\\)\\++(?=[_\W])(?![\s\\])", "", text).replace("\\\\", "\\")
