"""A judge's profile as one HTML file that loads nothing: `write_profile`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.display import markup
from analysis.display.figures import WIDTH, blank, curve, looks, palette, single, style
from analysis.display.markup import render_text, write_page
from analysis.probes import report
from analysis.probes.effects import END
from analysis.probes.profile import Profile, profile

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def write_profile(folder: Path | str, margin: float, threshold: float) -> Path:
    """Write the page of a folder of probes, with its tables beside it; returns the HTML file.

    Args:
        folder: what ``experiments.probe`` wrote, such as ``runs/probes/instruct-mini``.
        margin: score units within which a bias counts as none.
        threshold: the score from which a text is called good.

    Raises:
        UserError: it is not a folder of probes.
    """
    folder = Path(folder).absolute()
    judged = profile(folder, margin, threshold)
    html = folder / "report" / "judge_profile.html"
    opening = markup.front(
        f"Judge profile: {judged.evidence.name}",
        report.extent(judged),
        report.headlines(judged),
        [],
        markup.links({"findings": "All findings", "caveats": "What cannot be concluded"}),
    )
    fragments = [
        markup.heading("Findings", 2, "findings"),
        markup.sentences(report.sentences(judged)),
        markup.heading("What cannot be concluded", 2, "caveats"),
        markup.sentences(report.limits(judged)),
        *(part for k in range(len(judged.evidence.judges)) for part in _judge(judged, k)),
        *_levels(judged),
        *_agreement(judged),
        *_own(judged),
        *_slots(judged),
        markup.heading("What do texts without content earn?", 2, "hacks"),
        markup.table(judged.hacks, "hacks", "Texts without content."),
        markup.heading("Do the judges agree with themselves?", 2, "themselves"),
        markup.table(judged.repeats, "repeats", "The same text asked again."),
        markup.table(judged.positions, "positions", "The order of two answers swapped."),
        *_missing(judged),
        *_sources(judged),
    ]
    write_page(html, f"{folder.name}: judge profile", [opening], fragments)
    return html


def _judge(judged: Profile, k: int) -> list[str]:
    judge = judged.evidence.judges[k]
    effects = judged.effects[judged.effects["judge"] == judge]
    explained = set(judged.explained.loc[judged.explained["judge"] == judge, "variant"])
    fragments: list[str] = [
        markup.heading(f"What does {judge} pay for beyond the truth?", 2, f"judge-{k}")
    ]
    if effects["effect"].notna().any():
        drawn = forest(effects, judged.margin, explained)
        fragments.append(markup.figure(drawn, render_text("profile", "forest", judge=judge)))
    table = report.effects_table(judged, judge)
    title = f"What each edit changes in the score of {judge}, the largest effect first."
    return [*fragments, markup.table(table, f"effects-{k}", title, report.EFFECTS_LEAD)]


def _levels(judged: Profile) -> list[str]:
    fragments: list[str] = [
        markup.heading("How well does each judge know good from bad?", 2, "levels"),
        markup.table(report.levels_table(judged), "levels", "Contents as they are."),
        markup.table(
            report.probes_table(judged), "probes", "All probes, edited or without content too."
        ),
    ]
    single = judged.scores[~judged.scores["pairwise"]]
    if single.loc[single["bias"] == "content", "score"].notna().any():
        drawn = scores(single, bool(single["truth"].notna().any()))
        fragments.append(markup.figure(drawn, render_text("profile", "levels_figure")))
    return fragments


def _agreement(judged: Profile) -> list[str]:
    fragments: list[str] = [
        markup.heading("Do the judges agree with each other?", 2, "agreement"),
        markup.sentences(report.agreement_sentences(judged)),
    ]
    if len(judged.agreement):
        table = report.agreement_table(judged)
        fragments.append(markup.table(table, "agreement", "Judges next to each other."))
    return fragments


def _own(judged: Profile) -> list[str]:
    fragments: list[str] = [markup.heading("Do judges favour their own texts?", 2, "own")]
    if judged.no_preference:
        fragments.append(markup.sentences(judged.no_preference))
    if len(judged.preference):
        title = "Own texts next to those of others."
        fragments.append(markup.table(judged.preference, "own", title))
    return fragments


def _slots(judged: Profile) -> list[str]:
    if not len(judged.slots):
        return []
    return [
        markup.heading("What does each slot of the set earn?", 2, "slots"),
        markup.paragraph(render_text("profile", "slots_earn")),
        markup.table(report.slots_table(judged), "slots", "Slots of the set."),
    ]


def _missing(judged: Profile) -> list[str]:
    if judged.failures["share"].gt(0).any():
        drawn = failures(judged.failures)
        last = markup.figure(drawn, render_text("profile", "failures_figure"))
    else:
        last = markup.paragraph(f"All {len(judged.evidence.verdicts):,} verdicts are scored.")
    return [
        markup.heading("Which verdicts are missing?", 2, "missing"),
        markup.table(judged.reasons, "missing", "Verdicts by judge and outcome."),
        last,
    ]


def _sources(judged: Profile) -> list[str]:
    manifest = judged.evidence.manifest
    command = manifest["command"]
    identities = [f"{name} ({each['judge_id']})" for name, each in manifest["judges"].items()]
    return [
        markup.heading("Where the numbers come from", 2, "sources"),
        markup.paragraph(
            f"Set {command['set']}, {len(manifest['prompts'])} prompts chosen by"
            f" {command['select']}, {manifest['probes']} texts, seed {command['seed']}. Judges:"
            f" {', '.join(identities)}. Records: probes.parquet, verdicts.parquet, manifest.json"
            " beside this report."
        ),
        markup.heading("How to read the numbers", 2, "method"),
        markup.paragraph(render_text("profile", "method")),
    ]


FOREST = 4.8
"""Inches: names of variants and their bars, still readable on a phone."""


@style()
def forest(table: pd.DataFrame, margin: float, explained: Collection[str] = ()) -> Figure:
    """What does one judge pay for beyond the truth? A row per variant, the largest on top.

    Args:
        table: rows of `analysis.probes.effects.effects` of one judge.
        margin: of equivalence; the grey band.
        explained: variants whose bias is one for another behaviour, drawn hollow.
    """
    rows = table[table["effect"].notna()].copy()
    rows = rows.loc[rows["effect"].sort_values().index].reset_index(drop=True)
    figure, axes = single(FOREST, 1.1 + 0.22 * max(1, len(rows)))
    blue, orange, green, *_, sky = palette(10)
    biased = rows["claim"].str.startswith("bias")
    of_another = rows["variant"].isin(list(explained))
    kinds = {
        "bias": (biased & ~of_another, orange, "s"),
        "bias for another behaviour": (biased & of_another, orange, "s"),
        "no bias (equivalent)": (rows["claim"] == "no bias", blue, "o"),
        END: (rows["claim"] == END, sky, "v"),
        "undecided": (rows["claim"].isin(["undecided", "cannot tell"]), "0.45", "D"),
    }
    axes.axvspan(-margin, margin, color="0.9", label=f"margin of +-{margin:g}", zorder=0)
    for label, (where, colour, marker) in kinds.items():
        part = rows[where]
        if part.empty:
            continue
        hollow = label == "bias for another behaviour"
        marks: Any = {"color": colour, "markerfacecolor": "white" if hollow else colour}
        marks |= {"marker": marker, "markersize": 5, "linestyle": ""}
        ends = part["effect"], part["low"], part["high"]
        curve(axes, part.index, *ends, across=True, caps=3, label=label, **marks)
    planted = rows[rows["planted"].notna()]
    if len(planted):
        axes.plot(
            planted["planted"], planted.index, "|", color=green, markersize=12,
            markeredgewidth=2, label="planted dose (unclipped)", zorder=1,
        )  # fmt: skip
    axes.axvline(0, color="0.3", linewidth=1)
    axes.set_yticks(list(rows.index), list(rows["variant"]))
    axes.set_ylim(-0.7, max(0, len(rows) - 1) + 0.7)
    axes.set_xlabel("judge's change - truth's change (score units)")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


@style()
def scores(table: pd.DataFrame, truth: bool) -> Figure:
    """How does each judge use its scale, beside the truth, on contents as they are?

    Args:
        table: `analysis.probes.profile.scores` of judges of single texts.
        truth: whether there is a truth to draw.
    """
    import seaborn as sns

    contents = table[(table["bias"] == "content") & table["score"].notna()]
    judges = list(contents["judge"].unique())
    figure = blank(WIDTH, 3.4)
    panels = figure.subplots(1, max(1, len(judges)), sharey=True, squeeze=False).ravel()
    bins = [k / 20 for k in range(21)]
    for judge, axes in zip(judges, panels, strict=False):
        part = contents[contents["judge"] == judge]
        shape: Any = {"bins": bins, "ax": axes, "legend": False}
        sns.histplot(x=part["score"].clip(0, 1), color="C0", alpha=1, label="judge", **shape)
        if truth:
            line: Any = {"element": "step", "fill": False, "color": "0.1", "linewidth": 1.4}
            sns.histplot(x=part["truth"].dropna(), label="rule truth", **line, **shape)
        axes.set_title(f"{judge} (n={len(part)})")
        axes.set_xlabel("score")
    panels[0].set_ylabel("texts")
    panels[0].legend()
    return figure


@style()
def failures(table: pd.DataFrame) -> Figure:
    """Do long texts lose their verdicts more often? By quarter of the texts' length."""
    figure, axes = single(WIDTH, 3.4)
    for judge, look in looks(list(table["judge"].unique())).items():
        part = table[table["judge"] == judge]
        middle = (part["words_low"] + part["words_high"]) / 2
        ends = (100 * part[name] for name in ("share", "low", "high"))
        curve(axes, middle, *ends, caps=3, label=judge, **look)
    axes.set(xlabel="length of the text (words, middle of quarter)", ylabel="unscored (%)")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=4)
    return figure
