"""A command that is forked has all that one has which Python was started for, and ends alike."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests import commands
from tests.tiers import some

PROBE = "tests.command_probe"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are forked on Linux")


@pytest.fixture(autouse=True, scope="module")
def _server():
    commands.prepare()


def both(*words: str, **named: object) -> list[subprocess.CompletedProcess[str]]:
    """The same command, started for real and forked."""
    return [commands.run(PROBE, *words, real=real, **named) for real in (True, False)]


@pytest.mark.skipif("JUDGEDRIFT_REACH" in os.environ, reason="each starts for real while recorded")
def test_commands_are_forked_here():
    with commands.start(PROBE, "drawn", stdout=subprocess.DEVNULL) as command:
        assert command.wait(commands.LIMIT_S) == 0
    assert command.forked, command.unlike


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"start_new_session": True},
        {"stdin": subprocess.DEVNULL},
        {"env": os.environ | {"COLUMNS": "77", "PYTHONUNBUFFERED": "1", "OF_NO_USE": "\udcff"}},
        {"env": {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}},
    ],
    ids=["plain", "session", "no input", "more variables", "fewer variables"],
)
def test_a_fork_sees_what_a_fresh_process_sees(named, tmp_path):
    (real, environment), (forked, its) = (json.loads(done.stdout) for done in both("seen", **named))
    assert forked == real
    added = {name: value for name, value in its.items() if environment.get(name) != value}
    assert environment.items() <= its.items()
    assert not added.keys() & {"OMP_WAIT_POLICY", "MALLOC_MMAP_MAX_"}  # those of the server


def test_the_umask_ignored_signals_and_open_files_are_those_of_the_caller(tmp_path):
    before = os.umask(0o027)
    ignored = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with (tmp_path / "file").open("w") as file:
            os.set_inheritable(file.fileno(), True)
            (real, _), (forked, _) = (json.loads(done.stdout) for done in both("seen"))
    finally:
        os.umask(before)
        signal.signal(signal.SIGUSR1, ignored)
    assert forked == real and forked["umask"] == 0o027
    assert forked["handlers"][str(int(signal.SIGUSR1))] == str(signal.SIG_IGN)


def of_the_traceback(errors: str) -> str:
    """Errors without the lines on how Python came to run the module, and with what."""
    return re.sub(r'  File "(<frozen runpy>|[^"]*command_server\.py)".*\n(    .*\n)*', "", errors)


ENDS = ("return", "exit 3", "exit with words", "raise", "interrupt", "thread", "lost output")
ENDS += ("SIGTERM", "SIGINT")
OF_THE_SAME_KIND = ("exit 300", "underscore", "SIGKILL", "SIGABRT", "SIGPIPE")
"""Ends by a number and by a signal, as others are."""


@pytest.mark.parametrize("how", some((*ENDS, *OF_THE_SAME_KIND), standard=ENDS))
def test_a_fork_ends_as_a_fresh_process_ends(how):
    real, forked = both("end", how)
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    assert of_the_traceback(forked.stderr) == of_the_traceback(real.stderr)


def test_a_fork_is_as_a_fresh_process():
    real, forked = (commands.run("tests.no_such_module", real=real) for real in (True, False))
    assert (forked.returncode, forked.stderr) == (real.returncode, real.stderr)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with commands.start(PROBE, "echo", text=True, **pipes) as command:
        assert command.communicate("words", timeout=commands.LIMIT_S) == ("WORDS\n", None)
    first, second = (json.loads(commands.run(PROBE, "drawn").stdout) for _ in range(2))
    assert not set(first) & set(second)
    done = commands.run("tests.command_children")
    assert (done.returncode, done.stdout, done.stderr) == (0, "from a child\n0\n", "")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("real", [True, False], ids=["real", "forked"])
def test_a_group_is_killed_and_leaves_a_zombie_until_it_is_waited_for(number, real, tmp_path):
    sign = tmp_path / "begun"
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with commands.start(
        PROBE, "wait", str(sign), real=real, start_new_session=True, **pipes
    ) as command:
        limit = time.monotonic() + commands.LIMIT_S
        while not sign.exists():
            assert command.poll() is None and time.monotonic() < limit
            time.sleep(0.01)
        os.killpg(command.pid, number)
        os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
        assert "\nState:\tZ" in Path(f"/proc/{command.pid}/status").read_text()
        assert command.wait(commands.LIMIT_S) == -number
    with suppress(ProcessLookupError):
        os.kill(command.pid, 0)
        pytest.fail("it is still there")


@pytest.mark.parametrize(
    "named",
    [
        {"cwd": "/"},
        {"env": os.environ | {"OMP_NUM_THREADS": "3"}},
        {"env": os.environ | {"PYTHONWARNINGS": "error"}},
        {"env": os.environ | {"HF_HOME": "/nowhere"}},
        {"preexec_fn": os.getpid},
        {"pass_fds": (0,)},
    ],
    ids=["elsewhere", "threads", "warnings", "read early", "before", "descriptors"],
)
def test_what_a_fork_cannot_give_is_started_for_real(named):
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with commands.start("this", **pipes, **named) as command:
        assert command.wait(commands.LIMIT_S) == 0
    assert not command.forked


def test_each_command_that_is_forked_is_started_for_real_too():
    forked = set()
    for path in (commands.ROOT / "tests").rglob("*.py"):
        forked |= set(
            re.findall(r'commands\.(?:run|start)\(\s*\*?\(?"([a-z]+\.[a-z_.]+)', path.read_text())
        )
    assert {name for name in forked if not name.startswith("tests.")} == commands.REAL.keys()
    for module, test in commands.REAL.items():
        file, _, name = test.partition("::")
        text = (commands.ROOT / file).read_text()
        body = re.split(r"\n(?:def|@|class) ?", text.partition(f"def {name}(")[2])[0]
        assert "real=True" in body or (module in body and "sys.executable" in body), test
