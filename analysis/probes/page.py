"""A judge's profile as one HTML file that loads nothing: `write_profile`."""

from __future__ import annotations

from pathlib import Path

from analysis.display import markup
from analysis.display.markup import render_text
from analysis.display.page import write_page
from analysis.probes import figures, report
from analysis.probes.profile import Profile, profile


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
        drawn = figures.forest(effects, judged.margin, explained)
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
        drawn = figures.scores(single, bool(single["truth"].notna().any()))
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
    failures = judged.failures
    if failures["share"].gt(0).any():
        last = markup.figure(figures.failures(failures), render_text("profile", "failures_figure"))
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
