"""The report's sections in their order: each turns one `Evidence` into fragments of HTML.

A section says in words what a study is too small or too blind to show. `SECTIONS` lists them, and
their fixed texts stand in ``texts.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pandas as pd

from analysis.arm import crossjudge, propagation
from analysis.arm.dose import left_out, straight
from analysis.arm.knockout import sentence as knockout_sentence
from analysis.records.behaviour import TAIL
from analysis.reports import corrections as correction_tables
from analysis.reports import families as family_tables
from analysis.reports import field as field_tables
from analysis.reports import figures, markup, tables
from analysis.reports import mixture as mixture_tables
from analysis.reports import workflow as workflow_tables
from analysis.reports.evidence import Evidence
from analysis.reports.limits import limits
from analysis.reports.markup import TEXTS, paragraph, said
from analysis.reports.words import findings, substituted
from analysis.run import drift
from analysis.statistics.estimate import columns

EMPTY, PARAGRAPHS = TEXTS["empty"], TEXTS["paragraphs"]


def _title(section: str) -> str:
    return f"<h2>{TEXTS['titles'][section]}</h2>"


def _figure(name: str, draw: Callable[..., Any], *data: Any, **named: str) -> str:
    """A figure with the caption of that name."""
    return markup.figure(draw(*data), said("captions", name, **named))


def head(evidence: Evidence) -> list[str]:
    """Title, findings, limits, and how to read the numbers."""
    rests = "frozen" if evidence.frozen else "rollouts"
    return [
        f"<h1>Judge report: {markup.escape(evidence.name)}</h1>",
        "<h2>Findings</h2>",
        markup.sentences(findings(evidence)),
        "<h2>What cannot be concluded</h2>",
        markup.sentences(limits(evidence)),
        paragraph(TEXTS["method"].format(shift=said("shift", rests, tail=TAIL))),
    ]


def runs(evidence: Evidence) -> list[str]:
    """State and axes of every run."""
    return [_title("runs"), markup.table(tables.runs_table(evidence))]


def scores(evidence: Evidence) -> list[str]:
    """Judge score and truth along training."""
    curves = drift.learning_curves(evidence.scores)
    return [
        _title("scores"),
        markup.table(tables.shifts_table(evidence.score_shifts, evidence.base)),
        _figure("scores", figures.learning, curves)
        if curves["mean"].notna().any()
        else paragraph(EMPTY["scores"]),
    ]


def gap(evidence: Evidence) -> list[str]:
    """Judge minus truth along training."""
    curves = drift.learning_curves(evidence.scores)
    has_gap = curves.loc[curves["metric"] == "gap", "mean"].notna().any()
    drawn = _figure("gap", figures.gap, curves) if has_gap else paragraph(EMPTY["gap"])
    parts = tables.ledger_table(evidence.gap_parts, "gap")
    if parts.empty:
        return [_title("gap"), drawn, *([paragraph(EMPTY["gap_parts"])] if has_gap else [])]
    return [_title("gap"), drawn, markup.table(parts), paragraph(PARAGRAPHS["gap"])]


def behaviours(evidence: Evidence) -> list[str]:
    """Behaviour features along training, and how far each arm moved beyond the base arm."""
    fragments, shifts = [_title("behaviours")], evidence.feature_shifts
    if len(evidence.features):
        curves = drift.learning_curves(evidence.features)
        fragments.append(_figure("behaviours", figures.behaviour, curves))
        if shifts["diff"].notna().any():
            base = str(evidence.base)
            fragments.append(_figure("shifts", figures.shifts, shifts, base, base=base))
        fragments.append(markup.table(tables.shifts_table(shifts, evidence.base)))
    else:
        fragments.append(paragraph(EMPTY["behaviours"]))
    if len(evidence.held_out):
        fragments += [
            markup.table(tables.held_out_table(evidence.held_out)),
            paragraph(PARAGRAPHS["held_out"]),
        ]
    note = PARAGRAPHS["features"]
    if evidence.records.keyword:
        note += f" The keyword is {evidence.records.keyword!r}."
    if evidence.absent:
        note += f" The same in every answer, so left out: {', '.join(evidence.absent)}."
    return [*fragments, paragraph(note)]


def doses(evidence: Evidence) -> list[str]:
    """Every behaviour that the judges pay for in three doses or more; nothing without them."""
    fragments = [fragment for dose in evidence.doses for fragment in _dose(dose)]
    return [_title("doses"), *fragments] if fragments else []


def _dose(dose: dict[str, Any]) -> list[str]:
    feature, fit = dose["feature"], straight(dose["lack_of_fit_p"])
    others = left_out(dose["left_out"])
    theory = figures.dose_caption(dose)
    by_dose = ", ".join(f"{amount:g} {shift:+.3g}" for amount, shift in dose["monotone"])
    emax = f"; Emax: {dose['emax']['note']}" if dose["emax"]["note"] else ""
    within = "within seeds" if dose["slope"]["unit"] == "seed" else "over runs"
    return [
        _figure("doses", figures.dose_response, dose, feature=feature, theory=theory),
        markup.table(tables.dose_table(dose)),
        markup.sentences(
            [
                f"Monotone fit, dose and shift in {feature}: {by_dose}.",
                f"{fit[0].upper()}{fit[1:]}{emax}.",
                f"Doses are permuted {within} for the trend.",
                *([f"{others}."] if others else []),
            ]
        ),
    ]


def ledger(evidence: Evidence) -> list[str]:
    """What the advantages were made of, step by step."""
    steps = evidence.ledger
    unique = [name for name in steps if name.startswith("unique/")]
    if steps.empty or not steps[unique].notna().any().any():
        return [_title("ledger"), paragraph(EMPTY["ledger"])]
    return [
        _title("ledger"),
        _figure("ledger", figures.stacked, steps, unique),
        markup.table(tables.ledger_table(evidence.ledger_by_arm)),
        paragraph(PARAGRAPHS["ledger"]),
    ]


def predictions(evidence: Evidence) -> list[str]:
    """Predicted beside observed shifts, where there are runs enough."""
    if evidence.no_prediction:
        return [_title("predictions"), paragraph(evidence.no_prediction)]
    predicted = pd.DataFrame([columns(row, predicted="") for row in evidence.predicted])
    calibration = pd.DataFrame([columns(line, slope="") for line in evidence.calibration])
    compared = calibration.dropna(subset=["r2"]).drop(columns="note")
    meaning = PARAGRAPHS["predictions"]
    if why := propagation.unpredicted(evidence.predicted):
        left_out = ", ".join(f"{cell} ({reason})" for cell, reason in sorted(why.items()))
        meaning += f" Not predicted: {left_out}."
    if sentence := propagation.against(evidence.predicted):
        meaning += f" {sentence}"
    return [
        _title("predictions"),
        _figure("predictions", propagation.figure, predicted, calibration),
        markup.table(compared.rename(columns=TEXTS["calibration"])),
        paragraph(meaning),
    ]


def mixture(evidence: Evidence) -> list[str]:
    """What the judge of several domains did to each; nothing where rows name no domain."""
    mixed = evidence.mixture
    if mixed is None:
        return []
    named = TEXTS["mixture"]
    fragments = [
        _title("mixture"),
        _figure("mixture", mixture_tables.figure, mixed),
        *_titled(named["rates"], mixture_tables.rates_table(mixed, mixed.whole)),
        *_titled(named["mix"], mixture_tables.mix_table(mixed, mixed.whole)),
        paragraph(PARAGRAPHS["mixture"]),
        *_titled(named["expected"], mixture_tables.expected_table(mixed)),
        paragraph(mixture_tables.agreed(mixed.comparison.of_mix)),
    ]
    if mixed.comparison.points:
        table = mixture_tables.accuracy_table(mixed)
        fragments += _titled(named["accuracy"], table)
        fragments.append(paragraph(mixture_tables.agreed(mixed.comparison.of_accuracy)))
    else:
        fragments.append(paragraph(said("empty", "accuracy", why=mixed.comparison.note)))
    if mixed.transfers:
        fragments += _titled(named["transfer"], mixture_tables.transfer_table(mixed))
    if mixed.swaps:
        fragments += _titled(named["swaps"], mixture_tables.swaps_table(mixed))
        fragments.append(markup.sentences(mixture_tables.moved(mixed)))
    return [*fragments, *([markup.sentences(mixed.problems)] if mixed.problems else [])]


def _titled(title: str, table: pd.DataFrame) -> list[str]:
    return [f"<h3>{markup.escape(title)}</h3>", markup.table(table)]


def workflow(evidence: Evidence) -> list[str]:
    """Which programs a policy wrote and what its judge paid for; nothing where it wrote none."""
    told = evidence.workflow
    if told is None:
        return []
    named = TEXTS["workflow"]
    fragments = [
        _title("workflow"),
        *_titled(named["rates"], workflow_tables.rates_table(told)),
        _figure("over_steps", workflow_tables.over_steps, told),
        *_titled(named["gap"], workflow_tables.gap_table(told)),
        *_titled(named["operators"], workflow_tables.operators_table(told)),
    ]
    if (drawn := workflow_tables.over_rewards(told)) is not None:
        fragments.append(markup.figure(drawn, said("captions", "over_rewards")))
    fragments += [
        paragraph(PARAGRAPHS["workflow"]),
        *_titled(named["exploits"], workflow_tables.exploits_table(told)),
        *_titled(named["shares"], workflow_tables.shares_table(told)),
    ]
    if (drawn := workflow_tables.lost_truth(told)) is not None:
        fragments += _titled(named["optimum"], workflow_tables.optimum_table(told))
        fragments.append(markup.figure(drawn, said("captions", "lost_truth")))
    if told.treatments:
        fragments += _titled(named["treatments"], workflow_tables.treatments_table(told))
    return [*fragments, *([markup.sentences(told.problems)] if told.problems else [])]


def knockout(evidence: Evidence) -> list[str]:
    """Whether a shift goes away with its cause; nothing where none was taken out."""
    told = evidence.knockouts
    if not told:
        return []
    return [
        _title("knockout"),
        markup.table(correction_tables.knockout_table(told)),
        markup.sentences(map(knockout_sentence, told)),
        paragraph(PARAGRAPHS["knockout"]),
    ]


def interventions(evidence: Evidence) -> list[str]:
    """What each intervention bought; nothing without one."""
    told = evidence.interventions
    if told is None:
        return []
    table = markup.table(correction_tables.bought_table(told))
    return [_title("interventions"), table, paragraph(PARAGRAPHS["interventions"])]


def families(evidence: Evidence) -> list[str]:
    """What each natural judge paid for and where its runs went; nothing where all are alike."""
    told = evidence.families
    if told is None:
        return []
    named, slopes = TEXTS["families"], family_tables.slopes_table(told)
    fragments = [
        _title("families"),
        *_titled(named["judges"], family_tables.judges_table(told)),
        *_titled(named["behaviours"], family_tables.behaviours_table(told)),
    ]
    fragments += _titled(named["slopes"], slopes) if len(slopes) else []
    return [*fragments, paragraph(said("paragraphs", "families", measured=told.measured))]


def onsets(evidence: Evidence) -> list[str]:
    """When each run's gap began to grow, by the change point and by the threshold grid."""
    table = markup.table(tables.onset_table(evidence.onsets))
    return [_title("onsets"), paragraph(PARAGRAPHS["onsets"]), table]


