"""What `analysis.compare` prints."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from analysis.arm.forecast_units import FORECAST
from analysis.printed import aligned, with_problems
from study.screen import visible

LONGEST = 60
"""Characters of a value of the config."""
ZERO = 1e-6
SAID = {"judge_score": "judge score", "gap": "judge - truth"}


def text(result: dict[str, Any]) -> str:
    """What differs in config, shifts side by side, forecasts. ``result`` is that of
    `analysis.arm.compare`."""
    one, other = result["studies"]
    lines = [*_config(result, one, other), "", *_shifts(result, one, other)]
    for forecast in result["forecasts"]:
        lines += ["", *_forecast(forecast)]
    return with_problems(lines, result["problems"])


def _config(result: dict[str, Any], one: str, other: str) -> list[str]:
    arms = result["arms"]
    lines = [f"{one} ({result['runs'][0]} runs) and {other} ({result['runs'][1]} runs)"]
    lines.append(f"Arms in both: {_listed(arms['both'])}")
    for name, only in zip((one, other), arms["only"], strict=True):
        if only:
            lines.append(f"Arms in {name} alone: {_listed(only)}")
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


def _listed(values: Iterable[Any]) -> str:
    told = visible(", ".join(map(str, values)).replace("\n", " ")) or "none"
    return told if len(told) <= LONGEST else f"{told[: LONGEST - 1]}…"


def _shifts(result: dict[str, Any], one: str, other: str) -> list[str]:
    basis = "held-out answers (frozen evaluation)" if result["frozen"] else "rollouts"
    rows = [
        {
            "measure": f"{SAID.get(row['metric'], row['metric'])} ({row['unit']})",
            "arm": visible(row["arm"]),
            one: _estimate(row["shift"][0]),
            f"{other} ": _estimate(row["shift"][1]),
            "difference": _estimate(row["diff"]),
            "pairs": str(row["diff"]["n"] or ""),
        }
        for row in result["shifts"]
    ]
    head = (
        f"Shift from the start to the end of training, by {basis} [95 % over runs];"
        f" difference: {other} less {one}, paired by seed:"
    )
    return [head, *(aligned(rows) or ["No run has two steps on record."])]


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
        seen = row["trained"]["value"]
        known = not any(map(math.isnan, (low, high, seen)))
        hit = ("yes" if low <= seen <= high else "no") if known else ""
        rows.append(
            {
                "measure": row["metric"],
                "arm": visible(row["arm"]),
                "forecast of a run": _estimate(row["forecast"]),
                "trained": _estimate(row["trained"]),
                "inside": hit,
            }
        )
    known = [row for row in scores.values() if not math.isnan(row["inside"])]
    lines = [f"{of} forecast by the runs of {by} [95 % of runs], beside what was trained:"]
    if result["in_both"]:
        lines.append(f"(both studies trained {_listed(result['in_both'])})")
    lines += aligned(rows) or ["No behaviour varies that could be forecast."]
    if known:
        inside = sum(row["inside"] * row["runs"] for row in known) / sum(r["runs"] for r in known)
        lines.append(f"{inside:.0%} of the runs' shifts lie in the interval of their forecast.")
    return lines
