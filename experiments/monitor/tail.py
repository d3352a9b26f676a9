"""The metrics of a cell while it writes them: what is new is read, what was read is kept thinned.

A first look at a long file parses `SPREAD` lines of it, evenly spread, and the `RECENT` last ones;
from then on each look parses the lines that were added. What is added up over all steps is scanned
for in every line.
"""

from __future__ import annotations

import json
import math
import os
import re
from functools import lru_cache
from itertools import pairwise

from study.cell.folder import CellFolder
from study.cell.records import (
    HELD_OUT,
    METRICS,
    OVERALL,
    step_line,
    where,
)
from study.cell.signature import is_altered, other_origin
from study.system.files import Damaged

SPREAD, RECENT = 48, 24
"""Steps that are kept of a long run: so many evenly spread ones, and so many of the last."""
Series = list[tuple[int, float]]
"""Step and value, in order of the steps."""
TIME = "time_s"
"""The series of the times at which steps were recorded, in seconds since 1970."""
SUMMED = ("cost/usd", "cost/calls")
"""Metrics of which the monitor wants the sum over all steps."""
SHOWN = (
    *("truth/mean", "truth/audited", "judge/mean", "bias/judge_minus_truth"),
    "judge/unscored_frac",
    *("reward/frac_zero_std", "policy/truncated_frac", "policy/length_tokens", "time/step_s"),
)
DOMAIN = "domain/"
OF_DOMAIN = ("truth", "judge", "gap", "unscored_frac", "frac_zero_std")
"""What is shown of ``domain/NAME/...``."""
_STEP = re.compile(rb'^\{"step": (\d{1,12}),', re.MULTILINE)
_SUMS = re.compile(b'"(' + "|".join(SUMMED).encode() + rb')": ([^,}\n]{1,40})')


class Tail:
    """Reads ``metrics.jsonl`` of the cell in ``folder``."""

    def __init__(self, folder: CellFolder) -> None:
        self.folder, self.path = folder, folder / METRICS
        self._forget()

    def _forget(self) -> None:
        self.series: dict[str, Series] = {}
        """Of each metric that is shown, and of `TIME`, the kept steps in order."""
        self.sums: dict[str, float | None] = {}
        """Sum over all steps of each of `SUMMED` that was recorded; None where a step's is not
        known."""
        self.accuracy: dict[str, tuple[int, float]] = {}
        """Domain -> step and accuracy of its last held-out evaluation."""
        self.problem = ""
        self.step = 0
        """The last one."""
        self._damaged, self._offset, self._file, self._last = 0, 0, (0, 0), -1

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
            had_content = bool(self.series or self.problem)
            self._forget()
            return had_content
        except (OSError, Damaged) as error:
            why = error.why if isinstance(error, Damaged) else error.strerror or str(error)
            self.problem = f"{where(self.path)} cannot be read ({why})"
            return False
        self._offset += len(data)
        lines = data.split(b"\n")
        sound = [line for line in lines if not is_altered(line)]
        self._damaged += len(lines) - len(sound)
        data = b"\n".join(sound)
        steps = [self._last, *map(int, _STEP.findall(data))]
        self._last = max(steps)
        if any(step <= before for before, step in pairwise(steps)):
            data = self._each_once()
        for name, amount in _SUMS.findall(data):
            key = name.decode()
            before, value = self.sums.get(key, 0.0), _number(amount)
            self.sums[key] = None if before is None or value is None else before + value
        for line in _thinned_text(data):
            self._add(line)
        self.series = {name: thinned(values) for name, values in self.series.items()}
        problem = "altered or damaged lines, which are left out"
        self.problem = f"{where(self.path)}: {problem}: {self._damaged}" if self._damaged else ""
        return len(lines) > 1

    def _each_once(self) -> bytes:
        """All steps in order, each as it was written last, where one stands twice: what was added
        up so far is forgotten."""
        steps = sorted(self.folder.lines(), key=lambda line: line["step"])
        self.series, self.sums, self.accuracy, self.step = {}, {}, {}, 0
        return "".join(json.dumps(line) + "\n" for line in steps).encode()

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
        folder = self.path.parent
        content = step_line(line)
        if content is None or other_origin(folder, content):
            self._damaged += 1
            return
        step = content["step"]
        if step <= self.step:  # a step that is there twice counts as it was written last
            before = {
                name: [each for each in values if each[0] < step]
                for name, values in self.series.items()
            }
            self.series = {name: values for name, values in before.items() if values}
        self.step = step
        self._keep(TIME, step, content["time_ms"] / 1000)
        for name, value in content["metrics"].items():
            if value is None or not math.isfinite(value):
                continue
            if name.startswith(HELD_OUT):
                domain = name.removeprefix(HELD_OUT)
                if domain not in OVERALL:
                    self.accuracy[domain] = (step, float(value))
            elif name in SHOWN or of_domain(name):
                self._keep(name, step, float(value))

    def _keep(self, name: str, step: int, value: float) -> None:
        self.series.setdefault(name, []).append((step, value))


@lru_cache(maxsize=4096)
def of_domain(name: str) -> tuple[str, str] | None:
    """The domain and what is told of it, where a metric is one of `OF_DOMAIN`."""
    start, _, measure = name.rpartition("/")
    if not start.startswith(DOMAIN) or measure not in OF_DOMAIN:
        return None
    return start.removeprefix(DOMAIN), measure


def thinned(values: Series) -> Series:
    """The steps, or of more than twice as many as are wanted the first in each of `SPREAD` equal
    stretches, and the `RECENT` last."""
    if len(values) <= 2 * (SPREAD + RECENT):
        return values
    old = values[:-RECENT]
    first, length = old[0][0], old[-1][0] - old[0][0] + 1
    stretches: dict[int, tuple[int, float]] = {}
    for each in old:
        stretches.setdefault((each[0] - first) * SPREAD // length, each)
    return [*stretches.values(), *values[-RECENT:]]


def _thinned_text(data: bytes) -> list[bytes]:
    """Lines to parse: all, or of very many some evenly spread ones, the one with the last held-out
    evaluation, and the last ones. Lines of a file are of about one length."""
    ends = [len(data)]
    while ends[-1] > 0 and len(ends) <= 2 * (SPREAD + RECENT) + 1:
        ends.append(data.rfind(b"\n", 0, ends[-1]))
    if ends[-1] <= 0:
        return data.split(b"\n")
    old, last = data[: ends[RECENT + 1] + 1], data[ends[RECENT + 1] + 1 :].split(b"\n")
    starts = {old.rfind(b"\n", 0, place * len(old) // SPREAD) + 1 for place in range(SPREAD)}
    if (at := old.rfind(b'"' + HELD_OUT.encode())) >= 0:
        starts.add(old.rfind(b"\n", 0, at) + 1)
    return [*(old[start : old.find(b"\n", start)] for start in sorted(starts)), *last]


def _number(text: bytes) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