def frontier(evidence: Evidence) -> list[str]:
    """Truth against judge along training, the over-optimisation fits where KL is known, and what
    choosing by the judge would give without training."""
    chosen: list[str] = []
    if evidence.best_of_n:
        table = markup.table(tables.best_of_n_table(evidence.best_of_n))
        chosen = [table, paragraph(PARAGRAPHS["best_of_n"])]
    return [*_frontier(evidence), *chosen]


def _frontier(evidence: Evidence) -> list[str]:
    title, fits = _title("frontier"), evidence.overoptimisation
    if not fits:
        return [title, paragraph(EMPTY["frontier"])]
    drawn = figures.frontier(evidence.runs)
    if drawn is None:
        return [title, paragraph(EMPTY["path"])]
    fragments = [title, markup.figure(drawn, said("captions", "frontier"))]
    fitted = [fit for fit in fits if fit["best"] is not None and fit["score"] == "truth"]
    if not fitted:
        why = "; ".join(sorted({fit["note"] for fit in fits}))
        return [*fragments, paragraph(said("limits", "no_fit", why=why))]
    return [*fragments, markup.table(tables.peaks_table(fitted)), paragraph(PARAGRAPHS["peaks"])]


def field(evidence: Evidence) -> list[str]:
    """What other studies of the field report."""
    told = field_tables.tables(evidence.field)
    if not told:
        return [_title("field"), paragraph(EMPTY["field"])]
    fragments = [_title("field")]
    for name, table in told.items():
        fragments += _titled(TEXTS["field"][name], table)
        fragments.append(paragraph(field_tables.meaning(name, evidence.field)))
        if name == "aggregates" and len(evidence.field.metrics) > 1:
            fragments.append(_figure("profiles", field_tables.profiles, evidence.field))
    return fragments


