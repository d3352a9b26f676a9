"""The report's words: what was found, with its numbers, and what cannot be concluded and why.

Nothing is hard-coded about any study: every sentence is made from the tables of one `Evidence`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.records.frames import NAMELESS
from analysis.records.runs import read_study
from analysis.reports.markup import bracket, estimate, number, p_value
from analysis.run import drift
from study.features import FEATURES

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from analysis.records.runs import Records, Run

FEW_SEEDS = 5
"""Up to here no sign-flip test over seeds can reach p < .05."""
SMALL_JUDGE = 1e9
"""Parameters below which a real judge is taken to show the path and not judging quality."""


@dataclass(frozen=True)
class Evidence:
    """Every table of one study's report. Curves and shifts hold the usable cells only."""

    name: str
    records: Records
    cells: list[str]
    """Cells that the estimates rest on: the finished ones, or all where none is finished."""
    base: str | None
    scores: pd.DataFrame
    features: pd.DataFrame
    """Step means by run, long, of the features that occur."""
    spread: dict[str, float]
    """Standard deviation of each feature over all answers of the study."""
    absent: list[str]
    """Features that are the same in every answer, left out of figures and tests."""
    score_shifts: pd.DataFrame
    feature_shifts: pd.DataFrame
    failures: pd.DataFrame
    failures_by_length: pd.DataFrame

    @property
    def runs(self) -> pd.DataFrame:
        """One row per cell, in any state."""
        return self.records.table

    @property
    def used(self) -> list[Run]:
        """The runs that the estimates rest on."""
        return [run for run in self.records.runs if run.cell in self.cells]

    @property
    def arms(self) -> list[str]:
        """The base arm first, then the others by name."""
        named = self.runs.loc[self.runs["judge"].ne(NAMELESS), "arm"]
        return sorted(named.unique(), key=lambda arm: (arm != self.base, arm))

    def of(self, arm: str) -> list[Run]:
        """The recorded runs of one arm."""
        return [run for run in self.records.runs if run.arm == arm]


def gather(study_dir: Path | str) -> Evidence:
    """Read a study's folder and compute every table of its report."""
    records = read_study(study_dir)
    table = records.table
    cells = drift.usable_cells(table)
    used = [run for run in records.runs if run.cell in cells]
    base = drift.base_arm(table[table["cell"].isin(cells)])
    spread: dict[str, float] = {}
    for k, name in enumerate(FEATURES):
        values = [run.features[..., k].ravel() for run in records.runs]
        known = np.concatenate([v[np.isfinite(v)] for v in values]) if values else np.empty(0)
        if known.size and known.min() < known.max():
            spread[name] = float(known.std(ddof=1))

    def occurring(run: Run) -> dict[str, np.ndarray]:
        return {name: v for name, v in drift.feature_values(run).items() if name in spread}

    scale = _score_scale(records.runs)
    return Evidence(
        name=records.folder.name,
        records=records,
        cells=cells,
        base=base,
        scores=drift.run_curves(used),
        features=drift.run_curves(used, occurring),
        spread=spread,
        absent=[name for name in FEATURES if name not in spread],
        score_shifts=drift.shift_table(drift.run_shifts(used, scale=scale), base),
        feature_shifts=drift.shift_table(drift.run_shifts(used, occurring), base),
        failures=drift.failure_table(records.outcomes),
        failures_by_length=drift.failures_by_length(records.outcomes),
    )


def _score_scale(runs: Sequence[Run]) -> tuple[float, float]:
    """Ends of the score scale: 0 and 1, or what was given beyond them."""
    seen = [run.judge[np.isfinite(run.judge)] for run in runs]
    seen = [scores for scores in seen if scores.size]
    return (
        min([0.0, *(float(scores.min()) for scores in seen)]),
        max([1.0, *(float(scores.max()) for scores in seen)]),
    )


def findings(found: Evidence) -> list[str]:
    """What the study shows, one sentence or two per arm, each with its numbers."""
    lines = [_extent(found)]
    for arm in found.arms:
        lines.append(_levels(found, arm))
        if found.base is not None and arm != found.base:
            lines.append(_against_base(found, arm))
    lines += _missing(found)
    return [line for line in lines if line]


