"""Test: runs the public tests on a solution, and lets the model correct it."""

from __future__ import annotations

from experiments.workflow.operators.base import (
    Argument,
    Desk,
    Operator,
    Results,
    code_of,
    strip_thinking,
)
from study.truth.code import blocks, defines

ROUNDS = 3
"""Corrections at most, whatever the program asks for."""


async def play(
    desk: Desk, operator: Operator, *, problem: str, solution: str, entry_point: str, test_loop: int
) -> Results:
    """Whether the solution passes, after up to ``test_loop`` corrections, and the last solution.
    Where there is no public test there is no result to trust: false, and nobody is asked."""
    name = entry_point or desk.entry_point
    rounds = max(0, min(ROUNDS, test_loop))
    for turn in range(rounds + 1):
        code = code_of(solution, blocks(solution), lambda block: defines(block, name))
        passed, wrong = await desk.test(code)
        if passed is None:
            return {"solution": solution, "error": wrong}
        if passed:
            return {"result": True, "solution": solution}
        if turn == rounds:
            break
        reply = strip_thinking(
            await desk.ask(
                operator.fill_prompt(problem=problem, entry_point=name, solution=code, wrong=wrong)
            )
        )
        solution = code_of(reply, blocks(reply), lambda block: defines(block, name)) or solution
    return {"result": False, "solution": solution}


OPERATOR = Operator(
    name="Test",
    about="Runs the public tests; corrects a solution that fails them.",
    arguments=(
        Argument("problem"),
        Argument("solution"),
        Argument("entry_point"),
        Argument("test_loop", "int", required=False, default=ROUNDS),
    ),
    results={"result": "bool", "solution": "str"},
    prompt=(
        "A solution of a problem fails a test. Reflect on why, and write a better one.\n\n"
        "Problem:\n{problem}\n\nSolution:\n```python\n{solution}\n```\n\nWhat happened:\n{wrong}"
        "\n\nReturn the whole code of {entry_point}, with its imports, in one ```python block."
    ),
    play=play,
    domains=("code",),
    executes_code=True,
    max_model_calls=4,
    max_tokens=2048,
)
