"""Verdicts from an endpoint that breaks its answers: none lost, none doubled, none wrongly scored.

``python -m tests.faults.soak verdicts=30000 in_flight=64 broken=0.3`` prints what became of them
and how long the process that asks ever stood still; the suite runs some hundreds.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from judges.ask.replies import Store
from judges.ask.session import Session
from judges.ask.stored import verify
from judges.grading import GRADINGS
from judges.grading.base import NOTHING, OneRequest
from study.cell.records import VERDICT, write_part
from study.config.schema import Endpoint, Grading, Judge, Sampling
from study.rows import make_row
from study.verdict import Outcome, Parsed, Reply, Request, Verdict
from tests.conftest import ROOT
from tests.faults.soak_faults import MODEL, PLAIN, SLOW, STREAM

ROW = make_row(({"role": "user", "content": "Write."},))
SECRET = "Soak/Canary+Key.of-no-known-form-77"
BATCH = 2_000
"""Verdicts asked for at once: four steps of 64 prompts and 8 rollouts."""
EVER = 99
"""Answers that a fault holds for where it does not pass."""
STORED = {Outcome.scored, Outcome.unparsed, Outcome.empty, Outcome.truncated, Outcome.refused}


class Number(OneRequest):
    """A grading whose score is the number that was asked about, so that a mix-up shows."""

    name, version, prompt_sha = "soak-number", "1", "0" * 16
    _template = ""

    def messages(self, row: Any, answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": answer}]

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        if reply.finish_reason == "length":
            return Parsed(Outcome.truncated, reason="cut")
        if not reply.text:
            return Parsed(Outcome.empty, reason="nothing")
        if not (reply.text.isascii() and reply.text.isdigit()):
            return Parsed(Outcome.unparsed, reason="no number")
        return Parsed(Outcome.scored, score=float(reply.text))


def asked(url: str, stream: bool = False, **endpoint: Any) -> Judge:
    """A judge that gives numbers."""
    settings: dict[str, Any] = {
        **{"model": MODEL, "attempts": 3, "deadline_s": 60.0, "backoff_s": 0.01, "adaptive": False},
        **endpoint,
    }
    return Judge(
        name="j",
        endpoint=Endpoint(url=url, stream=stream, **settings),
        grading=Grading(Number.name),
        sampling=Sampling(max_tokens=8, salt=str(stream)),
    )


@dataclass(frozen=True)
class Question:
    number: int
    stream: bool
    fault: str
    times: int

    @property
    def text(self) -> str:
        return f"{self.number} {self.fault} {self.times}"

    def legal(self) -> frozenset[str]:
        """What may become of the verdict."""
        if self.fault == "-":
            return frozenset({"scored"})
        ends = (STREAM if self.stream else PLAIN)[self.fault][1]
        return ends if self.times == EVER else ends | {"scored"}


@dataclass
class Heart:
    """The longest time that a thread, and the event loop of the session, had to wait for a turn."""

    beat_s: float = 0.005
    gaps: list[float] = field(default_factory=list)
    loop_gaps: list[float] = field(default_factory=list)
    loop_work: list[float] = field(default_factory=list)
    """Seconds of CPU that the loop's thread took in each of its gaps: what others who want the
    processor cannot lengthen."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __enter__(self) -> Heart:
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._stop.is_set():
            time.sleep(self.beat_s)
            now = time.monotonic()
            self.gaps.append(now - last - self.beat_s)
            last = now

    async def begin(self) -> None:
        """The same in this event loop, until the end."""
        self._tasks.append(asyncio.create_task(self._beat_in_loop()))

    async def _beat_in_loop(self) -> None:
        last, spent = time.monotonic(), time.thread_time()
        while not self._stop.is_set():
            await asyncio.sleep(self.beat_s)
            now, used = time.monotonic(), time.thread_time()
            self.loop_gaps.append(now - last - self.beat_s)
            self.loop_work.append(used - spent)
            last, spent = now, used


