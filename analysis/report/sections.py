"""The report's sections in their order: each turns one `Evidence` into fragments of HTML.

A section says in words what a study is too small or too blind to show. `SECTIONS` lists them, and
their fixed texts stand in ``texts.yaml``.
"""

from __future__ import annotations

import math
from importlib.metadata import version
from itertools import chain

import pandas as pd
from markupsafe import Markup

from analysis.crossjudge import estimate as crossjudge
from analysis.display import markup
from analysis.display.figures import looks
from analysis.display.markup import TEXTS, paragraph, render_text
from analysis.dose.display import dose_caption, dose_response, dose_table
from analysis.dose.estimate import DoseResponse, left_out, straight
from analysis.drift import estimate as drift
from analysis.families import display as family_tables
from analysis.field import display as field_tables
from analysis.interventions import display as correction_tables
from analysis.knockout import display as knockout_tables
from analysis.knockout.estimate import sentence as knockout_sentence
from analysis.ledger.display import calibration_table, ledger_table, stacked
from analysis.mixture import display as mixture_tables
from analysis.mixture.teaching import CAUTION
from analysis.onset import display as onset_display
from analysis.onset.display import best_of_n_table, onset_table, peaks_table
from analysis.propagation import estimate as propagation
from analysis.records.behaviour import TAIL
from analysis.report import figures, overview, tables, words
from analysis.report.evidence import Evidence
from analysis.report.headlines import headlines
from analysis.report.limits import limits
from analysis.report.parts import picture, section, sheet, title
from analysis.report.words import extent, substituted
from analysis.workflow import display as workflow_tables
from study.screen import plural

MOST_BEHAVIOURS = 6
"""Behaviours whose differences are drawn: those that moved furthest."""
EMPTY, PARAGRAPHS, FOLDED = TEXTS["empty"], TEXTS["paragraphs"], TEXTS["folded"]


@section
def front(evidence: Evidence) -> list[str]:
    """The first screen: a sentence per judge, the shifts of all measures, and the scores."""
    arms, pictures = overview.shown_arms(evidence), []
    look = looks(evidence.arms)
    table = overview.standardised(evidence)
    left = len(evidence.arms) - len(arms)
    measures = len(overview.ranked(table)) - overview.MOST_ROWS
    named = {
        "left": _more("left_out", left, "arm"),
        "rows": _more("rows_left_out", measures, "behaviour"),
    }
    if len(table):
        pictures.append(picture("front_shifts", overview.shifts, table, arms, look, **named))
    curves = evidence.score_curves
    if curves["mean"].notna().any():
        pictures.append(picture("front_curve", overview.curve, curves, arms, look, **named))
    places = {name: TEXTS["titles"][name] for name in ("caveats", "findings", "method")}
    return [
        markup.front(
            f"Judge report: {evidence.name}",
            extent(evidence),
            headlines(evidence),
            pictures,
            markup.links(places),
        )
    ]


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
        _shifts("scores", evidence.score_shifts, evidence.base),
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
        fragments += [drawn, _shifts("behaviours", table, evidence.base)]
        rest += [curves] if has_differences else []
    else:
        fragments.append(paragraph(EMPTY["behaviours"]))
    if len(evidence.held_out):
        rest += [
            sheet("held_out", tables.held_out_table(evidence.held_out), evidence.held_out),
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
def doses(evidence: Evidence) -> list[str]:
    """Every behaviour that the judges pay for in three doses or more; nothing without them."""
    fragments = [fragment for dose in evidence.doses for fragment in _dose(dose)]
    return [title("doses"), *fragments] if fragments else []


def _dose(dose: DoseResponse) -> list[str]:
    feature, fit = dose.feature, straight(dose.lack_of_fit_p)
    theory = dose_caption(dose)
    by_dose = ", ".join(f"{amount:g} {shift:+.3g}" for amount, shift in dose.monotone)
    emax = f"; Emax: {dose.emax.note}" if dose.emax.note else ""
    within = "within seeds" if dose.slope.unit == "seed" else "over runs"
    return [
        picture("doses", dose_response, dose, feature=feature, theory=theory),
        sheet("doses", dose_table(dose), of=feature, feature=feature),
        markup.sentences(
            [
                f"Monotone fit, dose and shift in {feature}: {by_dose}.",
                f"{fit[0].upper()}{fit[1:]}{emax}.",
                f"Doses are permuted {within} for the trend.",
                *([f"{others}."] if (others := left_out(dose.left_out)) else []),
            ]
        ),
    ]


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
        picture("predictions", propagation.figure, evidence.predicted, evidence.calibration),
        sheet("predictions", calibration_table(with_r2), calibration),
        paragraph(meaning),
    ]


