"""``python -m experiments.records merge``: an older study's parts become one file of each kind."""

from pathlib import Path

import pytest

from experiments.pipeline.notes import Notes, Step
from experiments.records import main
from study.cell.folder import CellFolder
from study.cell.parts import parts, read_part
from study.system.files import read_json
from tests.study.test_merged import contents, sample


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A run that has ended and was replayed, and one that has not."""
    folder = tmp_path / "old"
    for kind in ("a-s0/rollouts", "a-s0/verdicts", "replays/r/a-s0/verdicts", "b-s0/verdicts"):
        sample(folder / kind, steps=3)
    for name in ("a-s0", "b-s0"):
        (folder / name / "config.yaml").write_text("seed: 0\n")
    (folder / "a-s0" / "DONE").touch()
    return folder


def files(study: Path) -> dict[str, int]:
    kinds = sorted(study.glob("**/verdicts")) + sorted(study.glob("**/rollouts"))
    return {str(kind.relative_to(study)): len(list(kind.iterdir())) for kind in kinds}


def test_runs_that_have_ended_and_their_replays_are_merged(study, capsys):
    words = ["merge", "study=old", f"runs_dir={study.parent}"]
    before = contents(study / "a-s0" / "verdicts")
    assert main(words) == 0
    assert "of 9 Parquet files of records, 3 were made" in capsys.readouterr().out
    merged = dict.fromkeys(["a-s0/rollouts", "a-s0/verdicts", "replays/r/a-s0/verdicts"], 1)
    assert files(study) == merged | {"b-s0/verdicts": 3}
    assert contents(study / "a-s0" / "verdicts") == before
    assert main(words) == 0
    assert "of 3 Parquet files of records, 3 were made" in capsys.readouterr().out


def test_a_run_that_another_process_holds_stays_as_it_is(study, capsys):
    with CellFolder(study / "a-s0").lock():
        assert main(["merge", "study=old", f"runs_dir={study.parent}"]) == 0
    assert "another process is using a-s0" in capsys.readouterr().out
    assert set(files(study).values()) == {3}


def test_a_study_of_which_nothing_has_ended_is_refused(study, capsys):
    (study / "a-s0" / "DONE").unlink()
    assert main(["merge", "study=old", f"runs_dir={study.parent}"]) == 2
    assert "has no finished run" in capsys.readouterr().err


@pytest.mark.parametrize("damaged", [False, True])
def test_a_pipeline_that_noted_the_parts_knows_the_merged_file(study, damaged):
    """And a part that was damaged before is still not what was noted."""
    kind = study / "a-s0" / "verdicts"

    step = Step("train", "train", (), {}, list, lambda: [part.path for part in parts(kind)])
    notes = Notes(study)
    notes.begin(step, {})
    notes.end(step)
    if damaged:
        sample(kind, steps=1, rows=1)
    assert Notes(study).look(step).done is not damaged
    assert main(["merge", "study=old", f"runs_dir={study.parent}"]) == 0
    outcome = Notes(study).look(step)
    assert outcome.done is not damaged, outcome.why
    assert len(read_part(parts(kind)[1])) == 3
    noted = read_json(study / "pipeline.json")["steps"]["train"]["leaves"]
    assert len(noted) == (3 if damaged else 1)
