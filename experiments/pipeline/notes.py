"""What the steps of a pipeline read and left, noted in ``runs/STUDY/pipeline.json``.

A step is done while its settings, the files that it reads and those that it left are as they were
noted. Small files are compared by their SHA-256, large ones by size and time of change; where only
the time differs, by their SHA-256 too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.errors import UserError
from study.system.files import Damaged, read_json, sha256, write_json

NOTES = "pipeline.json"
FORMAT = 1
SMALL = 8 << 20
"""Bytes up to which a file is read again to see whether it is what it was."""

Entry = dict[str, Any]
"""{size, mtime_ns, sha256} of a file."""
Files = dict[str, Entry]


@dataclass(frozen=True)
class Step:
    """One command of a pipeline."""

    stage: str
    name: str
    """What it is noted under."""
    words: tuple[str, ...]
    """The command behind ``python -m``."""
    settings: Mapping[str, Any]
    """What decides, beside the files that it reads, about what it leaves."""
    reads: Callable[[], Iterable[Path]]
    """The files that it reads. Raises UserError: they are not there yet."""
    leaves: Callable[[], Iterable[Path]]
    """The files that it leaves, as far as they are there. Raises UserError: they cannot be told."""
    again: Callable[[Outcome], None] = lambda outcome: None
    """Moves away what would keep the command from making its files again."""
    idle: str = ""
    """Why there is nothing to do, where there is not."""
    variables: Mapping[str, str] | None = None
    """Added to the command's environment."""


@dataclass(frozen=True)
class Outcome:
    """Whether a step is done, and why not."""

    done: bool
    why: str
    reads: Files
    """What it would read, noted."""
    other_settings: bool = False
    """Whether it was begun with other settings."""
    other_files: bool = False
    """Whether it was begun on other files."""
    damaged: tuple[Path, ...] = ()
    """Files of it that are gone or not what was written."""


def entry(path: Path, before: Entry | None = None) -> Entry:
    """A file as it is noted; ``before`` is what was noted of it, taken where it still holds.
    Raises OSError: it cannot be read."""
    status = path.stat()
    same = before is not None and before["size"] == status.st_size > SMALL
    if before is not None and same and before["mtime_ns"] == status.st_mtime_ns:
        return before
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256(path)}


def noted(paths: Iterable[Path], before: Files | None = None) -> Files:
    """Path -> what is noted of it. Raises OSError: a file cannot be read."""
    return {
        str(path): entry(path, (before or {}).get(str(path)))
        for path in sorted({path.absolute() for path in paths})
    }


class Notes:
    """The notes of one study; ``path`` is written by `begin` and `end` alone.

    Raises Damaged: the file is there and does not hold notes.
    """

    def __init__(self, study_dir: Path) -> None:
        self.path = study_dir / NOTES
        content = read_json(self.path)
        steps = content.get("steps", {})
        if content and (content.get("format") != FORMAT or not _whole(steps)):
            raise Damaged(self.path, "is not the notes of a pipeline")
        self._steps: dict[str, dict[str, Any]] = steps

    def command(self, step: Step) -> tuple[str, ...]:
        """The words by which ``step`` was begun before; none where it was not."""
        return tuple(self._steps.get(step.name, {}).get("command", ()))

    def look(self, step: Step) -> Outcome:
        """Whether ``step`` is done."""
        if step.idle:
            return Outcome(True, step.idle, {})
        note = self._steps.get(step.name)
        before: Files = {} if note is None else note["reads"]
        try:
            reads = noted(step.reads(), before)
        except (OSError, UserError):
            return Outcome(False, "its input does not exist yet", {})
        if note is None:
            return Outcome(False, "it has not run yet", reads)
        changed = _changed(before, reads)
        if note["settings"] != digest(step.settings):
            why = "its settings have changed"
            return Outcome(False, why, reads, True, bool(changed))
        if changed:
            return Outcome(False, f"{changed[0]} has changed", reads, other_files=True)
        if note.get("leaves") is None:
            return Outcome(False, "it started but did not end", reads)
        damaged = [path for path, old in note["leaves"].items() if _fault(path, old)]
        if damaged:
            first = f"{damaged[0]} {_fault(damaged[0], note['leaves'][damaged[0]])}"
            return Outcome(False, first, reads, damaged=tuple(map(Path, damaged)))
        count = len(note["leaves"])
        return Outcome(True, f"the {count} files that it wrote are unchanged", reads)

    def begin(self, step: Step, reads: Files) -> None:
        """Note that a step is begun."""
        self._steps[step.name] = {
            "command": list(step.words),
            "settings": digest(step.settings),
            "reads": reads,
            "leaves": None,
        }
        self._write()

    def end(self, step: Step) -> None:
        """Note that a step has ended, and what it read and left.
        Raises UserError: what it should have left is not there."""
        note = self._steps[step.name]
        try:
            note["reads"] = note["reads"] or noted(step.reads())
            note["leaves"] = noted(step.leaves())
        except OSError as error:
            raise UserError(
                f"The stage {step.stage} ended, but {error.filename} cannot be read"
                f" ({error.strerror}). Rerun the command to make it again."
            ) from error
        self._write()

    def replaced(self, files_replaced: Iterable[Path], by: Path) -> None:
        """Note that one file now holds what others held. Where one of those is not what was noted
        of it, nothing is changed: it stays known as damaged."""
        names = {str(path.absolute()) for path in files_replaced}
        changed = False
        for note in self._steps.values():
            for files in filter(None, (note["reads"], note.get("leaves"))):
                old = names & files.keys()
                if old and not any(_fault(name, files[name]) for name in old):
                    files |= noted([by])
                    for name in old:
                        del files[name]
                    changed = True
        if changed:
            self._write()

    def _write(self) -> None:
        write_json(self.path, {"format": FORMAT, "steps": self._steps})


def digest(settings: Mapping[str, Any]) -> str:
    """Hex SHA-256 of settings, whatever the order of their keys."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _whole(steps: Any) -> bool:
    """Whether these are notes of steps, as far as they are read."""

    def files(value: Any) -> bool:
        return isinstance(value, dict) and all(
            isinstance(each, dict) and {"size", "mtime_ns", "sha256"} <= each.keys()
            for each in value.values()
        )

    return isinstance(steps, dict) and all(
        isinstance(note, dict)
        and isinstance(note.get("settings"), str)
        and files(note.get("reads"))
        and (note.get("leaves") is None or files(note["leaves"]))
        for note in steps.values()
    )


def _changed(before: Files, now: Files) -> list[str]:
    """Files that differ, those that are only on one side too."""
    return [
        path
        for path in sorted(before.keys() | now.keys())
        if before.get(path, {}).get("sha256") != now.get(path, {}).get("sha256")
    ]


def _fault(path: str, old: Entry) -> str:
    """What is wrong with a file that a step left; empty where nothing is."""
    try:
        same = entry(Path(path), old)["sha256"] == old["sha256"]
    except FileNotFoundError:
        return "is gone"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if same else "is not what was written"