@section
def mixture(evidence: Evidence) -> list[str]:
    """What the judge of several domains did to each; nothing where rows name no domain."""
    mixed = evidence.mixture
    if mixed is None:
        return []
    first = [
        title("mixture"),
        picture("mixture", mixture_tables.figure, mixed),
        sheet("mixture-mix", mixture_tables.mix_table(mixed, mixed.whole)),
        paragraph(PARAGRAPHS["mixture"]),
    ]
    fragments: list[str] = [
        sheet("mixture-rates", mixture_tables.rates_table(mixed, mixed.whole)),
        sheet("mixture-expected", mixture_tables.expected_table(mixed)),
        paragraph(mixture_tables.agreed(mixed.comparison.of_shares)),
    ]
    if mixed.comparison.accuracies:
        fragments += [
            sheet("mixture-accuracy", mixture_tables.accuracy_table(mixed)),
            paragraph(mixture_tables.agreed(mixed.comparison.of_accuracies, CAUTION)),
        ]
    else:
        fragments.append(paragraph(render_text("empty", "accuracy", why=mixed.comparison.note)))
    if mixed.transfers:
        fragments.append(sheet("mixture-transfer", mixture_tables.transfer_table(mixed)))
    if mixed.swaps:
        fragments += [
            sheet("mixture-swaps", mixture_tables.swaps_table(mixed)),
            markup.sentences(mixture_tables.moved(mixed)),
        ]
    problems = [markup.sentences(mixed.problems)] if mixed.problems else []
    return [*first, *markup.folded(FOLDED["mixture"], fragments), *problems]


@section
def workflow(evidence: Evidence) -> list[str]:
    """Which programs a policy wrote and what its judge paid for; nothing where it wrote none."""
    programs = evidence.workflow
    if programs is None:
        return []
    first = [
        title("workflow"),
        picture("over_steps", workflow_tables.over_steps, programs),
        sheet("workflow-rates", workflow_tables.rates_table(programs)),
        paragraph(PARAGRAPHS["workflow"]),
        picture("over_rewards", workflow_tables.over_rewards, programs),
    ]
    fragments = [
        sheet("workflow-operators", workflow_tables.operators_table(programs)),
        sheet("workflow-gap", workflow_tables.gap_table(programs)),
        sheet("workflow-exploits", workflow_tables.exploits_table(programs)),
        sheet("workflow-shares", workflow_tables.shares_table(programs)),
    ]
    if (drawn := workflow_tables.lost_truth(programs)) is not None:
        first.append(markup.figure(drawn, render_text("captions", "lost_truth")))
        fragments.append(sheet("workflow-optimum", workflow_tables.optimum_table(programs)))
    if programs.treatments:
        fragments.append(sheet("workflow-treatments", workflow_tables.treatments_table(programs)))
    problems = [markup.sentences(programs.problems)] if programs.problems else []
    return [*first, *markup.folded(FOLDED["workflow"], fragments), *problems]


@section
def knockout(evidence: Evidence) -> list[str]:
    """Whether a shift goes away with its cause; nothing where none was taken out."""
    knockouts = evidence.knockouts
    if not knockouts:
        return []
    return [
        title("knockout"),
        picture("kept", knockout_tables.kept, knockouts),
        sheet("knockout", knockout_tables.knockout_table(knockouts)),
        markup.sentences(map(knockout_sentence, knockouts)),
        paragraph(PARAGRAPHS["knockout"]),
    ]


@section
def interventions(evidence: Evidence) -> list[str]:
    """What each intervention bought; nothing without one."""
    corrections = evidence.interventions
    if corrections is None:
        return []
    table = sheet("interventions", correction_tables.bought_table(corrections))
    drawn = picture("bought", correction_tables.bought, corrections, plain=corrections.plain)
    return [title("interventions"), drawn, table, paragraph(PARAGRAPHS["interventions"])]


@section
def families(evidence: Evidence) -> list[str]:
    """What each natural judge paid for and where its runs went; nothing where all are alike."""
    by_family = evidence.families
    if by_family is None:
        return []
    slopes = family_tables.slopes_table(by_family)
    fragments = [sheet("families-behaviours", family_tables.behaviours_table(by_family))]
    fragments += [sheet("families-slopes", slopes)] if len(slopes) else []
    return [
        title("families"),
        picture("followed", family_tables.followed, by_family),
        sheet("families-judges", family_tables.judges_table(by_family)),
        *markup.folded(FOLDED["families"], fragments),
        paragraph(render_text("paragraphs", "families", measured=by_family.measured)),
    ]


