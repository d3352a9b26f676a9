"""The end of a sweep: its report, its notebook, each whatever becomes of the other, and its run."""

from contextlib import suppress
from pathlib import Path

import pytest

import analysis
from experiments.launch import run
from study.system.storage import DiskError
from tests.conftest import came_of
from tests.experiments.fake_cells import laid


@pytest.mark.parametrize("broken", ["report", "notebook"])
def test_what_cannot_be_written_is_called_by_its_name_and_the_other_is_written(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (cell,) = todo = laid(tmp_path, 1, report=True)
    (cell.folder / "DONE").touch()
    written: list[str] = []

    def writes(what: str) -> None:
        if what == broken:
            raise ValueError("\x1b[2Jodd rows")
        written.append(what)

    monkeypatch.setattr(analysis, "write_report", lambda folder: writes("report"))
    monkeypatch.setattr(run, "write_notebook", lambda folder: writes("notebook"))
    run.report(todo, stale=True)
    printed = capsys.readouterr().out
    module = {"report": "analysis.report", "notebook": "experiments.notebook"}[broken]
    assert f"The {broken} was not written (ValueError: \\x1b[2Jodd rows)." in printed
    assert f"type: python -m {module} study=fake runs_dir={cell.config.runs_dir}" in printed
    assert written == [{"report": "notebook", "notebook": "report"}[broken]]
    assert printed.count("was not written") == 1
    assert ("report written in" in printed) == (broken == "notebook")


@pytest.mark.parametrize(
    "error, status",
    [
        (ValueError(), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (came_of(KeyboardInterrupt(), AttributeError("half built")), "KILLED"),
        (DiskError("The disk is full."), "KILLED"),
        (None, "FINISHED"),
    ],
)
def test_how_a_sweep_ends_is_how_the_run_of_its_study_ends(error, status, tmp_path, monkeypatch):
    todo = laid(tmp_path, 1)
    ends: list[str] = []
    monkeypatch.setattr(run, "_lay", lambda *_: None)
    monkeypatch.setattr(run, "_close_tracking", lambda ids, status, *_: ends.append(status))
    expected = suppress(ValueError, AttributeError, KeyboardInterrupt, DiskError)
    with expected, run._opened(todo, todo, todo):
        if error is not None:
            raise error
    assert ends == [status]
