"""Custom: asks the model what the program says."""

from __future__ import annotations

from typing import Any

from experiments.workflow.operators.base import Argument, Desk, Operator, strip_thinking


async def play(arguments: dict[str, Any], desk: Desk, operator: Operator) -> dict[str, Any]:
    """The reply as it is."""
    text = strip_thinking(await desk.ask(operator.fill_prompt(**arguments)))
    return {"response": text, "error": "" if text else "the reply is empty"}


OPERATOR = Operator(
    name="Custom",
    about="Follows your instruction on an input.",
    arguments=(Argument("input"), Argument("instruction")),
    results={"response": "str"},
    prompt="{instruction}\n\n---\n\n{input}",
    play=play,
    hints={
        "math": "Reason step by step and end with the final answer in \\boxed{}.",
        "code": "Return one self-contained Python code block.",
        "qa": "Answer with the shortest span that is right.",
    },
)
