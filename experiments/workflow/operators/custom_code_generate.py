"""CustomCodeGenerate: writes the function that a problem asks for."""

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


async def play(
    desk: Desk, operator: Operator, *, problem: str, entry_point: str, instruction: str
) -> Results:
    """The code of the reply, whole: nothing of it is taken out."""
    name = entry_point
    prompt = operator.fill_prompt(problem=problem, entry_point=name, instruction=instruction)
    reply = strip_thinking(await desk.ask(prompt))
    code = code_of(reply, blocks(reply), lambda block: defines(block, name))
    if name and not defines(code, name):
        again = f"{prompt}\n\nYour last reply did not define {name}. Return the whole function."
        reply = strip_thinking(await desk.ask(again)) or reply
        code = code_of(reply, blocks(reply), lambda block: defines(block, name))
    if not code:
        return {"response": "", "error": "the reply is empty"}
    missing = bool(name) and not defines(code, name)
    return {"response": code, "error": f"the code defines no {name}" if missing else ""}


OPERATOR = Operator(
    name="CustomCodeGenerate",
    about="Writes Python code for a problem that names the function to write.",
    arguments=(
        Argument("problem"),
        Argument("entry_point"),
        Argument("instruction", required=False, default=""),
    ),
    results={"response": "str"},
    prompt=(
        "{instruction}\n\n{problem}\n\nReturn only runnable Python in one ```python block. It must"
        " define {entry_point}, with all imports and helpers that it needs."
    ),
    play=play,
    domains=("code",),
    max_model_calls=2,
    max_tokens=2048,
    hints={"code": "Mind empty inputs, and the examples of the problem."},
)
