"""CPUs, GPUs and memory that this process may use: in a container or a job less than the machine
has. And whether another process runs here."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.errors import UserError

_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
_UUID = re.compile(r"[A-Za-z0-9-]{1,80}")
_NAMED = re.compile(r"[0-9]+$|GPU-|MIG-")
"""Names that CUDA_VISIBLE_DEVICES may hold; -1 and Slurm's NoDevFiles name none."""


def installed_cpus() -> int:
    """CPUs of this machine, whether this process may use them or not."""
    return os.cpu_count() or 1


def cpus(root: Path = Path("/")) -> int:
    """CPUs that this process may use, at least 1: its affinity, cut to the quota of its control
    groups. Half a CPU too many makes every cell wait for the others, so a quota is rounded down."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        allowed = installed_cpus()
    return max(1, min([allowed, *(int(quota) for quota in _quotas(root))]))


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may use."""

    name: str
    """As CUDA_VISIBLE_DEVICES has it."""
    id: str
    """Of this GPU alone, on this machine: its UUID where NVIDIA's own tool tells it."""
    model: str
    memory: int
    """Bytes; 0 where it is not known."""


def gpus() -> list[tuple[str, int]]:
    """Name and bytes of each GPU that NVIDIA's own tool lists; none where it is not there."""
    pairs = [line.rpartition(",") for line in _query_gpus("name,memory.total")]
    return [(name.strip(), int(mib) * 2**20) for name, _, mib in pairs if mib.strip().isdecimal()]


def _query_gpus(columns: str) -> list[str]:
    """What NVIDIA's own tool says of each GPU, in its order; nothing where it is not there."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        process = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
        return process.stdout.splitlines() if process.returncode == 0 else []
    return []


def usable_gpus(device: str = "") -> list[Gpu]:
    """GPUs that a cell on ``device`` may have: one for cuda:N, none for cpu; otherwise those that
    CUDA_VISIBLE_DEVICES names, where it is set, else all.
    Raises UserError: as `device_variables`."""
    visible = device_variables(device).get("CUDA_VISIBLE_DEVICES")
    if visible == "":
        return []
    all_gpus = gpus()
    ids = [line.strip() for line in _query_gpus("uuid")]
    usable = []
    for name in _shown(len(all_gpus)) if visible is None else [visible]:
        places = [place for place, uuid in enumerate(ids) if uuid.startswith(name)]
        place = int(name) if name.isdecimal() else next(iter(places), None)
        if place is None or place >= len(all_gpus):  # such as a part of a GPU: it has a UUID itself
            usable.append(Gpu(name=name, id=name, model=name, memory=0))
            continue
        uuid = ids[place] if place < len(ids) and _UUID.fullmatch(ids[place]) else str(place)
        model, memory = all_gpus[place]
        usable.append(Gpu(name=name, id=uuid, model=model, memory=memory))
    return usable


def _shown(count: int) -> list[str]:
    """Names of the GPUs that this process may use, of ``count`` in the machine."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not count:
        return [str(number) for number in range(count)]
    names = (name.strip() for name in visible.split(","))
    return list(itertools.takewhile(_NAMED.match, names))  # as CUDA: no further than sound names


def has_process(pid: Any) -> bool:
    """Whether a process of this number runs on this host."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def device_variables(device: str) -> dict[str, str]:
    """Environment of a process that computes on ``device``: cpu, cuda:N, or cuda for the first GPU;
    empty for whatever there is. GPUs are counted as the process would: among those that
    CUDA_VISIBLE_DEVICES names, where it is set, else as NVIDIA's own tool lists them.
    Raises UserError: no such device here; the message says what is."""
    if not device:
        return {}
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    visible = _shown(len(gpus()))
    here = ", ".join(["cpu", *(f"cuda:{place}" for place in range(len(visible)))])
    if not _DEVICE.fullmatch(device):
        raise UserError(
            f"device={device[:80]} is not a device. Legal are cpu, and cuda:N for GPU N. This"
            f" machine has {here}. Type for example device=cpu"
        )
    place = int(device.partition(":")[2] or 0)
    if place >= len(visible):
        raise UserError(
            f"device={device} does not exist here. This machine has {here}. Type one of these as"
            " device=, or leave device= out."
        )
    return {"CUDA_VISIBLE_DEVICES": visible[place], "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def kernel_variables(root: Path = Path("/")) -> dict[str, str]:
    """What makes torch take its kernels for AVX2 on a processor that has AVX-512 too, unless the
    environment says which. The wider ones add in another order, and a run then takes another
    course. torch takes what is named without asking the processor, so others get nothing."""
    flags = set(_read(root / "proc/cpuinfo").split())
    free = "ATEN_CPU_CAPABILITY" not in os.environ
    return {"ATEN_CPU_CAPABILITY": "avx2"} if free and {"avx2", "avx512f"} <= flags else {}


def memory(root: Path = Path("/")) -> int:
    """Bytes of main memory that this process may use: the machine's, cut to its control group's.

    Args:
        root: where ``proc`` and ``sys`` are mounted.

    Returns:
        0 where the machine does not say.
    """
    return _memory(root, "MemTotal:")


def free_memory(root: Path = Path("/")) -> int:
    """Bytes of main memory that can be taken without swapping; otherwise as `memory`."""
    return _memory(root, "MemAvailable:")


def _memory(root: Path, line: str) -> int:
    words = _read(root / "proc/meminfo").split()
    limits = [int(words[words.index(line) + 1]) * 1024] if line in words else []
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            limits += [int(text)] if text.isdecimal() else []
    return min(limits, default=0)


def _quotas(root: Path) -> list[float]:
    """CPUs of every limit on the way from this process's control group up to the top."""
    return [quota for folder in _groups(root, "cpu") for quota in _quota(folder)]


def _groups(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control groups for ``controller``, and of those above them."""
    folders = [root / "sys/fs/cgroup"]  # where the process may not read which group it is in
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        # in a container the path may be the host's, and what is mounted is the group itself
        tops = [root / "sys/fs/cgroup"] if not controllers else []
        tops += [root / "sys/fs/cgroup" / name for name in (controllers, controller) if controllers]
        inner = Path(path.lstrip("/"))
        folders += [top / folder for top in tops for folder in (inner, *inner.parents)]
    return folders


def _quota(folder: Path) -> list[float]:
    """The limit of one control group, of either version; nothing where there is none."""
    both = _read(folder / "cpu.max").split() or [
        _read(folder / "cpu.cfs_quota_us").strip(),
        _read(folder / "cpu.cfs_period_us").strip(),
    ]
    try:
        quota, period = (float(word) for word in both)
    except ValueError:  # "max", or no such file
        return []
    return [quota / period] if quota > 0 and period > 0 else []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