def every_fault() -> list[Question]:
    """One question for each fault that passes and one for each that does not."""
    names = [(False, name) for name in PLAIN] + [(True, name) for name in STREAM]
    return [
        Question(number, stream, name, times)
        for number, (stream, name, times) in enumerate(
            (stream, name, times) for stream, name in names for times in (1, EVER)
        )
    ]


def mixed(count: int, broken: float) -> list[Question]:
    """So many questions, a share of which meets faults; the same in every run. One in three
    faults does not pass, but for those that cost a time-out each time: one in fifty."""
    found = every_fault()[:count]
    for number in range(len(found), count):
        digest = hashlib.blake2b(b"%d" % number, digest_size=24).digest()
        share, which, whether = (
            int.from_bytes(digest[at : at + 8], "big") / 2**64 for at in (0, 8, 16)
        )
        stream = bool(number % 2)
        names = list(STREAM if stream else PLAIN)
        fault = names[int(which * len(names))] if share < broken else "-"
        lasting = whether < (0.02 if fault in SLOW else 1 / 3)
        found.append(Question(number, stream, fault, EVER if lasting else 1))
    return found


NOISE = """
import sys, threading, time
worst, last = 0.0, time.monotonic()
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
while not done.is_set():
    time.sleep(0.005)
    now = time.monotonic()
    worst, last = max(worst, now - last - 0.005), now
print(worst)
"""
"""The same in a process that does nothing: what the machine makes anybody wait."""


@dataclass
class Soaked:
    """What became of all questions."""

    verdicts: list[tuple[Question, Verdict]]
    wrong: list[str]
    outcomes: Counter[str]
    met: dict[str, int]
    requests: int
    calls: int
    seconds: float
    heart: Heart
    noise_s: float

    def lines(self) -> list[str]:
        gaps, loops = sorted(self.heart.gaps), sorted(self.heart.loop_gaps)
        work = max(self.heart.loop_work)
        return [
            f"{len(self.verdicts)} verdicts, {self.requests} requests, {self.seconds:.0f} s",
            f"{len(self.met)} faults met {sum(self.met.values())} times",
            f"outcomes {dict(self.outcomes)}",
            f"a thread waited {1000 * gaps[-1]:.0f} ms at most, "
            f"{1000 * gaps[int(0.999 * len(gaps))]:.1f} ms at the 99.9th percentile",
            f"the event loop {1000 * loops[-1]:.0f} ms at most, "
            f"{1000 * loops[int(0.999 * len(loops))]:.1f} ms at the 99.9th percentile",
            f"and worked {1000 * work:.0f} ms of CPU at most between two turns",
            f"a process that did nothing waited {1000 * self.noise_s:.0f} ms at most",
            f"{len(self.wrong)} wrong",
            *self.wrong[:40],
        ]