def judges(evidence: Evidence) -> list[str]:
    """Every policy under every judge that looked on or replayed, and what was given up."""
    fragments = [_title("judges")]
    if any(run.shadows for run in evidence.runs):
        agreement = evidence.agreement
        each_pair_once = agreement[agreement["judge"] < agreement["other"]]
        meanings = [f"{name}: {meaning}" for name, meaning in crossjudge.COLUMNS.items()]
        fragments += [
            _figure("gains", crossjudge.figure, evidence.gains),
            markup.table(pd.DataFrame(crossjudge.inflation_rows(evidence.inflation))),
            markup.sentences(meanings),
            _figure("agreement", crossjudge.agreement_figure, agreement),
            markup.table(each_pair_once.rename(columns={"mean": "correlation", "n": "runs"})),
        ]
    else:
        fragments.append(paragraph(EMPTY["judges"]))
    if evidence.problems:
        fragments.append(markup.sentences(evidence.problems))
    none = evidence.no_substitution or EMPTY["substitutions"]
    return [*fragments, markup.sentences(substituted(evidence) or [none])]


def failures(evidence: Evidence) -> list[str]:
    """Which verdicts are missing, and why."""
    table, verdicts = evidence.failures, int(evidence.records.outcomes["verdicts"].sum())
    percent = [f"{100 * share:.2f} %" for share in table["unscored"]]
    return [
        _title("failures"),
        markup.table(table.assign(unscored=percent)),
        _figure("failures", figures.failures, table, evidence.failures_by_length)
        if (table["unscored"] > 0).any()
        else paragraph(said("empty", "failures", verdicts=verdicts)),
    ]


