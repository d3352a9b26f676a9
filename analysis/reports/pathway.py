"""How the bias got in, as numbers and sentences: ledger, propagation, onset, limits of following.

`trace` computes all that the report's later sections show (`analysis.reports.pathway_sections`
draws it), and the sentences with which they begin the report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.arm.calibration import FEWEST, calibrate
from analysis.arm.crossjudge import agreement, inflation, matrix
from analysis.arm.propagation import paths, predict
from analysis.arm.substitution import substitutions, untold
from analysis.records.replays import with_replays
from analysis.records.runs import on_each_core
from analysis.reports.markup import bracket, estimate, number
from analysis.run.onset import own_line
from analysis.run.overopt import place, rows
from analysis.statistics.estimate import Estimate
from analysis.step.ledger import judge_table, ledger

if TYPE_CHECKING:
    import pandas as pd

    from analysis.arm.calibration import Calibration, Predicted
    from analysis.arm.crossjudge import Inflation
    from analysis.arm.substitution import Substitution
    from analysis.records.runs import Records, Run
    from analysis.run.onset import Line

EXPLAINED = 0.5
"""R2 over runs from which a prediction is said to explain a behaviour."""
MOVED = 0.1
"""SDs between rollouts that some run moved by, for a behaviour to be worth a prediction."""


@dataclass(frozen=True)
class Trace:
    """What lies between a judge's bias and the policy's behaviour, for the runs of one study."""

    runs: list[Run]
    steps: pd.DataFrame
    """`analysis.step.ledger.ledger`: one row per run and step."""
    table: pd.DataFrame
    """`analysis.step.ledger.judge_table`: arm, metric, mean, low, high, n."""
    predicted: list[Predicted]
    calibration: list[Calibration]
    unpredicted: str
    """Why nothing was predicted; empty where something was."""
    onsets: list[Line]
    fits: list[dict[str, Any]]
    """`analysis.run.overopt.rows` of the runs with a truth."""
    matrix: pd.DataFrame
    inflation: list[Inflation]
    agreement: pd.DataFrame
    substitutions: list[Substitution]
    untold: str
    """Why substitution cannot be told; empty where it can."""
    problems: list[str]


def trace(records: Records, cells: Sequence[str]) -> Trace:
    """All of it for the runs ``cells`` of a study."""
    table = records.table
    acting = dict(zip(table["cell"].astype("str"), table["judge"].astype("str"), strict=True))
    kept = [run for run in records.runs if run.cell in set(cells)]
    kept.sort(key=lambda run: (run.arm, run.seed))
    steps = ledger(kept)
    predicted, calibration, unpredicted = _predictions(kept)
    runs, unread = with_replays(kept, records.folder)
    scores = matrix(runs, acting)
    return Trace(
        runs=runs,
        steps=steps,
        table=judge_table(kept, steps),
        predicted=predicted,
        calibration=calibration,
        unpredicted=unpredicted,
        onsets=on_each_core(own_line, kept, sum(run.features.nbytes for run in kept)),
        fits=[row for run in kept if (run.truth == run.truth).any() for row in rows(run)],
        matrix=scores,
        inflation=inflation(scores) if len(scores) else [],
        agreement=agreement(runs, acting),
        substitutions=substitutions(runs),
        untold=untold(runs),
        problems=[*steps.attrs["problems"], *unread],
    )


def _predictions(runs: Sequence[Run]) -> tuple[list[Predicted], list[Calibration], str]:
    long = [run for run in runs if len(set(run.step_P.tolist())) > 1]
    if len(long) <= FEWEST:
        return (
            [],
            [],
            f"{len(long)} runs of two steps or more: the step size of a run is fitted on the "
            f"others, which takes {FEWEST + 1} runs.",
        )
    predicted = predict(paths(long), "adam")
    calibration = calibrate(predicted)
    if not any(line.r2 == line.r2 for line in calibration):
        return predicted, calibration, "No behaviour moved in a way that could be compared."
    return predicted, calibration, ""


def findings(found: Trace) -> list[str]:
    """What the path from judge to behaviour shows, one sentence or two for each part of it."""
    lines = [_of_advantages(found), *_explained(found), _begun(found), _peaks(found)]
    lines += [
        f"{one.arm} gained {number(one.own)} with its own judge and {number(one.others)} with "
        f"others ({_interval(one.inflation)} over {one.runs} runs): {one.reading}."
        for one in found.inflation
        if one.inflation.value == one.inflation.value and one.reading
    ]
    return [line for line in [*lines, *substituted(found)] if line]


def substituted(found: Trace) -> list[str]:
    """Behaviours given up for others, a sentence for each pair."""
    return [
        f"Under {one.arm}, beyond {one.base}, {one.risen} rose by at least {one.up:.2f} SD in each "
        f"of {one.runs} pairs of runs while {one.fallen} fell by at least {-one.down:.2f} SD "
        f"(chance of any such pair without an effect: {number(one.chance)})."
        for one in found.substitutions
    ]


def limits(found: Trace) -> list[str]:
    """What these parts cannot say of this study, and why."""
    lines = []
    if found.runs and found.unpredicted:
        lines.append(f"Shifts cannot be predicted from the advantages: {found.unpredicted}")
    if found.fits and not any(row["best"] for row in found.fits):
        why = sorted({row["note"] for row in found.fits})
        lines.append(f"Over-optimisation cannot be fitted: {'; '.join(why)}.")
    if found.runs and not any(run.shadows for run in found.runs):
        lines.append(
            "Only the judge that trained a run scored it, so whether others would like what it "
            "taught cannot be told: type shadow=[NAME,NAME] with the sweep, or score the recorded "
            "rollouts again (python -m judges.replay study=... judge=NAME)."
        )
    return [*lines, *([found.untold] if found.untold and found.runs else [])]


def _of_advantages(found: Trace) -> str:
    table = found.table
    shares = table[(table["metric"] == "bias_share") & table["mean"].notna()]
    told = [
        f"{row['arm']} {number(100 * row['mean'])} % {bracket(100 * row['low'], 100 * row['high'])}"
        for row in shares.sort_values("mean", ascending=False).to_dict("records")
    ]
    if not told:
        return ""
    return (
        "Share of the advantages that came from judge minus truth and not from the truth (squares, "
        f"mean over steps): {', '.join(one.strip() for one in told)}."
    )


def _explained(found: Trace) -> list[str]:
    """Which behaviours the advantages explain over runs, and which that moved they do not."""
    known = [line for line in found.calibration if line.r2 == line.r2]
    moved = {line.feature for line in known if _largest(found, line.feature) >= MOVED}
    good = [one for one in known if one.r2 >= EXPLAINED and one.feature in moved]
    bad = [one for one in known if one.r2 < EXPLAINED and one.feature in moved]
    lines = []
    if good:
        told = [
            f"{one.feature} R2 {one.r2:.2f} over {one.runs} runs ({number(one.r2_unseen)} with the "
            f"step size from other arms; repeating the arm's other runs {number(one.r2_repeated)})"
            for one in sorted(good, key=lambda one: -one.r2)
        ]
        lines.append(f"What was rewarded explains what was learned for {'; '.join(told)}.")
    if bad:
        told = [f"{one.feature} (R2 {one.r2:.2f})" for one in bad]
        lines.append(f"Moved, but not as the advantages predict: {', '.join(told)}.")
    return lines


def _largest(found: Trace, feature: str) -> float:
    """Largest shift of any run in a feature, in SDs between all rollouts."""
    at = found.runs[0].names.index(feature)
    values = np.concatenate([run.features[..., at].ravel() for run in found.runs])
    spread = float(np.nanstd(values)) if np.isfinite(values).any() else 0.0
    shifts = [abs(row.observed) for row in found.predicted if row.feature == feature]
    largest = max((one for one in shifts if one == one), default=0.0)
    return largest / spread if spread > 0 else 0.0


def _begun(found: Trace) -> str:
    """When the gap began to rise, by arm."""
    told = []
    for arm in dict.fromkeys(line.arm for line in found.onsets):
        lines = [line for line in found.onsets if line.arm == arm]
        begun = sorted(
            line.onset.step.value for line in lines if math.isfinite(line.onset.step.value)
        )
        if begun:
            first, last = f"{begun[0]:.0f}", f"{begun[-1]:.0f}"
            when = f"step {first}" if first == last else f"steps {first} to {last}"
            told.append(f"under {arm} at {when} ({len(begun)} of {len(lines)} runs)")
    if not told:
        return ""
    return f"Judge minus truth begins to rise {', '.join(told)}, and is not seen to elsewhere."


def _peaks(found: Trace) -> str:
    fitted = [row for row in found.fits if row["best"] is not None and row["score"] == "truth"]
    told = [
        f"{row['arm']} seed {row['seed']} {place(row['best']['peak'])} "
        f"[{place(row['low'])}, {place(row['high'])}]"
        for row in fitted
    ]
    return f"The truth peaks at sqrt KL: {', '.join(told)}." if told else ""


def _interval(of: Estimate) -> str:
    return estimate(of.value, of.low, of.high)
