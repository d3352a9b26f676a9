"""Runs one completion on one problem: validation, then the program between sandbox and broker."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from experiments.workflow import flags, static
from experiments.workflow.broker import Broker, Budget, Ending, Workshop
from experiments.workflow.executor import Executor
from experiments.workflow.find import find
from experiments.workflow.play import Played, play
from experiments.workflow.problem import Problem
from experiments.workflow.program import Program, Refused
from experiments.workflow.validate import Report, validate
from study.sandbox.conversation import Stage
from study.sandbox.worker import Broken

TRIES = 2
"""How often a run begins at most where the sandbox fails."""


async def execute(
    completion: str,
    problem: Problem,
    executor: Executor,
    stage: Stage,
    workshop: Workshop,
    checked: bool = True,
    form: str | None = None,
    prompts: Mapping[str, str] | None = None,
    budget: Budget | None = None,
) -> dict[str, Any]:
    """The record of one run, as ``run`` writes it. A program that is refused is not run, but where
    it is not ``checked``: then it runs beside its validation.
    Raises UserError: the sandbox failed twice while it was validated."""
    began = time.perf_counter()
    validation = validate(completion, stage, form, prompts, problem)
    if checked:
        report = await validation
        if report.program is None or report.outcome is not Ending.OK:
            return _record(report, None, None, problem, stage, began)
        played, broker = await perform(report.program, problem, executor, stage, workshop, budget)
        return _record(report, played, broker, problem, stage, began)
    try:
        program = dataclasses.replace(find(completion, form), prompts=dict(prompts or {}))
    except Refused:
        return _record(await validation, None, None, problem, stage, began)
    report, (played, broker) = await asyncio.gather(
        validation, perform(program, problem, executor, stage, workshop, budget)
    )
    return _record(report, played, broker, problem, stage, began)


async def perform(
    program: Program,
    problem: Problem,
    executor: Executor,
    stage: Stage,
    workshop: Workshop,
    budget: Budget | None = None,
) -> tuple[Played, Broker]:
    """Run a program once more where the sandbox fails, and no more; its end, and its account."""
    for _ in range(TRIES):
        broker = Broker(problem, executor, workshop, budget or Budget())
        try:
            return await play(program, problem, stage, broker.call, broker.spent), broker
        except Broken as error:
            played = Played(Ending.SANDBOX_ERROR, str(error))
    return played, broker


def _record(
    report: Report,
    played: Played | None,
    broker: Broker | None,
    problem: Problem,
    stage: Stage,
    began: float,
) -> dict[str, Any]:
    answer = played.answer if played is not None else None
    traces = broker.traces if broker is not None else []
    tree = report.tree
    if tree is None and report.program is not None:
        tree = static.read(report.program)[0]
    shown: dict[str, Any] = {
        "constant": report.constant,
        "literal_share": None,
        "judge_address": None,
        "option_list": None,
        "echo_problem": None,
    }
    if answer is not None:
        literals = flags.literal_texts(tree) if tree is not None else []
        if report.program is not None:
            literals += report.program.prompts.values()
        shown |= {
            "literal_share": flags.literal_share(
                answer, literals, broker.replies if broker else []
            ),
            "judge_address": flags.judge_address(answer),
            "option_list": flags.option_list(answer),
            "echo_problem": flags.echo_problem(answer, problem.prompt),
        }
    return {
        "outcome": str(report.outcome if played is None else played.outcome),
        "why": "" if played is None else played.why,
        "answer": answer,
        "claimed_cost": None if played is None else played.cost,
        "cost_usd": 0.0 if broker is None else broker.cost_usd,
        "calls": [
            {
                "operator": trace.operator,
                "ok": trace.ok,
                "tokens_in": trace.tokens_in,
                "tokens_out": trace.tokens_out,
                "error": trace.error,
            }
            for trace in traces
        ],
        "model_calls": 0 if broker is None else broker.model_calls,
        "tokens_in": 0 if broker is None else broker.tokens_in,
        "tokens_out": 0 if broker is None else broker.tokens_out,
        "critical_tokens": 0 if broker is None else broker.critical,
        "own_s": 0.0 if played is None else played.own_s,
        "wall_s": time.perf_counter() - began,
        "flags": shown,
        "sandbox": str(stage.tier),
        "sha": None if report.program is None else report.program.sha,
        "diagnostics": [diagnostic.as_row() for diagnostic in report.diagnostics],
    }
