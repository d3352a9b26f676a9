"""What a sweep is about to do, told without doing it: its cells, their cost, and what it can see.

Nothing here imports torch: a plan answers before a model could be loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.statistics.power import power_lines
from judges.endpoint.dialects import dialect_of
from judges.grading.base import GroupGrading
from judges.identity import build_grading
from study import cells
from study.cells import Cell
from study.cli import COSTS, print_table
from study.identity import flatten
from study.rewards.checks import for_judge
from study.schema import Judge, Model, Task, freeze
from study.status import read_status
from study.tasks import order_of, sample, task_module

if TYPE_CHECKING:
    from study.rows import Row


def show_plan(todo: Sequence[Cell]) -> int:
    """Cells, state, expected cost, and the smallest effect to be seen; nothing is written."""
    lines = rows(todo, todo[0].config.factors)
    print_table(lines, f"{todo[0].config.study}: {len(todo)} cells", ("error",))
    costs = [expected(cell) for cell in todo]
    total = {name: sum(cost[name] for cost in costs) for name in costs[0]}
    left = sum(
        cost["calls"]
        for cell, cost in zip(todo, costs, strict=True)
        if cells.state(cell.dir) != "done"
    )
    print(
        f"{total['completions']} completions and {total['calls']} judge calls in all, "
        f"about {total['tokens_in']} tokens in and {total['tokens_out']} out; "
        f"{left} calls in cells that are not done (before retries, less what the store holds)"
    )
    costs_told = [*price_lines(todo), *executor_lines(todo)]
    for line in [*costs_told, *order_lines(todo), *power_lines(*design(todo))]:
        print(line)
    return 0


def price_lines(todo: Sequence[Cell]) -> list[str]:
    """What judges with a price come to, in all cells together, and who of the others is real."""
    usd: dict[str, float] = defaultdict(float)
    unpriced: dict[str, None] = {}
    for cell in todo:
        for judge in (cell.config.judge, *cell.config.shadow_judges):
            price = judge.price
            if not (price.input or price.output):
                unpriced |= {judge.name: None} if judge.simulated is None else {}
                continue
            alone = dataclasses.replace(cell.config, judge=judge, shadow_judges=[])
            cost = expected(dataclasses.replace(cell, config=alone))
            usd[judge.name] += cost["tokens_in"] * price.input / 1e6
            usd[judge.name] += cost["tokens_out"] * price.output / 1e6
    lines = [f"{name} would cost about ${amount:,.2f}" for name, amount in usd.items()]
    if not lines:
        return []
    lines += [f"no price is set for {', '.join(unpriced)}"] if unpriced else []
    return [f"{'; '.join(lines)} (in all cells, by judge.price, nothing of it cached)"]


MODEL_CALLS = 2
"""Of one program: about the mean of `experiments.workflow.templates`."""
OPERATOR_TOKENS = 256
"""Of a reply to an operator, besides what a model thinks."""


def executor_lines(todo: Sequence[Cell]) -> list[str]:
    """What the executors of programs are asked, in all cells together; nothing without one."""
    programs = [cell.config for cell in todo if cell.config.world == "workflow"]
    if not programs:
        return []
    made = sum(expected(cell)["completions"] for cell in todo if cell.config in programs)
    most = max(config.workflow.limits.model_calls for config in programs)
    thinking = max(_thought(config.executor) for config in programs)
    tokens = round(made * MODEL_CALLS * (OPERATOR_TOKENS + thinking))
    return [
        f"{made} programs, and about {MODEL_CALLS * made} calls of their operators' model at"
        f" {MODEL_CALLS} each, with {tokens} tokens out; {most * made} calls at the most (before"
        " retries, and before what a step has twice or the store holds)"
    ]


def order_lines(todo: Sequence[Cell]) -> list[str]:
    """What is to be said of the orders in which the cells draw their rows, once for all."""
    lines: list[str] = []
    configs = {json.dumps([c.data["task"], c.data["trainer"]]): c.config for c in todo}
    for config in configs.values():
        if (order := order_of(config)) is not None:
            lines += order.notes(config.trainer.steps, config.trainer.prompts_per_step)
    return list(dict.fromkeys(lines))


def rows(todo: Sequence[Cell], factors: Sequence[str]) -> list[dict[str, str]]:
    """One line per cell: its name, the swept factors, its state, steps, time and cost."""
    lines = []
    for cell in todo:
        status, estimate, flat = read_status(cell.dir), expected(cell), flatten(cell.data)
        lines.append(
            {
                "cell": cell.name,
                **{name: str(flat.get(name, flat.get(f"{name}.name", ""))) for name in factors},
                "state": cells.state(cell.dir),
                "step": f"{status.get('step', 0)}/{cell.config.trainer.steps}",
                "seconds": f"{status['seconds']:.1f}" if "seconds" in status else "",
                **{column: str(estimate[key]) for key, column in zip(estimate, COSTS, strict=True)},
                "error": str(status.get("error", "")),
            }
        )
    return lines


def design(todo: Sequence[Cell]) -> tuple[int, int]:
    """Seeds of the arm that has fewest, and arms: cells that differ in more than their seed."""
    seeds: dict[str, set[int]] = defaultdict(set)
    for cell in todo:
        arm = dict(cell.identity)
        seed = arm.pop("seed", 0)
        seeds[json.dumps(arm, sort_keys=True)].add(seed)
    return min(map(len, seeds.values())), len(seeds)


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


def expected(cell: Cell) -> dict[str, int]:
    """Completions, judge calls and tokens of a whole cell, before the store saves any.

    completions = T * P * G and the answers of frozen evaluations; calls = completions * votes *
    requests per verdict, summed over the acting and the shadow judges.
    """
    config = cell.config
    trainer = config.trainer
    task = json.dumps(dataclasses.asdict(config.task), sort_keys=True)
    groups = {trainer.group_size: trainer.steps * trainer.prompts_per_step * trainer.group_size}
    if trainer.eval_samples and trainer.eval_steps:
        size, evaluations = 1 + trainer.eval_samples, 1 + -(-trainer.steps // trainer.eval_steps)
        groups[size] = groups.get(size, 0) + size * _held_out(task) * evaluations
    answer = round(ANSWER_SHARE * trainer.max_completion_length)
    totals = {"calls": 0.0, "tokens_in": 0.0, "tokens_out": 0.0}
    for judge in (config.judge, *config.shadow_judges):
        data = json.dumps(dataclasses.asdict(judge), sort_keys=True)
        for size, answers in groups.items():
            each = _per_verdict(data, task, config.reward.rules, size, answer)
            for name, amount in zip(totals, each, strict=True):
                totals[name] += answers * judge.sampling.votes * amount
    return {
        "completions": sum(groups.values()),
        **{name: round(total) for name, total in totals.items()},
    }


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
    return min(float(judge.sampling.max_tokens), bare + SPOKEN_TOKENS + _thought(judge))


def _thought(model: Model) -> float:
    """Tokens that a model thinks before a reply."""
    thinks = model.sampling.thinking or dialect_of(model).thinking == "always"
    return THINKING_SHARE * model.sampling.max_tokens if thinks else 0.0


@functools.cache
def _held_out(task_json: str) -> int:
    """Held-out rows of a task."""
    task: Task = freeze(Task, json.loads(task_json))
    return len(task_module(task.name).rows(task, "eval"))


@functools.cache
def _sample(task_json: str) -> list[Row]:
    task: Task = freeze(Task, json.loads(task_json))
    return sample(task_module(task.name).rows(task, "train"), SAMPLE)
