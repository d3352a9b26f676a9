"""Locks on files: one holder, and none once the holder is gone."""

import math
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from study.system import locks
from tests.conftest import python
from tests.waiting import GENEROUS_S

HOLD = (
    "import sys, time; from pathlib import Path; from study.system import locks\n"
    "file = locks.take(Path(sys.argv[1])); print(file is not None, flush=True); time.sleep(600)"
)


@pytest.fixture
def holder(tmp_path):
    """A lock file and another process that holds it."""
    path = tmp_path / "lock"
    with python(HOLD, path) as child:
        assert child.stdout is not None and child.stdout.readline() == "True\n"
        yield path, child
        child.kill()


def test_one_process_holds_it_until_it_dies(holder):
    path, child = holder
    assert locks.take(path) is None and locks.take(path, 0.1) is None
    with pytest.raises(locks.LockTimeout, match="lock is held"), locks.held(path, 0.1):
        raise AssertionError("held twice")
    child.send_signal(signal.SIGSTOP)
    assert locks.take(path) is None, "a process that stands still holds what it holds"
    child.kill()
    with locks.held(path, GENEROUS_S):
        assert locks.take(path) is None


def test_waiting_without_end_ends_with_the_holder(holder):
    path, child = holder
    threading.Timer(0.2, child.kill).start()
    with locks.held(path):
        assert child.wait() == -signal.SIGKILL


def test_threads_take_turns(tmp_path):
    """Two openings of one file in one process are two holders."""
    inside, most = 0, 0

    def work(_):
        nonlocal inside, most
        for _ in range(50):
            with locks.held(tmp_path / "lock"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert (inside, most) == (0, 1)


@pytest.mark.parametrize("wait_s", [0.0, 1.0, math.inf])
def test_nothing_stays_open(tmp_path, wait_s):
    """Also where the block ends in an error; a child that is executed does not hold the lock."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyError), locks.held(tmp_path / "lock", wait_s):
        child = subprocess.Popen(["sleep", "600"])
        raise KeyError
    with locks.held(tmp_path / "lock", 0):
        assert locks.take(tmp_path / "lock") is None
    child.kill()
    child.wait()
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
