"""Runs a workflow program in the child: `operator.X` and what else its headers name stand for lines
to the parent, which does the work and keeps the account.

What this child says is a claim, as `candidate` explains; the parent checks each line. The loop
has no socket, which the filter refuses: it polls, and wakes itself through a pipe.
"""

from __future__ import annotations

import asyncio
import builtins
import inspect
import json
import os
import selectors
import types
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from study.sandbox.inside import border, candidate, headers
from study.sandbox.inside.frames import Argument, ProgramEnd, ProgramRequest, Spent, Usage

SOURCE = "<workflow>"
AFTER: ContextVar[frozenset[int]] = ContextVar("after", default=frozenset())
"""The operator calls whose results this task has waited for."""
BROKEN = (UnboundLocalError, NameError, AttributeError, TypeError, KeyError, ImportError)
"""What is raised by a program that is wrong whatever texts it is given."""
LARGEST = 1 << 20
"""Characters of an answer that are sent at all."""


class _End:
    """One end of a pipe, as the loop uses a socket."""

    def __init__(self, handle: int) -> None:
        os.set_blocking(handle, False)
        self.handle = handle

    def fileno(self) -> int:
        return self.handle

    def recv(self, most: int) -> bytes:
        return os.read(self.handle, most)

    def send(self, data: bytes) -> int:
        return os.write(self.handle, data)

    def close(self) -> None:
        os.close(self.handle)


class Loop(asyncio.SelectorEventLoop):
    """An event loop without sockets and epoll."""

    def __init__(self) -> None:
        super().__init__(selectors.PollSelector())

    def _make_self_pipe(self) -> None:
        self._ssock, self._csock = map(_End, os.pipe())
        self._internal_fds = getattr(self, "_internal_fds", 0) + 1
        self._add_reader(self._ssock.fileno(), self._read_from_self)  # ty: ignore[missing-attribute]


class Line:
    """The line to the parent: calls go out, results come in."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.calls = 0
        self.spent: Spent = {"total_input_tokens": 0, "total_output_tokens": 0, "total_cost": 0.0}
        """What the parent last said that was spent."""
        self.begun = bytearray()
        loop.add_reader(border.ASK, self._read)

    async def call(self, operator: str, arguments: Mapping[str, object]) -> dict[str, str | bool]:
        """The result of one operator call."""
        self.calls += 1
        number = self.calls
        self.waiting[number] = self.loop.create_future()
        call = {"call": number, "operator": operator, "arguments": arguments}
        border.say(call | {"after": sorted(AFTER.get())})
        result = await self.waiting[number]
        AFTER.set(AFTER.get() | {number})
        return result

    def _read(self) -> None:
        data = os.read(border.ASK, 1 << 16)
        if not data:
            os._exit(0)  # the parent has left
        *lines, rest = (bytes(self.begun) + data).split(b"\n")
        self.begun = bytearray(rest)
        for line in lines:
            reply = json.loads(line)
            self.spent = reply["spent"]
            future = self.waiting.pop(reply["reply"])
            if not future.done():  # the program may have given up on it
                future.set_result(reply["result"])


class CostManager:
    """MetaGPT's account: what has been spent so far."""

    def __init__(self) -> None:
        self._line = _LINE[0]

    @property
    def total_cost(self) -> float:
        """Dollars spent so far."""
        return self._line.spent["total_cost"]

    def get_summary(self) -> Usage:
        """AFlow's account."""
        return {**self._line.spent, "call_count": self._line.calls}


_LINE: list[Line] = []
"""The one line of this process."""


class Client:
    """What `create_llm_instance` returns; it only tells what was spent."""

    def __init__(self) -> None:
        self.cost_manager = CostManager()
        self.usage_tracker = CostManager()

    def get_usage_summary(self) -> Usage:
        """What was spent so far, as AFlow's account has it."""
        return self.usage_tracker.get_summary()


def _text(value: Any) -> str:
    return value if type(value) is str else str(value)


def _as(kind: str, value: Any) -> Any:
    """``value`` as an argument of that type. Raises TypeError, ValueError: it cannot be."""
    if kind == "list[str]":
        if isinstance(value, (str, bytes, dict)) or value is None:
            raise TypeError(f"a list of texts is needed, not a {type(value).__name__}")
        return [_text(item) for item in value]
    if kind == "int":
        return int(value)
    return None if value is None and kind == "str | None" else _text(value)


def _operator(name: str, arguments: list[Argument], line: Line) -> type:
    """A class whose instances are called as the operator is."""
    signature = inspect.Signature(
        [
            inspect.Parameter(
                argument["name"],
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if argument["required"] else argument["default"],
            )
            for argument in arguments
        ]
    )
    kinds = {argument["name"]: argument["type"] for argument in arguments}

    class Operator:
        __slots__ = ()

        def __init__(self, llm: Any, name: str = name) -> None:
            pass

        async def __call__(self, *args: Any, **named: Any) -> dict[str, str | bool]:
            bound = signature.bind(*args, **named)
            bound.apply_defaults()
            values = {key: _as(kinds[key], value) for key, value in bound.arguments.items()}
            return await line.call(name, values)

    Operator.__name__ = Operator.__qualname__ = name
    return Operator


def _watched(awaitable: Any, predecessors: list[frozenset[int]]) -> Any:
    async def run() -> Any:
        try:
            return await awaitable
        finally:
            predecessors.append(AFTER.get())

    return run()


class _Joined:
    """A future whose waiter has waited for all that its parts have."""

    def __init__(self, future: Any, predecessors: list[frozenset[int]]) -> None:
        self.future, self.predecessors = future, predecessors

    def __await__(self) -> Any:
        try:
            return (yield from self.future.__await__())
        finally:
            AFTER.set(AFTER.get().union(*self.predecessors))


