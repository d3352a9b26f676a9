"""Format: takes the short answer out of a solution."""

from __future__ import annotations

from experiments.workflow.operators.base import (
    Argument,
    Desk,
    Operator,
    Results,
    field_of,
    strip_thinking,
)


async def play(
    desk: Desk, operator: Operator, *, problem: str, solution: str, mode: str | None
) -> Results:
    """The reply, under both names that programs use; ``mode`` changes nothing."""
    prompt = operator.fill_prompt(problem=problem, solution=solution)
    reply = strip_thinking(await desk.ask(prompt))
    text = field_of("solution", reply) or reply
    error = "" if text else "the reply is empty"
    return {"solution": text, "response": text, "error": error}


OPERATOR = Operator(
    name="Format",
    about="Takes the final answer out of a solution, in a few words.",
    arguments=(
        Argument("problem"),
        Argument("solution"),
        Argument("mode", "str | None", required=False, default=None),
    ),
    results={"solution": "str", "response": "str"},
    prompt=(
        "Problem:\n{problem}\n\nSolution:\n{solution}\n\nGive the final answer of this solution, in"
        " as few words as it takes, without any comment."
    ),
    play=play,
    max_tokens=256,
)
