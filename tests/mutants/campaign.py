"""Tries faults on the tests that reach them, in three rounds; see `tests.mutants.__main__`."""

from __future__ import annotations

import csv
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
TOGETHER_S = 7200.0
"""When the second round is ended."""


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
        self.tests = [test for test in self.reach.tests if test in self.costs.passed]

    def reaching(self, fault: Fault) -> tuple[set[str], bool]:
        """The tests for a fault, and whether those are all: it is run at import, or nowhere."""
        block = block_of(fault, self.texts[fault.path], self.first[fault.path])
        tests = self.reach.of(block) if block is not None else set()
        return (tests, False) if tests else (set(self.tests), True)

    def near(self, fault: Fault) -> set[str]:
        """The tests that reach any block of the file that a fault stands in."""
        starts = sorted({*self.first.values()})
        first = self.first[fault.path]
        after = next((start for start in starts if start > first), first + 1)
        return self.reach.of(first, after - 1)

    def cheapest(self, fault: Fault) -> list[str]:
        """The tests of the first round, within the budget: file by file, the cheapest first."""
        tests, everything = self.reaching(fault)
        if everything:
            tests = self.near(fault)
        files: dict[str, list[str]] = {}
        for test in self.tests:
            if test in tests:
                files.setdefault(test.partition("::")[0], []).append(test)
        chosen: list[str] = []
        used, set_up = 0.0, set()
        for several in sorted(files.values(), key=self._whole):
            for test in sorted(several, key=self.costs.seconds.__getitem__):
                fixtures = self.reach.fixtures_of(test) - set_up
                used += self.costs.seconds[test] + sum(map(self.costs.of_fixture, fixtures))
                if used > self.budget_s and chosen:
                    return chosen
                chosen.append(test)
                set_up |= fixtures
        return chosen

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
        jobs = [self._alone(None, self.cheapest(fault)) for fault in faults]
        trials = self._in_turn(jobs, lambda trial: None)
        return [trial.caught_by or "timed out" for trial in trials if trial.outcome != "survived"]

    def try_all(
        self, faults: Sequence[Fault], long: bool, report: Callable[[str, Trial], None]
    ) -> list[Trial]:
        """Try each fault on the tests without, or only on those with, the mark ``long``."""
        tier = {test for test in self.tests if (test in self.reach.long) == long}
        first = {
            fault.name: [test for test in self.cheapest(fault) if test in tier] for fault in faults
        }
        trials = self._round(first, faults, lambda trial: report("alone", trial))
        left = [trial for trial in trials if trial.outcome == "survived"]
        rest = {}
        for trial in left:
            tests, _ = self.reaching(trial.fault)
            rest[trial.fault.name] = (tests & tier) - set(first[trial.fault.name])
        suspects = self._together(left, set().union(*rest.values()))
        again = {name: [test for test in suspects if test in tests] for name, tests in rest.items()}
        suspected = [trial.fault for trial in left if trial.fault]
        last = self._round(again, suspected, lambda trial: report("again", trial))
        found = {trial.fault.name: trial for trial in last if trial.fault}
        return [found.get(trial.fault.name, trial) for trial in trials]

    def _round(
        self,
        tests: dict[str, list[str]],
        faults: Sequence[Fault],
        on_end: Callable[[Trial], None],
    ) -> list[Trial]:
        """Each fault alone with the tests that stand under its name."""
        jobs = [self._alone(fault, tests[fault.name]) for fault in faults if tests[fault.name]]
        found = {trial.fault: trial for trial in self._in_turn(jobs, on_end)}
        return [found.get(fault, Trial(fault)) for fault in faults]

    def _together(self, left: Sequence[Trial], tests: set[str]) -> list[str]:
        """The tests that fail where all these faults are planted, the cheapest first."""
        failed: set[str] = set()
        waiting = [trial.fault for trial in left]
        while waiting and tests:
            group: list[Fault] = []
            for fault in waiting:
                if not any(_overlap(fault, other) for other in group):
                    group.append(fault)
            waiting = [fault for fault in waiting if fault not in group]
            order = [test for test in self.tests if test in tests]
            with self.copies[0].with_faults(group):
                run = self.copies[0].run(
                    order, TOGETHER_S, stop_first=False, workers=len(self.copies)
                )
            failed |= set(order) if "collection" in run.failed else set(run.failed)
        return sorted(failed & tests, key=self.costs.seconds.__getitem__)


def _overlap(one: Fault, other: Fault) -> bool:
    return one.path == other.path and one.begin < other.end and other.begin < one.end