@section
def onsets(evidence: Evidence) -> list[str]:
    """When each run's gap began to grow, by the change point and by the threshold grid."""
    table = sheet("onsets", onset_table(evidence.onsets))
    looked_for = any(math.isfinite(line.onset.p) for line in evidence.onsets)
    drawn = [picture("onsets", onset_display.onsets, evidence.onsets)] if looked_for else []
    return [title("onsets"), *drawn, table, paragraph(PARAGRAPHS["onsets"])]


@section
def frontier(evidence: Evidence) -> list[str]:
    """Truth against judge along training, the over-optimisation fits where KL is known, and what
    choosing by the judge would give without training."""
    chosen: list[str] = []
    if evidence.best_of_n:
        table = sheet("best_of_n", best_of_n_table(evidence.best_of_n))
        chosen = markup.folded(FOLDED["frontier"], [table, paragraph(PARAGRAPHS["best_of_n"])])
    return [*_frontier(evidence), *chosen]


def _frontier(evidence: Evidence) -> list[str]:
    head, fits = title("frontier"), evidence.overoptimisation
    if not fits:
        return [head, paragraph(EMPTY["frontier"])]
    drawn = onset_display.frontier(evidence.runs)
    if drawn is None:
        return [head, paragraph(EMPTY["path"])]
    fragments = [head, markup.figure(drawn, render_text("captions", "frontier"))]
    fitted = [fit for fit in fits if fit["best"] is not None and fit["score"] == "truth"]
    if not fitted:
        why = "; ".join(sorted({fit["note"] for fit in fits}))
        return [*fragments, paragraph(render_text("limits", "no_fit", why=why))]
    return [*fragments, sheet("peaks", peaks_table(fitted)), paragraph(PARAGRAPHS["peaks"])]


@section
def field(evidence: Evidence) -> list[str]:
    """What other studies of the field report."""
    frames = field_tables.tables(evidence.field)
    if not frames:
        return [title("field"), paragraph(EMPTY["field"])]
    drawn = len(evidence.field.metrics) > 1 and "aggregates" in frames
    profiles = [picture("profiles", field_tables.profiles, evidence.field)] if drawn else []
    first, *others = (
        [sheet(f"field-{name}", table), paragraph(field_tables.meaning(name, evidence.field))]
        for name, table in frames.items()
    )
    folded = markup.folded(FOLDED["field"], chain(*others)) if others else []
    return [title("field"), *profiles, *first, *folded]


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
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("judgedrift", "numpy", "pandas", "scipy")
    )
    fragments = [
        title("provenance"),
        "<h3>Runs behind each arm</h3>",
        *(_runs_of(evidence, arm) for arm in evidence.arms),
        paragraph(render_text("paragraphs", "provenance", packages=packages)),
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
    sentences = words.findings(evidence)
    summary = render_text("folded", "findings", count=len(sentences))
    return [title("findings"), *markup.folded(summary, [markup.sentences(sentences)], printed=True)]


@section
def caveats(evidence: Evidence) -> list[str]:
    """What cannot be concluded from this study, and why."""
    return [title("caveats"), markup.sentences(limits(evidence))]


@section
def method(evidence: Evidence) -> list[str]:
    """How to read the numbers."""
    rests = render_text("shift", "frozen" if evidence.frozen else "rollouts", tail=TAIL)
    lines = [line.format(shift=rests) for line in TEXTS["method"]]
    return [title("method"), markup.sentences(lines)]


def _shifts(name: str, shifts: pd.DataFrame, base: str | None) -> Markup:
    """A table of shifts with what its file holds."""
    return sheet(name, tables.shifts_table(shifts, base), shifts, base=base)


def _runs_of(evidence: Evidence, arm: str) -> str:
    """An arm's runs, those that no estimate rests on set apart."""
    cells = evidence.cells[evidence.cells["arm"] == arm]
    is_used = cells["cell"].isin(evidence.used_cells)
    text = f"{arm}: {', '.join(cells.loc[is_used, 'cell']) or 'none'}"
    if not is_used.all():
        text += f"; in no estimate: {', '.join(cells.loc[~is_used, 'cell'])}"
    return Markup('<p id="{}">{}</p>').format(markup.anchor(arm), text)


SECTIONS = (
    front, scores, gap, behaviours, doses, ledger, predictions, knockout, interventions,
    mixture, workflow, families, onsets, frontier, field, judges, failures, samples,
    findings, runs, caveats, method, provenance,
)  # fmt: skip
