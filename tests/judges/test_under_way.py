"""Requests that are under way from all processes."""

import os
import subprocess
import sys
from pathlib import Path

from judges.endpoint.under_way import LOOK_S, MOST_EACH, UnderWay

CHILD = """
import sys
from pathlib import Path
from judges.endpoint.under_way import UnderWay
under_way = UnderWay()
under_way.share(Path(sys.argv[1]))
under_way.change(5)
print("counted", flush=True)
sys.stdin.read()
"""


class Clock:
    """Goes on when it is told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_all_processes_count_and_a_killed_one_no_longer(tmp_path: Path) -> None:
    clock = Clock()
    here = UnderWay(clock)
    here.change(2)
    assert here.total() == 2
    here.share(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"counted\n"
        assert here.total() == 2  # it looks for others now and then
        clock.now += 2 * LOOK_S
        assert here.total() == 7
        here.change(-1)
        assert here.total() == 6
        child.kill()
    clock.now += 2 * LOOK_S
    assert here.total() == 1


def test_damaged_numbers_count_as_none(tmp_path: Path) -> None:
    clock = Clock()
    first, second = UnderWay(clock), UnderWay(clock)
    first.share(tmp_path)
    second.share(tmp_path)
    clock.now += 2 * LOOK_S
    (file,) = [path for path in sorted(tmp_path.iterdir()) if path.name.endswith("1")]
    second.change(1)
    assert first.total() == 1
    for number in (-1, MOST_EACH + 1):
        file.write_bytes(number.to_bytes(8, "little", signed=True))
        assert first.total() == 0
    os.truncate(file, 3)
    assert first.total() == 0


def test_where_no_file_can_be_made_a_process_counts_alone(tmp_path: Path) -> None:
    here = UnderWay()
    here.share(tmp_path / "missing")
    here.change(3)
    assert here.total() == 3
