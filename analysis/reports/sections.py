"""The report's sections in their order: each turns one `Evidence` into fragments of HTML.

A section says in words what a study is too small or too blind to show. `SECTIONS` lists them.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import pandas as pd

from analysis.arm import crossjudge, propagation
from analysis.arm.crossjudge import COLUMNS, agreement_figure
from analysis.arm.dose import straight
from analysis.arm.propagation import unpredicted
from analysis.records.behaviour import TAIL
from analysis.reports import figures, markup, tables
from analysis.reports.limits import limits
from analysis.reports.words import findings, substituted
from analysis.run import drift
from analysis.statistics.estimate import columns

if TYPE_CHECKING:
    from typing import Any

    from analysis.reports.evidence import Evidence

METHOD = (
    "How to read the numbers: brackets are 95 % t intervals over runs, because a judge is applied "
    "to a run and the prompts and steps inside it are not replicates. A shift is the mean of the "
    f"last {TAIL:.0%} of the recorded steps minus that of the first {TAIL:.0%}. Comparisons are "
    "paired by seed: arms of one seed share prompts, first weights and first rollouts. Behaviours "
    "are ranked by their difference in standard deviations over all answers; Holm p corrects over "
    "the measures of one arm. A verdict that could not be had is missing, never 0; worst cases "
    "are what a shift would be if every missing score were the end of the scale that lowers or "
    "raises it most. Standard errors are over runs (which the brackets use) and, for comparison, "
    "within these very runs with groups or rollouts taken for independent, which says nothing of "
    "other seeds."
)


def head(evidence: Evidence) -> list[str]:
    """Title, findings, limits, and how to read the numbers."""
    return [
        f"<h1>Bias report: {markup.escape(evidence.name)}</h1>",
        "<h2>Findings</h2>",
        markup.sentences(findings(evidence)),
        "<h2>What cannot be concluded</h2>",
        markup.sentences(limits(evidence)),
        markup.paragraph(METHOD),
    ]


def runs(evidence: Evidence) -> list[str]:
    """State and axes of every run."""
    return ["<h2>Runs</h2>", markup.table(tables.runs_table(evidence))]


def scores(evidence: Evidence) -> list[str]:
    """Judge score and truth along training."""
    curves = drift.learning_curves(evidence.scores)
    note = (
        "Judge score and rule truth while training, one panel per arm. Lines are means over "
        "runs, bands 95 % t intervals over runs."
    )
    return [
        "<h2>Did the judge's score rise, and the truth with it?</h2>",
        markup.table(tables.shifts_table(evidence.score_shifts, evidence.base)),
        markup.figure(figures.learning(curves), note)
        if curves["mean"].notna().any()
        else markup.paragraph("No run has a score or a truth yet, so there is no curve to draw."),
    ]


def gap(evidence: Evidence) -> list[str]:
    """Judge minus truth along training."""
    curves = drift.learning_curves(evidence.scores)
    note = (
        "Judge score minus rule truth of the same rollouts, by training step. Lines are means "
        "over runs, bands 95 % t intervals over runs."
    )
    return [
        "<h2>How far does the judge run ahead of the truth?</h2>",
        markup.figure(figures.gap(curves), note)
        if curves.loc[curves["metric"] == "gap", "mean"].notna().any()
        else markup.paragraph("No rollout has both a judge score and a truth, so there is no gap."),
    ]


def behaviours(evidence: Evidence) -> list[str]:
    """Behaviour features along training, and how far each arm moved beyond the base arm."""
    fragments = ["<h2>Which behaviours did training move?</h2>"]
    if len(evidence.features):
        note = (
            "Behaviour features of the answers by training step. Lines are means over runs, bands "
            "95 % t intervals over runs."
        )
        drawn = figures.behaviour(drift.learning_curves(evidence.features))
        fragments.append(markup.figure(drawn, note))
        if evidence.feature_shifts["diff"].notna().any():
            note = (
                f"How much further each behaviour moved than under {evidence.base}: differences "
                "paired by seed with 95 % t intervals. Right of the line: more of it."
            )
            drawn = figures.shifts(evidence.feature_shifts, str(evidence.base))
            fragments.append(markup.figure(drawn, note))
        fragments.append(markup.table(tables.shifts_table(evidence.feature_shifts, evidence.base)))
    else:
        fragments.append(markup.paragraph("No behaviour feature varies in the recorded answers."))
    note = "Features are counted in the answer (thinking stripped); equal for every judge."
    if evidence.records.keyword:
        note += f" The keyword is {evidence.records.keyword!r}."
    if evidence.absent:
        note += f" The same in every answer, so left out: {', '.join(evidence.absent)}."
    return [*fragments, markup.paragraph(note)]


def doses(evidence: Evidence) -> list[str]:
    """Every behaviour that the judges pay for in three doses or more; nothing without them."""
    fragments = [fragment for dose in evidence.doses for fragment in _dose(dose)]
    return ["<h2>How much behaviour does a dose buy?</h2>", *fragments] if fragments else []


def _dose(dose: dict[str, Any]) -> list[str]:
    feature, fit = dose["feature"], straight(dose["lack_of_fit_p"])
    note = (
        f"Shift in {feature} of each run against the dose of its judge, with a line, a monotone "
        "fit, an Emax curve where there is one, and what first-order theory says. "
        + figures.dose_caption(dose)
    )
    by_dose = ", ".join(f"{amount:g} {shift:+.3g}" for amount, shift in dose["monotone"])
    within = "within seeds" if dose["slope"]["unit"] == "seed" else "over runs"
    return [
        markup.figure(figures.dose_response(dose), note),
        markup.table(tables.dose_table(dose)),
        markup.sentences(
            [
                f"Monotone fit, dose and shift in {feature}: {by_dose}.",
                f"{fit[0].upper()}{fit[1:]}"
                + (f"; Emax: {dose['emax']['note']}." if dose["emax"]["note"] else "."),
                f"Doses are permuted {within} for the trend.",
            ]
        ),
    ]


def ledger(evidence: Evidence) -> list[str]:
    """What the advantages were made of, step by step."""
    title, steps = "<h2>What did the advantages reward?</h2>", evidence.ledger
    unique = [name for name in steps if name.startswith("unique/")]
    if steps.empty or not steps[unique].notna().any().any():
        return [title, markup.paragraph("No step has rewards that differ within a group.")]
    note = (
        "Share of the within-group variance of the advantage that each behaviour explains alone, "
        "and what several explain together, by training step (mean over runs). The rest is what no "
        "behaviour explains, the truth among it."
    )
    return [
        title,
        markup.figure(figures.stacked(steps, unique), note),
        markup.table(tables.ledger_table(evidence.ledger_by_arm)),
        markup.paragraph("Means over the steps of a run; brackets are 95 % t intervals over runs."),
    ]


def predictions(evidence: Evidence) -> list[str]:
    """Predicted beside observed shifts, where there are runs enough."""
    title = "<h2>Does what was rewarded explain what was learned?</h2>"
    if evidence.no_prediction:
        return [title, markup.paragraph(evidence.no_prediction)]
    predicted = pd.DataFrame([row.row() for row in evidence.predicted])
    calibration = pd.DataFrame([columns(line, slope="") for line in evidence.calibration])
    note = (
        "Shift of each run (last tenth of the steps minus first) against the one predicted from "
        "the covariance of advantage and behaviour in its own rollouts, with a step size fitted on "
        "the other runs. On the line: explained; bars are 95 % prediction intervals."
    )
    meaning = (
        "One row per behaviour, over runs. Other seeds of an arm are nearly repetitions: what is "
        "predicted, and not repeated, is in the columns with the step size from other arms."
    )
    if why := unpredicted(evidence.predicted):
        left_out = ", ".join(f"{cell} ({reason})" for cell, reason in sorted(why.items()))
        meaning += f" Not predicted: {left_out}."
    return [
        title,
        markup.figure(propagation.figure(predicted, calibration), note),
        markup.table(tables.calibration_table(evidence.calibration)),
        markup.paragraph(meaning),
    ]


def onsets(evidence: Evidence) -> list[str]:
    """When each run's gap began to grow, by the change point and by the threshold grid."""
    note = (
        "Change point of judge minus truth with its 95 % interval (groups within steps are "
        "resampled), an early stop that would have ended the run, and for comparison the threshold "
        "grid of CHERRL (arXiv 2606.04923) over the rollouts scored .99 or more, and over the "
        "best-scored tenth of each run; docs/onset.md says what each assumes."
    )
    return [
        "<h2>When did the judge leave the truth?</h2>",
        markup.paragraph(note),
        markup.table(tables.onset_table(evidence.onsets)),
    ]


