"""Gradings that ask more than once of the same: in both orders, or in several words."""

import re

import numpy as np
import pytest

from judges.ask.session import Session
from judges.grading.comparing import Listwise
from judges.grading.likert import Likert
from study.config.bounds import IllegalValue
from study.config.compose import load_presets
from study.errors import UserError
from study.rows import make_row
from study.tasks import kind_of, oracle
from study.verdict import Outcome, Parsed, Reply

ROW = make_row(({"role": "user", "content": "Say hello."},))
ANSWERS = ["hello", "good day", "hi there", "hello"]


def scored(score: float) -> Parsed:
    return Parsed(Outcome.scored, score=score)


def test_an_answer_is_judged_by_each_prompt_and_scores_their_mean():
    grading = Likert({"ensemble": ["strict"]})
    first, second = grading.requests(ROW, "hello")
    assert first.messages == Likert().requests(ROW, "hello")[0].messages
    assert second.messages == Likert({"prompt": "strict"}).requests(ROW, "hello")[0].messages
    combined = grading.combine(ROW, [(first, scored(0.2)), (second, scored(0.9))])
    assert combined.score == pytest.approx(0.55)


def test_a_prompt_without_a_score_leaves_the_answer_without_one():
    grading = Likert({"ensemble": ["strict"]})
    first, second = grading.requests(ROW, "hello")
    refused = Parsed(Outcome.refused, reason="no")
    assert grading.combine(ROW, [(first, scored(0.2)), (second, refused)]) is refused


def test_an_ensemble_is_another_prompt_and_none_is_the_old_one():
    assert Likert({"ensemble": []}).prompt_sha == Likert().prompt_sha
    shas = {Likert({"ensemble": names}).prompt_sha for names in ([], ["strict"], ["strict"] * 2)}
    assert len(shas) == 3


def test_an_ensemble_that_cannot_be_had_is_a_user_error():
    with pytest.raises(IllegalValue, match=re.escape("ensemble=strict is not legal")):
        Likert({"ensemble": "strict"})
    message = r"options.ensemble='mild' is not a prompt.*options.ensemble=\[default\]"
    with pytest.raises(UserError, match=message):  # as a list: it would be refused without brackets
        Likert({"ensemble": ["mild"]})


@pytest.fixture(scope="module")
def spread() -> dict[bool, float]:
    """Whether there is an ensemble -> variance of a noisy judge's scores of wrong answers."""
    noisy = ["judge.simulated.noise_sd=0.1", "judge.simulated.leniency=0.5"]
    ensemble, variances = "judge.grading.options.ensemble=[strict]", {}
    for more in (False, True):
        judge, task = load_presets("sim-dose", overrides=[*noisy, *([ensemble] if more else [])])
        rows = kind_of(task).rows(task, "train")[:150]
        with Session(judge, None, oracle(task)) as session:
            votes = session.ask_many([(row, "no answer at all") for row in rows])
        scores = [vote.score for (vote,) in votes]
        variances[more] = float(np.var(np.array(scores, dtype=float)))
    return variances


def test_a_judge_errs_less_in_two_prompts_than_in_one(spread):
    """Its noise is drawn for each question: the mean of two has half the variance."""
    assert spread[False] == pytest.approx(0.01, rel=0.4)
    assert 0.3 < spread[True] / spread[False] < 0.75


def ranking(grading: Listwise, text: str, place: int) -> tuple:
    request = grading.group_requests(ROW, ANSWERS)[place]
    return request, grading.parse(Reply(text), request)


def test_both_orders_show_every_answer_once_and_turned_round():
    one, both = Listwise(), Listwise({"orders": "both"})
    (request,) = one.group_requests(ROW, ANSWERS)
    first, second = both.group_requests(ROW, ANSWERS)
    assert first == request and second.members == first.members[::-1]


def test_a_judge_of_places_alone_says_nothing_in_both_orders():
    grading = Listwise({"orders": "both"})
    parts = [ranking(grading, "[[A > B > C > D]]", place) for place in (0, 1)]
    combined = grading.group_combine(ROW, ANSWERS, parts)
    assert [each.score for each in combined] == pytest.approx([0.5] * 4)
    one = Listwise()
    alone = one.group_combine(ROW, ANSWERS, [ranking(one, "[[A > B > C > D]]", 0)])
    assert len({combined.score for combined in alone}) > 1


def test_an_order_without_a_ranking_leaves_the_group_without_scores():
    grading = Listwise({"orders": "both"})
    parts = [ranking(grading, "[[A > B > C > D]]", 0), ranking(grading, "I cannot say.", 1)]
    combined = grading.group_combine(ROW, ANSWERS, parts)
    assert [each.outcome for each in combined] == [Outcome.unparsed] * 4
