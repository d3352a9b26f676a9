"""The figure, the tables and the sentences of the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.display import markup
from analysis.display.figures import blank, broken, palette, style
from analysis.display.markup import DECIMALS, TEXTS, listed, render_text
from analysis.statistics.corrections import holm
from study.screen import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LEDGER_BEHAVIOURS = 5
"""Behaviours in the stacked ledger."""


@style()
def stacked(steps: pd.DataFrame, unique: Sequence[str]) -> Figure:
    """Explained advantage variance by behaviour as stacked areas, one panel per arm."""

    top = list(steps[list(unique)].mean().sort_values(ascending=False).index[:LEDGER_BEHAVIOURS])
    arms = sorted(steps["arm"].unique())
    wide = min(3, len(arms))
    high = -(-len(arms) // wide)
    figure = blank(3.4 * wide, 2.8 * high)
    panels = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False)
    colours = [*palette(len(top), "Set2"), (0.75, 0.75, 0.75)]  # not those of the arms
    labels = [*(name.removeprefix("unique/") for name in top), "several together"]
    for arm, axes in zip(arms, panels.flat, strict=False):
        part = steps[steps["arm"] == arm].groupby("step")[[*top, "advantage_r2"]].mean()
        # a feature that was the same in a whole step explains nothing there; without an R2
        # nothing was there to explain
        alone = part[top].fillna(0.0).clip(lower=0.0).to_numpy(copy=True).T
        alone[:, part["advantage_r2"].isna()] = np.nan
        together = np.clip(part["advantage_r2"] - alone.sum(axis=0), 0.0, None)
        axes.stackplot(part.index, *alone, together, colors=colours, labels=labels)
        axes.set(title=broken(arm), ylim=(0, 1))
        axes.set(xlabel="training step", ylabel="share of variance")
        axes.tick_params(labelbottom=True, labelleft=True)
    for axes in list(panels.flat)[len(arms) :]:
        axes.set_visible(False)
    handles, names = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure


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


MOST_NAMED = 2
"""Behaviours that a sentence names of an arm."""
CLEAR = 0.01
"""Holm's p below which one is named: of a hundred reports without anything behind it, one."""
LEAST_LOST = 0.05
"""Share of the truth's push below which its loss is not named: fewer verdicts, missing at random,
take away so much where the sd of a small group divides."""


def lost_sentences(
    table: pd.DataFrame, spread: Mapping[str, float], same: Collection[str] = ()
) -> Iterator[str]:
    """What missing verdicts took of the truth's push, beyond chance: one sentence for each arm.

    Args:
        table: `analysis.ledger.estimate.judge_table`.
        spread: standard deviation of each behaviour, in which pushes are told.
        same: behaviours that go with another, and are not told.
    """
    by_metric = table.set_index(["arm", "metric"])
    for arm, rows in _clear(table, "^lost/", spread, same):
        parts = []
        for name in rows["behaviour"]:
            lost = _in_sds(by_metric, arm, f"lost/{name}", spread[name])
            push = _in_sds(by_metric, arm, f"truth_push/{name}", spread[name])
            if abs(lost["mean"]) < LEAST_LOST * abs(push["mean"]):
                continue
            share = 100 * by_metric.loc[(arm, f"lost_share/{name}"), ["mean", "low", "high"]]
            least, most = (
                float(_in_sds(by_metric, arm, f"lost_{end}/{name}", spread[name])["mean"])
                for end in ("low", "high")
            )
            bounds = {"least": markup.number(least, True), "most": markup.number(most, True)}
            known = np.isclose(least, most)
            gone = lost["mean"] * push["mean"] > 0
            lowest, highest = lost["low"], lost["high"]
            parts.append(
                render_text(
                    "findings",
                    "lost_of" if gone else "added_to",
                    behaviour=name,
                    lost=markup.estimate(lost["mean"], lowest, highest),
                    added=markup.estimate(-lost["mean"], -highest, -lowest),
                    push=markup.number(push["mean"], sign=True),
                    share=markup.estimate(*share, sign=False),
                    worst="" if known else render_text("findings", "worst_of_lost", **bounds),
                )
            )
        if parts:
            yield _told("lost", arm, parts, by_metric)


def paid_sentences(
    table: pd.DataFrame, spread: Mapping[str, float], same: Collection[str] = ()
) -> Iterator[str]:
    """What a judge's error does with behaviours at equal truth, beyond chance: one sentence for
    each arm. Arguments as of `lost_sentences`."""
    by_metric = table.set_index(["arm", "metric"])
    levels = list(
        dict.fromkeys(m.split("/")[1] for m in table["metric"] if m.startswith("given_truth/"))
    )
    order = [level for level in TEXTS["levels"] if level in levels]
    for arm, rows in _clear(table, "^given_truth/[a-z]+/", spread, same):
        parts = []
        for name in dict.fromkeys(rows["behaviour"]):
            at = {
                k: _in_sds(by_metric, arm, f"given_truth/{k}/{name}", spread[name]) for k in order
            }
            amounts = [
                f"{markup.estimate(*row[['mean', 'low', 'high']])} {TEXTS['levels'][level]}"
                for level, row in at.items()
                if np.isfinite(row["mean"])
            ]
            parts.append(f"{name} {listed(amounts)}")
        yield _told("given_truth", arm, parts, by_metric)


def _clear(
    table: pd.DataFrame, start: str, spread: Mapping[str, float], same: Collection[str]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Arms with their rows of metrics that begin with a pattern and whose p, Holm's over all of
    these, is below `CLEAR`; the largest in SDs of their behaviour first."""
    rows = table[table["metric"].str.contains(start) & table["p"].notna()]
    if rows.empty:
        return
    rows = rows.assign(behaviour=rows["metric"].str.replace(start, "", n=1, regex=True))
    rows = rows[rows["behaviour"].isin(spread.keys() - set(same))]
    if rows.empty:
        return
    size = (rows["mean"] / rows["behaviour"].map(spread)).abs()
    rows = rows.assign(size=size, p=holm(rows["p"]))
    clear = rows[rows["p"] < CLEAR].sort_values("size", ascending=False)
    for arm, of_arm in clear.groupby("arm", sort=True):
        yield str(arm), of_arm


def _in_sds(by_metric: pd.DataFrame, arm: str, metric: str, spread: float) -> pd.Series:
    """Mean, low and high of a row in SDs of its behaviour."""
    if (arm, metric) not in by_metric.index:
        return pd.Series({"mean": np.nan, "low": np.nan, "high": np.nan})
    return by_metric.loc[(arm, metric), ["mean", "low", "high"]].astype(float) / spread


def _told(name: str, arm: str, parts: Sequence[str], by_metric: pd.DataFrame) -> str:
    more = len(parts) - MOST_NAMED
    rest = render_text("findings", "more_behaviours", n=plural(more, "more behaviour"))
    return render_text(
        "findings",
        name,
        arm=arm,
        behaviours="; ".join(parts[:MOST_NAMED]) + (rest if more > 0 else ""),
        missing=100 * float(by_metric.loc[(arm, "unscored"), "mean"]),
    )
