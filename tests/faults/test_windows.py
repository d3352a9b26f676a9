"""A cell that is killed between any two of its writes ends as one that was never disturbed."""

import contextlib
import os
import random
import re
import sqlite3
import sys
from functools import partial
from signal import SIGKILL

import pytest

from experiments import sweep
from experiments.launch import pool
from study.cell.folder import study_cells
from tests.conftest import ROOT
from tests.faults import kills, lives, windows


@pytest.fixture(scope="module")
def whole(small_study):
    folder = next(path for path in study_cells(small_study) if "sim-flaky" in path.name)
    assert any(row["advantage"] for row in lives.parts(folder.path, "rollouts")), (
        "nothing was learned"
    )
    return folder.path


KINDS = (
    *("status.json", "environment.json", "mlflow.json", "rollouts/step-000002.parquet"),
    *("checkpoint-1/COMPLETE", "policy", "verdicts/steps-000001-000002.parquet", "DONE"),
)
"""A file of each kind that a cell names: its state, where it runs, the way to MLflow, a part, a
checkpoint, the policy, what is merged, the end."""


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(f"rename .*/({'|'.join(map(re.escape, KINDS))})$", id="of each kind"),
        pytest.param("rename", marks=pytest.mark.long, id="every"),
    ],
)
def test_killed_once_before_a_file_that_it_names(whole, tmp_path, wanted):
    """Each run of one cell is killed at the first rename at which none was killed before."""
    folder = lives.lay(tmp_path / "runs", whole)
    passed = kills.killed_in_turn(folder, tmp_path / "windows.txt", wanted)
    for written in KINDS:
        assert any(name.startswith("rename") and name.endswith(written) for name in passed), written
    assert kills.finished(folder, whole, "the cell") == []


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_killed_once_before_every_file_it_names(whole, tmp_path):
    """Its own files: the study, the cells' configs, the summary."""
    runs_dir, names = tmp_path / "runs", tmp_path / "windows.txt"
    folder = lives.lay(runs_dir, whole)
    (folder / "config.yaml").unlink()
    sweep_once = partial(swept, runs_dir, names, lives.FLAKY)
    while (code := lives.run(folder, sweep_once)) == -SIGKILL:
        pass
    assert code == 0, (folder / "log.txt").read_text()
    passed = names.read_text()
    for written in ("study.json", "config.yaml", "status.json", "summary.json"):
        assert f"{written}\n" in passed, passed
    assert lives.differences(folder, whole) == []
    with contextlib.closing(sqlite3.connect(runs_dir / "mlflow.db")) as store:
        assert store.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)] * 2
