"""Children of the pool: each with its own log and exit code, none that outlives its sweep."""

import os

import pytest

from experiments.launch.pool import surroundings
from experiments.plan.preflight import check_device
from experiments.sweep import cells_of
from study.errors import UserError
from study.finding import stop_at_problem
from study.system import machine
from tests.experiments import fake_cells
from tests.waiting import GENEROUS_S, alive, wait_for

DRIVER = """
import sys, time, os
from pathlib import Path
from experiments.launch import pool
from study.cell.folder import CellFolder

def body(folder, threads):
    print('ran in', folder.name, 'with', threads)
    if folder.name == 'dies':
        os.kill(os.getpid(), 9)
    if folder.name == 'sleeps':
        (folder / 'pid').write_text(str(os.getpid()))
        time.sleep(3600)
    return {'good': 0, 'bad': 1}[folder.name]

pool.run_cell = body
pool.PRELOAD = ['driver']
if __name__ == '__main__':
    folders = [CellFolder(Path(name)) for name in sys.argv[1:]]
    ended = []
    codes = pool.run_pool(folders, 2, 3, lambda folder, code: ended.append((folder.name, code)))
    print(sorted((folder.name, code) for folder, code in codes.items()) == sorted(ended), codes)
"""


@pytest.fixture
def driver(tmp_path):
    """A script whose children do not train; forked children see its replaced body."""

    def start(*names):
        folders = [tmp_path / name for name in names]
        for folder in folders:
            folder.mkdir()
        return fake_cells.drive(DRIVER, tmp_path, folders)

    return start


def test_each_child_has_its_exit_code_and_its_log(driver, tmp_path):
    out, _ = driver("good", "bad", "dies").communicate(timeout=GENEROUS_S)
    assert out.startswith("True")
    for name, code in (("good", 0), ("bad", 1), ("dies", -9)):
        assert f"{name}')): {code}" in out
    assert "ran in good with 3" in (tmp_path / "good" / "log.txt").read_text()
    assert "ran in bad" in (tmp_path / "bad" / "log.txt").read_text()


def test_a_child_leaves_when_its_sweep_is_killed(driver, tmp_path):
    child = driver("sleeps")
    file = tmp_path / "sleeps" / "pid"
    pid = int(wait_for(lambda: file.exists() and file.read_text()))
    child.kill()
    child.communicate()
    wait_for(lambda: not alive(pid))


def test_a_device_is_told_to_cells_and_to_nobody_else(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(machine, "gpus", lambda: [("NVIDIA", 2**37)] * 8)
    for device, visible in (("", "5"), ("cpu", ""), ("cuda:0", "5")):
        before = dict(os.environ)
        with surroundings(device):
            assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
            assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
        assert dict(os.environ) == before


def test_cells_of_one_sweep_compute_on_one_device():
    words = ["debug=tiny", "judge=sim-fair", "seed=0"]
    stop_at_problem(check_device(cells_of([*words, "device=cpu"])))
    first, second = (cells_of([*words, f"device={name}"])[0] for name in ("cpu", "cuda:3"))
    assert first.id == second.id
    with pytest.raises(UserError, match="one value for all cells"):
        stop_at_problem(check_device(cells_of([*words, "device=cpu,cuda:3"])))
