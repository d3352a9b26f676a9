"""What `analysis.compare` prints."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from analysis.display.printed import aligned, with_problems
from analysis.forecast.units import FORECAST
from study.screen import plural, visible

LONGEST = 60
"""Characters of a value of the config."""
MOST = 6
"""Differences that are named above their table."""
FALSE = 0.05
"""Share of 95 % intervals that leave out a true 0."""
ZERO = 1e-6
SAID = {"judge_score": "judge score", "gap": "judge - truth"}


def text(result: dict[str, Any]) -> str:
    """What differs in config, shifts side by side, forecasts. ``result`` is that of
    `analysis.compare.estimate`."""
    one, other = result["studies"]
    lines = [*_config(result, one, other), "", *_shifts(result, one, other)]
    for forecast in result["forecasts"]:
        lines += ["", *_forecast(forecast)]
    return with_problems(lines, result["problems"])


def _config(result: dict[str, Any], one: str, other: str) -> list[str]:
    arms, runs = result["arms"], result["arm_runs"]
    counts = [plural(count, "run") for count in result["runs"]]
    lines = [f"{one} ({counts[0]}) and {other} ({counts[1]})"]
    both = [f"{arm} ({runs[arm][0]} and {plural(runs[arm][1], 'run')})" for arm in arms["both"]]
    lines.append(f"Arms in both: {_named(both)}")
    for place, name in enumerate((one, other)):
        if only := [f"{arm} ({plural(runs[arm][place], 'run')})" for arm in arms["only"][place]]:
            lines.append(f"Arms in {name} alone: {_named(only)}")
    rows = [
        {
            "key": row["key"],
            "arm": row["arm"] or "all",
            one: _listed(row["values"][0]),
            f"{other} ": _listed(row["values"][1]),
        }
        for row in result["config"]
    ]
    if not rows:
        return [*lines, "", "No key of the config differs."]
    return [*lines, "", "What differs in the config:", *aligned(rows)]


def _named(arms: Iterable[str]) -> str:
    return visible("; ".join(arms)).replace("\n", " ") or "none"


def _listed(values: Iterable[Any]) -> str:
    joined = visible(", ".join(map(str, values)).replace("\n", " ")) or "none"
    return joined if len(joined) <= LONGEST else f"{joined[: LONGEST - 1]}…"


def _shifts(result: dict[str, Any], one: str, other: str) -> list[str]:
    basis = "held-out answers (frozen evaluation)" if result["frozen"] else "rollouts"
    rows = [
        {
            "measure": f"{_measure(row)} ({row['unit']})",
            "arm": visible(row["arm"]),
            one: _estimate(row["shift"][0]),
            f"{other} ": _estimate(row["shift"][1]),
            "difference": _estimate(row["diff"]),
            "pairs": str(row["diff"]["n"] or ""),
        }
        for row in result["shifts"]
    ]
    if not rows:
        return ["No run has two steps on record."]
    return [
        f"How far each arm moved from the start to the end of training, by {basis}.",
        "Means over runs [95 % interval; none for one run]; - where a study has no run of the arm.",
        f"The difference is {other} less {one} over the seeds that both have, so it need not be"
        " that of the two means.",
        *_clear_differences(result["shifts"]),
        "",
        *aligned(rows),
    ]


def _measure(row: dict[str, Any]) -> str:
    return SAID.get(row["metric"], row["metric"])


def _clear_differences(shifts: Iterable[dict[str, Any]]) -> list[str]:
    """Which differences have an interval without 0, beside how many have by chance."""
    with_interval = [row for row in shifts if not math.isnan(row["diff"]["low"])]
    if not with_interval:
        return []
    differences = [
        f"{_measure(row)} of {visible(row['arm'])} {_rounded(row['diff']['value'])}"
        for row in with_interval
        if row["diff"]["low"] > ZERO or row["diff"]["high"] < -ZERO
    ]
    head = f"Differences whose interval leaves out 0: {len(differences)} of {len(with_interval)}"
    if not differences:
        return [f"{head}."]
    more = [f"{len(differences) - MOST} more"] if len(differences) > MOST else []
    chance = f"{FALSE * len(with_interval):.1g}"
    return [f"{head} (about {chance} by chance alone): {'; '.join([*differences[:MOST], *more])}."]


def _estimate(each: dict[str, Any]) -> str:
    if math.isnan(each["value"]):
        return "-"
    interval = "" if math.isnan(each["low"]) else f" [{_rounded(each['low'])}, "
    return _rounded(each["value"]) + (interval and f"{interval}{_rounded(each['high'])}]")


def _rounded(value: float) -> str:
    """Three digits; what rounding leaves of an exact zero is 0."""
    return "0" if abs(value) < ZERO else f"{value:+.3g}"


def _forecast(result: dict[str, Any]) -> list[str]:
    of, by = result["of"], result["by"]
    if "none" in result:
        return [f"No forecast of {of} by {by}: {result['none']}"]
    scores = {row["feature"]: row for row in result["scores"] if row["method"] == FORECAST}
    rows = []
    for row in result["shifts"]:
        if math.isnan(row["forecast"]["value"]):
            continue
        low, high = row["forecast"]["low"], row["forecast"]["high"]
        trained = row["trained"]["value"]
        has_interval = not any(map(math.isnan, (low, high, trained)))
        hit = ("yes" if low - ZERO <= trained <= high + ZERO else "no") if has_interval else ""
        rows.append(
            {
                "measure": row["metric"],
                "arm": visible(row["arm"]),
                "forecast of a run": _estimate(row["forecast"]),
                "trained": _estimate(row["trained"]),
                "inside": hit,
            }
        )
    scored = [row for row in scores.values() if not math.isnan(row["inside"])]
    lines = [
        f"{of} forecast by the runs of {by} [95 % of runs], beside what was trained; by rollouts,"
        " in the units above:"
    ]
    if result["in_both"]:
        lines.append(f"(both studies trained {_listed(result['in_both'])})")
    lines += aligned(rows) or ["No behaviour varies that could be forecast."]
    if scored:
        inside = sum(row["inside"] * row["runs"] for row in scored) / sum(r["runs"] for r in scored)
        lines.append(f"{inside:.0%} of the runs' shifts lie in the interval of their forecast.")
    return lines
