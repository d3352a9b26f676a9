"""What `analysis.compare` prints."""

from __future__ import annotations

import math
from collections.abc import Iterable

from analysis.compare.estimate import Comparison, CrossForecast, ShiftPair
from analysis.display.printed import aligned, with_problems
from analysis.statistics.estimate import Estimate
from analysis.statistics.prediction import Prediction
from study.screen import plural, visible

LONGEST = 60
"""Characters of a value of the config."""
MOST = 6
"""Differences that are named above their table."""
FALSE = 0.05
"""Share of 95 % intervals that leave out a true 0."""
ZERO = 1e-6
SAID = {"judge_score": "judge score", "gap": "judge - truth"}


def text(result: Comparison) -> str:
    """What differs in config, shifts side by side, forecasts."""
    forecasts = [line for each in result.forecasts for line in ("", *_forecast(each))]
    return with_problems([*_config(result), "", *_shifts(result), *forecasts], result.problems)


def _config(result: Comparison) -> list[str]:
    one, other = result.sides
    counts = [plural(len(side.runs), "run") for side in result.sides]
    lines = [f"{one.name} ({counts[0]}) and {other.name} ({counts[1]})"]
    both = [
        f"{arm} ({one.runs_of(arm)} and {plural(other.runs_of(arm), 'run')})" for arm in result.both
    ]
    lines.append(f"Arms in both: {_named(both)}")
    for side, arms in zip(result.sides, result.alone, strict=True):
        if only := [f"{arm} ({plural(side.runs_of(arm), 'run')})" for arm in arms]:
            lines.append(f"Arms in {side.name} alone: {_named(only)}")
    lines += [f"{side.name}: {side.look.sentence()}" for side in result.sides if side.look.looks]
    rows = [
        {
            "key": key,
            "arm": arm or "all",
            one.name: _listed(values[0]),
            f"{other.name} ": _listed(values[1]),
        }
        for (key, arm), values in result.config.items()
    ]
    if not rows:
        return [*lines, "", "No key of the config differs."]
    return [*lines, "", "Differences in the config:", *aligned(rows)]


def _named(arms: Iterable[str]) -> str:
    return visible("; ".join(arms)).replace("\n", " ") or "none"


def _listed(values: Iterable[object]) -> str:
    joined = visible(", ".join(map(str, values)).replace("\n", " ")) or "none"
    return joined if len(joined) <= LONGEST else f"{joined[: LONGEST - 1]}…"


def _shifts(result: Comparison) -> list[str]:
    one, other = (side.name for side in result.sides)
    basis = "held-out answers (frozen evaluation)" if result.frozen else "rollouts"
    rows = [
        {
            "measure": f"{_measure(row)} ({row.unit})",
            "arm": visible(row.arm),
            one: _estimate(row.shift[0]),
            f"{other} ": _estimate(row.shift[1]),
            "difference": _estimate(row.diff),
            "pairs": str(row.diff.n or ""),
        }
        for row in result.shifts
    ]
    if not rows:
        return ["No run has two steps on record."]
    return [
        f"How far each arm moved from the start to the end of training, by {basis}.",
        "Means over runs [95 % interval; none for one run]; - where a study has no run of the arm.",
        f"The difference is {other} less {one} over the seeds that both have, so it need not be"
        " that of the two means.",
        *_clear_differences(result.shifts),
        "",
        *aligned(rows),
    ]


def _measure(row: ShiftPair) -> str:
    return SAID.get(row.metric, row.metric)


def _clear_differences(shifts: Iterable[ShiftPair]) -> list[str]:
    """Which differences have an interval without 0, beside how many have by chance."""
    with_interval = [row for row in shifts if not math.isnan(row.diff.low)]
    if not with_interval:
        return []
    differences = [
        f"{_measure(row)} of {visible(row.arm)} {_rounded(row.diff.value)}"
        for row in with_interval
        if row.diff.low > ZERO or row.diff.high < -ZERO
    ]
    head = f"Differences whose interval leaves out 0: {len(differences)} of {len(with_interval)}"
    if not differences:
        return [f"{head}."]
    more = [f"{len(differences) - MOST} more"] if len(differences) > MOST else []
    chance = f"{FALSE * len(with_interval):.1g}"
    return [f"{head} (about {chance} by chance alone): {'; '.join([*differences[:MOST], *more])}."]


def _estimate(each: Estimate) -> str:
    if math.isnan(each.value):
        return "-"
    interval = "" if math.isnan(each.low) else f" [{_rounded(each.low)}, {_rounded(each.high)}]"
    return _rounded(each.value) + interval


def _rounded(value: float) -> str:
    """Three digits; what rounding leaves of an exact zero is 0."""
    return "0" if abs(value) < ZERO else f"{value:+.3g}"


def _forecast(result: CrossForecast) -> list[str]:
    if result.why_none:
        return [f"No forecast of {result.of} by {result.by}: {result.why_none}"]
    known = [row for row in result.scores if not math.isnan(row.inside)]
    rows = [
        {
            "measure": row.feature,
            "arm": visible(row.arm),
            "forecast of a run": _estimate(row.predicted),
            "trained": _estimate(row.observed),
            "inside": _hit(row),
        }
        for row in result.shifts
        if not math.isnan(row.predicted.value)
    ]
    lines = [
        f"{result.of} forecast by the runs of {result.by} [90 % of runs], next to the trained"
        " shifts; by rollouts, in the units above:"
    ]
    if result.in_both:
        lines.append(f"(both studies trained {_listed(result.in_both)})")
    lines += aligned(rows) or ["No behaviour varies that could be forecast."]
    if known:
        inside = sum(each.inside * each.runs for each in known) / sum(each.runs for each in known)
        lines.append(f"{inside:.0%} of the runs' shifts lie in the interval of their forecast.")
    return lines


def _hit(row: Prediction) -> str:
    """Whether the interval of a forecast holds the mean of the runs that were trained."""
    low, high, trained = row.predicted.low, row.predicted.high, row.observed.value
    if any(map(math.isnan, (low, high, trained))):
        return ""
    return "yes" if low - ZERO <= trained <= high + ZERO else "no"