def limits(found: Evidence) -> list[str]:
    """What cannot be concluded from this study, and why."""
    runs, arms = found.runs, found.arms
    lines = []
    unfinished = runs[~runs["done"]]
    if runs.empty:
        return ["The folder holds no run, so there is nothing to estimate."]
    if len(unfinished) == len(runs):
        lines.append(
            "No run is finished: what is shown is how far the runs came, and the shifts below "
            "compare unequal amounts of training. Nothing should be concluded from them."
        )
    elif len(unfinished):
        lines.append(
            f"Not finished: {len(unfinished)} of {len(runs)} runs "
            f"({_count(unfinished['state'])}); the estimates leave them out, and if runs of one "
            "judge end early more often than others, what is left is a selection."
        )
    lines += [
        f"{run.cell} has {len(np.unique(run.step_P))} of its {len(run.steps)} steps on record: "
        "what was lost is missing from its curve, and a shift of which nothing is left at one end "
        "is missing too."
        for run in found.used
        if len(np.unique(run.step_P)) < len(run.steps)
    ]
    seeds = runs[runs["cell"].isin(found.cells)].groupby("arm")["seed"].nunique()
    if len(seeds) and seeds.min() == 1:
        lines.append(
            f"One run only for {_names(seeds[seeds == 1].index)}: how much of its drift is chance "
            "between seeds cannot be told, so there is no interval."
        )
    if len(seeds) and 1 < seeds.max() <= FEW_SEEDS:
        n = int(seeds.max())
        lines.append(
            f"With {n} seeds per judge the exact sign-flip test cannot give p below "
            f"{2 / 2**n:.3g}; the t intervals rest on the run means being about normal, which "
            f"{n} runs cannot check."
        )
    if len(arms) == 1:
        lines.append(
            f"There is one arm ({arms[0]}), so its drift cannot be told from what training does "
            "under any judge."
        )
    lines += _score_limits(found) + _judge_limits(found)
    if found.records.problems:
        lines.append(
            f"{len(found.records.problems)} files or lines could not be read and are missing from "
            "every number; they are listed at the end."
        )
    return lines


def summary_rows(found: Evidence) -> list[dict[str, str]]:
    """One row of short texts per arm: scores at the start and the end, length, missing share."""
    rows = []
    for arm in found.arms:
        row = {"judge": arm, "runs": str(int(found.runs["arm"].eq(arm).sum()))}
        row["finished"] = str(int((found.runs["arm"].eq(arm) & found.runs["done"]).sum()))
        for metric, label in (
            ("judge_score", "judge score"),
            ("truth", "truth"),
            ("gap", "judge - truth"),
        ):
            row[label] = _path(found.score_shifts, arm, metric)
        row["length (words)"] = _path(found.feature_shifts, arm, "length")
        shift = _row(found.feature_shifts, arm, "length")
        paired = shift is not None and shift["pairs"] > 0
        row[f"words beyond {found.base}"] = (
            estimate(shift["diff"], shift["diff_low"], shift["diff_high"]) if paired else ""
        )
        rollouts = sum(run.rollouts for run in found.of(arm))
        missing = rollouts - sum(_known(run.judge) for run in found.of(arm))
        row["unscored"] = f"{100 * missing / rollouts:.1f} %" if rollouts else ""
        rows.append(row)
    return rows


def _extent(found: Evidence) -> str:
    runs, outcomes = found.runs, found.records.outcomes
    if runs.empty:
        return ""
    rollouts = sum(run.rollouts for run in found.records.runs)
    verdicts = int(outcomes["verdicts"].sum())
    unscored = int(outcomes.loc[outcomes["outcome"].ne("scored"), "verdicts"].sum())
    line = (
        f"{int(runs['done'].sum())} of {len(runs)} runs are finished "
        f"({_plural(len(found.arms), 'arm')}, {_plural(runs['seed'].nunique(), 'seed')}), "
        "with "
        f"{rollouts:,} rollouts and {verdicts:,} verdicts on record"
    )
    return line + (f", {100 * unscored / verdicts:.1f} % of them unscored." if verdicts else ".")


def _levels(found: Evidence, arm: str) -> str:
    parts = []
    runs = int(found.runs.loc[found.runs["cell"].isin(found.cells), "arm"].eq(arm).sum())
    for metric, label in (("judge_score", "the judge's score"), ("truth", "the rule truth")):
        row = _row(found.score_shifts, arm, metric)
        if row is not None and not math.isnan(row["last"]):
            moved = f"{number(row['first'])} to {number(row['last'])}"
            parts.append(f"{label} went from {moved} ({_shift(row)})")
    gap = _row(found.score_shifts, arm, "gap")
    if gap is not None and not math.isnan(gap["last"]):
        parts.append(f"judge minus truth ended at {number(gap['last'], True)}")
    if not parts:
        return f"{arm}: no score on record, so its training cannot be described."
    return f"{arm} ({_plural(runs, 'run')}): {', '.join(parts)}."


def _against_base(found: Evidence, arm: str) -> str:
    """The gap and the truth, then the behaviours that differ most, in SDs over all answers."""
    parts, pairs = [], 0
    for metric, label in (("gap", "judge minus truth"), ("truth", "the rule truth")):
        row = _row(found.score_shifts, arm, metric)
        if row is not None and row["pairs"] > 0:
            parts.append(f"{label} {_difference(row)}")
            pairs = max(pairs, int(row["pairs"]))
    table = found.feature_shifts
    ours = table[(table["arm"] == arm) & table["diff"].notna()]
    size = (ours["diff"].astype(float) / ours["metric"].map(found.spread).astype(float)).abs()
    largest = ours.loc[size[size > 1e-9].nlargest(3).index].to_dict("records")
    if largest:
        told = [
            f"{row['metric']} {_difference(row)} {row['unit']}"
            + ("" if math.isnan(row["p_holm"]) else f" (Holm p {p_value(row['p_holm'])})")
            for row in largest
        ]
        parts.append(f"the behaviours that moved furthest apart are {', '.join(told)}")
    tested = ours["p_holm"].notna()
    if tested.any():
        clear = int((ours["p_holm"] < 0.05).sum())
        parts.append(f"{clear} of {_plural(int(tested.sum()), 'behaviour')} differ at Holm p < .05")
    if len(ours):
        pairs = max(pairs, int(ours["pairs"].max()))
    if not parts:
        return ""
    return f"{arm} beyond {found.base} ({_plural(pairs, 'pair')} by seed): {'; '.join(parts)}."


