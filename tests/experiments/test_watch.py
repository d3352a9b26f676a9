"""A sweep that watches many cells, and what a cell says of itself: while it runs, at its end."""

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import termios
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from experiments import train
from experiments.launch import watch
from experiments.launch.watch import Watch
from experiments.monitor import read
from study.cell.folder import CellFolder, study_cells
from study.cell.heartbeat import Heartbeat
from study.cell.parts import read_part
from study.system.files import read_json
from tests.conftest import in_parts
from tests.experiments import fake_cells
from tests.experiments.fake_cells import laid
from tests.experiments.monitoring.conftest import record, run
from tests.invariants import test_grpo
from tests.waiting import GENEROUS_S


@pytest.fixture
def counted(monkeypatch) -> list[str]:
    """Names of the cells whose status was read."""
    names: list[str] = []
    status_of = CellFolder.status

    def reading(folder, problems=None):
        names.append(folder.name)
        return status_of(folder, problems)

    monkeypatch.setattr(CellFolder, "status", reading)
    return names


def shown(watched: Watch) -> Watch:
    """With a terminal."""
    drawn = SimpleNamespace(update=lambda table, refresh: None)
    watched._live = drawn  # ty: ignore[invalid-assignment]
    return watched


def table(watched: Watch, width: int = 120) -> str:
    console = Console(width=width, height=30, file=io.StringIO(), highlight=False)
    console.print(watched.board.screen(width, 30), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_only_what_changed_is_read(tmp_path, counted) -> None:
    first, second, third = todo = laid(tmp_path, 3)
    del counted[:]
    watched = shown(Watch(todo))
    watched.tick()
    assert counted == []  # nothing was begun
    for cell in (first, second):
        assert not watched.skips(cell.folder)
        run(cell.folder, step=1, silent_s=-1.0)
    del counted[:]
    watched.tick()
    watched.tick()
    assert sorted(counted) == sorted([first.name, second.name])
    assert "1 new, 2 running" in table(watched) and table(watched).count("1/2") == 2
    run(second.folder, step=2, silent_s=-1.0)
    del counted[:]
    watched.tick()
    assert counted == [second.name]
    first.folder.set_status(state="done", exit_code=0)
    (first.folder / "DONE").touch()
    watched.ended(first.folder, 0)
    del counted[:]
    watched.tick()
    assert counted == [] and "1 new, 1 running, 1 done" in table(watched)
    assert not (third.folder / "DONE").exists()


def test_of_many_cells_some_are_looked_at_in_turn(tmp_path, counted, monkeypatch) -> None:
    monkeypatch.setattr(watch, "LOOKS", 4)
    todo = laid(tmp_path, 10)
    watched = shown(Watch(todo))
    for cell in todo:
        watched.skips(cell.folder)
        run(cell.folder, silent_s=-1.0)
    del counted[:]
    watched.tick()
    assert len(counted) == 4
    watched.tick()
    watched.tick()
    assert set(counted) == {cell.name for cell in todo} and len(counted) == 10


def test_a_cell_that_ended_before_is_new_until_it_begins(tmp_path) -> None:
    """What an earlier sweep left of it raises no alarm in this one."""
    (cell,) = todo = laid(tmp_path, 1)
    watched = shown(Watch(todo))
    for state in ("failed", "running"):
        cell.folder.set_status(state=state, pid=2**22 + 1, beat=time.time() - 1000)
        watched.skips(cell.folder)
        watched.tick()
        assert [(view.state, view.alarms) for view in watched.board.views] == [("new", [])]
    watched.board._began_at[cell.folder] -= 2000  # so it is this sweep's, on a host out of sight
    watched.tick()
    assert watched.board.views[0].state == "running"
    run(cell.folder, silent_s=-1.0)
    watched.tick()
    assert watched.board.views[0].state == "running"
    cell.folder.set_status(state="failed", error="it broke")
    watched.ended(cell.folder, 1)
    (alarm,) = watched.board.new_alarms()
    assert alarm.kind == "failed" and "it broke" in alarm.seen
    assert watched.board.new_alarms() == []


def test_without_a_terminal_a_line_a_minute_says_how_things_stand(tmp_path, capsys) -> None:
    first, second = todo = laid(tmp_path, 2)
    with Watch(todo) as watched:
        watched.skips(first.folder)
        run(first.folder, step=1, silent_s=-1.0)
        judged = {"judge__unscored_frac": 0.25, "cost__usd": 1.5, "cost__calls": 8}
        record(first.folder, 1, truth__mean=0.5, **judged)
        watched.tick()
        assert capsys.readouterr().out == ""
        watched._heartbeat = 0.0
        watched.tick()
        (line,) = capsys.readouterr().out.splitlines()
        assert line.endswith("step 1/4  8 judge calls  missing 25.0%  $1.50")
        assert "2 cells: 1 new, 1 running" in line and "\x1b" not in line
        watched.tick()
        assert capsys.readouterr().out == ""
        slow = "throttled by the endpoint: 6 of 50 calls a second"
        run(first.folder, step=1, throttled=slow, silent_s=-1.0)
        watched._heartbeat = watched._look = 0.0
        watched.tick()
        assert capsys.readouterr().out.rstrip().endswith(slow)
        first.folder.set_status(state="failed", error="\x1b[2Jit broke")
        watched.ended(first.folder, 1)
        capsys.readouterr()
        watched.tick()
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"ALARM  {first.name}  failed: ") and "\\x1b[2Jit broke" in line
        assert second.name not in line


