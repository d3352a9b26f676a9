"""What a training process uses of its machine, as metrics ``system/...`` of a step."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import torch

from study.system.files import first_line

MEGA = 2**20
SYSTEM = "system/"


class Usage:
    """Processor time since it was last asked, and memory as it is; the names are MLflow's own where
    they mean the same. What cannot be told on this machine is left out."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._at, self._worked = time.perf_counter(), time.process_time()
        self._told_of_gpus = True

    def metrics(self) -> dict[str, float]:
        """``process_cpu_percentage`` is 100 for each core that was busy all the time."""
        at, worked = time.perf_counter(), time.process_time()
        busy = (worked - self._worked) / max(at - self._at, 1e-6)
        self._at, self._worked = at, worked
        usage = {"process_cpu_percentage": 100 * busy}
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int((self._proc / "self" / "statm").read_text().split()[1])
            usage["process_memory_megabytes"] = pages * os.sysconf("SC_PAGE_SIZE") / MEGA
        with contextlib.suppress(OSError, ValueError, IndexError, KeyError, ZeroDivisionError):
            lines = (self._proc / "meminfo").read_text().splitlines()
            kib = {
                name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)
            }
            used = 1 - kib["MemAvailable"] / kib["MemTotal"]
            usage["system_memory_usage_percentage"] = 100 * used
        return {SYSTEM + name: value for name, value in (usage | self._gpus()).items()}

    def _gpus(self) -> dict[str, float]:
        """Of the one that this process computes on: to ask for another's memory makes a context
        there, which takes some of it."""
        usage: dict[str, float] = {}
        if not torch.cuda.is_initialized():
            return usage
        number = torch.cuda.current_device()
        free, whole = torch.cuda.mem_get_info(number)
        usage[f"gpu_{number}_memory_usage_megabytes"] = (whole - free) / MEGA
        if self._told_of_gpus:
            try:
                busy = torch.cuda.utilization(number)
            except Exception as error:  # each of NVIDIA's own; none may end a training
                self._told_of_gpus = False
                print(f"The use of the GPU is not recorded: {first_line(error)}", flush=True)
            else:
                usage[f"gpu_{number}_utilization_percentage"] = float(busy)
        return usage
