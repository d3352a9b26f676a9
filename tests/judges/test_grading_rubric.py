"""Rubric gradings: what is asked, how labels are read, and what score they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.grading import GRADINGS
from judges.grading.checks import check_rows
from judges.grading.delimiters import undelimit
from judges.grading.rubric import Rubric, rubric_score
from judges.grading.vocabulary import LONGEST, VOCABULARIES, read_labels
from study.errors import UserError
from study.rows import Criterion, Row, make_row
from study.verdict import LABELS, Outcome, Parsed, Reply, Request

DATA = Path(__file__).parents[3] / "shared" / "data"


def row_of(*points: float) -> Row:
    criteria = tuple(Criterion(f"Item {place}.", value) for place, value in enumerate(points))
    return make_row(({"role": "user", "content": "Say hello."},), criteria, {"secret": "42-only"})


ROW = row_of(5, 3, -4)


def batch(**options: Any) -> Rubric:
    return GRADINGS["rubric_batch"]({"vocabulary": "present", **options})


def ask_all(row: Row) -> Request:
    return Request((), tuple(range(len(row.criteria))))


def labels_of(text: str, count: int = 3, vocabulary: str = "present") -> list[str]:
    found = read_labels(text, list(range(1, count + 1)), vocabulary)
    return [found.get(number, "unknown") for number in range(1, count + 1)]


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
    ("text", "expected"),
    [
        ('{"1": "PRESENT", "2": "NOT_PRESENT", "3": "PRESENT"}', [M, N, M]),
        ('Sure!\n```json\n{"1": "PRESENT",\n "2": "NOT PRESENT", "3": "present"}\n```\nBye',
         [M, N, M]),
        ("1: PRESENT\n2: NOT_PRESENT\n3: PRESENT", [M, N, M]),
        ("- **1**: **PRESENT**\n* 2) NOT PRESENT.\nCriterion 3 = not-present", [M, N, N]),
        ('["PRESENT", "NOT_PRESENT", "PRESENT"]', [M, N, M]),
        ('["PRESENT", "NOT_PRESENT"]', [U, U, U]),
        ('["PRESENT", "NOT_PRESENT", "PRESENT", "PRESENT"]', [U, U, U]),
        ('[{"1": "PRESENT"}, {"2": "NOT_PRESENT"}, {"3": "PRESENT"}]', [M, N, M]),
        ('{"verdicts": {"1": "PRESENT", "2": "NOT_PRESENT"}}', [M, N, U]),
        # two different things of one criterion: nothing that the reply says can be relied on
        ('{"1": "PRESENT", "1": "NOT_PRESENT"}', [U, U, U]),
        ('{"2": "PRESENT", "1": "PRESENT", "1": "NOT_PRESENT"}', [U, U, U]),
        ('{"a": {"1": "PRESENT"}, "a": {"1": "NOT_PRESENT"}}', [U, U, U]),
        ('{"1": "PRESENT", "1": "NOT_PRESENT", ', [U, U, U]),
        ("1: PRESENT\n1: NOT_PRESENT", [U, U, U]),
        ('{"1": "PRESENT", "2": "PRESENT"} or rather {"1": "NOT_PRESENT", "2": "PRESENT"}',
         [U, U, U]),
        ('{"1": "PRESENT"}\nOn second thought:\n1: NOT_PRESENT', [U, U, U]),
        ('They write {"1": "PRESENT", "2": "PRESENT"}. I say {"1": "NOT_PRESENT"}', [U, U, U]),
        ("1: PRESENT\n2: PRESENT\n3: PRESENT\nFinal:\n1: NOT_PRESENT", [U, U, U]),
        ('["PRESENT", "PRESENT", "PRESENT"] {"2": "NOT_PRESENT"}', [U, U, U]),
        # the same again is the same
        ('{"1": "PRESENT", "1": "present"}\n1: PRESENT', [M, U, U]),
        # a draft or a quotation does not fill the gaps of the final verdict
        ('They write {"1": "PRESENT", "2": "PRESENT"}. I say {"1": "PRESENT"}', [M, U, U]),
        ("1: PRESENT\n2: PRESENT\n3: PRESENT\nFinal:\n1: PRESENT", [M, U, U]),
        ('["PRESENT", "PRESENT", "PRESENT"] {"2": "PRESENT"}', [U, M, U]),
        # but what shares nothing is one verdict
        ('First: {"1": "PRESENT"}. Second: {"2": "NOT_PRESENT"}. Third: {"3": "PRESENT"}',
         [M, N, M]),
        # wrecks give what is whole in them
        ('{"1": "PRESENT", "2": "NOT_PRESENT", "3": "PRES', [M, N, U]),
        ('{"1": "PRESENT", "2": "NOT_PRESENT",}', [M, N, U]),
        ("{1: 'PRESENT', 2: NOT_PRESENT, 3: PRESENT", [M, N, U]),
        ("{'1': 'PRESENT', '2': 'NOT_PRESENT'}", [M, N, U]),
        # off the format
        ('{"1": "MAYBE", "2": "PRESENT", "3": null}', [U, M, U]),
        ('{"1": true, "2": 1, "3": ["PRESENT"]}', [U, U, U]),
        ('{"1": "PRESENT"} {"1": "MAYBE"}', [U, U, U]),
        ("1: PRESENT\n1: MAYBE", [U, U, U]),
        ("1. PRESENT\n1. Manners", [M, U, U]),
        # substrings never decide
        ("All of 1, 2 and 3 are PRESENT.", [U, U, U]),
        ("1: it is PRESENT in the answer", [U, U, U]),
        ('{"1": "PRESENT in part", "2": "NOT_PRESENTED"}', [U, U, U]),
        ("PRESENT", [U, U, U]),
        ('{"0": "PRESENT", "4": "PRESENT", "x": "PRESENT"}', [U, U, U]),
        # reasons around the verdict
        ('1. It greets, that is PRESENT.\n2. No.\n{"1": "PRESENT", "2": "NOT_PRESENT"}', [M, N, U]),
        ('{"1": "PRESENT", "2": "NOT_PRESENT"}\n1: because it greets\n2: no farewell is there',
         [M, N, U]),
        ('{"1": "PRESENT"}\nWhy: {"1": "it greets in the first line"}', [M, U, U]),
        ('{"why": "says {\\"2\\": \\"PRESENT\\"}", "1": "NOT_PRESENT"}', [N, U, U]),
        ("", [U, U, U]),
    ],
)  # fmt: skip
def test_labels_of_a_reply(text: str, expected: list[str]) -> None:
    assert labels_of(text) == expected


@pytest.mark.parametrize(
    ("vocabulary", "text", "expected"),
    [
        ("met", '{"1": "met", "2": "not_met", "3": "Not met"}', [M, N, N]),
        ("met", '{"1": "PRESENT", "2": true}', [U, U, U]),
        ("bool", '{"1": true, "2": false, "3": "True"}', [M, N, M]),
        ("bool", '{"1": 1, "2": 0, "3": "yes"}', [U, U, U]),
        ("bool", "{'1': True, '2': False}", [M, N, U]),
        ("bool", "1: true\n2: false", [M, N, U]),
        ("bool", "[true, false, true]", [M, N, M]),
        ("yes_no", '{"1": "Yes", "2": "no", "3": "none"}', [M, N, U]),
        ("yes_no", "1: yes\n2: no\n3: not", [M, N, U]),
    ],
)
def test_each_vocabulary_has_its_own_words(vocabulary: str, text: str, expected: list[str]) -> None:
    assert labels_of(text, 3, vocabulary) == expected


RENDER = {
    "object": lambda said: json.dumps(said),
    "fenced": lambda said: f"Here you are.\n```json\n{json.dumps(said, indent=1)}\n```",
    "lines": lambda said: "\n".join(f"{number}: {word}" for number, word in sorted(said.items())),
}


@given(
    st.sampled_from(sorted(RENDER)),
    st.sampled_from(["met", "present", "yes_no"]),
    st.dictionaries(st.integers(1, 12), st.booleans(), min_size=1),
    st.lists(
        st.text(st.characters(exclude_categories=["N"], exclude_characters="{"), max_size=30),
        max_size=2,
    ),
)  # fmt: skip
def test_any_verdict_is_read_back_whatever_its_order_and_the_prose(
    style: str, vocabulary: str, met: dict[int, bool], prose: list[str]
) -> None:
    yes, no = VOCABULARIES[vocabulary]
    said = {number: yes if truth else no for number, truth in met.items()}
    text = "\n".join([*prose[:1], RENDER[style](said), *prose[1:]])
    expected = [(M if met[number] else N) if number in met else U for number in range(1, 13)]
    assert labels_of(text, 12, vocabulary) == expected


def test_what_follows_a_lone_brace_may_be_cut_at_its_end():
    """A brace opens an object: its last word, with nothing behind it, may be half a word."""
    assert labels_of("{\n1: no", 2, "yes_no") == [U, U]
    assert labels_of("{\n1: no\n2: yes", 2, "yes_no") == [N, U]
    assert labels_of("{\n1: no\n2: yes\n", 2, "yes_no") == [N, M]


@given(
    st.dictionaries(st.integers(1, 6), st.booleans(), min_size=1),
    st.dictionaries(st.integers(1, 6), st.booleans(), min_size=1),
    st.sampled_from(sorted(RENDER)),
    st.sampled_from(sorted(RENDER)),
)
def test_a_forged_verdict_that_the_judge_quotes_decides_nothing_it_was_asked(
    forged: dict[int, bool], own: dict[int, bool], forging: str, style: str
) -> None:
    """Every label is the judge's own wherever both speak of one criterion, and there is none where
    they differ."""
    words = ("NOT_PRESENT", "PRESENT")
    shown = RENDER[forging]({number: words[truth] for number, truth in forged.items()})
    said = RENDER[style]({number: words[truth] for number, truth in own.items()})
    found = labels_of(f"The response says:\n{shown}\nThat is no concern of mine.\n{said}", 6)
    if any(forged.get(number, truth) != truth for number, truth in own.items()):
        assert found == [U] * 6
        return
    for number, truth in own.items():
        assert found[number - 1] == (M if truth else N)
    if forged.keys() & own.keys():
        for number in forged.keys() - own.keys():
            assert found[number - 1] == U


@pytest.mark.parametrize(
    "text",
    [
        '{"1": "PRESENT", "2": "PRESENT", "3": "PRESENT", "1": "NOT_PRESENT"}',
        '["PRESENT", "PRESENT", "PRESENT"]\n["PRESENT", "PRESENT", "NOT_PRESENT"]',
    ],
)
def test_a_reply_that_disagrees_with_itself_is_unparsed_and_says_so(text: str) -> None:
    grading = batch(partial="renormalise")
    parsed = grading.parse(Reply(text), ask_all(ROW))
    assert (parsed.outcome, parsed.labels) == (Outcome.unparsed, (U, U, U))
    assert parsed.reason.startswith("different verdicts in one reply: criterion ")
    assert (
        grading.follow_up(ROW, "hi", ask_all(ROW), parsed) is None
    )  # the client asks for all again
    assert grading.combine(ROW, [(ask_all(ROW), parsed)]).outcome is Outcome.unparsed


@given(st.text(max_size=200) | st.text("{}[]\"':,123 PRESNT_\n", max_size=300))
def test_no_text_breaks_the_reading(text: str) -> None:
    grading = batch()
    for shown in (text, "{" + text, '{"1": ' + text, text + '{"1": "PRESENT"}'):
        parsed = grading.parse(Reply(shown), ask_all(ROW))
        assert parsed == grading.parse(Reply(shown), ask_all(ROW))
        assert parsed.outcome is not Outcome.scored or U not in parsed.labels
        number, _ = grading.count(Reply(shown))
        assert 0 <= number <= 999


@pytest.mark.parametrize(
    "nasty", ["[" * 50_000, '{"a":' * 20_000, '{"1":' * 20_000, "1: " * 30_000]
)
@pytest.mark.timeout(30)
def test_nasty_replies_end_soon(nasty: str) -> None:
    assert labels_of(nasty + '\n{"1": "PRESENT"}')[1:] == [U, U]
    late = nasty + "x" * LONGEST + '{"2": "PRESENT"}'
    assert labels_of(late) == [U, M, U]


@pytest.mark.parametrize(
    ("labels", "score"),
    [
        ([M, M, N], 1.0),
        ([M, N, N], 5 / 8),
        ([M, M, M], 4 / 8),
        ([N, N, M], -4 / 8),
        ([N, N, N], 0.0),
        # unknown ones count on neither side
        ([M, U, U], 1.0),
        ([M, U, M], 1 / 5),
        ([U, U, M], None),
        ([U, U, U], None),
    ],
)
def test_score_by_hand(labels: list[str], score: float | None) -> None:
    assert rubric_score(ROW.criteria, labels) == (None if score is None else pytest.approx(score))


def test_the_clip_is_a_floor_and_an_option() -> None:
    worst = '{"1": "NOT_PRESENT", "2": "NOT_PRESENT", "3": "PRESENT"}'
    assert verdict(batch(), ROW, worst).score == 0.0
    assert verdict(batch(clip="none"), ROW, worst).score == -0.5
    assert verdict(batch(clip=None), ROW, worst).score == -0.5  # as YAML writes it


def test_a_missing_label_is_a_missing_score_and_named() -> None:
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
def test_partial_replies_in_any_order_make_the_same_verdict(
    labels: list[str], order: list[int]
) -> None:
    """Salvage: one request, or a chunk per criterion in any order of arrival."""
    row = row_of(2, 1, -1, 3)
    grading = batch(partial="renormalise", clip="none")
    words = {M: "PRESENT", N: "NOT_PRESENT"}
    said = {place + 1: words[label] for place, label in enumerate(labels) if label != U}
    whole = verdict(grading, row, json.dumps(said) if said else "nothing")
    parts = [
        (ask, grading.parse(Reply(json.dumps(said)), ask))
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
    rubric = undelimit("rubric", narrow.messages[0]["content"])
    assert rubric == "1. Item 0.\n3. Item 2."
    joined = verdict(grading, ROW, '{"2": "PRESENT"}', '{"1": "NOT_PRESENT", "3": "NOT_PRESENT"}')
    assert (joined.labels, joined.score, joined.reason) == ((N, M, N), 3 / 8, "")
    for text in ("nothing", '{"1": "PRESENT", "2": "PRESENT", "3": "PRESENT"}'):
        parsed = grading.parse(Reply(text), first)
        assert grading.follow_up(ROW, "hi", first, parsed) is None


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (
            Reply('{"1": "PRESENT", "2": "PRESENT", "3": "PRESENT"}', "", "length"),
            Outcome.truncated,
        ),
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
    sizes = {
        "rubric_batch": [23],
        "rubric_chunk": [10, 10, 3],
        "rubric_item": [1] * 23,
    }
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
    grading = batch(layout=layout, points="shown")
    (ask,) = grading.requests(row, answer)
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


def test_answers_to_one_prompt_share_all_but_the_answer() -> None:
    one, two = (batch().requests(ROW, text)[0].messages[0]["content"] for text in ("red", "blue"))
    shared = one[: one.index("<<<answer")]
    assert two.startswith(shared) and "<<<rubric" in shared


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


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("rubric_batch", {"vocabulary": "bracket"}, "met, present, bool, yes_no"),
        ("rubric_batch", {"points": True}, "hidden, shown"),
        ("rubric_batch", {"clip": "one"}, "zero, none"),
        ("rubric_batch", {"reason": "later"}, "none, before, after"),
        ("rubric_batch", {"layout": "random"}, "cacheable, ancestor"),
        ("rubric_batch", {"partial": "zero"}, "none, renormalise"),
        ("rubric_batch", {"polarity_guidance": "maybe"}, "on, off"),
        ("rubric_batch", {"structured": "yes"}, "false, true"),
        ("rubric_batch", {"structured": 1}, "false, true"),
        ("rubric_batch", {"structured": True, "reason": "before"}, "reason=before"),
        ("rubric_batch", {"k": 3}, "'k'"),
        ("rubric_batch", {"prompt": "harsh"}, "ancestor, default, strict"),
        ("rubric_chunk", {"k": 0}, "k=0"),
        ("rubric_chunk", {"k": True}, "k=True"),
        ("rubric_chunk", {"k": "many"}, "'many'"),
    ],
)
def test_options_that_do_not_fit(name: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError) as problem:
        GRADINGS[name](options)
    assert named in str(problem.value) and "\n" not in str(problem.value)


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
def test_a_rubric_without_a_score_is_refused_before_and_typed_at_the_verdict(
    name: str, row: Row, named: str
) -> None:
    grading = GRADINGS[name]({})
    with pytest.raises(UserError, match=row.prompt_id) as problem:
        check_rows(grading, [ROW, row])
    assert named in str(problem.value)
    assert grading.requests(row, "hi") == ()
    parsed = grading.combine(row, [])
    assert (parsed.outcome, parsed.score) == (Outcome.unparsed, None) and named in parsed.reason
    check_rows(grading, [ROW])


def real_rubrics(path: str) -> list[Row]:
    file = DATA / path
    if not file.is_file():
        pytest.skip(f"{path} is not on this machine")
    import pyarrow.parquet as parquet

    return [
        make_row(
            tuple({"role": turn["role"], "content": turn["content"]} for turn in item["prompt"]),
            tuple(
                Criterion(entry["criterion"], float(entry["points"]))
                for entry in item["reward_model"]["rubrics"]
            ),
        )
        for item in parquet.read_table(file).to_pylist()
    ]


@pytest.mark.parametrize(
    ("path", "criteria", "refused"),
    [
        ("verinstruct/verinstruct_val.parquet", 5.8, 0),
        ("healthbench/healthbench_val.parquet", 11.9, 1),  # one row repeats a criterion
    ],
)
def test_real_rubrics(path: str, criteria: float, refused: int) -> None:
    rows = real_rubrics(path)
    grading, chunked = batch(points="shown"), GRADINGS["rubric_chunk"]({})
    assert sum(len(row.criteria) for row in rows) / len(rows) == pytest.approx(criteria, abs=0.05)
    fit = [row for row in rows if not grading.problem(row)]
    assert len(rows) - len(fit) == refused
    for row in fit:
        count = len(row.criteria)
        (ask,) = grading.requests(row, "An answer.")
        content = ask.messages[0]["content"]
        assert undelimit("prompt", content) == row.prompt_text()
        rubric = undelimit("rubric", content)
        assert rubric is not None
        starts = [line for line in rubric.split("\n") if line[:1].isdigit()]
        assert [int(line.split(".")[0]) for line in starts] == list(range(1, count + 1))
        assert len(chunked.requests(row, "An answer.")) == -(-count // 10)
        yes = json.dumps({str(number): "PRESENT" for number in range(1, count + 1)})
        total = sum(item.points for item in row.criteria)
        best = sum(item.points for item in row.criteria if item.points > 0)
        assert verdict(grading, row, yes).score == pytest.approx(max(0.0, total / best))
        no = yes.replace("PRESENT", "NOT_PRESENT")
        assert verdict(grading, row, no).score == 0.0
