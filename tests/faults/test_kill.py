"""kill -9 of a sweep, and of a cell between any two writes: at most the step in flight is lost, no
stored call repeats, and the end is that of a run that was never disturbed."""

import contextlib
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from functools import partial
from signal import SIGKILL

import pyarrow.dataset as ds
import pytest

from experiments import sweep
from experiments.launch import pool
from study.cell.folder import study_cells
from tests import commands
from tests.conftest import ROOT, SLOWLY
from tests.faults import kills, lives, windows
from tests.waiting import GENEROUS_S, wait_for

RUN = (
    *("judge=sim-noisy", "seed=0", "trainer.steps=4"),
    *("trainer.eval_steps=2", "trainer.keep_steps=true"),
)
"""A noisy judge: its verdicts are repeatable only because each is drawn from its own content."""


@pytest.fixture(scope="module")
def straight(trained, tmp_path_factory):
    runs_dir = tmp_path_factory.mktemp("straight")
    done = trained(runs_dir, *lives.TINY, *RUN, "tracking=none")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = study_cells(runs_dir / "debug")
    assert any(row["advantage"] for row in lives.parts(folder.path, "rollouts")), (
        "nothing was learned"
    )
    return folder.path


def wait_for_step(runs_dir, step, child):
    """The cell's folder, once it is in the step."""

    def reached():
        assert child.poll() is None, "the sweep ended before it could be killed"
        for folder in study_cells(runs_dir / "debug"):
            status = folder.status()
            if status.get("state") == "running" and status.get("step", 0) >= step:
                return folder
        return None

    return wait_for(reached, f"step {step}")


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path, straight, trained, warmed):
    warmed(tmp_path)
    words = (f"runs_dir={tmp_path}", *lives.TINY, *RUN, SLOWLY)
    quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    child = commands.start("experiments.sweep", *words, **quiet)
    folder = wait_for_step(tmp_path, 2, child)
    child.kill()
    child.wait(timeout=GENEROUS_S)
    # an orphaned cell leaves by itself
    wait_for(lambda: folder.state() != "running", "the cell left")
    assert folder.state() == "killed"
    assert lives.tracked(folder.path) == ["KILLED"]
    reached = folder.status()["step"]
    table = ds.dataset(folder / "verdicts", format="parquet").to_table(columns=["key"])
    assert set(table["key"].to_pylist()) <= stored_keys(tmp_path)
    before = stored_keys(tmp_path)

    again = trained(tmp_path, *lives.TINY, *RUN)
    assert again.returncode == 0, again.stdout + again.stderr
    assert lives.differences(folder.path, straight) == []
    resumed = [
        line for line in (folder / "log.txt").read_text().splitlines() if line.startswith("step ")
    ]
    redone = [line for line in resumed if line.startswith(f"step {reached}/")]
    assert len(redone) <= 2, "more than the step in flight was redone"
    assert stored_keys(tmp_path) == stored_keys(straight.parent.parent)
    calls = {
        line["step"]: line["metrics"]["cost/calls"]
        for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        if line["step"]
    }
    asked_again = sum(count for step, count in calls.items() if step > reached)
    assert asked_again == len(stored_keys(tmp_path) - before), "a stored call was made again"


def stored_keys(runs_dir):
    from judges.ask.replies import Store

    with Store(runs_dir / "verdicts.db") as store:
        return {row[0] for row in store._connection().execute("SELECT key FROM replies")}


