"""What missing verdicts take of the truth's push in the newest steps of a cell that runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from analysis.ledger.chance import chance
from analysis.ledger.missing import truth_push
from analysis.records.runs import Run
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.features import FEATURES, measured
from study.system.files import Damaged

STEPS, MOST = 24, 4096
"""The newest steps that are looked at, and how many rollouts of them."""
LEAST = 0.1
"""Share of the truth's push that is gone, from which it is told."""
ALPHA = 0.001
"""Chance, for all behaviours together, at which a look tells it where nothing is behind it."""
_WANTED = ["step", "group", "member", "prompt_id", "truth", "judge_score", "reward", "answer"]


@dataclass(frozen=True)
class Lost:
    """Of the behaviour whose push lost most: the loss and the whole, with the behaviour in SDs."""

    behaviour: str
    lost: float
    push: float
    steps: int


@lru_cache(maxsize=1024)
def lost_push(
    folder: CellFolder, upto: int, keyword: str, scale: str, on_failure: str
) -> Lost | None:
    """What is lost beyond chance in the last `STEPS` recorded steps up to one; None for nothing.

    Args:
        folder: the cell's.
        upto: the last step that is looked at.
        keyword: what the behaviour of this name counts.
        scale: ``trainer.scale_rewards``.
        on_failure: ``judge.on_failure``.
    """
    rows: list[dict[str, object]] = []
    newest = [part for part in folder.parts("rollouts") if part.step <= upto][-STEPS:]
    for part in reversed(newest):
        if len(rows) >= MOST:
            break
        try:
            rows += read_part(part, _WANTED).to_pylist()
        except Damaged:
            continue
    table = pd.DataFrame(rows, columns=_WANTED)
    if table["judge_score"].notna().all() or table["truth"].isna().all():
        return None
    return beyond_chance(_run(table, keyword, scale, on_failure))


def beyond_chance(run: Run) -> Lost | None:
    """What is lost of the push on a behaviour of a run, beyond chance and `LEAST`; None for
    nothing."""
    push = truth_push(run)
    lost = push.measured(run)
    p_K, whole_K = chance([lost]), np.nanmean(push.every, axis=0)
    is_gone = lost.value_K * np.sign(whole_K) >= LEAST * np.abs(whole_K)
    is_gone &= p_K * np.isfinite(p_K).sum() < ALPHA
    if not is_gone.any():
        return None
    k = int(np.where(is_gone, np.abs(lost.value_K), -1).argmax())
    return Lost(run.names[k], float(lost.value_K[k]), float(whole_K[k]), len(np.unique(run.step_P)))


def _run(table: pd.DataFrame, keyword: str, scale: str, on_failure: str) -> Run:
    """Rollouts as a run whose behaviours are in SDs over all of them."""
    steps_and_groups = pd.MultiIndex.from_frame(table[["step", "group"]])
    at, groups = pd.factorize(steps_and_groups)
    member = table["member"].to_numpy(dtype=int)

    def place(values_N: np.ndarray) -> np.ndarray:
        placed = np.full((len(groups), int(member.max()) + 1, *values_N.shape[1:]), np.nan)
        placed[at, member] = values_N
        return placed

    scores, truths, rewards = (
        place(table[name].to_numpy(dtype=float)) for name in ("judge_score", "truth", "reward")
    )
    values = measured(["" if text is None else text for text in table["answer"]], keyword)
    values = np.where(table["answer"].isna().to_numpy()[:, None], np.nan, values)
    sd = np.nanstd(values, axis=0)
    features = place(values / np.where(sd > 0, sd, np.inf))
    first = np.unique(at, return_index=True)[1]
    return Run(
        *("", "", 0, False, np.array([step for step, _ in groups], dtype=int)),
        *(rewards, np.full(truths.shape, np.nan), truths, scores, features, FEATURES),
        scale=scale,
        on_failure=on_failure,
        prompt_P=table["prompt_id"].to_numpy()[first],
    )
