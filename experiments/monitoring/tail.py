"""The metrics of a cell while it writes them: what is new is read, what was read is kept thinned.

A first look at a long file parses `SPREAD` lines of it, evenly spread, and the `RECENT` last ones;
from then on each look parses the lines that were added. What is added up over all steps is scanned
for in every line.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

from study.files import Damaged
from study.records import METRICS, step_line, where

SPREAD, RECENT = 96, 32
"""Steps that are kept of a long run: so many evenly spread ones, and so many of the last."""
SUMMED = ("cost/usd", "cost/calls")
"""Metrics of which the monitor wants the sum over all steps."""
SHOWN = (
    *("truth/mean", "judge/mean", "bias/judge_minus_truth", "judge/unscored_frac"),
    *("reward/frac_zero_std", "policy/truncated_frac", "policy/length_tokens", "system/step_s"),
)
DOMAIN, ACCURACY = "domain/", "eval/averages/"
OF_DOMAIN = ("truth", "judge", "gap", "unscored_frac", "frac_zero_std")
"""What is shown of ``domain/NAME/...``."""
_OVERALL = ("by_dataset", "by_domain")
_SUMS = {name: re.compile(rb'"' + name.encode() + rb'": ([0-9.eE+-]{1,40})[,}]') for name in SUMMED}


class Tail:
    """Reads ``metrics.jsonl`` of the cell in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS
        self._forget()

    def _forget(self) -> None:
        self.lines: list[dict[str, Any]] = []
        """Kept steps in order: step, time_ms and the finite ones of the metrics that are shown."""
        self.sums: dict[str, float] = {}
        """Sum over all steps of each of `SUMMED` that was recorded."""
        self.accuracy: dict[str, tuple[int, float]] = {}
        """Domain -> step and accuracy of its last held-out evaluation."""
        self.problem = ""
        self._damaged, self._offset, self._file = 0, 0, (0, 0)

    def read(self) -> bool:
        """Read what was added since the last time; whether there was anything.

        A file that was replaced, as by a run that goes on from a checkpoint, is read anew. A last
        line that is not ended yet is left for the next time.
        """
        try:
            status = os.stat(self.path)
            if (status.st_dev, status.st_ino) != self._file or status.st_size < self._offset:
                self._forget()
                self._file = (status.st_dev, status.st_ino)
            if status.st_size == self._offset and not self.problem:
                return False
            data = self._added()
        except FileNotFoundError:
            had = bool(self.lines or self.problem)
            self._forget()
            return had
        except (OSError, Damaged) as error:
            why = error.why if isinstance(error, Damaged) else error.strerror or str(error)
            self.problem = f"{where(self.path)} cannot be read ({why})"
            return False
        self._offset += len(data)
        for name, pattern in _SUMS.items():
            if numbers := pattern.findall(data):
                self.sums[name] = self.sums.get(name, 0.0) + sum(map(_number, numbers))
        for line in _thinned_text(data):
            self._add(line)
        self.lines = thinned(self.lines)
        lost = f"{self._damaged} lines are not steps and are left out"
        self.problem = f"{where(self.path)}: {lost}" if self._damaged else ""
        return bool(data)

    def _added(self) -> bytes:
        """Whole lines after those that were read."""
        if not self.path.is_file():
            raise Damaged(self.path, "is not a regular file")
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        return data[: data.rfind(b"\n") + 1]

    def _add(self, line: bytes) -> None:
        if not line.strip():
            return
        if (content := step_line(line)) is None:
            self._damaged += 1
            return
        metrics = {}
        for name, value in content["metrics"].items():
            if value is None or not math.isfinite(value):
                continue
            if name.startswith(ACCURACY):
                domain = name.removeprefix(ACCURACY)
                if domain not in _OVERALL:
                    self.accuracy[domain] = (content["step"], float(value))
            elif name in SHOWN or (
                name.startswith(DOMAIN) and name.rpartition("/")[2] in OF_DOMAIN
            ):
                metrics[name] = float(value)
        last = self.lines[-1]["step"] if self.lines else -1
        if content["step"] <= last:  # a step that is there twice counts as it was written last
            self.lines = [kept for kept in self.lines if kept["step"] < content["step"]]
        self.lines.append(content | {"metrics": metrics})


def thinned(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines, or of more than twice as many as are wanted the first in each of `SPREAD` equal
    stretches of steps, and the `RECENT` last."""
    if len(lines) <= 2 * (SPREAD + RECENT):
        return lines
    old = lines[:-RECENT]
    first, length = old[0]["step"], old[-1]["step"] - old[0]["step"] + 1
    stretches: dict[int, dict[str, Any]] = {}
    for line in old:
        stretches.setdefault((line["step"] - first) * SPREAD // length, line)
    return [*stretches.values(), *lines[-RECENT:]]


def _thinned_text(data: bytes) -> list[bytes]:
    """Lines to parse: all, or of very many some evenly spread ones, the one with the last held-out
    evaluation, and the last ones."""
    lines = data.split(b"\n")[:-1]
    if len(lines) <= 2 * (SPREAD + RECENT):
        return lines
    old = len(lines) - RECENT
    places = {place * old // SPREAD for place in range(SPREAD)} | set(range(old, len(lines)))
    if (at := data.rfind(b'"' + ACCURACY.encode())) >= 0:
        places.add(data.count(b"\n", 0, at))
    return [lines[place] for place in sorted(places)]


def _number(text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