def _missing(found: Evidence) -> list[str]:
    lines = []
    fixed = {"judge", "role", "scored", "verdicts", "unscored"}
    for row in found.failures[found.failures["unscored"] > 0].to_dict("records"):
        kinds = {name: count for name, count in row.items() if name not in fixed and count}
        told = ", ".join(f"{name} {count:,}" for name, count in kinds.items())
        lines.append(
            f"{row['judge']} ({row['role']}) left {100 * row['unscored']:.1f} % of "
            f"{row['verdicts']:,} verdicts unscored: {told}."
        )
    return lines


def _score_limits(found: Evidence) -> list[str]:
    lines = []
    runs = found.records.runs
    if not runs:
        return ["No rollout is on record, so there are no curves, drift or completions to show."]
    if not any(_known(run.truth) for run in runs):
        lines.append(
            "No rollout has a rule truth, so whether a rising judge score is real improvement "
            "cannot be told: the truth and gap columns stay empty."
        )
    for arm in sorted({run.arm for run in runs}):
        ranges = [
            (float(scores.min()), float(scores.max()))
            for scores in (run.judge[run.judge == run.judge] for run in found.of(arm))
            if scores.size
        ]
        if not ranges:
            lines.append(f"Every verdict of {arm} is unscored: it has no score, curve or gap.")
        elif len({end for ends in ranges for end in ends}) == 1:
            lines.append(
                f"{arm} gave every answer {number(ranges[0][0])}: a constant score gives every "
                "rollout the advantage 0 and teaches nothing."
            )
    rollouts = sum(run.rollouts for run in runs)
    unmeasured = 1 - sum(_known(run.features[..., 0]) for run in runs) / rollouts
    if unmeasured > 0:
        lines.append(
            f"{100 * unmeasured:.1f} % of the rollouts have no answer (thinking that never "
            "ended); their behaviour is missing, not zero."
        )
    return lines


def _known(values: np.ndarray) -> int:
    """How many are no NaN."""
    return int((values == values).sum())


def _judge_limits(found: Evidence) -> list[str]:
    judges = found.runs[found.runs["judge"].ne(NAMELESS)].drop_duplicates("judge")
    lines = []
    planted = judges.loc[judges["simulated"], "judge"]
    if len(planted):
        lines.append(
            f"{_names(planted)} {'is a' if len(planted) == 1 else 'are'} simulated "
            f"judge{'' if len(planted) == 1 else 's'} whose bias is set by config: the study "
            "shows how a known bias reaches a policy, and nothing about any real LLM judge."
        )
    for row in judges[~judges["simulated"]].to_dict("records"):
        size = parameters(row["judge_size"])
        if size is not None and size < SMALL_JUDGE:
            named = " ".join(filter(None, [row["judge_family"], row["judge_size"]]))
            lines.append(
                f"{row['judge']} is a very small model ({named}): it shows that the path from a "
                "real judge to a policy works, and says nothing about judging quality."
            )
    return lines


def parameters(size: str) -> float | None:
    """``135M`` -> 1.35e8, ``7B`` -> 7e9; None where the text is not a size."""
    read = re.fullmatch(r"\s*([0-9.]+)\s*([kKmMbBtT])\s*", size)
    if read is None:
        return None
    return float(read.group(1)) * {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[read.group(2).lower()]


def _row(table: pd.DataFrame, arm: str, metric: str) -> dict[str, Any] | None:
    rows = table[(table["arm"] == arm) & (table["metric"] == metric)].to_dict("records")
    return rows[0] if rows else None


def _path(table: pd.DataFrame, arm: str, metric: str) -> str:
    row = _row(table, arm, metric)
    if row is None or math.isnan(row["last"]):
        return ""
    return f"{number(row['first'])} -> {number(row['last'])}"


def _shift(row: dict[str, Any]) -> str:
    if math.isnan(row["shift"]):
        return "one step, so no shift"
    interval = bracket(row["low"], row["high"])
    moved = number(row["shift"], True)
    return f"{moved} {interval}" if interval else f"{moved}, {row['note']}"


def _difference(row: Any) -> str:
    interval = bracket(row["diff_low"], row["diff_high"]) or "(one pair, no interval)"
    return f"{number(row['diff'], True)} {interval}"


def _plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _count(values: pd.Series) -> str:
    return ", ".join(f"{count} {name}" for name, count in values.value_counts().items())


def _names(values: Any) -> str:
    names = sorted(str(value) for value in values)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
