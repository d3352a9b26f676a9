"""What a process says that it uses of its machine."""

from __future__ import annotations

from pathlib import Path

from experiments.trainer.usage import Usage


def test_memory_and_processor_are_told():
    usage = Usage()
    held = bytearray(b"x" * (64 << 20))
    found = usage.metrics()
    assert found["system/process_memory_megabytes"] > len(held) / 2**20
    assert found["system/process_cpu_percentage"] >= 0
    assert 0 < found["system/system_memory_usage_percentage"] <= 100


def test_what_cannot_be_told_is_left_out(tmp_path: Path):
    (tmp_path / "meminfo").write_text("MemTotal: 0 kB\nMemAvailable: 1 kB\n")
    assert set(Usage(tmp_path).metrics()) == {"system/process_cpu_percentage"}
