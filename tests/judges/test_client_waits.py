"""What a client waits for, how long, and what it never waits for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from judges.endpoint.client import LONGEST_PAUSE_S
from judges.fault_injection.server import ANSWERS, error
from study.verdict import Outcome
from tests.judges.asking import DEADLINE_S, SLACK_S, a_judge, asked


def test_a_pause_that_one_was_asked_for_holds_for_all(faults: Any, grading: Any) -> None:
    judge = a_judge(faults.url("limit_429_pause"), max_concurrency=1, attempts=1, adaptive=False)
    results, channel, wall = asked(judge, grading, count=6)
    assert {result.outcome for result in results} == {Outcome.rate_limited}
    # The first is told to wait 0.4 s; the second waits that long before it asks, and so on.
    assert channel.calls >= 2
    assert wall >= 0.4 * (channel.calls - 1)


def test_a_pause_past_the_deadline_is_not_waited_for(faults: Any, grading: Any) -> None:
    judge = a_judge(faults.url("limit_429_long"), max_concurrency=1)
    results, channel, wall = asked(judge, grading, count=4)
    assert channel.calls == 1
    assert {result.outcome for result in results} == {Outcome.rate_limited}
    assert "past the deadline" in results[3].reason
    assert wall <= SLACK_S


@pytest.mark.parametrize(
    "value", ["1e9", "Fri, 31 Dec 2999 23:59:59 GMT", "1" * 300, "inf", "nan", "-1e9", "1e400",
              "Fri, 31 Dec 99999999999 23:59:59 GMT", "0x10", "\xff", "1,2", "", "Mon"],
)  # fmt: skip
def test_no_wait_asked_for_closes_an_endpoint_for_good(
    value: str, faults: Any, grading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, "wait", error(429, retry_after=value))
    _, channel, wall = asked(a_judge(faults.url("wait"), attempts=1), grading)
    assert wall <= DEADLINE_S + SLACK_S
    assert channel.paused_until <= time.monotonic() + LONGEST_PAUSE_S


def test_retry_after_is_waited_for(faults: Any, grading: Any) -> None:
    got, _, wall = asked(a_judge(faults.url("limit_429_short:1")), grading)
    assert got.attempts == 2
    assert wall >= 0.2


def test_a_wait_that_the_deadline_cuts_keeps_the_reason_for_waiting(
    faults: Any, grading: Any
) -> None:
    judge = a_judge(faults.url("limit_429_short"), attempts=50, deadline_s=2.0)
    got, _, wall = asked(judge, grading)
    assert got.outcome is Outcome.rate_limited
    assert 2 <= got.attempts <= 10
    assert wall <= 2.0 + SLACK_S


def test_concurrency_is_bounded_and_waiting_for_a_slot_is_not_on_the_clock(
    faults: Any, grading: Any
) -> None:
    judge = a_judge(faults.url("slow_0.2"), max_concurrency=2, idle_timeout_s=2.0)
    results, channel, wall = asked(judge, grading, count=30)
    assert all(result.outcome is None for result in results)
    assert channel.calls == 30
    assert wall >= 3.0 > judge.endpoint.deadline_s  # 15 rounds of two
