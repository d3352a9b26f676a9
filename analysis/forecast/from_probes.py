"""Judges' biases from probes alone: no candidate is asked about any rollout.

An edit of a text changes its behaviours and, more than it changes the truth, the score. Over all
edits of a folder of probes the bias is the regression of that change on the changes of behaviours.
What the score's spread within groups would be follows from it and from the rule truth of first
rollouts; of a judge's own noise it has what the regression leaves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.forecast.estimate import FirstRewards
from analysis.forecast.response import RIDGE, Start
from analysis.forecast.units import Candidates, exposure, start_of
from analysis.probes.effects import pairs
from analysis.probes.profile import read, scores
from analysis.statistics.estimate import NAN
from study.errors import UserError

WORDS = {"length": "words"}
"""Behaviours that a table of probes calls otherwise."""


def probed(folder: Path, first_rewards: FirstRewards) -> Candidates:
    """The probed judges, as they would train from the start of that study. Raises UserError: no
    folder of probes, no judge in it that scores single texts, or a study without a truth."""
    start = start_of(first_rewards)
    table = scores(read(folder))
    alone = table[~table["pairwise"]]
    if alone.empty:
        raise UserError(
            f"{folder} has no judge that scores single texts, but a forecast needs scores. Probe"
            " one with another grading, for example judge.grading.name=likert"
        )
    edits = pairs(alone)
    judges = tuple(dict.fromkeys(alone["judge"]))
    bias = [bias_of_edits(edits[edits["judge"] == judge], alone, start) for judge in judges]
    size = exposure(first_rewards.every[0].config.trainer)
    push = np.full((len(judges), len(start.names)), NAN)
    return Candidates(judges, start, np.array(bias), push, np.full(len(judges), size))


def bias_of_edits(edits: pd.DataFrame, texts: pd.DataFrame, start: Start) -> np.ndarray:
    """A judge's bias as in `analysis.forecast.response.bias_of`, shape (K,), from its edits.

    Args:
        edits: `analysis.probes.effects.pairs` of the judge; an edit without a known change is left
            out.
        texts: behaviours of every probe, by ``probe_id``.

    NaN where fewer edits than behaviours are known.
    """
    names = list(start.names[:-1])
    columns = [WORDS.get(name, name) for name in names]
    by_id = texts.drop_duplicates("probe_id").set_index("probe_id")[columns].astype(float)
    known_edits = edits[edits["bias_change"].notna()]
    sd = np.where(start.varies, start.sd, np.inf)[:-1]
    change = (
        by_id.loc[known_edits["probe_id"]].to_numpy() - by_id.loc[known_edits["against"]].to_numpy()
    )
    x, y = change / sd, known_edits["bias_change"].to_numpy(dtype=float)
    if len(y) <= len(names):
        return np.full(len(names), NAN)
    paid = np.linalg.solve(x.T @ x + RIDGE * len(y) * np.eye(len(names)), x.T @ y)
    noise = float(((y - x @ paid) ** 2).mean()) / 2  # of a difference of two scores
    weights = np.append(paid, start.sd[-1])
    return paid / float(weights @ start.correlation @ weights + noise) ** 0.5
