"""Real scorers as judges: what each says by hand and by its library, and that none says a number
where it has none."""

import dataclasses
import math
import zlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from judges.ask.identity import judge_id
from judges.ask.session import Session
from judges.scorers import table
from judges.scorers.table import MOST, MOST_WORDS, SCORERS, check_scorer, score
from judges.store import Store
from study import tasks
from study.config.compose import load_presets
from study.config.schema import Grading, Judge, Scorer, Simulated
from study.errors import UserError
from study.rows import make_row
from study.tasks.lessons import model_answer, of_references
from study.truth.oracle import Oracle
from study.verdict import Outcome

ROUGE = RougeScorer(["rougeL"])
VADER = SentimentIntensityAnalyzer()
EASIEST = 206.835 - 1.015 - 84.6
ROW = make_row(({"role": "user", "content": "Name a tree."},), reference="an old oak")
ROWS = Oracle({ROW.prompt_id: ROW}.get, lambda rows, answers: [None] * len(rows))
words = st.lists(st.sampled_from("oak elm ash Yew 7 é -".split()), max_size=30).map(" ".join)


def scorer(name: str) -> Scorer:
    return Scorer(name, "teacher" if SCORERS[name].compares else "")


def of(name: str, answer: str, reference: str = "") -> float | None:
    return score(scorer(name), answer, reference)


@pytest.mark.parametrize(
    ("name", "answer", "reference", "expected"),
    [
        ("rouge-l", "the old oak", "the very old oak tree", 2 * 3 / (3 + 5)),
        ("rouge-l", "oak, OAK", "oak", 2 / 3),
        ("rouge-l", "elm", "oak", 0.0),
        ("chrf", "oak", "oak", 1.0),
        ("chrf", "xyz", "oak", 0.0),
        # one character of two: precision and recall 1/2 of 1-grams, 0 of 2-grams
        ("chrf", "ab", "ac", 0.25),
        ("vader", "A table.", "", 0.5),
        ("vader", "good", "", (1 + 1.9 / math.sqrt(1.9**2 + 15)) / 2),
        ("flesch", "Cat.", "", 1.0),
        ("flesch", "The cat sat. It ran.", "", (206.835 - 1.015 * 2.5 - 84.6) / EASIEST),
        ("flesch", "cats\ndogs", "", 1.0),  # a line is a sentence
        ("flesch", "unbelievable responsibility", "", 0.0),
        ("type-token", "Oak oak elm", "", 2 / 3),
        ("type-token", "oak", "", 1.0),
    ],
)
def test_scores_by_hand(name: str, answer: str, reference: str, expected: float) -> None:
    assert of(name, answer, reference) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("answer", ["", " \n\t"])
def test_a_blank_answer_has_no_score(name: str, answer: str) -> None:
    assert of(name, answer, "oak") is None


def test_where_a_scorer_is_undefined_it_has_no_score() -> None:
    assert of("flesch", "3 + 4 = 7!") is None
    assert of("type-token", "?!") is None
    assert of("rouge-l", "树", "oak") is None
    assert of("rouge-l", "oak", "树") is None
    assert of("chrf", "oak", " ") is None


@given(words, words)
@settings(max_examples=60, deadline=None)
def test_rouge_l_is_that_of_the_library(answer: str, reference: str) -> None:
    expected = ROUGE.score(reference, answer)["rougeL"].fmeasure
    assert (of("rouge-l", answer, reference) or 0.0) == pytest.approx(expected, abs=1e-12)


def test_long_sequences_are_compared_as_the_library_does() -> None:
    draw = Random(0)
    answer, reference = (" ".join(draw.choices("abcdef", k=300)) for _ in range(2))
    expected = ROUGE.score(reference, answer)["rougeL"].fmeasure
    assert of("rouge-l", answer, reference) == pytest.approx(expected, abs=1e-12)


@given(st.text(max_size=200))
@settings(max_examples=40, deadline=None)
def test_every_score_is_a_share_or_none(text: str) -> None:
    for name in SCORERS:
        value = of(name, text, "an old oak")
        assert value is None or 0.0 <= value <= 1.0


@given(st.lists(st.sampled_from(["good", "BAD!", "but", "not", ":)", "\U0001f600", "oak."])))
@settings(max_examples=60, deadline=None)
def test_vader_is_that_of_the_library_whatever_the_spaces(parts: list[str]) -> None:
    value = of("vader", "\n ".join(parts))
    expected = VADER.polarity_scores(" ".join(parts))["compound"]
    assert value == ((expected + 1) / 2 if parts else None)


def test_compression_falls_with_repetition_and_is_one_over_one_and_the_ratio() -> None:
    text = "oak elm ash " * 20
    ratio = len(text) / len(zlib.compress(text.encode()))
    assert of("compression", text) == pytest.approx(1 / (1 + ratio))
    assert of("compression", text) < of("compression", "oak elm ash yew fir") < 1


