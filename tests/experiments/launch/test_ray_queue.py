"""Which cell a free slot of the Ray engine gets."""

import dataclasses
from collections import Counter
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.launch import ray_engine
from experiments.launch.ray_engine import Place, Queue
from experiments.launch.ray_nodes import capacity, needs
from study.cell import cells
from study.cell.folder import CellFolder
from study.config.schema import Judge, Study, Sweep
from study.errors import UserError


def cell(judge, seed):
    config = Study(study="s", judge=Judge(name=judge), seed=seed)
    return cells.Cell({}, config, "", CellFolder(Path(f"/runs/s/{judge}-{seed}")))


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    slots=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    data=st.data(),
)
def test_a_slot_is_never_left_free_and_keeps_to_the_judges_of_its_node(counts, slots, data):
    todo = [cell(f"judge-{j}", seed) for j, count in enumerate(counts) for seed in range(count)]
    queue, places = Queue(todo), [Place(None, f"node-{number}") for number in slots]
    left = Counter(item.config.judge.name for item in todo)
    taken = []
    while queue:
        place = data.draw(st.sampled_from(places))
        there = {other.judge for other in places if other.node == place.node and other.judge}
        anywhere = {other.judge for other in places if other.judge}
        judge, folder = queue.take(place.node, places)
        waiting = {name for name, count in left.items() if count}
        assert judge in (waiting & there or waiting - anywhere or waiting)
        left[judge] -= 1
        place.judge = judge
        taken.append(folder)
    assert queue.take("node-0", places) is None
    assert sorted(taken) == sorted(item.folder for item in todo)
    for name in set(left):
        assert [folder for folder in taken if folder.name.startswith(f"{name}-")] == [
            item.folder for item in todo if item.config.judge.name == name
        ]


def test_a_cell_that_somebody_runs_is_kept_and_comes_first_when_it_is_free(tmp_path):
    first, second = cell("a", 0), cell("a", 1)
    queue, places = Queue([first, second]), [Place(None, "node")]
    queue.park(queue.take("node", places)[1])
    assert len(queue) == 2
    queue.look()
    assert queue.take("node", places)[1] == first.folder


NODES = {"head": {"CPU": 4.0}, "large": {"CPU": 16.0, "GPU": 8.0, "memory": 2.0**36}}


@pytest.mark.parametrize(
    ("settings", "device", "held"),
    [
        ({}, "", {"head": 0, "large": 8}),
        ({}, "cpu", {"head": 4, "large": 16}),
        ({"cpus_per_cell": 4}, "", {"head": 0, "large": 4}),
        ({"gpus_per_cell": 0.3, "cpus_per_cell": 1}, "", {"head": 0, "large": 16}),
        ({"gpus_per_cell": 0.7, "cpus_per_cell": 1}, "", {"head": 0, "large": 8}),
        ({"gpus_per_cell": 4.0}, "", {"head": 0, "large": 2}),
        ({"gpus_per_cell": 16.0}, "", {"head": 0, "large": 0}),
        ({"memory_per_cell_gb": 16.0, "gpus_per_cell": 0.5}, "", {"head": 0, "large": 4}),
    ],
)
def test_what_a_node_holds(settings, device, held):
    needed = needs([Study(study="s", device=device, sweep=Sweep(engine="ray", **settings))], NODES)
    assert {name: capacity(NODES[name], needed) for name in NODES} == held


def test_shares_that_are_not_legal_are_refused_and_memory_is_for_the_largest_cell():
    with pytest.raises(UserError, match="whole number"):
        needs([Study(study="s", sweep=Sweep(engine="ray", gpus_per_cell=1.5))], NODES)
    sweeps = [Sweep(engine="ray", memory_per_cell_gb=size) for size in (1.0, 3.0, 2.0)]
    configs = [Study(study="s", device="cpu", sweep=sweep) for sweep in sweeps]
    assert needs(configs, NODES)["memory"] == 3 * 2**30


def test_a_cluster_whose_nodes_never_say_what_they_are_ends_the_sweep(monkeypatch):
    moments = count(1.0, 0.25)  # a quarter of a second from one look at the clock to the next
    clock = SimpleNamespace(monotonic=lambda: next(moments), sleep=lambda _: None)
    monkeypatch.setattr(ray_engine, "time", clock)
    monkeypatch.setattr(ray_engine, "EMPTY_S", 2.5)
    node = {"NodeID": "n", "Alive": True, "Resources": {"CPU": 8.0, "memory": 2.0**40}}
    ray = SimpleNamespace(nodes=lambda: [node], remote=lambda made: made)
    silent = SimpleNamespace(refusals=lambda nodes, share: {})
    monkeypatch.setattr(ray_engine, "SILENT_S", 0.0)
    said = []
    watch = SimpleNamespace(tick=lambda: None, say=said.append)
    todo = [cells.make_cell(dataclasses.asdict(Study(device="cpu")))]
    swept = ray_engine.Sweep(ray, todo, watch, silent)
    monkeypatch.setattr(ray_engine, "LOOK_S", 0.0)
    with pytest.raises(UserError, match=r"described itself within 2\.5 s: 1 node with room"):
        swept.run()
    assert [line.split(".")[0] for line in said] == ["The node n has not described itself for 0 s"]
