"""Review: says whether a solution is right, and why."""

from __future__ import annotations

import re

from experiments.workflow.operators.base import (
    Argument,
    Desk,
    Operator,
    Results,
    field_of,
    strip_thinking,
)

_WORD = re.compile(r"\W{0,8}(true|false)\b", re.IGNORECASE)


def read_verdict(reply: str) -> bool | None:
    """True or False as the reply says it, in its tag or as its first word; None for neither."""
    tagged = field_of("review_result", reply)
    word = _WORD.match(reply if tagged is None else tagged)
    return None if word is None else word[1].lower() == "true"


async def play(desk: Desk, operator: Operator, *, problem: str, solution: str) -> Results:
    """A real bool; a reply that says neither, twice, is no approval."""
    prompt = operator.fill_prompt(problem=problem, solution=solution)
    reply = strip_thinking(await desk.ask(prompt))
    if (result := read_verdict(reply)) is None:
        again = (
            f"{prompt}\n\nYour last reply had no True or False between the tags. Reply once more."
        )
        reply = strip_thinking(await desk.ask(again)) or reply
        result = read_verdict(reply)
    tagged = field_of("feedback", reply)
    feedback = _WORD.sub("", reply, count=1).strip(" .:,\n") if tagged is None else tagged
    if result is None:
        error = "the reply says neither True nor False" if reply else "the reply is empty"
        return {"review_result": False, "feedback": feedback, "error": error}
    return {"review_result": result, "feedback": feedback}


OPERATOR = Operator(
    name="Review",
    about="Checks a solution: review_result is True or False, feedback says why.",
    arguments=(Argument("problem"), Argument("solution")),
    results={"review_result": "bool", "feedback": "str"},
    prompt=(
        "Check the solution of this problem critically.\n\nProblem:\n{problem}\n\nSolution:\n"
        "{solution}\n\nPut True, if its final answer is right, or False between <review_result> and"
        " </review_result>, and the reason, or what to change, between <feedback> and </feedback>."
    ),
    play=play,
    max_model_calls=2,
    hints={
        "math": "Compute the answer once more in another way.",
        "code": "Go through the examples of the problem.",
        "qa": "Look for the sentence that the answer rests on.",
    },
)
