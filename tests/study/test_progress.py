"""A line that says that work goes on: on a real terminal, in a pipe, and not at all."""

import contextlib
import io
import os
import pty
import sys
import termios
from collections.abc import Iterator

import pytest

from study import progress
from study.progress import Work, alive, each, work
from tests.waiting import wait_for

WHAT = "judgedrift probe"


@pytest.fixture
def at_once(monkeypatch) -> None:
    """No waits before the first line and between two."""
    monkeypatch.delenv("JUDGEDRIFT_PROGRESS")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FIRST_S", "REDRAWN_S", "LATER_S"):
        monkeypatch.setattr(progress, name, 0.01)
    monkeypatch.setattr(progress, "PRINTED_S", (0.01,))


class Screen:
    """What a terminal of 80 columns was sent."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self.stream = os.fdopen(slave, "w", buffering=1)
        self.text = ""
        os.set_blocking(self.master, False)

    def read(self) -> str:
        with contextlib.suppress(BlockingIOError):
            self.text += os.read(self.master, 65536).decode()
        return self.text

    @contextlib.contextmanager
    def command(self) -> Iterator[None]:
        """A command of this terminal."""
        with contextlib.redirect_stdout(self.stream), contextlib.redirect_stderr(self.stream):
            with alive(WHAT):
                yield
            assert sys.stdout is self.stream and sys.stderr is self.stream

    def shows(self, text: str) -> bool:
        return text in self.read()

    def all_until(self, text: str) -> str:
        """What it was sent, once that ends in the text: a terminal may pass it on in parts."""
        wait_for(lambda: self.read().endswith(text))
        return self.text


@pytest.fixture
def terminal(at_once) -> Iterator[Screen]:
    screen = Screen()
    yield screen
    screen.stream.close()
    os.close(screen.master)


def test_a_line_says_how_much_at_what_rate_and_what_remains() -> None:
    assert Work("fit", began=100.0).line(112.4) == "fit, 12s"
    of_ten = Work("runs", total=10, began=100.0)
    assert of_ten.line(103.0) == "runs 0 of 10, 3s"
    of_ten.advance(4)
    assert of_ten.line(102.0) == "runs 4 of 10, 2 a second, 3s to go"
    assert of_ten.line(104.0) == "runs 4 of 10, 1 a second, 6s to go"
    assert of_ten.line(108.0) == "runs 4 of 10, 2s each, 12s to go"
    assert of_ten.line(102.0, bar=True) == f"runs {'█' * 8}{'░' * 12} 4 of 10, 2 a second, 3s to go"
    of_ten.advance(8)  # asked for more than was planned
    assert "█" * 20 in of_ten.line(112.0, bar=True)


def test_a_terminal_is_cleared_before_output_and_draws_no_more(terminal: Screen) -> None:
    with terminal.command():
        wait_for(lambda: terminal.shows(f"{WHAT}, 0s"))
        with work("verdicts of mine", total=3) as asked:
            asked.advance()
            wait_for(lambda: terminal.shows(f"verdicts of mine {'█' * 7}{'░' * 13} 1 of 3"))
        print("a word of caution", file=sys.stderr)
        wait_for(lambda: terminal.shows(f"{progress.CLEARED}a word of caution\r\n"))
        wait_for(lambda: terminal.read().rpartition("caution")[2].count(WHAT) > 1)
        print("the result")
    text = terminal.all_until(f"{progress.CLEARED}the result\r\n")
    assert max(map(len, text.replace("\r\n", "\r").split("\r"))) < 80 + len(progress.CLEARED)


def test_a_pipe_gets_lines_of_what_is_counted_alone(monkeypatch, at_once) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with alive(WHAT):
        for item in each("abc", "letters\x1b[2J", 3):
            if item == "b":
                wait_for(lambda: "letters" in err.getvalue())
        print("the result")
        assert WHAT not in err.getvalue()
    first, *_ = err.getvalue().splitlines()
    assert first.startswith(r"letters\x1b[2J 1 of 3, ") and out.getvalue() == "the result\n"


def test_a_pipe_gets_no_line_of_a_command_that_counts_nothing(monkeypatch, at_once) -> None:
    monkeypatch.setattr(sys, "stderr", err := io.StringIO())
    display = progress.Display(WHAT)
    display._write()
    assert err.getvalue() == ""
    with display.work("letters", 3):
        display._write()
    display.close()
    assert "letters 0 of 3" in err.getvalue()


@pytest.mark.parametrize("how", ["off", "no command"])
def test_nothing_is_said_where_nobody_wants_it(monkeypatch, terminal: Screen, how: str) -> None:
    if how == "off":
        monkeypatch.setenv("JUDGEDRIFT_PROGRESS", "off")
        with terminal.command(), work("runs", 2) as runs:
            runs.advance()
    else:
        assert list(each([1, 2], "runs", 2)) == [1, 2]
    assert terminal.read() == "" and progress._display is None


def test_a_command_within_a_command_has_a_line_of_its_own_once_that_has_printed(terminal) -> None:
    with terminal.command():
        with alive("report"):
            wait_for(lambda: terminal.shows(f"{WHAT}, 0s"))
        print("9 cells")
        with alive("report"):
            wait_for(lambda: terminal.shows("report, 0s"))
            print("written")
        assert progress._display is not None and progress._display.has_ended
    sent = terminal.all_until(f"{progress.CLEARED}written\r\n")
    first, second = sent.split("9 cells\r\n")
    assert "report" not in first and WHAT not in second


def test_an_error_ends_it_too(terminal: Screen) -> None:
    with pytest.raises(KeyError), terminal.command():
        raise KeyError("no such run")
    assert progress._display is None
