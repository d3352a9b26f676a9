"""Judges are asked ahead, the requests of a session overlap, its loop ends whatever it runs, and
keys, verdicts, calls and hits are those of the code before sessions overlapped."""

import asyncio
import concurrent.futures
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judges.ask.replies import Store
from judges.ask.session import Ahead, Session
from judges.endpoint import loop
from judges.endpoint.loop import Loop
from study.config.schema import Cost, Endpoint, Failure, Grading, Judge, Sampling, Simulated
from study.rows import Row, Truth
from study.verdict import Outcome, Verdict
from tests.judges.recorded import FILE, judges, twice
from tests.judges.sessions import COLOURS, Endpointed, held, text_of
from tests.waiting import GENEROUS_S, come

GROUP = 4
ITEMS = [
    (row, f"{'very ' * member}{row.prompt_text()}") for row in COLOURS for member in range(GROUP)
]
ENDS = ([3, 9], [0], [1, 2, 4, 5], [10, 11, 8], [7], [6])
"""Places of the answers that end together, in the order in which they do."""
FAILURE = Failure(rate=0.15, kinds=["unparsed", "empty", "refused", "http_500"])
GRADINGS = ("likert", "rubric_batch", "rubric_item", "pairwise", "listwise")


def oracle(prompt: str, answer: str) -> Truth:
    """A quarter for each word."""
    return Truth(min(1.0, len(answer.split()) / 8))


def noisy(grading: str, **simulated: Any) -> Judge:
    """A simulated judge whose verdicts differ between draws, and of which some fail."""
    return Judge(
        name="noisy",
        endpoint=Endpoint(deadline_s=10.0, backoff_s=0.001),
        grading=Grading(grading),
        sampling=Sampling(votes=2),
        simulated=Simulated(noise_sd=0.2, tpr=0.8, fpr=0.3, **({"failure": FAILURE} | simulated)),
    )


def without_costs(votes_N: list[list[Verdict]]) -> list[list[Verdict]]:
    """The votes without what differs from call to call."""
    return [
        [replace(vote, latency_s=0.0, from_cache=False, cost_usd=0.0) for vote in votes]
        for votes in votes_N
    ]


def afterwards(
    judge: Judge, items: list[tuple[Row, str]] = ITEMS
) -> tuple[list[list[Verdict]], int]:
    """The verdicts on answers that have all ended before the judge is asked, and the calls."""
    with Session(judge, None, oracle) as session:
        return session.ask_many(items, GROUP), session.calls


