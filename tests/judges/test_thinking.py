"""Thinking is taken out whole, closed or not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.thinking import answer_spans, strip_thinking


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[80]]", ("[[80]]", "", True)),
        ("<think>hm [[10]]</think>\n[[80]]", ("[[80]]", "hm [[10]]", True)),
        ("hm [[10]]</think> [[80]]", ("[[80]]", "hm [[10]]", True)),
        ("a <think>b</think> c <think>d</think>", ("a  c", "b\nd", True)),
        ("<think>hm [[10]]", ("", "hm [[10]]", False)),
        ("[[80]] <think>or [[10]]?", ("[[80]]", "or [[10]]?", False)),
        ("<think>a<think>b</think>c</think>d", ("d", "abc", True)),
        ("[[1]]<think>b</think>c</think>d", ("d", "[[1]]bc", True)),
        ("<THINKING>a</Thinking >b", ("b", "a", True)),
        ("", ("", "", True)),
        ("I think <b>so</b>", ("I think <b>so</b>", "", True)),
    ],
)
def test_replies_split_by_hand(text, expected):
    assert strip_thinking(text) == expected


PARTS = st.lists(st.sampled_from(["<think>", "</think>", "x", "y "]), max_size=8).map("".join)


@given(PARTS)
def test_nothing_before_the_last_close_or_after_an_unclosed_open_survives_twice(text):
    answer, thinking, closed = strip_thinking(text)
    assert "think>" not in answer + thinking
    letters = sorted(text.replace("<think>", "").replace("</think>", "").replace(" ", ""))
    assert sorted((answer + thinking).replace(" ", "").replace("\n", "")) == letters
    assert closed == (text.rfind("<think>") <= text.rfind("</think>"))
    spans, same = answer_spans(text)
    assert same == closed
    assert "".join(text[a:b] for a, b in spans).strip() == answer


@given(st.text(alphabet="ab<>/ ", max_size=20), st.text(alphabet="cd ", max_size=20))
def test_a_closed_block_in_front_leaves_exactly_the_answer(thought, answer):
    assert strip_thinking(f"<think>{thought}</think>{answer}")[0] == answer.strip()
