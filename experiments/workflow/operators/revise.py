"""Revise: corrects a solution by the feedback of a review."""

from __future__ import annotations

from experiments.workflow.operators.base import (
    Argument,
    Desk,
    Operator,
    Results,
    code_of,
    field_of,
    strip_thinking,
)
from study.truth.code import blocks, defines

FORMS = {"code": "Return the whole code in one ```python block."}
"""Domain -> how the solution is wanted."""


async def play(
    desk: Desk, operator: Operator, *, problem: str, solution: str, feedback: str
) -> Results:
    """The new solution; of code its block alone."""
    form = FORMS.get(desk.domain, "Return the corrected solution with its final answer.")
    prompt = operator.fill_prompt(problem=problem, solution=solution, feedback=feedback, form=form)
    reply = strip_thinking(await desk.ask(prompt))
    text = field_of("solution", reply) or reply
    if desk.domain == "code" and (fenced := blocks(text)):
        text = code_of(text, fenced, lambda block: defines(block, desk.entry_point))
    return {"solution": text, "error": "" if text else "the reply is empty"}


OPERATOR = Operator(
    name="Revise",
    about="Corrects a solution by feedback.",
    arguments=(Argument("problem"), Argument("solution"), Argument("feedback")),
    results={"solution": "str"},
    prompt=(
        "A solution was reviewed and found wrong. Revise it.\n\nProblem:\n{problem}\n\nSolution:\n"
        "{solution}\n\nFeedback:\n{feedback}\n\n{form}"
    ),
    play=play,
    max_tokens=2048,
)
