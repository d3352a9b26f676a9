"""Ctrl-C and SIGTERM at every phase of a real sweep: nothing stays open, nothing is half laid.

Signals go to the whole process group, as a terminal sends them.
"""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from omegaconf.errors import ConfigAttributeError

from study.cell.folder import study_cells
from study.system import stopping
from tests.commands import run_program, start
from tests.conftest import ROOT, SLOWLY, Trained, came_of, sweep
from tests.waiting import GENEROUS_S, wait_for

TINY = ("debug=tiny", "judge=sim-fair,sim-noisy", "seed=0")
STEPS = "trainer.steps=12"
"""So many that neither cell ends while the other one begins, on a busy machine too."""


class Sweep:
    """A sweep in a process group of its own, forked unless it is to be ``real``."""

    def __init__(self, runs_dir: Path, temp: Path, *arguments: str, real: bool = False) -> None:
        self.runs_dir, self.temp = runs_dir, temp
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        own = {"start_new_session": True, "env": os.environ | {"TMPDIR": str(self.temp)}}
        words = (f"runs_dir={runs_dir}", *arguments)
        self.process = start("experiments.sweep", *words, real=real, **pipes, **own)

    def wait_for(self, happened: Callable[[], object], what: str) -> None:
        def happened_before_the_end() -> bool:
            so = bool(happened())
            ended = not so and self.process.poll() is not None
            assert not ended, f"it ended before {what}: {self.process.communicate()[0]}"
            return so

        wait_for(happened_before_the_end, what)

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def stopped(self) -> str:
        """What it said, once it has ended in order."""
        output, _ = self.process.communicate(timeout=GENEROUS_S)
        assert self.process.returncode == 130 and "Traceback" not in output, output
        return output

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def started(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Sweep]]:
    begun: list[Sweep] = []
    temp = tmp_path_factory.mktemp("t")  # short: sockets lie in it, whose paths end at 107 bytes

    def start(*arguments: str, real: bool = False) -> Sweep:
        begun.append(Sweep(tmp_path / "runs", temp, *arguments, real=real))
        return begun[-1]

    yield start
    for one in begun:
        one.kill()


def statuses(runs_dir: Path) -> dict[str, str]:
    """Name of each run in MLflow -> how it ended, asked of the store itself."""
    with closing(sqlite3.connect(runs_dir / "mlflow.db")) as store:
        return dict(store.execute("select name, status from runs").fetchall())


@pytest.mark.parametrize("command, code", [("130", -signal.SIGINT), ("stopping.exit_code()", 130)])
def test_an_interruption_within_exec_ends_by_the_exit_code(command, code, tmp_path) -> None:
    (tmp_path / "stopped.py").write_text(
        "import sys\nfrom study.system import stopping\n"
        "try:\n    exec('raise KeyboardInterrupt')\n"
        f"except KeyboardInterrupt:\n    sys.exit({command})\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-m", "stopped"], cwd=tmp_path, env=environment)
    assert ended.returncode == code


def test_while_composing(started) -> None:
    seeds = ",".join(map(str, range(400)))
    words = ("tracking=none", f"seed={seeds}", "hydra.job.name=slow")  # left to Hydra
    one = started(*words, real=True)
    one.wait_for(lambda: list(one.temp.glob("judgedrift-*")), "Hydra was called")
    one.send(signal.SIGINT)
    assert "Stopped." in one.stopped()
    assert not list(one.temp.glob("judgedrift-*")) and not one.runs_dir.exists()


UNFRIENDLY = """
import os, signal, sys, omegaconf
real, sent = omegaconf.DictConfig._set_value, []

def swallowing(*arguments, **named):
    try:
        if not sent and signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:  # the sweep listens
            sent.append(os.kill(os.getpid(), signal.{number}))
    except BaseException:
        pass
    return real(*arguments, **named)

omegaconf.DictConfig._set_value = swallowing
from experiments import sweep
sys.argv[1:] = {arguments}
sys.exit(sweep.main())
"""


@pytest.mark.parametrize(
    ("number", "more"),
    [
        ("SIGINT", []),
        ("SIGTERM", ["hydra.job.name=slow"]),
        pytest.param("SIGINT", ["hydra.job.name=slow"], marks=pytest.mark.long),
        pytest.param("SIGTERM", [], marks=pytest.mark.long),
    ],
)
def test_a_library_that_drops_an_interruption_does_not_keep_it(number, more, tmp_path) -> None:
    """OmegaConf asks for attributes with a default, and passes over what is raised meanwhile."""
    arguments = ["debug=tiny", "judge=sim-fair", "seed=0,1", "plan=true", f"runs_dir={tmp_path}"]
    words = repr([*arguments, *more])
    driver = UNFRIENDLY.replace("{number}", number).replace("{arguments}", words)
    ended = run_program(driver)
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert "Stopped." in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "error, is_one",
    [
        (KeyboardInterrupt(), True),
        (came_of(KeyboardInterrupt(), AttributeError(), ConfigAttributeError("no flags")), True),
        (came_of(KeyboardInterrupt(), ImportError("half a module")), True),
        (came_of(ValueError(), RuntimeError()), False),
        (SystemExit(1), False),
    ],
)
def test_what_came_of_an_interruption_is_one(error: BaseException, is_one: bool) -> None:
    assert stopping.interrupted(error) is is_one


