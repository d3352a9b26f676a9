"""A verdict of several requests: what is asked, stored, asked again, and what it adds up to."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from experiments.trainer.step_metrics import judge_metrics
from judges.ask.asker import request_keys
from judges.ask.replies import Store, content_key
from judges.ask.session import Session
from judges.endpoint.dialects import REMINDER, judge_body
from judges.grading import GRADINGS
from judges.grading.delimiters import undelimit
from study.config.schema import Endpoint, Grading, Judge, Price, Sampling
from study.errors import UserError
from study.rows import Criterion, Row, make_row
from study.verdict import Outcome
from tests.judges.sessions import Endpointed, ask_group, ask_once, text_of

TURN = ({"role": "user", "content": "Say hello."},)


def row_of(count: int) -> Row:
    return make_row(TURN, tuple(Criterion(f"Item {place}.") for place in range(1, count + 1)))


ROW = row_of(5)
HI = (ROW, "hi")


def numbers_of(body: dict[str, Any]) -> list[int]:
    """The criteria that a request asks about."""
    rubric = undelimit("rubric", text_of(body)) or ""
    return [int(line.split(".")[0]) for line in rubric.splitlines() if line[0].isdigit()]


def numbers(app: Endpointed) -> list[list[int]]:
    """The criteria that each request has asked about."""
    return [numbers_of(body) for body in app.bodies]


def labels(numbers: list[int], met: bool = True) -> str:
    return json.dumps({str(number): "met" if met else "not_met" for number in numbers})


def same_label(body: dict[str, Any], met: bool = True) -> str:
    """The same label for all that a request asks about."""
    return labels(numbers_of(body), met)


@pytest.fixture
def app(app: Endpointed) -> Endpointed:
    app.say = same_label
    return app


def scripted_judge(name: str, votes: int = 1, **options: Any) -> Judge:
    return Judge(
        name="real",
        endpoint=Endpoint(
            url="asgi://scripted", model="m", deadline_s=5.0, attempts=2, backoff_s=0.01
        ),
        grading=Grading(name, options),
        sampling=Sampling(votes=votes),
        price=Price(input=1.0, output=10.0),
    )


COST = (100 * 1.0 + 10 * 10.0) / 1e6
"""Of one request."""


@pytest.mark.parametrize(
    ("name", "options", "pieces"),
    [
        ("rubric_batch", {}, [[1, 2, 3, 4, 5]]),
        ("rubric_chunk", {"k": 2}, [[1, 2], [3, 4], [5]]),
        ("rubric_item", {}, [[1], [2], [3], [4], [5]]),
    ],
)
def test_one_verdict_of_several_requests_adds_up(name, options, pieces, app, store) -> None:
    app.say = lambda body: same_label(body, met=numbers_of(body) != [5])
    verdict, calls = ask_once(scripted_judge(name, **options), store, HI)
    assert calls == len(pieces)
    count = len(pieces)
    assert sorted(numbers(app)) == pieces
    assert verdict.outcome is Outcome.scored
    assert verdict.score == (1.0 if count == 1 else 0.8)
    assert verdict.labels == ("met",) * 4 + (("met",) if count == 1 else ("not_met",))
    assert (verdict.attempts, verdict.tokens_in, verdict.tokens_out) == (
        count, 100 * count, 10 * count
    )  # fmt: skip
    assert verdict.cost_usd == pytest.approx(COST * count)
    assert verdict.text.count("{") == count and verdict.finish_reason == "stop"
    assert not verdict.from_cache and store.count() == count
    if count == 1:
        assert store.get(verdict.key) is not None
    with Session(scripted_judge(name, **options), store) as session:
        ((again,),) = session.ask_many([(ROW, "hi")])
        assert (session.calls, session.hits) == (0, count)
    assert again.from_cache and again.cost_usd == 0.0
    assert (again.key, again.labels, again.score) == (verdict.key, verdict.labels, verdict.score)


def test_the_key_of_a_verdict_is_the_hash_of_its_requests_keys(app, store) -> None:
    with Session(scripted_judge("rubric_chunk", k=3), store) as session:
        ((first,),) = session.ask_many([(ROW, "hi")])
        ((other,),) = session.ask_many([(ROW, "ho")])
    judge, key = session.judge, request_keys(session.judge)
    grading = GRADINGS["rubric_chunk"]({"k": 3})
    keys = [
        key(judge_body(judge, grading.body(request), request.messages, 0), 0)
        for request in grading.requests(ROW, "hi")
    ]
    assert len(keys) == 2
    assert first.key == content_key(keys) != other.key
    assert all(store.get(key) is not None for key in keys)


def test_only_missing_criteria_are_asked_again_and_once(app: Endpointed, store: Store) -> None:
    app.say = lambda body: (
        labels([2, 4]) if len(numbers_of(body)) == 5 else same_label(body, met=False)
    )
    verdict, calls = ask_once(scripted_judge("rubric_batch"), store, HI)
    assert calls == 2
    assert numbers(app) == [[1, 2, 3, 4, 5], [1, 3, 5]]
    assert not any(REMINDER in content for content in app.texts)
    assert verdict.labels == ("not_met", "met", "not_met", "met", "not_met")
    assert (verdict.score, verdict.attempts, verdict.reason) == (0.4, 2, "")
    assert verdict.cost_usd == pytest.approx(2 * COST) and verdict.tokens_in == 200
    assert store.count() == 2
    again, calls = ask_once(scripted_judge("rubric_batch"), store, HI)
    assert calls == 0 and again.score == 0.4 and again.from_cache


def test_a_follow_up_is_followed_by_none(app: Endpointed) -> None:
    app.say = lambda body: labels(numbers_of(body)[:1])
    verdict, _ = ask_once(scripted_judge("rubric_batch"), item=HI)
    assert numbers(app) == [[1, 2, 3, 4, 5], [2, 3, 4, 5]]
    assert (verdict.outcome, verdict.score) == (Outcome.unparsed, None)
    assert verdict.labels == ("met", "met", "unknown", "unknown", "unknown")
    assert "criteria 3, 4, 5" in verdict.reason


def test_a_reply_without_any_label_is_the_clients_to_repeat(app: Endpointed) -> None:
    app.say = lambda body: same_label(body) if REMINDER in text_of(body) else "Hm."
    verdict, _ = ask_once(scripted_judge("rubric_batch"), item=HI)
    assert numbers(app) == [[1, 2, 3, 4, 5]] * 2
    assert (verdict.score, verdict.attempts) == (1.0, 2)


def test_a_reply_that_says_two_things_is_asked_again_once_and_counted(app: Endpointed) -> None:
    """One judge is cured by the reminder, the other quotes what it grades again."""
    quoting = "[[70]] because it repeats [[100]]"
    app.say = lambda body: (
        "[[70]]" if REMINDER in text_of(body) and "mend" in text_of(body) else quoting
    )
    with Session(scripted_judge("likert"), None) as session:
        ((cured,), (lost,)) = session.ask_many([(ROW, "mend"), (ROW, "quote")])
        assert session.calls == 4
    assert (cured.score, cured.reason) == (0.7, "asked again with a format reminder")
    assert (lost.outcome, lost.score) == (Outcome.unparsed, None)
    assert lost.reason.startswith("different verdicts in one reply: [[70]] and [[100]]")
    metrics = judge_metrics([cured, lost])
    assert metrics["judge/different_verdicts_frac"] == 0.5
    assert metrics["judge/unscored/unparsed"] == 0.5


def test_a_chunk_that_fails_costs_its_criteria_only(app: Endpointed, store: Store) -> None:
    app.say = lambda body: 500 if 3 in numbers_of(body) else same_label(body)
    verdict, _ = ask_once(scripted_judge("rubric_chunk", k=2), store, HI)
    assert (verdict.outcome, verdict.score) == (Outcome.transport, None)
    assert verdict.labels == ("met", "met", "unknown", "unknown", "met")
    assert "criteria 3, 4" in verdict.reason and "HTTP 500" in verdict.reason
    assert verdict.attempts == 1 + 2 + 1 and verdict.cost_usd == pytest.approx(2 * COST)
    assert store.count() == 2
    app.bodies.clear()
    app.say = same_label
    again, _ = ask_once(scripted_judge("rubric_chunk", k=2), store, HI)
    assert numbers(app) == [[3, 4]] and again.score == 1.0 and not again.from_cache


def test_a_lost_chunk_can_be_renormalised_away(app: Endpointed) -> None:
    app.say = lambda body: 500 if 3 in numbers_of(body) else same_label(body, 1 in numbers_of(body))
    verdict, _ = ask_once(scripted_judge("rubric_chunk", k=2, partial="renormalise"), item=HI)
    assert verdict.score == pytest.approx(2 / 3) and "renormalised" in verdict.reason


def test_truncation_is_an_outcome_and_gets_more_room_once(app: Endpointed) -> None:
    app.say = lambda body: (same_label(body), "length")
    verdict, _ = ask_once(scripted_judge("rubric_batch"), item=HI)
    assert (verdict.outcome, verdict.labels) == (Outcome.truncated, ("unknown",) * 5)
    assert verdict.finish_reason == "length" and verdict.attempts == 2
    first, second = (body["max_tokens"] for body in app.bodies)
    assert first > Sampling().max_tokens and second == 2 * first


def test_votes_and_items_keep_their_order(app: Endpointed) -> None:
    app.say = lambda body: same_label(body, met="yes" in text_of(body))
    with Session(scripted_judge("rubric_chunk", votes=3, k=2), None) as session:
        verdicts = session.ask_many([(ROW, "yes"), (ROW, "no"), (row_of(1), "yes")])
        assert session.calls == 3 * (3 + 3 + 1)
    assert [[verdict.score for verdict in draws] for draws in verdicts] == [
        [1.0] * 3, [0.0] * 3, [1.0] * 3
    ]  # fmt: skip
    assert [verdict.sample_index for verdict in verdicts[1]] == [0, 1, 2]
    assert len({verdict.key for draws in verdicts for verdict in draws}) == 9


def test_a_row_that_cannot_be_scored_is_not_asked_about(app: Endpointed) -> None:
    bad = make_row(TURN, (Criterion("Is rude.", -1.0),))
    with Session(scripted_judge("rubric_batch"), None) as session:
        (bad_draws, good_draws) = session.ask_many([(bad, "hi"), (ROW, "hi")])
        assert session.calls == 1
    assert bad_draws[0].outcome is Outcome.unparsed and "positive points" in bad_draws[0].reason
    assert (bad_draws[0].attempts, bad_draws[0].cost_usd) == (0, 0.0)
    assert good_draws[0].score == 1.0


# --- groups


def prefers(best: str) -> Callable[[dict[str, Any]], str]:
    """Whoever is ``best`` wins; among the others the first shown does."""

    def say(body: dict[str, Any]) -> str:
        first, second = (undelimit(name, text_of(body)) for name in ("answera", "answerb"))
        return "[[B]]" if second == best and first != best else "[[A]]"

    return say


def test_a_group_shares_what_its_requests_cost(app: Endpointed, store: Store) -> None:
    app.say = prefers("b")
    answers = ["a", "b", "c"]
    with Session(scripted_judge("pairwise"), store) as session:
        verdicts = ask_group(session, ROW, answers)
        assert session.calls == 6
    assert [verdict.score for verdict in verdicts] == [0.25, 1.0, 0.25]
    assert "1 of 2 pairs turned" in verdicts[0].reason and verdicts[1].reason == ""
    assert sum(verdict.attempts for verdict in verdicts) == 6
    assert sum(verdict.tokens_in or 0 for verdict in verdicts) == 600
    assert sum(verdict.tokens_out or 0 for verdict in verdicts) == 60
    assert sum(verdict.cost_usd or 0.0 for verdict in verdicts) == pytest.approx(6 * COST)
    assert {verdict.attempts for verdict in verdicts} == {2}
    assert len({verdict.key for verdict in verdicts}) == 3
    with Session(scripted_judge("pairwise"), store) as session:
        again = ask_group(session, ROW, answers)
        # a fourth answer meets the three that are known
        more = ask_group(session, ROW, [*answers, "d"])
        assert session.calls == 6
    assert all(verdict.from_cache and verdict.cost_usd == 0.0 for verdict in again)
    assert [verdict.score for verdict in again] == [0.25, 1.0, 0.25]
    assert sum(verdict.cost_usd or 0.0 for verdict in more) == pytest.approx(6 * COST)


def test_one_ranking_is_shared_by_all(app: Endpointed) -> None:
    app.say = lambda body: "[[B > A > C]]"
    with Session(scripted_judge("listwise"), None) as session:
        verdicts = ask_group(session, ROW, ["x", "y", "z"])
        assert session.calls == 1
    assert sorted(verdict.score or 0.0 for verdict in verdicts) == [0.0, 0.5, 1.0]
    assert sorted(verdict.attempts for verdict in verdicts) == [0, 0, 1]
    assert sorted(verdict.tokens_in or 0 for verdict in verdicts) == [33, 33, 34]
    assert sum(verdict.cost_usd or 0.0 for verdict in verdicts) == pytest.approx(COST)
    assert len({verdict.text for verdict in verdicts}) == 1


def test_a_ranking_that_cannot_be_read_is_asked_for_again_and_lost_for_all(app: Endpointed) -> None:
    app.say = lambda body: "[[A > B]]"
    with Session(scripted_judge("listwise"), None) as session:
        verdicts = ask_group(session, ROW, ["x", "y", "z"])
        assert session.calls == 2
    assert {verdict.outcome for verdict in verdicts} == {Outcome.unparsed}


def test_draws_of_a_group_are_asked_for_by_index(app: Endpointed) -> None:
    app.say = prefers("b")
    with Session(scripted_judge("pairwise", votes=2), None) as session:
        first, second = (ask_group(session, ROW, ["a", "b"], [index]) for index in (0, 1))
        assert session.calls == 4
    assert [verdict.sample_index for verdict in second] == [1, 1]
    assert first[0].key != second[0].key


@pytest.mark.parametrize("name", ["pairwise", "listwise"])
def test_a_group_of_one_and_single_answers_are_refused(name: str, app: Endpointed) -> None:
    with Session(scripted_judge(name), None) as session:
        with pytest.raises(UserError, match=rf"judge\.grading\.name={name} compares"):
            session.ask_many([(ROW, "hi")])
        with pytest.raises(UserError, match="compares the answers of a group"):
            asyncio.run(session.ask_one(ROW, "hi"))
        assert session.calls == 0
