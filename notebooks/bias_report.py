# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %%
from IPython.display import HTML, display

from analysis.reports import (
    dose,
    figures,
    markup,
    pathway,
    pathway_sections,
    provenance,
)
from analysis.reports import (
    words as findings,
)
from analysis.run import drift

# %% tags=["parameters"]
study_dir = ""  # the study's folder, e.g. runs/quickstart
sample_prompts = 2  # prompts shown side by side at the first, middle and last step

# %%
found = findings.gather(study_dir)
path = pathway.trace(found.records, found.cells)
display({provenance.SUMMARY_MIME: findings.summary_rows(found), "text/html": ""}, raw=True)


def show(*fragments: str) -> None:
    display(HTML("".join(fragments)))


# %%
show(
    f"<h1>Bias report: {markup.escape(found.name)}</h1>",
    "<h2>Findings</h2>",
    markup.sentences([*findings.findings(found), *pathway.findings(path)]),
    "<h2>What cannot be concluded</h2>",
    markup.sentences([*findings.limits(found), *pathway.limits(path)]),
    markup.paragraph(provenance.METHOD),
)

# %%
show("<h2>Runs</h2>", markup.table(provenance.runs_table(found)))

# %%
show(
    "<h2>Did the judge's score rise, and the truth with it?</h2>",
    markup.table(provenance.shifts_table(found.score_shifts, found.base)),
)
curves = drift.learning_curves(found.scores)
if curves["mean"].notna().any():
    show(
        markup.figure(
            figures.learning(curves),
            "Judge score and rule truth while training, one panel per arm. Lines are means over "
            "runs, bands 95 % t intervals over runs.",
        )
    )
else:
    show(markup.paragraph("No run has a score or a truth yet, so there is no curve to draw."))

# %%
show("<h2>How far does the judge run ahead of the truth?</h2>")
if curves.loc[curves["metric"] == "gap", "mean"].notna().any():
    show(
        markup.figure(
            figures.gap(curves),
            "Judge score minus rule truth of the same rollouts, by training step. Lines are means "
            "over runs, bands 95 % t intervals over runs.",
        )
    )
else:
    show(markup.paragraph("No rollout has both a judge score and a truth, so there is no gap."))

# %%
show("<h2>Which behaviours did training move?</h2>")
if len(found.features):
    show(
        markup.figure(
            figures.behaviour(drift.learning_curves(found.features)),
            "Behaviour features of the answers by training step. Lines are means over runs, bands "
            "95 % t intervals over runs.",
        )
    )
    if found.feature_shifts["diff"].notna().any():
        show(
            markup.figure(
                figures.shifts(found.feature_shifts, str(found.base)),
                f"How much further each behaviour moved than under {found.base}: differences "
                "paired by seed with 95 % t intervals. Right of the line: more of it.",
            )
        )
    show(markup.table(provenance.shifts_table(found.feature_shifts, found.base)))
else:
    show(markup.paragraph("No behaviour feature varies in the recorded answers."))
show(markup.paragraph(provenance.features_note(found)))

# %%
show(*dose.dose_section(found.used))

# %%
show(*pathway_sections.sections(path))

# %%
show(
    "<h2>Which verdicts are missing?</h2>",
    markup.table(provenance.failures_table(found)),
)
if (found.failures["unscored"] > 0).any():
    show(
        markup.figure(
            figures.failures(found.failures, found.failures_by_length),
            "Unscored verdicts by reason and by decile of answer length. Points are means over "
            "runs, bars 95 % t intervals over runs.",
        )
    )
else:
    verdicts = int(found.records.outcomes["verdicts"].sum())
    show(markup.paragraph(f"All {verdicts:,} verdicts on record are scored."))

# %%
samples = drift.sample_completions(
    drift.sample_rollouts(found.records, found.cells), sample_prompts
)
show("<h2>What the answers look like</h2>", markup.paragraph(provenance.SAMPLES))
show(markup.samples(samples) or markup.paragraph("No completion is on record."))

# %%
show("<h2>Where the numbers come from</h2>", *provenance.provenance(found))
