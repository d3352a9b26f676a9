"""Programmer: writes a program that computes the answer, and runs it."""

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
FUNCTION = "workflow_output"
CALL = f"""

def {FUNCTION}():
    value = solve()
    return None if value is None else str(value)
"""
"""Makes a text of what ``solve`` returns, whatever it is."""


async def play(desk: Desk, operator: Operator, *, problem: str, analysis: str) -> Results:
    """Up to three rounds of writing and running, each told what went wrong in the last."""
    code, wrong, feedback = "", "", ""
    for _ in range(ROUNDS):
        prompt = operator.fill_prompt(problem=problem, analysis=analysis, feedback=feedback)
        reply = strip_thinking(await desk.ask(prompt))
        code = code_of(reply, blocks(reply), lambda block: defines(block, "solve"))
        if not code:
            wrong = "the reply is empty"
            continue
        output, wrong = await desk.compute(code + CALL, FUNCTION)
        if output is not None:
            return {"code": code, "output": output}
        wrong = wrong or "solve() returned nothing"
        feedback = (
            f"\n\nYour last program:\n```python\n{code}\n```\nIt failed: {wrong}\nCorrect it."
        )
    return {"code": code, "error": wrong}


OPERATOR = Operator(
    name="Programmer",
    about="Writes and runs a Python program whose result is the answer.",
    arguments=(Argument("problem"), Argument("analysis", required=False, default="None")),
    results={"code": "str", "output": "str"},
    prompt=(
        "Write a self-contained Python program that computes the answer to the problem. It defines"
        " a function solve() without arguments, which returns the answer as a number or a text."
        " Only the standard library is there; no plots, no files, no input.\n\n"
        "Problem:\n{problem}\n\nAnalysis:\n{analysis}\n\nReturn one ```python block.{feedback}"
    ),
    play=play,
    domains=("math", "qa"),
    executes_code=True,
    max_model_calls=ROUNDS,
    max_tokens=2048,
    hints={"math": "Compute exactly: use fractions where the answer is no integer."},
)
