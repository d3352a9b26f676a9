"""A verdict of several requests: what is asked, stored, asked again, and what it adds up to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from experiments.scorer import judge_metrics
from judges.endpoint.dialects import REMINDER
from judges.grading import GRADINGS
from judges.grading.delimiters import undelimit
from judges.session import Session
from judges.store import Store, content_key
from study.errors import UserError
from study.rows import Criterion, Row, make_row
from study.schema import Endpoint, Grading, Judge, Price, Sampling
from study.verdict import Outcome

TURN = ({"role": "user", "content": "Say hello."},)


def row_of(count: int) -> Row:
    return make_row(TURN, tuple(Criterion(f"Item {place}.") for place in range(1, count + 1)))


ROW = row_of(5)
Script = Callable[[list[int], str, int], Any]
"""(numbers asked about, content, how often asked) -> reply text, status code, or (text, finish)."""


class Scripted:
    """An endpoint that answers as a test says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.script: Script = lambda numbers, content, nth: said(numbers)
        self.asked: list[list[int]] = []
        self.contents: list[str] = []
        self.limits: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import JSONResponse

        body = json.loads((await receive())["body"])
        content = body["messages"][-1]["content"]
        rubric = undelimit("rubric", content) or ""
        numbers = [int(line.split(".")[0]) for line in rubric.splitlines() if line[0].isdigit()]
        nth = self.contents.count(content)
        self.asked.append(numbers)
        self.contents.append(content)
        self.limits.append(body["max_tokens"])
        found = self.script(numbers, content, nth)
        if isinstance(found, int):
            await JSONResponse({"error": {"message": "no"}}, found)(scope, receive, send)
            return
        text, finish = found if isinstance(found, tuple) else (found, "stop")
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        choice = {"index": 0, "message": {"content": text}, "finish_reason": finish}
        reply = {"object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
        await JSONResponse(reply)(scope, receive, send)


def said(numbers: list[int], met: bool = True) -> str:
    return json.dumps({str(number): "met" if met else "not_met" for number in numbers})


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


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    server = Scripted()
    monkeypatch.setattr("judges.session._simulated", lambda *_: server)
    return server


@pytest.mark.parametrize(
    ("name", "options", "asked"),
    [
        ("rubric_batch", {}, [[1, 2, 3, 4, 5]]),
        ("rubric_chunk", {"k": 2}, [[1, 2], [3, 4], [5]]),
        ("rubric_item", {}, [[1], [2], [3], [4], [5]]),
    ],
)
def test_one_verdict_of_several_requests_adds_up(
    name: str, options: dict[str, Any], asked: list[list[int]], app: Scripted, store: Store
) -> None:
    app.script = lambda numbers, content, nth: said(numbers, met=numbers != [5])
    with Session(scripted_judge(name, **options), store) as session:
        ((verdict,),) = session.verdicts([(ROW, "hi")])
        assert session.calls == len(asked)
    count = len(asked)
    assert sorted(app.asked) == asked
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
        ((again,),) = session.verdicts([(ROW, "hi")])
        assert (session.calls, session.hits) == (0, count)
    assert again.from_cache and again.cost_usd == 0.0
    assert (again.key, again.labels, again.score) == (verdict.key, verdict.labels, verdict.score)


def test_the_key_of_a_verdict_is_the_hash_of_its_requests_keys(app: Scripted, store: Store) -> None:
    with Session(scripted_judge("rubric_chunk", k=3), store) as session:
        ((first,),) = session.verdicts([(ROW, "hi")])
        ((other,),) = session.verdicts([(ROW, "ho")])
        grading = GRADINGS["rubric_chunk"]({"k": 3})
        asked = [(grading, request) for request in grading.requests(ROW, "hi")]
        keys = [fetched.request.key for fetched in session.replies(asked)]
        assert session.hits == len(keys) == 2
    assert first.key == content_key(keys) != other.key
    assert all(store.get(key) is not None for key in keys)


def test_only_missing_criteria_are_asked_again_and_once(app: Scripted, store: Store) -> None:
    app.script = lambda numbers, content, nth: (
        said([2, 4]) if len(numbers) == 5 else said(numbers, met=False)
    )
    with Session(scripted_judge("rubric_batch"), store) as session:
        ((verdict,),) = session.verdicts([(ROW, "hi")])
        assert session.calls == 2
    assert app.asked == [[1, 2, 3, 4, 5], [1, 3, 5]]
    assert not any(REMINDER in content for content in app.contents)
    assert verdict.labels == ("not_met", "met", "not_met", "met", "not_met")
    assert (verdict.score, verdict.attempts, verdict.reason) == (0.4, 2, "")
    assert verdict.cost_usd == pytest.approx(2 * COST) and verdict.tokens_in == 200
    assert store.count() == 2
    with Session(scripted_judge("rubric_batch"), store) as session:
        ((again,),) = session.verdicts([(ROW, "hi")])
        assert session.calls == 0 and again.score == 0.4 and again.from_cache


def test_a_follow_up_is_followed_by_none(app: Scripted) -> None:
    app.script = lambda numbers, content, nth: said(numbers[:1])
    with Session(scripted_judge("rubric_batch"), None) as session:
        ((verdict,),) = session.verdicts([(ROW, "hi")])
    assert app.asked == [[1, 2, 3, 4, 5], [2, 3, 4, 5]]
    assert (verdict.outcome, verdict.score) == (Outcome.unparsed, None)
    assert verdict.labels == ("met", "met", "unknown", "unknown", "unknown")
    assert "criteria 3, 4, 5" in verdict.reason


def test_a_reply_without_any_label_is_the_clients_to_repeat(app: Scripted) -> None:
    app.script = lambda numbers, content, nth: said(numbers) if REMINDER in content else "Hm."
    with Session(scripted_judge("rubric_batch"), None) as session:
        ((verdict,),) = session.verdicts([(ROW, "hi")])
    assert app.asked == [[1, 2, 3, 4, 5]] * 2
    assert (verdict.score, verdict.attempts) == (1.0, 2)


def test_a_reply_that_says_two_things_is_asked_again_once_and_counted(app: Scripted) -> None:
    """One judge is cured by the reminder, the other quotes what it grades again."""
    quoting = "[[70]] because it repeats [[100]]"
    app.script = lambda numbers, content, nth: (
        "[[70]]" if REMINDER in content and "mend" in content else quoting
    )
    with Session(scripted_judge("likert"), None) as session:
        ((cured,), (lost,)) = session.verdicts([(ROW, "mend"), (ROW, "quote")])
        assert session.calls == 4
    assert (cured.score, cured.reason) == (0.7, "asked again with a format reminder")
    assert (lost.outcome, lost.score) == (Outcome.unparsed, None)
    assert lost.reason.startswith("different verdicts in one reply: [[70]] and [[100]]")
    metrics = judge_metrics([cured, lost])
    assert metrics["judge/different_verdicts_frac"] == 0.5
    assert metrics["judge/unscored/unparsed"] == 0.5


def test_a_better_parser_reads_what_is_stored_and_asks_nothing(
    app: Scripted, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.script = lambda numbers, content, nth: "The second is met, the others are not."
    with Session(scripted_judge("rubric_batch"), store) as session:
        ((verdict,),) = session.verdicts([(ROW, "hi")])
        assert verdict.outcome is Outcome.unparsed
    monkeypatch.setattr(
        "judges.grading.rubric.read_labels",
        lambda text, numbers, vocabulary: {n: "met" if n == 2 else "not_met" for n in numbers},
    )
    with Session(scripted_judge("rubric_batch"), store) as session:
        ((again,),) = session.verdicts([(ROW, "hi")])
        assert session.calls == 0
    assert (again.score, again.key) == (0.2, verdict.key)


def test_a_chunk_that_fails_costs_its_criteria_only(app: Scripted, store: Store) -> None:
    app.script = lambda numbers, content, nth: 500 if 3 in numbers else said(numbers)
    with Session(scripted_judge("rubric_chunk", k=2), store) as session:
        ((verdict,),) = session.verdicts([(ROW, "hi")])
    assert (verdict.outcome, verdict.score) == (Outcome.transport, None)
    assert verdict.labels == ("met", "met", "unknown", "unknown", "met")
    assert "criteria 3, 4" in verdict.reason and "HTTP 500" in verdict.reason
    assert verdict.attempts == 1 + 2 + 1 and verdict.cost_usd == pytest.approx(2 * COST)
    assert store.count() == 2
    app.asked.clear()
    app.script = lambda numbers, content, nth: said(numbers)
    with Session(scripted_judge("rubric_chunk", k=2), store) as session:
        ((again,),) = session.verdicts([(ROW, "hi")])
    assert app.asked == [[3, 4]] and again.score == 1.0 and not again.from_cache


def test_a_lost_chunk_can_be_renormalised_away(app: Scripted) -> None:
    app.script = lambda numbers, content, nth: 500 if 3 in numbers else said(numbers, 1 in numbers)
    judge = scripted_judge("rubric_chunk", k=2, partial="renormalise")
    with Session(judge, None) as session:
        ((verdict,),) = session.verdicts([(ROW, "hi")])
    assert verdict.score == pytest.approx(2 / 3) and "renormalised" in verdict.reason


def test_truncation_is_an_outcome_and_gets_more_room_once(app: Scripted) -> None:
    app.script = lambda numbers, content, nth: (said(numbers), "length")
    with Session(scripted_judge("rubric_batch"), None) as session:
        ((verdict,),) = session.verdicts([(ROW, "hi")])
    assert (verdict.outcome, verdict.labels) == (Outcome.truncated, ("unknown",) * 5)
    assert verdict.finish_reason == "length" and verdict.attempts == 2
    first, second = app.limits
    assert first > Sampling().max_tokens and second == 2 * first


def test_votes_and_items_keep_their_order(app: Scripted) -> None:
    app.script = lambda numbers, content, nth: said(numbers, met="yes" in content)
    with Session(scripted_judge("rubric_chunk", votes=3, k=2), None) as session:
        found = session.verdicts([(ROW, "yes"), (ROW, "no"), (row_of(1), "yes")])
        assert session.calls == 3 * (3 + 3 + 1)
    assert [[verdict.score for verdict in draws] for draws in found] == [
        [1.0] * 3, [0.0] * 3, [1.0] * 3
    ]  # fmt: skip
    assert [verdict.sample_index for verdict in found[1]] == [0, 1, 2]
    assert len({verdict.key for draws in found for verdict in draws}) == 9


def test_a_row_that_cannot_be_scored_is_not_asked_about(app: Scripted) -> None:
    bad = make_row(TURN, (Criterion("Is rude.", -1.0),))
    with Session(scripted_judge("rubric_batch"), None) as session:
        (bad_draws, good_draws) = session.verdicts([(bad, "hi"), (ROW, "hi")])
        assert session.calls == 1
    assert bad_draws[0].outcome is Outcome.unparsed and "positive points" in bad_draws[0].reason
    assert (bad_draws[0].attempts, bad_draws[0].cost_usd) == (0, 0.0)
    assert good_draws[0].score == 1.0


# --- groups


def prefers(best: str) -> Script:
    """Whoever is ``best`` wins; among the others the first shown does."""

    def script(numbers: list[int], content: str, nth: int) -> str:
        first, second = undelimit("answera", content), undelimit("answerb", content)
        return "[[B]]" if second == best and first != best else "[[A]]"

    return script


def test_a_group_shares_what_its_requests_cost(app: Scripted, store: Store) -> None:
    app.script = prefers("b")
    answers = ["a", "b", "c"]
    with Session(scripted_judge("pairwise"), store) as session:
        found = asyncio.run(session.group(ROW, answers))
        assert session.calls == 6
    assert [verdict.score for verdict in found] == [0.25, 1.0, 0.25]
    assert "1 of 2 pairs turned" in found[0].reason and found[1].reason == ""
    assert sum(verdict.attempts for verdict in found) == 6
    assert sum(verdict.tokens_in or 0 for verdict in found) == 600
    assert sum(verdict.tokens_out or 0 for verdict in found) == 60
    assert sum(verdict.cost_usd or 0.0 for verdict in found) == pytest.approx(6 * COST)
    assert {verdict.attempts for verdict in found} == {2}
    assert len({verdict.key for verdict in found}) == 3
    with Session(scripted_judge("pairwise"), store) as session:
        again = asyncio.run(session.group(ROW, answers))
        # a fourth answer meets the three that are known
        more = asyncio.run(session.group(ROW, [*answers, "d"]))
        assert session.calls == 6
    assert all(verdict.from_cache and verdict.cost_usd == 0.0 for verdict in again)
    assert [verdict.score for verdict in again] == [0.25, 1.0, 0.25]
    assert sum(verdict.cost_usd or 0.0 for verdict in more) == pytest.approx(6 * COST)


def test_one_ranking_is_shared_by_all(app: Scripted) -> None:
    app.script = lambda numbers, content, nth: "[[B > A > C]]"
    with Session(scripted_judge("listwise"), None) as session:
        found = asyncio.run(session.group(ROW, ["x", "y", "z"]))
        assert session.calls == 1
    assert sorted(verdict.score or 0.0 for verdict in found) == [0.0, 0.5, 1.0]
    assert sorted(verdict.attempts for verdict in found) == [0, 0, 1]
    assert sorted(verdict.tokens_in or 0 for verdict in found) == [33, 33, 34]
    assert sum(verdict.cost_usd or 0.0 for verdict in found) == pytest.approx(COST)
    assert len({verdict.text for verdict in found}) == 1


def test_a_ranking_that_cannot_be_read_is_asked_for_again_and_lost_for_all(app: Scripted) -> None:
    app.script = lambda numbers, content, nth: "[[A > B]]"
    with Session(scripted_judge("listwise"), None) as session:
        found = asyncio.run(session.group(ROW, ["x", "y", "z"]))
        assert session.calls == 2
    assert {verdict.outcome for verdict in found} == {Outcome.unparsed}


def test_draws_of_a_group_are_asked_for_by_index(app: Scripted) -> None:
    app.script = prefers("b")
    with Session(scripted_judge("pairwise", votes=2), None) as session:
        first, second = (asyncio.run(session.group(ROW, ["a", "b"], index)) for index in (0, 1))
        assert session.calls == 4
    assert [verdict.sample_index for verdict in second] == [1, 1]
    assert first[0].key != second[0].key


@pytest.mark.parametrize("name", ["pairwise", "listwise"])
def test_a_group_of_one_and_single_answers_are_refused(name: str, app: Scripted) -> None:
    with Session(scripted_judge(name), None) as session:
        with pytest.raises(UserError, match=rf"{name} needs a group; trainer\.group_size is 1"):
            asyncio.run(session.group(ROW, ["alone"]))
        with pytest.raises(UserError, match=rf"judge\.grading\.name={name} compares"):
            session.verdicts([(ROW, "hi")])
        assert session.calls == 0
    with (
        Session(scripted_judge("likert"), None) as session,
        pytest.raises(UserError, match=r"judge\.grading\.name=likert"),
    ):
        asyncio.run(session.group(ROW, ["a", "b"]))
