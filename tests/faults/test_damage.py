"""Every way to spoil a file of a study, read as an analysis reads it: said, and nobody else lost.

``python -m tests.faults.damage`` puts each to every command, in finished and half-finished studies.
"""

import random
import shutil
from collections import Counter

import pytest

from experiments.plan import plan
from study.cell import cells, verify
from study.cell.folder import CellFolder, study_cells
from study.cell.study_file import read_study
from study.system import files
from study.system.files import Damaged, read_json
from tests.faults import damage


@pytest.fixture(scope="module")
def source(small_study, tmp_path_factory):
    """A small copy of the study: one cell of each judge, and what an analysis reads of it."""
    runs_dir = tmp_path_factory.mktemp("source") / "runs"
    skip = ("checkpoint-*", "policy", "report", "replays", "*.damaged")
    others = ("sim-fair-s4-*", "sim-flaky-s3-*")
    study = damage.study_of(runs_dir)
    shutil.copytree(small_study, study, ignore=shutil.ignore_patterns(*skip, *others))
    assert len(study_cells(study)) == 2
    return runs_dir


def some_short() -> list[object]:
    """All cases; without ``LONG=1`` every way to spoil a file, and two of them for each file."""
    ways, files_taken, short = set(), Counter(), set()
    for case in random.Random(0).sample(damage.CASES, len(damage.CASES)):
        if case.how not in ways or files_taken[case.file] < 2:
            short.add(case)
            ways.add(case.how)
            files_taken[case.file] += 1
    return [
        pytest.param(case, marks=() if case in short else pytest.mark.long, id=case.name)
        for case in damage.CASES
    ]


@pytest.mark.parametrize("case", some_short())
def test_no_damage_is_silent_or_fatal(source, case):
    (result,) = damage.trials(source, [case], [damage.read], unfinished=False)
    assert not result.bad, result.said


def test_a_status_is_made_again_from_the_records(source, tmp_path):
    runs_dir = tmp_path / "runs"
    shutil.copytree(source, runs_dir)
    folder = damage.victim(damage.study_of(runs_dir))
    cell = cells.load_cell(CellFolder(folder))
    (folder / "DONE").unlink()
    for text in ("", '{"state": "runn', '{"state": 5, "step": "five"}'):
        (folder / "status.json").write_text(text)
        assert CellFolder(folder).state() == "killed"  # it has records, and nobody holds its lock
        assert CellFolder(folder).status()["step"] == 2
        (line,) = plan.rows([cell], ["judge", "seed"])
        assert (line["state"], line["step"]) == ("killed", "2/2")
    verify.mend(cell)
    assert read_json(folder / "status.json")["step"] == 2


def test_a_study_is_made_again_from_its_cells(source, tmp_path):
    runs_dir = tmp_path / "runs"
    shutil.copytree(source, runs_dir)
    study = damage.study_of(runs_dir)
    whole = read_json(study / "study.json")
    (study / "study.json").write_text('{"factors": ["ju')
    again = read_study(study)
    assert {key: again[key] for key in ("study", "factors", "base")} == {
        key: whole[key] for key in ("study", "factors", "base")
    }
    assert again["mlflow"].items() <= whole["mlflow"].items()


def test_a_cut_config_is_refused_and_written_again_by_the_sweep(source, tmp_path):
    runs_dir = tmp_path / "runs"
    shutil.copytree(source, runs_dir)
    folder = damage.victim(damage.study_of(runs_dir))
    cell = cells.load_cell(CellFolder(folder))
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text[: len(text) // 2].rsplit("\n", 1)[0] + "\n")
    said = verify.unsound(cell)
    assert any("is not the config of this folder" in line for line in said)
    verify.mend(cell)
    assert cells.load_cell(CellFolder(folder)).id == cell.id and verify.unsound(cell) == []


def test_the_remedy_of_a_damaged_file_is_a_command_that_can_be_pasted(tmp_path):
    path = tmp_path / "a b.json"
    path.write_text("")
    with pytest.raises(Damaged, match="is empty") as caught:
        read_json(path)
    assert str(caught.value).endswith(f"mv '{path}' '{path}.damaged'")
    assert "\n" not in str(caught.value)


def test_what_is_wrong_is_said_once(capsys):
    files.PRINTED_LINES.clear()
    files.say("one thing")
    files.say("one thing")
    assert capsys.readouterr().err == "one thing\n"
