"""What `analysis.forecast` prints."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.forecast.ranking import moved_most
from analysis.forecast.units import FORECAST, MOVES

LEGEND = (
    "forecast: from the judge's bias on the first rollouts; covariance, bias: one factor times"
    "\nE Cov(advantage, z), or times the bias on the behaviour itself; drift: the same for all"
    " judges;\nrepetition: the arm's other runs, so no forecast. rho: rank correlation over arms;"
    " r2, slope,\ninside (the 95 % interval) and crps (SDs): over runs."
)


def text(result: dict[str, Any]) -> str:
    """Pushes of every judge with the ranks of the behaviours that judges differ on most, then
    shifts in units, and how they came out. ``result`` is that of `analysis.forecast`."""
    lines = _pushes(result) if result["pushes"] else []
    if "shifts" in result:
        lines += _shifts(result)
    if result.get("scores"):
        lines += _scores(pd.DataFrame(result["scores"]))
    if result.get("ended_early"):
        cells = ", ".join(result["ended_early"])
        lines.append(f"\nEnded early by an alarm, so in no fit and no score: {cells}")
    if result.get("no_units"):
        lines.append(f"\nNo shift in units: {result['no_units']}")
    return "\n".join(lines)


def _pushes(result: dict[str, Any]) -> list[str]:
    table = pd.DataFrame(result["pushes"])
    lines = [
        f"Push at the first step, in SDs of each behaviour ({result['prompts']} prompts):",
        table.pivot(index="judge", columns="feature", values="in_sds").round(3).to_string(),
    ]
    for name in moved_most(result["pushes"]):
        heading = "push [95 % t interval over prompts], rank [95 % over prompts drawn again]"
        lines.append(f"\n{name}: {heading}")
        pushes = table[table.feature == name].set_index("judge")
        for line in sorted(result["ranks"], key=lambda line: line["rank"]):
            if line["feature"] == name:
                row = pushes.loc[line["judge"]]
                place = f"  {line['rank']}. [{line['low']}, {line['high']}] {line['judge']}:"
                lines.append(f"{place} {row.push:+.3g} [{row.low:+.3g}, {row.high:+.3g}]")
    return lines


def _shifts(result: dict[str, Any]) -> list[str]:
    """Shifts of every judge, in the unit of each behaviour that is forecast."""
    every = pd.DataFrame(result["shifts"])
    table = every.dropna(subset=["shift"])
    unknown = [judge for judge in every["judge"].unique() if judge not in set(table["judge"])]
    estimates = [
        f"{row['shift']:+.2g} [{row['low']:+.2g}, {row['high']:+.2g}]"
        for row in table.to_dict("records")
    ]
    wide = table.assign(estimate=estimates).pivot(
        index="judge", columns="feature", values="estimate"
    )
    names = list(dict.fromkeys(table["feature"]))
    head = (
        f"\nShift at the end of training [95 % of runs], from {result['steps']} step(s), by the"
        f" runs of {result['fit']}, in each behaviour's own unit:"
    )
    blocks = [wide[names[at : at + 4]] for at in range(0, len(names), 4)]
    why = "too few scores that differ to tell its bias"
    sentences = [f"No shift of {judge}: {why}." for judge in unknown]
    return [head, *(block.to_string() for block in blocks), *sentences]


def _scores(table: pd.DataFrame) -> list[str]:
    """How the forecast came out beside the simpler ones."""
    ours = table[table["method"] == FORECAST].set_index("feature")
    shown = ours[["runs", "arms", "moves", "rho", "r2", "slope", "low", "high", "inside", "crps"]]
    others = {
        column: table.pivot(index="feature", columns="method", values=column).loc[ours.index]
        for column in ("rho", "r2", "crps")
    }
    means = table.groupby("method", sort=False)[["rho", "r2", "inside", "crps"]].mean()
    moved = table[table["moves"]].groupby("method", sort=False)[["rho", "r2", "inside"]].mean()
    moved.columns = [f"{name}, moved" for name in moved.columns]
    return [
        "\nForecast against the runs that were trained, by behaviour:",
        shown.round(2).to_string(),
        *(
            f"\n{name} of every method:\n{part.round(2).to_string()}"
            for name, part in others.items()
        ),
        f"\nMeans over behaviours, and over those that moved {MOVES} SD under some judge:",
        means.join(moved).round(3).to_string(),
        LEGEND,
    ]