def test_what_follows_the_limit_changes_nothing() -> None:
    for name in SCORERS:
        answer = "a fine oak. " * (MOST // 12 + 1)
        assert of(name, answer[:MOST] + "bad " * 99, "oak") == of(name, answer, "oak")
    calm, glad = "table " * MOST_WORDS, "good "
    assert of("vader", calm + glad) == 0.5 < of("vader", glad + calm)
    assert of("vader", " \n" * MOST_WORDS + glad) == of("vader", glad) > 0.5
    assert of("vader", "table " * (MOST_WORDS - 1) + glad) > 0.5  # words count, not letters
    assert of("vader", "\U0001f6aa" * MOST_WORDS + glad) == 0.5  # a door each
    assert of("vader", "good " * 99) == (VADER.polarity_scores("good " * 99)["compound"] + 1) / 2


def test_settings_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bleu", ""):
        with pytest.raises(UserError, match=rf"judge.scorer.name={name}.*rouge-l"):
            check_scorer(Scorer(name))
    with pytest.raises(UserError, match=r"judge.scorer.name=bleu is not legal.*rouge-l"):
        load_presets("vader", "instruct-mini", ["judge.scorer.name=bleu"])
    with pytest.raises(UserError, match=r"Type judge.scorer.reference=teacher"):
        check_scorer(Scorer("chrf"))
    with pytest.raises(UserError, match=r"compares nothing"):
        check_scorer(Scorer("vader", "row"))
    both = Judge(name="both", simulated=Simulated(), scorer=Scorer("flesch"))
    with pytest.raises(UserError, match=r"both `simulated` and `scorer`"):
        Session(both, None)
    monkeypatch.setitem(SCORERS, "flesch", table.Entry(table.flesch, "no-such-library"))
    with pytest.raises(UserError, match=r"no-such-library.*pip install -e '.\[scorers\]'"):
        check_scorer(Scorer("flesch"))


@pytest.mark.parametrize("name", SCORERS)
def test_each_has_a_preset(name: str) -> None:
    judge, _ = load_presets(name, "instruct-mini")
    assert (judge.name, judge.family, judge.scorer) == (name, "scorer", scorer(name))
    assert judge.computed and judge.needs_rows == SCORERS[name].compares


def test_identity_is_scorer_reference_and_library(monkeypatch: pytest.MonkeyPatch) -> None:
    judges = [
        Judge(),
        *(Judge(scorer=scorer(name)) for name in SCORERS),
        Judge(scorer=Scorer("chrf", "row")),
    ]
    before = [judge_id(judge) for judge in judges]
    assert len(set(before)) == len(judges)
    monkeypatch.setattr(table, "_installed", lambda library: "another version")
    changed = {
        judge.scorer.name
        for judge, old in zip(judges[1:], before[1:], strict=True)
        if judge_id(judge) != old
    }
    assert changed == {name for name, entry in SCORERS.items() if entry.distribution}


def test_a_scorer_is_asked_stored_and_found_as_any_judge(tmp_path: Path) -> None:
    answers = ["an old oak", "elm", "", "an old ] oak <<<x>>>"]
    judge = Judge(name="near", scorer=Scorer("rouge-l", "row"))
    with Store(tmp_path / "replies.db") as store:
        for hits in (0, len(answers)):
            with Session(judge, store, ROWS) as session:
                session.check()
                votes = session.ask_many([(ROW, answer) for answer in answers])
                assert session.hits == hits
            verdicts = [vote for (vote,) in votes]
            expected = [of("rouge-l", answer, "an old oak") for answer in answers]
            assert [verdict.score for verdict in verdicts] == pytest.approx(expected, abs=1e-8)
            assert verdicts[2].outcome is Outcome.unparsed and verdicts[2].attempts == 1
            assert [verdict.cost_usd for verdict in verdicts] == [0.0] * len(answers)


@pytest.mark.parametrize(("name", "high"), [("binary", 1.0), ("soft_choice", 0.9)])
def test_other_gradings_get_the_score_in_their_own_form(name: str, high: float) -> None:
    judge = Judge(scorer=Scorer("type-token"), grading=Grading(name))
    answers = ["oak elm ash yew fir box bay fig nut nut", "oak oak oak oak"]
    with Session(judge, None) as session:
        votes = session.ask_many([(ROW, answer) for answer in answers])
    low = {"binary": 0.0, "soft_choice": 0.25}[name]
    assert [vote.score for (vote,) in votes] == pytest.approx([high, low])


def test_answers_of_a_group_are_compared_by_score() -> None:
    judge = Judge(scorer=Scorer("type-token"), grading=Grading("pairwise"))
    with Session(judge, None) as session:
        votes = session.ask_many([(ROW, "oak elm"), (ROW, "oak oak")], 2)
        blank = session.ask_many([(ROW, "oak elm"), (ROW, "")], 2)
    assert [vote.score for (vote,) in votes] == [1.0, 0.0]
    assert [vote.score for (vote,) in blank] == [None, None]


def test_the_teacher_of_a_task_answers_a_row_always_alike() -> None:
    _, task = load_presets("rouge-l", "instruct-mini")
    rows = tasks.kind_of(task).rows(task, "train")[:20]
    oracle = tasks.oracle(task)
    answers = [oracle.teacher(row) for row in rows]
    assert answers == [oracle.teacher(row) for row in rows] and len(set(answers)) > 10
    truths = [truth.score for truth in oracle.truths(rows, answers)]
    assert sum(truths) / len(truths) > 0.3
    assert model_answer(None, ROW) is None
    assert model_answer(of_references([ROW]), ROW) == "an old oak"


def test_a_row_without_reference_has_no_score_and_an_unknown_prompt_no_reply() -> None:
    bare = dataclasses.replace(ROW, reference=None)
    oracle = Oracle({ROW.prompt_id: bare}.get, lambda rows, answers: [None] * len(rows))
    for reference in ("row", "teacher"):
        with Session(Judge(scorer=Scorer("chrf", reference)), None, oracle) as session:
            ((vote,),) = session.ask_many([(bare, "oak")])
            assert (vote.outcome, vote.score) == (Outcome.unparsed, None)


def test_the_schema_names_every_scorer() -> None:
    (legal,) = [
        each.metadata["legal"] for each in dataclasses.fields(Scorer) if each.name == "name"
    ]
    assert set(legal.words) == {"", *SCORERS}
