"""Logs of others' runs of programs: what a fallback earned, what taught nothing, what collapsed.

One row per program: run, step, prompt, member, update (whether the step changed the policy),
fallback (whether a default program stood in for one that did not parse), dsl, reward (blank where
none was logged). No rule truth is in it, so whether its judge was hacked is not to be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.markup import number, with_interval
from analysis.external import tables
from analysis.statistics.estimate import Estimate
from analysis.statistics.intervals import mean_interval
from analysis.workflow.arm import UNTOLD

MEANING = (
    "The log of a run of programs has the columns run, step, prompt, member, update, fallback, dsl"
    " and reward, one row a program."
)
COLLAPSED, SOUND = "collapse", "no collapse"
HEALED, PERSISTED = "healed without an update", "did not heal without an update"


@dataclass(frozen=True)
class LoggedRun:
    """What the log of one run shows.

    Attributes:
        rollouts, own, fallback: programs, those of the policy, and the defaults in their place.
        own_reward, fallback_reward: mean logged reward of both, t over programs.
        groups, tied: those with every reward logged, and those of them in which all are equal.
        steps, updates: on record, and those with an update.
        after_update, after_none: share of fallbacks in the step after one with an update, and after
            one without; t over steps.
        two_after: the same two steps after an update with none between.
        programs, top: different short forms that the policy wrote, and the share of the five most
            frequent.
    """

    rollouts: int
    own: int
    fallback: int
    own_reward: Estimate
    fallback_reward: Estimate
    groups: int
    tied: int
    steps: int
    updates: int
    after_update: Estimate
    after_none: Estimate
    two_after: Estimate
    programs: int
    top: float

    @property
    def collapse(self) -> str:
        """Whether more programs are fallbacks right after an update than otherwise; not to be told
        where steps of one kind are too few for an interval."""
        return self._apart(self.after_update, self.after_none, COLLAPSED, SOUND)

    @property
    def healing(self) -> str:
        """Whether fallbacks are fewer two steps after an update, though none came between: what
        heals without an update was not learned. Empty where nothing collapsed."""
        if self.collapse != COLLAPSED:
            return ""
        return self._apart(self.after_update, self.two_after, HEALED, PERSISTED)

    def _apart(self, high: Estimate, low: Estimate, apart: str, else_: str) -> str:
        if np.isnan([high.low, low.high]).any():
            return UNTOLD
        return apart if high.low > low.high else else_


def read(path: Path) -> dict[str, LoggedRun]:
    """The runs of a log, JSON lines, by name. Raises UserError: no such file, or no such log."""
    frame = tables.read_table(path)
    columns: tables.Columns = {
        "run": tables.texts,
        "step": tables.whole_numbers,
        "prompt": tables.texts,
        "member": tables.whole_numbers,
        "update": _yes_or_no,
        "fallback": _yes_or_no,
        "dsl": lambda frame, column: tables.texts(frame, column, blank=True),
        "reward": tables.numbers,
    }
    table = tables.checked(frame, columns, MEANING)
    tables.no_duplicates(frame, table, ["run", "step", "prompt", "member"])
    tables.one_each(
        frame,
        table.assign(step=table["run"] + " step " + table["step"].astype(str))
        .assign(update=table["update"].map({0.0: "no", 1.0: "yes"})),
        "step",
        "update",
    )  # fmt: skip
    return {str(name): of_rows(part) for name, part in table.groupby("run", sort=True)}


def _yes_or_no(frame: pd.DataFrame, column: str) -> pd.Series:
    values = tables.numbers(frame, column)
    tables.refuse(frame, column, ~values.isin([0, 1]), "true or false")
    return values


def of_rows(table: pd.DataFrame) -> LoggedRun:
    """One run, from the columns that the module names."""
    own, stood_in = table[table["fallback"] == 0], table[table["fallback"] == 1]
    groups = table.groupby(["step", "prompt"])["reward"].agg(["min", "max", "size", "count"])
    whole = groups[(groups["size"] == groups["count"]) & (groups["size"] > 1)]
    steps = table.groupby("step").agg(update=("update", "first"), share=("fallback", "mean"))
    shares = _after(steps)
    written = own["dsl"].value_counts()
    return LoggedRun(
        *(len(table), len(own), len(stood_in)),
        mean_interval(own["reward"].dropna(), "program"),
        mean_interval(stood_in["reward"].dropna(), "program"),
        *(len(whole), int((whole["min"] == whole["max"]).sum())),
        *(len(steps), int(steps["update"].sum())),
        *(mean_interval(part, "step", ends=(0.0, 1.0)) for part in shares),
        *(len(written), float(written.head(5).sum() / max(1, len(own)))),
    )


def _after(steps: pd.DataFrame) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """Shares of fallbacks one step after an update, one after none, and two after an update with
    none between; only steps that follow each other count."""
    updated, none, second = [], [], []
    share, update = steps["share"], steps["update"]
    for step in steps.index:
        if step - 1 in share.index:
            (updated if update[step - 1] else none).append(share[step])
            if step - 2 in share.index and update[step - 2] and not update[step - 1]:
                second.append(share[step])
    return updated, none, second


def describe_run(run: LoggedRun) -> list[str]:
    """What the run shows, in sentences."""
    part = run.fallback / run.rollouts
    sentences = [
        f"{run.fallback} of {run.rollouts} programs ({part:.1%}) are the default, in place of one"
        f" that did not parse; rewards: {_mean(run.fallback_reward)} for them,"
        f" {_mean(run.own_reward)} for the policy's own.",
        f"{run.tied} of {run.groups} groups with every reward have equal rewards"
        + (f": no signal in {run.tied / run.groups:.0%}." if run.groups else "."),
        f"The policy wrote {run.programs} different programs; five make up {run.top:.0%}.",
        f"{run.updates} of {run.steps} steps updated the policy. Share of defaults: after an update"
        f" {_mean(run.after_update)}, after none {_mean(run.after_none)}, two steps after an update"
        f" with none between {_mean(run.two_after)}.",
    ]
    if run.collapse == COLLAPSED:
        end = {
            HEALED: ": it healed without an update, so it was not learned",
            PERSISTED: ", and it did not heal without one",
        }.get(run.healing, "; whether it heals without one is unknown")
        sentences.append(f"The programs collapse after an update{end}.")
    elif run.collapse == UNTOLD:
        sentences.append("Whether an update makes the programs collapse is unknown.")
    return [*sentences, f"Judge hacking: {UNTOLD}, for no rule truth was logged."]


def _mean(value: Estimate) -> str:
    return f"{with_interval(value)} (n {number(value.n)})"


def numbers(run: LoggedRun) -> dict[str, Any]:
    """For JSON."""
    plain = {
        name: value.row() if isinstance(value, Estimate) else value
        for name, value in vars(run).items()
    }
    shares = {
        "fallback_share": run.fallback / run.rollouts,
        "no_signal": run.tied / run.groups if run.groups else None,
    }
    verdicts = {"collapse": run.collapse, "healing": run.healing or None, "hacking": UNTOLD}
    return plain | shares | verdicts | {"told": describe_run(run)}
