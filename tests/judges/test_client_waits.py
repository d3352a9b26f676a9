"""What a client waits for, how long, and what it never waits for."""

import asyncio
import json
from collections import Counter
from itertools import repeat
from typing import Any

import pytest

from judges.endpoint.client import DRAIN_S, REST_S
from judges.fault_injection.server import ANSWERS, DONE, MET, ROLE, STOP, chunk, error
from study.verdict import Outcome
from tests.judges.asking import (
    APPLICATION,
    BACKOFF_S,
    DEADLINE_S,
    IDLE_S,
    TRIES,
    a_judge,
    ask_judge,
    ask_on_own_clock,
    playing,
)


def saying(piece: bytes, kind: bytes) -> Any:
    """An application that says the same for ever; without a piece, nothing at all."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", kind)]
        if not piece:
            await asyncio.sleep(3600)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0.02)

    return app


TRIED_S = TRIES * IDLE_S
PLAIN, EVENTS = b"application/json", b"text/event-stream"


@pytest.mark.parametrize(
    ("piece", "kind", "endpoint", "calls", "most_s"),
    [
        (b"", PLAIN, {}, TRIES, TRIED_S),
        (b"", PLAIN, {"idle_timeout_s": 3600.0}, 1, DEADLINE_S),
        (b"", PLAIN, {"attempts": 100}, 4, DEADLINE_S),
        (b"{", PLAIN, {}, 1, DEADLINE_S),
        (b": nothing new\n\n", EVENTS, {"stream": True}, TRIES, TRIED_S),
        (chunk({"content": "met "}), EVENTS, {"stream": True}, 1, DEADLINE_S),
    ],
    ids=["silence", "patience", "tries", "bytes", "comments", "words"],
)
def test_a_call_ends_with_its_last_try_or_at_its_deadline(
    piece: bytes, kind: bytes, endpoint: dict[str, Any], calls: int, most_s: float, grading: Any
) -> None:
    app = saying(piece, kind)
    got, channel, seconds = ask_on_own_clock(a_judge(APPLICATION, **endpoint), grading, app)
    assert (got.outcome, channel.calls) == (Outcome.timeout, calls)
    pauses_s = BACKOFF_S * (1 + 2) if most_s == TRIED_S else 0
    assert most_s - 1e-6 <= seconds <= most_s + pauses_s + 1e-6


def streaming(pieces: list[tuple[float, bytes]], again: bytes = b"") -> Any:
    """An application that sends each piece so many seconds after the one before, and then leaves
    the stream open; ``again`` is sent every 0.02 s."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", EVENTS)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for after_s, piece in pieces:
            await asyncio.sleep(after_s)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        while True:
            await asyncio.sleep(0.02 if again else 3600)
            await send({"type": "http.response.body", "body": again, "more_body": True})

    return app


FINISHED = (0.0, ROLE + MET + STOP)
USAGE = chunk(None)


@pytest.mark.parametrize(
    ("pieces", "again", "tokens", "seconds"),
    [
        ([FINISHED], b"", None, REST_S),
        ([FINISHED], b": still here\n\n", None, REST_S),
        ([FINISHED], chunk({"content": ""}), None, REST_S),
        ([FINISHED], USAGE, 3, REST_S),
        ([FINISHED, (0.9 * REST_S, USAGE)], b"", 3, REST_S),
        ([FINISHED, (1.1 * REST_S, USAGE)], b"", None, REST_S),
        ([FINISHED, (0.5 * REST_S, USAGE + DONE)], b"", 3, 0.5 * REST_S + DRAIN_S),
        ([FINISHED, (0.5 * REST_S, USAGE + DONE)], b"junk\n", 3, 0.5 * REST_S + DRAIN_S),
        ([FINISHED, (0.1, USAGE[:40])], b"", None, REST_S),
        ([(0.0, ROLE + MET), (1.2, STOP[:30]), (1.2, STOP[30:])], b"", None, 2.4 + REST_S),
    ],
    ids=[
        *("silence", "comments", "nothing", "usage for ever", "late usage", "later usage"),
        *("late end", "junk behind the end", "half an event", "a slow finish reason"),
    ],
)
def test_a_stream_that_has_finished_and_stays_open_is_whole(
    pieces: Any, again: bytes, tokens: int | None, seconds: float, grading: Any
) -> None:
    judge = a_judge(APPLICATION, stream=True, idle_timeout_s=2.5)
    got, channel, took_s = ask_on_own_clock(judge, grading, streaming(pieces, again))
    assert (got.outcome, channel.calls) == (None, 1), got.reason
    assert (got.replies[0].text, got.replies[0].tokens_out) == ("met", tokens)
    assert took_s == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("end", [b"", DONE], ids=["no end mark", "an end mark"])
@pytest.mark.parametrize("limits", [(0.05, 6.0), (6.0, 0.05), (0.05, 0.05)], ids=str)
def test_a_whole_stream_is_never_late(limits: Any, end: bytes, grading: Any) -> None:
    """The last word comes just before a limit."""
    idle_s, deadline_s = limits
    judge = a_judge(APPLICATION, stream=True, idle_timeout_s=idle_s, deadline_s=deadline_s)
    app = streaming([(0.049, ROLE + MET + STOP + end)])
    got, channel, took_s = ask_on_own_clock(judge, grading, app)
    assert (got.outcome, channel.calls) == (None, 1), got.reason
    assert took_s < 0.049 + min(idle_s, deadline_s)


