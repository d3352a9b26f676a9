"""The report's tables as they are read: numbers rounded, intervals written out, columns named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.records.behaviour import unit
from analysis.reports import markup
from analysis.reports.ends import beyond, cut
from analysis.reports.evidence import Evidence
from analysis.reports.markup import TEXTS
from analysis.run.best_of_n import BestOfN
from analysis.run.drift import JUDGED
from analysis.run.onset import Line
from analysis.run.overopt import place
from analysis.run.threshold_grid import span
from study.screen import plural

LABELS: dict[str, str] = TEXTS["scores"]
DECIMALS = 3
"""Of scores and shares, which lie between 0 and 1: what is beyond is noise."""


def row_of(table: pd.DataFrame, arm: str, metric: str) -> dict[str, Any] | None:
    """The row of an arm and a metric in a shift table; None where there is none."""
    rows = table[(table["arm"] == arm) & (table["metric"] == metric)].to_dict("records")
    return rows[0] if rows else None


def difference(evidence: Evidence, row: dict[str, Any]) -> tuple[float, float]:
    """The interval of an arm's difference from the base arm, cut at what is possible."""
    tables = evidence.score_shifts, evidence.feature_shifts
    found = (row_of(table, str(evidence.base), row["metric"]) for table in tables)
    return beyond(row, next(filter(None, found), None))


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
                f"words beyond {evidence.base}": markup.estimate(
                    shift["diff"], *difference(evidence, shift)
                )
                if shift is not None and shift["pairs"] > 0
                else "",
                "unscored": f"{100 * unscored / rollouts:.1f} %" if rollouts else "",
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
    told: dict[str, dict[str, float]] = {}
    for arm in evidence.arms:
        of_arm = evidence.cells["arm"].eq(arm)
        told[arm] = {
            "runs": float(of_arm.sum()),
            "runs_finished": float((of_arm & evidence.cells["done"]).sum()),
        }
    for table in (evidence.score_shifts, evidence.feature_shifts):
        for row in table.to_dict("records"):
            of_arm = told.setdefault(row["arm"], {})
            of_arm |= {
                f"{row['metric']}/{names.get(key, key)}": round(float(row[key]), 9)
                for key in shown
                if row[key] is not None and math.isfinite(row[key])
            }
    return told


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
    used = ["yes" if cell in evidence.used_cells else "no" for cell in cells["cell"]]
    table = table.assign(**{"in the estimates": used})
    error = cells["error"].str.slice(0, 120)
    return table.assign(error=error) if error.ne("").any() else table


