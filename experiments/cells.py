"""A cell is one run of a study: its identity, its folder, its state and its lock.

The folder is ``runs/<study>/<judge>-s<seed>-<hash>/``; the hash covers the resolved config minus
the run-time keys below, so that the same command finds the same folder and resumes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from experiments.config import Study, freeze
from experiments.files import read_json, write_json, write_text

RUN_TIME = (
    "study",
    "arm",
    "sandbox",
    "factors",
    "runs_dir",
    "plan",
    "shadow",
    "tracking",
    "cost",
    "sweep",
    "trainer.save_steps",
    *(
        f"judge.{key}"
        for key in (
            "max_unscored_frac",
            "price",
            "serve",
            "endpoint.url",
            "endpoint.replicas",
            "endpoint.api_key_env",
            "endpoint.max_concurrency",
            "endpoint.deadline_s",
            "endpoint.connect_timeout_s",
            "endpoint.idle_timeout_s",
            "endpoint.attempts",
            "endpoint.backoff_s",
            "endpoint.max_reply_bytes",
            "endpoint.requests_per_min",
            "endpoint.tokens_per_min",
            "endpoint.adaptive",
            "endpoint.shared",
            "endpoint.start_command",
        )
    ),
)
"""Keys that say how, where or how fast a cell runs, but cannot change what it finds."""

REFUSED = 5
"""Exit code of a cell whose key, account or model the endpoint refused: others would be, too."""


@dataclass(frozen=True)
class Cell:
    """One run to be made: the resolved config as plain data, frozen, and where it lives."""

    data: dict[str, Any]
    config: Study
    id: str
    dir: Path

    @property
    def name(self) -> str:
        return self.dir.name


def flatten(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts and lists as ``{"judge.sampling.votes": 1, ...}``; empty ones stay as leaves."""
    items: Iterable[tuple[Any, Any]]
    if isinstance(data, dict) and data:
        items = data.items()
    elif isinstance(data, list) and data:
        items = enumerate(data)
    else:
        return {prefix: data}
    flat: dict[str, Any] = {}
    for key, value in items:
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def under(key: str, roots: Iterable[str]) -> bool:
    """Whether ``key`` is one of ``roots`` or lies below one of them."""
    return any(key == root or key.startswith(f"{root}.") for root in roots)


def identifying(data: dict[str, Any]) -> dict[str, Any]:
    """The flat config that makes a cell what it is; shadow judges shed their run-time keys too."""
    flat = {}
    for key, value in flatten(data).items():
        as_judge = key
        if key.startswith("shadow_judges."):
            as_judge = "judge." + key.split(".", 2)[2]
        if not under(as_judge, RUN_TIME):
            flat[key] = value
    return flat


def make_cell(data: dict[str, Any], folder: Path | None = None) -> Cell:
    """Freeze a resolved config and give it its address, or the ``folder`` where it lives."""
    config: Study = freeze(Study, data)
    canonical = json.dumps(identifying(data), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:10]
    if folder is None:
        name = f"{config.judge.name}-s{config.seed}-{digest}"
        folder = Path(config.runs_dir) / config.study / name
    return Cell(data, config, digest, folder.absolute())


def load_cell(folder: Path) -> Cell:
    """The cell that lives in ``folder``, from the config that was saved there."""
    import yaml

    return make_cell(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")), folder)


def save_cell(cell: Cell) -> None:
    """Lay the folder: the resolved config first, then a state where there is none."""
    import yaml

    write_text(cell.dir / "config.yaml", yaml.safe_dump(cell.data, sort_keys=False))
    if not (cell.dir / "status.json").exists():
        set_status(cell.dir, state="new", step=0, steps=cell.config.trainer.steps)


def set_status(folder: Path, **changes: Any) -> None:
    """Merge ``changes`` into ``status.json``."""
    write_json(folder / "status.json", {**read_json(folder / "status.json"), **changes})


def lock(folder: Path, wait_s: float = 0.0) -> IO[str] | None:
    """Hold the cell for the life of the returned file, or None where another process does.

    Args:
        folder: the cell.
        wait_s: how long to try; whoever asks for a cell's state holds its lock for a moment.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / ".lock").open("w")
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() >= end:
                file.close()
                return None
            time.sleep(0.05)


def state(folder: Path) -> str:
    """new, running, done, failed or killed; a cell whose process is gone was killed."""
    if (folder / "DONE").exists():
        return "done"
    said = read_json(folder / "status.json").get("state", "new")
    if said != "running":
        return said
    held = lock(folder)
    if held is None:
        return "running"
    held.close()
    return "killed"


def study_cells(study_dir: Path) -> list[Path]:
    """The folders of a study that hold a cell, by name."""
    return sorted(path.parent for path in study_dir.glob("*/config.yaml"))


def log_tail(folder: Path, lines: int = 1) -> str:
    """The last lines of a cell's log, for a table or a message."""
    path = folder / "log.txt"
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, os.path.getsize(path) - 4096))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(text.strip().splitlines()[-lines:])
