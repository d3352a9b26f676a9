"""A judge that is asked while answers still come gives the verdicts it would give afterwards."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judges.ask.replies import Store
from judges.ask.session import Ahead, Session
from study.config.schema import Endpoint, Failure, Grading, Judge, Sampling, Simulated
from study.rows import Row, Truth
from study.verdict import Outcome, Verdict
from tests.judges.endpoints import Endpointed
from tests.judges.sessions import COLOURS as ROWS
from tests.judges.sessions import held
from tests.waiting import GENEROUS_S

GROUP = 4
ITEMS = [(row, f"{'very ' * member}{row.prompt_text()}") for row in ROWS for member in range(GROUP)]
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
        assert session.calls == len(ROWS)
    assert [sum(row.prompt_text() in text for text in app.texts) for row in ROWS] == [1, 1, 1]
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
        ahead.submit({0: (ROWS[0], "a first draft")})
        ahead.submit({1: ITEMS[1], 2: (ROWS[0], "a second draft")})
        (stale, _), (in_part, _) = ahead._submitted[0], ahead._submitted[1]
        votes_N = ahead.votes(ITEMS[:3])
        assert stale.cancelled() and not in_part.cancelled()
    assert [vote.score for [vote] in votes_N] == [0.7] * 3


@pytest.mark.parametrize("fault", ["good", "server_500"])
def test_equal_answers_are_asked_once_whenever_they_end(fault, faults, store, one_word) -> None:
    item, other = (ROWS[0], "yes"), (ROWS[1], "yes")
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
    items: list[tuple[Row, str]] = [(ROWS[0], f"answer {number}") for number in range(700)]
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
