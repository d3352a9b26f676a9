"""The last trusted lines before untrusted code, in a child that runs one call and ends.

What this child writes is a claim, no more: the untrusted code shares its memory and could write
the same bytes itself. So the answer is read, and compared, in another process. `answer` makes one
call and ends; `serve` answers the calls of trusted tests that run in a sandbox of their own.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

from study.sandbox.inside import border
from study.sandbox.inside.frames import CallRequest, CandidateRequest, Claim, Question
from study.sandbox.inside.literal import NotLiteral, dumps, loads


def answer(request: CallRequest, handle: int) -> None:
    """Call ``request["function"]`` of ``request["source"]``, write the end to ``handle``, and exit.

    Nothing of the caller is left to return to: the process ends here.
    """
    end, text = _call(request)
    reply = json.dumps({"nonce": request["nonce"], "end": end, "text": text}).encode()
    while reply:
        reply = reply[os.write(handle, reply) :]
    os._exit(0)


def _call(request: CallRequest) -> tuple[str, str]:
    try:
        code = compile(request["source"], "<untrusted>", "exec", dont_inherit=True)
    except MemoryError:
        return "memory", "while compiling"
    except (SyntaxError, ValueError, RecursionError) as error:
        return "unparsable", f"{type(error).__name__}: {error}"[:200]
    space = _namespace()
    try:
        exec(code, space)
        if request["function"] not in space:
            return "unparsable", f"it defines no {request['function']}"
        value = space[request["function"]](*loads(request["args"]))
        return "returned", dumps(value)
    except BaseException as error:
        return _failure(error)


def _namespace() -> dict[str, Any]:
    """The names of a new module, which dataclasses and type hints look up by its own."""
    module = sys.modules["untrusted"] = types.ModuleType("untrusted")
    return vars(module)


def _failure(error: BaseException) -> tuple[str, str]:
    """The end, and a line about it, behind whatever untrusted code raised."""
    if isinstance(error, NotLiteral):
        return ("subclass" if error.subclass else "not_literal"), str(error)[:200]
    if isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit)):
        return "exited", type(error).__name__
    if isinstance(error, MemoryError):
        return "memory", "MemoryError"
    return "raised", _described(error)


def _described(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:200]
    except BaseException:  # an exception may do anything in __str__
        return name


def serve(request: CandidateRequest) -> None:
    """Run a program and answer what trusted tests ask of it, line by line, until they end.

    The first of ``programs`` of which all parts compile is taken. The first line says ``ready``, or
    why there is no program. Then each line is a `Question`, and each reply a `Claim`.
    """
    space = _namespace()
    objects: list[Any] = []
    end, text = _load(request["programs"], space)
    border.say({"end": end, "text": text})
    if end != "ready":
        return
    for question in border.hear():
        border.say(_answered(question, space, objects))


def _load(programs: Sequence[Sequence[str]], space: dict[str, Any]) -> tuple[str, str]:
    end, text = "unparsable", "it is empty"
    for sources in programs:
        try:
            codes = [compile(part, "<untrusted>", "exec", dont_inherit=True) for part in sources]
        except MemoryError:
            end, text = "memory", "while compiling"
            continue
        except (SyntaxError, ValueError, RecursionError) as error:
            end, text = "unparsable", f"{type(error).__name__}: {error}"[:200]
            continue
        try:
            for code in codes:
                exec(code, space)
        except BaseException as error:
            return _failure(error)
        return "ready", ""
    return end, text


def _answered(question: Question, space: dict[str, Any], objects: list[Any]) -> Claim:
    def keep(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    target, act = question["target"], question["act"]
    if isinstance(target, str) and target not in space:
        return {"end": "unparsable", "text": f"it defines no {target}"}
    try:
        subject = space[target] if isinstance(target, str) else objects[target]
        args, named = border.read(question["args"], objects.__getitem__)
        if act == "call":
            value = subject(*args, **named)
        elif act == "get":
            value = getattr(subject, *args)
        elif act == "list":
            value = list(subject)
        else:
            value = setattr(subject, *args)
        return {"end": "returned", "text": border.write(value, keep)}
    except BaseException as error:
        end, text = _failure(error)
        return {"end": end, "text": text, "kind": type(error).__name__}
