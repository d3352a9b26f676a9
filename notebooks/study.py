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
# # What did each judge teach?
#
# A study as its records have it, one question for each cell. Every cell is a few lines over
# `analysis`, so change what you want to know and run it again. Nothing here changes the study.

# %%
import numpy as np
import pandas as pd

from analysis import read_study
from analysis.display.markup import number
from study.features import FEATURES

pd.options.display.float_format = number  # three digits
pd.options.display.max_colwidth = 400  # letters of a text

# %% tags=["parameters"]
study = "quickstart"  # its name
runs_dir = "runs"  # the folder that holds the studies
behaviour = "length"  # one of `study.features.FEATURES`
most = 10  # answers that are shown

# %%
study_dir = f"{runs_dir}/{study}"
records = read_study(study_dir)
finished = [run for run in records.runs if run.done]
arms = sorted({run.arm for run in finished})
print(*records.problems, f"{len(finished)} finished runs of {len(records.table)}", sep="\n")

# %% [markdown]
# ## What ran?
# One row for each cell. `arm` is the judge and whatever else the study varies, but not the seed.

# %%
records.table[["arm", "seed", "state", "step", "steps", "seconds", "policy", "task", "cell"]]

# %% [markdown]
# ## Do the judge and the truth part?
# Mean over the runs of an arm at each step, with its 95 % interval: what the judge gave, and what
# the rules of the task say of the same answers. A judge that rises while the truth falls is being
# exploited. `records.curve("truth", "judge_score")` has the numbers.

# %%
records.plot() if finished else None

# %% [markdown]
# ## How far did the scores move?
# On the answers that the report compares arms on: held-out rows before and after training where all
# runs have them, else rollouts of the first and the last tenth of the steps. The mean over the runs
# of an arm with its 95 % interval. The run is the unit: 10,000 answers of one run are one run.

# %%
print(records.effects().where)
pd.DataFrame(
    [
        {"arm": arm, "score": name, **records.shift(name, arm).row("shift", "runs")}
        for arm in arms
        for name in ("judge_score", "truth", "gap")
    ]
)

# %% [markdown]
# ## How did one behaviour move?
# Set `behaviour` above to any of `FEATURES`. The shift is in the behaviour's own unit: words for
# length.

# %%
pd.DataFrame([{"arm": arm, **records.shift(behaviour, arm).row("shift", "runs")} for arm in arms])

# %% [markdown]
# ## Which behaviours moved most?
# In standard deviations over all answers of the study, so that behaviours can be compared. Those
# that never vary are left out.

# %%
every = {
    name: np.concatenate([run.features[..., k].ravel() for run in finished] or [np.zeros(1)])
    for k, name in enumerate(FEATURES)
}
spread = {name: values[np.isfinite(values)].std() for name, values in every.items()}
moved = pd.DataFrame(
    {
        arm: {name: records.shift(name, arm).value / sd for name, sd in spread.items() if sd > 0}
        for arm in arms
    }
)
moved.loc[moved.abs().max(axis=1).sort_values(ascending=False).index] if arms else moved

# %% [markdown]
# ## Which answers does the judge overrate most?
# Judge minus truth, largest first. Read some of them: this is where a bias shows its face.

# %%
columns = ["cell", "rollout_id", "arm", "seed", "step", "gap", "judge_score", "truth"]
answers = records.answers(columns=[*columns, "prompt", "answer"])
worst = answers.sort_values("gap", ascending=False, kind="stable").head(most)
worst.drop(columns=["cell", "rollout_id"])

# %% [markdown]
# ## What did the judge say of the first of them?

# %%
columns = ["judge", "role", "outcome", "score", "reason", "reply"]
verdicts = records.verdicts(columns=["cell", "rollout_id", "arm", *columns])
worst_verdicts = verdicts.merge(worst[["cell", "rollout_id"]].head(1), on=["cell", "rollout_id"])
worst_verdicts[["arm", *columns]]

# %% [markdown]
# ## Which verdicts are missing?
# A failed verdict is missing, never 0. Where many are, look at which answers.

# %%
records.outcomes.groupby(["judge", "role", "outcome"])["verdicts"].sum().unstack(fill_value=0)

# %% [markdown]
# ## What does the judge pay for beyond the truth?
# Correlation over answers of the first tenth of the steps, before the policy has moved, between
# each behaviour and the judge's error (judge minus truth). A behaviour with a large one is what
# training is about to bring out. `analysis.ledger.judge_error` does this with care.


# %%
def early_error(arm):
    """Behaviour -> its correlation with the judge's error in the arm's early answers."""
    runs = [run.where(run.step_P <= max(1, run.steps.max() // 10)) for run in finished]
    runs = [run for run in runs if run.arm == arm]
    error = np.concatenate([(run.judge - run.truth).ravel() for run in runs])
    correlations = {}
    for k, name in enumerate(FEATURES):
        values = np.concatenate([run.features[..., k].ravel() for run in runs])
        both = np.isfinite(error) & np.isfinite(values)
        if both.sum() > 2 and values[both].std() > 0 and error[both].std() > 0:
            correlations[name] = np.corrcoef(values[both], error[both])[0, 1]
    return correlations


pd.DataFrame({arm: early_error(arm) for arm in arms})

# %% [markdown]
# ## And now?
# The whole report is beside this notebook, `bias_report.html`. Its tables come from one call:
# `from analysis.report.evidence import gather; evidence = gather(study_dir)`.