def soak(questions: list[Question], in_flight: int, folder: Path, idle_s: float = 3.0) -> Soaked:
    """Ask all questions and hold each verdict against what its fault allows."""
    os.environ["SOAK_KEY"] = SECRET
    GRADINGS[Number.name] = Number
    log = logging.FileHandler(folder / "log.txt")
    logging.getLogger().addHandler(log)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.soak_server"], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    noise = subprocess.Popen(
        [sys.executable, "-c", NOISE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pairs: list[tuple[Question, Verdict]] = []
    calls, started = 0, time.monotonic()
    try:
        warm_up(url)
        with Heart() as heart, Store(folder / "replies.db") as store:
            for stream in (False, True):
                limits = {"max_concurrency": in_flight, "idle_timeout_s": idle_s}
                judge = asked(url, stream, api_key_env="SOAK_KEY", **limits)
                mine = [question for question in questions if question.stream is stream]
                with Session(judge, store) as session:
                    session._loop.run(heart.begin())
                    found: list[list[Verdict]] = []
                    for start in range(0, len(mine), BATCH):
                        batch = mine[start : start + BATCH]
                        found += session.ask_many([(ROW, question.text) for question in batch])
                        # a training writes a step down and lets it go; here all are kept
                        gc.freeze()
                    calls += session.calls
                pairs += [(q, draws[0]) for q, draws in zip(mine, found, strict=True)]
            seconds = time.monotonic() - started
            wrong = checked(questions, pairs, store)
    finally:
        gc.unfreeze()
        logging.getLogger().removeHandler(log)
        log.close()
        said, _ = server.communicate("\n")
        noise_s = float(noise.communicate("\n")[0])
    told = json.loads(said)
    if told["strays"]:
        wrong.append(f"{told['strays']} requests followed a redirect")
    calls += 1  # to warm up
    attempts = 1 + sum(verdict.attempts for _, verdict in pairs)
    # A request on a connection that the server has just closed does not come; nor do those whose
    # time is over, because the event loop had no turn, before they are sent.
    standstills = sum(gap + heart.beat_s >= idle_s for gap in heart.loop_gaps)
    lost = 0.01 * calls + standstills * in_flight
    if not calls == attempts >= told["requests"] > calls - lost:
        wrong.append(f"{calls} calls, {attempts} attempts, {told['requests']} requests came")
    rows = [v.as_row() | {"rollout_id": str(q.number), "step": 1} for q, v in pairs]
    write_part(folder / "step-000001.parquet", rows, VERDICT)
    wrong += echoed(folder, rows)
    outcomes = Counter(str(verdict.outcome) for _, verdict in pairs)
    return Soaked(
        pairs, wrong, outcomes, told["met"], told["requests"], calls, seconds, heart, noise_s
    )


def warm_up(url: str) -> None:
    """Import what the first question would, which takes longer than anything later."""
    with Session(asked(url, attempts=1, api_key_env="SOAK_KEY"), None) as session:
        session.ask_many([(ROW, "0 - 0")])


def checked(
    questions: list[Question], pairs: list[tuple[Question, Verdict]], store: Store
) -> list[str]:
    """What is wrong with the verdicts and with what was stored."""
    wrong = []
    if sorted(q.number for q, _ in pairs) != sorted(q.number for q in questions):
        wrong.append("verdicts were lost or doubled")
    if len({verdict.key for _, verdict in pairs}) != len(questions):
        wrong.append("two questions have one key")
    for question, verdict in pairs:
        ended = f"{question}: {verdict.outcome} {verdict.score}: {verdict.reason[:200]}"
        if str(verdict.outcome) not in question.legal():
            wrong.append(ended)
        elif verdict.outcome is Outcome.scored and verdict.score != question.number:
            wrong.append(f"wrongly scored: {ended}")
        elif (verdict.score is None) == (verdict.outcome is Outcome.scored):
            wrong.append(f"score and outcome differ: {ended}")
        elif verdict.outcome is not Outcome.scored and not verdict.reason:
            wrong.append(f"no reason: {ended}")
        elif verdict.from_cache:
            wrong.append(f"nothing was there before: {ended}")
    kept = sum(verdict.outcome in STORED for _, verdict in pairs)
    if store.count() != kept:
        wrong.append(f"{store.count()} replies are stored, and {kept} verdicts have one")
    wrong += [f"stored: {line}" for line in verify(store.path)]
    return wrong


def echoed(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Artefacts that hold the key, whole or half."""
    halves = (SECRET, SECRET.lower(), SECRET[:12], SECRET[-12:])
    texts = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    texts["rows"] = json.dumps(rows).encode()
    return [
        f"{name} holds the key"
        for name, data in texts.items()
        if any(text.encode() in data for text in halves)
    ]


def main(arguments: list[str]) -> int:
    """0 where nothing is wrong."""
    given = dict(argument.split("=", 1) for argument in arguments)
    questions = mixed(int(given.get("verdicts", "30000")), float(given.get("broken", "0.3")))
    gc.collect()
    gc.freeze()  # as a training does
    with tempfile.TemporaryDirectory() as folder:
        found = soak(questions, int(given.get("in_flight", "64")), Path(folder))
    print("\n".join(found.lines()))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
