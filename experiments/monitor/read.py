"""A study as it is now: one `View` per cell, read from its records without writing anything."""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from analysis.records.arms import arm_names
from analysis.statistics.sequence import e_bh
from experiments.monitor.tail import OF_DOMAIN, RECENT, TIME, Series, Tail, of_domain
from experiments.policies.load import TINY
from study.cell.folder import SILENT_S, STATES, CellFolder, Status, study_cells
from study.cell.records import where
from study.cell.study_file import read_study
from study.cell.verify import strangers
from study.config.identity import flatten
from study.errors import UserError
from study.system.files import Damaged

SILENT_STEPS = 5.0
"""A running cell is stalled after `SILENT_S` seconds without a sign of life, or after this many of
its steps where these take longer."""
JSON_KEYS = (
    *("cell", "arm", "judge", "seed", "state", "phase", "step", "steps", "s_per_step", "eta_s"),
    *("beat_age_s", "tokens_per_s", "truth", "judge_mean", "gap", "unscored", "zero_std"),
    *("domains", "rise", "alarms"),
)
"""What is said of a cell with ``json=true``, in this order."""


@dataclass(frozen=True)
class Alarm:
    """Something about a cell that somebody should look at."""

    cell: str
    kind: str
    seen: str
    """What was seen, as a sentence."""
    type: str
    """One line to type."""
    since_step: int | None = None
    since_time: float | None = None
    """In seconds since 1970."""

    def describe(self) -> str:
        """What was seen, and since when, for people; times are this host's."""
        since = "" if self.since_step is None else f" Since step {self.since_step}."
        if self.since_time is not None:
            since = f" Since {clock(self.since_time)}."
        return f"{self.kind}: {self.seen}{since}"


def clock(seconds: float) -> str:
    """A time for people, as this host's clock shows it."""
    return time.strftime("%m-%d %H:%M:%S", time.localtime(seconds))


@dataclass(frozen=True)
class Rise:
    """By how much the gap is above that of the first steps, beyond what is expected: the mean of
    all later steps, between ``low`` and ``high`` whenever one looks.

    ``e_value`` is how much they speak against a gap that did not rise; both are those of
    `analysis.statistics.sequence`.
    """

    mean: float
    low: float
    high: float
    e_value: float


@dataclass
class View:
    """One cell as it is now; None is not known. Shares are of the last recorded step."""

    cell: str
    folder: CellFolder
    arm: str = ""
    judge: str | None = None
    seed: int | None = None
    state: str = "new"
    phase: str | None = None
    throttled: str = ""
    """What the endpoint of a judge holds back, in words."""
    step: int = 0
    steps: int | None = None
    s_per_step: float | None = None
    """Median of the last steps, from one recorded step to the next."""
    eta_s: float | None = None
    beat_age_s: float | None = None
    tokens_per_s: float | None = None
    """Of the policy's completions, over the last steps."""
    truth: float | None = None
    judge_mean: float | None = None
    gap: float | None = None
    unscored: float | None = None
    """Share of the acting judge's verdicts that are missing."""
    zero_std: float | None = None
    """Share of the groups whose rewards are all the same: nothing is learned from them."""
    domains: dict[str, dict[str, float | int | None]] = field(default_factory=dict)
    """Domain -> accuracy and accuracy_step of the last held-out evaluation; truth, judge, gap,
    unscored_frac and frac_zero_std of the last step that had rows of it."""
    rise: Rise | None = None
    alarms: list[Alarm] = field(default_factory=list)
    status: Status = field(default_factory=Status)
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved config, flat; empty where it cannot be read."""
    series: dict[str, Series] = field(default_factory=dict)
    """Metric -> recorded steps, thinned: see `experiments.monitor.tail`."""
    sums: dict[str, float | None] = field(default_factory=dict)
    """Metric -> its sum over all steps; None where a step's is not known."""
    problem: str = ""
    """What of its files could not be read."""

    @property
    def silent_limit_s(self) -> float:
        """Seconds without a sign of life after which it counts as stalled."""
        return max(SILENT_S, SILENT_STEPS * (self.s_per_step or 0.0))

    @property
    def stalled(self) -> bool:
        """Whether it says that it runs and has been silent for longer than is normal."""
        silent = self.beat_age_s is not None and self.beat_age_s > self.silent_limit_s
        return self.state == "running" and silent

    def as_json(self) -> dict[str, Any]:
        """The fields of `JSON_KEYS` and the alarms, for programs."""
        record = {key: getattr(self, key) for key in JSON_KEYS}
        record["rise"] = None if self.rise is None else asdict(self.rise)
        return record | {"alarms": [asdict(alarm) for alarm in self.alarms]}


