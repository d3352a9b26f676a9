"""The report of a study as one page: its sections, each of which turns one `Evidence` into HTML.

A section says in words what a study is too small or too blind to show. `SECTIONS` lists them, and
their fixed texts stand in ``texts.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from typing import Any, Concatenate

import pandas as pd
from markupsafe import Markup

from analysis.audit import display as audit_display
from analysis.crossjudge import estimate as crossjudge
from analysis.display import markup
from analysis.display.figures import looks, looks_of
from analysis.display.markup import (
    DECIMALS,
    TEXTS,
    bracket,
    estimate,
    number,
    p_value,
    paragraph,
    picture,
    render_text,
    sheet,
    title,
)
from analysis.dose import display as dose_display
from analysis.drift import estimate as drift
from analysis.drift import figures
from analysis.families import display as families_display
from analysis.field import display as field_display
from analysis.interventions import display as interventions_display
from analysis.knockout import display as knockout_display
from analysis.ledger.display import calibration_table, ledger_table, stacked
from analysis.mixture import display as mixture_display
from analysis.onset import display as onset_display
from analysis.panel import display as panel_display
from analysis.propagation import display as propagation_display
from analysis.propagation import estimate as propagation
from analysis.records.runs import TAIL
from analysis.report import tables, words
from analysis.report.evidence import Evidence
from analysis.report.headlines import FirstScreen, first_screen
from analysis.report.words import extent, limits, substituted
from analysis.workflow import display as workflow_display
from study.screen import plural

MOST_BEHAVIOURS = 6
"""Behaviours whose differences are drawn."""
LABELS: dict[str, str] = TEXTS["scores"]
EMPTY, PARAGRAPHS, FOLDED = TEXTS["empty"], TEXTS["paragraphs"], TEXTS["folded"]
Section = Callable[Concatenate[Evidence, ...], list[str]]


def section(write: Section) -> Section:
    """A section in which every arm looks as it does in the whole report."""

    @wraps(write)
    def written(evidence: Evidence, *settings: Any) -> list[str]:
        with looks_of(evidence.arms):
            return write(evidence, *settings)

    return written


def _of(part: str, write: Callable[[Any], list[str]], always: bool = False) -> Section:
    """A subject's own section on its part of the evidence; nothing where there is none, unless it
    ``always`` has something to say."""

    def written(evidence: Evidence) -> list[str]:
        content = getattr(evidence, part)
        return write(content) if content or always else []

    written.__name__ = part
    return section(written)


@section
def front(evidence: Evidence, said: FirstScreen | None = None) -> list[str]:
    """The first screen: the study in a sentence, a line per arm, three panels, what to do next."""
    said = said or first_screen(evidence)
    places = {name: TEXTS["titles"][name] for name in ("caveats", "method", "samples")}
    where = render_text("headlines", "where", where=evidence.effects.where) if evidence.runs else ""
    return [
        markup.front(
            f"Judge report: {evidence.name}",
            f"{extent(evidence)} {where}".strip(),
            {arm: line.markup() for arm, line in said.arms.items()},
            _course(evidence, said),
            markup.links(places),
            markup.Opening(
                warning=said.smoke,
                headline=said.headline,
                look=said.look,
                folded=said.untold,
                summary=render_text("folded", "untold", count=plural(len(said.untold), "arm")),
                steps=[(step.why, step.command) for step in said.steps],
                next=TEXTS["next"]["title"],
                note=TEXTS["next"]["cost"],
            ),
        )
    ]


def _course(evidence: Evidence, said: FirstScreen) -> list[Markup]:
    """The three panels, of the arms that come first by harm and the base; nothing where no step has
    a value, or a smoke test tells nothing."""
    curves = pd.concat([evidence.scores, evidence.features]).dropna(subset="value")
    if not curves["metric"].isin(figures.COURSE).any() or len(said.untold) == len(said.arms):
        return []
    first = [arm for arm in said.arms if arm != evidence.base][: figures.MOST_ARMS - 1]
    arms = [arm for arm in evidence.arms if arm in (evidence.base, *first)]
    named = {"left": _more("left_out", len(evidence.arms) - len(arms), "arm")}
    return [picture("course", figures.course, curves, arms, looks(evidence.arms), **named)]


@section
def runs(evidence: Evidence) -> list[str]:
    """State and axes of every run."""
    return [title("runs"), sheet("runs", tables.runs_table(evidence))]


@section
def scores(evidence: Evidence) -> list[str]:
    """Judge score and truth along training."""
    curves = evidence.score_curves
    return [
        title("scores"),
        picture("scores", figures.learning, curves)
        if curves["mean"].notna().any()
        else paragraph(EMPTY["scores"]),
        _shifts("scores", evidence.score_shifts, evidence),
    ]


@section
def gap(evidence: Evidence) -> list[str]:
    """Judge minus truth along training."""
    curves = evidence.score_curves
    has_gap = curves.loc[curves["metric"] == "gap", "mean"].notna().any()
    drawn = picture("gap", figures.gap, curves) if has_gap else paragraph(EMPTY["gap"])
    parts = ledger_table(evidence.gap_parts, "gap")
    if parts.empty:
        return [title("gap"), drawn, *([paragraph(EMPTY["gap_parts"])] if has_gap else [])]
    return [
        title("gap"),
        drawn,
        sheet("gap", parts, evidence.gap_parts),
        paragraph(PARAGRAPHS["gap"]),
    ]


@section
def behaviours(evidence: Evidence) -> list[str]:
    """Behaviour features along training, and how far each arm moved beyond the base arm."""
    shifts = evidence.feature_shifts
    fragments: list[str] = [title("behaviours")]
    rest: list[str] = []
    if len(evidence.features):
        curves = picture("behaviours", figures.behaviour, evidence.behaviour_curves)
        table, has_differences = _furthest_first(evidence), shifts["diff"].notna().any()
        drawn = _differences(table, str(evidence.base)) if has_differences else curves
        fragments += [drawn, _shifts("behaviours", table, evidence)]
        rest += [curves] if has_differences else []
    else:
        fragments.append(paragraph(EMPTY["behaviours"]))
    if len(evidence.held_out):
        rest += [
            sheet("held_out", held_out_table(evidence.held_out), evidence.held_out),
            paragraph(PARAGRAPHS["held_out"]),
        ]
    fragments += markup.folded(FOLDED["behaviours"], rest) if rest else []
    note = PARAGRAPHS["features"]
    if evidence.records.keyword:
        note += f" The keyword is {evidence.records.keyword!r}."
    if evidence.absent:
        note += f" The same in every answer, so left out: {', '.join(evidence.absent)}."
    return [*fragments, paragraph(note)]


def _furthest_first(evidence: Evidence) -> pd.DataFrame:
    """The shifts of the behaviours, those first that moved furthest."""
    shifts = evidence.feature_shifts
    sizes = shifts["shift"].abs() / shifts["metric"].map(evidence.spread)
    furthest = sizes.groupby(shifts["metric"]).transform("max")
    return shifts.loc[furthest.sort_values(ascending=False, kind="stable").index]


def _more(name: str, left: int, noun: str) -> str:
    """The part of a caption that says how many are not drawn; nothing where none is left."""
    return render_text("captions", name, left=plural(left, f"more {noun}")) if left > 0 else ""


def _differences(shifts: pd.DataFrame, base: str) -> Markup:
    """The differences from the base arm of the first behaviours of a table."""
    measured = list(dict.fromkeys(shifts.loc[shifts["diff"].notna(), "metric"]))
    left = len(measured) - MOST_BEHAVIOURS
    less = _more("moved_less", left, "behaviour")
    drawn = shifts[shifts["metric"].isin(measured[:MOST_BEHAVIOURS])]
    return picture("shifts", figures.shifts, drawn, base, base=base, left=less)


@section
def ledger(evidence: Evidence) -> list[str]:
    """What the advantages were made of, step by step."""
    steps = evidence.ledger
    unique = [name for name in steps if name.startswith("unique/")]
    if steps.empty or not steps[unique].notna().any().any():
        return [title("ledger"), paragraph(EMPTY["ledger"])]
    return [
        title("ledger"),
        picture("ledger", stacked, steps, unique),
        sheet("ledger", ledger_table(evidence.ledger_by_arm), evidence.ledger_by_arm),
        paragraph(PARAGRAPHS["ledger"]),
    ]


@section
def predictions(evidence: Evidence) -> list[str]:
    """Predicted beside observed shifts, where there are runs enough."""
    if evidence.no_prediction:
        return [title("predictions"), paragraph(evidence.no_prediction)]
    calibration = pd.DataFrame([line.row() for line in evidence.calibration])
    with_r2 = calibration.dropna(subset=["r2"]).drop(columns="note")
    meaning = PARAGRAPHS["predictions"]
    if why := propagation.unpredicted(evidence.predicted):
        left_out = ", ".join(f"{cell} ({reason})" for cell, reason in sorted(why.items()))
        meaning += f" Not predicted: {left_out}."
    if sentence := propagation.against(evidence.predicted):
        meaning += f" {sentence}"
    return [
        title("predictions"),
        picture(
            "predictions", propagation_display.figure, evidence.predicted, evidence.calibration
        ),
        sheet("predictions", calibration_table(with_r2), calibration),
        paragraph(meaning),
    ]


@section
def judges(evidence: Evidence) -> list[str]:
    """Every policy under every judge that looked on or replayed, and what was given up."""
    fragments: list[str] = [title("judges")]
    if any(run.shadows for run in evidence.runs):
        agreement = evidence.agreement
        each_pair_once = agreement[agreement["judge"] < agreement["other"]]
        pairs = each_pair_once.rename(columns={"mean": "correlation", "n": "runs"})
        meanings = [f"{name}: {meaning}" for name, meaning in crossjudge.COLUMNS.items()]
        fragments += [
            picture("gains", crossjudge.figure, evidence.gains),
            sheet("inflation", pd.DataFrame(crossjudge.inflation_rows(evidence.inflation))),
            markup.sentences(meanings),
            picture("agreement", crossjudge.agreement_figure, agreement),
            *markup.folded(FOLDED["judges"], [sheet("agreement", pairs)]),
        ]
    else:
        fragments.append(paragraph(EMPTY["judges"]))
    if evidence.problems:
        fragments.append(markup.sentences(evidence.problems))
    none = evidence.no_substitution or EMPTY["substitutions"]
    return [*fragments, markup.sentences(substituted(evidence) or [none])]


@section
def failures(evidence: Evidence) -> list[str]:
    """Which verdicts are missing, and why."""
    table, verdicts = evidence.failures, int(evidence.records.outcomes["verdicts"].sum())
    percent = [f"{100 * share:.2f} %" for share in table["unscored"]]
    return [
        title("failures"),
        sheet("failures", table.assign(unscored=percent), table),
        picture("failures", figures.failures, table, evidence.failures_by_length)
        if (table["unscored"] > 0).any()
        else paragraph(render_text("empty", "failures", verdicts=verdicts)),
    ]


@section
def samples(evidence: Evidence, prompts: int = 2) -> list[str]:
    """Answers of every arm side by side, to so many prompts of the first, middle and last step."""
    rollouts = drift.sample_rollouts(evidence.records, evidence.used_cells)
    frame = drift.sample_completions(rollouts, prompts)
    last = frame["when"] == "last"
    shown, before = markup.samples(frame[last]), markup.samples(frame[~last])
    return [
        title("samples"),
        paragraph(PARAGRAPHS["samples"]),
        shown or paragraph(EMPTY["samples"]),
        *(markup.folded(FOLDED["samples"], [before]) if before else []),
    ]


@section
def provenance(evidence: Evidence) -> list[str]:
    """Run ids with config hash, code version and numbers of records; problems; versions."""
    packages = ", ".join(f"{n} {version(n)}" for n in ("judgedrift", "numpy", "pandas", "scipy"))
    fragments = [
        title("provenance"),
        "<h3>Runs behind each arm</h3>",
        *(_runs_of(evidence, arm) for arm in evidence.arms),
        paragraph(render_text("paragraphs", "provenance", packages=packages)),
        paragraph(words.spent(evidence)),
        sheet("sources", tables.sources_table(evidence)),
        Markup("<p>To make it again: <code>judgedrift report study={}</code></p>").format(
            evidence.name
        ),
    ]
    if evidence.records.problems:
        fragments += ["<h3>Could not be read</h3>", markup.sentences(evidence.records.problems)]
    return fragments


@section
def findings(evidence: Evidence) -> list[str]:
    """Everything that was found, in sentences with their numbers."""
    return [title("findings"), markup.sentences(words.findings(evidence))]


@section
def caveats(evidence: Evidence) -> list[str]:
    """What cannot be concluded from this study, and why."""
    return [title("caveats"), markup.sentences(limits(evidence))]


@section
def method(evidence: Evidence) -> list[str]:
    """How to read the numbers."""
    rests = render_text("shift", evidence.effects.on, tail=TAIL)
    lines = [line.format(shift=rests) for line in TEXTS["method"]]
    return [title("method"), markup.sentences(lines)]


def _shifts(name: str, shifts: pd.DataFrame, evidence: Evidence) -> Markup:
    """A table of shifts with what its file holds."""
    shown = shifts_table(shifts, evidence.base)
    return sheet(name, shown, shifts, base=evidence.base, where=evidence.effects.where)


def shifts_table(shifts: pd.DataFrame, base: str | None) -> pd.DataFrame:
    """A shift table with its intervals written out: scores first, then the rest as they come."""
    has_missing = (shifts.loc[shifts["metric"].isin(drift.JUDGED), "unscored"] > 0).any()
    has_differences = shifts["diff"].notna().any()
    order = {metric: k for k, metric in enumerate(dict.fromkeys([*LABELS, *shifts["metric"]]))}
    placed = shifts.assign(_at=shifts["metric"].map(order)).sort_values(["_at", "arm"])
    rows = []
    for row in map(_plain, placed.to_dict("records")):
        errors = (number(row[key]) for key in ("se", "group_se", "naive_se"))
        line = {
            "measure": f"{LABELS.get(row['metric'], row['metric'])} ({row['unit']})",
            "arm": row["arm"],
            "first": row["first"],
            "last": row["last"],
            "shift [95 %]": estimate(row["shift"], row["low"], row["high"]),
            "SE: runs / groups / rollouts": " / ".join(errors),
            "runs": row["n"],
        }
        if has_missing:
            line["missing"] = f"{100 * row['unscored']:.1f} %"
            line["worst cases"] = bracket(row["worst_low"], row["worst_high"])
        if has_differences:
            difference = estimate(row["diff"], row["diff_low"], row["diff_high"])
            paired = row["pairs"] > 0
            line[f"vs {base} [95 %]"] = difference if paired else ""
            if has_missing:
                worst = bracket(row["diff_worst_low"], row["diff_worst_high"])
                line[f"worst cases vs {base}"] = worst
            line["pairs"] = number(row["pairs"]) if paired else ""
            line["p (sign flip)"] = p_value(row["p_sign_flip"]) if paired else ""
            line["p (t, Holm)"] = p_value(row["p_holm"]) if paired else ""
        texts = [text for text in (row["note"], row["diff_note"]) if isinstance(text, str)]
        notes = dict.fromkeys(note for text in texts for note in text.split("; ") if note)
        rows.append(line | {"note": "; ".join(n for n in notes if "exact p" not in n)})
    table = pd.DataFrame(rows)
    with_notes = len(table) and table["note"].ne("").any()
    return table if with_notes else table.drop(columns="note", errors="ignore")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose scores and shares have no more than `DECIMALS`, its p as they are."""
    if row["unit"] != "score" and not row["unit"].startswith("share"):
        return row
    return {
        key: round(value, DECIMALS) if isinstance(value, float) and "p_" not in key else value
        for key, value in row.items()
    }


