"""A served judge has GPUs of its own, by the same leases as cells."""

import os
import signal
from pathlib import Path

import pytest

from judges.serving import server
from judges.serving.server import READY
from study.errors import UserError
from study.system.gpus import take
from study.system.machine import usable_gpus
from tests.conftest import free_port
from tests.judges.services import judge, keeping
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("own_leases")


def shown(log: str) -> str:
    """GPUs that the stand-in for vLLM was shown."""
    return Path(log).read_text().split("'CUDA_VISIBLE_DEVICES': ")[1].split("',")[0].strip("'")


def free(wanted: float) -> str:
    """GPUs that are leased now, for a moment."""
    leased = take(usable_gpus(), wanted)
    if leased is None:
        return ""
    leased.close()
    return leased.variables["CUDA_VISIBLE_DEVICES"]


def test_replicas_have_gpus_that_cells_do_not_get(tmp_path, vllm, gpus_here) -> None:
    gpus_here(4)
    cell = take(usable_gpus(), 1)
    assert cell is not None and cell.variables["CUDA_VISIBLE_DEVICES"] == "0"
    two = judge(bind="", replicas=2, gpu_memory_utilization=0.5)
    servers = server.start(two, "127.0.0.1", free_port(2), tmp_path / "runs")
    try:
        server.wait_ready(two, servers)
        assert [shown(each.log) for each in servers] == ["1", "2"]
        assert free(1) == "3" and free(2) == ""
        assert free(0.5) == "3"  # the emptiest
    finally:
        server.stop(servers)
        cell.close()
    assert free(4) == "0,1,2,3"  # the leases ended with the servers


def test_a_server_that_finds_no_free_gpus_is_refused_and_leaves_none_behind(
    tmp_path, vllm, gpus_here
) -> None:
    gpus_here(3)
    two = judge(bind="", replicas=2, tensor_parallel=2)
    with pytest.raises(
        UserError, match="judge=tiny takes 1 of each of 2 GPUs, but too few of the 3 that"
    ):
        server.start(two, "127.0.0.1", free_port(2), tmp_path / "runs")
    assert free(3) == "0,1,2"


def test_a_replica_that_is_started_again_keeps_its_gpus(runs, gpus_here) -> None:
    gpus_here(2)
    with keeping(judge(replicas=1, tensor_parallel=2), runs) as keeper:
        [first] = keeper.service.read().replicas
        assert shown(first.log) == "0,1"
        os.kill(first.pid, signal.SIGKILL)
        wait_for(lambda: keeper.service.read().replicas[0].restarts == 1)
        assert free(0.1) == ""
        wait_for(lambda: keeper.service.read().replicas[0].state == READY)
    assert free(2) == "0,1"


def test_a_judge_on_the_cpu_takes_none(tmp_path, gpus_here) -> None:
    gpus_here(1)
    assert server.lease_gpus(judge(device="cpu")).variables == {}