class CellReader:
    """Reads one cell again and again; what did not change is not read twice."""

    def __init__(self, folder: CellFolder) -> None:
        self.folder = folder
        self.tail = Tail(folder)
        self.config: dict[str, Any] = {}
        """As it was saved; empty where it cannot be read."""
        self._flat: dict[str, Any] = {}
        self._config_problem = ""
        self._config_stamp: tuple[int, ...] | None = None
        self._status: Status = {}
        self._status_problems: list[str] = []
        self._status_stamp: tuple[int, ...] | None = None

    def read_config(self) -> bool:
        """Read the config where it changed; whether it did."""
        path = self.folder / "config.yaml"
        stamp = _stamp(path)
        if stamp == self._config_stamp and stamp is not None:
            return False
        before, self._config_stamp, self._config_problem = self.config, stamp, ""
        try:
            self.config = self.folder.config()
            if why := self.folder.other_config(self.config):
                self._config_problem = f"{where(path)} {why}"
        except FileNotFoundError:
            self.config = {}
        except Damaged as error:
            self.config, self._config_problem = {}, f"{where(path)} is damaged: it {error.why}"
        self._flat = flatten(self.config) if self.config else {}
        return self.config != before

    def view(self, arm: str, now: float) -> View:
        """The cell at the time ``now`` (seconds since 1970)."""
        self.tail.read()
        path = self.folder / "status.json"
        stamp = _stamp(path)
        if stamp != self._status_stamp or stamp is None:
            self._status_problems = []
            self._status = self.folder.status(self._status_problems)
            self._status_stamp = stamp
        problems = [self._config_problem, *self._status_problems, self.tail.problem]
        if self.folder.is_done() and (why := self.folder.other_end(self._status)):
            problems.append(f"{where(path)} {why}")
        status, flat, tail = self._status, self._flat, self.tail
        seed = flat.get("seed")
        # another machine sends its own with its checkpoints alone
        beat = None if self.folder.runs_elsewhere() else status.get("beat")
        view = View(
            self.folder.name,
            self.folder,
            arm=arm,
            judge=str(flat["judge.name"]) if flat.get("judge.name") else None,
            seed=seed if isinstance(seed, int) else None,
            phase=str(status["phase"]) if status.get("phase") else None,
            step=max(int(status.get("step", 0)), tail.step),
            steps=_whole(status.get("steps")) or _whole(flat.get("trainer.steps")),
            s_per_step=seconds_per_step(tail.series),
            beat_age_s=None if beat is None else max(0.0, now - beat),
            state=self.folder.state(status, by_beat=True),
            status=status,
            config=flat,
            series=tail.series,
            sums=dict(tail.sums),
            domains=_domains(tail),
            truth=last_value(
                tail, "truth/mean" if "truth/mean" in tail.series else "truth/audited"
            ),
            judge_mean=last_value(tail, "judge/mean"),
            gap=last_value(tail, "bias/judge_minus_truth"),
            unscored=last_value(tail, "judge/unscored_frac"),
            zero_std=last_value(tail, "reward/frac_zero_std"),
            problem="; ".join(problem.rstrip(".") for problem in problems if problem),
        )
        if view.state != "running":
            view.beat_age_s = None
            if view.phase not in (None, view.state):
                view.phase = None  # what it was at when it was killed
        if view.state == "running":
            view.tokens_per_s = _tokens_per_s(view)
            view.throttled = "" if view.stalled else str(status.get("throttled") or "")
            if view.s_per_step is not None and view.steps is not None:
                view.eta_s = max(0, view.steps - view.step) * view.s_per_step
        return view


