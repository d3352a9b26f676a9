"""Which tests reach which blocks: a plugin of pytest that records it, and its reader.

``pytest -p tests.mutants.reach`` in the environment of `recorded` writes a file for each worker.
After each test a worker looks at what was entered since: in its own process, in those that the test
started, and in those that shared fixtures started before. What a shared fixture enters while it is
set up counts for every test that uses it, in whichever worker.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from tests.mutants.blocks import table

HERE = Path(__file__).parent
MAP = "JUDGEDRIFT_REACH_MAP"


def recorded(environment: dict[str, str], root: Path, folder: Path) -> dict[str, str]:
    """The environment of a run that is recorded; makes ``folder`` with the table of blocks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.json").write_text(json.dumps(table(root)))
    inherited = {name: value for name, value in environment.items() if name != MAP}
    return inherited | {
        "JUDGEDRIFT_REACH": str(folder),
        "JUDGEDRIFT_REACH_ROOT": str(root),
        "PYTHONPATH": os.pathsep.join([str(HERE / "site"), environment["PYTHONPATH"]]),
    }


class Recorder:
    """Collects in one process that runs tests."""

    def __init__(self, folder: Path, worker: str) -> None:
        import _reach  # ty: ignore[unresolved-import]

        self.folder, self.worker = folder, worker
        self.own, self._opened = _reach.__reached__, _reach.opened
        self.others: dict[str, object] = {}
        self.tests: dict[str, np.ndarray] = {}
        self.uses: dict[str, list[str]] = {}
        self.long: list[bool] = []
        self.fixtures: dict[str, set[int]] = defaultdict(set)

    def _take(self, map_: object) -> np.ndarray:
        """The blocks that were entered, which are forgotten."""
        view = np.frombuffer(map_, dtype=np.uint8)  # ty: ignore[invalid-argument-type]
        blocks = np.flatnonzero(view)
        for block in blocks.tolist():
            map_[block] = 0  # ty: ignore[invalid-assignment]
        return blocks.astype(np.int32)

    def _entered(self) -> set[int]:
        maps = [self.own, *self.others.values()]
        return set(np.concatenate([self._take(each) for each in maps]).tolist())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        name = f"{fixturedef.baseid}::{fixturedef.argname}"
        before, environment = self._entered(), os.environ[MAP]
        path = str(self.folder / f"fixture-{os.getpid()}-{len(self.others)}.map")
        self.others[path] = self._opened(path, len(self.own))
        os.environ[MAP] = path
        try:
            return (yield)
        finally:
            os.environ[MAP] = environment
            self.fixtures[name] |= self._entered()
            for block in before:
                self.own[block] = 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self.tests[item.nodeid] = np.array(sorted(self._entered()), dtype=np.int32)
            self.long.append(item.get_closest_marker("long") is not None)
            info = getattr(item, "_fixtureinfo", None)
            definitions = info.name2fixturedefs.values() if info else []
            self.uses[item.nodeid] = [
                f"{each.baseid}::{each.argname}"
                for several in definitions
                for each in several
                if each.scope != "function"
            ]

    def pytest_sessionfinish(self) -> None:
        for test, fixtures in self.uses.items():
            self.uses[test] = sorted(set(fixtures))
        np.savez_compressed(
            self.folder / f"worker-{self.worker or 'main'}.npz",
            tests=np.array(list(self.tests), dtype=str),
            uses=np.array([json.dumps(self.uses[test]) for test in self.tests], dtype=str),
            long=np.array(self.long, dtype=bool),
            counts=np.array([len(blocks) for blocks in self.tests.values()], dtype=np.int64),
            blocks=np.concatenate([*self.tests.values(), np.zeros(0, np.int32)]),
            fixtures=np.array(json.dumps({k: sorted(v) for k, v in self.fixtures.items()})),
        )


def pytest_configure(config: pytest.Config) -> None:
    folder = os.environ.get("JUDGEDRIFT_REACH")
    if not folder:
        return
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker or not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(Recorder(Path(folder), worker), "reach")
    else:
        os.environ.pop(MAP, None)  # each worker makes a map of its own


class Reach:
    """Which tests reach a block, by itself or by a shared fixture."""

    def __init__(self, folder: Path) -> None:
        """Read what the workers of a recorded run left in ``folder``."""
        self.tests: list[str] = []
        self.long: set[str] = set()
        self._uses: dict[str, set[str]] = defaultdict(set)
        self._used: dict[str, frozenset[str]] = {}
        self._fixtures: dict[str, set[int]] = defaultdict(set)
        blocks, owners = [], []
        for path in sorted(folder.glob("worker-*.npz")):
            with np.load(path) as data:
                owners.append(np.repeat(np.arange(len(data["tests"])), data["counts"]))
                owners[-1] += len(self.tests)
                blocks.append(data["blocks"])
                self.long |= set(map(str, data["tests"][data["long"]]))
                for test, uses in zip(data["tests"], data["uses"], strict=True):
                    self.tests.append(str(test))
                    self._used[str(test)] = frozenset(json.loads(str(uses)))
                    for fixture in self._used[str(test)]:
                        self._uses[fixture].add(str(test))
                for fixture, entered in json.loads(str(data["fixtures"])).items():
                    self._fixtures[fixture] |= set(entered)
        self._blocks, self._owners = np.concatenate(blocks), np.concatenate(owners)
        self._places = {test: place for place, test in enumerate(self.tests)}
        own = np.bincount(self._owners, minlength=len(self.tests)).tolist()
        self._sizes = {
            test: 1 + count + sum(len(self._fixtures[name]) for name in self._used[test])
            for test, count in zip(self.tests, own, strict=True)
        }

    def size(self, test: str) -> int:
        """How many blocks a test reaches, those of its shared fixtures too."""
        return self._sizes[test]

    def blocks_of(self, test: str) -> np.ndarray:
        """The numbers of the blocks that a test reaches, those of its shared fixtures too."""
        own = self._blocks[self._owners == self._places[test]]
        shared = [list(self._fixtures[name]) for name in self._used[test]]
        return np.unique(np.concatenate([own, *shared]).astype(np.int64))

    def fixtures_of(self, test: str) -> frozenset[str]:
        """Names of the shared fixtures that a test stands on."""
        return self._used[test]

    def of(self, first: int, last: int | None = None, alone: bool = False) -> set[str]:
        """The tests that reach a block, or one of those from ``first`` up to ``last``; with
        ``alone`` without those for which only a fixture that files share does."""
        last = first if last is None else last
        inside = (self._blocks >= first) & (self._blocks <= last)
        tests = {self.tests[owner] for owner in np.unique(self._owners[inside])}
        for fixture, entered in self._fixtures.items():
            is_of_file = ".py::" in fixture
            if (is_of_file or not alone) and any(first <= block <= last for block in entered):
                tests |= self._uses[fixture]
        return tests
