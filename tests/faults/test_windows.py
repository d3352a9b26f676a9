"""A cell that is killed between any two of its writes ends as one that was never disturbed."""

import contextlib
import sqlite3
import subprocess
import sys

import pytest

from experiments import cells
from tests.conftest import ROOT
from tests.faults import kills, lives


@pytest.fixture(scope="module")
def whole(small_study):
    folder = next(path for path in cells.study_cells(small_study) if "sim-flaky" in path.name)
    assert any(row["advantage"] for row in lives.parts(folder, "rollouts")), "nothing was learned"
    return folder


@pytest.mark.parametrize(
    ("wanted", "least"),
    [("rename", 13), pytest.param("", 60, marks=pytest.mark.slow)],
    ids=["renames", "all"],
)
def test_killed_once_in_every_window_of_its_life(whole, tmp_path, wanted, least):
    folder = lives.lay(tmp_path / "runs", whole)
    passed = kills.killed_in_turn(folder, tmp_path / "windows.txt", wanted)
    assert len(passed) >= least, passed
    for written in ("status.json", "environment.json", "COMPLETE", "policy", "mlflow.json", "DONE"):
        assert any(name.startswith("rename") and name.endswith(written) for name in passed), written
    assert kills.finished(folder, whole, "the cell") == []


SWEEP = """
import sys
from pathlib import Path
from tests.faults import windows
from experiments import sweep
windows.kill_at_new(Path(sys.argv.pop(1)), Path(sys.argv.pop(1)), "rename")
sys.exit(sweep.main())
"""


@pytest.mark.slow
def test_a_sweep_killed_once_before_every_file_it_names(tmp_path):
    """Its own files: the study, the cells' configs, the report, the summary."""
    (whole,) = lives.unbroken(tmp_path / "whole", "judge=sim-fair", "seed=0", "trainer.steps=1")
    runs_dir, names = tmp_path / "runs", tmp_path / "windows.txt"
    runs_dir.mkdir()
    arguments = ["debug=tiny", "judge=sim-fair", "seed=0", "trainer.steps=1"]

    def again():
        return subprocess.run(
            [sys.executable, "-c", SWEEP, runs_dir, names, f"runs_dir={runs_dir}", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )

    while (done := again()).returncode == -9:
        pass
    assert done.returncode == 0, done.stdout + done.stderr
    passed = names.read_text()
    for written in ("study.json", "config.yaml", "status.json", "summary.json"):
        assert f"{written}\n" in passed, passed
    folder = runs_dir / "debug" / whole.name
    assert lives.differences(folder, whole) == []
    assert (runs_dir / "debug" / "report" / "bias_report.html").exists()
    with contextlib.closing(sqlite3.connect(runs_dir / "mlflow.db")) as store:
        assert store.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)] * 2
