"""Custom: asks the model what the program says."""

from __future__ import annotations

from experiments.workflow.operators.base import Argument, Desk, Operator, Results, strip_thinking


async def play(desk: Desk, operator: Operator, *, input: str, instruction: str) -> Results:
    """The reply as it is."""
    prompt = operator.fill_prompt(input=input, instruction=instruction)
    text = strip_thinking(await desk.ask(prompt))
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
