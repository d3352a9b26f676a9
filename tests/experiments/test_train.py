"""One cell: done is done, and what is not is brought to the same end."""

import os
import shutil
from functools import partial

import pytest
import yaml

from experiments import train
from experiments.launch import pool
from experiments.policies import checkpoints
from study.cell import cells
from study.cell.folder import CellFolder, study_cells
from study.system.files import read_json, write_json, write_yaml
from tests.conftest import came_of
from tests.faults import lives, windows
from tests.plain_user import plain_user
from tests.tiers import some
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def whole(small_study):
    return next(cell.path for cell in study_cells(small_study) if "sim-flaky" in cell.name)


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of a finished cell, in runs of its own."""
    folder = lives.lay(tmp_path / "runs", whole)
    shutil.rmtree(folder)
    shutil.copytree(whole, folder)
    return folder


@pytest.fixture
def unfinished(finished):
    """The same, but not done."""
    (finished / "DONE").unlink()
    return finished


def last_log(folder):
    """What the last life of a cell printed."""
    return (folder / "log.txt").read_text().rpartition("---\n")[2]


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
    (finished / ".lock").unlink()
    finished.chmod(0o500)
    with plain_user():
        assert train.main([f"cell={finished}"]) == 0
    finished.chmod(0o700)
    assert not (finished / ".lock").exists()
    assert "is done" in capsys.readouterr().out


def test_a_cell_whose_device_is_not_here_is_refused(unfinished, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = unfinished / "config.yaml"
    data = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(data | {"device": "cuda:9"}))
    status = (unfinished / "status.json").read_bytes()
    assert train.main([f"cell={unfinished}"]) == 2
    assert "device=cuda:9 does not exist here" in capsys.readouterr().err
    assert (unfinished / "status.json").read_bytes() == status


@pytest.mark.parametrize("ended_by", [KeyboardInterrupt, train.Terminated])
def test_a_cell_that_is_stopped_within_a_library_is_killed_and_did_not_fail(
    unfinished, monkeypatch, ended_by
):
    def stopped(*_):
        raise came_of(ended_by(), AttributeError("half built"))

    monkeypatch.setattr(train, "train", stopped)
    assert train.run_cell(CellFolder(unfinished)) == cells.STOPPED
    assert CellFolder(unfinished).state() == "killed"
    assert CellFolder(unfinished).status()["error"] == "stopped by a signal"


def test_a_cell_that_gets_done_while_another_process_waits_for_it(unfinished):
    with CellFolder(unfinished).lock() or pytest.fail("the cell is held"):
        child = lives.start(unfinished)
        wait_for(lambda: "pid" in (unfinished / "log.txt").read_text())
        before = times(unfinished)
        (unfinished / "DONE").touch()
    child.join()
    assert child.exitcode in (0, cells.BUSY)
    after = times(unfinished)
    assert after.keys() - before.keys() == {unfinished / "DONE"}
    assert all(after[path] == before[path] for path in before if path != unfinished)


@pytest.mark.parametrize("left", [pytest.param("nothing", marks=pytest.mark.long), "half", "whole"])
def test_at_the_last_step_only_what_is_missing_is_written(unfinished, whole, left):
    """Killed after the last checkpoint: before, in, or after the writing of the policy."""
    if left == "nothing":
        shutil.rmtree(unfinished / "policy")
    if left == "half":
        os.truncate(unfinished / "policy" / "adapter_model.safetensors", 1000)
    CellFolder(unfinished).set_status(state="done" if left == "whole" else "running")
    assert CellFolder(unfinished).state() == "killed"
    before = times(unfinished)
    assert lives.run(unfinished) == 0
    after = times(unfinished)
    changed = [path for path in after if path != unfinished and after[path] != before.get(path)]
    again = {path.relative_to(unfinished).parts[0] for path in changed}
    policy = set() if left == "whole" else {"policy"}
    assert again == {"DONE", "status.json", "metrics.jsonl", "mlflow.json"} | policy
    assert lives.differences(unfinished, whole) == []
    assert lives.tracked(unfinished) == ["FINISHED"]


def cut(path):
    os.truncate(path / "optimizer.pt", 1000)


def test_a_damaged_last_checkpoint_costs_its_step(unfinished, whole):
    cut(unfinished / "checkpoints" / "checkpoint-2")
    assert lives.run(unfinished) == 0
    assert lives.differences(unfinished, whole) == []
    log = last_log(unfinished)
    assert "checkpoint-2 is skipped: optimizer.pt has 1000 bytes" in log
    assert "step 2/2" in log and "step 1/2" not in log


def test_without_a_sound_checkpoint_all_steps_are_trained_again(unfinished, whole):
    for path in (unfinished / "checkpoints").iterdir():
        cut(path)
    assert lives.run(unfinished) == 0
    assert lives.differences(unfinished, whole) == []
    assert "step 1/2" in last_log(unfinished)


@pytest.mark.parametrize(
    "name",
    some(["optimizer.pt", "adapter_model.safetensors", "rng_state.pth"], standard=["optimizer.pt"]),
)
def test_a_checkpoint_that_is_whole_and_cannot_be_loaded(unfinished, name):
    (unfinished / "checkpoints" / "checkpoint-2" / checkpoints.COMPLETE).unlink()
    first = unfinished / "checkpoints" / "checkpoint-1"
    (first / name).write_bytes(b"not what torch reads")
    checkpoints.seal(first, cells.load_cell(CellFolder(unfinished)).id)
    assert lives.run(unfinished) == 2
    status = read_json(unfinished / "status.json")
    assert status["state"] == "failed" and status["exit_code"] == 2
    assert f"{first} is unaltered, but cannot be loaded" in status["error"]
    assert "Traceback" not in (unfinished / "log.txt").read_text()


def test_steps_lowered_by_hand_are_refused_and_nothing_is_lost(unfinished):
    config = CellFolder(unfinished).config()
    config["trainer"]["steps"] = 1
    write_yaml(unfinished / "config.yaml", config)
    assert cells.load_cell(CellFolder(unfinished)).config.trainer.steps == 1
    before = lives.everything(unfinished)
    assert lives.run(unfinished) == 2
    assert "trainer.steps=1" in read_json(unfinished / "status.json")["error"]
    after = lives.everything(unfinished)
    assert {name for name in before if before[name] != after[name]} == {"status.json"}


def test_laying_a_cell_again_leaves_a_done_or_running_one_alone(finished):
    cell = cells.load_cell(CellFolder(finished))
    before = times(finished)
    cells.save_cell(cell)
    (finished / "DONE").unlink()
    with CellFolder(finished).lock() or pytest.fail("the cell is held"):
        cells.save_cell(cell)
    files = [path for path in before if path.is_file() and path.name not in ("DONE", ".lock")]
    assert files and all(times(finished)[path] == before[path] for path in files)


def test_a_second_sweep_waits_for_a_running_cell_and_leaves_it_done(unfinished, capsys):
    write_json(unfinished / "status.json", {"state": "running"})
    held = CellFolder(unfinished).lock()
    assert held is not None
    before = lives.everything(unfinished)
    ticks = []

    def tick():
        ticks.append(CellFolder(unfinished).state())
        if len(ticks) == 2:
            (unfinished / "DONE").touch()
            held.close()

    cell = CellFolder(unfinished)
    assert pool.run_pool([cell], 1, 1, lambda folder, code: None, tick) == {cell: 0}
    assert ticks[:2] == ["running", "running"]
    assert capsys.readouterr().err.count("another process is running it") == 1
    assert lives.everything(unfinished) == before | {"DONE": b""}
