"""A stalled cell is ended and goes on; nobody else is touched."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments.monitor import restart
from experiments.monitor.__main__ import main
from experiments.monitor.read import StudyReader, View
from study.cell.folder import CellFolder, study_cells
from tests.conftest import ROOT
from tests.experiments.monitoring.studies import run
from tests.waiting import GENEROUS_S, wait_for

HOLDER = """
import signal, sys, time
from pathlib import Path
from study.cell.folder import CellFolder
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = CellFolder(Path(sys.argv[1])).lock() if sys.argv[2] != "other" else None
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hold() -> Iterator[Callable[[Path, str], subprocess.Popen[str]]]:
    """Starts processes that hold a cell and do nothing."""
    processes: list[subprocess.Popen[str]] = []

    def start(folder: Path, kind: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(folder), kind or "plain"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def no_training(monkeypatch) -> list[Path]:
    """The folders of which the training was started again."""
    folders: list[Path] = []

    def start(folder: Path) -> str:
        folders.append(folder)
        return "process 4321 resumes from the last checkpoint."

    monkeypatch.setattr(restart, "_start", start)
    return folders


def stalled(folder: CellFolder, pid: int, **changes: object) -> View:
    run(folder, 3, silent_s=300, pid=pid, **changes)
    (view,) = StudyReader(folder.study_dir).views()
    return view


def test_the_process_ends_and_the_cell_goes_on(folder, hold, no_training):
    holder = hold(folder)
    view = stalled(folder, holder.pid)
    assert view.stalled
    assert f"process {holder.pid} ended on SIGTERM; process 4321 goes on" in restart.restart(view)
    assert holder.wait(GENEROUS_S) == -signal.SIGTERM and no_training == [folder]


@pytest.mark.parametrize("kind", ["deaf", "stopped"])
def test_a_process_that_does_not_hear_is_killed(folder, hold, no_training, monkeypatch, kind):
    monkeypatch.setattr(restart, "STOP_S", 0.3)
    holder = hold(folder, kind)
    if kind == "stopped":
        holder.send_signal(signal.SIGSTOP)
    assert "was killed; process 4321 goes on" in restart.restart(stalled(folder, holder.pid))
    assert holder.wait(GENEROUS_S) == -signal.SIGKILL and no_training == [folder]


def test_another_process_of_that_number_is_left_alone(folder, hold, no_training):
    hold(folder)
    other = hold(folder, "other")
    said = restart.restart(stalled(folder, other.pid))
    assert "may not be the one" in said and "was not restarted" in said
    assert other.poll() is None and no_training == []


def test_a_cell_of_another_host_is_left_alone(folder, hold, no_training):
    holder = hold(folder)
    said = restart.restart(stalled(folder, holder.pid, host=f"not-{socket.gethostname()}"))
    assert "was not restarted" in said and "Type the same command there" in said
    assert holder.poll() is None and no_training == []


def test_a_cell_that_could_not_go_on_is_not_ended(folder, hold, no_training):
    holder = hold(folder)
    view = stalled(folder, holder.pid)
    (folder / "config.yaml").write_text("judge: [")
    assert "nothing was done" in restart.restart(view) and holder.poll() is None


def test_only_stalled_cells_are_restarted_and_each_once(folder, hold, no_training, capsys):
    holder = hold(folder)
    run(folder, 3, pid=holder.pid)
    typed = ["study=mine", f"runs_dir={folder.study_dir.parent}", "restart=true", "once=true"]
    assert main(typed) == 0
    assert holder.poll() is None and no_training == []
    run(folder, 3, silent_s=300, pid=holder.pid)
    assert main(typed) == 0
    assert no_training == [folder] and "resumes from the last checkpoint" in capsys.readouterr().out


def test_a_process_that_ends_at_once_is_said(folder, hold):
    view = stalled(folder, hold(folder).pid)
    (folder / "environment.json").write_text('{"threads": -3}')
    said = restart.restart(view)
    assert "which should resume it, ended (2)" in said and "log.txt" in said
    assert "threads=-3 is not legal" in (folder / "log.txt").read_text()


ENGINE = """#!/bin/sh
printf '%s\\n' "$@" > words
printf '{"state": "running", "pid": %d}' $$ > status.new
mv status.new {folder}/status.json
exec sleep 600
"""


def test_the_cell_goes_on_in_a_session_of_its_own(folder, tmp_path, hold, monkeypatch):
    """By a stand-in for Python, which writes down what it was told."""
    holder = hold(folder)
    view = stalled(folder, holder.pid)
    (folder / "environment.json").write_text('{"threads": 3}')
    python = tmp_path / "python"
    python.write_text(ENGINE.replace("{folder}", str(folder)))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.chdir(tmp_path)
    said = restart.restart(view)
    child = restart._STARTED.pop()
    try:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
    finally:
        child.kill()
        child.wait()
    goes_on = f"process {child.pid} resumes from the last checkpoint."
    assert said.endswith(f"process {holder.pid} ended on SIGTERM; {goes_on}")
    words = ["-m", "experiments.train", f"cell={folder}", "threads=3"]
    assert (tmp_path / "words").read_text().splitlines() == words


@pytest.mark.long
@pytest.mark.slow
def test_a_trained_cell_comes_to_its_end(small_study, tmp_path, hold, capsys):
    trained = study_cells(small_study)[0]
    folder = CellFolder(tmp_path / "runs" / "mine" / trained.name)
    shutil.copytree(trained, folder)
    shutil.copy(small_study / "study.json", folder.study_dir)
    (folder / "DONE").unlink()
    shutil.rmtree(folder / "policy")
    holder = hold(folder)
    run(folder, 2, silent_s=300, pid=holder.pid)
    assert main(["study=mine", f"runs_dir={tmp_path / 'runs'}", "restart=true", "once=true"]) == 0
    assert f"process {holder.pid} ended on SIGTERM; process" in capsys.readouterr().out
    wait_for(lambda: folder.is_done())
    assert (folder / "policy").is_dir()
    restart._STARTED.pop().wait(GENEROUS_S)
