"""Rubric gradings: what is asked, and what score the labels make."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.grading import GRADINGS
from judges.grading.base import Grading, check_rows
from judges.grading.delimiters import undelimit
from judges.grading.rubric import Rubric
from study.config.schema import Task
from study.errors import UserError
from study.rows import Criterion, Row, make_row
from study.tasks import prompts
from study.tasks.where import data_folder
from study.truth.rubric import rubric_score
from study.verdict import LABELS, Outcome, Parsed, Reply, Request

DATA = data_folder()


def row_of(*points: float) -> Row:
    criteria = tuple(Criterion(f"Item {place}.", value) for place, value in enumerate(points))
    return make_row(({"role": "user", "content": "Say hello."},), criteria, {"secret": "42-only"})


ROW = row_of(5, 3, -4)
ALL = '{"1": "PRESENT", "2": "PRESENT", "3": "PRESENT"}'


def batch(**options: Any) -> Rubric:
    return GRADINGS["rubric_batch"]({"vocabulary": "present", **options})


def ask_all(row: Row) -> Request:
    return Request((), tuple(range(len(row.criteria))))


def verdict(grading: Rubric, row: Row, *texts: str, finish: str = "stop") -> Parsed:
    """The verdict of a first reply, and of follow-ups to it."""
    ask, parts = grading.requests(row, "hi")[0], []
    for text in texts:
        parsed = grading.parse(Reply(text, finish_reason=finish), ask)
        parts.append((ask, parsed))
        ask = grading.follow_up(row, "hi", ask, parsed) or ask
    return grading.combine(row, parts)


M, N, U = LABELS  # met, not_met, unknown


@pytest.mark.parametrize(
    ("labels", "score"),
    [
        ([M, M, N], 1.0), ([M, N, N], 5 / 8), ([M, M, M], 4 / 8), ([N, N, M], -4 / 8),
        ([N, N, N], 0.0),
        # unknown ones count on neither side
        ([M, U, U], 1.0), ([M, U, M], 1 / 5), ([U, U, M], None), ([U, U, U], None),
    ],
)  # fmt: skip
def test_score_by_hand(labels: list[str], score: float | None) -> None:
    assert rubric_score(ROW.criteria, labels) == (None if score is None else pytest.approx(score))


def test_the_clip_is_an_option_and_a_missing_label_is_named() -> None:
    worst = '{"1": "NOT_PRESENT", "2": "NOT_PRESENT", "3": "PRESENT"}'
    assert verdict(batch(), ROW, worst).score == 0.0
    assert verdict(batch(clip="none"), ROW, worst).score == -0.5
    assert verdict(batch(clip=None), ROW, worst).score == -0.5  # as YAML writes it
    parsed = verdict(batch(), ROW, '{"1": "PRESENT", "3": "NOT_PRESENT"}')
    assert (parsed.outcome, parsed.score, parsed.labels) == (Outcome.unparsed, None, (M, U, N))
    assert "criterion 2" in parsed.reason and "\n" not in parsed.reason
    parsed = verdict(batch(), ROW, '{"1": "PRESENT"}')
    assert "criteria 2, 3" in parsed.reason


def test_renormalising_says_so_and_never_makes_a_score_of_nothing() -> None:
    grading = batch(partial="renormalise")
    parsed = verdict(grading, ROW, '{"2": "PRESENT", "3": "PRESENT"}')
    assert (parsed.outcome, parsed.labels) == (Outcome.scored, (U, M, M))
    assert parsed.score == 0.0  # (3 - 4) / 3, clipped
    assert "renormalised" in parsed.reason and "criterion 1" in parsed.reason
    unclipped = batch(partial="renormalise", clip="none")
    assert verdict(unclipped, ROW, '{"2": "PRESENT", "3": "PRESENT"}').score == pytest.approx(
        -1 / 3
    )
    for text in ("no idea", '{"3": "PRESENT"}'):
        parsed = verdict(grading, ROW, text)
        assert (parsed.outcome, parsed.score) == (Outcome.unparsed, None)


@given(st.lists(st.sampled_from(LABELS), min_size=4, max_size=4), st.permutations(range(4)))
def test_partial_replies_in_any_order_make_the_same_verdict(labels, order) -> None:
    """Salvage: one request, or a chunk per criterion in any order of arrival."""
    row = row_of(2, 1, -1, 3)
    grading = batch(partial="renormalise", clip="none")
    words = {M: "PRESENT", N: "NOT_PRESENT"}
    labels_by_number = {place + 1: words[label] for place, label in enumerate(labels) if label != U}
    whole = verdict(grading, row, json.dumps(labels_by_number) if labels_by_number else "nothing")
    parts = [
        (ask, grading.parse(Reply(json.dumps(labels_by_number)), ask))
        for ask in (Request((), (place,)) for place in order)
    ]
    joined = grading.combine(row, parts)
    assert joined.labels == whole.labels == tuple(labels)
    assert joined.score == whole.score == rubric_score(row.criteria, labels)
    assert (joined.outcome is Outcome.scored) == (joined.score is not None)


def test_only_what_is_missing_is_asked_again() -> None:
    grading = batch()
    (first,) = grading.requests(ROW, "hi")
    assert first.criteria == (0, 1, 2)
    partial = grading.parse(Reply('{"2": "PRESENT"}'), first)
    assert (partial.outcome, partial.labels) == (Outcome.unparsed, (U, M, U))
    narrow = grading.follow_up(ROW, "hi", first, partial)
    assert narrow is not None and narrow.criteria == (0, 2)
    assert undelimit("rubric", narrow.messages[0]["content"]) == "1. Item 0.\n3. Item 2."
    joined = verdict(grading, ROW, '{"2": "PRESENT"}', '{"1": "NOT_PRESENT", "3": "NOT_PRESENT"}')
    assert (joined.labels, joined.score, joined.reason) == ((N, M, N), 3 / 8, "")
    for text in ("nothing", ALL):
        assert grading.follow_up(ROW, "hi", first, grading.parse(Reply(text), first)) is None


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(ALL, "", "length"), Outcome.truncated),
        (Reply("", "", "content_filter"), Outcome.refused),
        (Reply(""), Outcome.empty),
        (Reply('<think>{"1": "PRESENT"}'), Outcome.empty),
        (Reply("", '{"1": "PRESENT"}'), Outcome.empty),
    ],
)
def test_a_reply_that_is_none_keeps_its_own_outcome(reply: Reply, outcome: Outcome) -> None:
    grading = batch(partial="renormalise")
    (ask,) = grading.requests(ROW, "hi")
    parsed = grading.parse(reply, ask)
    assert (parsed.outcome, parsed.labels, parsed.score) == (outcome, (U, U, U), None)
    assert grading.combine(ROW, [(ask, parsed)]).outcome is outcome


def test_a_chunk_that_failed_names_the_failure() -> None:
    grading = GRADINGS["rubric_chunk"]({"k": 2})
    first, second = grading.requests(ROW, "hi")
    good = grading.parse(Reply('{"1": "met", "2": "met"}'), first)
    lost = Parsed(Outcome.timeout, (U,), reason="no reply within 2 s")
    joined = grading.combine(ROW, [(first, good), (second, lost)])
    assert (joined.outcome, joined.labels, joined.score) == (Outcome.timeout, (M, M, U), None)
    assert "criterion 3" in joined.reason and "no reply within 2 s" in joined.reason


def test_how_many_criteria_a_request_has() -> None:
    row = row_of(*range(1, 24))
    sizes = {"rubric_batch": [23], "rubric_chunk": [10, 10, 3], "rubric_item": [1] * 23}
    for name, expected in sizes.items():
        asks = GRADINGS[name]({}).requests(row, "hi")
        assert [len(ask.criteria) for ask in asks] == expected
        assert [place for ask in asks for place in ask.criteria] == list(range(23))
    assert len(GRADINGS["rubric_chunk"]({"k": 7}).requests(row, "hi")) == 4


@pytest.mark.parametrize("layout", ["cacheable", "ancestor"])
@given(answer=st.text(max_size=60))
def test_what_is_asked(layout: str, answer: str) -> None:
    row = make_row(
        ({"role": "user", "content": "Hi {answer}"},),
        (Criterion("Is polite.\n- says please\n2. says thanks", 2.0), Criterion("Is rude.", -1.5)),
        {"secret": "42-only"},
    )
    (ask,) = batch(layout=layout, points="shown").requests(row, answer)
    (turn,) = ask.messages
    content = turn["content"]
    assert turn["role"] == "user" and "42-only" not in content
    assert undelimit("prompt", content) == "Hi {answer}" and undelimit("answer", content) == answer
    assert undelimit("rubric", content) == (
        "1. (points: 2) Is polite.\n   - says please\n   2. says thanks\n2. (points: -1.5) Is rude."
    )
    marks = ["You check", "<<<prompt", "<<<rubric", "<<<answer"]
    order = sorted(marks, key=content.index)
    expected = {"cacheable": [0, 1, 2, 3], "ancestor": [1, 3, 2, 0]}[layout]
    assert order == [marks[place] for place in expected]
    hidden = batch(layout=layout).requests(row, answer)[0].messages[0]["content"]
    assert "points" not in hidden and "1.5" not in hidden.replace(answer, "")


def test_options_change_the_prompt_and_its_hash() -> None:
    def text(**options: Any) -> str:
        return batch(**options).requests(ROW, "hi")[0].messages[0]["content"]

    assert '{"1": "PRESENT", "2": "NOT_PRESENT"}' in text()
    assert '{"1": true, "2": false}' in text(vocabulary="bool")
    assert "describe a fault" in text() and "describe a fault" not in text(polarity_guidance=False)
    assert text(polarity_guidance="off") == text(polarity_guidance=False)
    assert text(polarity_guidance="on") == text()
    variants: list[dict[str, Any]] = [
        {}, {"vocabulary": "met"}, {"vocabulary": "bool"}, {"vocabulary": "yes_no"},
        {"points": "shown"}, {"polarity_guidance": "off"}, {"reason": "before"},
        {"reason": "after"}, {"layout": "ancestor"}, {"prompt": "strict"}, {"prompt": "ancestor"},
    ]  # fmt: skip
    assert len({batch(**options).prompt_sha for options in variants}) == len(variants)
    assert len({text(**options) for options in variants}) == len(variants)
    for same in ({"clip": "none"}, {"partial": "renormalise"}, {"structured": True}):
        assert text(**same) == text() and batch(**same).prompt_sha == batch().prompt_sha


def test_a_reply_gets_room_and_a_schema_only_where_asked_for() -> None:
    (ask,) = batch().requests(ROW, "hi")
    plain, reasoned = batch().body(ask), batch(reason="before").body(ask)
    assert plain.keys() == {"max_tokens_at_least"}
    # the longest reply, a character per token: 3 x '"1": "NOT_PRESENT", ' is 60
    assert 60 <= plain["max_tokens_at_least"] < reasoned["max_tokens_at_least"]
    schema = batch(structured=True).body(ask)["structured_outputs"]["json"]
    assert schema["required"] == ["1", "2", "3"] == list(schema["properties"])
    assert schema["properties"]["3"] == {"enum": ["PRESENT", "NOT_PRESENT"]}
    words = batch(vocabulary="bool", structured=True).body(Request((), (4,)))["structured_outputs"]
    assert words["json"]["properties"] == {"5": {"enum": [True, False]}}


def test_a_prompt_of_ones_own_has_the_sections_that_its_options_call_for(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("### instructions\nSay {yes} or {no}.\n### reason_none\n### form\n{form}\n")
    options = {"prompt": str(mine), "polarity_guidance": "off"}
    content = batch(**options).requests(ROW, "hi")[0].messages[0]["content"]
    assert content.startswith("Say PRESENT or NOT_PRESENT.\n\n")
    with pytest.raises(UserError, match="### points"):
        batch(**options, points="shown")
    mine.write_text("### instructions\nSay {yes} or {no}.\n### reason_none\n### form\n{spec}{form}")
    with pytest.raises(UserError, match="spec"):
        batch(**options)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (row_of(), "no criteria"),
        (row_of(-1, -2, 0), "positive points"),
        (row_of(1, float("nan")), "points"),
        (make_row(ROW.messages, (Criterion("A."), Criterion("A. "))), "criterion 2"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["rubric_batch", "rubric_chunk", "rubric_item"])
def test_a_rubric_without_a_score_is_refused_before_and_typed_at_the_verdict(name, row, named):
    grading = GRADINGS[name]({})
    with pytest.raises(UserError, match=row.prompt_id) as problem:
        check_rows(grading, [ROW, row])
    assert named in str(problem.value)
    assert grading.requests(row, "hi") == ()
    parsed = grading.combine(row, [])
    assert (parsed.outcome, parsed.score) == (Outcome.unparsed, None) and named in parsed.reason
    check_rows(grading, [ROW])


@pytest.mark.parametrize(
    ("path", "criteria", "refused"),
    [
        ("verinstruct/verinstruct_val.parquet", 5.8, 0),
        ("healthbench/healthbench_val.parquet", 11.9, 1),  # one row repeats a criterion
    ],
)
def test_real_rubrics(path: str, criteria: float, refused: int) -> None:
    if not (DATA / path).is_file():
        pytest.skip(f"{path} is not on this machine")
    rows = list(prompts.load(Task(path=str(DATA / path))).rows)
    grading, chunked = batch(points="shown"), GRADINGS["rubric_chunk"]({})
    assert sum(len(row.criteria) for row in rows) / len(rows) == pytest.approx(criteria, abs=0.05)
    fit = [row for row in rows if not grading.problem(row)]
    assert len(rows) - len(fit) == refused
    for row in fit:
        count = len(row.criteria)
        (ask,) = grading.requests(row, "An answer.")
        content = ask.messages[0]["content"]
        assert undelimit("prompt", content) == row.prompt_text()
        starts = [line for line in undelimit("rubric", content).split("\n") if line[:1].isdigit()]
        assert [int(line.split(".")[0]) for line in starts] == list(range(1, count + 1))
        assert len(chunked.requests(row, "An answer.")) == -(-count // 10)
        yes = json.dumps({str(number): "PRESENT" for number in range(1, count + 1)})
        total = sum(item.points for item in row.criteria)
        best = sum(item.points for item in row.criteria if item.points > 0)
        assert verdict(grading, row, yes).score == pytest.approx(max(0.0, total / best))
        assert verdict(grading, row, yes.replace("PRESENT", "NOT_PRESENT")).score == 0.0


def test_options_are_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grading = batch(points="shown", polarity_guidance=False)
    monkeypatch.delattr(Grading, "_choose")
    assert grading.chosen["polarity_guidance"] == "off" and grading.chosen["clip"] == "zero"
    assert verdict(grading, ROW, ALL).score == 0.5
    assert grading.body(ask_all(ROW)).keys() == {"max_tokens_at_least"}
