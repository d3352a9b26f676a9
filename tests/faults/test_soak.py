"""2,000 verdicts at 64 in flight while one answer in ten is broken: none is lost or doubled.

And some hundreds that meet each fault of `soak_faults`; `soak` by hand makes it tens of thousands.
"""

import gc
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from judges.ask.replies import Store
from judges.ask.session import Session
from judges.fault_injection.server import choice, chunk, completion, events, whole
from judges.faults import MIXED, FaultServer
from judges.grading import GRADINGS
from study.verdict import Outcome
from tests.faults import soak
from tests.waiting import wait_for

VERDICTS = 2_000
"""Enough to meet each fault that passes; which request meets which is the same in every run."""
IN_FLIGHT = 64
SHARE = 0.1


async def repeat(body: bytes) -> bytes:
    """Say what was asked, as a whole or as a stream."""
    asked = json.loads(body)
    said = asked["messages"][0]["content"]
    if asked.get("stream"):
        return events(chunk({"content": said}) + chunk({}, "stop") + b"data: [DONE]\n\n")
    return whole(completion(choice(said)))


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_nothing_is_lost_and_nothing_doubled(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(GRADINGS, soak.Number.name, soak.Number)
    half = VERDICTS // 2
    files = len(os.listdir("/proc/self/fd"))
    verdicts = []
    calls = 0
    with FaultServer(good=repeat) as server, Store(tmp_path / "replies.db") as store:
        server.keep = False
        for stream in (False, True):
            limits = {"max_concurrency": IN_FLIGHT, "deadline_s": 120.0, "idle_timeout_s": 3.0}
            judge = soak.asked(server.url(f"mix_{SHARE}"), stream, model="m", attempts=12, **limits)
            numbers = range(half * stream, half * (stream + 1))
            with Session(judge, store) as session:
                found = session.ask_many([(soak.ROW, str(number)) for number in numbers])
                assert [draws[0].score for draws in found] == [float(n) for n in numbers]
                assert session.hits == 0
                calls += session.calls
            verdicts += [draws[0] for draws in found]
        broken = {name: count for name, count in server.broken.items() if name != "good"}
        assert store.count() == VERDICTS
        # Every broken answer is an attempt more, and so is a good one that came too late for the
        # idle limit on a busy machine; no attempt is unaccounted for.
        assert server.broken["good"] >= VERDICTS
        assert sum(verdict.attempts for verdict in verdicts) == calls == server.broken.total()
    assert len({verdict.key for verdict in verdicts}) == VERDICTS
    assert Counter(verdict.outcome for verdict in verdicts) == {Outcome.scored: VERDICTS}
    assert set(broken) == {name for pair in MIXED for name in pair}
    share = sum(broken.values()) / calls
    assert 0.08 < share < 0.12  # binomial: sd 0.0064
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= files + 2, "as few descriptors as before")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_every_fault_ends_as_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOAK_KEY", soak.SECRET)
    monkeypatch.setitem(GRADINGS, soak.Number.name, soak.Number)
    assert len(set(soak.PLAIN) | set(soak.STREAM)) >= 200
    questions = soak.every_fault()
    found = soak.soak(questions, IN_FLIGHT, tmp_path, idle_s=2.0)
    assert found.wrong == []
    assert set(found.met) == set(soak.PLAIN) | set(soak.STREAM)
    assert len(found.verdicts) == len(questions)
    assert found.outcomes["scored"] > len(questions) / 2
    assert gc.get_freeze_count() == 0  # later tests see what is left behind
