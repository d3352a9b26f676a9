"""The Ray engine on a real cluster of several nodes on this host, mostly with fake cells."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from experiments.launch import ray_nodes
from study.cell.folder import study_cells
from study.config.schema import Ray, Sweep
from study.errors import UserError
from tests.experiments.launch import fakes
from tests.experiments.launch.clusters import Cluster, children, read
from tests.faults import lives
from tests.waiting import GENEROUS_S, wait_for

pytest.importorskip("ray")
DRIVER = ("-m", "tests.experiments.launch.fakes")
SECRET = "a-key-that-nobody-may-see-4711"
STALE = "Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n"
SILENT = """import os, sys, time
while "default_worker" in str(sys.orig_argv) and not os.path.exists({answers!r}):
    time.sleep(0.1)
"""
LATE = "import time\n_true = time.time\ntime.time = lambda: _true() - 100.0\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head with a CPU; at the end no process of it or of its nodes is left."""
    made = Cluster(tmp_path_factory.mktemp("ray"))
    try:
        yield made
    finally:
        made.stop()
    assert not made.processes()


@pytest.fixture(scope="module")
def workers(cluster):
    """The cluster with two more nodes of a CPU each."""
    cluster.first, cluster.second = cluster.add("first"), cluster.add("second")
    return cluster


def sweep(cluster, **settings):
    return Sweep(engine="ray", ray=Ray(address=cluster.address), **settings)


def folders(laid):
    return [str(cell.folder) for cell in laid]


def done(laid):
    return sum(cell.folder.is_done() for cell in laid)


def ended(driver):
    return driver.poll() is not None


def begun(laid):
    return [cell for cell in laid if fakes.steps_of(cell.folder)]


def started(laid):
    """How often a cell was begun."""
    return sum(len(fakes.lives(cell.folder)) for cell in laid)


def nodes_of(cell):
    return [life["node"] for life in fakes.lives(cell.folder)]


@pytest.mark.timeout(1800)
@pytest.mark.long
@pytest.mark.slow
def test_only_good_nodes_get_cells_and_shares_of_their_gpus(cluster, tmp_path):
    """And the cell of a slot that is lost costs its step in flight."""
    (tmp_path / "stale" / "torch-0.0.1.dist-info").mkdir(parents=True)
    (tmp_path / "stale" / "torch-0.0.1.dist-info" / "METADATA").write_text(STALE)
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "sitecustomize.py").write_text(LATE)
    enough = {"num-cpus": 1, "num-gpus": 1}
    good = cluster.add("gpus", **{"num-cpus": 3, "num-gpus": 2})
    added = [good, *(cluster.add(name, tmp_path / name, **enough) for name in ("stale", "late"))]
    laid = fakes.lay(
        *(tmp_path / "runs", sweep(cluster, gpus_per_cell=0.5), ("fair", "mean", "refused"), 4),
        **{"until": str(tmp_path / "go"), "ends": ["refused"], "end": "refused"},
    )
    fair, mean, refused = laid[:4], laid[4:8], laid[8:]
    held = fair[0].folder.lock()
    fair[0].folder.set_status(state="running")
    driver = cluster.run(*DRIVER, *folders(laid), **{fakes.KEY: SECRET})
    with held:
        wait_for(lambda: ended(driver) or len(begun(laid)) == 3, "each slot has a cell")
        lost = next(pid for pid in children(cluster.raylet(good)) if is_slot(pid))
        os.kill(lost, signal.SIGKILL)
        wait_for(lambda: ended(driver) or started(laid) == 4, "the slot is made again")
        (tmp_path / "go").touch()
        wait_for(lambda: ended(driver) or done(laid) == 7, "cells are done")
    said, _ = driver.communicate(timeout=GENEROUS_S)
    for node in added:
        node.terminate()
        node.wait(timeout=GENEROUS_S)
    assert driver.returncode == 0, said
    assert re.search(r"another environment than the sweep .*torch 0\.0\.1 there", said), said
    assert re.search(r"The clock of the node .* is (99|100|101)\.\d s behind", said), said
    assert said.count("was lost; it resumes from its last checkpoint") == 1, said
    assert all(fakes.steps_of(cell.folder.path) == [0, 1, 2] for cell in fair + mean), said
    assert sorted(len(fakes.lives(cell.folder.path)) for cell in fair + mean) == [1] * 7 + [2], said
    assert all(cell.folder.is_done() for cell in fair + mean), said
    assert "another process is running it; waiting for it" in said
    tried = [cell for cell in refused if fakes.lives(cell.folder.path)]
    assert 1 <= len(tried) < 4 and "refused its key" in said, said
    seen = [life for cell in laid for life in fakes.lives(cell.folder.path)]
    assert {life["node"] for life in seen} == {"gpus"}
    assert {life["gpu"] for life in seen} == {"0", "1"}
    assert {life["key"] for life in seen} == {SECRET}
    assert SECRET not in said
    logs = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert logs and not [path for path in logs if SECRET.encode() in read(path)]