def test_while_a_judge_is_asked_whether_it_answers(started) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(GENEROUS_S)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        one = started("debug=tiny", "judge=openai-compatible", "seed=0",
                      f"judge.endpoint.url={url}", "judge.endpoint.model=m")  # fmt: skip
        connection, _ = silent.accept()
        with connection:
            one.send(signal.SIGTERM)
            assert "Stopped." in one.stopped()
    assert not list(one.runs_dir.glob("*/study.json")) and not (one.runs_dir / "mlflow.db").exists()


def while_cells_run(started: Callable[..., Sweep]) -> list[Path]:
    """Stop the sweep once both of its cells have had a step; their folders."""
    one = started(*TINY, STEPS, SLOWLY)
    checkpoints = "debug/*/checkpoints"

    def both() -> bool:
        return sum(any(path.glob("*")) for path in one.runs_dir.glob(checkpoints)) == 2

    one.wait_for(both, "both cells had a step")
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        one.send(number)  # at once: a quick machine ends in order within a quarter of a second
        time.sleep(0.02)
    assert "Stopping" in one.stopped(), "the second one was not answered"
    folders = study_cells(one.runs_dir / "debug")
    assert [folder.state() for folder in folders] == ["killed", "killed"]
    assert set(statuses(one.runs_dir).values()) == {"KILLED"}
    assert len(statuses(one.runs_dir)) == 3
    for folder in folders:
        # an exception in a weak reference's callback, a signal's too, is passed over and said
        log = re.sub(r"Exception ignored in: .*\nTraceback", "", (folder / "log.txt").read_text())
        assert "Traceback" not in log
    return folders


def goes_on(runs_dir: Path, trained: Trained) -> None:
    """The same command comes to its end, and closes the study."""
    again = trained(runs_dir, *TINY, STEPS, "sweep.report=false")
    assert again.returncode == 0, again.stdout + again.stderr
    assert set(statuses(runs_dir).values()) == {"FINISHED"}, "the study was not closed"


@pytest.mark.slow
def test_while_cells_run(started, trained, warmed, tmp_path) -> None:
    warmed(tmp_path / "runs")
    while_cells_run(started)
    goes_on(tmp_path / "runs", trained)


@pytest.mark.long
@pytest.mark.slow
def test_from_laying_the_study_to_its_report(started, trained) -> None:
    """The same command, stopped while the store is made, while cells run, while it reports; then
    it is let go on, and all is done."""
    one = started(*TINY, STEPS)
    one.wait_for(lambda: (one.runs_dir / ".mlflow.lock").exists(), "MLflow was opened")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        one.process.send_signal(number)
        time.sleep(0.2)
    one.stopped()
    folders = study_cells(one.runs_dir / "debug")
    assert len(folders) == 2, "half a study was laid"
    assert [folder.state() for folder in folders] == ["new", "new"]
    assert statuses(one.runs_dir) == {"debug": "KILLED"}

    assert while_cells_run(started) == folders

    one = started(*TINY, STEPS)
    one.wait_for(lambda: all((folder / "DONE").exists() for folder in folders), "both were done")
    # what comes then, before the study's own run ends, is the report
    one.wait_for(
        lambda: [*statuses(one.runs_dir).values()].count("FINISHED") == 2, "both runs had ended"
    )
    one.process.send_signal(signal.SIGTERM)
    one.stopped()
    states = statuses(one.runs_dir)
    assert states.pop("debug") == "KILLED" and set(states.values()) == {"FINISHED"}
    goes_on(one.runs_dir, trained)


def test_a_launcher_that_is_not_installed_lays_nothing(tmp_path) -> None:
    done = sweep(tmp_path / "runs", "debug=tiny", "judge=sim-fair", "seed=0", "hydra/launcher=ray")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "hydra/launcher=ray" in done.stderr and "sweep.engine=ray" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


DRIVER = """
import os, signal, time
from study.system import stopping
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
stopping.take_signals()
me = os.getpid()
try:
    with stopping.held():
        os.kill(me, signal.SIGTERM)
        print("still here")
    print("not reached")
except KeyboardInterrupt:
    os.kill(me, signal.SIGINT)
    os.kill(me, signal.SIGHUP)
    print("ended in order")
stopping.PATIENCE_S = 0
try:
    os.kill(me, signal.SIGINT)
    print("not reached")
except KeyboardInterrupt:
    print("obeyed again")
"""


def test_a_signal_waits_for_what_is_held_and_others_are_answered() -> None:
    done = run_program(DRIVER)
    assert done.stdout.split("\n") == ["still here", "ended in order", "obeyed again", ""]
    assert done.stderr.count("Stopping") == 3


LOST = """
import _thread, os, signal, time, weakref
from study.system import stopping

class Thing:
    pass

stopping.take_signals()
if {again}:
    begin = _thread.start_new_thread

    def begin_late(*what):  # as on a busy machine, where the signal comes before this has returned
        begin(*what)
        os.kill(os.getpid(), signal.{number})

    _thread.start_new_thread = begin_late
thing = Thing()
watch = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.{number}))
try:
    del thing  # Python drops what is raised in this callback
    time.sleep(3600)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_an_interruption_within_a_callback_is_not_lost(number: str, again: bool) -> None:
    ended = run_program(LOST.format(number=number, again=again))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n", "")
