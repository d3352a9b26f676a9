"""Where the time of a test run goes: seconds and CPU seconds of each test and each shared fixture.

A plugin of pytest, loaded by ``conftest.py``. Every run writes ``build/tests/times.csv`` (a row
a test) and ``build/tests/fixtures.csv`` (a row for each set-up of a fixture that is shared by a
module or more), and prints the dearest of both. ``build/tests`` is moved by
``JUDGEDRIFT_TEST_TIMES``.

CPU seconds are those of the process that runs the test and of all that descend from it, servers
and pools that outlive the test included. A descendant that has left the tree (a daemon) is not
counted from then on. With several workers, what another worker does is not in a test's CPU seconds.
"""

from __future__ import annotations

import contextlib
import csv
import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pytest

SHOWN = 15
"""Rows of each table on the screen."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock and of the processors."""

    seconds: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.cpu_s + other.cpu_s)

    def __sub__(self, other: Cost) -> Cost:
        """What came since; a descendant that left the tree takes along what was counted before."""
        return Cost(self.seconds - other.seconds, max(0.0, self.cpu_s - other.cpu_s))


@dataclass
class TestTime:
    """One test: its own seconds, without the set-up of shared fixtures that it needed first."""

    __test__ = False  # no class of tests

    test: str
    outcome: str = ""
    worker: str = ""
    started: float = 0.0
    seconds: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class FixtureTime:
    """One set-up of a shared fixture, without that of the shared fixtures it stands on."""

    fixture: str
    scope: str
    worker: str
    seconds: float
    cpu_s: float


def _ticks_of(pid: int) -> int:
    """Clock ticks of a process and of its children that ended, 0 where there is none any more."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    return sum(int(field) for field in stat[stat.rindex(b")") + 2 :].split()[11:15])


def _children(pid: int) -> list[int]:
    children = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # only that thread has
                children += Path(f"/proc/{pid}/task/{task}/children").read_bytes().split()
    return [int(child) for child in children]


def cost_so_far() -> Cost:
    """The clock, and the CPU seconds of this process with all its descendants."""
    ticks, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        ticks += _ticks_of(pid)
        waiting += _children(pid)
    return Cost(time.monotonic(), ticks / TICKS)


class Clock:
    """Measures in the process that runs tests; what it measured travels on the test's reports."""

    def __init__(self) -> None:
        self.inner = [Cost()]
        self.fixtures: list[FixtureTime] = []
        self.worker = os.environ.get("PYTEST_XDIST_WORKER", "")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        begin = cost_so_far()
        self.inner.append(Cost())
        try:
            return (yield)
        finally:
            whole = cost_so_far() - begin
            own = whole - self.inner.pop()
            self.inner[-1] += whole
            name = fixturedef.argname
            if fixturedef.scope in ("module", "class") and fixturedef.baseid:
                name = f"{fixturedef.baseid}::{name}"
            self.fixtures.append(
                FixtureTime(name, fixturedef.scope, self.worker, own.seconds, own.cpu_s)
            )

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.begin = cost_so_far()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        report.started = call.start
        if call.when == "teardown":  # the last: to look at all descendants takes a millisecond
            report.cost = asdict(cost_so_far() - self.begin - self.inner[0])
            self.inner[0] = Cost()
        report.fixtures = [asdict(each) for each in self.fixtures]
        self.fixtures = []
        return report


class Ledger:
    """Collects the reports of all workers, writes the files and prints the dearest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tests: dict[str, TestTime] = {}
        self.fixtures: list[FixtureTime] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        started = getattr(report, "started", None)
        if started is None:  # a worker that crashed reports for its test
            return
        row = self.tests.setdefault(report.nodeid, TestTime(report.nodeid, started=started))
        row.worker = getattr(report, "worker_id", "")
        cost = Cost(**getattr(report, "cost", {}))
        row.seconds += cost.seconds
        row.cpu_s += cost.cpu_s
        if report.when == "call" or report.outcome != "passed":
            row.outcome = report.outcome
        self.fixtures += [FixtureTime(**each) for each in report.fixtures]

    def pytest_sessionfinish(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(self.folder / "times.csv", TestTime, list(self.tests.values()))
        _write(self.folder / "fixtures.csv", FixtureTime, self.fixtures)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.tests:
            return
        tests = {row.test: Cost(row.seconds, row.cpu_s) for row in self.tests.values()}
        files: dict[str, Cost] = defaultdict(Cost)
        for test, cost in tests.items():
            files[test.partition("::")[0]] += cost
        fixtures: dict[str, Cost] = defaultdict(Cost)
        counts: dict[str, int] = defaultdict(int)
        for each in self.fixtures:
            fixtures[each.fixture] += Cost(each.seconds, each.cpu_s)
            counts[each.fixture] += 1
        shared = {f"{name} ({counts[name]}x)": cost for name, cost in fixtures.items()}
        for title, costs in (("tests", tests), ("files", files), ("shared set-up", shared)):
            whole = sum(costs.values(), Cost())
            terminalreporter.section(
                f"dearest {title}: of {whole.seconds:.0f} s and {whole.cpu_s:.0f} s of CPU", "-"
            )
            for name, cost in sorted(costs.items(), key=lambda item: -item[1].seconds)[:SHOWN]:
                terminalreporter.write_line(f"{cost.seconds:8.2f} {cost.cpu_s:8.2f}  {name}")
        terminalreporter.write_line(f"All of them: {self.folder}/")


def _write(path: Path, row_type: type, rows: list[TestTime] | list[FixtureTime]) -> None:
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, [field.name for field in fields(row_type)])
        writer.writeheader()
        for row in sorted(rows, key=lambda row: -row.seconds):
            values = asdict(row)
            writer.writerow(
                {k: f"{v:.3f}" if isinstance(v, float) else v for k, v in values.items()}
            )


def pytest_configure(config: pytest.Config) -> None:
    """Measure in each process that runs tests; collect in the one that was started."""
    if config.pluginmanager.has_plugin("clock") or config.pluginmanager.has_plugin("times"):
        return
    distributed = bool(getattr(config.option, "numprocesses", None))
    worker = "PYTEST_XDIST_WORKER" in os.environ
    if worker or not distributed:
        config.pluginmanager.register(Clock(), "clock")
    if not worker:
        folder = os.environ.get("JUDGEDRIFT_TEST_TIMES") or config.rootpath / "build" / "tests"
        config.pluginmanager.register(Ledger(Path(folder)), "times")
