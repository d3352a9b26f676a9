"""HumanEval and MBPP: how an answer becomes a program, for the grader to run.

A code answer is a body, a function or a chat answer with fenced blocks. Nothing is imported for the
candidate beyond what the problem or the answer imports.
"""

from __future__ import annotations

import re
import textwrap

from study.sandbox.calls import Limits, Outcome, Result
from study.sandbox.grader import Task
from study.truth.item import Item
from study.truth.score import Ending, Score

_FENCE = re.compile(
    r"^[ \t]{0,8}(?P<mark>`{3,8}|~{3,8})[ \t]{0,8}(?P<language>[^\s`]{0,20})[^\n]*$", re.M
)

_BODY = re.compile(r"\A\n{0,8}(?: {4}|\t)|^[ \t]*(?:return|yield)\b", re.M)
"""How the body of a function looks: its first line is indented, or a line of it returns."""


def blocks(text: str) -> list[str]:
    """The contents of the fenced blocks of a chat answer; the last may be without its end."""
    contents, begin, mark = [], None, ""
    for fence in _FENCE.finditer(text):
        if begin is None:
            begin, mark = fence.end() + 1, fence["mark"]
        elif fence["mark"].startswith(mark) and not fence["language"]:
            contents.append(text[begin : fence.start()])
            begin = None
    return contents if begin is None else [*contents, text[begin:]]


def defines(text: str, name: str) -> bool:
    """Whether ``text`` has the head of a function ``name``, or binds it in a line of its own."""
    head = rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(name)}[ \t]*\(|^{re.escape(name)}[ \t]*="
    return re.search(head, text, re.M) is not None


def head_of(item: Item) -> str:
    """The imports and helpers that stand in a problem before the function it asks for."""
    heads = list(
        re.finditer(rf"^def[ \t]+{re.escape(item.entry_point)}[ \t]*\(", item.code_prompt, re.M)
    )
    return item.code_prompt[: heads[-1].start()] if heads else item.code_prompt


def answer_code(item: Item, answer: str) -> str:
    """The code in ``answer``: the last fenced block that defines the function, else what stands
    before the first fence where that defines it, or is a body that the fence ends; else the first
    block, else all of it."""
    fenced = blocks(answer)
    for code in reversed(fenced):
        if defines(code, item.entry_point):
            return code
    if first := _FENCE.search(answer):
        before = answer[: first.start()]
        ends = item.code_prompt and not first["language"] and _BODY.search(before)
        return before if ends or defines(before, item.entry_point) else fenced[0]
    return answer


def programs(item: Item, answer: str) -> tuple[tuple[str, ...], ...]:
    """The ways to read ``answer``, the likeliest first.

    A text that defines the entry point is a whole solution, and gets the problem's imports and
    helpers before it; else it is a body, and follows the problem's head of the function: as it is,
    without its indentation, or without that of its first line, which strippers of answers take.
    """
    code = answer_code(item, answer)
    whole = (head_of(item), textwrap.dedent(code)) if item.code_prompt else (textwrap.dedent(code),)
    if not item.code_prompt:
        return (whole,)
    indented = textwrap.indent(textwrap.dedent(code).strip("\n"), "    ")
    readings = (code, indented + "\n", f"    {code.lstrip()}\n")
    bodies = tuple((item.code_prompt + body,) for body in readings)
    return (whole, *bodies) if defines(code, item.entry_point) else bodies


def task(item: Item, answer: str, limits: Limits) -> Task:
    """The program of ``answer`` with the tests of ``item``, which see the problem's helpers."""
    tests, function = item.tests, item.entry_point
    return Task(programs(item, answer), tests, function, head_of(item), item.setup, limits)


def score(item: Item, answer: str, result: Result) -> Score:
    """The score behind what the grader saw, which is more than that a sandbox failed."""
    code = answer_code(item, answer)
    if result.outcome is not Outcome.RETURNED:
        return Score(False, {}, code, Ending(result.outcome), result.detail)
    ending = Ending.PASSED if result.value else Ending.FAILED
    return Score(bool(result.value), {}, code, ending, result.detail)
