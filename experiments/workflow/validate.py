"""Whether a program can work, before a token is spent: what it says, then what it does in three
worlds of stub operators. In the good one all is well, in the bad one all is refused, in the empty
one every text is empty."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from experiments.workflow import static
from experiments.workflow.broker import Budget, Ending, Stop
from experiments.workflow.find import find
from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.base import Arguments, Results
from experiments.workflow.play import LIMITS, Finish, play
from experiments.workflow.problem import STAND_IN, Problem
from experiments.workflow.program import (
    OUTCOMES,
    Diagnostic,
    Program,
    Refused,
    ast_sha,
    outcome_of,
)
from study.errors import UserError
from study.sandbox.conversation import Stage
from study.sandbox.worker import Broken

DRY = dataclasses.replace(LIMITS, own_s=1.0, wall_s=10.0)
SOLVE = "def solve():\n    return 42\n"
GOOD = {"answer": "42", "output": "42", "code": SOLVE}
WORLDS = {
    "pass": (True, "looks right", GOOD),
    "fail": (False, "needs work: wrong", {}),
    "empty": (False, "", {}),
}
"""World -> its booleans, its texts, and the texts of some keys."""
CONTRACT = OUTCOMES[Ending.CONTRACT_ERROR]


@dataclass(frozen=True)
class Report:
    """What validation says of one completion.

    Attributes:
        program: None where there is none.
        calls: world -> operators in the order of their calls; None where nothing was run.
        answers: world -> what the program returned there, or None.
    """

    outcome: Ending
    diagnostics: tuple[Diagnostic, ...]
    program: Program | None = None
    tree: ast.Module | None = None
    operators: tuple[str, ...] = ()
    calls: Mapping[str, list[str]] | None = None
    answers: Mapping[str, str | None] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def constant(self) -> bool | None:
        """Whether it answers the same where all is well and where all is refused; None where it
        was not run in both."""
        if "pass" not in self.answers or "fail" not in self.answers:
            return None
        return self.answers["pass"] is not None and self.answers["pass"] == self.answers["fail"]

    def as_row(self) -> dict[str, object]:
        """As the command writes it."""
        calls = self.calls
        return {
            "outcome": str(self.outcome),
            "diagnostics": [diagnostic.as_row() for diagnostic in self.diagnostics],
            "calls": None if calls is None else {name: calls[name] for name in ("pass", "fail")},
            "operators": list(self.operators),
            "nodes": None if self.tree is None else static.nodes_of(self.tree),
            "sha": None if self.program is None else self.program.sha,
            "ast_sha": None if self.tree is None else ast_sha(self.tree),
            "form": None if self.program is None else self.program.form,
            "seconds": self.seconds,
        }


async def validate(
    completion: str,
    stage: Stage,
    form: str | None = None,
    prompts: Mapping[str, str] | None = None,
    problem: Problem = STAND_IN,
) -> Report:
    """What can be said of a completion without spending a token. ``prompts`` are the names of its
    prompt file. Raises UserError: the sandbox failed twice."""
    began = time.perf_counter()
    try:
        program = find(completion, form)
    except Refused as refused:
        seconds = time.perf_counter() - began
        only = (refused.diagnostic,)
        return Report(outcome_of([*only]), only, seconds=seconds)
    program = dataclasses.replace(program, prompts=dict(prompts or {}))
    tree, diagnostics = static.read(program)
    operators = program.operators or (
        tuple(static.operators_made(tree)) if tree is not None else ()
    )
    calls, answers = None, {}
    if tree is not None and outcome_of(diagnostics) is Ending.OK:
        calls, answers, dry_run_diagnostics = await _dry_run(program, tree, stage, problem)
        diagnostics = [*diagnostics, *dry_run_diagnostics]
    diagnostics = sorted(set(diagnostics))
    return Report(
        outcome_of(diagnostics),
        tuple(diagnostics),
        program,
        tree,
        operators,
        calls,
        answers,
        time.perf_counter() - began,
    )


async def _dry_run(
    program: Program, tree: ast.Module, stage: Stage, problem: Problem
) -> tuple[dict[str, list[str]], dict[str, str | None], list[Diagnostic]]:
    """Calls and answers by world, and what went wrong in any."""
    calls: dict[str, list[str]] = {name: [] for name in WORLDS}
    played = await asyncio.gather(
        *(_in_world(name, calls[name], program, stage, problem) for name in WORLDS)
    )
    diagnostics = []
    for name, result in zip(WORLDS, played, strict=True):
        if result.outcome is Ending.OK:
            continue
        code = "fragile" if name == "empty" else _code(result)
        line = result.line or (_return_line(tree) if result.code == "return" else None)
        message = f"{result.why} (where every text is empty)" if name == "empty" else result.why
        diagnostics.append(Diagnostic(program.line(line), code, message))
    answers = {name: result.answer for name, result in zip(WORLDS, played, strict=True)}
    return calls, answers, diagnostics


def _code(result: Finish) -> str:
    """The code of what went wrong in a world."""
    if result.outcome is Ending.CONTRACT_ERROR:
        return result.code if result.code in CONTRACT else "return"
    if result.outcome is Ending.SYNTAX_ERROR:
        return "syntax"
    if result.kind or result.outcome in (Ending.TIMEOUT, Ending.BUDGET_EXCEEDED):
        return "dry_run"
    return "fragile"


def _return_line(tree: ast.Module) -> int | None:
    """The line of the first return of __call__ that is no pair, else of __call__."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "__call__":
            wrong = [
                inner.lineno
                for inner in ast.walk(node)
                if isinstance(inner, ast.Return)
                and not (isinstance(inner.value, ast.Tuple) and len(inner.value.elts) == 2)
            ]
            return min(wrong, default=node.lineno)
    return None


async def _in_world(
    name: str, calls: list[str], program: Program, stage: Stage, problem: Problem
) -> Finish:
    yes, text, others = WORLDS[name]
    most = Budget().operator_calls

    async def answer(number: int, operator: str, arguments: Arguments, after: list[int]) -> Results:
        if number > most:
            raise Stop(Ending.BUDGET_EXCEEDED, f"no end within {most} operator calls")
        calls.append(operator)
        values = {
            key: yes if kind == "bool" else others.get(key, text)
            for key, kind in OPERATORS[operator].results.items()
        }
        return {**values, "ok": yes, "error": "" if yes else text}

    for _ in range(2):
        try:
            calls.clear()
            played = await play(program, problem, stage, answer, limits=DRY)
            break
        except Broken as error:
            wrong = error
    else:
        raise UserError(
            f"The sandbox ({stage.tier}) failed twice: {wrong}. Free memory or processes and rerun"
            " the command."
        ) from wrong
    if played.outcome is Ending.TIMEOUT:
        return dataclasses.replace(played, why=f"no end within {DRY.own_s:g} s of its own")
    return played
