"""What a process says that it uses of its machine."""

from __future__ import annotations

from pathlib import Path

from experiments.trainer.usage import Usage


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