@pytest.fixture(params=[False, True], ids=["no store", "store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store | None]:
    if not request.param:
        yield None
        return
    with Store(tmp_path / "replies.db") as opened:
        yield opened


@pytest.mark.parametrize("grading", GRADINGS)
def test_verdicts_do_not_depend_on_when_answers_end(grading: str, store: Store | None) -> None:
    expected, calls = afterwards(noisy(grading))
    with Session(noisy(grading), store, oracle) as session, session.batch(GROUP) as ahead:
        for places in ENDS:
            ahead.submit({place: ITEMS[place] for place in places})
        votes_N = ahead.votes(ITEMS)
        assert session.calls == calls
    assert without_costs(votes_N) == without_costs(expected)
    assert len({vote.score for votes in votes_N for vote in votes}) > 2


def test_a_group_is_asked_about_once_and_when_its_last_answer_has_ended(app: Endpointed) -> None:
    request_came = threading.Event()

    def free(content: str, texts: list[str]) -> bool:
        request_came.set()
        return True

    app.say, app.free = lambda body: "[[A > B > C > D]]", free
    with Session(held("listwise"), None) as session, session.batch(GROUP) as ahead:
        for place in (4, 0, 1, 3):
            ahead.submit({place: ITEMS[place]})
        assert session.calls == 0
        ahead.submit({2: ITEMS[2], 5: ITEMS[5]})
        assert request_came.wait(GENEROUS_S) and len(app.texts) == 1
        votes_N = ahead.votes(ITEMS)
        assert session.calls == len(COLOURS)
    assert [sum(row.prompt_text() in text for text in app.texts) for row in COLOURS] == [1, 1, 1]
    assert [len(votes) for votes in votes_N] == [1] * len(ITEMS)


# of a group all pairs in both orders, of which those without the changed answer are shared
@pytest.mark.parametrize(("grading", "again"), [("likert", 1), ("pairwise", 2 * (GROUP - 1))])
def test_what_was_submitted_in_other_words_is_asked_anew(grading: str, again: int) -> None:
    drafts = [
        (row, "a draft") if place == 6 else (row, text) for place, (row, text) in enumerate(ITEMS)
    ]
    judge = noisy(grading, failure=Failure())
    expected, _ = afterwards(judge)
    with Session(judge, None, oracle) as session, session.batch(GROUP) as ahead:
        ahead.submit(dict(enumerate(drafts)))
        ahead.votes(drafts)
        before = session.calls
        assert without_costs(ahead.votes(ITEMS)) == without_costs(expected)
        assert session.calls - before == judge.sampling.votes * again


def test_a_submission_of_which_nothing_is_wanted_any_more_is_cancelled(app: Endpointed) -> None:
    def free(content: str, texts: list[str]) -> bool:
        again = any(ITEMS[2][1] in text for text in texts)
        return "draft" not in content or ("second draft" in content and again)

    app.say, app.free = lambda body: "[[70]]", free
    with Session(held(), None) as session:
        ahead = Ahead(session, 1)
        ahead.submit({0: (COLOURS[0], "a first draft")})
        ahead.submit({1: ITEMS[1], 2: (COLOURS[0], "a second draft")})
        (stale, _), (in_part, _) = ahead._submitted[0], ahead._submitted[1]
        votes_N = ahead.votes(ITEMS[:3])
        assert stale.cancelled() and not in_part.cancelled()
    assert [vote.score for [vote] in votes_N] == [0.7] * 3


@pytest.mark.parametrize("fault", ["good", "server_500"])
def test_equal_answers_are_asked_once_whenever_they_end(fault, faults, store, one_word) -> None:
    item, other = (COLOURS[0], "yes"), (COLOURS[1], "yes")
    outcome = Outcome.scored if fault == "good" else Outcome.transport
    judge = held("one-word", url=faults.url(fault))

    def ask(together: bool) -> tuple[Counter[Any], int, int]:
        with Session(judge, store) as session, session.batch() as ahead:
            if not together:
                ahead.submit({1: item})
                ahead._submitted[1][0].result()  # the first has its reply when the other ends
                ahead.submit({2: other})
            votes_N = ahead.votes([item, item, other])
            flags = Counter((vote.outcome, vote.from_cache, vote.tokens_in) for [vote] in votes_N)
            return flags, session.calls, session.hits

    apart = ask(together=False)
    assert apart[1:] == (2, 1)
    if store is None:  # with one, the second session would find what the first has stored
        assert apart == ask(together=True)
    counts = {key[:2]: count for key, count in apart[0].items()}
    assert counts == {(outcome, False): 2, (outcome, True): 1}


def test_after_a_batch_a_question_is_asked_anew() -> None:
    with Session(noisy("likert"), None, oracle) as session:
        for calls in (2, 4):
            with session.batch():
                session.ask_many([ITEMS[0]])
                session.ask_many([ITEMS[0]])
            assert session.calls == calls  # two votes


def test_the_end_of_a_batch_leaves_nothing_in_flight(tmp_path: Path, app: Endpointed) -> None:
    """A step that failed has asked; the next step and other processes are not held up by it."""
    came, may_answer = threading.Semaphore(0), threading.Event()

    def free(content: str, texts: list[str]) -> bool:
        came.release()
        return may_answer.is_set()

    app.say, app.free = lambda body: "[[70]]", free
    with Store(tmp_path / "replies.db") as store, Session(held(), store) as session:
        with pytest.raises(RuntimeError, match="generation failed"), session.batch() as ahead:
            ahead.submit({0: ITEMS[0], 1: ITEMS[1]})
            assert came.acquire(timeout=GENEROUS_S) and came.acquire(timeout=GENEROUS_S)
            raise RuntimeError("generation failed")
        assert store.count() == 0
        before = session.calls
        may_answer.set()
        with Session(held(), store) as other:  # the leases were given back
            assert other.ask_many([ITEMS[0]])[0][0].score == 0.7
            assert other.calls == 1
        with session.batch():
            votes_N = session.ask_many(ITEMS[:2])
        assert [vote.outcome for [vote] in votes_N] == [Outcome.scored] * 2
        assert session.calls - before == 1 and store.count() == 2
    assert len(app.texts) == 4


def test_a_batch_that_ends_at_once_asks_nothing_afterwards(app: Endpointed) -> None:
    app.say, app.free = lambda body: "[[70]]", lambda content, texts: False
    items: list[tuple[Row, str]] = [(COLOURS[0], f"answer {number}") for number in range(700)]
    with Session(held(max_concurrency=2), None) as session:
        with session.batch() as ahead:
            ahead.submit(dict(enumerate(items)))
        assert session.calls == len(app.texts) <= 2
        assert session._asker._in_flight == {} and session._submissions == set()


def test_a_judge_that_drifts_is_asked_in_order_and_by_nobody_else() -> None:
    judge = noisy("likert", drift_per_1000=50.0)
    expected, _ = afterwards(judge)
    with Session(judge, None, oracle) as session:
        ahead = Ahead(session, GROUP)
        for places in ENDS:
            ahead.submit({place: ITEMS[place] for place in places})
        assert session.calls == 0
        assert without_costs(ahead.votes(ITEMS)) == without_costs(expected)
    order = [place for places in ENDS for place in places]
    votes_N, _ = afterwards(judge, [ITEMS[place] for place in order])
    by_place = dict(zip(order, without_costs(votes_N), strict=True))
    assert [by_place[place] for place in range(len(ITEMS))] != without_costs(expected)


ROWS = COLOURS[:2]


def is_follow_up(content: str) -> bool:
    """Whether only the second criterion is asked about."""
    return "\n2. Two." in content and "\n1. One." not in content


def partial_labels(body: dict[str, Any]) -> str:
    return '{"2": "met"}' if is_follow_up(text_of(body)) else '{"1": "met"}'


@pytest.mark.parametrize("stored", [False, True])
def test_a_follow_up_waits_for_no_other_answer(stored, app, tmp_path) -> None:
    def free(content: str, texts: list[str]) -> bool:
        # the first request about A is answered only after the follow-up about B has come
        about_b = [text for text in texts if "answer B" in text]
        return "answer A" not in content or any(map(is_follow_up, about_b))

    app.say, app.free = partial_labels, free
    store = Store(tmp_path / "replies.db") if stored else None
    with Session(held("rubric_batch"), store) as session:
        verdicts = session.ask_many([(COLOURS[0], "answer A"), (COLOURS[0], "answer B")])
        assert session.calls == 4
    assert [draws[0].labels for draws in verdicts] == [("met", "met")] * 2
    assert [draws[0].score for draws in verdicts] == [1.0, 1.0]
    order = [("answer A" in text, is_follow_up(text)) for text in app.texts]
    assert order == [(True, False), (False, False), (False, True), (True, True)]
    if store is not None:
        store.close()


@pytest.mark.parametrize(("name", "requests"), [("pairwise", 2), ("listwise", 1)])
def test_groups_and_votes_overlap(name, requests, app, tmp_path) -> None:
    total = requests * len(ROWS) * 3
    reply_text = "[[A]]" if name == "pairwise" else "[[A > B]]"
    app.say, app.free = lambda body: reply_text, lambda content, texts: len(texts) == total
    items = [(row, f"{row.prompt_text()} {member}") for row in ROWS for member in "xy"]
    with Store(tmp_path / "replies.db") as store, Session(held(name, votes=3), store) as session:
        votes_N = session.ask_many(items, 2)
        assert (session.calls, store.count()) == (total, total)
    assert len(app.texts) == total
    assert [len(votes) for votes in votes_N] == [3] * 4
    assert [[vote.sample_index for vote in votes] for votes in votes_N] == [[0, 1, 2]] * 4
    scores = [[vote.score for vote in votes] for votes in votes_N]
    if name == "pairwise":  # whoever is shown first wins, so both orders disagree: a tie
        assert scores == [[0.5] * 3] * 4
    else:
        wanted = [0.0] * 3 + [1.0] * 3
        assert sorted(scores[0] + scores[1]) == sorted(scores[2] + scores[3]) == wanted


def test_a_verdict_can_be_awaited_in_any_loop(app: Endpointed) -> None:
    app.say, app.free = lambda body: "[[70]]", lambda content, texts: len(texts) == 2

    async def main(session: Session) -> None:
        one, other = await asyncio.gather(
            session.ask_one(COLOURS[0], "a"), session.ask_one(COLOURS[1], "b", index=3)
        )
        assert (one.score, other.score) == (0.7, 0.7)
        assert (one.sample_index, other.sample_index) == (0, 3)

    with Session(held("likert"), None) as session:
        asyncio.run(main(session))


def test_an_awaited_verdict_that_is_given_up_leaves_the_session_usable(app: Endpointed) -> None:
    app.say, app.free = lambda body: "[[70]]", lambda content, texts: "stuck" not in content

    async def main(session: Session) -> float | None:
        stuck = asyncio.create_task(session.ask_one(COLOURS[0], "stuck"))
        free = await session.ask_one(COLOURS[0], "free")
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        return free.score

    with Session(held("likert"), None) as session:
        assert asyncio.run(main(session)) == 0.7
        assert session.ask_many([(COLOURS[1], "x")])[0][0].score == 0.7


def test_a_reply_is_parsed_once_and_a_body_built_once(app, monkeypatch, tmp_path) -> None:
    from judges.ask import session as module
    from judges.grading.likert import Likert

    counts: Counter[str] = Counter()

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            counts[name] += 1
            return real(*args)

        return call

    monkeypatch.setattr(Likert, "parse", counted("parse", Likert.parse))
    monkeypatch.setattr(module, "judge_body", counted("body", module.judge_body))
    app.say = lambda body: "[[70]]"
    items = [(COLOURS[0], f"answer {number}") for number in range(7)]
    with Store(tmp_path / "replies.db") as store, Session(held("likert"), store) as session:
        session.ask_many(items)
        assert counts == {"parse": 7, "body": 7}
        session.ask_many(items)
        assert counts == {"parse": 14, "body": 14}


def test_closing_during_follow_ups_aborts_them(app: Endpointed) -> None:
    app.say, app.free = partial_labels, lambda content, texts: not is_follow_up(content)

    async def main(session: Session) -> Any:
        task = asyncio.create_task(session.ask_one(COLOURS[0], "answer"))
        await come(lambda: len(app.texts) == 2)
        await asyncio.to_thread(session.close)
        return await task

    verdict = asyncio.run(main(Session(held("rubric_batch"), None)))
    assert (verdict.outcome, verdict.labels) == (Outcome.aborted, ("met", "unknown"))
    assert verdict.score is None


def test_an_allowance_holds_over_overlapping_groups(app: Endpointed) -> None:
    from judges.ask.allowance import Allowance

    app.say = lambda body: "[[A]]"
    pairwise_judge = held("pairwise")
    allowance = Allowance(Cost(max_calls=5), [pairwise_judge])
    items = [(row, f"{row.prompt_text()} {member}") for row in ROWS for member in "xyz"]
    with Session(pairwise_judge, None, allowance=allowance) as session:
        verdicts = session.ask_many(items, 3)
        assert (session.calls, len(app.texts), allowance.spent.calls) == (5, 5, 5)
    outcomes = [votes[0].outcome for votes in verdicts]
    assert outcomes[:2] == [Outcome.scored] * 2 and outcomes[3:] == [Outcome.aborted] * 3


async def nothing() -> None:
    """There is nothing to shut."""


def test_a_job_that_nobody_waits_for_does_not_keep_the_loop_open(monkeypatch) -> None:
    monkeypatch.setattr(loop, "LAST_S", 0.01)
    jobs = Loop(nothing)
    endless = jobs.submit(asyncio.sleep(3600))
    jobs.run(asyncio.sleep(0))  # the first one has begun
    jobs.close()
    with pytest.raises(concurrent.futures.CancelledError):
        endless.result(timeout=0)


def test_a_job_that_ends_in_time_keeps_its_result() -> None:
    jobs = Loop(nothing)
    result = jobs.submit(asyncio.sleep(0.05, result=7))
    jobs.run(asyncio.sleep(0))
    jobs.close()
    assert result.result(timeout=0) == 7
    with pytest.raises(RuntimeError, match="closed"):
        jobs.run(asyncio.sleep(0))


@pytest.mark.parametrize("name", judges())
def test_a_session_gives_what_is_on_record(name: str) -> None:
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    assert recorded.keys() == judges().keys()
    assert twice(name) == recorded[name]
