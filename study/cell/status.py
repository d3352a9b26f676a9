"""Reads a cell's ``status.json``: state, step, error, signs of life; made from its records if it is
damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from study.cell.records import recorded
from study.cell.signature import other_origin
from study.system.files import Damaged, read_json, say

STATES = ("new", "running", "done", "failed", "killed")
NUMBERS = (
    "step",
    "steps",
    "stopped_at",
    "seconds",
    "started",
    "ended",
    "exit_code",
    "pid",
    "beat",
    "tokens",
)
WORDS = ("state", "host", "error", "tracking_problem", "phase", "cell", "training")


def read_status(folder: Path, problems: list[str] | None = None) -> dict[str, Any]:
    """The status of a cell; an empty one where it has none. What is damaged is said, or added to
    ``problems``, and made again from the records: the next change of status writes it."""
    path = folder / "status.json"
    name = f"{folder.name}/{path.name}"
    try:
        content = read_json(path)
        if origin := other_origin(folder, content):
            raise Damaged(path, f"is of {origin}")
        wrong = sorted(key for key, value in content.items() if not _fits(key, value))
        if not wrong:
            return content
        why = f"{name} holds {', '.join(f'{key}={content[key]!r:.40}' for key in wrong)}"
    except Damaged as error:
        content, wrong, why = {}, [], f"{name} is damaged: it {error.why}"
    # A cell that has records was running when it last wrote: whether it still is, its lock says.
    lines = recorded(folder)
    step = max((line["step"] for line in lines), default=0)
    again = {"state": "running" if lines else "new", "step": step}
    problem = f"{why}; read from the records instead: step {again['step']}."
    say(problem) if problems is None else problems.append(problem)
    return again | {key: value for key, value in content.items() if key not in wrong}


def _fits(key: str, value: Any) -> bool:
    if key == "state":
        return value in STATES
    if key in NUMBERS:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and 0 <= abs(value) < 1 << 53
    return isinstance(value, str) if key in WORDS else True
