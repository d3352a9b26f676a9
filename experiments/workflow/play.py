"""One program in its sandbox, and who answers its calls: a broker, or a stub world."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from experiments.workflow.broker import Ending, Stop, legal
from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.base import Arguments, Results
from experiments.workflow.problem import Problem
from experiments.workflow.program import Program
from judges.endpoint.loop import cancel
from study.sandbox.calls import Limits, Outcome, cut_short, one_line
from study.sandbox.conversation import Stage, Talk
from study.sandbox.inside.frames import ProgramCall, ProgramEnd, Spent

Answer = Callable[[int, str, Arguments, list[int]], Awaitable[Results]]
"""(number, operator, arguments, what it waited for) -> result. Raises Stop: the run ends."""
ARGUMENTS = {
    name: [vars(argument) for argument in operator.arguments]
    for name, operator in OPERATORS.items()
}
"""What the child's stand-ins are made from."""
NOTHING: Spent = {"total_input_tokens": 0, "total_output_tokens": 0, "total_cost": 0.0}
ANSWER_BYTES = 4096
LIMITS = Limits(cpu_s=1, wall_s=120.0, memory_mb=512, reply_bytes=1 << 20, own_s=2.0)
"""Of one program. It has no limit of its own while it waits for operators but the wall."""
ENDS = {
    "returned": Ending.OK,
    "contract": Ending.CONTRACT_ERROR,
    "unparsable": Ending.SYNTAX_ERROR,
    "memory": Ending.MEMORY,
}
"""What a child says of its end; anything else is a runtime error."""
ENDED = {
    Outcome.TIMEOUT: Ending.TIMEOUT,
    Outcome.MEMORY: Ending.MEMORY,
    Outcome.OVERFLOW: Ending.OUTPUT_LIMIT,
}
"""How a child was ended; anything else is a runtime error."""


@dataclass(frozen=True)
class Finish:
    """How one program ended.

    Attributes:
        why: one line; empty where it returned.
        kind: the exception, where it is one of a program that is wrong whatever it is given.
        code: of a diagnostic, where the contract was broken.
        line: of the class.
        cost: what the program claims.
    """

    outcome: Ending
    why: str = ""
    answer: str | None = None
    cost: float | None = None
    kind: str = ""
    code: str = ""
    line: int | None = None
    own_s: float = 0.0


async def play(
    program: Program,
    problem: Problem,
    stage: Stage,
    answer: Answer,
    spent: Callable[[], Spent] = lambda: NOTHING,
    limits: Limits = LIMITS,
) -> Finish:
    """Run ``program`` on ``problem``. Raises Broken: the sandbox failed, not the program."""
    last: ProgramEnd | None = None
    stops: list[BaseException] = []
    tasks: set[asyncio.Task[None]] = set()
    answered: set[int] = set()
    calls = 0

    async def work(talk: Talk, call: ProgramCall) -> None:
        try:
            result = await answer(call["call"], call["operator"], call["arguments"], call["after"])
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            stops.append(error)
            talk.leave()
            return
        answered.add(call["call"])
        talk.say({"reply": call["call"], "result": result, "spent": spent()})

    def hear(talk: Talk, text: str) -> None:
        nonlocal calls, last
        frame = _frame(text, calls + 1, answered)
        if "end" in frame:
            last = cast(ProgramEnd, frame)
            talk.leave()
            return
        calls += 1
        task = asyncio.create_task(work(talk, frame))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    request = {
        "source": program.python,
        "operators": ARGUMENTS,
        "prompts": program.prompts,
        "problem": problem.prompt,
        "entry_point": problem.entry_point,
        "domain": problem.domain,
    }
    try:
        reply = await stage.run(request, limits, hear)
    finally:
        await cancel(tasks)
    own_s = float(reply.get("own_s") or 0.0)
    if stops:
        if not isinstance(stops[0], Stop):
            raise stops[0]
        return Finish(stops[0].outcome, str(stops[0]), own_s=own_s)
    if last is not None:
        return _ended(last, own_s)
    result = cut_short(reply, limits)
    if result is None:
        return Finish(Ending.RUNTIME_ERROR, "it left the process", own_s=own_s)
    outcome = ENDED.get(result.outcome, Ending.RUNTIME_ERROR)
    return Finish(outcome, result.detail, own_s=own_s)


def _frame(text: str, number: int, answered: set[int]) -> ProgramCall | ProgramEnd:
    """A line of a child's as a call, or as its end; what is neither is a forgery."""
    try:
        frame = json.loads(text)
        if isinstance(frame, dict) and isinstance(frame.get("end"), str):
            if frame["end"] != "returned" or (
                isinstance(frame["answer"], str) and isinstance(frame["cost"], float)
            ):
                return frame
        elif (
            frame.keys() == {"call", "operator", "arguments", "after"}
            and type(frame["call"]) is int
            and frame["call"] == number
            and legal(frame["operator"], frame["arguments"])
            and isinstance(frame["after"], list)
            and all(type(earlier) is int and earlier in answered for earlier in frame["after"])
        ):
            return frame
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return {"end": "forged", "text": "it wrote a line that is no call"}


def _ended(last: ProgramEnd, own_s: float) -> Finish:
    """How a program ended by what it said last."""
    outcome = ENDS.get(last["end"], Ending.RUNTIME_ERROR)
    if outcome is Ending.OK:
        answer, cost = last["answer"], last["cost"]
        if len(answer.encode("utf-8", "surrogatepass")) > ANSWER_BYTES:
            why = f"an answer of more than {ANSWER_BYTES} bytes"
            return Finish(Ending.OUTPUT_LIMIT, why, own_s=own_s)
        return Finish(outcome, "", answer, cost if math.isfinite(cost) else None, own_s=own_s)
    line, kind, code = last.get("line"), last.get("kind"), last.get("code")
    return Finish(
        outcome,
        one_line(str(last.get("text") or last["end"])),
        kind=one_line(kind) if isinstance(kind, str) else "",
        code=code if isinstance(code, str) else "",
        line=line if type(line) is int and 0 < line < 1 << 20 else None,
        own_s=own_s,
    )
