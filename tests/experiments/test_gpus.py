"""Each cell has GPUs of its own, across the sweeps of a user on one host."""

import itertools
import multiprocessing
import os

import pytest

from experiments.launch import pool
from experiments.plan.memory import slots_of
from experiments.plan.preflight import check_device
from study.cell.folder import CellFolder
from study.errors import UserError
from study.finding import stop_at_problem
from study.system.machine import usable_gpus
from tests.experiments.fake_cells import LASTS, laid, made, ran, start
from tests.waiting import GENEROUS_S

pytestmark = pytest.mark.usefixtures("own_leases")


def overlapping(spans: list[tuple[float, float]]) -> int:
    """The most of them at one time."""
    edges = sorted([(low, 1) for low, _ in spans] + [(high, -1) for _, high in spans])
    return max(itertools.accumulate(change for _, change in edges))


def test_two_sweeps_on_one_host_share_no_gpu(tmp_path, gpus_here) -> None:
    gpus_here(2)
    todo = laid(tmp_path / "runs", 6, workers=3)
    first = start(tmp_path, todo[:3], **{LASTS: "1.5"})
    second = start(tmp_path, todo[3:], **{LASTS: "1.5"})
    said = [child.communicate(timeout=GENEROUS_S)[0] for child in (first, second)]
    assert first.returncode == second.returncode == 0, said
    assert all("2 at once" in text and "1 GPU each of 2" in text for text in said)
    waiting = [text.count("Your other sweeps and servers hold this machine") for text in said]
    assert 1 in waiting, said
    told = [ran(cell) for cell in todo]
    for gpu in ("0", "1"):
        spans = [(life["began"], life["ended"]) for life in told if life["gpus"] == gpu]
        assert len(spans) >= 2 and overlapping(spans) == 1
    assert {life["gpus"] for life in told} == {"0", "1"}


