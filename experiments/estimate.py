"""What a cell will ask of its judges, before anything runs: calls, and tokens both ways.

Calls are counted on the very requests that the grading makes of the task's rows, so they are exact
where each verdict is one request. Tokens take the real prompt texts at four characters a token,
which is how simulated judges count; how long answers and replies get is assumed, see below. What
the store saves, retries and follow-up questions are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from judges.endpoint.dialects import dialect_of
from judges.grading.base import GroupGrading
from judges.identity import build_grading
from study.rewards.checks import for_judge
from study.schema import Judge, Task, freeze
from study.tasks import TASKS

if TYPE_CHECKING:
    from study.cells import Cell
    from study.rows import Row

CHARACTERS_PER_TOKEN = 4
ANSWER_SHARE = 0.4
"""Of ``trainer.max_completion_length`` that an answer is assumed to use."""
WORD = "word "
SAMPLE = 128
"""Rows that stand for all of a task."""
REPLY_TOKENS = {
    "likert": 3.4,
    "soft_choice": 1.0,
    "verif": 3.0,
    "binary": 3.0,
    "pairwise": 3.0,
    "listwise": 20.0,
}
"""A bare verdict, as simulated judges give it, by grading; a rubric has ``LABEL_TOKENS`` each."""
LABEL_TOKENS = 6.0
SPOKEN_TOKENS = 30.0
"""What a real judge says besides, where nothing forces a bare verdict."""
THINKING_SHARE = 0.5
"""Of ``sampling.max_tokens`` that a judge which thinks is assumed to use."""


def expected(cell: Cell) -> dict[str, int]:
    """Completions, judge calls and tokens of a whole cell, before the store saves any.

    completions = T * P * G; calls = completions * votes * requests per verdict, summed over the
    acting and the shadow judges.
    """
    config = cell.config
    trainer = config.trainer
    completions = trainer.steps * trainer.prompts_per_step * trainer.group_size
    answer = round(ANSWER_SHARE * trainer.max_completion_length)
    task = json.dumps(dataclasses.asdict(config.task), sort_keys=True)
    totals = {"calls": 0.0, "tokens_in": 0.0, "tokens_out": 0.0}
    for judge in (config.judge, *config.shadow_judges):
        data = json.dumps(dataclasses.asdict(judge), sort_keys=True)
        each = _per_verdict(data, task, config.reward.rules, trainer.group_size, answer)
        for name, amount in zip(totals, each, strict=True):
            totals[name] += completions * judge.sampling.votes * amount
    return {"completions": completions, **{name: round(total) for name, total in totals.items()}}


@functools.cache
def _per_verdict(
    judge_json: str, task_json: str, rules: str, group_size: int, answer_tokens: int
) -> tuple[float, float, float]:
    """Requests, tokens in and tokens out of one verdict on one answer, the mean over the rows."""
    judge: Judge = freeze(Judge, json.loads(judge_json))
    rows = _sample(task_json)
    grading = build_grading(judge)
    answer = (WORD * answer_tokens)[: CHARACTERS_PER_TOKEN * answer_tokens]
    group = [f"{answer} {member}" for member in range(group_size)]
    shared_by = group_size if isinstance(grading, GroupGrading) else 1
    calls = tokens_in = tokens_out = 0.0
    for row in (for_judge(row, rules) for row in rows):
        if isinstance(grading, GroupGrading):
            asks = grading.group_requests(row, group)
        else:
            asks = grading.requests(row, answer)
        calls += len(asks) / shared_by
        for ask in asks:
            text = "\n".join(turn["content"] for turn in ask.messages)
            tokens_in += math.ceil(len(text) / CHARACTERS_PER_TOKEN) / shared_by
            tokens_out += _reply(judge, ask.criteria) / shared_by
    return calls / len(rows), tokens_in / len(rows), tokens_out / len(rows)


def _reply(judge: Judge, criteria: Sequence[int]) -> float:
    """Tokens of one reply."""
    bare = REPLY_TOKENS.get(judge.grading.name, LABEL_TOKENS * max(1, len(criteria)))
    if judge.simulated is not None or judge.grading.name == "soft_choice":
        return bare
    thinks = judge.sampling.thinking or dialect_of(judge).thinking == "always"
    thought = THINKING_SHARE * judge.sampling.max_tokens if thinks else 0.0
    return min(float(judge.sampling.max_tokens), bare + SPOKEN_TOKENS + thought)


@functools.cache
def _sample(task_json: str) -> list[Row]:
    task: Task = freeze(Task, json.loads(task_json))
    rows = TASKS[task.name].rows(task, "train")
    return rows[:: max(1, len(rows) // SAMPLE)]
