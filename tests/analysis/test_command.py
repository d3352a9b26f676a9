"""The command line that analyses of one study share, and what it says to a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.command import study_command, write_json
from study.errors import UserError

USAGE = "python -m analysis.x study=NAME"


@pytest.fixture
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "study.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_a_study_is_a_name_in_the_folder_of_runs(runs_dir: Path) -> None:
    given, folder = study_command(["study=first", "out=a=b"], ("out",), USAGE)
    assert given == {"study": "first", "out": "a=b"}
    assert folder == runs_dir / "first" and folder.is_absolute()
    assert study_command(["study=second", "runs_dir=./runs"], (), USAGE)[1].samefile(
        runs_dir / "second"
    )
    assert study_command(["study=second", f"runs_dir={runs_dir}"], (), USAGE)[1] == (
        runs_dir / "second"
    )


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "study= is wrong: no study was named. Legal are study, runs_dir, out."),
        (["study="], "study= is wrong"),
        (["out=x"], "study= is wrong"),
        (["study=first", "colour=red"], "colour is wrong. Legal are study, runs_dir, out."),
        (["first"], "first is wrong"),
        (["=first"], "= is wrong"),
        (["study=third"], "holds first, second. Type: "),
        (["study=third", "runs_dir=nowhere"], "nowhere holds no study. Type: "),
        (["study=runs/first"], "study=first runs_dir=runs. Type: "),
    ],
)
def test_what_is_wrong_is_said_with_what_to_type(
    runs_dir: Path, words: list[str], said: str
) -> None:
    with pytest.raises(UserError) as raised:
        study_command(words, ("out",), USAGE)
    assert said in str(raised.value) and str(raised.value).endswith(USAGE)


@pytest.mark.parametrize("key", ["out", "figure"])
def test_a_file_that_cannot_be_written_is_said_before_the_work(runs_dir: Path, key: str) -> None:
    for place, said in (
        ("nowhere/file", f"there is no folder {runs_dir.parent / 'nowhere'}. Type: mkdir -p"),
        ("runs", f"it is a folder. Name a file in it: {key}=runs/NAME"),
    ):
        with pytest.raises(UserError) as raised:
            study_command(["study=first", f"{key}={place}"], ("out", "figure"), USAGE)
        assert str(raised.value).startswith(f"{key}={place} cannot be written: ")
        assert said in str(raised.value)


def test_missing_numbers_are_null_in_what_is_written(runs_dir: Path) -> None:
    found = {"r2": float("nan"), "peak": float("inf"), "runs": [{"n": 3, "low": -0.5}]}
    write_json("found.json", found)
    text = Path("found.json").read_text()
    assert json.loads(text) == {"r2": None, "peak": None, "runs": [{"n": 3, "low": -0.5}]}
    with pytest.raises(UserError, match="out=runs cannot be written"):
        write_json("runs", found)


def test_every_analysis_of_one_study_takes_the_same(
    runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from analysis import (
        crossjudge,
        dose,
        forecast,
        ledger,
        mediation,
        natural,
        onset,
        overopt,
        propagation,
    )

    for module in (
        *(crossjudge, dose, forecast, ledger, mediation),
        *(natural, onset, overopt, propagation),
    ):
        assert module.main(["study=third", "runs_dir=runs"]) == 2
        said = capsys.readouterr().err
        assert "holds first, second" in said and f"python -m {module.__name__} study=" in said
        assert module.main(["study=runs/first"]) == 2
        assert "study=first runs_dir=runs" in capsys.readouterr().err