def test_slots_are_by_cores_memory_and_gpus(tmp_path, gpus_here, monkeypatch) -> None:
    monkeypatch.setattr("experiments.plan.memory.cpus", lambda: 8)
    monkeypatch.setattr("experiments.plan.memory.free_memory", lambda: 100 * 2**30)
    gpus_here(0)

    def slots(**sweep):
        found = slots_of(made(tmp_path / "runs", 20, **sweep))
        return found.at_once, found.threads, found.gpus_each

    assert slots() == (8, 1, 0)
    assert slots(cpus_per_cell=3) == (2, 3, 0)
    assert slots(memory_per_cell_gb=30.0) == (3, 2, 0)
    assert slots(memory_per_cell_gb=300.0) == (1, 8, 0)
    assert slots(workers=5, memory_per_cell_gb=30.0) == (5, 1, 0)
    gpus_here(4)
    assert slots() == (4, 2, 1)
    assert slots(gpus_per_cell=0.5) == (8, 1, 0.5)
    assert slots(gpus_per_cell=0.5, workers=20) == (8, 1, 0.5)
    assert slots(gpus_per_cell=0.07, workers=1000)[0] == 20  # all of them; 48 would fit
    assert slots(gpus_per_cell=2.0) == (2, 4, 2)
    assert slots(accelerate="ddp-cpu") == (1, 8, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert slots() == (2, 4, 1)
    assert [gpu.id for gpu in usable_gpus("")] == ["GPU-0000-3", "GPU-0000-1"]
    assert [gpu.id for gpu in usable_gpus("cuda:1")] == ["GPU-0000-1"]
    assert usable_gpus("cpu") == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0000-2,MIG-7")
    shown = [(gpu.name, gpu.id) for gpu in usable_gpus("")]
    assert shown == [("GPU-0000-2", "GPU-0000-2"), ("MIG-7", "MIG-7")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")  # the fifth of four
    assert [(gpu.name, gpu.memory) for gpu in usable_gpus("")] == [("4", 0)]


@pytest.mark.parametrize(
    ("here", "sweep", "said"),
    [
        (
            2,
            {"gpus_per_cell": 3.0},
            "this process may use: 2 GPUs here. Type sweep.gpus_per_cell=2",
        ),
        (0, {"gpus_per_cell": 0.5}, "this process may use: 0 GPUs here. Leave it out"),
        (8, {"gpus_per_cell": 1.5}, "a whole number, or a share"),
        (8, {"gpus_per_cell": 2.0, "accelerate": "fsdp"}, "the 8 processes"),
        (0, {"accelerate": "fsdp"}, "has 0. Type this on a machine with 8, or"),
        (4, {"accelerate": "zero3"}, "has 4. .* write num_processes: 4 in a"),
    ],
)
def test_gpus_that_no_cell_can_have_are_refused(tmp_path, gpus_here, here, sweep, said) -> None:
    gpus_here(here)
    with pytest.raises(UserError, match=said):
        stop_at_problem(check_device(made(tmp_path / "runs", 1, **sweep)))


@pytest.mark.parametrize(
    ("here", "serve", "sweep", "each", "at_once"),
    [
        (8, {"tensor_parallel": 4}, {}, 1, 4),
        (8, {"tensor_parallel": 2, "replicas": 3}, {}, 1, 2),
        (8, {"tensor_parallel": 2, "extra": ["--pipeline-parallel-size", "2"]}, {}, 1, 4),
        (8, {"extra": ["-dp=3"]}, {"gpus_per_cell": 2.0}, 2, 2),
        (2, {"gpu_memory_utilization": 0.5}, {"gpus_per_cell": 0.5}, 0.5, 3),
        (1, {"gpu_memory_utilization": 0.6}, {"gpus_per_cell": 0.2}, 0.2, 2),
        (8, {"tensor_parallel": 4, "auto": False}, {}, 1, 8),
        (8, {"tensor_parallel": 4, "bind": "0.0.0.0"}, {}, 1, 8),  # perhaps on another machine
        (8, {"tensor_parallel": 4, "device": "cpu"}, {}, 1, 8),
    ],
)
def test_cells_get_what_judges_leave(
    tmp_path, gpus_here, monkeypatch, here, serve, sweep, each, at_once
) -> None:
    monkeypatch.setattr("experiments.plan.memory.cpus", lambda: 64)
    monkeypatch.setattr("experiments.plan.memory.free_memory", lambda: 2**40)
    gpus_here(here)
    todo = made(tmp_path / "runs", 20, serve={"auto": True, **serve}, **sweep)
    stop_at_problem(check_device(todo))
    slots = slots_of(todo)
    assert (slots.gpus_each, slots.at_once) == (each, at_once)


@pytest.mark.parametrize(
    ("here", "serve", "sweep"),
    [
        (1, {}, {}),
        (4, {"tensor_parallel": 4, "gpu_memory_utilization": 0.9}, {}),
        (4, {"tensor_parallel": 8}, {"gpus_per_cell": 0.1}),
        (4, {"tensor_parallel": 3}, {"gpus_per_cell": 2.0}),
        (1, {"gpu_memory_utilization": 0.6}, {"gpus_per_cell": 0.5}),
    ],
)
def test_a_judge_that_leaves_nothing_is_refused(tmp_path, gpus_here, here, serve, sweep) -> None:
    gpus_here(here)
    todo = made(tmp_path / "runs", 2, serve={"auto": True, **serve}, **sweep)
    with pytest.raises(UserError, match="none is left for a cell") as refused:
        stop_at_problem(check_device(todo))
    assert "judge=fake here" in str(refused.value) and f"use {here}," in str(refused.value)
    assert "gpu_memory_utilization=.5 sweep.gpus_per_cell=.5" in str(refused.value)


def test_a_child_is_shown_its_gpu_before_torch_looks(tmp_path, monkeypatch) -> None:
    """The server of children has torch; a variable that one sets still counts."""

    def show(folder: CellFolder, threads: int) -> None:
        print(os.environ["CUDA_VISIBLE_DEVICES"])

    monkeypatch.setattr(pool, "run_cell", show)
    task = (CellFolder(tmp_path), 1, {"CUDA_VISIBLE_DEVICES": "5"})
    child = multiprocessing.get_context("fork").Process(target=pool.run_task, args=task)
    child.start()
    child.join(GENEROUS_S)
    assert (tmp_path / "log.txt").read_text().endswith("5\n")
    import torch

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert torch.cuda._parse_visible_devices() == [5]