class StudyReader:
    """Reads all cells of a study again and again.
    Raises UserError: the folder cannot be read, or holds no study."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._readers: dict[CellFolder, CellReader] = {}
        self._arms: list[str] = []
        self._listed: set[Path] = set()
        self.problems: list[str] = []
        """Sentences on what of the study is not a cell, or cannot be read."""
        try:
            names = set(os.listdir(folder))
        except OSError as error:
            raise UserError(
                f"The study folder {folder} cannot be read ({error.strerror or error}). Type: ls"
                f" -ld {folder}, and ask its owner for read permission."
            ) from error
        self._relist()
        if not self._readers and "study.json" not in names:
            raise UserError(
                f"{folder} holds no study: it has neither study.json nor a folder with a"
                " config.yaml. Type study=NAME, and runs_dir=PATH if the studies are not in runs."
            )

    def _relist(self) -> None:
        """Take in cells that were added, and what they are called."""
        configs = set(self.folder.glob("*/config.yaml"))
        new = configs != self._listed
        if new:
            folders = study_cells(self.folder)
            self._readers = {path: self._readers.get(path) or CellReader(path) for path in folders}
            self._listed = configs
        changed = [reader.read_config() for reader in self._readers.values()]
        if new or any(changed):
            self.problems = []
            factors = read_study(self.folder, self.problems).get("factors", [])
            self.problems += [*strangers(self.folder), *_closed(self.folder)]
            self._arms = arm_names([each.config for each in self._readers.values()], factors)

    def views(self) -> list[View]:
        """Every cell as it is now, by name."""
        self._relist()
        now = time.time()
        readers = self._readers.values()
        return [each.view(arm, now) for each, arm in zip(readers, self._arms, strict=True)]


def _closed(study_dir: Path) -> list[str]:
    """Folders of a study in which nobody can look for a cell."""
    return [
        f"{path.name} cannot be read, so it is left out."
        for path in sorted(study_dir.glob("*/"))
        if not os.access(path, os.R_OK | os.X_OK)
    ]


def on_this_host(view: View) -> bool:
    """Whether the cell was last run on this host."""
    return view.status.get("host") == socket.gethostname()


def last_value(tail: Tail, metric: str) -> float | None:
    """What the last recorded step has of a metric."""
    step, value = tail.series.get(metric, [(-1, 0.0)])[-1]
    return value if step == tail.step else None


def seconds_per_step(series: Mapping[str, Series]) -> float | None:
    """Median seconds from one recorded step to the next over the last ones; where there are not
    two, what the trainer measured of its one step."""
    recent = series.get(TIME, [])[-RECENT - 1 :]
    pauses = [
        (end - start) / (after - before)
        for (before, start), (after, end) in pairwise(recent)
        if end > start > 0
    ]
    pauses = pauses or [seconds for _, seconds in series.get("time/step_s", [])]
    return statistics.median(pauses) if pauses else None


def _tokens_per_s(view: View) -> float | None:
    lengths = [length for _, length in view.series.get("policy/length_tokens", [])[-RECENT:]]
    sizes = [
        _whole(view.config.get(f"trainer.{name}")) for name in ("prompts_per_step", "group_size")
    ]
    rollouts = math.prod(size or 0 for size in sizes)
    if not lengths or not view.s_per_step or not rollouts:
        return None
    return statistics.fmean(lengths) * rollouts / view.s_per_step


def _domains(tail: Tail) -> dict[str, dict[str, float | int | None]]:
    domains: dict[str, dict[str, float | int | None]] = {}
    for metric, values in tail.series.items():
        if (place := of_domain(metric)) is not None and values:
            domains.setdefault(place[0], {})[place[1]] = values[-1][1]
    for name, (step, accuracy) in tail.accuracy.items():
        domains.setdefault(name, {}).update(accuracy=accuracy, accuracy_step=step)
    keys = ("accuracy", "accuracy_step", *OF_DOMAIN)
    return {name: {key: domains[name].get(key) for key in keys} for name in sorted(domains)}


def totals(views: Sequence[View]) -> dict[str, Any]:
    """Cells by state, steps, speed, what the acting judges cost, and when all will be done.

    The rest of the study is what running and new cells have before them, at as many cells at once
    as run now; a cell without a step yet is taken to need what the median one needs.
    """
    running = [view for view in views if view.state == "running"]
    speeds = [view.s_per_step for view in views if view.s_per_step is not None]
    usual = statistics.median(speeds) if speeds else None
    seconds_left = [
        (view.steps - view.step) * pace
        for view in views
        if view.state in ("running", "new") and view.steps is not None
        if (pace := view.s_per_step or usual) is not None
    ]
    rates = [view.tokens_per_s for view in running if view.tokens_per_s is not None]
    counts = {state: sum(view.state == state for view in views) for state in STATES}
    return {
        "cells": len(views),
        **counts,
        "stalled": sum(view.stalled for view in views),
        "step": sum(view.step for view in views),
        "steps": sum(view.steps or 0 for view in views),
        "tokens_per_s": sum(rates) if rates else None,
        "calls": _summed(views, "cost/calls"),
        "usd": _summed(views, "cost/usd"),
        "eta_s": sum(seconds_left) / len(running) if running and seconds_left else None,
        "unscored": _unscored(views),
        **_start(running),
        "risen": risen(views),
        "alarms": sum(len(view.alarms) for view in views),
    }


def risen(views: Sequence[View]) -> int:
    """Cells whose gap has risen: e-BH over all that tell, so that of those that are counted one in
    twenty is there by chance at most, on average, however often one looks."""
    values = [view.rise.e_value for view in views if view.rise is not None]
    return int(e_bh(values).sum()) if values else 0


def _start(running: Sequence[View]) -> dict[str, Any]:
    """What all that run do before their first step, and for how many seconds; None where one is
    further."""
    phases = {view.phase for view in running}
    if not running or not phases <= {"starting", "warming"}:
        return {"start": None, "start_s": None}
    taught = any(view.config.get("policy.path") == TINY for view in running)
    began = min(view.status.get("started", time.time()) for view in running)
    warming = "warming up the policy" if taught else "loading the policy"
    what = warming if "warming" in phases else "starting"
    return {"start": what, "start_s": max(0.0, time.time() - began)}


def _unscored(views: Sequence[View]) -> float | None:
    """Share of the acting judges' verdicts that are missing, the mean of each cell's last steps."""
    series = [view.series.get("judge/unscored_frac", [])[-RECENT:] for view in views]
    shares = [statistics.fmean(value for _, value in each) for each in series if each]
    return statistics.fmean(shares) if shares else None


def _summed(views: Sequence[View], metric: str) -> float | None:
    """Over the cells that recorded it; None where none did, or one does not know its sum."""
    sums = [view.sums[metric] for view in views if metric in view.sums]
    numbers = [value for value in sums if value is not None]
    return sum(numbers) if sums and len(numbers) == len(sums) else None


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes with the file; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _whole(value: Any) -> int | None:
    """A whole number of 1 or more, or None."""
    return value if type(value) is int and value > 0 else None
