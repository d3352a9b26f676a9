# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The report of a study, section by section
# What `judgedrift report` writes as one page. `evidence` holds everything that the sections say.

# %%
from IPython.display import HTML, display

from analysis.report import sections
from analysis.report.evidence import gather

# %% tags=["parameters"]
study = "quickstart"  # its name
runs_dir = "runs"  # the folder that holds the studies

# %%
evidence = gather(f"{runs_dir}/{study}")

# %%
for section in sections.SECTIONS:
    display(HTML("".join(section(evidence))))