def test_what_goes_on_after_the_finish_reason_is_no_reply(grading: Any) -> None:
    app = streaming([FINISHED, (0.5 * REST_S, chunk({"content": "not_"}))])
    got, channel, _ = ask_on_own_clock(a_judge(APPLICATION, stream=True), grading, app)
    assert (got.outcome, channel.calls) == (Outcome.transport, TRIES)
    assert "went on after its finish reason" in got.reason


def test_only_the_call_that_is_told_to_wait_waits(grading: Any) -> None:
    """Its slot is another one's meanwhile."""
    judge = a_judge(APPLICATION, max_concurrency=1)
    app = playing([ANSWERS["limit_429_pause"], *[ANSWERS["good"]] * 6], after_s=0.01)
    results, _, seconds = ask_on_own_clock(judge, grading, app, count=6)
    assert [result.attempts for result in results] == [2, 1, 1, 1, 1, 1]
    assert 0.4 <= results[0].latency_s <= 0.5
    assert max(result.latency_s for result in results[1:]) == pytest.approx(0.01)
    assert seconds <= 0.5


@pytest.mark.parametrize("others_pass", [True, False])
def test_a_failed_call_keeps_its_slot_only_while_no_other_passes(
    others_pass: bool, grading: Any
) -> None:
    """An endpoint that is down must not be asked by all calls of a queue, one after the other."""
    asked: list[int] = []
    passed_at: list[float] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        number = json.loads((await receive())["body"])["seed"]
        asked.append(number)
        fails = not others_pass or number == asked[0]
        await asyncio.sleep(0.05 if fails else 0.02)
        await playing([error(500) if fails else ANSWERS["good"]])(scope, receive, send)
        if not fails:
            passed_at.append(asyncio.get_running_loop().time())

    judge = a_judge(APPLICATION, max_concurrency=2, attempts=2, backoff_s=60.0, deadline_s=200.0)
    results, _, _ = ask_on_own_clock(judge, grading, app, count=200 if others_pass else 20)
    if others_pass:
        assert [result.outcome for result in results] == [Outcome.transport, *[None] * 199]
        assert passed_at[-1] - passed_at[0] < 199 * 0.02 / 2 + 0.1
    else:
        for number in range(1, len(asked)):
            begun = Counter(asked[:number])
            assert sum(count == 1 for count in begun.values()) <= 2


def test_an_endpoint_that_refuses_all_is_left_alone_by_all(grading: Any) -> None:
    judge = a_judge(APPLICATION, max_concurrency=1, attempts=1)
    app = playing(repeat(ANSWERS["limit_429_pause"]))
    results, channel, seconds = ask_on_own_clock(judge, grading, app, count=6)
    assert {result.outcome for result in results} == {Outcome.rate_limited}
    assert channel.calls == 6
    # After three the others wait: 0.4 s, as they are asked, and then twice as long each time.
    assert 0.4 + 0.8 + 1.6 <= seconds <= 4


def test_a_pause_past_the_deadline_is_not_waited_for(grading: Any) -> None:
    judge = a_judge(APPLICATION, max_concurrency=1)
    app = playing(repeat(ANSWERS["limit_429_long"]))
    results, channel, seconds = ask_on_own_clock(judge, grading, app, count=6)
    assert channel.calls == 3  # then it is known that all are refused
    assert {result.outcome for result in results} == {Outcome.rate_limited}
    assert all("past the deadline" in result.reason for result in results)
    assert seconds < 0.1


@pytest.mark.parametrize(
    "value", ["1e9", "Fri, 31 Dec 2999 23:59:59 GMT", "1" * 300, "inf", "nan", "-1e9", "1e400",
              "Fri, 31 Dec 99999999999 23:59:59 GMT", "0x10", "\xff", "1,2", "", "Mon"],
)  # fmt: skip
def test_no_wait_asked_for_closes_an_endpoint_for_good(value, faults, grading, monkeypatch) -> None:
    answer = error(429, retry_after=value)
    monkeypatch.setitem(ANSWERS, "wait", answer)
    got, channel = ask_judge(a_judge(faults.url("wait"), attempts=1), grading)
    assert (got.outcome is not None, channel.calls) == (True, 1)
    _, _, seconds = ask_on_own_clock(a_judge(APPLICATION, attempts=1), grading, playing([answer]))
    assert seconds < 0.1


def test_retry_after_is_waited_for(grading: Any) -> None:
    app = playing([ANSWERS["limit_429_short"], ANSWERS["good"]])
    got, _, seconds = ask_on_own_clock(a_judge(APPLICATION), grading, app)
    assert got.attempts == 2
    assert 0.2 - 1e-6 <= seconds <= 0.2 + 2 * BACKOFF_S + 1e-6


def test_a_wait_that_the_deadline_cuts_keeps_the_reason_for_waiting(grading: Any) -> None:
    judge = a_judge(APPLICATION, attempts=50, deadline_s=2.0)
    app = playing(repeat(ANSWERS["limit_429_short"]))
    got, _, seconds = ask_on_own_clock(judge, grading, app)
    assert got.outcome is Outcome.rate_limited
    assert 2 <= got.attempts <= 10
    assert seconds <= 2.0 + 1e-6


def test_concurrency_is_bounded_and_waiting_for_a_slot_is_not_on_the_clock(grading: Any) -> None:
    judge = a_judge(APPLICATION, max_concurrency=2, deadline_s=2.5)
    app = playing(repeat(ANSWERS["good"]), after_s=0.2)
    results, channel, seconds = ask_on_own_clock(judge, grading, app, count=30)
    assert all(result.outcome is None for result in results)
    assert channel.calls == 30
    assert seconds == pytest.approx(15 * 0.2)  # rounds of two, beyond the deadline of each
