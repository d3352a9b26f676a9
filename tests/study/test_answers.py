"""Thinking is taken out whole, closed or not."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.answers import OPENERS, answer_of, opened, split, strip_thinking


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
    parts = split(text)
    spans, same = parts.answers, parts.closed
    assert same == closed
    assert "".join(text[a:b] for a, b in spans).strip() == answer


@given(st.text(alphabet="ab<>/ ", max_size=20), st.text(alphabet="cd ", max_size=20))
def test_a_closed_block_in_front_leaves_exactly_the_answer(thought, answer):
    assert strip_thinking(f"<think>{thought}</think>{answer}")[0] == answer.strip()


KINDS = [
    *OPENERS.items(),
    ("<|channel|>commentary to=functions.look <|constrain|>json<|message|>", "<|call|>"),
    ("<|start|>assistant<|channel|>analysis<|message|>", "<|end|>"),
    ("<\uff5cbegin_of_thinking\uff5c>", "<\uff5cend_of_thinking\uff5c>"),
    ('< Thinking type="deep"\n>', "</THINKING >"),
    ("[ think ]", "[/Think]"),
]
FINAL = "<|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(("opener", "closer"), KINDS)
def test_every_kind_of_thinking(opener, closer):
    """Closed, never closed, never opened, again, nested, and beside another kind."""
    assert strip_thinking(f"{opener}hm [[10]]{closer}\n[[80]]") == ("[[80]]", "hm [[10]]", True)
    assert strip_thinking(f"{opener}hm [[10]]") == ("", "hm [[10]]", False)
    assert strip_thinking(f"[[80]] {opener}or [[10]]?") == ("[[80]]", "or [[10]]?", False)
    assert strip_thinking(f"a {opener}b{closer} c {opener}d{closer}")[0] == "a  c"
    assert strip_thinking(f"{opener}a{opener}b{closer}d")[0] == "d"
    assert strip_thinking(f"{opener}a{closer}b<thought>c</thought>d")[0] == "bd"
    assert answer_of(f"{opener}a{closer} b {opener}c{closer} d ") == "d"
    assert answer_of(f"{opener}a{closer}") == ""
    assert answer_of(f"b {opener}a") is None
    if closer not in ("<|end|>", "<|call|>"):
        assert strip_thinking(f"hm [[10]]{closer} [[80]]") == ("[[80]]", "hm [[10]]", True)
        assert answer_of(f"a {closer} b") == "b"


@pytest.mark.parametrize(("opener", "closer"), KINDS)
@pytest.mark.parametrize(("other", "other_closer"), KINDS)
def test_a_thought_that_quotes_another_mark_stays_a_thought(opener, closer, other, other_closer):
    text = f"{opener}it says {other}[[1]]{other_closer}[[2]]{closer}[[3]]"
    if ("channel" in opener and "channel" in other) or OPENERS.get(other) == closer:
        return  # there is one such block, or the quotation is the same mark
    assert strip_thinking(text)[0] == "[[3]]"
    assert answer_of(text) == "[[3]]"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"<|channel|>analysis<|message|>hm<|end|>{FINAL}[[80]]<|return|>", "[[80]]"),
        # the template opened the first channel
        (f"hm [[10]]<|end|>{FINAL}[[80]]", "[[80]]"),
        (f"hm [[10]]{FINAL}[[80]]<|end|>[[90]]", "[[80]]"),
        (f"<|channel|>analysis<|message|>a<|end|>{FINAL}b<|channel|>analysis<|message|>c", "b"),
        (f"<|channel|>analysis<|message|>quotes </think>[[1]]<|end|>{FINAL}[[2]]", "[[2]]"),
        ("<|channel|>final <|constrain|>json<|message|>{}", "{}"),
        ("<|channel|>analysis", ""),
        ("<|start|>assistant<|message|>plain<|end|>", "plain"),
        ("plain<|end|>", "plain"),
        ("<|begin_of_solution|>x<|end_of_solution|>", "x"),
        # special tokens left out in decoding
        ("analysisThe user wants [[10]].assistantfinal[[80]]", "[[80]]"),
        ("analysis of it: [[80]]", "analysis of it: [[80]]"),
        ("He sent an assistantfinal.", "He sent an assistantfinal."),
    ],
)
def test_harmony(text, answer):
    assert strip_thinking(text)[0] == answer


@pytest.mark.parametrize(
    "text",
    ["a < b, thoughts > c", "[thinking](page.html)", "[think](x)", "<thinker>", "<|message|>x",
     "the token <|start|> is", "<b>think</b>", "think: </ b>"],
)  # fmt: skip
def test_what_is_no_mark(text):
    assert strip_thinking(text) == (text, "", True)
    assert answer_of(text) == text


MARKS = st.sampled_from(
    [*OPENERS, *OPENERS.values(), FINAL, "<|return|>", "<|start|>", "x", "y ", "\n", "analysis"]
)


@given(st.lists(MARKS, max_size=8).map("".join))
def test_answer_and_thinking_never_share_a_letter(text):
    parts = split(text)
    spans, closed = parts.answers, parts.closed
    assert all(start < end for start, end in spans)
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))
    policy = answer_of(text)
    assert (policy is not None) == closed
    if policy:
        assert strip_thinking(text)[0].endswith(policy)


def test_a_template_that_opens_thinking_is_heard():
    assert opened("<|user|>hi<|assistant|><think>\n") == "<think>"
    assert opened("<|user|>hi<|assistant|><think>\n\n</think>\n\n") == ""
    assert opened("<|user|>what is <think>?<|assistant|>") == ""
    assert opened("[INST]hi[/INST][THINK]") == "[THINK]"
    assert opened("<|start|>assistant<|channel|>analysis<|message|>").endswith("<|message|>")


@pytest.mark.parametrize(
    ("completion", "answer"),
    [("  plain ", "plain"), ("<think>a</think> b <think> again", None), ("", "")],
)
def test_answer_of(completion, answer):
    assert answer_of(completion) == answer
