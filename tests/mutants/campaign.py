"""Tries faults on the tests that reach them, the nearest first; see `tests.mutants.__main__`."""

from __future__ import annotations

import csv
import math
import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.blocks import block_of, table
from tests.mutants.faults import Fault, sources
from tests.mutants.reach import Reach
from tests.mutants.trial import Tree

STARTING_S = 20.0
"""What starting pytest and collecting may take before the first test."""
SLOWER = 5.0
"""How many times as long as recorded tests may take before a run is ended."""
SHORTEST_S = 0.02
"""What a test takes at least, for the order of the tests."""


@dataclass
class Trial:
    """What became of one fault: by which test it was caught, or that none did."""

    fault: Fault | None
    caught_by: str = ""
    timed_out: bool = False
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """caught, timed_out or survived."""
        return "caught" if self.caught_by else "timed_out" if self.timed_out else "survived"


class Costs:
    """Seconds of each test and shared fixture as recorded, and which tests passed."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.fixtures: dict[str, float] = {}
        self.passed: set[str] = set()
        with (folder / "times.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                self.seconds[row["test"]] = float(row["seconds"])
                if row["outcome"] == "passed":
                    self.passed.add(row["test"])
        with (folder / "fixtures.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                seconds = max(float(row["seconds"]), self.fixtures.get(row["fixture"], 0.0))
                self.fixtures[row["fixture"]] = seconds

    def of_fixture(self, name: str) -> float:
        """Seconds of one set-up; those of a session are recorded without the folder they are of."""
        return self.fixtures.get(name, self.fixtures.get(name.rpartition("::")[2], 0.0))

    def of(self, tests: Iterable[str]) -> float:
        """Seconds of tests, one after the other."""
        return sum(self.seconds.get(test, 1.0) for test in tests)


class Campaign:
    """One suite of tests with its record, on which faults are tried."""

    def __init__(self, root: Path, folder: Path, copies: Sequence[Tree], budget_s: float) -> None:
        self.reach, self.costs = Reach(folder), Costs(folder)
        self.texts = {path: file.read_text() for path, file in sources(root).items()}
        self.first = table(root)
        self.copies, self.budget_s = copies, budget_s
        self.passed = self.costs.passed & set(self.reach.tests)

    def reaching(self, fault: Fault) -> tuple[set[str], bool]:
        """The tests for a fault, and whether those are all: it is run at import, or nowhere."""
        block = block_of(fault, self.texts[fault.path], self.first[fault.path])
        tests = self.reach.of(block) if block is not None else set()
        return (tests, False) if tests else (self.passed, True)

    def distances(self, fault: Fault) -> dict[str, int]:
        """Test -> how far from a fault's block is what it reaches: 0 where it reaches that, 1 where
        only a fixture does that files share. Of a fault in no block, 0 is its file, 1 its folder,
        2 the one around it, and so on: code in a sandbox is reached by none, but the tests of the
        folder around it start it."""
        tests, everything = self.reaching(fault)
        if not everything:
            block = block_of(fault, self.texts[fault.path], self.first[fault.path])
            assert block is not None
            return dict.fromkeys(tests, 1) | dict.fromkeys(self.reach.of(block, alone=True), 0)
        starts = sorted(self.first.values())
        far: dict[str, int] = {}
        for distance, place in enumerate((fault.path, *map(str, Path(fault.path).parents))):
            inside = [n for path, n in self.first.items() if f"{path}/".startswith(f"{place}/")]
            if inside:
                last = next((start for start in starts if start > max(inside)), max(inside) + 1) - 1
                far = dict.fromkeys(self.reach.of(min(inside), last), distance) | far
        return far

    def nearest(self, fault: Fault, long: bool) -> list[str]:
        """The tests of a fault within the budget, file by file. Those come first that reach little
        else and are short: a test of three blocks asserts more of each than one of a thousand.
        Setting up what tests share has as much time again: a fault that only a trained study
        reaches would be tried on the one test that is left of the budget after its training."""
        far, seconds = self.distances(fault), self.costs.seconds
        order = sorted(
            (t for t in self.reaching(fault)[0] & self.passed if (t in self.reach.long) == long),
            key=lambda test: (
                far.get(test, math.inf),
                self.reach.size(test) * max(seconds[test], SHORTEST_S),
            ),
        )
        files: dict[str, list[str]] = {}
        used, used_for_fixtures, set_up = 0.0, 0.0, set[str]()
        for test in order:
            fixtures = self.reach.fixtures_of(test) - set_up
            setting_up = sum(map(self.costs.of_fixture, fixtures))
            over = used + seconds[test] > self.budget_s
            if files and (over or used_for_fixtures + setting_up > self.budget_s):
                continue
            files.setdefault(test.partition("::")[0], []).append(test)
            used += seconds[test]
            used_for_fixtures += setting_up
            set_up |= fixtures
        return [test for several in files.values() for test in several]

    def _whole(self, tests: Sequence[str]) -> float:
        """Seconds of tests with the shared fixtures that they stand on."""
        fixtures = set().union(*map(self.reach.fixtures_of, tests))
        return self.costs.of(tests) + sum(map(self.costs.of_fixture, fixtures))

    def _in_turn(
        self, jobs: list[Callable[[Tree], Trial]], on_end: Callable[[Trial], None]
    ) -> list[Trial]:
        """Each job in a free copy of the tree, as many at once as there are copies."""
        free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for copy in self.copies:
            free.put(copy)

        def work(job: Callable[[Tree], Trial]) -> Trial:
            copy = free.get()
            try:
                trial = job(copy)
            finally:
                free.put(copy)
            on_end(trial)
            return trial

        with ThreadPoolExecutor(len(self.copies)) as threads:
            return list(threads.map(work, jobs))

    def _alone(self, fault: Fault | None, tests: Sequence[str]) -> Callable[[Tree], Trial]:
        def job(copy: Tree) -> Trial:
            limit_s = STARTING_S + SLOWER * self._whole(tests) + self.budget_s
            with copy.with_faults([fault] if fault else []):
                run = copy.run(tests, limit_s)
            return Trial(fault, next(iter(run.failed), ""), run.timed_out, run.seconds)

        return job

    def controls(self, faults: Sequence[Fault]) -> list[str]:
        """Tests that fail in first rounds though nothing was planted."""
        jobs = [self._alone(None, self.nearest(fault, long=False)) for fault in faults]
        trials = self._in_turn(jobs, lambda trial: None)
        return [trial.caught_by or "timed out" for trial in trials if trial.outcome != "survived"]

    def try_all(
        self, faults: Sequence[Fault], long: bool, report: Callable[[Trial], None]
    ) -> list[Trial]:
        """Try each fault on the tests without, or only on those with, the mark ``long``."""
        tests = {fault.name: self.nearest(fault, long) for fault in faults}
        jobs = [self._alone(fault, tests[fault.name]) for fault in faults if tests[fault.name]]
        trials = {trial.fault: trial for trial in self._in_turn(jobs, report)}
        return [trials.get(fault, Trial(fault)) for fault in faults]