def frontier(evidence: Evidence) -> list[str]:
    """Truth against judge along training, and the over-optimisation fits where KL is known."""
    title, fits = "<h2>How far can the judge be followed?</h2>", evidence.overoptimisation
    if not fits:
        return [title, markup.paragraph("No rule knows the truth of these rows.")]
    drawn = figures.frontier(evidence.runs)
    if drawn is None:
        no_path = "No run has judge and truth at both ends of its training, so there is no path."
        return [title, markup.paragraph(no_path)]
    note = (
        "Mean truth against mean judge score of each step, from the ring (first tenth) to the dot "
        "(last tenth), one line per run. On the grey line the judge says the truth."
    )
    fitted = [fit for fit in fits if fit["best"] is not None and fit["score"] == "truth"]
    if not fitted:
        return [
            title,
            markup.figure(drawn, note),
            markup.sentences(sorted({f["note"] for f in fits})),
        ]
    meaning = "One row per run; the 95 % interval of the peak resamples groups within steps."
    table = markup.table(tables.peaks_table(fitted))
    return [title, markup.figure(drawn, note), table, markup.paragraph(meaning)]


def judges(evidence: Evidence) -> list[str]:
    """Every policy under every judge that looked on or replayed, and what was given up."""
    if not any(run.shadows for run in evidence.runs):
        fragments = [
            markup.paragraph(
                "No other judge looked on. Type shadow=[NAME,NAME] with the sweep, or score the "
                "recorded rollouts again: python -m judges.replay study=... judge=NAME"
            )
        ]
    else:
        gains_note = (
            "Gain in score from the first to the last tenth of the steps, by the judge that "
            "trained (rows) and the judge that scored (columns), on the rollouts that both scored; "
            "mean over runs."
        )
        agreement_note = (
            "Correlation of two judges' scores of the same rollouts, centred within groups: only "
            "differences inside a group reach an advantage. Mean over runs."
        )
        agreement = evidence.agreement
        each_pair_once = agreement[agreement["judge"] < agreement["other"]]
        fragments = [
            markup.figure(crossjudge.figure(evidence.gains), gains_note),
            markup.table(pd.DataFrame([row.row() for row in evidence.inflation])),
            markup.sentences([f"{name}: {meaning}" for name, meaning in COLUMNS.items()]),
            markup.figure(agreement_figure(agreement), agreement_note),
            markup.table(each_pair_once.rename(columns={"mean": "correlation", "n": "runs"})),
        ]
    if evidence.problems:
        fragments.append(markup.sentences(evidence.problems))
    none = evidence.no_substitution or (
        "No arm raised one behaviour and lowered another, each by 0.25 SD beyond the base arm, "
        "in all of its pairs of runs."
    )
    given_up = markup.sentences(substituted(evidence) or [none])
    return ["<h2>Do other judges agree?</h2>", *fragments, given_up]


