"""A benchmark that cannot be told how much memory is used says so, and comes to its end."""

import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import memory
from benchmarks.trainer import update
from benchmarks.trainer.peers import qwen25
from benchmarks.workflow import programs
from tests.conftest import run_alone

PROC = Path("/proc")


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch):
    """Puts texts in place of files of /proc, by their names; None stands for no such file."""
    real = Path.read_text

    def put(**texts: str | None) -> None:
        def read(path: Path, *arguments, **named) -> str:
            if path.is_relative_to(PROC) and path.name in texts:
                text = texts[path.name]
                if text is None:
                    raise FileNotFoundError(path)
                return text
            return real(path, *arguments, **named)

        monkeypatch.setattr(Path, "read_text", read)
        usage = SimpleNamespace(ru_maxrss=500_000, ru_utime=0.0, ru_stime=0.0)
        monkeypatch.setattr("resource.getrusage", lambda who: usage)

    return put


class InThisProcess:
    """In place of a context of multiprocessing: its pools call here, where all is patched."""

    @contextmanager
    def Pool(self, *_, **__):
        yield SimpleNamespace(apply=lambda call, arguments: call(*arguments))


@pytest.mark.parametrize(
    "status", [None, "VmRSS:\t5 kB\n", "VmHWM:\t500000 kB\n"], ids=["no file", "no peak", "no rise"]
)
def test_the_race_of_updates_ends_without_a_peak_of_memory(says, monkeypatch, capsys, status):
    says(status=status)
    monkeypatch.setattr(update, "smollm2", lambda: qwen25("tiny"))
    monkeypatch.setattr(update.multiprocessing, "get_context", lambda how: InThisProcess())
    words = ["rounds=2", "prompt=8", "mean=4", "longest=6"]
    monkeypatch.setattr(sys, "argv", ["update", *words])
    threads = torch.get_num_threads()
    try:
        update.main()
    finally:
        torch.set_num_threads(threads)
    assert capsys.readouterr().out.endswith("peak memory of the update: not to be had here\n")


def test_a_peak_or_a_share_that_is_not_told_is_none(says):
    says(status="VmPeak:\t9 kB\nVmHWM:\t  2048 kB\n")
    assert memory.in_mib(memory.peak_mib()) == "2 MiB"
    says(status=None)
    assert memory.in_mib(memory.peak_mib()) == memory.UNKNOWN
    says(smaps_rollup="Pss:   2048 kB\n")
    assert programs.memory_mib()
    says(smaps_rollup=None)
    assert programs.memory_mib() is None
    assert "ours 1.00 GiB, TRL as it is 4.00 (4.0x)" in update.compare_peaks(1.0, 4.0, 8.0)
    assert update.compare_peaks(1.0, None, 8.0).endswith(memory.UNKNOWN)


def test_the_peak_of_a_child_is_none_where_it_may_be_the_parents(monkeypatch):
    peaks = {memory.resource.RUSAGE_SELF: 3072, memory.resource.RUSAGE_CHILDREN: 4096}
    monkeypatch.setattr(
        memory.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=peaks[who])
    )
    assert memory.largest_child_mib() == 4
    peaks[memory.resource.RUSAGE_CHILDREN] = 3072
    assert memory.largest_child_mib() is None


@pytest.mark.skipif(memory.peak_mib() is None, reason="this kernel does not tell it")
def test_a_small_child_of_a_large_parent_is_small():
    """By `getrusage` the child would have its parent's peak."""
    child = "from benchmarks.memory import peak_mib; print(peak_mib())"
    parent = (
        "import subprocess, sys\n"
        "large = bytes(range(256)) * (300 * 2**12)\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
    )
    assert float(run_alone(parent)) < 200
