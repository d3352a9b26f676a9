"""AnswerGenerate: thinks, then answers shortly."""

from __future__ import annotations

from experiments.workflow.operators.base import (
    Argument,
    Desk,
    Operator,
    Results,
    field_of,
    strip_thinking,
)
from judges.grading.delimiters import fill

AGAIN = (
    "{asked}\n\nYour last reply had no <answer> tag:\n{reply}\n\nReply once more, and put the final"
    " answer between <answer> and </answer>."
)


async def play(desk: Desk, operator: Operator, *, input: str) -> Results:
    """What stands in the tags; where a second reply has none either, all of it is the answer."""
    prompt = operator.fill_prompt(input=input)
    reply = await desk.ask(prompt)
    answer = field_of("answer", strip_thinking(reply))
    if answer is None:
        again = fill(AGAIN, asked=prompt, reply=strip_thinking(reply))
        reply = await desk.ask(again) or reply
        answer = field_of("answer", strip_thinking(reply))
    thought = field_of("thought", reply) or ""
    if answer:
        return {"thought": thought, "answer": answer}
    error = "the reply is empty" if not reply.strip() else "the reply has no answer tag"
    return {
        "thought": thought,
        "answer": strip_thinking(reply) if answer is None else "",
        "error": error,
    }


OPERATOR = Operator(
    name="AnswerGenerate",
    about="Thinks step by step and gives a short final answer.",
    arguments=(Argument("input"),),
    results={"thought": "str", "answer": "str"},
    prompt=(
        "Think step by step and solve the problem.\nPut your reasoning between <thought> and"
        " </thought>, and only the final answer, as short as possible, between <answer> and"
        " </answer>.\n\nProblem:\n{input}"
    ),
    play=play,
    max_model_calls=2,
    hints={
        "math": "The answer is a number or an expression, without units.",
        "code": "The answer is the whole code.",
        "qa": "The answer is a name, a date, a number, yes or no, or a span of the text.",
    },
)
