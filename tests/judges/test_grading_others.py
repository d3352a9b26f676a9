"""The binary gradings and those of a whole group: what is asked and what the replies are worth."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.grading import GRADINGS, base
from judges.grading.base import GroupGrading, check_rows
from judges.grading.comparing import Listwise, Pairwise, Ranking, kind, letters, shuffled
from judges.grading.delimiters import undelimit
from study.errors import UserError
from study.rows import Criterion, Row, make_row
from study.verdict import Outcome, Parsed, Reply, Request

TURN = ({"role": "user", "content": "Name {n} colors."},)
ROW = make_row(
    TURN, (Criterion("Three of them."), Criterion("No red.")), {"hidden": "xyz"}, reference="blue"
)
LOST = Parsed(Outcome.timeout, reason="no reply within 2 s")


@pytest.mark.parametrize("name", ["verif", "binary"])
@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("[[1]]", 1.0), ("[[0]]", 0.0), ("It fits. [[ 1 ]]", 1.0), ("[[1]]? No: [[0]]", None),
        ("[[0]], that is [[ 0 ]]", 0.0), ("[[7]] no, [[1]]", 1.0),
        ("<think>[[1]]</think>[[0]]", 0.0), ("[[7]]", None), ("[[1]] or [[7]]", None),
        ("[[1.0]]", None), ("[[10]]", None), ("[[True]]", None), ("[1]", None), ("1", None),
        ("yes", None), ("是", None),
    ],
)  # fmt: skip
def test_one_verdict_in_brackets_decides(name: str, text: str, score: float | None) -> None:
    parsed = GRADINGS[name]({}).parse(Reply(text))
    assert (parsed.score, parsed.outcome is Outcome.scored) == (score, score is not None)
    if name == "verif":
        assert parsed.labels == ({1.0: "met", 0.0: "not_met", None: "unknown"}[score],)
    assert bool(parsed.reason) == (score is None)


@pytest.mark.parametrize(
    ("name", "options"), [("verif", {}), ("verif", {"language": "zh"}), ("binary", {})]
)
@given(answer=st.text(max_size=40))
def test_what_is_asked_about_one_answer(name: str, options: dict[str, Any], answer: str) -> None:
    (ask,) = GRADINGS[name](options).requests(ROW, answer)
    content = ask.messages[0]["content"]
    assert undelimit("prompt", content) == "Name {n} colors."
    assert undelimit("answer", content) == answer
    assert "xyz" not in content and "[[1]]" in content and content.endswith(">>>")
    if name == "verif":
        assert undelimit("rubric", content) == "- Three of them.\n- No red."
        assert undelimit("reference", content) is None
        assert ("约束" in content.replace(answer, "")) == (options == {"language": "zh"})
    else:
        assert undelimit("reference", content) == "blue" and undelimit("rubric", content) is None


def test_a_forced_verdict_is_an_option() -> None:
    for name in ("verif", "binary"):
        assert "structured_outputs" not in GRADINGS[name]({}).body()
        wanted = GRADINGS[name]({"structured": True}).body()["structured_outputs"]
        assert wanted == {"choice": ["[[1]]", "[[0]]"]}
    likert = GRADINGS["likert"]({"structured": True})
    assert GRADINGS["likert"]({}).body() == {}
    numbers = likert.body()["structured_outputs"]["choice"]
    assert [likert.parse(Reply(text=number)).score for number in numbers] == [
        step / 10 for step in range(11)
    ]
    wanted = Pairwise({"structured": True}).body(Request(()))["structured_outputs"]
    assert wanted == {"choice": ["[[A]]", "[[B]]", "[[tie]]"]}


@pytest.mark.parametrize(
    ("name", "row", "named"),
    [
        ("verif", make_row(TURN), "no criteria"),
        ("verif", make_row(TURN, (Criterion("A."), Criterion("A."))), "repeat"),
        ("verif", make_row(TURN, (Criterion("A."), Criterion("B.", -1))), "negative"),
        ("binary", make_row(TURN), "reference"),
        ("binary", make_row(TURN, reference=" "), "reference"),
    ],
)
def test_rows_that_cannot_be_graded_so(name: str, row: Row, named: str) -> None:
    grading = GRADINGS[name]({})
    with pytest.raises(UserError, match=row.prompt_id) as problem:
        check_rows(grading, [row])
    assert named in str(problem.value)
    assert grading.requests(row, "x") == ()
    parsed = grading.combine(row, [])
    assert parsed.outcome is Outcome.unparsed and named in parsed.reason


def test_every_grading_takes_a_row_that_has_it_all() -> None:
    for name, cls in GRADINGS.items():
        check_rows(cls({}), [ROW], group_size=2)
        assert isinstance(cls({}), GroupGrading) == (name in ("pairwise", "listwise"))
        if isinstance(cls({}), GroupGrading):
            with pytest.raises(UserError, match=r"needs a group; trainer\.group_size is 1"):
                check_rows(cls({}), [ROW], group_size=1)


def test_letters_are_as_many_as_members_and_the_shuffle_has_no_favourite() -> None:
    assert [letters(place) for place in (0, 1, 25, 26, 27, 51, 52, 701, 702)] == [
        "A", "B", "Z", "AA", "AB", "AZ", "BA", "ZZ", "AAA"
    ]  # fmt: skip
    assert len({kind(place) for place in range(800)}) == 800
    # Over 600 prompts each of 3 answers comes first about 200 times (sd 11.5).
    firsts = [shuffled(f"prompt {number}", ["a", "b", "c"])[0] for number in range(600)]
    assert all(abs(firsts.count(member) - 200) < 4 * 11.5 for member in range(3))


# --- pairwise


def pairs(grading: Pairwise, answers: list[str], replies: dict[str, str]) -> list[Parsed]:
    """Combine replies given per shown pair, "ab" for the answers a and b in this order."""
    parts = []
    for ask in grading.group_requests(ROW, answers):
        reply = replies.get("".join(answers[member] for member in ask.members))
        parsed = LOST if reply is None else grading.parse(Reply(reply), ask)
        parts.append((ask, parsed))
    return grading.group_combine(ROW, answers, parts)


@pytest.mark.parametrize(
    ("against", "count", "expected"),
    [
        ("all", 2, [(0, 1)]),
        ("all", 4, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        ("next", 2, [(0, 1)]),
        ("next", 3, [(0, 1), (0, 2), (1, 2)]),
        ("next", 4, [(0, 1), (0, 3), (1, 2), (2, 3)]),
    ],
)
def test_who_meets_whom(against: str, count: int, expected: list[tuple[int, int]]) -> None:
    grading = Pairwise({"against": against})
    assert grading.pairs(count) == expected
    answers = [f"text {place}" for place in range(count)]
    asks = grading.group_requests(ROW, answers)
    both_orders = [order for i, j in expected for order in ((i, j), (j, i))]
    assert [ask.members for ask in asks] == both_orders
    for ask in asks:
        content = ask.messages[0]["content"]
        assert undelimit("prompt", content) == "Name {n} colors." and "xyz" not in content
        shown = [undelimit(kind(place), content) for place in (0, 1)]
        assert shown == [answers[member] for member in ask.members]
        assert "(1 points) No red." in content


def test_win_rates_by_hand_with_ties_and_equal_answers() -> None:
    won = {"ab": "[[A]]", "ba": "[[B]]"}  # a beats b in both orders
    tied = {"ac": "[[tie]]", "ca": "So: [[TIE]]"}
    turned = {"bc": "[[A]]", "cb": "[[A]]"}  # whoever is first wins
    first, second, third = pairs(Pairwise({}), ["a", "b", "c"], won | tied | turned)
    assert [first.score, second.score, third.score] == [0.75, 0.25, 0.5]
    assert first.reason == "" and first.outcome is Outcome.scored
    assert "1 of 2 pairs turned" in second.reason and "1 of 2 pairs turned" in third.reason
    grades = pairs(Pairwise({}), ["a", "b"], {"ab": "[[A]]", "ba": "[[tie]]"})
    assert [parsed.score for parsed in grades] == [0.5, 0.5]
    assert all("1 of 1 pairs turned" in parsed.reason for parsed in grades)
    grading = Pairwise({})
    assert grading.group_requests(ROW, ["a", "a"]) == ()
    assert [parsed.score for parsed in grading.group_combine(ROW, ["a", "a"], [])] == [0.5, 0.5]
    assert len(grading.group_requests(ROW, ["a", "b", "a"])) == 4


def test_a_pair_without_both_verdicts_is_no_comparison() -> None:
    replies = {"ab": "[[A]]", "ba": "[[B]]", "ac": "[[A]]", "bc": "[[A]]", "cb": "[[huh]]"}
    first, second, third = pairs(Pairwise({}), ["a", "b", "c"], replies)
    assert (first.score, second.score) == (1.0, 0.0)
    assert "1 of 2 pairs have no verdict: no reply within 2 s" in first.reason
    assert (third.score, third.outcome) == (None, Outcome.timeout)
    nothing = pairs(Pairwise({}), ["a", "b"], {"ab": "both", "ba": "[[A]]"})
    assert {parsed.outcome for parsed in nothing} == {Outcome.unparsed}


@given(st.lists(st.sampled_from(["[[A]]", "[[B]]", "[[tie]]"]), min_size=12, max_size=12))
def test_win_rates_of_a_group_average_to_a_half(replies: list[str]) -> None:
    answers = list("abcd")
    orders = ["".join(pair) for pair in itertools.permutations(answers, 2)]
    grades = pairs(Pairwise({}), answers, dict(zip(orders, replies, strict=True)))
    scores = [parsed.score for parsed in grades]
    assert None not in scores
    assert sum(score or 0.0 for score in scores) / 4 == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["A", "[A]", "[[C]]", "[[A]] rather [[AB]]", "", "A is better"])
def test_a_winner_is_never_guessed(text: str) -> None:
    parsed = Pairwise({}).parse(Reply(text), Request((), members=(0, 1)))
    assert parsed.score is None and parsed.reason


# --- listwise


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("[[B > A > C]]", (1, 0, 2)), ("Best is b. [[ b>a > c ]]", (1, 0, 2)),
        ("[[A > B > C]] no, [[C > B > A]]", None), ("[[C > B]] no, [[C > B > A]]", (2, 1, 0)),
        ("[[A > B]]", None), ("[[A > B > B]]", None), ("[[A > B > C > D]]", None),
        ("[[A > B > C > A]]", None), ("[[A = B > C]]", None), ("[[A, B, C]]", None),
        ("A > B > C", None), ("[[best > ... > worst]]", None), ("", None),
    ],
)  # fmt: skip
def test_only_a_complete_ranking_counts(text: str, order: tuple[int, ...] | None) -> None:
    parsed = Listwise({}).parse(Reply(text), Request((), members=(0, 1, 2)))
    assert (parsed.order if isinstance(parsed, Ranking) else None) == order
    assert (parsed.outcome is Outcome.scored) == (order is not None)


@given(st.permutations(range(5)))
def test_ranks_become_scores(order: list[int]) -> None:
    grading, answers = Listwise({}), [f"text {place}" for place in range(5)]
    (ask,) = grading.group_requests(ROW, answers)
    text = " > ".join(letters(ask.members.index(member)) for member in order)
    parts = [(ask, grading.parse(Reply(f"[[{text}]]"), ask))]
    grades = grading.group_combine(ROW, answers, parts)
    # rank 1 of 5 scores (5 - 1) / 4 = 1, rank 2 scores 0.75, ...
    assert [grades[member].score for member in order] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_equal_answers_share_their_ranks_and_a_lost_ranking_is_lost_for_all() -> None:
    grading, answers = Listwise({}), ["x", "y", "x"]
    ask = Request((), members=(0, 1, 2))
    parts = [(ask, grading.parse(Reply("[[A > B > C]]"), ask))]
    assert [p.score for p in grading.group_combine(ROW, answers, parts)] == [0.5, 0.5, 0.5]
    grades = Listwise({}).group_combine(ROW, ["a", "b"], [(Request((), members=(1, 0)), LOST)])
    assert grades == [LOST, LOST]


@given(st.lists(st.text(max_size=8), min_size=2, max_size=6), st.randoms())
def test_the_shown_order_follows_from_the_texts_alone(answers: list[str], draw: Any) -> None:
    order = shuffled("prompt", answers)
    assert sorted(order) == list(range(len(answers)))
    mixed = answers[:]
    draw.shuffle(mixed)
    in_order = [answers[member] for member in order]
    assert [mixed[member] for member in shuffled("prompt", mixed)] == in_order
    (ask,) = Listwise({}).group_requests(ROW, answers)
    content = ask.messages[0]["content"]
    shown = [undelimit(kind(place), content) for place in range(len(answers))]
    assert shown == [answers[member] for member in ask.members]


@pytest.mark.parametrize(
    ("name", "kinds"), [("verif", ["prompt"]), ("likert", ["answer", "rubric", "prompt"])]
)
def test_a_rubric_is_written_only_where_it_is_shown(name, kinds, monkeypatch) -> None:
    written = []

    def delimit(kind: str, text: str) -> str:
        written.append(kind)
        return text

    monkeypatch.setattr(base, "delimit", delimit)
    (request,) = GRADINGS[name]({}).requests(ROW, "green")
    assert "Three of them." in request.messages[0]["content"]
    assert written == kinds
