"""What a process says that it uses of its machine."""

from pathlib import Path

import pytest
import torch

from experiments.trainer.record_step import Usage


def test_memory_and_processor_are_told():
    usage = Usage()
    before = usage.metrics()["system/process_memory_megabytes"]
    block = bytearray(b"x" * (256 << 20))  # making it takes time of the processor too
    after = usage.metrics()
    grown = after["system/process_memory_megabytes"] - before
    assert 0.8 < grown / (len(block) / 2**20) < 1.2
    assert 0 < after["system/process_cpu_percentage"] < 10_000
    assert 0 < after["system/system_memory_usage_percentage"] <= 100


def test_what_cannot_be_told_is_left_out(tmp_path: Path):
    (tmp_path / "meminfo").write_text("MemTotal: 0 kB\nMemAvailable: 1 kB\n")
    assert set(Usage(tmp_path).metrics()) == {"system/process_cpu_percentage"}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Three GPUs, on the second of which this process computes; gives those that were asked."""
    asked: list[int] = []

    def memory(number: int) -> tuple[int, int]:
        asked.append(number)
        return 3 * 2**30, 8 * 2**30

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    monkeypatch.setattr(torch.cuda, "utilization", lambda number: 40 + number)
    return asked


def test_no_gpu_is_asked_but_the_one_that_is_computed_on(gpus: list[int]):
    told = Usage().metrics()
    assert gpus == [1]
    assert told["system/gpu_1_memory_usage_megabytes"] == 5 * 1024
    assert told["system/gpu_1_utilization_percentage"] == 41.0
    assert sum("gpu_" in name for name in told) == 2


def test_a_gpu_that_does_not_tell_how_busy_it_is_is_said_once(gpus, monkeypatch, capsys):
    def refused(number: int) -> int:
        raise ModuleNotFoundError("no pynvml")

    monkeypatch.setattr(torch.cuda, "utilization", refused)
    usage = Usage()
    for _ in range(2):
        assert "system/gpu_1_memory_usage_megabytes" in usage.metrics()
    assert capsys.readouterr().out.count("not recorded: no pynvml") == 1
