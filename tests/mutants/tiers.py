"""Which tests `make test` may leave to ``LONG=1``: those whose code others reach.

``python -m tests.mutants.tiers record=FOLDER`` reads what `python -m tests.mutants` recorded, takes
the tests that cost at least ``floor`` seconds of CPU, the dearest first, and leaves each to LONG if
at least ``others`` tests of the standard tier, or all that there are, still reach every block that
it reaches. So it does with the tests of a shared fixture that costs at least ``fixture`` seconds,
where one other test is enough. The names go to ``tests/long.txt``, which `conftest` reads.

A test that reaches what others reach may assert what they do not, so try planted faults afterwards;
`KEPT` are those whose assertion is about a whole and not about the blocks on its way.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from study.cli import command, option
from study.config import bounds
from tests.mutants.reach import Reach

LIST = Path(__file__).resolve().parents[1] / "long.txt"
KEPT = (
    *("tests/experiments/test_one_interval.py", "tests/invariants/test_house.py"),
    *("tests/faults/test_canary.py", "tests/faults/test_kill.py", "tests/study/test_stopping.py"),
    *("tests/experiments/workflow/test_isolation.py", "tests/study/sandbox/", "kill_9", "forgery"),
    *("secret", "_key_", "_keys.py", "keys_of_the_judges", "hostile"),
)
"""Parts of names."""


@dataclass(frozen=True)
class Options:
    """The command line; see the module."""

    record: Path = option("folder that `python -m tests.mutants` recorded")
    others: int = option(
        "tests that still reach each block of a test left out", 2, bounds.Number(low=1)
    )
    floor: float = option("CPU seconds of a test, at least", 0.2, bounds.Number(low=0.0))
    fixture: float = option("CPU seconds of a shared fixture, at least", 10.0, bounds.Number(low=0))


def seconds_of(path: Path, column: str) -> dict[str, float]:
    """CPU seconds by name, all rows of a name together."""
    seconds: dict[str, float] = defaultdict(float)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            seconds[row[column]] += float(row["cpu_s"])
    return dict(seconds)


def left_out(
    blocks: Mapping[str, np.ndarray],
    seconds: Mapping[str, float],
    fixtures: Mapping[str, tuple[float, list[str]]],
    others: int,
) -> set[str]:
    """The tests of ``blocks`` that may be left out; see the module.

    Args:
        blocks: test -> numbers of the blocks that it reaches, those of its fixtures too.
        seconds: test -> what it costs, of those that may be left out.
        fixtures: shared fixture -> what it costs, and the tests that stand on it.
    """
    reached = np.bincount(np.concatenate(list(blocks.values())))
    counts, out = reached.copy(), set()
    for test in sorted(seconds, key=lambda name: (-seconds[name], name)):
        here = blocks[test]
        if np.all(counts[here] - 1 >= np.minimum(reached[here], others)):
            counts[here] -= 1
            out.add(test)
    for name in sorted(fixtures, key=lambda name: -fixtures[name][0]):
        users = [test for test in fixtures[name][1] if test not in out]
        fewer = counts.copy()
        for test in users:
            fewer[blocks[test]] -= 1
        if users and np.all(fewer[reached > 0] >= 1):
            counts, out = fewer, out | set(users)
    return out


def chosen(options: Options) -> set[str]:
    """The names that go to the list, with what is there already."""
    reach = Reach(options.record)
    blocks = {test: reach.blocks_of(test) for test in reach.tests if test not in reach.long}
    seconds = seconds_of(options.record / "times.csv", "test")
    dear = {
        test: seconds[test]
        for test in blocks
        if seconds.get(test, 0.0) >= options.floor and not _is_kept(test)
    }
    cost = seconds_of(options.record / "fixtures.csv", "fixture")
    users = {
        name: [test for test in blocks if name in reach.fixtures_of(test)]
        for name in cost
        if cost[name] >= options.fixture
    }
    fixtures = {
        name: (cost[name], tests) for name, tests in users.items() if not any(map(_is_kept, tests))
    }
    return left_out(blocks, dear, fixtures, options.others)


def _is_kept(test: str) -> bool:
    return any(part in test for part in KEPT)


@command("tests.mutants.tiers record=build/mutants/0123456789abcdef", __doc__ or "", Options)
def main(options: Options) -> int:
    names = chosen(options) | set(LIST.read_text(encoding="utf-8").splitlines())
    LIST.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
    print(f"{len(names)} tests are left to LONG=1: {LIST}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
