"""The two-process grader of code: trusted tests in one sandbox, the candidate in another.

The tests call a stand-in for each function of the candidate's. This process carries the calls from
one sandbox to the other and reads neither: arguments, values and objects stay text here. So an
answer can lie about its values, like any wrong answer, and about nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from study.sandbox import tiers
from study.sandbox.calls import Limits, Outcome, Result, cut_short, one_line
from study.sandbox.inside.frames import Frame
from study.sandbox.worker import Broken

CANDIDATE = Limits(cpu_s=5, wall_s=20.0, memory_mb=512, reply_bytes=1 << 20)
"""Per program; 5 s of CPU time are enough for every published sample of HumanEval but two."""
TESTER = Limits(cpu_s=10, wall_s=30.0, memory_mb=512, reply_bytes=1 << 20)

UNREADY = {
    str(outcome): outcome
    for outcome in (Outcome.UNPARSABLE, Outcome.RAISED, Outcome.EXITED, Outcome.MEMORY)
}
"""What a program may say of itself before it is tested."""


@dataclass(frozen=True)
class Task:
    """A program and its tests.

    Attributes:
        programs: ways to read one answer, each the sources of one namespace; the first that
            compiles is run.
        tests: code that asserts, or defines ``check``, which is then called with the function.
        entry_point: the function that the tests call.
        prelude: the problem's imports and helpers, for the tests.
        setup: code before the tests.
    """

    programs: tuple[tuple[str, ...], ...]
    tests: str
    entry_point: str
    prelude: str = ""
    setup: str = ""
    limits: Limits = CANDIDATE


class Pair:
    """Two sandboxes; one task at a time. Raises Broken: one of them cannot be started."""

    def __init__(self, tier: tiers.Tier) -> None:
        self.candidate = tiers.start(tier)
        try:
            self.tester = tiers.start(tier)
        except Broken:
            self.candidate.close()
            raise

    @property
    def dirty(self) -> bool:
        """Whether either is to be thrown away."""
        return self.candidate.dirty or self.tester.dirty

    def close(self) -> None:
        """End both."""
        self.candidate.close()
        self.tester.close()

    def call(self, task: Task) -> Result:
        """Run the tests: ``returned`` with True or False where they passed or failed by what they
        compare, else how the program ended.
        Raises Broken: a sandbox failed, or the tests ask for what cannot be asked."""
        request = {"role": "candidate", "programs": task.programs, "limits": vars(task.limits)}
        frame = self.candidate.ask(request, task.limits)
        if not _open(frame):
            result = _ended(frame, task.limits)
        elif (result := _unready(frame["data"])) is None:
            frame, result = self._test(task)
        if _open(frame):
            self.candidate.ask(None, task.limits)
        return result

    def _test(self, task: Task) -> tuple[Frame, Result]:
        """What came from the candidate last, and the verdict."""
        request = {
            "role": "tester",
            "prelude": task.prelude,
            "setup": task.setup,
            "tests": task.tests,
            "entry_point": task.entry_point,
            "limits": vars(TESTER),
        }
        latest: Frame = {"end": "line"}
        frame = self.tester.ask(request, TESTER)
        while _open(frame):
            message = json.loads(frame["data"])
            if "verdict" in message:
                self.tester.ask(None, TESTER)
                return latest, _verdict(message)
            if _open(latest):
                latest = self.candidate.ask(message["ask"], task.limits)
            if _open(latest):
                answer = {"claim": latest["data"]}
            else:
                end = _ended(latest, task.limits)
                answer = {"died": end.outcome, "text": end.detail}
            frame = self.tester.ask(answer, TESTER)
        end = _ended(frame, TESTER)
        if end.outcome in (Outcome.EXITED, Outcome.KILLED):
            raise Broken(f"the tests ended without a verdict: {end.detail}")
        return latest, Result(end.outcome, None, f"in the tests: {end.detail}")


def _open(frame: Frame) -> bool:
    """Whether a conversation goes on after this frame."""
    return frame["end"] == "line"


def _ended(frame: Frame, limits: Limits) -> Result:
    """How a child ended that says no more."""
    return cut_short(frame, limits) or Result(Outcome.EXITED, None, "it ended without an answer")


def _unready(data: str) -> Result | None:
    """Why the program cannot be tested, from its first line; None where it can."""
    try:
        claim = json.loads(data)
        if claim["end"] == "ready":
            return None
        return Result(UNREADY[claim["end"]], None, one_line(claim["text"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Result(Outcome.FORGED, None, "the bytes are not an answer")


def _verdict(message: Mapping[str, str]) -> Result:
    """What the tests came to. Raises Broken: they could not be run."""
    word, text = message["verdict"], one_line(message["text"])
    if word == "ungradable":
        raise Broken(f"ungradable: {text}")
    if word in ("passed", "failed"):
        return Result(Outcome.RETURNED, word == "passed", text)
    return Result(Outcome(word), None, text)
