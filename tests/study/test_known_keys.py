"""A known key is blotted out however it is written, and nothing else of a text."""

import base64
import functools
import html
import json
import re
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.system.known_keys import blot_key

KEY = "Canary/Key+77.of-no_known-form"
WRITTEN = {
    "as it is": str,
    "upper case": str.upper,
    "lower case": str.lower,
    "percent signs": lambda key: quote(key, safe=""),
    "percent signs twice": lambda key: quote(quote(key, safe=""), safe=""),
    "all percent signs": lambda key: "".join(f"%{ord(one):02x}" for one in key),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 without padding": lambda key: base64.b64encode(key.encode()).decode().rstrip("="),
    "base64 of addresses": lambda key: base64.urlsafe_b64encode(key.encode()).decode(),
    "Basic": lambda key: base64.b64encode(f"me:{key}".encode()).decode(),
    "Basic of a token": lambda key: base64.b64encode(f"{key}:".encode()).decode(),
    "base64 with percent signs": lambda key: quote(base64.b64encode(key.encode()), safe=""),
    "hexadecimal": lambda key: key.encode().hex(),
    "a JSON string": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "numbers of JSON": lambda key: "".join(f"\\u{ord(one):04x}" for one in key),
    "six times percent signs": lambda key: functools.reduce(
        lambda text, _: quote(text, safe=""), range(6), key
    ),
    "base64 in lines": lambda key: "\n".join(
        re.findall(".{1,8}", base64.b64encode(key.encode()).decode())
    ),
    "base64 of UTF-16": lambda key: base64.b64encode(key.encode("utf-16-le")).decode(),
    "base64 of percent signs": lambda key: base64.b64encode(quote(key, safe="").encode()).decode(),
    "hexadecimal with colons": lambda key: key.encode().hex(":"),
    "hexadecimal with blanks": lambda key: key.encode().hex(" "),
    "long numbers": lambda key: "".join(f"\\U{ord(one):08x}" for one in key),
    "numbers in braces": lambda key: "".join(f"\\u{{{ord(one):x}}}" for one in key),
    "octal": lambda key: "".join(f"\\{ord(one):03o}" for one in key),
    "quoted-printable": lambda key: "".join(f"={ord(one):02X}" for one in key),
    "two lines": lambda key: f"{key[:9]}\n{key[9:]}",
    "invisible": lambda key: "\u200b".join(key[:5]) + "\u00ad" + key[5:],
    "Markdown": lambda key: re.sub(r"(\W|_)", r"\\\1", key),
    "HTML": lambda key: html.escape(key).replace("/", "&#x2F;"),
}  # fmt: skip


@pytest.mark.parametrize("form", WRITTEN)
def test_every_form_of_a_key_is_blotted_out(form: str) -> None:
    written = WRITTEN[form](KEY)
    shown = blot_key(f"see {written} there", KEY)
    assert shown in ("see *** there", "see b*** there")  # b is of the user's name before the key


def test_base64_and_two_kinds_of_escapes_hide_no_key() -> None:
    for before in range(7):
        for after in range(7):
            text = "x" * before + KEY + "y" * after
            shown = blot_key(base64.b64encode(text.encode()).decode(), KEY)
            assert shown.count("***") == 1 and len(shown) < 30
    written = "".join(f"&#37;{ord(one):02x}" for one in KEY)  # %43 with &#37; for its %
    assert blot_key(f"see {written} there", KEY) == "***"


@pytest.mark.parametrize("examples", [12, pytest.param(300, marks=pytest.mark.long)])
def test_no_form_of_any_key_is_left(examples: int) -> None:
    """Of letters and marks as keys have them: no key has a backslash. A key takes a quarter of a
    second, which is its pattern."""

    @settings(deadline=None, max_examples=examples)
    @given(
        st.text(alphabet="ab%/+=&<-_.:1", min_size=8, max_size=40), st.sampled_from(sorted(WRITTEN))
    )
    def holds(key: str, form: str) -> None:
        written = WRITTEN[form](key)
        assert written not in blot_key(f"[{written}]", key)

    holds()


def test_what_only_resembles_a_key_stays() -> None:
    assert blot_key("a correct horse", "correcthorse") == "a correct horse"
    text = "100% of \\alpha & Canary/Key+78, Q2FuYXJ5L0tl, a\\b, &amp; %2F"
    assert blot_key(text, KEY) == text
