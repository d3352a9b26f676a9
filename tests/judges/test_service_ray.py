"""A service as a detached actor on a real Ray cluster of two nodes, both on this host."""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from judges import serve
from judges.serving import actor, book, server
from tests.experiments.launch.clusters import Cluster
from tests.waiting import wait_for

SERVED = ("judge=qwen3-4b", "judge.serve.bind=0.0.0.0")


@pytest.fixture
def cluster(tmp_path: Path, vllm: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """Ray on a head and a worker; the worker alone has a GPU, or says so."""
    ray = pytest.importorskip("ray")
    ray_cluster = Cluster(tmp_path, token=False, resources='{"head": 1}')
    try:
        ray_cluster.add("worker", **{"num-cpus": 2, "num-gpus": 1})
        for name, value in ray_cluster.environment.items():
            monkeypatch.setenv(name, value)
        yield ray
    finally:
        ray.shutdown()
        ray_cluster.stop()


def ask(overrides: list[str], runs_dir: str) -> tuple[str, str, float | None]:
    """What a cell does on its node: find the judge, and ask it."""
    import ray

    from judges.check import probe
    from judges.serving.service import use
    from study.config.compose import load_presets

    judge, _ = load_presets("qwen3-4b", overrides=overrides)
    with use(judge, Path(runs_dir), starts=False) as reached:
        node = ray.get_runtime_context().get_node_id()
        return node, reached.endpoint.url, probe(reached).score


def test_a_cell_on_another_node_asks_an_actor_that_is_started_again_and_stopped(
    cluster, tmp_path, capsys
):
    words = [*SERVED, f"runs_dir={tmp_path}"]
    assert serve.main([*words, "on=ray", "judge.serve.tensor_parallel=2"]) == 2
    assert "needs 2 GPUs of one node" in capsys.readouterr().err
    assert serve.main([*words, "on=ray"]) == 0
    assert "a probe was scored 0.800" in capsys.readouterr().out
    (served,) = book.services(tmp_path)

    on_head = cluster.remote(ask).options(num_cpus=0, resources={"head": 1})
    elsewhere = ["judge.serve.bind=elsewhere"]
    node, url, score = cluster.get(on_head.remote(elsewhere, str(tmp_path)))
    written = served.read()
    assert written is not None and written.kept_by.startswith("ray ")
    assert score == 0.8 and url == written.replicas[0].url
    handle = cluster.get_actor(served.name, namespace=actor.NAMESPACE)
    states = [each for each in cluster.nodes() if each["Resources"].get("GPU")]
    assert node not in [each["NodeID"] for each in states]
    assert cluster.get(handle.state.remote()) == (written, [])

    os.kill(written.owner.pid, signal.SIGKILL)  # as a node that is lost

    def served_anew():
        now = served.read()
        return now is not None and now.owner != written.owner and now.state == "ready" and now

    now = wait_for(served_anew)
    assert cluster.get(on_head.remote(elsewhere, str(tmp_path)))[2] == 0.8

    assert serve.main([f"runs_dir={tmp_path}", "stop=true", f"service={served.name}"]) == 0
    assert "has stopped" in capsys.readouterr().out
    wait_for(lambda: not server.alive(now.owner))
    with pytest.raises(ValueError, match="Failed to look up actor"):
        cluster.get_actor(served.name, namespace=actor.NAMESPACE)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer(monkeypatch, tmp_path, capsys, address):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert serve.main([*SERVED, f"runs_dir={tmp_path}", "on=ray"]) == 2
    assert f"No Ray cluster answers at RAY_ADDRESS={address} (" in capsys.readouterr().err
