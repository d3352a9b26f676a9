"""A service on a Ray cluster, in cells of a sweep, and what is said where it cannot be had."""

import dataclasses
import json
import os
import signal
import stat
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from judges import serve
from judges.serving import actor, book, server, service
from judges.serving import key as key_file
from judges.serving.book import service_of
from judges.serving.keeper import Keeper
from judges.serving.lease import leases
from judges.serving.service import use
from study.cell.cells import load_cell
from study.cell.folder import study_cells
from study.cell.parts import read_part
from study.config.compose import load_presets
from study.config.identity import digest
from study.config.schema import Judge
from study.errors import UserError
from study.system.files import Damaged, read_json, write_json
from tests.conftest import free_port, sweep
from tests.experiments.launch.clusters import Cluster
from tests.judges.services import judge, keeping
from tests.waiting import wait_for

# --- what is wrong is said -----------------------------------------------------------------------


def refused(model: Judge, runs: Path, starts: bool = False) -> str:
    with pytest.raises(UserError) as error, use(model, runs, starts):
        pass
    assert "\n\n" not in str(error.value)
    return str(error.value)


def test_nobody_serves(runs):
    assert "judge=tiny is not served" in refused(judge(), runs)
    assert "bind=0.0.0.0 detached=true" in refused(judge(bind="elsewhere"), runs, starts=True)


def test_a_book_that_is_damaged_or_newer(runs, capsys):
    model = judge()
    served = service_of(model, runs)
    with keeping(model, runs):
        whole = read_json(served.folder / book.BOOK)
    half = json.dumps(whole)[:80]
    bad: list[Any] = [
        whole | {"replicas": [{"url": "file:///etc/passwd"}]},
        whole | {"owner": None},
        whole | {"version": "one"},
        whole | {"surprise": 1},
        {key: value for key, value in whole.items() if key != "state"},
    ]
    bad[0]["replicas"] = [whole["replicas"][0] | {"url": "file:///etc/passwd"}]
    for text in (half, "", "[]", *map(json.dumps, bad)):
        (served.folder / book.BOOK).write_text(text)
        assert "service.json is damaged" in refused(model, runs)
        with pytest.raises(Damaged):
            Keeper(model, runs, service=served).keep()
    assert serve.main([f"runs_dir={runs}", "status=true"]) == 0
    assert "is damaged" in " ".join(capsys.readouterr().out.split())
    write_json(served.folder / book.BOOK, whole | {"version": 3, "more": 1})
    assert "is of version 3" in refused(model, runs)


def test_a_keeper_mends_its_own_book(runs):
    with keeping(judge(), runs) as running:
        whole = running.service.read()
        (running.service.folder / book.BOOK).write_text('{"version": 1,')
        wait_for(lambda: (running.service.folder / book.BOOK).read_text().endswith("}\n"))
        assert running.service.read() == whole


def test_a_key_that_cannot_be_read_or_not_be_kept_private(runs, monkeypatch):
    model = judge()
    with keeping(model, runs) as running:
        key = running.service.key_path
        text = key.read_text()
        key.unlink()
        assert "should hold the API key" in refused(model, runs)
        key.mkdir()
        assert "judge.endpoint.api_key_env=JUDGE_KEY" in refused(model, runs)
        key.rmdir()
        key.write_text(text)
    key.write_text(text)
    key.chmod(0o644)
    with keeping(model, runs):  # somebody may have read it
        assert key.read_text() != text and stat.S_IMODE(key.stat().st_mode) == 0o600
    real = os.open
    monkeypatch.setattr(key_file.os, "open", lambda path, flags, *_: real(path, flags, 0o644))
    mask = os.umask(0o022)
    try:
        with pytest.raises(UserError, match="lets other accounts read it"):
            Keeper(model, runs).keep()
    finally:
        os.umask(mask)
    assert not key.exists()


def test_clocks_that_are_apart(runs, monkeypatch):
    real = time.time
    for hours, message in ((1, "3600 s ahead of"), (-1, "3600 s behind")):
        monkeypatch.setattr(book.time, "time", lambda hours=hours: real() + 3600 * hours)
        assert message in refused(judge(), runs, starts=True)
        with pytest.raises(UserError, match="NTP"):
            Keeper(judge(), runs).keep()
    assert not list(runs.rglob("service.json"))


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ("nowhere.invalid", "is not an address of a host"),
        ("n" * 64, "is not an address of a host"),
        ("203.0.113.9", "A server cannot listen on 203.0.113.9"),
        ("127.0.0.2", "which other nodes do not reach"),
    ],
)
def test_an_address_that_others_cannot_reach(runs, bind, message):
    with pytest.raises(UserError, match=message):
        Keeper(judge(bind=bind), runs).keep()
    assert not list(runs.rglob("service.json")) and not list(runs.rglob("key"))


