"""One cell: done is done, and what is not is brought to the same end."""

import os
import shutil
from functools import partial

import pytest
import yaml

from experiments import train
from experiments.launch import pool
from experiments.trainer import checkpoints
from study import cells
from study.files import read_json, write_json
from study.status import read_status
from tests.conftest import came_of
from tests.faults import lives, windows
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def whole(small_study):
    return next(path for path in cells.study_cells(small_study) if "sim-flaky" in path.name)


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of a finished cell, in runs of its own."""
    folder = lives.lay(tmp_path / "runs", whole)
    shutil.rmtree(folder)
    shutil.copytree(whole, folder)
    return folder


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "log.txt"}


def test_a_done_cell_is_neither_trained_nor_written(finished):
    before, looked = lives.everything(finished), times(finished)
    passed = finished.parent / "passed.txt"
    assert lives.run(finished, partial(windows.note, finished.parent.parent, passed)) == 0
    assert lives.everything(finished) == before and times(finished) == looked
    assert passed.read_text() == ""
    assert lives.tracked(finished) == []
    assert "is done" in (finished / "log.txt").read_text()


def test_a_done_cell_in_a_folder_that_cannot_be_written(finished, capsys):
    finished.chmod(0o500)
    (finished / ".lock").unlink() if os.geteuid() == 0 else None
    assert train.main([f"cell={finished}"]) == 0
    assert not (finished / ".lock").exists() or os.geteuid() != 0
    finished.chmod(0o700)
    assert "is done" in capsys.readouterr().out


def test_a_cell_whose_device_is_not_here_is_refused(finished, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (finished / "DONE").unlink()
    config = finished / "config.yaml"
    data = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(data | {"device": "cuda:9"}))
    status = (finished / "status.json").read_bytes()
    assert train.main([f"cell={finished}"]) == 2
    assert "device=cuda:9 is not there" in capsys.readouterr().err
    assert (finished / "status.json").read_bytes() == status


@pytest.mark.parametrize("ended_by", [KeyboardInterrupt, train.Terminated])
def test_a_cell_that_is_stopped_within_a_library_is_killed_and_did_not_fail(
    finished, monkeypatch, ended_by
):
    def stopped(*_):
        raise came_of(ended_by(), AttributeError("half built"))

    (finished / "DONE").unlink()
    monkeypatch.setattr(train, "train", stopped)
    assert train.run_cell(finished) == cells.STOPPED
    assert cells.state(finished) == "killed"
    assert read_status(finished)["error"] == "stopped by a signal"


def test_a_cell_that_gets_done_while_another_process_waits_for_it(finished):
    (finished / "DONE").unlink()
    held = cells.lock(finished)
    assert held is not None
    child = lives.start(finished)
    wait_for(lambda: "pid" in (finished / "log.txt").read_text())
    before = times(finished)
    (finished / "DONE").touch()
    held.close()
    child.join()
    assert child.exitcode in (0, cells.BUSY)
    after = times(finished)
    assert after.keys() - before.keys() == {finished / "DONE"}
    assert all(after[path] == before[path] for path in before if path != finished)


@pytest.mark.parametrize("left", ["nothing", "half", "whole"])
def test_at_the_last_step_only_what_is_missing_is_written(finished, whole, left):
    """Killed after the last checkpoint: before, in, or after the writing of the policy."""
    (finished / "DONE").unlink()
    if left == "nothing":
        shutil.rmtree(finished / "policy")
    if left == "half":
        os.truncate(finished / "policy" / "adapter_model.safetensors", 1000)
    cells.set_status(finished, state="done" if left == "whole" else "running")
    assert cells.state(finished) == "killed"
    before = times(finished)
    assert lives.run(finished) == 0
    after = times(finished)
    again = {
        path.relative_to(finished).parts[0]
        for path in after
        if path != finished and after[path] != before.get(path)
    }
    policy = set() if left == "whole" else {"policy"}
    assert again == {"DONE", "status.json", "metrics.jsonl", "mlflow.json"} | policy
    assert lives.differences(finished, whole) == []
    assert lives.tracked(finished) == ["FINISHED"]


def cut(path):
    os.truncate(path / "optimizer.pt", 1000)


def test_a_damaged_last_checkpoint_costs_its_step(finished, whole):
    (finished / "DONE").unlink()
    cut(finished / "checkpoints" / "checkpoint-2")
    assert lives.run(finished) == 0
    assert lives.differences(finished, whole) == []
    log = (finished / "log.txt").read_text().rpartition("---\n")[2]
    assert "checkpoint-2 is skipped: optimizer.pt has 1000 bytes" in log
    assert "step 2/2" in log and "step 1/2" not in log


def test_without_a_sound_checkpoint_all_steps_are_trained_again(finished, whole):
    (finished / "DONE").unlink()
    for path in (finished / "checkpoints").iterdir():
        cut(path)
    assert lives.run(finished) == 0
    assert lives.differences(finished, whole) == []
    assert "step 1/2" in (finished / "log.txt").read_text().rpartition("---\n")[2]


@pytest.mark.parametrize("name", ["optimizer.pt", "adapter_model.safetensors", "rng_state.pth"])
def test_a_checkpoint_that_is_whole_and_cannot_be_loaded(finished, name):
    (finished / "DONE").unlink()
    (finished / "checkpoints" / "checkpoint-2" / checkpoints.COMPLETE).unlink()
    first = finished / "checkpoints" / "checkpoint-1"
    (first / name).write_bytes(b"not what torch reads")
    checkpoints.seal(first, cells.load_cell(finished).id)
    assert lives.run(finished) == 2
    status = read_json(finished / "status.json")
    assert status["state"] == "failed" and status["exit_code"] == 2
    assert f"{first} is as it was written, but cannot be loaded" in status["error"]
    assert "Traceback" not in (finished / "log.txt").read_text()


def test_steps_lowered_by_hand_are_refused_and_nothing_is_lost(finished):
    (finished / "DONE").unlink()
    config = finished / "config.yaml"
    config.write_text(config.read_text().replace("\n  steps: 2\n", "\n  steps: 1\n", 1))
    assert cells.load_cell(finished).config.trainer.steps == 1
    before = lives.everything(finished)
    assert lives.run(finished) == 2
    assert "trainer.steps=1" in read_json(finished / "status.json")["error"]
    after = lives.everything(finished)
    assert {name for name in before if before[name] != after[name]} == {"status.json"}


def test_laying_a_cell_again_leaves_a_done_or_running_one_alone(finished):
    cell = cells.load_cell(finished)
    before = times(finished)
    cells.save_cell(cell)
    (finished / "DONE").unlink()
    held = cells.lock(finished)
    assert held is not None
    with held:
        cells.save_cell(cell)
    assert all(
        times(finished)[path] == before[path]
        for path in before
        if path.is_file() and path.name not in ("DONE", ".lock")
    )


def test_a_second_sweep_waits_for_a_running_cell_and_leaves_it_done(finished, capsys):
    (finished / "DONE").unlink()
    write_json(finished / "status.json", {"state": "running"})
    held = cells.lock(finished)
    assert held is not None
    before = lives.everything(finished)
    ticks = []

    def tick():
        ticks.append(cells.state(finished))
        if len(ticks) == 2:
            (finished / "DONE").touch()
            held.close()

    assert pool.run_pool([finished], 1, 1, lambda folder, code: None, tick) == {finished: 0}
    assert ticks[:2] == ["running", "running"]
    assert capsys.readouterr().err.count("another process is running it") == 1
    assert lives.everything(finished) == before | {"DONE": b""}