def test_what_cannot_be_shown_does_not_end_a_sweep(tmp_path, monkeypatch, capsys) -> None:
    (cell,) = todo = laid(tmp_path, 1)
    with Watch(todo) as watched:
        watched.skips(cell.folder)
        monkeypatch.setattr(read.CellReader, "view", lambda *_: 1 / 0)
        watched.tick()
        watched.tick()
        watched.ended(cell.folder, 0)
    said = capsys.readouterr().out.splitlines()
    assert sum("was not shown (ZeroDivisionError" in line for line in said) == 1


@pytest.mark.parametrize("width", [80, pytest.param(120, marks=pytest.mark.long)])
def test_a_terminal_shows_a_table_in_place_that_stays(tmp_path, width) -> None:
    """As a terminal would show it: each cell's line whole, above one last table."""
    todo = laid(tmp_path, 3, workers=2)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
    variables = {"TERM": "xterm-256color", "COLUMNS": "", "PYTHONIOENCODING": "utf-8"}
    driven = fake_cells.start(tmp_path, todo, theirs, **variables, **{fake_cells.LASTS: "2.5"})
    os.close(theirs)
    text = b""
    while True:
        try:
            text += os.read(ours, 1 << 16)
        except OSError:
            break
    os.close(ours)
    assert driven.wait(GENEROUS_S) == 0
    lines = on_screen(text.decode(), width)
    assert sum(line.startswith("fake  3 cells: ") for line in lines) == 1
    assert "fake  3 cells: 3 done" in "\n".join(lines)
    for cell in todo:
        said = [line for line in lines if line.startswith(f"{cell.name}: done after ")]
        assert len(said) == 1 and lines.index(said[0]) < len(lines) - 4
    assert all(len(line) <= width for line in lines)


def on_screen(text: str, width: int) -> list[str]:
    """What a terminal shows of a text with the codes that a live table uses."""
    lines, row, column = [""], 0, 0
    codes = re.compile(r"\x1b\[\??([0-9;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")
    for number, letter, back, down, words in codes.findall(text):
        if letter == "A":
            row -= int(number or 1)
            assert row >= 0
        elif letter == "K":
            lines[row] = ""
        elif back:
            column = 0
        elif down:
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        for letter in words:
            if column == width:
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            line = lines[row].ljust(column)
            lines[row] = line[:column] + letter + line[column + 1 :]
            column += 1
    return [line.rstrip() for line in lines if line.strip()]


class Spy(Heartbeat):
    """Notes the phases, and how many beats there were in each."""

    def __init__(self) -> None:
        super().__init__()
        self.phases: list[tuple[str, int]] = []
        self.tokens = 0

    def phase(self, name: str) -> None:
        self.phases.append((name, 0))
        super().phase(name)

    def beat(self, tokens: int = 0) -> None:
        super().beat(tokens)
        self.tokens += tokens
        if self.phases:
            name, beats = self.phases[-1]
            self.phases[-1] = (name, beats + 1)


@pytest.mark.parametrize("fast", [True, False])
def test_each_step_says_what_it_is_at_and_goes_on_saying_that_it_lives(tmp_path, cache, fast):
    spy = Spy()
    done = test_grpo.run(test_grpo.study(steps=2, fast=fast), tmp_path, cache, heart=spy)
    assert [name for name, _ in spy.phases] == 2 * ["generating", "judging", "updating", "saving"]
    drawn = [beats for name, beats in spy.phases if name == "generating"]
    assert all(beats >= 4 for beats in drawn)  # at least one a token, and the phase's own
    assert all(beats >= 2 for name, beats in spy.phases if name in ("judging", "updating"))
    assert spy.tokens == sum(record["tokens"] for record in done.records)


@pytest.fixture(scope="module")
def whole(small_study):
    return next(cell.path for cell in study_cells(small_study) if "sim-fair" in cell.name)


def test_a_cell_that_has_ended_says_how_and_how_much_it_drew(whole):
    status = CellFolder(whole).status()
    assert (status["phase"], status["state"]) == ("done", "done")
    assert status["started"] < status["beat"] == status["ended"]
    tokens = [
        sum(read_part(part)["tokens"].to_pylist()) for part in CellFolder(whole).parts("rollouts")
    ]
    assert status["tokens"] == sum(tokens) > 0


def test_a_cell_that_goes_on_counts_from_its_records(whole, tmp_path):
    cell = shutil.copytree(whole, tmp_path / whole.name)
    assert train._tokens_drawn(CellFolder(cell)) == read_json(whole / "status.json")["tokens"]
    first, second = CellFolder(in_parts(cell)).parts("rollouts")
    left = sum(read_part(first)["tokens"].to_pylist())
    second.path.write_bytes(second.path.read_bytes()[:-20])
    assert train._tokens_drawn(CellFolder(cell)) == left
