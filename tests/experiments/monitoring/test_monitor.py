"""The monitor on a terminal and beside it, and how it restarts a cell that has stalled."""

import fcntl
import hashlib
import json
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments.monitor import restart
from experiments.monitor.__main__ import main
from experiments.monitor.read import JSON_KEYS, StudyReader, View
from study.cell.folder import CellFolder, study_cells
from study.cell.places import LOCK
from study.screen import UNREAD
from tests.conftest import ROOT
from tests.experiments.monitoring import test_disagreements
from tests.experiments.monitoring.conftest import ENDED, lay, record, run
from tests.plain_user import plain_user
from tests.waiting import GENEROUS_S, wait_for

SHOWN = "show=disagreements"
DRAWS = {**os.environ, "TERM": "xterm-256color"}
"""The environment of a terminal that can draw."""


@pytest.fixture
def runs_dir(tmp_path) -> Path:
    """Of a study with a running, a killed and a new cell."""
    first, second, _ = lay(tmp_path, "fair", "lenient", "strict")
    run(first, 12)
    record(first, 12, truth__mean=0.5, judge__mean=0.75, eval__averages__qa=0.25)
    run(second, 5, pid=ENDED)
    return tmp_path


def words(runs_dir: Path, *more: str) -> list[str]:
    return ["study=mine", f"runs_dir={runs_dir}", *more]


def started(runs_dir: Path, *more: str, **changes: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.monitor", *words(runs_dir, *more)]
    streams: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, text=True, **(streams | changes))


def test_the_json_object_has_exactly_these_keys(runs_dir, capsys):
    assert main(words(runs_dir, "once=true", "json=true")) == 0
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line, parse_constant=pytest.fail)
    assert list(told) == ["study", "time", "totals", "cells", "alarms"] and told["study"] == "mine"
    assert [list(cell) for cell in told["cells"]] == 3 * [list(JSON_KEYS)]
    running = next(cell for cell in told["cells"] if cell["judge"] == "fair")
    assert (running["state"], running["step"], running["steps"]) == ("running", 12, 40)
    assert (running["truth"], running["judge_mean"], running["gap"]) == (0.5, 0.75, None)
    assert running["domains"]["qa"]["accuracy"] == 0.25
    (alarm,) = told["alarms"]
    assert alarm["kind"] == "killed" and alarm["cell"].startswith("lenient")
    assert told["totals"]["cells"] == 3 and told["totals"]["killed"] == 1


def test_into_a_pipe_each_cell_is_a_line_and_each_alarm(runs_dir, capsys):
    assert main(words(runs_dir, "once=true")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 + 1 + 1 and not any("\x1b" in line for line in lines)
    assert sum(line.startswith("ALARM  lenient") for line in lines) == 1
    assert lines[-1].startswith("3 cells: 1 new, 1 running, 1 killed")


def test_only_what_changed_is_said_again(runs_dir):
    monitor = started(runs_dir, "every=0.2")
    try:
        first = [monitor.stdout.readline() for _ in range(5)]
        assert first[-1].startswith("3 cells")
        folder = next(path for path in study_cells(runs_dir / "mine") if "fair" in path.name)
        run(folder, 13)
        record(folder, range(13, 14), truth__mean=0.5)
        assert "step 13/40" in monitor.stdout.readline()
        for path in study_cells(runs_dir / "mine"):
            path.set_status(state="done", step=40)
            (path / "DONE").touch()
        last = monitor.stdout.read().splitlines()
        assert monitor.wait(GENEROUS_S) == 0
        assert sum("  done  " in line for line in last) == 3
    finally:
        monitor.kill()
        monitor.communicate()


def everything(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Each file and folder with its time, its mode and its bytes."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            path.lstat().st_mode,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in [folder, *sorted(folder.rglob("*"))]
    }


@pytest.mark.parametrize("more", [["once=true"], ["once=true", "json=true"], [SHOWN]])
def test_nothing_is_written(runs_dir, small_study, tmp_path_factory, more):
    trained = tmp_path_factory.mktemp("trained") / "mine"
    shutil.copytree(small_study, trained)
    for study_dir in (runs_dir / "mine", trained):
        for name in ("status.json", "metrics.jsonl", LOCK):
            (study_cells(study_dir)[0] / name).unlink(missing_ok=True)
        before = everything(study_dir)
        assert main(words(study_dir.parent, *more)) == 0
        assert everything(study_dir) == before


def test_a_study_that_may_only_be_read(runs_dir, capsys):
    paths = [runs_dir / "mine", *(runs_dir / "mine").rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with plain_user():
            assert main(words(runs_dir, "once=true", "json=true")) == 0
        assert json.loads(capsys.readouterr().out)["totals"]["running"] == 1
    finally:
        for path in paths:
            path.chmod(0o755)


def test_half_written_files_are_one_line_on_the_error_stream(runs_dir, capsys):
    (study_cells(runs_dir / "mine")[0] / "status.json").write_text("{")
    assert main(words(runs_dir, "once=true", "json=true")) == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)["cells"]) == 3
    assert len(said.err.splitlines()) == 1 and "status.json is damaged" in said.err


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="lines"),
        pytest.param(["json=true"], marks=pytest.mark.long, id="json"),
        pytest.param(["once=true"], marks=pytest.mark.long, id="once"),
    ],
)
def test_a_closed_pipe_ends_it_quietly(runs_dir, more):
    reader, writer = os.pipe()
    monitor = started(runs_dir, "every=0.2", *more, stdout=writer)
    os.close(writer)
    os.close(reader)
    assert monitor.wait(GENEROUS_S) == UNREAD
    assert monitor.communicate()[1] == ""


