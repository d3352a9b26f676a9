"""A cell that is killed between any two of its writes ends as one that was never disturbed."""

import contextlib
import os
import random
import sqlite3
import sys
from functools import partial
from signal import SIGKILL

import pytest

from experiments import sweep
from experiments.launch import pool
from study import cells
from tests.conftest import ROOT
from tests.faults import kills, lives, windows


@pytest.fixture(scope="module")
def whole(small_study):
    folder = next(path for path in cells.study_cells(small_study) if "sim-flaky" in path.name)
    assert any(row["advantage"] for row in lives.parts(folder, "rollouts")), "nothing was learned"
    return folder


def test_killed_once_before_every_file_that_it_names(whole, tmp_path):
    """Each run of one cell is killed at the first rename at which none was killed before."""
    folder = lives.lay(tmp_path / "runs", whole)
    passed = kills.killed_in_turn(folder, tmp_path / "windows.txt", "rename")
    for written in ("status.json", "environment.json", "COMPLETE", "policy", "mlflow.json", "DONE"):
        assert any(name.startswith("rename") and name.endswith(written) for name in passed), written
    assert kills.finished(folder, whole, "the cell") == []


@pytest.mark.slow
def test_killed_at_random_times(whole, tmp_path):
    """A few of the kills of ``python -m tests.faults.kills``, which does the same without end."""
    assert kills.at_random(tmp_path, [whole], 6, random.Random(0)) == []


def swept(runs_dir, names, arguments):
    """The whole of a child: a sweep that is killed before the next file it names; the server that
    its cells are forked from imports what a cell needs only when there is one."""
    windows.kill_at_new(runs_dir, names, "rename")
    pool.PRELOAD.clear()
    os.chdir(ROOT)
    sys.argv = ["experiments.sweep", f"runs_dir={runs_dir}", *lives.TINY, *arguments]
    sys.exit(sweep.main())


@pytest.mark.slow
def test_a_sweep_killed_once_before_every_file_it_names(whole, tmp_path):
    """Its own files: the study, the cells' configs, the summary."""
    runs_dir, names = tmp_path / "runs", tmp_path / "windows.txt"
    folder = lives.lay(runs_dir, whole)
    (folder / "config.yaml").unlink()
    arguments = ["judge=sim-flaky", "seed=3", "shadow=[sim-verbose]"]
    while (code := lives.run(folder, partial(swept, runs_dir, names, arguments))) == -SIGKILL:
        pass
    assert code == 0, (folder / "log.txt").read_text()
    passed = names.read_text()
    for written in ("study.json", "config.yaml", "status.json", "summary.json"):
        assert f"{written}\n" in passed, passed
    assert lives.differences(folder, whole) == []
    with contextlib.closing(sqlite3.connect(runs_dir / "mlflow.db")) as store:
        assert store.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)] * 2