def held_out_table(held_out: pd.DataFrame) -> pd.DataFrame:
    """Shifts on held-out rows beside those on the rows of training."""
    rows = [
        {
            "measure": f"{LABELS.get(row['metric'], row['metric'])} ({row['unit']})",
            "arm": row["arm"],
            "held-out, drawn [95 %]": estimate(row["shift"], row["low"], row["high"]),
            "held-out, greedy": number(row["greedy"], sign=True),
            "training": number(row["training"], sign=True),
            "held-out - training [95 %]": estimate(
                row["apart"], row["apart_low"], row["apart_high"]
            ),
            "runs": row["n"],
        }
        for row in map(_plain, held_out.to_dict("records"))
    ]
    return pd.DataFrame(rows)


def _runs_of(evidence: Evidence, arm: str) -> str:
    """An arm's runs, those that no estimate rests on set apart."""
    cells = evidence.cells[evidence.cells["arm"] == arm]
    is_used = cells["cell"].isin(evidence.used_cells)
    text = f"{arm}: {', '.join(cells.loc[is_used, 'cell']) or 'none'}"
    if not is_used.all():
        text += f"; in no estimate: {', '.join(cells.loc[~is_used, 'cell'])}"
    return Markup('<p id="{}">{}</p>').format(markup.anchor(arm), text)


@section
def frontier(evidence: Evidence) -> list[str]:
    """Truth against judge along training, and what choosing by the judge would give."""
    fits, chosen = evidence.overoptimisation, evidence.best_of_n
    return onset_display.frontier_section(evidence.runs, fits, chosen)


onsets = _of("onsets", onset_display.section, always=True)
doses = _of("doses", dose_display.section)
knockout = _of("knockouts", knockout_display.section)
audit = _of("audit", audit_display.section)
interventions = _of("interventions", interventions_display.section)
panels = _of("panels", panel_display.section)
mixture = _of("mixture", mixture_display.section)
workflow = _of("workflow", workflow_display.section)
families = _of("families", families_display.section)
field = _of("field", field_display.section)


SECTIONS = (
    front, scores, gap, audit, behaviours, doses, ledger, predictions, knockout, interventions,
    panels, mixture, workflow, families, onsets, frontier, field, judges, failures, samples,
    findings, runs, caveats, method, provenance,
)  # fmt: skip