def shifts_table(shifts: pd.DataFrame, base: str | None) -> pd.DataFrame:
    """A shift table with its intervals written out: scores first, then the rest as they come."""
    lost = (shifts.loc[shifts["metric"].isin(JUDGED), "unscored"] > 0).any()
    compared, pooled = shifts["diff"].notna().any(), shifts["pooled"].notna().any()
    order = {metric: k for k, metric in enumerate(dict.fromkeys([*LABELS, *shifts["metric"]]))}
    placed = shifts.assign(_at=shifts["metric"].map(order)).sort_values(["_at", "arm"])
    rows = []
    of_base = {row["metric"]: row for row in shifts[shifts["arm"] == base].to_dict("records")}
    for row in map(_plain, placed.to_dict("records")):
        errors = (markup.number(row[key]) for key in ("se", "group_se", "naive_se"))
        line = {
            "measure": f"{LABELS.get(row['metric'], row['metric'])} ({row['unit']})",
            "arm": row["arm"],
            "first": row["first"],
            "last": row["last"],
            "shift [95 %]": markup.estimate(row["shift"], *cut(row)),
            "SE: runs / groups / rollouts": " / ".join(errors),
            "runs": row["n"],
        }
        if lost:
            line["missing"] = f"{100 * row['unscored']:.1f} %"
            line["worst cases"] = markup.bracket(row["worst_low"], row["worst_high"])
        if compared:
            other = of_base.get(row["metric"])
            difference = markup.estimate(row["diff"], *beyond(row, other))
            paired = row["pairs"] > 0
            line[f"beyond {base} [95 %]"] = difference if paired else ""
            if lost:
                worst = markup.bracket(row["diff_worst_low"], row["diff_worst_high"])
                line[f"worst cases beyond {base}"] = worst
            if pooled:
                drawn = markup.estimate(row["pooled"], *beyond(row, other, "pooled"))
                line["pooled over arms [95 %]"] = drawn if paired else ""
            line["pairs"] = markup.number(row["pairs"]) if paired else ""
            line["p (sign flip)"] = markup.p_value(row["p_sign_flip"]) if paired else ""
            line["p (t, Holm)"] = markup.p_value(row["p_holm"]) if paired else ""
        texts = [text for text in (row["note"], row["diff_note"]) if isinstance(text, str)]
        notes = dict.fromkeys(note for text in texts for note in text.split("; ") if note)
        rows.append(line | {"note": "; ".join(n for n in notes if "exact p" not in n)})
    table = pd.DataFrame(rows)
    with_notes = len(table) and table["note"].ne("").any()
    return table if with_notes else table.drop(columns="note", errors="ignore")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose scores and shares have no more than `DECIMALS`, its p as they are."""
    if row["unit"] != "score" and not row["unit"].startswith("share"):
        return row
    return {
        key: round(value, DECIMALS) if isinstance(value, float) and "p_" not in key else value
        for key, value in row.items()
    }


def held_out_table(held_out: pd.DataFrame) -> pd.DataFrame:
    """Shifts on held-out rows beside those on the rows of training."""
    rows = [
        {
            "measure": f"{LABELS.get(row['metric'], row['metric'])} ({row['unit']})",
            "arm": row["arm"],
            "held-out, drawn [95 %]": markup.estimate(row["shift"], *cut(row)),
            "held-out, greedy": markup.number(row["greedy"], sign=True),
            "training": markup.number(row["training"], sign=True),
            "held-out - training [95 %]": markup.estimate(
                row["apart"], row["apart_low"], row["apart_high"]
            ),
            "runs": row["n"],
        }
        for row in map(_plain, held_out.to_dict("records"))
    ]
    return pd.DataFrame(rows)


def best_of_n_table(lines: Sequence[BestOfN]) -> pd.DataFrame:
    """The truth of the best of 1, 2, 4, ... and of all answers, by judge."""
    most = {(line.arm, line.judge): line.n for line in lines}
    rows = [
        {
            "arm": line.arm,
            "chosen by": line.judge,
            "n": line.n,
            "KL (nats)": line.kl,
            "truth [95 %]": markup.with_interval(line.truth),
            "truth gained [95 %]": markup.signed(line.gain),
            "its score [95 %]": markup.with_interval(line.score),
            "prompts": line.truth.n,
        }
        for line in lines
        if line.n & (line.n - 1) == 0 or line.n == most[line.arm, line.judge]
    ]
    return pd.DataFrame(rows)


def dose_table(dose: dict[str, Any]) -> pd.DataFrame:
    """One row on a dose-response study: slope with its unit of inference, tests, theory."""
    slope, measured = dose["slope"], unit(dose["feature"])
    amplified = {
        f"observed / first-order slope, beta {theory['beta']:g}": theory["amplification"]
        for theory in dose["theory"]
    }
    row = {
        "behaviour": dose["feature"],
        f"{measured} per unit of dose [95 %]": markup.estimate(
            slope["slope"], slope["low"], slope["high"]
        ),
        "n": slope["n"],
        "unit": slope["unit"],
        "runs": len(dose["runs"]),
        "trend p": markup.p_value(dose["trend_p"]),
        "lack of fit p": markup.p_value(dose["lack_of_fit_p"]),
        **amplified,
        "unscored (share)": dose["unscored"],
        "note": slope["note"],
    }
    return pd.DataFrame([row])


def ledger_table(table: pd.DataFrame, labels: str = "ledger") -> pd.DataFrame:
    """Metrics of ``texts.yaml`` by arm, intervals over runs; those that no arm has are left out."""
    runs = table.groupby("arm", sort=False)["n"].max().astype(int)
    rows = []
    head = TEXTS["heads"][labels]
    for metric, label in TEXTS[labels].items():
        by_arm = table[table["metric"] == metric].set_index("arm").reindex(runs.index)
        if by_arm["mean"].notna().any():
            line = {head: label}
            for arm, row in by_arm.iterrows():
                name = f"{arm} ({plural(runs[arm], 'run')})"
                ends = np.round(row[["mean", "low", "high"]].astype(float), DECIMALS)
                line[name] = markup.estimate(*ends, sign=labels != "ledger")
            rows.append(line)
    return pd.DataFrame(rows)


def calibration_table(table: pd.DataFrame) -> pd.DataFrame:
    """How well the advantages give each behaviour, the slope with its interval; what no behaviour
    has is left out."""
    slopes = [markup.estimate(*ends, sign=False) for ends in zip(
        table["slope"], table["low"], table["high"], strict=True)]  # fmt: skip
    shown = table.drop(columns=["low", "high"]).assign(slope=slopes)
    return shown.dropna(axis="columns", how="all").rename(columns=TEXTS["calibration"])


def onset_table(lines: Iterable[Line]) -> pd.DataFrame:
    """When each run's gap began to rise, one row per run."""
    rows = []
    for line in lines:
        onset, step = line.onset, line.onset.step
        begun = f"{step.value:.0f} {markup.bracket(step.low, step.high)}"
        if not math.isfinite(step.value):  # where there is a p, a rise was looked for
            begun = "none seen" if onset.p == onset.p else markup.MISSING
        rows.append(
            {
                "arm": line.arm,
                "seed": line.seed,
                "gap, first": round(line.gap_first, DECIMALS),
                "gap, last": round(line.gap_last, DECIMALS),
                "rise explained": line.explained,
                "onset (step)": begun,
                "p": markup.p_value(onset.p),
                "early stop (step)": "" if line.alarm is None else str(line.alarm),
                "threshold grid (step)": span(line.grid),
                "grid, top tenth": span(line.own_grid),
                "note": "; ".join(filter(None, [onset.note, line.grid.note])),
            }
        )
    return pd.DataFrame(rows)


def peaks_table(fits: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """The best over-optimisation fit of each run: where the truth peaks."""
    rows = [
        {
            "arm": fit["arm"],
            "seed": fit["seed"],
            "form": fit["best"]["form"],
            "peak (sqrt KL)": place(fit["best"]["peak"]),
            "low": place(fit["low"]),
            "high": place(fit["high"]),
            "largest sqrt KL": fit["d_max"],
            "note": fit["note"],
        }
        for fit in fits
    ]
    return pd.DataFrame(rows)


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
