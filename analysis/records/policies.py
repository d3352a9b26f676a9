"""What every failure policy would have made of a run's rewards, composed as the trainer composes.

A reward whose score the policy leaves as it was is the recorded one. Every other is made again by
`study.rewards.compose` from the rollout's score, as it was corrected, truth, rules, answer and
length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from study.cell.cells import load_cell
from study.cell.folder import CellFolder
from study.cell.records import CORRECTED, FEATURE
from study.config.schema import Study
from study.errors import UserError
from study.programs.rewards import FORMULAS, OK, SHARES
from study.rewards import compose
from study.rewards.failure import REPLAY_POLICIES
from study.rewards.formulas import REWARDS
from study.rows import Criterion, Row
from study.system.files import Damaged
from study.tasks import kind_of

NEEDED = (
    *("prompt_id", "domain", "answer", "tokens", "truth", "truth_missing", "rules"),
    *("judge_score", "reward", "outcome"),
    *(f"{FEATURE}{name}" for name in SHARES),
)
"""Columns that `rewards_under` reads, beside step, group and member."""
ANY_ROW = Row("", (), (Criterion(""),))
"""Stands for a row where the reward reads nothing of it but the judge's share of its points, and
its domain, which the rollout names."""


def rewards_under(cell: CellFolder, rollouts: pd.DataFrame) -> tuple[dict[str, np.ndarray], str]:
    """Failure policy -> the rewards it would have made, shape (N,), and why they are not known.

    Returns for every policy that leaves a run going. NaN is no reward; where the rewards cannot be
    composed again, all are NaN and the sentence says why.

    Args:
        cell: whose rewards they are.
        rollouts: of the cell, with the columns `NEEDED`, step, group and member, and with
            `CORRECTED` where its scores were corrected.
    """
    recorded = rollouts["reward"].to_numpy(dtype=float)
    if CORRECTED in rollouts:
        rollouts = rollouts.assign(judge_score=rollouts[CORRECTED])  # what the reward is made of
    missing = rollouts["judge_score"].isna() | rollouts["truth_missing"].notna()
    missing &= rollouts["outcome"].isna() | rollouts["outcome"].eq(OK)  # others were never asked
    if not missing.any():
        return dict.fromkeys(REPLAY_POLICIES, recorded), ""
    try:
        config = load_cell(cell).config
        if config.reward.name not in {**REWARDS, **FORMULAS}:
            raise UserError(f"reward.name={config.reward.name} is not a reward of this version")
        row_of = _rows(config)
    except (Damaged, UserError) as error:
        unknown = dict.fromkeys(REPLAY_POLICIES, np.full(len(recorded), np.nan))
        return unknown, f"the effect of another on_failure is unknown: {error}".rstrip(".")
    policy = config.judge.on_failure
    acting = "unscored" if policy == "abort" else policy  # abort leaves no run with a failure
    by_policy = {name: recorded if name == acting else recorded.copy() for name in REPLAY_POLICIES}
    failed = missing.groupby([rollouts["step"], rollouts["group"]])
    some = np.flatnonzero(failed.transform("any").to_numpy())
    for places in rollouts.iloc[some].groupby(["step", "group"]).indices.values():
        group = sorted(some[places], key=rollouts["member"].to_numpy().__getitem__)
        _compose_group(config, row_of, rollouts.iloc[group], np.array(group), acting, by_policy)
    return by_policy, ""


def _rows(config: Study) -> Callable[[str], Row | None]:
    """Prompt id -> the task's row where the reward weighs rules by their points, else any row."""
    if config.reward.name != "rubric" or config.reward.rules != "run":
        return lambda prompt_id: ANY_ROW
    return kind_of(config.task).lookup(config.task)


def _compose_group(
    config: Study,
    row_of: Callable[[str], Row | None],
    group: pd.DataFrame,
    places: np.ndarray,
    acting: str,
    by_policy: dict[str, np.ndarray],
) -> None:
    """Put one group's rewards into ``by_policy`` where a policy changes what the reward sees."""
    records = [_record(record) for record in group.to_dict("records")]
    rows = [row_of(record["prompt_id"]) for record in records]
    parts = [
        compose.recorded(config, replace(row or ANY_ROW, domain=record["domain"] or ""), record)
        for row, record in zip(rows, records, strict=True)
    ]
    scores = [record["judge_score"] for record in records]
    composable = None not in rows
    if config.reward.overlong.buffer:
        composable &= all(record["tokens"] is not None for record in records)
    size = len(records)
    before = compose.observable_pairs(config.reward, parts, scores, size, acting)
    for policy in REPLAY_POLICIES:
        after = compose.observable_pairs(config.reward, parts, scores, size, policy)
        if after == before:
            continue
        rewards = (
            compose.recompose(config, parts, scores, size, policy) if composable else [None] * size
        )
        for place, old, new, reward in zip(places, before, after, rewards, strict=True):
            if old != new or config.reward.name in FORMULAS:  # those compare within the group
                by_policy[policy][place] = np.nan if reward is None else reward


def _record(record: dict[Any, Any]) -> dict[str, Any]:
    """A data frame's row with None for what is missing, as Parquet has it."""
    plain = {name: record.get(name) for name in NEEDED}
    rules = plain.pop("rules")
    plain = {name: None if pd.isna(value) else value for name, value in plain.items()}
    return plain | {"rules": tuple(rules) if isinstance(rules, np.ndarray) else ()}
