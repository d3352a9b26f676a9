"""A study is the same study, whatever runs its cells."""

import json
import re
import shutil
from pathlib import Path

import pytest

from study.cell.folder import study_cells
from tests.conftest import SMALL_STUDY
from tests.faults import lives


def summary(study_dir: Path) -> str:
    """What a report says, without the folder in its commands."""
    text = (study_dir / "report" / "summary.json").read_text()
    return re.sub(r"(?<=runs_dir=)[^\s\"]+", "RUNS", text)


def same(study_dir: Path, whole: Path) -> None:
    """Both have the same cells, records, verdicts and weights, and reports that say the same."""
    folders = study_cells(study_dir)
    assert [folder.name for folder in folders] == [f.name for f in study_cells(whole)]
    for folder in folders:
        assert lives.differences(folder.path, whole / folder.name) == []
    assert summary(study_dir) == summary(whole)


@pytest.mark.long
@pytest.mark.slow
def test_two_machines_without_a_folder_in_common(trained, small_study, tmp_path) -> None:
    """Each runs its share; the folders are copied together, and the plain command reports."""
    for number in (1, 2):
        done = trained(tmp_path / f"{number}", *SMALL_STUDY, f"shard={number}/2")
        assert done.returncode == 0, done.stdout + done.stderr
        study_dir = tmp_path / f"{number}" / "debug"
        assert len(study_cells(study_dir)) == 2
        assert "Of the other shards 2 cells are not done" in done.stdout
        assert not (study_dir / "report").exists()
    both = tmp_path / "1"
    shutil.copytree(tmp_path / "2" / "debug", both / "debug", dirs_exist_ok=True)
    done = trained(both, *SMALL_STUDY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All 4 cells of debug are done; nothing to run." in done.stdout
    same(both / "debug", small_study)


@pytest.mark.long
@pytest.mark.slow
def test_jobs_that_submitit_starts(trained, small_study, tmp_path) -> None:
    pytest.importorskip("submitit", reason="needs the extra: pip install -e .[slurm]")
    words = ("sweep.engine=slurm", "sweep.slurm.cluster=local", "sweep.workers=2")
    done = trained(tmp_path, *SMALL_STUDY, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 cells to run as jobs of local" in done.stdout
    same(tmp_path / "debug", small_study)
    assert all("---" in (f / "log.txt").read_text() for f in study_cells(tmp_path / "debug"))
    assert json.loads((tmp_path / "debug" / ".jobs" / "jobs.json").read_text()) == {}
