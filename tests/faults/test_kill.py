"""kill -9 of a cell or the sweep: at most the step in flight is lost, no stored call repeats."""

import json
import os
import signal
import subprocess
import sys
import time

import pyarrow.dataset as ds
import pytest
import torch

from experiments import cells
from tests.conftest import ROOT, sweep

RUN = ("debug=tiny", "judge=sim-noisy", "seed=0", "trainer.steps=6", "sweep.report=false")
"""A noisy judge: its verdicts are repeatable only because each is drawn from its own content."""


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    runs_dir = tmp_path_factory.mktemp("straight")
    done = sweep(runs_dir, *RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = only_cell(runs_dir)
    assert any(row["advantage"] for row in records(folder)), "nothing was learned from"
    return folder


def only_cell(runs_dir):
    (folder,) = cells.study_cells(runs_dir / "debug")
    return folder


def records(folder):
    table = ds.dataset(folder / "rollouts", format="parquet").to_table().to_pylist()
    return sorted(table, key=lambda row: row["rollout_id"])


def wait_for_step(runs_dir, step, child):
    limit = time.monotonic() + 200
    while time.monotonic() < limit:
        assert child.poll() is None, "the sweep ended before it could be killed"
        for folder in cells.study_cells(runs_dir / "debug"):
            status = json.loads((folder / "status.json").read_text())
            if status["state"] == "running" and status["step"] >= step:
                return folder, status
        time.sleep(0.02)
    raise AssertionError("the cell never reached the step")


def assert_same_run(found, straight):
    """Rollouts, rewards and advantages of every step, and the final weights, bit for bit."""
    ours, theirs = records(found), records(straight)
    assert [row["rollout_id"] for row in ours] == [row["rollout_id"] for row in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine == other
    from safetensors.torch import load_file

    weights = load_file(found / "policy" / "adapter_model.safetensors")
    expected = load_file(straight / "policy" / "adapter_model.safetensors")
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["cell", "sweep"])
def test_killed_and_resumed_equals_uninterrupted(tmp_path, straight, victim):
    child = subprocess.Popen(
        [sys.executable, "-m", "experiments.sweep", f"runs_dir={tmp_path}", *RUN],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    folder, status = wait_for_step(tmp_path, 3, child)
    os.kill(status["pid"] if victim == "cell" else child.pid, signal.SIGKILL)
    child.wait(timeout=60)
    limit = time.monotonic() + 20
    while cells.state(folder) == "running" and time.monotonic() < limit:
        time.sleep(0.05)  # an orphaned cell leaves by itself
    assert cells.state(folder) == "killed"
    reached = json.loads((folder / "status.json").read_text())["step"]
    assert recorded_keys(folder) <= stored_keys(tmp_path)
    before = stored_keys(tmp_path)

    again = sweep(tmp_path, *RUN)
    assert again.returncode == 0, again.stdout + again.stderr
    assert_same_run(folder, straight)
    resumed = [
        line for line in (folder / "log.txt").read_text().splitlines() if line.startswith("step ")
    ]
    redone = [line for line in resumed if line.startswith(f"step {reached}/")]
    assert len(redone) <= 2, "more than the step in flight was redone"
    assert stored_keys(tmp_path) == stored_keys(straight.parent.parent)
    calls = {
        line["step"]: line["metrics"]["cost/calls"]
        for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    }
    asked_again = sum(count for step, count in calls.items() if step > reached)
    assert asked_again == len(stored_keys(tmp_path) - before), "a stored call was made again"


def recorded_keys(folder):
    table = ds.dataset(folder / "verdicts", format="parquet").to_table(columns=["key"])
    return set(table["key"].to_pylist())


def stored_keys(runs_dir):
    from judges.store import Store

    with Store(runs_dir / "verdicts.db") as store:
        return {row[0] for row in store._connection().execute("SELECT key FROM replies")}