def failures(evidence: Evidence) -> list[str]:
    """Which verdicts are missing, and why."""
    verdicts = int(evidence.records.outcomes["verdicts"].sum())
    note = (
        "Unscored verdicts by reason and by decile of answer length. Points are means over "
        "runs, bars 95 % t intervals over runs."
    )
    return [
        "<h2>Which verdicts are missing?</h2>",
        markup.table(tables.failures_table(evidence)),
        markup.figure(figures.failures(evidence.failures, evidence.failures_by_length), note)
        if (evidence.failures["unscored"] > 0).any()
        else markup.paragraph(f"All {verdicts:,} verdicts on record are scored."),
    ]


def samples(evidence: Evidence, prompts: int = 2) -> list[str]:
    """Answers of every arm side by side, to so many prompts of the first, middle and last step."""
    rollouts = drift.sample_rollouts(evidence.records, evidence.used_cells)
    shown = markup.samples(drift.sample_completions(rollouts, prompts))
    return [
        "<h2>What the answers look like</h2>",
        markup.paragraph(
            "The same prompts under every arm, at the first, middle and last recorded step of one "
            "seed: the first prompts of the step and the first completion of each, not picked for "
            "their looks."
        ),
        shown or markup.paragraph("No completion is on record."),
    ]


def provenance(evidence: Evidence) -> list[str]:
    """Run ids with config hash, code version and numbers of records; problems; versions."""
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("judgedrift", "numpy", "pandas", "scipy")
    )
    fragments = [
        "<h2>Where the numbers come from</h2>",
        "<h3>Runs behind each arm</h3>",
        *(_runs_of(evidence, arm) for arm in evidence.arms),
        markup.paragraph(
            "Where a table does not say otherwise its unit is the run and its intervals are 95 % t "
            "over the runs of an arm. Onsets and peaks are of single runs and resample groups of "
            "rollouts; predicted shifts have prediction intervals over the other runs. "
            f"Computed with {packages}."
        ),
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
    head, runs, scores, gap, behaviours, doses, ledger, predictions, onsets, frontier, judges,
    failures, samples, provenance,
)  # fmt: skip
