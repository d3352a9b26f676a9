"""What others wrote does not steer a terminal, and is not taken for rich's markup."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import UserError
from study.screen import duration, print_table, visible

HOSTILE = "[/INST] [bold]x[/] \x1b[31mred\x1b[0m \x07\x9b2J \u202eback [link=http://x]y[/link]"


@given(st.text(st.characters()))
def test_nothing_is_left_that_a_terminal_obeys_or_cannot_print(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert all(char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") for char in shown)
    assert not set(shown) & {"\x1b", "\x9b", "\r", "\x07", "\u202e", "\u2066", "\ud800"}
    if text.isascii() and text.isprintable():
        assert shown == text


def test_a_users_error_quotes_an_endpoint_without_its_escapes() -> None:
    assert str(UserError(f"it said {HOSTILE}")) == (
        "it said [/INST] [bold]x[/] \\x1b[31mred\\x1b[0m \\x07\\x9b2J \\u202eback "
        "[link=http://x]y[/link]"
    )


@pytest.mark.parametrize("where", ["title", "name", "value"])
def test_a_table_shows_markup_as_it_came(where: str, capsys) -> None:
    texts = {"title": "t", "name": "n", "value": "v"} | {where: HOSTILE}
    print_table([{texts["name"]: texts["value"]}], texts["title"])
    shown = capsys.readouterr().out
    one_line = "".join(shown.split())  # a narrow column folds
    assert "[/INST][bold]x[/]\\x1b[31mred" in one_line
    assert "\x1b" not in shown and "\x9b" not in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (59.4, "59s"), (61, "1m01s"), (3600, "1h00m"), (90_000, "1d01h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