@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.slow
def test_a_node_that_is_silent_is_not_waited_for_and_is_used_once_it_answers(cluster, tmp_path):
    answers, enough = tmp_path / "answers", tmp_path / "enough"
    (tmp_path / "silent").mkdir()
    (tmp_path / "silent" / "sitecustomize.py").write_text(SILENT.format(answers=str(answers)))
    added = [
        cluster.add("prompt", **{"num-gpus": 1}),
        cluster.add("silent", tmp_path / "silent", **{"num-gpus": 1}),
    ]
    laid = fakes.lay(
        *(tmp_path / "runs", sweep(cluster, gpus_per_cell=1), ("fair",), 2), until=str(enough)
    )
    driver = cluster.run(*DRIVER, *folders(laid))
    wait_for(lambda: ended(driver) or begun(laid), "a cell runs")
    assert [nodes_of(cell) for cell in begun(laid)] == [["prompt"]]
    answers.touch()
    wait_for(lambda: ended(driver) or len(begun(laid)) == 2, "the node that answers gets a cell")
    enough.touch()
    said, _ = driver.communicate(timeout=GENEROUS_S)
    for node in added:
        node.terminate()
        node.wait(timeout=GENEROUS_S)
    assert driver.returncode == 0, said
    assert sorted(nodes_of(cell)[0] for cell in laid) == ["prompt", "silent"], said


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.slow
def test_a_lost_driver_a_lost_worker_and_a_lost_node_cost_their_step_in_flight(workers, tmp_path):
    cluster = workers
    judges, steps = ("a", "b", "c"), 60
    laid = fakes.lay(tmp_path, sweep(cluster), judges, 2, steps, step_s=0.2)
    driver = cluster.run(*DRIVER, *folders(laid))
    wait_for(
        lambda: sum(bool(fakes.steps_of(cell.folder.path)) for cell in laid) == 3, "a cell runs"
    )
    assert {judge_of(cell) for cell in laid if fakes.lives(cell.folder.path)} == set(judges)
    driver.kill()
    driver.communicate()
    wait_for(lambda: not running(laid), "they end with their driver")

    driver = cluster.run(*DRIVER, *folders(laid))
    wait_for(lambda: len(running(laid)) == 3, "the cells go on")
    worker = next(pid for pid in children(cluster.raylet(cluster.first)) if is_slot(pid))
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: len(running(laid)) < 3, "the cell ends with its worker")
    wait_for(lambda: len(running(laid)) == 3, "the cell goes on")
    second = cluster.second
    os.kill(cluster.raylet(second), signal.SIGKILL)
    wait_for(lambda: not running_on(laid, "second"), "they end with their node")
    said, _ = driver.communicate(timeout=GENEROUS_S)
    assert driver.returncode == 0, said
    assert said.count("was lost; it resumes from its last checkpoint") == 2, said
    for cell in laid:
        assert fakes.steps_of(cell.folder.path) == list(range(steps)), said
    assert len({node for cell in laid for node in nodes_of(cell)}) == 3
    moved = [cell for cell in laid if len(set(nodes_of(cell))) > 1]
    assert moved, "the node's cell was not run on another one"
    second.wait(timeout=GENEROUS_S)
    cluster.second = cluster.add("second")


def judge_of(cell):
    return cell.config.judge.name


def running(laid):
    return [cell for cell in laid if cell.folder.state() == "running"]


def running_on(laid, node):
    return [cell for cell in running(laid) if nodes_of(cell)[-1] == node]


def is_slot(pid):
    return b"Slot" in read(Path(f"/proc/{pid}/cmdline"))


@pytest.mark.slow
def test_ctrl_c_ends_the_cells_in_order(cluster, tmp_path):
    laid = fakes.lay(tmp_path, sweep(cluster, workers=1), ("a",), 2, 500, step_s=0.1)
    driver = cluster.run(*DRIVER, *folders(laid))
    wait_for(lambda: fakes.steps_of(laid[0].folder.path), "a cell runs")
    driver.send_signal(signal.SIGINT)
    said, _ = driver.communicate(timeout=GENEROUS_S)
    assert driver.returncode == 130, said
    assert laid[0].folder.status()["error"] == "stopped by a signal"
    assert [cell.folder.state() for cell in laid] == ["killed", "new"]
    assert not list(laid[0].folder.study_dir.glob(".sweep-*"))


def test_an_address_that_does_not_answer_is_refused(monkeypatch):
    monkeypatch.setattr(ray_nodes, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UserError, match=rf"{place} within 0\.2 s\. Start the"):
            ray_nodes.check_address(place)
    with pytest.raises(UserError, match=r"No Ray cluster answers at .*refused"):
        ray_nodes.check_address(place)
    with pytest.raises(UserError, match="is not an address"):
        ray_nodes.check_address("ray://somewhere:10001")


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_on_a_cluster_equals_one_on_this_machine(workers, tmp_path, small_study, warmed):
    cluster = workers
    words = ["judge=sim-fair,sim-flaky", "seed=3,4", "shadow=[sim-verbose]", "debug=tiny"]
    engine = ["sweep.engine=ray", f"sweep.ray.address={cluster.address}", "sweep.threads=1"]
    run = cluster.run("-m", "experiments.sweep", f"runs_dir={warmed(tmp_path)}", *words, *engine)
    said, _ = run.communicate(timeout=GENEROUS_S)
    assert run.returncode == 0, said
    made = study_cells(tmp_path / "debug")
    names = [folder.name for folder in study_cells(small_study)]
    assert [folder.name for folder in made] == names
    for folder in made:
        assert lives.differences(folder.path, small_study / folder.name) == []
    assert (tmp_path / "debug" / "report" / "bias_report.html").exists()
