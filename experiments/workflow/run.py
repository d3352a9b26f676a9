"""Runs one completion on one problem: validation, then the program between sandbox and broker."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict

from experiments.workflow import flags, static
from experiments.workflow.broker import Broker, Budget, Ending, Workshop
from experiments.workflow.executor import Executor
from experiments.workflow.find import find
from experiments.workflow.instructions import Instruction
from experiments.workflow.operators.base import Operator
from experiments.workflow.play import LIMITS, Finish, play
from experiments.workflow.problem import Problem
from experiments.workflow.program import Program, Refused
from experiments.workflow.validate import Report, validate
from study.sandbox.calls import Limits
from study.sandbox.conversation import Stage
from study.sandbox.worker import Broken

TRIES = 2
"""How often a run begins at most where the sandbox fails."""


class Flags(TypedDict):
    """What is noticed of a program and its answer; None where nothing can be."""

    constant: bool | None
    literal_share: float | None
    judge_address: bool | None
    option_list: bool | None
    echo_problem: bool | None


class CallRecord(TypedDict):
    """One operator call, as ``run`` writes it."""

    operator: str
    ok: bool
    tokens_in: int | None
    tokens_out: int | None
    error: str


class Record(TypedDict):
    """One run, as ``run`` writes it."""

    outcome: str
    why: str
    answer: str | None
    claimed_cost: float | None
    cost_usd: float | None
    calls: list[CallRecord]
    model_calls: int
    tokens_in: int | None
    tokens_out: int | None
    critical_tokens: int | None
    own_s: float
    wall_s: float
    flags: Flags
    sandbox: str
    sha: str | None
    diagnostics: list[dict[str, str | int]]


@dataclass(frozen=True)
class Execution:
    """One completion after validation and, where it was run, after its run.

    Attributes:
        played: how the program ended; None where it was not run.
        broker: the account of its operator calls, as ``played``.
    """

    report: Report
    played: Finish | None = None
    broker: Broker | None = None
    seconds: float = 0.0

    @property
    def outcome(self) -> Ending:
        """How the rollout ended."""
        return self.report.outcome if self.played is None else self.played.outcome

    @property
    def answer(self) -> str | None:
        """What the program returned; None where it returned nothing."""
        return None if self.played is None else self.played.answer

    @property
    def why(self) -> str:
        """One line on what is wrong; empty where nothing is."""
        if self.played is not None:
            return self.played.why
        errors = [
            diagnostic for diagnostic in self.report.diagnostics if diagnostic.level == "error"
        ]
        return errors[0].message if errors else ""

    def flags(self, problem: Problem) -> Flags:
        """What is noticed of the program and its answer, and is not punished."""
        report, answer = self.report, self.answer
        if answer is None:
            return {
                "constant": report.constant,
                "literal_share": None,
                "judge_address": None,
                "option_list": None,
                "echo_problem": None,
            }
        tree = report.tree
        if tree is None and report.program is not None:
            tree = static.read(report.program)[0]
        literals = flags.literal_texts(tree) if tree is not None else []
        if report.program is not None:
            literals += report.program.prompts.values()
        replies = self.broker.replies if self.broker else []
        return {
            "constant": report.constant,
            "literal_share": flags.literal_share(answer, literals, replies),
            "judge_address": flags.judge_address(answer),
            "option_list": flags.option_list(answer),
            "echo_problem": flags.echo_problem(answer, problem.prompt),
        }


async def execute(
    completion: str,
    problem: Problem,
    executor: Executor,
    stage: Stage,
    workshop: Workshop,
    checked: bool = True,
    form: str | None = None,
    prompts: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    report: Report | None = None,
) -> Execution:
    """Validate a completion, unless there is a ``report`` of that already, and run its program. One
    that is refused is not run, but where it is not ``checked``: then it runs beside its validation.
    Raises UserError: the sandbox failed twice while it was validated."""
    began = time.perf_counter()
    run = partial(perform, problem=problem, executor=executor, stage=stage, workshop=workshop)
    if checked:
        report = report or await validate(completion, stage, form, prompts, problem)
        if report.program is None or report.outcome is not Ending.OK:
            return Execution(report, seconds=time.perf_counter() - began)
        played, broker = await run(report.program, settings=settings)
        return Execution(report, played, broker, time.perf_counter() - began)
    try:
        program = dataclasses.replace(find(completion, form), prompts=dict(prompts or {}))
    except Refused:
        report = await validate(completion, stage, form, prompts, problem)
        return Execution(report, seconds=time.perf_counter() - began)
    validation = validate(completion, stage, form, prompts, problem)
    report, (played, broker) = await asyncio.gather(validation, run(program, settings=settings))
    return Execution(report, played, broker, time.perf_counter() - began)


@dataclass(frozen=True)
class Settings:
    """What holds for the runs of a study: budget, limits of the program itself, and layer 2."""

    budget: Budget = field(default_factory=Budget)
    limits: Limits = LIMITS
    instruct: Callable[[Operator, str], Instruction] | None = None


async def perform(
    program: Program,
    problem: Problem,
    executor: Executor,
    stage: Stage,
    workshop: Workshop,
    settings: Settings | None = None,
) -> tuple[Finish, Broker]:
    """Run a program once more where the sandbox fails, and no more; its end, and its account."""
    settings = settings or Settings()
    for _ in range(TRIES):
        broker = Broker(problem, executor, workshop, settings.budget, settings.instruct)
        try:
            ended = play(program, problem, stage, broker.call, broker.spent, settings.limits)
            return await ended, broker
        except Broken as error:
            played = Finish(Ending.SANDBOX_ERROR, str(error))
    return played, broker


def record(execution: Execution, problem: Problem, stage: Stage) -> Record:
    """The record of one run, as ``run`` writes it."""
    report, played, broker = execution.report, execution.played, execution.broker
    return {
        "outcome": str(execution.outcome),
        "why": "" if played is None else played.why,
        "answer": execution.answer,
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
            for trace in (broker.traces if broker is not None else [])
        ],
        "model_calls": 0 if broker is None else broker.model_calls,
        "tokens_in": 0 if broker is None else broker.tokens_in,
        "tokens_out": 0 if broker is None else broker.tokens_out,
        "critical_tokens": 0 if broker is None else broker.critical,
        "own_s": 0.0 if played is None else played.own_s,
        "wall_s": execution.seconds,
        "flags": execution.flags(problem),
        "sandbox": str(stage.tier),
        "sha": None if report.program is None else report.program.sha,
        "diagnostics": [diagnostic.as_row() for diagnostic in report.diagnostics],
    }
