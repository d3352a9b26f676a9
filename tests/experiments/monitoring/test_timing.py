"""Where a study's time went: of a trained one, and what is said where nothing is known."""

import json

import pytest

from experiments.monitor.timing import main
from study.cell.folder import study_cells
from study.cell.timing import sentence, timing_of
from study.system.files import read_json, write_json


def timing(study, *words):
    return main([f"study={study.name}", f"runs_dir={study.parent}", *words])


def test_every_second_of_a_run_is_in_one_account(small_study, tmp_path, capsys):
    assert timing(small_study, f"out={tmp_path / 'timing.json'}") == 0
    said = capsys.readouterr().out
    folders = study_cells(small_study)
    numbers = json.loads((tmp_path / "timing.json").read_text())
    accounts = numbers["accounts"]
    assert numbers["runs"] == 4 and numbers["steps"] == 8
    assert {"starting", "warming", "generating", "judging", "updating", "recording", "saving"} <= {
        *accounts
    }
    assert accounts["generating"]["times"] == 8
    seconds = sum(each["seconds"] for each in accounts.values())
    ran = sum(folder.status()["seconds"] for folder in folders)
    # the runs' own seconds begin a little later, when the process has imported what runs them
    assert seconds >= 0.98 * ran
    assert sum(numbers["judging"].values()) <= accounts["judging"]["seconds"]
    assert numbers["own_s"] < 0.01 * seconds
    assert "waiting for the judge" in said and "4 runs of 8 steps took" in said
    sweeps = numbers["sweeps"]
    assert set(sweeps) == {"starting", "waiting", "reporting", "closing"}
    # the runs end while their sweep waits for them, and it has its own imports and checks before
    assert sweeps["waiting"]["seconds"] >= 0.98 * numbers["wall_s"]
    assert sweeps["starting"]["cpu_s"] > 0 and "sweep: reporting" in said


def test_runs_of_an_earlier_version_keep_none(small_study, tmp_path, capsys):
    folders = study_cells(small_study)
    status = read_json(folders[0] / "status.json")
    path = folders[0] / "status.json"
    try:
        old = {key: value for key, value in status.items() if key not in ("spent", "file_digest")}
        write_json(path, old, signed=True)
        assert timing(small_study) == 0
        assert "1 run of an earlier version keep no account" in capsys.readouterr().out
        assert timing_of(folders[:1]).runs == 0
    finally:
        write_json(path, {k: v for k, v in status.items() if k != "file_digest"}, signed=True)


def test_a_study_without_a_run_is_told_what_to_do(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.json").write_text('{"study": "mine"}')
    assert timing(tmp_path / "mine") == 2
    assert "Train one with this one." in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("number", [1, 4])
def test_the_sentence_names_the_dearest_three(small_study, number):
    found = timing_of(study_cells(small_study)[:number])
    text = sentence(found)
    dearest = max(found.accounts, key=lambda name: found.accounts[name].seconds)
    assert text.partition(": ")[2].startswith(dearest)
    assert text.count("%") == 3
