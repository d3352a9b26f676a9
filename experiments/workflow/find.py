"""The one rule that finds the program in a completion.

Thinking is taken out. Of the fenced blocks exactly one must hold ``class Workflow`` or parse as
DSL. Where nothing is fenced the text itself is the program; a class begins with the first import,
from or class at the begin of a line, or with the constants and functions before it.
"""

from __future__ import annotations

import ast
import re

from experiments.workflow import dsl
from experiments.workflow.program import MOST_BYTES, Program, Refused
from study.answers import answer_of
from study.truth.code import blocks

FORMS = ("python", "dsl")
CLASS = "class Workflow"
_BEGIN = re.compile(r"^(?:import|from|class)\b", re.M)
_CLASS = re.compile(r"^class[ \t]{1,8}Workflow\b", re.M)
_FENCE = re.compile(r"^[ \t]{0,8}(?:`{3}|~{3})", re.M)


def find(completion: str, form: str | None = None) -> Program:
    """The program in a completion, of the form that is asked for, or of either.
    Raises Refused: there is none, there are several, or it is a DSL that cannot work."""
    answer = _strip_thinking(completion)
    if answer is None:
        raise Refused(1, "no_program", "the completion was cut off while it was thinking")
    if len(answer) > 8 * MOST_BYTES:  # that much prose, at most
        raise Refused(1, "size", f"a completion of {len(answer)} characters")
    before = completion[: completion.find(answer)].count("\n") if answer in completion else 0
    fenced = _FENCE.search(answer) is not None
    parts = [(part, answer.find(part)) for part in blocks(answer)] if fenced else []
    candidates = [(kind, part, at) for part, at in parts if (kind := _kind(part, form))]
    if fenced and not candidates and form != "dsl" and _is_whole(answer):
        fenced = False  # the fences stand in a text of the program
    if not fenced:
        candidates = [_bare(answer, form)]
    if len(candidates) != 1:
        number = f"{len(candidates)} programs are" if candidates else "no program is"
        raise Refused(1, "no_program", f"{number} in the fenced blocks; exactly one is needed")
    kind, source, at = candidates[0]
    offset = before + answer[:at].count("\n")
    if kind == "dsl":
        lead = len(source) - len(source.lstrip())
        offset += source[:lead].count("\n")
        try:
            return dsl.compiled(source, offset)
        except Refused as refused:
            _, code, message = refused.diagnostic
            raise Refused(1 + offset, code, message) from None
    if len(_CLASS.findall(source)) > 1:
        raise Refused(1 + offset, "no_program", "there are several classes Workflow")
    return Program(source, "python", source, offset)


def _strip_thinking(completion: str) -> str | None:
    """A completion without its thinking; None where it was cut off while it thought. Marks of
    thinking that stand in the texts of a program alone, such as an instruction, are none."""
    answer = answer_of(completion)
    if answer == completion.strip():
        return answer
    begin = _BEGIN.search(completion)
    sources = [source for source in blocks(completion) if CLASS in source]
    if not sources and begin is not None:
        sources = [completion[begin.start() :]]
    if len(sources) == 1 and _is_whole(sources[0]):
        others = completion.replace(sources[0], "", 1)
        return completion.strip() if answer_of(others) == others.strip() else answer
    return answer


def _kind(text: str, form: str | None) -> str:
    """The form of a fenced block; empty where it is no program."""
    if CLASS in text:
        return "python" if form in (None, "python") else ""
    if form == "python":
        return ""
    try:
        dsl.parse(text)
    except Refused as refused:
        return "dsl" if refused.diagnostic.code == "size" else ""
    return "dsl"


def _bare(text: str, form: str | None) -> tuple[str, str, int]:
    """Form, text and place of a program without fences. Raises Refused: there is none."""
    begin = _BEGIN.search(text)
    if begin is not None and form != "dsl":
        at = 0 if _is_code(text[: begin.start()]) else begin.start()
        return "python", text[at:], at
    if form == "python" or not text.strip():
        raise Refused(1, "no_program", "there is no class Workflow, and nothing is imported")
    if form is None and "->" not in text and "[" not in text:
        try:
            dsl.parse(text)
        except Refused as refused:
            if refused.diagnostic.code == "syntax":
                message = f"there is no class Workflow, and as DSL: {refused.diagnostic.message}"
                raise Refused(1, "no_program", message) from None
            raise
    return "dsl", text, 0


def _is_code(text: str) -> bool:
    """Whether what stands before the first import, from or class belongs to the program: only
    comments, constants and functions, of which prose is none."""
    if not text.strip() or len(text) > MOST_BYTES:
        return False
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    kinds = (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef)
    return all(
        isinstance(node, kinds)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )


def _is_whole(text: str) -> bool:
    """Whether a text with fences in it is a class all the same."""
    begin = _BEGIN.search(text)
    if begin is None or not _CLASS.search(text) or len(text) > MOST_BYTES:
        return False
    try:
        ast.parse(text[begin.start() :])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