def test_ctrl_c_ends_it_quietly(runs_dir):
    monitor = started(runs_dir, "every=0.2")
    monitor.stdout.readline()
    monitor.send_signal(signal.SIGINT)
    _, said = monitor.communicate(timeout=GENEROUS_S)
    assert (monitor.returncode, said) == (130, "")


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    yield ours, theirs
    os.close(ours)


def read_until(handle: int, wanted: str, text: str = "") -> str:
    """What a terminal shows up to what is wanted, behind the ``text`` that it has shown."""
    while wanted not in text and select.select([handle], [], [], GENEROUS_S)[0]:
        try:
            text += os.read(handle, 1 << 16).decode("utf-8", "replace")
        except OSError:
            break
    return text


def test_on_a_terminal_it_is_a_screen_that_goes_away_on_ctrl_c(runs_dir, terminal):
    ours, theirs = terminal
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    monitor = started(runs_dir, **streams, env=DRAWS, start_new_session=True)
    os.close(theirs)
    text = read_until(ours, "killed: ended at step 5 of 40")
    assert "\x1b[?1049h" in text and "fair s0" in text and "held-out accuracy" in text
    monitor.send_signal(signal.SIGINT)
    text = read_until(ours, "\x1b[?1049l")
    text = read_until(ours, "\x1b[?25h", text)
    assert "\x1b[?25h" in text and "Traceback" not in text
    assert monitor.wait(GENEROUS_S) == 130


def test_once_on_a_terminal_stays_there(runs_dir, terminal):
    ours, theirs = terminal
    monitor = started(runs_dir, "once=true", stdout=theirs, env=DRAWS)
    os.close(theirs)
    text = read_until(ours, "experiments.train")
    assert monitor.communicate(timeout=GENEROUS_S) == (None, "") and monitor.returncode == 0
    assert "\x1b[?1049h" not in text and "strict s0" in text


@pytest.mark.parametrize("changes", [{"TERM": "dumb"}, {"PYTHONIOENCODING": "latin-1"}])
def test_a_terminal_that_cannot_draw_gets_plain_lines(runs_dir, terminal, changes):
    ours, theirs = terminal
    monitor = started(runs_dir, "once=true", stdout=theirs, env={**os.environ, **changes})
    os.close(theirs)
    text = read_until(ours, "3 cells")
    assert monitor.communicate(timeout=GENEROUS_S) == (None, "") and "ALARM  lenient" in text


def test_disagreements_are_shown(tmp_path, capsys):
    (folder,) = lay(tmp_path, "fair")
    test_disagreements.write(folder, 1, [("qa", 1.0, 0.0), ("math", 0.0, 1.0)])
    assert main(words(tmp_path, SHOWN, "domain=qa")) == 0
    told = capsys.readouterr().out
    assert "judge yes, rule no" in told and "1 disagreements" in told and "rule yes" not in told
    assert main(words(tmp_path, SHOWN, "json=true", "limit=1")) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["domain"] == "math"


WRONG = {
    "no study": (["study=other"], "There is no study folder"),
    "a file in its place": (["study=file"], "There is no study folder"),
    "a folder of something else": (["study=probes"], "holds no study"),
    "an unknown show": (["study=mine", "show=agreements"], "show=agreements is not legal"),
    "an unknown domain": (
        ["study=mine", SHOWN, "domain=law"],
        "domain=law is not a domain of this study",
    ),
    "a domain of nothing": (
        ["study=mine", "domain=qa"],
        "domain= has no meaning without show=disagreements",
    ),
    "restart with show": (["study=mine", SHOWN, "restart=true"], "restart= has no meaning without"),
    "no rows at all": (["study=mine", SHOWN, "limit=0"], "limit=0 is not legal"),
    "an unknown key": (["study=mine", "onec=true"], "Did you mean once=?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_paragraph(tmp_path, capsys, case):
    (folder,) = lay(tmp_path, "fair")
    test_disagreements.write(folder, 1, [("qa", 1.0, 1.0)])
    (tmp_path / "file").touch()
    (tmp_path / "probes").mkdir()
    typed, said = WRONG[case]
    assert main([*typed, f"runs_dir={tmp_path}"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and said in error and len(error.strip().splitlines()) == 1


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
    assert f"process {holder.pid} ended on SIGTERM; process 4321 resumes" in restart.restart(view)
    assert holder.wait(GENEROUS_S) == -signal.SIGTERM and no_training == [folder]


@pytest.mark.parametrize("kind", ["deaf", "stopped"])
def test_a_process_that_does_not_hear_is_killed(folder, hold, no_training, monkeypatch, kind):
    monkeypatch.setattr(restart, "STOP_S", 0.3)
    holder = hold(folder, kind)
    if kind == "stopped":
        holder.send_signal(signal.SIGSTOP)
    assert "was killed; process 4321 resumes" in restart.restart(stalled(folder, holder.pid))
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
    assert "could not be restarted" in restart.restart(view) and holder.poll() is None


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