STUDY = ("judge=sim-flaky", "seed=3,4", "shadow=[sim-verbose]", "tracking=none")
"""Two cells of the session's small study, which is what one sweep alone makes of them."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "later",
    [
        pytest.param(False, marks=pytest.mark.long, id="together"),
        pytest.param(True, id="in the middle"),
    ],
)
def test_two_sweeps_of_one_study_end_as_one(tmp_path, small_study, trained, warmed, later):
    words = [f"runs_dir={warmed(tmp_path)}", *lives.TINY, *STUDY]

    def begin():
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return commands.start("experiments.sweep", *words, **pipes)

    with begin() as first:
        if later:
            wait_for_step(tmp_path, 1, first)
            second = trained(tmp_path, *lives.TINY, *STUDY)
            said = [first.communicate(timeout=GENEROUS_S)[0], second.stdout + second.stderr]
        else:
            with begin() as second:
                said = [child.communicate(timeout=GENEROUS_S)[0] for child in (first, second)]
    assert first.returncode == 0, said
    leaves_it = "is running it" in said[1] or "another sweep is running the others" in said[1]
    assert second.returncode == 0 or leaves_it, said
    folders = study_cells(tmp_path / "debug")
    assert len(folders) == 2
    for folder in folders:
        assert lives.differences(folder.path, small_study / folder.name) == []
        log = (folder / "log.txt").read_text()
        assert [log.count(f"step {step}/2 ") for step in (1, 2)] == [1, 1], "trained twice"


@pytest.fixture(scope="module")
def whole(small_study):
    folder = next(path for path in study_cells(small_study) if "sim-flaky" in path.name)
    assert any(row["advantage"] for row in lives.parts(folder.path, "rollouts")), (
        "nothing was learned"
    )
    return folder.path


KINDS = (
    *("status.json", "environment.json", "mlflow.json", "rollouts/step-000002.parquet"),
    *("checkpoint-1/COMPLETE", "policy", "verdicts/steps-000001-000002.parquet", "DONE"),
)
"""A file of each kind that a cell names: its state, where it runs, the way to MLflow, a part, a
checkpoint, the policy, what is merged, the end."""
FEW = ("status.json", "rollouts/step-000002.parquet", "checkpoint-1/COMPLETE", "DONE")
"""Those that say how far a cell has come."""


@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        pytest.param(f"rename .*/({'|'.join(map(re.escape, FEW))})$", FEW, id="some kinds"),
        pytest.param("rename", KINDS, marks=pytest.mark.long, id="every"),
    ],
)
def test_killed_once_before_a_file_that_it_names(whole, tmp_path, wanted, kinds):
    """Each run of one cell is killed at the first rename at which none was killed before."""
    folder = lives.lay(tmp_path / "runs", whole)
    passed = kills.killed_in_turn(folder, tmp_path / "windows.txt", wanted)
    for written in kinds:
        assert any(name.startswith("rename") and name.endswith(written) for name in passed), written
    assert kills.finished(folder, whole, "the cell") == []


@pytest.mark.long
@pytest.mark.slow
def test_killed_at_random_times(whole, tmp_path):
    """A few of the kills of ``python -m tests.faults.kills``, which does the same without end."""
    assert kills.at_random(tmp_path, [whole], 6, random.Random(0)) == []


def swept(runs_dir, names, arguments):
    """The whole of a child: a sweep that is killed before the next file it names; the server that
    its cells are forked from imports what a cell needs only when there is one."""
    windows.kill_at_new(runs_dir, names, "rename")
    pool.PRELOAD.clear()
    os.chdir(ROOT)
    sys.argv = ["experiments.sweep", f"runs_dir={runs_dir}", *lives.TINY, *arguments]
    sys.exit(sweep.main())


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_killed_once_before_every_file_it_names(whole, tmp_path):
    """Its own files: the study, the cells' configs, the summary."""
    runs_dir, names = tmp_path / "runs", tmp_path / "windows.txt"
    folder = lives.lay(runs_dir, whole)
    (folder / "config.yaml").unlink()
    sweep_once = partial(swept, runs_dir, names, lives.FLAKY)
    while (code := lives.run(folder, sweep_once)) == -SIGKILL:
        pass
    assert code == 0, (folder / "log.txt").read_text()
    passed = names.read_text()
    for written in ("study.json", "config.yaml", "status.json", "summary.json"):
        assert f"{written}\n" in passed, passed
    assert lives.differences(folder, whole) == []
    with contextlib.closing(sqlite3.connect(runs_dir / "mlflow.db")) as store:
        assert store.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)] * 2
