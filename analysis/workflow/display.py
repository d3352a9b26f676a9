"""Tables and figures of runs of programs, for the report and for `analysis.workflow`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.display import figures, markup
from analysis.display.figures import DRAWN, blank, broken, plain, style
from analysis.display.markup import (
    TEXTS,
    folded,
    paragraph,
    picture,
    sentences,
    sheet,
    title,
    with_interval,
)
from analysis.display.printed import as_text, short
from analysis.drift.estimate import learning_curves
from analysis.statistics.estimate import Estimate
from analysis.workflow import display as tables
from analysis.workflow.arm import Workflow
from analysis.workflow.log import LoggedRun, describe_run
from analysis.workflow.run import EXPLOITS, RATES, Ends
from study.screen import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Say = Callable[[Estimate], str]
"""Writes a number with its interval."""
CALLS = "calls/"


def rates_table(workflow: Workflow) -> pd.DataFrame:
    """Shares of all generations, first and last tenth of the steps, a row for each arm."""
    return pd.DataFrame(
        {"arm": name, "runs": arm.runs} | {rate: _both(arm.rates[rate]) for rate in RATES}
        for name, arm in workflow.arms.items()
    )


def gap_table(workflow: Workflow, say: Say = with_interval) -> pd.DataFrame:
    """Judge minus truth of executed programs: a column for each domain, then its change."""
    return pd.DataFrame(
        {"arm": name}
        | {domain: say(each) for domain, each in arm.gap.items()}
        | {"last - first tenth": say(arm.gap_change), "hacking": arm.hacking}
        for name, arm in workflow.arms.items()
    ).fillna("")


def operators_table(workflow: Workflow, say: Say = with_interval) -> pd.DataFrame:
    """Calls and over-reward of each operator, a row for each arm and operator that was called."""
    return pd.DataFrame(
        {"arm": name, "operator": operator, "calls": _both((each.first, each.last))}
        | {"over-reward": say(each.over_reward)}
        | {"planted": say(Estimate(each.planted.value)) if each.planted else markup.MISSING}
        | {"note": each.over_reward.note}
        for name, arm in workflow.arms.items()
        for operator, each in arm.operators.items()
        if each.first or each.last or each.over_reward.value == each.over_reward.value
    )


def exploits_table(workflow: Workflow) -> pd.DataFrame:
    """Ways to a judge, first and last tenth of the steps, a row for each arm."""
    return pd.DataFrame(
        {"arm": name}
        | {exploit.replace("_", " "): _both(arm.exploits[exploit]) for exploit in EXPLOITS}
        for name, arm in workflow.arms.items()
    )


def shares_table(workflow: Workflow, say: Say = with_interval) -> pd.DataFrame:
    """Effective shares of the terms of the reward, a row for each arm."""
    return pd.DataFrame(
        {"arm": name} | {term: say(Estimate(share)) for term, share in arm.shares.items()}
        for name, arm in workflow.arms.items()
    ).fillna("")


def optimum_table(workflow: Workflow, say: Say = with_interval) -> pd.DataFrame:
    """Where each judge leads, and how far the policy went; no rows without planted truth."""
    return pd.DataFrame(
        {"arm": name, "best truth": say(Estimate(arm.optimum.best))}
        | {"truth of the judge's best": say(Estimate(arm.optimum.truth))}
        | {"reached": say(arm.optimum.reached)}
        | {"truth of the policy": _both((arm.optimum.first_truth, arm.optimum.last_truth))}
        for name, arm in workflow.arms.items()
        if arm.optimum.truth == arm.optimum.truth
    )


def treatments_table(workflow: Workflow, say: Say = with_interval) -> pd.DataFrame:
    """What single settings did to the truth, a row for each pair of arms."""
    return pd.DataFrame(
        {"treatment": row.name, "effect": say(row.effect), "seeds": row.effect.n}
        | {"visible": markup.number(row.visible)}
        | {"of": row.measure, "beside": row.base}
        for row in workflow.treatments
    )


def _both(values: Ends) -> str:
    """``.5 -> .75``: the first and the last tenth."""
    first, last = (markup.number(value) for value in values)
    return f"{first} \u2192 {last}"


@style()
def over_steps(workflow: Workflow) -> Figure:
    """Above, the rates over the steps, a panel for each; below, the calls of each operator per
    executed program. Bars are 95 % t intervals over runs."""

    curves = learning_curves(workflow.curves, DRAWN)
    rates = curves[curves["metric"].isin([*RATES, "right"])]
    rates = rates.assign(low=rates["low"].clip(0, 1), high=rates["high"].clip(0, 1))
    called = curves[curves["metric"].str.startswith(CALLS)]
    called = called.assign(low=called["low"].clip(lower=0))
    sizes = called.groupby("metric")["mean"].max()
    shown = [str(name) for name in sizes.index if sizes[name] > 0]
    parts = [([*RATES, "right"], rates, "share of generations"), (shown, called, "calls")]
    parts = [part for part in parts if part[0]]
    heights = [figures.rows_of(len(names)) for names, _, _ in parts]
    drawn = blank(figures.WIDTH, 2.5 * sum(heights) + 1.0)
    tops: Any = drawn.subfigures(len(parts), 1, height_ratios=heights, squeeze=False).ravel()
    for top, (names, part, label) in zip(tops, parts, strict=True):
        panels = figures.panels_of(top, len(names))
        for name, axes in zip(names, panels, strict=True):
            figures.lines(axes, part, part[part["metric"] == name], lambda arm, _: plain(arm))
            title = plain(name.removeprefix(CALLS))
            ends = (-0.02, 1.02) if part is rates else (0, None)
            axes.set(title=title, xlabel="training step", ylabel=label, ylim=ends)
        if top is tops[0]:
            figures.outside_legend(top, panels)
    return drawn


@style()
def over_rewards(workflow: Workflow) -> Figure | None:
    """Judge minus truth per call of each operator with its interval, a panel for each arm, and the
    planted value beside it; None where no operator has one."""
    table = pd.DataFrame(
        {"arm": name, "operator": operator, "value": each.over_reward.value}
        | {"low": each.over_reward.low, "high": each.over_reward.high}
        | {"planted": each.planted.value if each.planted else float("nan")}
        for name, arm in workflow.arms.items()
        for operator, each in arm.operators.items()
    )
    table = table[table["value"].notna()] if len(table) else table
    if table.empty:
        return None

    arms = list(table["arm"].unique())
    operators = sorted(table["operator"].unique(), reverse=True)
    height = (0.32 * len(operators) + 1.1) * figures.rows_of(len(arms)) + 0.5
    drawn = blank(figures.WIDTH, height)
    panels = figures.panels_of(drawn, len(arms), share=True)
    colour, other = figures.palette(2)
    for arm, axes in zip(arms, panels, strict=True):
        part = table[table["arm"] == arm]
        rows = part["operator"].map(operators.index)
        axes.axvline(0, color="0.6", linewidth=1, zorder=0)
        ends = part["value"], part["low"], part["high"]
        marks: Any = {"color": colour, "marker": "o", "linestyle": "", "label": "seen"}
        figures.curve(axes, rows, *ends, across=True, **marks)
        axes.plot(part["planted"], rows, "D", mfc="none", color=other, label="planted")
        axes.set(
            title=broken(arm),
            xlabel="judge - truth per call",
            ylim=(-0.6, len(operators) - 0.4),
        )
        axes.set_yticks(range(len(operators)), [plain(name) for name in operators])
    figures.outside_legend(drawn, panels)
    return drawn


@style()
def lost_truth(workflow: Workflow) -> Figure | None:
    """Expected truth of the policy's programs at both ends beside that of the judge's best programs
    and of the best there are; None without planted truth."""
    arms = {n: arm.optimum for n, arm in workflow.arms.items() if arm.optimum.truth >= 0}
    if not arms:
        return None
    names, high = figures.row_names(arms)
    drawn, axes = figures.single(figures.WIDTH, 0.5 * high * len(arms) + 1.4)
    look = figures.palette(2)
    for place, each in enumerate(arms.values()):
        axes.plot([each.first_truth, each.last_truth], [place, place], color=look[0])
        marks: tuple[tuple[float, str, str, Any, Any], ...] = (
            (each.first_truth, "o", "policy, first tenth", look[0], "white"),
            (each.last_truth, "o", "policy, last tenth", look[0], look[0]),
            (each.truth, "D", "the judge's best", look[1], "none"),
            (each.best, "*", "best there is", "0.3", "0.3"),
        )
        for value, mark, label, colour, face in marks:
            named = "" if place else label
            axes.plot(value, place, mark, color=colour, mfc=face, markersize=8, label=named)
    axes.set_yticks(range(len(arms)), names)
    axes.set(xlabel="expected truth of the programs", ylim=(-0.6, len(arms) - 0.4))
    figures.outside_legend(drawn, [axes])
    return drawn


TITLES = TEXTS["workflow"]


def lines(workflow: Workflow) -> list[str]:
    """Every table that has rows."""
    by_title = {
        "rates": tables.rates_table(workflow),
        "gap": tables.gap_table(workflow, short),
        "operators": tables.operators_table(workflow, short),
        "exploits": tables.exploits_table(workflow),
        "shares": tables.shares_table(workflow, short),
        "optimum": tables.optimum_table(workflow, short),
        "treatments": tables.treatments_table(workflow, short),
    }
    text = [
        line for title, table in by_title.items() if len(table)
        for line in ("", TITLES[title], as_text(table))
    ]  # fmt: skip
    return [*text, "", TITLES["intervals"]]


def of_log(runs: Mapping[str, LoggedRun]) -> list[str]:
    """What each run of a log shows, in sentences."""
    return [
        visible(f"{name}: {sentence}")
        for name, run in runs.items()
        for sentence in describe_run(run)
    ]


def section(workflow: Workflow) -> list[str]:
    """Which programs a policy wrote and what its judge paid for, for the report."""
    first = [
        title("workflow"),
        picture("over_steps", over_steps, workflow),
        sheet("workflow-rates", rates_table(workflow)),
        paragraph(TEXTS["paragraphs"]["workflow"]),
        picture("over_rewards", over_rewards, workflow),
    ]
    fragments = [
        sheet("workflow-operators", operators_table(workflow)),
        sheet("workflow-gap", gap_table(workflow)),
        sheet("workflow-exploits", exploits_table(workflow)),
        sheet("workflow-shares", shares_table(workflow)),
    ]
    if drawn := picture("lost_truth", lost_truth, workflow):
        first.append(drawn)
        fragments.append(sheet("workflow-optimum", optimum_table(workflow)))
    if workflow.treatments:
        fragments.append(sheet("workflow-treatments", treatments_table(workflow)))
    problems = [sentences(workflow.problems)] if workflow.problems else []
    return [*first, *folded(TEXTS["folded"]["workflow"], fragments), *problems]
