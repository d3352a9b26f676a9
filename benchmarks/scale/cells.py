"""What one cell costs when judges, seeds, steps, group, criteria or prompts are varied.

Cells of the tiny policy under simulated judges are trained for real, each in a process of its own
that is forked after all imports: its wall and CPU seconds and its largest memory are the kernel's,
calls and tokens are those on record, and bytes are those of its records. Simulated judges cache no
prefix, so fresh tokens are counted as a server would: prompts in the order in which they were
asked, against a cache of whole blocks of 16 tokens (`benchmarks.judges.prefix.Radix`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import experiments.launch.preload  # noqa: F401 - what a cell imports, before the first is forked
from benchmarks.judges.prefix import Radix
from benchmarks.scale import criteria
from experiments.launch.pool import run_task
from experiments.plan.rates import expected
from experiments.sweep import cells_of
from judges.ask.identity import build_grading
from study.cell import cells
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.cell.parts import read_all
from study.tasks import TASKS

TIMES = (1, 2, 4, 8)
JUDGES = (
    "sim-fair,sim-verbose,sim-flattery,sim-noisy,sim-strict,sim-lenient,sim-structured,sim-dose"
).split(",")
STEPS, PROMPTS, GROUP, CRITERIA = 8, 8, 4, 4
"""Of the smallest cell of each series; only criteria begin at 1."""


@dataclass(frozen=True)
class Cost:
    """Of one or more cells. Tokens of verdicts that the store answered are those they had."""

    cells: int
    rollouts: int
    calls: int
    """Requests that were sent, and those that the store answered."""
    tokens_in: int
    fresh: int
    """Of ``tokens_in``, those that a server which caches prefixes has to read."""
    tokens_out: int
    wall_s: float
    cpu_s: float
    memory: int
    """Bytes, the largest of the cells."""
    records: int
    """Bytes."""


def series() -> Iterator[tuple[str, int, list[Cell]]]:
    """Name of what is varied, its multiple, and the cells; nothing is run."""
    TASKS.setdefault(criteria.NAME, criteria.TASK)
    for times in TIMES:
        yield "judges", times, _cells([",".join(JUDGES[:times])])
        yield "seeds", times, _cells([JUDGES[0]], seeds=times)
        yield "steps", times, _cells([JUDGES[0]], steps=times * STEPS)
        yield "prompts", times, _cells([JUDGES[0]], prompts=times * PROMPTS)
        yield "group", times, _cells([JUDGES[0]], group=times * GROUP)
        yield "criteria", times, _cells([JUDGES[0]], wanted=times)
        each = _cells([JUDGES[0]], wanted=times, grading="rubric_item")
        yield "criteria, a call each", times, each


def _cells(
    judges: Sequence[str],
    seeds: int = 1,
    steps: int = STEPS,
    prompts: int = PROMPTS,
    group: int = GROUP,
    wanted: int = CRITERIA,
    grading: str = "rubric_batch",
) -> list[Cell]:
    return cells_of(
        [
            f"judge={','.join(judges)}",
            f"seed=range(0,{seeds})",
            *("held_out=none", "tracking=none", "study=scale", "policy.warmup.steps=20"),
            *(f"task.name={criteria.NAME}", f"+task.options.criteria={wanted}"),
            *(f"trainer.steps={steps}", "trainer.save_steps=100000", "trainer.eval_steps=0"),
            *(f"trainer.prompts_per_step={prompts}", f"trainer.group_size={group}"),
            *(f"trainer.micro_batch={prompts * group}", "trainer.max_completion_length=24"),
            f"judge.grading.name={grading}",
        ]
    )


def measured(laid: Sequence[Cell], study: Path, done: dict[str, Cost]) -> Cost:
    """The cost of these cells together, run one after the other in the folder ``study``; those in
    ``done``, by their ids, are not run again.
    Raises RuntimeError: a cell does not come to its end."""
    for cell in laid:
        if cell.id not in done:
            done[cell.id] = _run(cells.make_cell(cell.data, CellFolder(study / cell.name)))
    costs = [asdict(done[cell.id]) for cell in laid]
    total = {name: sum(cost[name] for cost in costs) for name in costs[0]}
    return Cost(**total | {"memory": max(cost["memory"] for cost in costs)})


def _run(cell: Cell) -> Cost:
    cells.save_cell(cell)
    started = time.perf_counter()
    child = os.fork()
    if not child:
        code = 1
        try:
            code = run_task(cell.folder, 1)
        finally:
            os._exit(code)
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - started
    if status:
        raise RuntimeError(f"{cell.name} ended with {status}: {cell.folder / 'log.txt'}")
    files = [*cell.folder.path.rglob("*.parquet"), cell.folder / "metrics.jsonl"]
    lines = (cell.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line)["metrics"] for line in lines]
    tokens_in, fresh, tokens_out, rollouts = _tokens(cell)
    return Cost(
        1,
        rollouts,
        round(sum(step["cost/calls"] + step["cost/cache_hits"] for step in metrics)),
        tokens_in,
        fresh,
        tokens_out,
        wall,
        usage.ru_utime + usage.ru_stime,
        1024 * usage.ru_maxrss,
        sum(file.stat().st_size for file in files),
    )


def _tokens(cell: Cell) -> tuple[int, int, int, int]:
    """Tokens in, those of them that are fresh, tokens out, and rollouts."""
    grading, cache = build_grading(cell.config.judge), Radix()
    rows = {row.prompt_id: row for row in criteria.TASK.rows(cell.config.task, "train")}
    rollouts = _rows(cell.folder / "rollouts", ["prompt_id", "answer"])
    fresh = full = 0
    for rollout in rollouts:
        for ask in grading.requests(rows[rollout["prompt_id"]], rollout["answer"] or ""):
            prompt = "\n".join(turn["content"] for turn in ask.messages)
            full, fresh = full + len(prompt), fresh + cache.prefill(prompt)
    verdicts = _rows(cell.folder / "verdicts", ["tokens_in", "tokens_out"])
    tokens_in, tokens_out = (
        sum(verdict[name] or 0 for verdict in verdicts) for name in ("tokens_in", "tokens_out")
    )
    return tokens_in, round(tokens_in * fresh / full), tokens_out, len(rollouts)


def _rows(folder: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    return [row for _, table in read_all(folder, columns) for row in table.to_pylist()]


def planned(laid: Sequence[Cell]) -> dict[str, int]:
    """Completions, calls and tokens that the plan says of these cells."""
    costs = [expected(cell) for cell in laid]
    return {name: sum(cost[name] for cost in costs) for name in costs[0]}
