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
from IPython.display import display

from analysis.display.notebook import SUMMARY_MIME
from analysis.display.page import show
from analysis.report import sections
from analysis.report.evidence import gather
from analysis.report.headlines import headlines
from analysis.report.tables import numbers, summary_rows

# %% tags=["parameters"]
study = "quickstart"  # its name
runs_dir = "runs"  # the folder that holds the studies
sample_prompts = 2  # prompts shown side by side at the first, middle and last step

# %%
evidence = gather(f"{runs_dir}/{study}")
summary = {
    "rows": summary_rows(evidence),
    "headlines": headlines(evidence),
    "numbers": numbers(evidence),
}
display({SUMMARY_MIME: summary, "text/html": ""}, raw=True)

# %%
show(sections.front(evidence))

# %%
show(sections.scores(evidence))

# %%
show(sections.gap(evidence))

# %%
show(sections.behaviours(evidence))

# %%
show(sections.doses(evidence))

# %%
show(sections.ledger(evidence))

# %%
show(sections.predictions(evidence))

# %%
show(sections.knockout(evidence))

# %%
show(sections.interventions(evidence))

# %%
show(sections.mixture(evidence))

# %%
show(sections.workflow(evidence))

# %%
show(sections.families(evidence))

# %%
show(sections.onsets(evidence))

# %%
show(sections.frontier(evidence))

# %%
show(sections.field(evidence))

# %%
show(sections.judges(evidence))

# %%
show(sections.failures(evidence))

# %%
show(sections.samples(evidence, sample_prompts))

# %%
show(sections.findings(evidence))

# %%
show(sections.runs(evidence))

# %%
show(sections.caveats(evidence))

# %%
show(sections.method(evidence))

# %%
show(sections.provenance(evidence))
