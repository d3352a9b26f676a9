"""Where the time of a study's runs went, from what their statuses and metrics say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from study.cell.folder import CellFolder, Status
from study.screen import duration, plural
from study.system.files import read_left, write_json
from study.system.spent import Account, Spent, accounts_of, added, cost_of_a_turn, plain_of

SWEEPS = "sweeps.json"
"""In a study's folder: what the sweeps of it did that came to their end."""

ORDER = (
    *("starting", "warming", "generating", "judging", "updating", "recording", "tracking"),
    *("saving", "evaluating", "done"),
)
IN_JUDGING = {
    "time/judge_s": "waiting for the judge",
    "time/truth_s": "rule truths",
    "time/world_s": "what answers came to",
    "time/rules_s": "rules of the reward",
}
"""Metrics of a step that are parts of judging."""


@dataclass(frozen=True)
class Timing:
    """Where the time of a study went.

    Attributes:
        runs: that say it; ``silent`` are those that do not, such as runs of earlier versions.
        steps: that these made.
        accounts: what they did -> seconds, processor seconds and turns, all runs together.
        judging: parts of judging -> seconds.
        wall_s: from the start of the first to the end of the last.
        own_s: what the accounts themselves took: turns times what one takes here.
    """

    runs: int
    silent: int
    steps: int
    accounts: dict[str, Account]
    judging: dict[str, float]
    wall_s: float
    own_s: float


def timing_of(folders: Sequence[CellFolder], parts: bool = False) -> Timing:
    """What the statuses of runs say; their metrics too where ``parts`` of judging are wanted."""
    accounts: dict[str, Account] = {}
    judging: dict[str, float] = defaultdict(float)
    statuses: list[Status] = []
    steps = 0
    for folder in folders:
        status = folder.status([])
        of_run = accounts_of(status.get("spent"))
        if not of_run:
            continue
        statuses.append(status)
        accounts = added(accounts, of_run)
        steps += status.get("step", 0)
        for line in folder.lines([]) if parts else ():
            for metric, part in IN_JUDGING.items():
                judging[part] += line["metrics"].get(metric) or 0.0
    began = min((each["started"] for each in statuses if "started" in each), default=0.0)
    ended = max((each.get("ended", each.get("beat", 0.0)) for each in statuses), default=began)
    turns = sum(account.times for account in accounts.values())
    return Timing(
        runs=len(statuses),
        silent=len(folders) - len(statuses),
        steps=steps,
        accounts={name: accounts[name] for name in sorted(accounts, key=_place)},
        judging=dict(judging),
        wall_s=max(0.0, ended - began),
        own_s=turns * cost_of_a_turn(),
    )


def sweeps_of(study_dir: Path) -> dict[str, Account]:
    """What the processes of a study's sweeps did, all sweeps together; their runs are not among
    it."""
    return accounts_of(read_left(study_dir / SWEEPS, "what its sweeps took is left out"))


def add_sweep(study_dir: Path, spent: Spent) -> None:
    """Add what a sweep that comes to its end did to what the earlier ones of the study did."""
    accounts = added(sweeps_of(study_dir), spent.accounts())
    write_json(study_dir / SWEEPS, plain_of(accounts))


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def sentence(timing: Timing) -> str:
    """The study's time in a sentence."""
    seconds = sum(account.seconds for account in timing.accounts.values())
    at_once = seconds / timing.wall_s if timing.wall_s > 0 else 0.0
    dearest = sorted(timing.accounts.items(), key=lambda each: -each[1].seconds)[:3]
    parts = ", ".join(f"{name} {one.seconds / max(seconds, 1e-9):.0%}" for name, one in dearest)
    return (
        f"{plural(timing.runs, 'run')} of {plural(timing.steps, 'step')} took"
        f" {duration(seconds)} in all, {duration(timing.wall_s)} by the clock ({at_once:.1f} at"
        f" once): {parts}."
    )