def samples(evidence: Evidence, prompts: int = 2) -> list[str]:
    """Answers of every arm side by side, to so many prompts of the first, middle and last step."""
    rollouts = drift.sample_rollouts(evidence.records, evidence.used_cells)
    shown = markup.samples(drift.sample_completions(rollouts, prompts))
    return [
        _title("samples"),
        paragraph(PARAGRAPHS["samples"]),
        shown or paragraph(EMPTY["samples"]),
    ]


def provenance(evidence: Evidence) -> list[str]:
    """Run ids with config hash, code version and numbers of records; problems; versions."""
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("judgedrift", "numpy", "pandas", "scipy")
    )
    fragments = [
        _title("provenance"),
        "<h3>Runs behind each arm</h3>",
        *(_runs_of(evidence, arm) for arm in evidence.arms),
        paragraph(said("paragraphs", "provenance", packages=packages)),
        markup.table(tables.sources_table(evidence)),
        "<p>To make it again: <code>python -m analysis.report "
        f"study={markup.escape(evidence.name)}</code></p>",
    ]
    if evidence.records.problems:
        fragments += ["<h3>Could not be read</h3>", markup.sentences(evidence.records.problems)]
    return fragments


def _runs_of(evidence: Evidence, arm: str) -> str:
    """An arm's runs, those that no estimate rests on set apart."""
    cells = evidence.cells[evidence.cells["arm"] == arm]
    used = cells["cell"].isin(evidence.used_cells)
    text = f"{arm}: {', '.join(cells.loc[used, 'cell']) or 'none'}"
    if not used.all():
        text += f"; in no estimate: {', '.join(cells.loc[~used, 'cell'])}"
    return f'<p id="{markup.anchor(arm)}">{markup.escape(text)}</p>'


SECTIONS = (
    head, runs, scores, gap, behaviours, doses, ledger, predictions, knockout, interventions,
    mixture, workflow, families, onsets, frontier, field, judges,
    failures, samples, provenance,
)  # fmt: skip
