"""The command of ``sweep.notify``: what it is told, and that it cannot harm a sweep."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.launch.watch import Watch
from experiments.monitor import notify
from experiments.monitor.notify import (
    AlarmBell,
    Call,
    check_notify,
    command_of,
    facts_of,
    told_at_end,
)
from experiments.monitor.read import Alarm, totals
from study.cell.folder import CellFolder
from study.config.schema import Sweep
from study.errors import UserError
from study.system.machine import has_process
from tests.experiments.fake_cells import laid
from tests.waiting import alive, wait_for

TOLD = """
import json, os, sys
told = {name: value for name, value in os.environ.items() if name.startswith("JUDGEDRIFT_")}
content = {"words": sys.argv[2:], "variables": told, "facts": json.load(sys.stdin)}
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(content) + "\\n")
"""
ALARM = Alarm("fair-s0", "failed", "ended at step 3 of 9: \x1b[2J\0boom.", "python -m x")
Script = Callable[[str], str]


@pytest.fixture
def script(tmp_path) -> Script:
    """Makes a Python program, and gives the command that starts it."""

    def made(text: str) -> str:
        path = tmp_path / "my notifier.py"
        path.write_text(text)
        return shlex.join([sys.executable, str(path)])

    return made


@pytest.fixture
def telling(tmp_path, script) -> str:
    """A command that writes down what it is told."""
    return f"{script(TOLD)} {tmp_path / 'out'}"


def told(folder: Path) -> list[dict]:
    path = folder / "out"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def call(command: str) -> Call:
    made = Call(command, facts_of("alarm", "mine", "running", totals([]), [ALARM, ALARM]))
    made.wait()
    return made


def test_it_is_told_by_variables_and_by_json_and_no_shell_reads_it(tmp_path, telling) -> None:
    assert call(f"{telling} '; touch {tmp_path}/bad' $HOME '|'").trouble() == ""
    (content,) = told(tmp_path)
    assert content["words"] == [f"; touch {tmp_path}/bad", "$HOME", "|"]
    assert not (tmp_path / "bad").exists()
    facts, variables = content["facts"], content["variables"]
    assert (facts["event"], facts["study"], facts["state"]) == ("alarm", "mine", "running")
    assert facts["alarms"][0]["kind"] == "failed" and facts["alarms_in_all"] == 2
    assert variables["JUDGEDRIFT_EVENT"] == "alarm" and variables["JUDGEDRIFT_CELLS"] == "0"
    assert variables["JUDGEDRIFT_SUMMARY"] == facts["summary"]
    assert facts["summary"].startswith("mine: fair-s0  failed: ended at step 3 of 9: \\x1b[2J")
    assert not {"\x1b", "\0"} & set(facts["summary"])


BAD = {
    "it fails": ("import sys; print('first'); sys.exit('no \x1b mail')", "code 1: no \\x1b mail"),
    "a signal ends it": ("import os; os.kill(os.getpid(), 9)", "signal 9"),
    "it floods": ("import sys; sys.stderr.write('x' * 10**6); sys.exit(3)", "exit code 3: xxx"),
    "it hangs": ("import time; time.sleep(60)", "did not end within"),
}  # fmt: skip


@pytest.mark.parametrize(("program", "said"), BAD.values(), ids=BAD)
def test_what_goes_wrong_is_one_line(program, said, script, monkeypatch) -> None:
    if "sleep" in program:
        monkeypatch.setattr(notify, "LIMIT_S", 0.5)
    trouble = call(script(program)).trouble()
    assert said in trouble and trouble.startswith("sweep.notify: ") and trouble.endswith("goes on.")
    assert len(trouble) < 700 and len(trouble.splitlines()) == 1 and "\x1b" not in trouble


def test_what_hangs_is_killed_with_what_it_started(tmp_path, script, monkeypatch) -> None:
    monkeypatch.setattr(notify, "LIMIT_S", 3600.0)
    pid = tmp_path / "pid"
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        f"open({str(pid)!r} + '.new', 'w').write(str(child.pid))\n"
        f"os.rename({str(pid)!r} + '.new', {str(pid)!r}); time.sleep(3600)"
    )
    made = Call(script(program), facts_of("end", "mine", "done", totals([])))
    wait_for(lambda: pid.exists() or made.ended())
    assert not made.ended()
    made._limit = 0.0
    assert made.ended() and "was killed" in made.trouble()
    wait_for(lambda: not alive(int(pid.read_text())), "the child of the command ended")


def test_alarms_are_told_together_and_one_call_at_a_time(tmp_path, telling, monkeypatch) -> None:
    def alarms() -> list[int]:
        return [each["facts"]["alarms_in_all"] for each in told(tmp_path)]

    one = AlarmBell(telling, "mine")
    assert one.tick([], lambda: totals([])) == "" and one._call is None
    one.tick([ALARM], lambda: totals([]))
    one.tick([ALARM], lambda: totals([]))
    assert one.close() == "" and alarms() == [1]
    one.tick([ALARM], lambda: totals([]))
    assert one._call is None  # within the same minute
    monkeypatch.setattr(one, "_next", 0.0)
    one.tick([], lambda: totals([]))
    assert one.close() == "" and alarms() == [1, 2]
    assert AlarmBell("", "mine").tick([ALARM], lambda: pytest.fail("asked")) == ""


def test_who_is_told_to_stop_waits_for_no_call(tmp_path, script, monkeypatch) -> None:
    monkeypatch.setattr(notify, "LIMIT_S", 3600.0)
    pid = tmp_path / "pid"
    program = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    todo = laid(tmp_path, 1, notify=script(program))
    with pytest.raises(KeyboardInterrupt), Watch(todo) as watched:
        watched._bell.tick([ALARM], lambda: totals([]))
        wait_for(lambda: pid.exists() and pid.read_text())
        raise KeyboardInterrupt
    assert not has_process(int(pid.read_text()))


def test_a_state_that_cannot_be_known_does_not_fail_a_sweep(tmp_path, monkeypatch, capsys) -> None:
    todo = laid(tmp_path, 1, notify=str(tmp_path / "none"))
    with told_at_end(todo, todo):
        monkeypatch.setattr(CellFolder, "is_done", lambda folder: 1 / 0)
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "sweep.notify: the notification failed (division by zero)."


def test_at_the_end_alarms_of_done_cells_are_not_worked_out(tmp_path, telling, monkeypatch) -> None:
    first, second = todo = laid(tmp_path, 2, notify=telling)
    asked: list[str] = []

    def alarms(view, runs_dir):
        asked.append(view.cell)
        return [ALARM]

    monkeypatch.setattr(notify, "alarms", alarms)
    with told_at_end(todo, todo):
        (first.folder / "DONE").touch()
        second.folder.set_status(state="failed", error="it broke")
    (content,) = told(tmp_path)
    assert asked == [second.name] and content["facts"]["alarms_in_all"] == 1


@pytest.mark.parametrize(
    ("ends", "state"),
    [(None, "done"), (None, "unfinished"), (KeyboardInterrupt(), "stopped"),
     (UserError("the server is gone"), "failed")],
)  # fmt: skip
def test_the_end_is_told_however_it_comes(tmp_path, telling, ends, state) -> None:
    todo = laid(tmp_path, 2, notify=telling)
    error = None
    try:
        with told_at_end(todo, todo):
            for cell in todo if state == "done" else todo[:1]:
                cell.folder.set_status(state="done")
                (cell.folder / "DONE").touch()
            if ends is not None:
                raise ends
    except BaseException as raised:
        error = raised
    assert error is ends
    (content,) = told(tmp_path)
    facts = content["facts"]
    assert (facts["event"], facts["state"], facts["study"]) == ("end", state, "fake")
    assert facts["error"] == ("the server is gone" if state == "failed" else "")
    assert facts["totals"]["done"] == (2 if state == "done" else 1) and facts["report"] is None
    assert content["variables"]["JUDGEDRIFT_REPORT"] == ""


def test_a_sweep_with_nothing_to_run_has_no_end(tmp_path, telling) -> None:
    (cell,) = todo = laid(tmp_path, 1, notify=telling)
    (cell.folder / "DONE").touch()
    with told_at_end(todo, todo):
        pass
    assert told(tmp_path) == []


def test_a_command_that_fails_leaves_the_end_as_it_is(tmp_path, capsys) -> None:
    todo = laid(tmp_path, 1, notify=str(tmp_path / "none"))
    with pytest.raises(UserError, match="the disk"), told_at_end(todo, todo):
        raise UserError("the disk")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("sweep.notify: ") and "could not be started (No such file" in line


WRONG = {
    "an open quote": ("mail 'me", "is not a command line"),
    "nothing": ("   ", "names no command"),
    "an unknown program": (
        "no-such-program-here --now",
        "neither on the PATH nor an executable file",
    ),
    "a shell's words": ("a|b", "No shell reads the command"),
}


@pytest.mark.parametrize(("command", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_started_is_refused(command, said) -> None:
    with pytest.raises(UserError, match=r"sweep\.notify=") as refused:
        check_notify(command)
    assert said in str(refused.value) and "Type for example: sweep.notify=" in str(refused.value)
    check_notify("")
    check_notify(f"{sys.executable} -c pass")


def test_a_command_with_a_secret_comes_from_a_variable_and_is_never_repeated(
    tmp_path, script, monkeypatch, capsys
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("TELL", f"{script(TOLD)} {out} -u me:swordfish-in-a-command")
    todo = laid(tmp_path, 1, notify_env="TELL")
    with told_at_end(todo, todo):
        pass
    (content,) = told(tmp_path)
    assert content["words"] == ["-u", "me:swordfish-in-a-command"]
    failing = script("import sys; sys.exit('no: ' + sys.argv[2] + sys.argv[2].split(':')[1])")
    monkeypatch.setenv("TELL", f"{failing} -u me:swordfish-in-a-command")
    with told_at_end(todo, todo):
        pass
    (line,) = capsys.readouterr().out.splitlines()
    assert "ended with exit code 1: no: ***" in line and "swordfish" not in line
    for path in (each for each in tmp_path.rglob("*") if each.is_file() and each != out):
        assert b"swordfish" not in path.read_bytes()


def test_there_is_one_command_and_its_variable_is_set(monkeypatch) -> None:
    monkeypatch.delenv("TELL", raising=False)
    with pytest.raises(UserError, match="Type export TELL="):
        command_of(Sweep(notify_env="TELL"))
    with pytest.raises(UserError, match="both given"):
        command_of(Sweep(notify="./tell.sh", notify_env="TELL"))
    assert command_of(Sweep(notify="./tell.sh")) == "./tell.sh" and command_of(Sweep()) == ""
    with pytest.raises(UserError, match="not shown") as refused:
        check_notify("swordfish --now", "sweep.notify_env")
    assert "swordfish" not in str(refused.value)


def test_facts_are_short() -> None:
    long = Alarm("c", "failed", "x" * 10_000, "y" * 10_000)
    facts = facts_of("alarm", "mine", "running", totals([]), [long] * 5000)
    assert len(json.dumps(facts)) < 60_000 and facts["alarms_in_all"] == 5000
    assert max(map(len, notify.variables(facts).values())) <= notify.LONGEST
