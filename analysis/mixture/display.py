"""Tables and figure of a mixture of domains, for the report and for `analysis.mixture`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.display import figures, markup
from analysis.display.figures import DRAWN, blank, broken, plain, style
from analysis.display.markup import (
    TEXTS,
    folded,
    paragraph,
    picture,
    render_text,
    sentences,
    sheet,
    title,
    with_interval,
)
from analysis.display.printed import WIDTH, short
from analysis.drift.estimate import learning_curves
from analysis.mixture import display as tables
from analysis.mixture.estimate import Mixture, Window
from analysis.mixture.teaching import CAUTION
from analysis.mixture.transfer import best_moved
from analysis.statistics.estimate import Estimate
from analysis.statistics.prediction import Scores
from study.screen import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Say = Callable[[Estimate], str]
"""Writes a number with its interval."""


def rates_table(mixture: Mixture, window: Window, say: Say = with_interval) -> pd.DataFrame:
    """Judge against rule in a window, a row for each arm and domain."""
    return pd.DataFrame(
        {"arm": arm, "domain": domain, "n": judged.n, "unscored": judged.unscored}
        | {"TPR": say(judged.tpr), "FPR": say(judged.fpr), "J": say(judged.youden_j)}
        | {"phi": say(judged.phi), "leniency": say(judged.leniency)}
        for arm, span, rates in mixture.rates
        if span == window
        for domain, judged in rates.items()
    )


def mix_table(mixture: Mixture, window: Window, say: Say = with_interval) -> pd.DataFrame:
    """The shares of what the steps of a window did, a row for each arm and domain."""
    return pd.DataFrame(
        {"arm": arm, "domain": domain}
        | {"nominal": say(Estimate(each.nominal)), "realised": say(Estimate(each.realised))}
        | {"effective": say(each.effective), "by rule": say(each.rule_effective)}
        | {"truth part": say(each.truth_part), "rest": say(each.rest)}
        | {"dead": say(Estimate(each.dead))}
        for arm, span, mixes in mixture.mixes
        if span == window
        for domain, each in mixes.items()
    )


def windows_table(mixture: Mixture, say: Say = with_interval) -> pd.DataFrame:
    """Effective shares window by window: arm, steps, a column for each domain."""
    return pd.DataFrame(
        {"arm": arm, "steps": f"{span[0]}-{span[1]}"}
        | {domain: say(each.effective) for domain, each in mixes.items()}
        for arm, span, mixes in mixture.mixes
        if span in mixture.spans
    ).fillna("")


def expected_table(mixture: Mixture, say: Say = with_interval) -> pd.DataFrame:
    """Effective shares and dead groups, expected from the first steps and observed after them."""
    return pd.DataFrame(
        {"arm": row.arm, "domain": row.feature}
        | {"expected": say(row.predicted), "observed": say(row.observed)}
        | {"dead, expected": say(row.expected.dead), "dead": say(Estimate(row.dead))}
        | {"taught": say(row.expected.relative)}
        for row in mixture.comparison.shares
    )


def accuracy_table(mixture: Mixture, say: Say = with_interval) -> pd.DataFrame:
    """Changes of held-out accuracy, predicted from the rule's and observed."""
    return pd.DataFrame(
        {"arm": row.arm, "domain": row.feature, "taught": say(Estimate(row.relative))}
        | {"predicted": say(row.predicted), "observed": say(row.observed)}
        | {"observed - predicted": say(row.difference), "seeds": row.observed.n}
        for row in mixture.comparison.accuracies
    )


def transfer_table(mixture: Mixture, say: Say = with_interval) -> pd.DataFrame:
    """Change of held-out accuracy: a row for each arm and what it trained, a column for each tested
    domain."""
    rows: dict[str, dict[str, str]] = {}
    for row in mixture.transfers:
        line = rows.setdefault(row.arm, {"arm": row.arm, "trained": _teachers(row.trained)})
        line[f"{row.tested}, tested"] = say(row.change)
    return pd.DataFrame(rows.values()).fillna("")


def _teachers(trained: Mapping[str, str]) -> str:
    """``rule: math, qa; sim-fair: code``"""
    by_teacher: dict[str, list[str]] = {}
    for domain, teacher in trained.items():
        by_teacher.setdefault(teacher, []).append(domain)
    return "; ".join(f"{teacher}: {', '.join(names)}" for teacher, names in by_teacher.items())


def swaps_table(mixture: Mixture, say: Say = with_interval) -> pd.DataFrame:
    """Change under the rule minus under the judge, a column for each tested domain."""
    rows: dict[str, dict[str, str]] = {}
    for row in mixture.swaps:
        name = _swap(row.swapped, row.judged, row.ruled)
        line = rows.setdefault(name, {"swap": name})
        line[f"{row.tested}, tested"] = say(row.change)
    return pd.DataFrame(rows.values()).fillna("")


def agreed(scores: Scores, note: str = "") -> str:
    """How the points of a comparison agree, as a sentence."""
    slope, rank = markup.number(scores.slope.value), markup.number(scores.rank)
    return (
        f"Observed on predicted over {scores.count} points: slope {slope}, rank correlation {rank}."
        f"{note and ' '}{note}"
    )


def moved(mixture: Mixture) -> list[str]:
    """Which domain moved most with each swap, as sentences."""
    return [
        f"{_swap(*swap)}: {tested} moves most."
        for swap, tested in best_moved(mixture.swaps).items()
    ]