def _trace() -> None:
    """Let gather and wait_for say what waited for what."""
    gather, wait_for = asyncio.gather, asyncio.wait_for

    def traced_gather(*awaitables: Any, return_exceptions: bool = False) -> Any:
        predecessors: list[frozenset[int]] = []
        watched = [_watched(awaitable, predecessors) for awaitable in awaitables]
        return _Joined(gather(*watched, return_exceptions=return_exceptions), predecessors)

    async def traced_wait_for(awaitable: Any, timeout: float | None) -> Any:
        predecessors: list[frozenset[int]] = []
        try:
            return await wait_for(_watched(awaitable, predecessors), timeout)
        finally:
            AFTER.set(AFTER.get().union(*predecessors))

    asyncio.gather, asyncio.wait_for = traced_gather, traced_wait_for  # ty: ignore[invalid-assignment]


def _names(request: ProgramRequest, line: Line) -> dict[str, object]:
    """What a program finds in scope, under the names of `headers.SCOPE_NAMES`."""
    operators = {
        name: _operator(name, arguments, line) for name, arguments in request["operators"].items()
    }
    return {
        "operator": types.SimpleNamespace(**operators),
        "prompt_custom": types.SimpleNamespace(**request["prompts"]),
        "create_llm_instance": lambda config=None: Client(),
        "DatasetType": str,
        "CostManager": CostManager,
    }


def _importer(names: Mapping[str, object]) -> Any:
    """``__import__``, for which the headers are names."""
    real = builtins.__import__

    def load(name: str, *others: Any) -> Any:
        members = others[2] if len(others) > 2 else ()
        if members and headers.is_member(name, members):
            return types.SimpleNamespace(**{members[0]: names[members[0]]})
        for end, what in ((headers.OPERATORS, "operator"), (headers.PROMPTS, "prompt_custom")):
            if not members and headers.ends(name, end):
                value = names[what]
                for part in reversed(name.split(".")[1:]):
                    value = types.SimpleNamespace(**{part: value})
                return value
        return real(name, *others)

    return load


def run(request: ProgramRequest) -> None:
    """Run ``request["source"]`` on ``problem`` and say how it ended.

    Each line is a call ``{call, operator, arguments, after}``, answered by ``{reply, result,
    spent}``; the last is a `ProgramEnd`.
    """
    loop = Loop()
    asyncio.set_event_loop(loop)
    line = Line(loop)
    _LINE.append(line)
    _trace()
    border.say(_played(request, loop, line))
    while os.read(border.ASK, 1 << 16):  # the parent ends this process
        pass


def _played(request: ProgramRequest, loop: Loop, line: Line) -> ProgramEnd:
    source = request["source"]
    try:
        code = compile(source, SOURCE, "exec", dont_inherit=True)
    except MemoryError:
        return {"end": "memory", "text": "while compiling"}
    except (SyntaxError, ValueError, RecursionError) as error:
        return {**_failed(error), "end": "unparsable"}
    try:
        space = candidate._namespace()
        names = _names(request, line)
        safe = dict(vars(builtins)) | {"__import__": _importer(names)}
        space.update(names, __builtins__=safe)
        exec(code, space)
        workflow = space.get("Workflow")
        if not isinstance(workflow, type):
            return {"end": "contract", "code": "no_class", "text": "it defines no class Workflow"}
        program = workflow("workflow", {}, request["domain"])
        if not callable(program):
            return {"end": "contract", "code": "no_call", "text": "Workflow has no __call__"}
        if not inspect.iscoroutinefunction(type(program).__call__):
            return {"end": "contract", "code": "not_async", "text": "__call__ is not async"}
        returned = loop.run_until_complete(_call(program, request))
    except BaseException as error:
        return _failed(error)
    return _returned(returned)


async def _call(program: Any, request: ProgramRequest) -> Any:
    parameters = inspect.signature(program).parameters
    values = {"problem": request["problem"], "entry_point": request["entry_point"]}
    first = [
        values.pop(name)
        for name, parameter in parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY and name in values
    ]
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    arguments = {name: text for name, text in values.items() if name in parameters or takes_all}
    return await program(*first, **arguments)


def _failed(error: BaseException) -> ProgramEnd:
    end, text = candidate._failure(error)
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == SOURCE:
            line = step.tb_lineno
        step = step.tb_next
    kind = next((broken.__name__ for broken in BROKEN if isinstance(error, broken)), "")
    return {"end": end, "text": text, "kind": kind, "line": line}


def _returned(value: Any) -> ProgramEnd:
    """The last line of a program that returned."""
    problem = ""
    if not isinstance(value, tuple) or len(value) != 2:
        size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
        problem = f"a {type(value).__name__}{size} and not (answer, cost)"
    elif not isinstance(value[0], (str, int, float)) or isinstance(value[0], bool):
        problem = f"an answer that is a {type(value[0]).__name__}"
    elif not isinstance(value[1], (int, float)) or isinstance(value[1], bool):
        problem = f"a cost that is a {type(value[1]).__name__}"
    if problem:
        return {"end": "contract", "code": "return", "text": f"it returns {problem}"}
    try:
        answer = str.__str__(value[0]) if isinstance(value[0], str) else str(value[0])
        cost = float(value[1])
    except (ValueError, OverflowError) as error:  # a number of more digits than are written
        return {"end": "contract", "code": "return", "text": f"it returns {error}"}
    return {"end": "returned", "answer": answer[:LARGEST], "cost": cost}
