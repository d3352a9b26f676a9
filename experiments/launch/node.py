"""What a node must be before it trains cells of a sweep: of the driver's environment and clock,
with a view of the runs folder, and with GPUs that are large enough.

    with announced(study_dir) as sign:          # where the sweep is
        here = describe(PACKAGES, str(sign))
        check_node(here, there, sign)           # `there`: what `describe` returned on the node

Each check is as `study.finding` says. Nothing here knows how a node is reached.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import socket
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NotRequired, TypedDict

from experiments.plan.memory import GIB, check_memory
from study.cell.cells import Cell
from study.cell.places import url_of
from study.finding import Finding, problem
from study.system import clock, locks
from study.system.installed import install, typed_pins

CLOCKS_S = 5.0
"""Seconds that two clocks may be apart: a third of a lease on a verdict."""
ROUND_TRIPS = 5
SIGN = ".sweep-"
NAMED = 3
"""Files that a refusal names, at most."""


class Node(TypedDict):
    """What a node is, as `describe` says it there."""

    host: str
    python: str
    packages: dict[str, str]
    """Name -> version, ``none`` where it is not installed."""
    files: dict[str, str]
    """Source file of this project -> digest of its bytes."""
    sign: str | None
    """The text of the sign; None where it is not seen."""
    writable: bool
    clock: NotRequired[tuple[float, float]]
    """`clock_of_folder` where a sweep is, for jobs that begin later."""


def describe(packages: Sequence[str], sign: str) -> Node:
    """What this node is: host, Python, versions of ``packages``, a digest of each source file of
    this project, the text of the file ``sign``, and whether its folder can be written.

    It needs the standard library alone, so that it can be sent to a node that has nothing else.
    """
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("experiments")
    files: dict[str, str] = {}
    if spec is not None and spec.origin:
        root = Path(spec.origin).parents[1]
        for folder in ("study", "judges", "analysis", "experiments", "judgedrift/conf"):
            for path in (root / folder).rglob("*"):
                if path.suffix in (".py", ".toml", ".txt", ".yaml", ".jinja", ".css"):
                    data = path.read_bytes()
                    files[str(path.relative_to(root))] = hashlib.sha256(data).hexdigest()[:16]
    versions: dict[str, str] = {}
    for package in packages:
        versions[package] = "none"
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    sign_text = None
    with contextlib.suppress(OSError):
        sign_text = Path(sign).read_text(encoding="utf-8")
    return {
        "host": socket.gethostname(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "packages": versions,
        "files": files,
        "sign": sign_text,
        "writable": os.access(Path(sign).parent, os.W_OK),
    }


@contextmanager
def announced(study_dir: Path) -> Generator[Path]:
    """Within the block a file lies in the study's folder by which a node shows that it sees it."""
    for leftover in study_dir.glob(f"{SIGN}*"):  # by a sweep that was killed
        if not locks.is_held(leftover):
            leftover.unlink(missing_ok=True)
    study_dir.mkdir(parents=True, exist_ok=True)
    text = uuid.uuid4().hex
    sign = study_dir.absolute() / f"{SIGN}{text[:12]}"
    lock = locks.take(sign)
    assert lock is not None
    with lock:
        lock.write(text)
        lock.flush()
        try:
            yield sign
        finally:
            sign.unlink(missing_ok=True)


def identity(node: Node) -> str:
    """A digest of an environment: equal for nodes that may train cells of one sweep."""
    parts = [node["python"], sorted(node["packages"].items()), sorted(node["files"].items())]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def differences(here: Node, there: Node) -> list[str]:
    """In what the environment of another node differs from this one's; none where it is equal."""
    lines = []
    if there["python"] != here["python"]:
        lines.append(f"Python {there['python']} there and {here['python']} here")
    for package, version in here["packages"].items():
        other = there["packages"].get(package, "none")
        if other != version:
            lines.append(f"{package} {other} there and {version} here")
    ours, theirs = here["files"], there["files"]
    if not theirs:
        lines.append("this project is not installed there")
    elif changed := sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)):
        more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        lines.append(f"the code differs in {', '.join(changed[:NAMED])}{more}")
    return lines


def check_node(here: Node, there: Node, sign: Path) -> Iterator[Finding]:
    """Refuse a node ``there`` that has another environment than this one, or does not see the
    folder of the study, or may not write there.

    Args:
        here: what `describe` returns where the sweep is.
        there: what it returns on the node.
        sign: of `announced`.
    """
    if identity(here) != identity(there):
        yield problem(
            "node",
            f"The node {there['host']} has another environment than the sweep"
            f" ({identity(there)}, not {identity(here)}): {'; '.join(differences(here, there))}."
            " Its cells would not be comparable with the others. Install the same commit and"
            f" versions there: {install()} -c {typed_pins()}. Or remove the node from the"
            " cluster.",
        )
    shared = there["sign"] == here["sign"] and there["writable"]
    if not shared and not url_of(sign.parent):  # who runs a cell of a URL fetches it
        trouble = "does not see" if there["sign"] != here["sign"] else "may not write to"
        yield problem(
            "node",
            f"The node {there['host']} {trouble} the study's folder {sign.parent}, where cells keep"
            " their records. Mount it there under the same path, or type runs_dir=PATH with a"
            " folder that every node shares.",
        )


def clock_offset(ask: Callable[[], float], now: Callable[[], float]) -> tuple[float, float]:
    """Seconds that another clock is ahead of this one, and by how much that may be wrong: half of
    the shortest of some round trips.

    Args:
        ask: returns the other clock's time.
        now: this clock.
    """
    best = (0.0, float("inf"))
    for _ in range(ROUND_TRIPS):
        sent_at = now()
        there = ask()
        answered_at = now()
        half = abs(answered_at - sent_at) / 2
        if half < best[1]:
            best = (there - (sent_at + answered_at) / 2, half)
    return best


def clock_of_folder(folder: Path) -> tuple[float, float]:
    """`clock_offset` of the clock that stamps the files of ``folder``, which nodes that share it
    can compare theirs with. Raises OSError: it cannot be written."""
    return clock_offset(lambda: clock.of_folder(folder), time.time)


def check_clock(host: str, offset_s: float, within_s: float) -> Iterator[Finding]:
    """Refuse clocks that are further apart than `CLOCKS_S`, whatever the round trip hid."""
    if abs(offset_s) - within_s > CLOCKS_S:
        order = "ahead of" if offset_s > 0 else "behind"
        yield problem(
            "clock",
            f"The clock of the node {host} is {abs(offset_s):.1f} s {order} the sweep's, and"
            f" {CLOCKS_S:g} s is the most allowed: leases on verdicts would end too early or too"
            " late, and recorded times would be out of order. Set it by NTP, for example: chronyc"
            " makestep",
        )


def check_gpus(
    todo: Sequence[Cell], host: str, gpus: Sequence[tuple[str, int]], share: float
) -> Iterator[Finding]:
    """Refuse a node on whose smallest GPU a step of a cell cannot fit.

    Args:
        gpus: name and bytes of each, as `study.system.machine.gpus` says; nothing is checked
        without.
        share: of a GPU that a cell is given, more than 1 for several.
    """
    if not gpus or not share:
        return
    name, size = min(gpus, key=lambda gpu: gpu[1])
    whole = f"the GPU {name} ({size / GIB:.1f} GiB) of the node {host}"
    device = whole if share >= 1 else f"a share of {share:g} of {whole}"
    yield from check_memory(todo, device=(device, int(size * min(1.0, share))))
