"""The report's tables as they are read: numbers rounded, intervals written out, columns named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from analysis.display import markup
from analysis.report.evidence import Evidence


def row_of(table: pd.DataFrame, arm: str, metric: str) -> dict[str, Any] | None:
    """The row of an arm and a metric in a shift table; None where there is none."""
    rows = table[(table["arm"] == arm) & (table["metric"] == metric)].to_dict("records")
    return rows[0] if rows else None


def shifts_of(evidence: Evidence, arm: str, known: str = "diff") -> pd.DataFrame:
    """The shifts of an arm's behaviours of which a number is known, without those that go with
    another."""
    table = evidence.feature_shifts
    shown = (table["arm"] == arm) & table[known].notna()
    return table[shown & ~table["metric"].isin(list(evidence.same))]


def summary_rows(evidence: Evidence) -> list[dict[str, str]]:
    """One row of short texts per arm: scores at the start and the end, length, missing share."""
    rows = []
    cells, scores = evidence.cells, evidence.score_shifts
    for arm in evidence.arms:
        of_arm = cells["arm"].eq(arm)
        shift = row_of(evidence.feature_shifts, arm, "length")
        runs = evidence.recorded(arm)
        rollouts = sum(run.rollouts - run.unasked for run in runs)
        unscored = rollouts - sum(int((~np.isnan(run.judge)).sum()) for run in runs)
        rows.append(
            {
                "judge": arm,
                "runs": str(int(of_arm.sum())),
                "finished": str(int((of_arm & cells["done"]).sum())),
                "judge score": _from_to(row_of(scores, arm, "judge_score")),
                "truth": _from_to(row_of(scores, arm, "truth")),
                "judge - truth": _from_to(row_of(scores, arm, "gap")),
                "length (words)": _from_to(shift),
                f"words vs {evidence.base}": markup.estimate(
                    shift["diff"], shift["diff_low"], shift["diff_high"]
                )
                if shift is not None and shift["pairs"] > 0
                else "",
                "missing": f"{100 * unscored / rollouts:.1f} %" if rollouts else "",
            }
        )
    return rows


def numbers(evidence: Evidence) -> dict[str, dict[str, float]]:
    """Arm -> name -> value, for other programs: how many runs, and of scores and behaviours the
    value at the end, the shift with its interval, and the difference from the base arm. What is
    missing is left out."""
    shown = ("last", "shift", "low", "high", "diff", "diff_low", "diff_high")
    names = {"last": "end", "low": "shift_low", "high": "shift_high", "diff": "beyond_base"}
    names |= {"diff_low": "beyond_base_low", "diff_high": "beyond_base_high"}
    by_arm: dict[str, dict[str, float]] = {}
    for arm in evidence.arms:
        of_arm = evidence.cells["arm"].eq(arm)
        by_arm[arm] = {
            "runs": float(of_arm.sum()),
            "runs_finished": float((of_arm & evidence.cells["done"]).sum()),
        }
    for table in (evidence.score_shifts, evidence.feature_shifts):
        for row in table.to_dict("records"):
            of_arm = by_arm.setdefault(row["arm"], {})
            of_arm |= {
                f"{row['metric']}/{names.get(key, key)}": round(float(row[key]), 9)
                for key in shown
                if row[key] is not None and math.isfinite(row[key])
            }
    return by_arm


def _from_to(row: dict[str, Any] | None) -> str:
    if row is None or math.isnan(row["last"]):
        return ""
    return f"{markup.number(row['first'])} -> {markup.number(row['last'])}"


def runs_table(evidence: Evidence) -> pd.DataFrame:
    """State and axes of every run, finished or not."""
    cells = evidence.cells
    table = cells[["arm", "seed", "state", "step", "steps", "seconds", "policy", "reward"]]
    recorded = {run.cell: len(np.unique(run.step_P)) for run in evidence.records.runs}
    table.insert(4, "recorded", [recorded.get(cell, 0) for cell in cells["cell"]])
    usage = ["yes" if cell in evidence.used_cells else "no" for cell in cells["cell"]]
    table = table.assign(**{"used": usage})
    error = cells["error"].str.slice(0, 120)
    return table.assign(error=error) if error.ne("").any() else table


def sources_table(evidence: Evidence) -> pd.DataFrame:
    """Where the numbers come from: config hash, models, records and code version of every run."""
    cells = evidence.cells
    rollouts = {run.cell: run.rollouts for run in evidence.records.runs}
    verdicts = evidence.records.outcomes.groupby("cell")["verdicts"].sum().to_dict()
    return pd.DataFrame(
        {
            "run": cells["cell"],
            "config hash": cells["config_hash"],
            "task": cells["task"],
            "judge model": cells["judge_model"],
            "grading": cells["grading"],
            "on failure": cells["on_failure"],
            "rollouts": [rollouts.get(cell, 0) for cell in cells["cell"]],
            "verdicts": [int(verdicts.get(cell, 0)) for cell in cells["cell"]],
            "commit": [
                commit[:10] + (" + changes" if dirty is True else "")
                for commit, dirty in zip(cells["git_commit"], cells["git_dirty"], strict=True)
            ],
        }
    )
