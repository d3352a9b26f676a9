"""A cell that is killed between any two of its writes ends as one that was never disturbed."""

from functools import partial

import pytest

from experiments import cells
from tests.faults import kills, lives, windows


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
    """Each run of the same cell is killed at the first window in which none was killed before."""
    runs_dir, names = tmp_path / "runs", tmp_path / "windows.txt"
    folder = lives.lay(runs_dir, whole)
    stop = partial(windows.kill_at_new, runs_dir, names, wanted)
    while (code := lives.run(folder, stop)) == -9:
        pass
    passed = names.read_text().splitlines()
    assert code == 0 and len(passed) >= least, passed
    for written in ("status.json", "environment.json", "COMPLETE", "policy", "mlflow.json", "DONE"):
        assert any(name.startswith("rename") and name.endswith(written) for name in passed), written
    assert kills.finished(folder, whole, "the cell") == []