def test_a_server_that_cannot_start_tells_the_driver_and_leaves_nothing(runs, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", "die")
    message = refused(judge(), runs, starts=True)
    assert message.startswith("vLLM ended with exit code 1") and "OutOfMemoryError" in message
    assert "too little of *** on this card" in message
    assert not list(runs.rglob("service.json")) and not list(runs.rglob("key"))


def test_a_cell_is_told_of_a_server_on_the_loopback_of_another_host(runs):
    model = judge(bind="")
    port = server.port_of(model.endpoint.url)
    with leases([model], runs, starts=False) as reached:
        assert reached(model) == model
    write_json(runs / "servers" / f"node-z-{port}" / book.BOOK, {})
    with (
        pytest.raises(UserError, match=r"on the loopback of node-z.*serve\.bind=0\.0\.0\.0"),
        leases([model], runs, starts=False),
    ):
        pass


# --- the command ---------------------------------------------------------------------------------


def test_a_detached_service_is_listed_used_and_stopped(runs, capsys):
    words = ["judge=qwen3-4b", f"runs_dir={runs}", "judge.serve.bind=0.0.0.0"]
    words.append(f"port={free_port()}")
    assert serve.main([*words, "detached=true"]) == 0
    out = capsys.readouterr().out
    assert "a probe was scored 0.800" in out and "judge.serve.bind=elsewhere" in out
    name = out.strip().rpartition("service=")[2].split()[0]
    (served,) = book.services(runs)
    owner = served.read().owner
    assert served.name == name and server.alive(owner)
    assert serve.main([*words, "detached=true"]) == 2
    assert f"{name} is already served" in capsys.readouterr().err
    sign = served.add_user()
    assert serve.main([f"runs_dir={runs}", "status=true"]) == 0
    shown = capsys.readouterr().out
    assert name in shown and "1 of 1 well" in " ".join(shown.split())
    assert serve.main([*words, "stop=true"]) == 2
    assert f"in use by process {os.getpid()}" in capsys.readouterr().err
    sign.unlink()
    assert serve.main([f"runs_dir={runs}", "stop=true", f"service={name}"]) == 0
    assert f"{name} has stopped" in capsys.readouterr().out
    wait_for(lambda: not server.alive(owner))
    assert serve.main([f"runs_dir={runs}", "status=true"]) == 0
    assert "There is no service" in capsys.readouterr().out


def test_a_service_whose_owner_is_gone_can_be_cleared(runs, capsys):
    model = judge()
    served = service_of(model, runs)
    with keeping(model, runs):
        left = served.read()
    served.write(dataclasses.replace(left, owner=dataclasses.replace(left.owner, pid=2**22 + 1)))
    assert "its owner is gone" in service.service_rows(runs)[0]["state"]
    assert serve.main([f"runs_dir={runs}", "stop=true", f"service={served.name}"]) == 0
    assert "its book is cleared" in capsys.readouterr().out and served.read() is None


def test_beyond_loopback_there_is_always_a_key(capsys):
    assert serve.main(["judge=qwen3-32b", "print_only=true", "host=0.0.0.0"]) == 0
    assert "VLLM_API_KEY=${VLLM_API_KEY:?}" in capsys.readouterr().out


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


def test_cells_find_the_judge_at_run_time_and_no_file_of_theirs_holds_its_key(runs, warmed):
    overrides = ["judge.serve.bind=0.0.0.0", "judge.endpoint.url=http://127.0.0.1:9/v1"]
    model, _ = load_presets("qwen3-4b", overrides=overrides)
    words = ["judge=qwen3-4b", overrides[1], "judge.serve.auto=true", "debug=tiny", "seed=0"]
    words += ["judge.serve.bind=elsewhere", "study=wide", "sweep.report=false"]
    with keeping(model, runs) as running:
        done = sweep(warmed(runs), *words)
        assert done.returncode == 0, done.stdout + done.stderr
        key = running.service.key_path.read_text().strip().encode()
        assert list(running.service.users()) == []
        holders = [path for path in runs.rglob("*") if path.is_file() and key in path.read_bytes()]
        assert holders == [running.service.key_path]
    assert key.decode() not in done.stdout + done.stderr
    (folder,) = study_cells(runs / "wide")
    verdicts = [read_part(part, ["outcome", "score"]) for part in folder.parts("verdicts")]
    assert {
        (str(o), s) for part in verdicts for o, s in zip(*part.to_pydict().values(), strict=True)
    } == {("scored", 0.8)}
    cell = load_cell(folder)
    assert cell.config.judge.endpoint.url == "http://127.0.0.1:9/v1"
    data = json.loads(json.dumps(cell.data))
    data["judge"]["serve"] |= {"bind": "", "auto": False}
    assert folder.name.endswith(digest(data))
