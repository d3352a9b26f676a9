"""What `analysis.forecast` prints and draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from analysis.display.figures import (
    blank,
    curve,
    grid,
    looks,
    marks_of,
    outside_legend,
    row_names,
    style,
)
from analysis.display.printed import aligned
from analysis.forecast.baselines import ORACLES, SIMPLER
from analysis.forecast.estimate import Push, Pushes
from analysis.forecast.order import Order
from analysis.forecast.scores import MOVES, Scored
from analysis.forecast.start import TRUTH
from analysis.forecast.study import InUnits
from analysis.forecast.units import FORECAST, Forecast
from analysis.statistics.estimate import Estimate, columns
from study.features import unit
from study.screen import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 4
"""Behaviours that are shown in full: those that the judges differ on most."""
LEGEND = (
    "forecast: a replay of the training on rollouts before it; updates seen: corrected by those of"
    " a\njudge's first run; family unseen: fitted without all judges that pay for the same; one"
    " line:\nexposure x (drift + one factor x E Cov(advantage, z)); line by behaviour: with a"
    " factor of each;\ncovariance, bias: one factor times that, or times the bias on the behaviour"
    " itself; drift: the\nsame for all judges; planted dose and another seed know what no forecast"
    " can. r2: 1 - SSE / SS\nover the means of judges; seeds: agreement of two runs of a judge;"
    " best: the r2 of who knows\neach judge's mean; share: r2 / best, where seeds agree; rho: rank"
    " correlation over judges;\ninside: runs in their 90 % interval."
)


def text(pushes: Pushes, units: InUnits) -> str:
    """Pushes of every judge with the ranks of the behaviours that judges differ on most, then
    shifts in units, and how they came out."""
    early = ", ".join(units.ended_early)
    texts = [
        *(_pushes(pushes) if pushes.pushes else []),
        *([] if units.why_none else _shifts(units, pushes)),
        *_order(units.order),
        *(_scores(units.scored) if units.scored.methods else []),
        f"\nEnded early by an alarm, so in no fit and no score: {early}" if early else "",
        f"\nNo shift in units: {units.why_none}" if units.why_none else "",
    ]
    return "\n".join(filter(None, texts))


def _where(result: Pushes) -> str:
    """On what the pushes rest."""
    prompts = plural(result.prompts, "prompt")
    return f"before training ({prompts} x {plural(result.rollouts, 'rollout')} of {result.base})"


def _pushes(result: Pushes) -> list[str]:
    table = pd.DataFrame([columns(line, push="") for line in result.pushes])
    lines = [
        f"Push in SDs of each behaviour, {_where(result)}:",
        table.pivot(index="judge", columns="feature", values="in_sds").round(3).to_string(),
    ]
    for name in moved_most((line.feature, line.in_sds) for line in result.pushes):
        heading = "push [95 % t interval over prompts], rank [95 % over prompts drawn again]"
        lines.append(f"\n{name}: {heading}")
        pushes = {line.judge: line.push for line in result.pushes if line.feature == name}
        ranks = [line for line in result.ranks if line.feature == name]
        for line in sorted(ranks, key=lambda line: line.rank.value):
            push, rank = pushes[line.judge], line.rank
            place = f"  {rank.value}. [{rank.low}, {rank.high}] {line.judge}:"
            lines.append(f"{place} {push.value:+.3g} [{push.low:+.3g}, {push.high:+.3g}]")
    return lines


def _shifts(units: InUnits, pushes: Pushes) -> list[str]:
    """Shifts of every judge, in the unit of each behaviour that is forecast."""
    shown = [line for line in units.shifts if not math.isnan(line.predicted.value)]
    rows = [
        (line.arm, line.feature, f"{each.value:+.2g} [{each.low:+.2g}, {each.high:+.2g}]")
        for line in shown
        for each in [line.predicted]
    ]
    table = pd.DataFrame(rows, columns=["judge", "feature", "estimate"])
    wide = table.pivot(index="judge", columns="feature", values="estimate")
    names = list(dict.fromkeys(line.feature for line in shown))
    updates = plural(units.updates, "update")
    head = (
        f"\nShift at the end of training [90 % of runs], forecast {_where(pushes)}"
        f"{f', after {updates} of each first run,' if units.updates else ''} by the runs of"
        f" {units.fit}, in each behaviour's own unit:"
    )
    blocks = [wide[names[at : at + 4]] for at in range(0, len(names), 4)]
    known = {line.arm for line in shown}
    unknown = {line.arm: line.predicted.note for line in units.shifts if line.arm not in known}
    sentences = [f"No shift of {judge}: {why}." for judge, why in unknown.items()]
    return [head, *(block.to_string() for block in blocks), *sentences]


def _order(order: Order) -> list[str]:
    """Which judge to train under, and how such orders came out."""
    known = [line for line in order.standings if not math.isnan(line.truth.value)]
    if len(known) < 2:
        return []
    chances = {(line.judge, line.other): f"{line.chance:.2f}" for line in order.better}
    followers = [line.judge for line in known[1:]]
    rows = []
    for line, follower in zip(known, [*followers, ""], strict=True):
        truth = line.truth
        rows.append(
            {
                "judge": line.judge,
                "truth after": f"{truth.value:.2f} [{truth.low:.2f}, {truth.high:.2f}]",
                "lost of 100": f"{100 * line.harm:.1f}",
                "verdicts": f"{line.verdicts:,}",
                "P(better than the next)": chances.get((line.judge, follower), ""),
            }
        )
    scores = [
        {
            "order by": line.method,
            "pairs of runs": f"{line.pairs:,}",
            "Kendall's tau": _ends(line.tau) or "0",
            "Brier": f"{line.brier:.3f}",
        }
        for line in order.scores
    ]
    return [
        "\nTruth after training [90 % of runs], right answers of 100 that are expected to be lost,"
        "\nand the verdicts that a training asks for:",
        *aligned(rows),
        *(["\nThe order of runs of two judges in one training:"] if scores else []),
        *aligned(scores),
    ]


def _scores(scored: Scored) -> list[str]:
    """How the forecast came out beside the simpler ones."""
    table = pd.DataFrame([line.row() for line in scored.methods])
    ours = table[table["method"] == FORECAST].set_index("feature")
    tops = pd.DataFrame([columns(top) for top in scored.ceilings]).set_index("feature")
    reached = tops[["seeds", "seeds_low", "seeds_high", "best"]]
    shown = ours[["runs", "judges", "moves", "r2"]].join(reached)
    shown = shown.join(ours[["share", "slope", "low", "high", "rho", "inside"]])
    by_method = {
        column: table.pivot(index="feature", columns="method", values=column).loc[ours.index]
        for column in ("r2", "rho")
    }
    rows = [
        {
            "method": f"{line.method} (oracle)" if line.method in ORACLES else line.method,
            "r2": f"{line.r2:.2f}",
            "rho": "" if math.isnan(line.rho) else f"{line.rho:.2f}",
            "behind in r2": _ends(line.behind),
            "behind in rho": _ends(line.rho_behind),
        }
        for line in scored.pooled
        if line.behaviours
    ]
    moved = "that moved" if tops["moves"].any() else "of all, as none moved"
    r2s = pd.Series({line.method: line.r2 for line in scored.pooled})
    return [
        "\nForecast against the judges that were trained, by behaviour:",
        shown.round(2).to_string(),
        *(
            f"\n{name} of every method:\n{each.round(2).to_string()}"
            for name, each in by_method.items()
        ),
        f"\nMeans over the {plural(scored.pooled[0].behaviours, 'behaviour')} {moved} {MOVES} SD"
        " under some judge, and how far each method is behind the forecast [95 % over judges]:",
        *aligned(rows),
        *_no_better(r2s),
        LEGEND,
    ]


def _ends(each: Estimate) -> str:
    return (
        "" if math.isnan(each.value) else f"{each.value:+.2f} [{each.low:+.2f}, {each.high:+.2f}]"
    )


def _no_better(r2_by_method: pd.Series) -> list[str]:
    """A sentence where one of the simpler methods explains as much."""
    simpler = r2_by_method.reindex(SIMPLER).dropna()
    ours = r2_by_method[FORECAST]
    if simpler.empty or math.isnan(ours) or ours > simpler.max():
        return []
    return [
        f"\nThe forecast is no better than {simpler.idxmax()}, whose mean r2 is"
        f" {simpler.max():.2f} where the forecast's is {ours:.2f}."
    ]


def moved_most(sds: Iterable[tuple[str, float]]) -> list[str]:
    """The behaviours on which judges differ most, the widest first, of (behaviour, SDs) pairs."""
    by_feature: dict[str, list[float]] = {}
    for feature, value in sds:
        by_feature.setdefault(feature, []).append(value)
    spread = {name: float(np.ptp(v)) for name, v in by_feature.items() if np.isfinite(v).all()}
    return sorted(spread, key=lambda name: -spread[name])[:SHOWN]


@style()
def figure(pushes: Sequence[Push], shifts: Sequence[Forecast] = ()) -> Any:
    """Forecast shifts beside what came; the forecast pushes where there are none in units."""
    known = [line for line in shifts if math.isfinite(line.predicted.value)]
    return _shifts_figure(known) if known else _pushes_figure(pushes)


def _pushes_figure(lines: Sequence[Push]) -> Any:
    """The forecast push on the four behaviours that judges differ on most, with intervals."""
    names = moved_most((line.feature, line.in_sds) for line in lines)
    judges = sorted({line.judge for line in lines})
    size = (3.2 * len(names), 0.9 + 0.32 * len(judges))
    drawn = blank(*size)
    panels = drawn.subplots(1, len(names), sharey=True, squeeze=False)
    look = looks(judges)
    for panel, name in zip(panels[0], names, strict=True):
        panel.axvline(0, color="0.6", linewidth=1)
        of_feature = {line.judge: line.push for line in lines if line.feature == name}
        for place, judge in enumerate(judges):
            push = of_feature[judge]
            _mark(panel, place, push, {"color": look[judge]["color"], "marker": "o"})
        panel.set(title=name, xlabel="Cov(advantage, behaviour)")
        panel.set_yticks(range(len(judges)), judges)
    panels[0][0].set_ylim(len(judges) - 0.4, -0.6)
    return drawn


def _shifts_figure(lines: Sequence[Forecast]) -> Any:
    """Forecast shifts of the truth and of the behaviours in which they differ most, each with the
    interval of one run, and below it, hollow, the mean of the runs of a judge that was trained."""
    by_feature: dict[str, list[Forecast]] = {}
    for line in lines:
        by_feature.setdefault(line.feature, []).append(line)
    moved = [TRUTH, *moved_most((line.feature, line.sds) for line in lines)]
    names = [name for name in dict.fromkeys(moved) if name in by_feature][:SHOWN]
    judges = sorted({line.arm for line in lines})
    labels, high = row_names(judges)
    drawn, panels = grid(len(names), height=1.1 + 0.36 * high * len(judges))
    look = looks(judges)
    for panel, name in zip(panels, names, strict=True):
        panel.axvline(0, color="0.3", linewidth=1)
        for line in sorted(by_feature[name], key=lambda line: line.arm):
            place, marks = judges.index(line.arm), marks_of(look[line.arm]) | {"marker": "o"}
            hollow = marks | {"markerfacecolor": "white"}
            _mark(panel, place - 0.15, line.predicted, marks | {"label": "forecast"})
            _mark(panel, place + 0.15, line.observed, hollow | {"label": "observed"})
        panel.set(title=name, xlabel=f"shift ({'score' if name == TRUTH else unit(name)})")
        panel.set_yticks(range(len(judges)), labels)
        panel.set_ylim(len(judges) - 0.5, -0.5)
    outside_legend(drawn, panels, colour="0.3")
    return drawn


def _mark(panel: Axes, place: float, each: Estimate, marks: dict[str, Any]) -> None:
    ends = [each.value], [each.low], [each.high]
    curve(panel, [place], *ends, across=True, linestyle="", **marks)