def _swap(swapped: str, judged: str, ruled: str) -> str:
    return f"{judged} -> {ruled}, the rule in {swapped}"


@style()
def figure(mixture: Mixture) -> Figure:
    """Above, the effective mix over the steps, a panel for each arm; below, held-out accuracy, a
    panel for each domain. Bars are 95 % t intervals over runs, cut at 0 and 1."""

    mixes, accuracies = (
        curves.assign(low=curves["low"].clip(0, 1), high=curves["high"].clip(0, 1))
        for curves in (
            learning_curves(mixture.curves, DRAWN),
            learning_curves(mixture.held_out, DRAWN),
        )
    )
    arms, domains = sorted(mixture.shares), mixture.domains
    tested = sorted(accuracies["metric"].unique())
    above, below = figures.rows_of(len(arms)), figures.rows_of(len(tested))
    drawn = blank(figures.WIDTH, 2.7 * (above + below) + 1.0)
    tops: Any = drawn.subfigures(2, 1, height_ratios=(above, below)) if below else [drawn]
    panels = figures.panels_of(tops[0], len(arms))
    colours = dict(zip(domains, figures.palette(len(domains)), strict=True))
    for arm, axes in zip(arms, panels, strict=True):
        for k, (domain, share) in enumerate(mixture.shares[arm].items()):
            part = mixes[(mixes["arm"] == arm) & (mixes["metric"] == domain)]
            place = k, len(mixture.shares[arm])
            figures.line(axes, part, plain(domain), place=place, color=colours[domain])
            axes.axhline(share, color=colours[domain], linestyle="--", linewidth=1)
        axes.set(title=broken(arm), ylim=(0, 1), xlabel="training step", ylabel="effective share")
    figures.outside_legend(tops[0], panels)
    if below:
        panels = figures.panels_of(tops[1], len(tested))
        for domain, axes in zip(tested, panels, strict=True):
            part = accuracies[accuracies["metric"] == domain]
            figures.lines(axes, accuracies, part, lambda arm, _: plain(arm))
            axes.set(title=plain(domain), xlabel="training step", ylabel="held-out accuracy")
        figures.outside_legend(tops[1], panels)
    return drawn


TITLES = TEXTS["mixture"]


def lines(mixture: Mixture, level: float) -> list[str]:
    """Every table that has rows, none wider than `WIDTH` while names are short."""
    whole, comparison = mixture.whole, mixture.comparison
    span = f"steps {whole[0]} to {whole[1]}"
    first = comparison.shares[0].first_steps if comparison.shares else whole
    begun = f"steps {first[0]} to {first[1]}"
    text = [
        *_by_arm(f"{TITLES['rates']} ({span})", tables.rates_table(mixture, whole, short)),
        *_by_arm(f"{TITLES['mix']} ({span})", tables.mix_table(mixture, whole, short)),
        *_by_arm(TITLES["windows"], tables.windows_table(mixture, short)),
        *_by_arm(f"{TITLES['expected']} ({begun})", tables.expected_table(mixture, short)),
        fill(tables.agreed(comparison.of_shares), WIDTH),
    ]
    if comparison.accuracies:
        text += [
            *_by_arm(TITLES["accuracy"], tables.accuracy_table(mixture, short)),
            fill(tables.agreed(comparison.of_accuracies, CAUTION), WIDTH),
        ]
    elif comparison.note:
        text += [f"No change of accuracy is predicted: {comparison.note}."]
    if mixture.transfers:
        text += _by_arm(TITLES["transfer"], tables.transfer_table(mixture, short))
    if mixture.swaps:
        text += _by_arm(TITLES["swaps"], tables.swaps_table(mixture, short), "swap")
        text += [fill(visible(sentence), WIDTH) for sentence in tables.moved(mixture)]
    return [*text, "", f"{TITLES['intervals']} ({level:.3g})"]


def _by_arm(title: str, table: pd.DataFrame, by: str = "arm") -> list[str]:
    """A table of each arm under the arm's name."""
    text = ["", title]
    for name, part in table.groupby(by, sort=False):
        shown = part.drop(columns=by).map(lambda cell: visible(str(cell))).rename(columns=visible)
        text += [visible(str(name)), shown.to_string(index=False, max_colwidth=60)]
    return text


def section(mixture: Mixture) -> list[str]:
    """What the judge of several domains did to each, for the report."""
    whole, comparison = mixture.whole, mixture.comparison
    first = [
        title("mixture"),
        picture("mixture", figure, mixture),
        sheet("mixture-mix", mix_table(mixture, whole)),
        paragraph(TEXTS["paragraphs"]["mixture"]),
    ]
    fragments: list[str] = [
        sheet("mixture-rates", rates_table(mixture, whole)),
        sheet("mixture-expected", expected_table(mixture)),
        paragraph(agreed(comparison.of_shares)),
    ]
    if comparison.accuracies:
        fragments += [
            sheet("mixture-accuracy", accuracy_table(mixture)),
            paragraph(agreed(comparison.of_accuracies, CAUTION)),
        ]
    else:
        fragments.append(paragraph(render_text("empty", "accuracy", why=comparison.note)))
    if mixture.transfers:
        fragments.append(sheet("mixture-transfer", transfer_table(mixture)))
    if mixture.swaps:
        fragments += [sheet("mixture-swaps", swaps_table(mixture)), sentences(moved(mixture))]
    problems = [sentences(mixture.problems)] if mixture.problems else []
    return [*first, *folded(TEXTS["folded"]["mixture"], fragments), *problems]
