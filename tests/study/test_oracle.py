"""The oracle: batches, a memo, and missing truths."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.rows import Missing, Truth, make_row, prompt_id
from study.truth import oracle
from study.truth.oracle import Oracle

ROWS = [make_row(({"role": "user", "content": text},)) for text in ("one", "two")]
BY_ID = {row.prompt_id: row for row in ROWS}


class Rule:
    """Right is what has the prompt in it; "lost" cannot be told, until it is mended."""

    def __init__(self):
        self.batches = []
        self.broken = True

    def __call__(self, rows, answers):
        prompts = [row.prompt_text() for row in rows]
        self.batches.append(list(zip(prompts, answers, strict=True)))
        return [
            Missing("no sandbox")
            if self.broken and answer == "lost"
            else Truth(float(row.prompt_text() in answer))
            for row, answer in zip(rows, answers, strict=True)
        ]


def test_each_answer_is_asked_about_once():
    rule = Rule()
    memo = Oracle(BY_ID.get, rule)
    pairs = [(ROWS[0], "one"), (ROWS[1], "one"), (ROWS[0], "one"), (ROWS[0], "")]
    truths = memo.truths(*zip(*pairs, strict=True))
    assert [truth.score for truth in truths] == [1.0, 0.0, 1.0, 0.0]
    assert rule.batches == [[("one", "one"), ("two", "one"), ("one", "")]]
    assert memo.truths(*zip(*pairs, strict=True)) == truths and memo("two", "one").score == 0.0
    assert len(rule.batches) == 1
    memo.truths([ROWS[1], ROWS[1]], ["one", "two"])
    assert rule.batches[1:] == [[("two", "two")]]
    assert memo.truths([], []) == [] and len(rule.batches) == 2


def test_what_was_cut_off_is_not_empty_and_no_foreign_prompt_has_a_truth():
    def empty(rows, answers):
        return [Truth(float(answer == "")) for answer in answers]

    memo = Oracle(BY_ID.get, empty)
    assert memo.truths([ROWS[0]] * 2, ["", None]) == [Truth(1.0), Truth(0.0)]
    assert memo.remembered([ROWS[0]] * 2, [None, ""]) == [Truth(0.0), Truth(1.0)]
    assert Oracle(BY_ID.get, Rule())("one", "one \ud800").score == 1.0
    assert Oracle(BY_ID.get, Rule())("three", "three") is None
    assert prompt_id("three") not in BY_ID


def test_a_truth_that_could_not_be_had_is_asked_for_again():
    rule = Rule()
    memo = Oracle(BY_ID.get, rule)
    assert memo.truths(ROWS, ["lost", "two"]) == [Missing("no sandbox"), Truth(1.0)]
    assert memo.remembered(ROWS, ["lost", "two"]) is None
    rule.broken = False
    assert memo.truths(ROWS, ["lost", "two"]) == [Truth(0.0), Truth(1.0)]
    assert rule.batches == [[("one", "lost"), ("two", "two")], [("one", "lost")]]
    assert memo.remembered(ROWS, ["lost", "two"]) == [Truth(0.0), Truth(1.0)]


def test_nothing_is_remembered_of_no_rule_or_of_one_that_leaves_answers_out():
    batches = []

    def nothing(rows, answers):
        batches.append(answers)
        return [None] * len(rows)

    memo = Oracle(BY_ID.get, nothing)
    assert memo("one", "x") is memo("one", "x") is None and len(batches) == 1
    assert memo.remembered([ROWS[0]], ["x"]) == [None]
    memo = Oracle(BY_ID.get, lambda rows, answers: [])
    with pytest.raises(ValueError, match="shorter"):
        memo("one", "x")
    assert memo.remembered([ROWS[0]], ["x"]) is None


def test_threads_that_ask_the_same_ask_once():
    rule, together = Rule(), threading.Barrier(8)
    memo = Oracle(BY_ID.get, rule)

    def ask(_):
        together.wait()
        return memo.truths(ROWS, ["one", "two"])

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert answers == [[Truth(1.0), Truth(1.0)]] * 8 and len(rule.batches) == 1


def test_the_memo_is_bounded_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(oracle, "MOST", 3)
    memo = Oracle(BY_ID.get, Rule())
    for answer in "abcde":
        memo("one", answer)
    assert memo.remembered([ROWS[0]] * 3, ["c", "d", "e"]) is not None
    assert memo.remembered([ROWS[0]], ["b"]) is None
    assert len(memo.truths([ROWS[0]] * 10, list("fghijklmno"))) == 10  # more than it holds


BATCHES = st.lists(st.lists(st.tuples(st.sampled_from(ROWS), st.sampled_from("abc") | st.text())))


@given(BATCHES)
def test_whatever_is_asked_in_whatever_order_is_what_the_rule_says(batches):
    rule = Rule()
    rule.broken = False
    memo, direct = Oracle(BY_ID.get, rule), Rule()
    for batch in batches:
        rows, answers = [row for row, _ in batch], [answer for _, answer in batch]
        assert memo.truths(rows, answers) == direct(rows, answers)
    pairs = [pair for batch in rule.batches for pair in batch]
    assert len(pairs) == len(set(pairs))
