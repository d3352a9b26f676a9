"""What a cell asks of its judges: completions, calls and tokens, before the store saves any.

Nothing here imports torch: a plan answers before a model could be loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from judges.ask.identity import build_grading
from judges.endpoint.dialects import dialect_of
from judges.grading.base import GroupGrading
from study.cell.cells import Cell
from study.cell.records import EVALUATIONS
from study.config.schema import Judge, Model, Study, Task, freeze
from study.rewards.checks import for_judge
from study.tasks import kind_of, sample

if TYPE_CHECKING:
    from study.rows import Row

CHARACTERS_PER_TOKEN = 4
ANSWER_SHARE = 0.4
"""Of ``trainer.max_completion_length`` that an answer is assumed to use."""
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
"""A bare verdict, as simulated judges give it, by grading; a rubric has a label for each criterion:
``LABEL_TOKENS`` of a real judge, ``SIMULATED_LABEL_TOKENS`` of a simulated one, whose tokens are
four characters each."""
LABEL_TOKENS = 6.0
SIMULATED_LABEL_TOKENS = 3.8
SPOKEN_TOKENS = 30.0
"""What a real judge says besides, where nothing forces a bare verdict."""
THINKING_SHARE = 0.5
"""Of ``sampling.max_tokens`` that a judge which thinks is assumed to use."""


@dataclass(frozen=True)
class Asks:
    """What one judge of a cell is asked in all, of its steps or of its evaluations."""

    judge: Judge
    folder: str
    """Where in the cell its verdicts are: nowhere deeper, or in `EVALUATIONS`."""
    calls: float
    tokens_in: float
    tokens_out: float
    longest_in: float
    """Tokens in where every answer is as long as it may be."""
    longest_out: float
    """Tokens out where every reply is."""


def expected(cell: Cell) -> dict[str, int]:
    """Completions, judge calls and tokens of a whole cell, before the store saves any.

    completions = T * P * G and the answers of frozen evaluations; calls = completions * votes *
    requests per verdict, summed over the acting and the shadow judges.
    """
    every = asks(cell.config)
    return {
        "completions": sum(count for count, _ in answers(cell.config).values()),
        "calls": round(sum(each.calls for each in every)),
        "tokens_in": round(sum(each.tokens_in for each in every)),
        "tokens_out": round(sum(each.tokens_out for each in every)),
    }


def answers(config: Study) -> dict[str, tuple[int, int]]:
    """Answers that are judged and the size of their groups: of the steps, and of frozen evaluations
    under `EVALUATIONS`, which repeat each other more than those of steps do."""
    trainer = config.trainer
    of_steps = trainer.steps * trainer.prompts_per_step * trainer.group_size
    judged = {"": (of_steps, trainer.group_size)}
    if trainer.eval_samples and trainer.eval_steps:
        size = 1 + trainer.eval_samples
        held_out = _held_out(_json(config.task))
        judged[EVALUATIONS] = (size * held_out * evaluations(config), size)
    return judged


def evaluations(config: Study) -> int:
    """Evaluations of held-out rows: before the first step, every so many, and after the last."""
    trainer = config.trainer
    return 1 + -(-trainer.steps // trainer.eval_steps) if trainer.eval_steps else 0


def asks(config: Study) -> list[Asks]:
    """What the acting judge is asked, and each shadow judge."""
    task, rules = _json(config.task), config.reward.rules
    longest = config.trainer.max_completion_length
    usual = round(ANSWER_SHARE * longest)
    every = []
    for judge in (config.judge, *config.shadow_judges):
        data, votes = _json(judge), judge.sampling.votes
        for folder, (count, size) in answers(config).items():
            calls, *tokens = _per_verdict(data, task, rules, size, usual)
            _, longest_in, _ = _per_verdict(data, task, rules, size, longest)
            cap = max(calls * judge.sampling.max_tokens, tokens[1])
            amounts = (calls, *tokens, longest_in, cap)
            every.append(Asks(judge, folder, *(count * votes * each for each in amounts)))
    return every


def _json(part: Judge | Task) -> str:
    return json.dumps(dataclasses.asdict(part), sort_keys=True)


@functools.cache
def _per_verdict(
    judge_json: str, task_json: str, rules: str, group_size: int, answer_tokens: int
) -> tuple[float, float, float]:
    """Requests, tokens in and tokens out of one verdict on one answer, the mean over the rows."""
    judge: Judge = freeze(Judge, json.loads(judge_json))
    rows = _sample(task_json)
    grading = build_grading(judge)
    answer = ("word " * answer_tokens)[: CHARACTERS_PER_TOKEN * answer_tokens]
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
    label = LABEL_TOKENS if judge.simulated is None else SIMULATED_LABEL_TOKENS
    bare = REPLY_TOKENS.get(judge.grading.name, label * max(1, len(criteria)))
    if judge.simulated is not None or judge.grading.name == "soft_choice":
        return bare
    return min(float(judge.sampling.max_tokens), bare + SPOKEN_TOKENS + thought(judge))


def thought(model: Model) -> float:
    """Tokens that a model thinks before a reply."""
    thinks = model.sampling.thinking or dialect_of(model).thinking == "always"
    return THINKING_SHARE * model.sampling.max_tokens if thinks else 0.0


@functools.cache
def _held_out(task_json: str) -> int:
    """Held-out rows of a task."""
    task: Task = freeze(Task, json.loads(task_json))
    return len(kind_of(task).rows(task, "eval"))


@functools.cache
def _sample(task_json: str) -> list[Row]:
    task: Task = freeze(Task, json.loads(task_json))
    return sample(kind_of(task).rows(task, "train"), SAMPLE)
