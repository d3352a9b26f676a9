"""Trusted tests in a child of their own: what they call runs in the candidate's sandbox.

Here is every comparison made, on values of built-in types only. A name that the tests use and do
not define is a `Handle` of the candidate's; so is an object of the candidate's own classes. A
handle can be called, and its attributes read and set, but it has no truth, no order and no
equality: whatever a test would conclude from it is refused.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from study.sandbox.inside import border
from study.sandbox.inside.frames import Act, Question, TesterRequest
from study.sandbox.inside.literal import NotLiteral

NOT_RAISED = (StopIteration, StopAsyncIteration, AssertionError)
"""What would end a loop of the tests, or be taken for a verdict of theirs."""
CLAIMS = frozenset("returned raised unparsable not_literal exited memory".split())
"""What a candidate may say of a question."""


class Refused(BaseException):
    """The candidate gave no value; no ``except Exception`` of a test catches this."""

    def __init__(self, end: str, text: str) -> None:
        super().__init__(text)
        self.end = end


class Ungradable(BaseException):
    """The tests themselves are at fault, or ask for what cannot cross."""


class Candidate:
    """The other side, as the tests see it."""

    def __init__(self) -> None:
        self.lines = border.hear()
        self.refused: Refused | None = None
        """The first refusal: a test that swallows it does not pass."""
        self.raised: Exception | None = None
        """What it raised last."""

    def ask(
        self, target: str | int, act: Act, args: Sequence[object], named: Mapping[str, object]
    ) -> Any:
        """The value of one act on a name or an object of the candidate's.
        Raises Refused: there is none, or ``args`` are nested too deeply.
        Raises Exception: what the candidate raised, by its name."""
        try:
            text = border.write([args, named], _number)
        except NotLiteral as error:  # a value of the candidate's own, handed back to it
            self.refuse("not_literal", str(error))
        question: Question = {"target": target, "act": act, "args": text}
        border.say({"ask": question})
        reply = next(self.lines)
        if "died" in reply:
            self.refuse(reply["died"], reply["text"])
        try:
            claim = json.loads(reply["claim"])
            end, text, kind = claim["end"], claim["text"], claim.get("kind")
            if not isinstance(text, str) or end not in CLAIMS:
                raise ValueError("another answer")
            if end == "returned":
                return border.read(text, lambda number: Handle(self, number))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.refuse("forged", "the line is not an answer")
        if end != "raised":
            self.refuse(end, text)
        self.raised = _exception(kind, text)
        raise self.raised

    def refuse(self, end: str, text: str) -> NoReturn:
        """Note and raise a refusal."""
        self.refused = self.refused or Refused(end, text)
        raise self.refused


class Raised(Exception):
    """The candidate raised an exception of its own, or one that tests must not see."""


def _exception(kind: Any, text: str) -> Exception:
    """What the tests see where the candidate raised a ``kind``."""
    error = vars(builtins).get(kind) if isinstance(kind, str) else None
    legal = isinstance(error, type) and issubclass(error, Exception)
    if legal and not issubclass(error, NOT_RAISED):
        with contextlib.suppress(TypeError):  # UnicodeDecodeError takes five arguments
            return error(text)
    return Raised(text)


def _number(value: Any) -> int:
    if type(value) is not Handle:
        raise Ungradable(f"the tests hand on what cannot be sent: a {type(value).__name__}")
    return object.__getattribute__(value, "_target")


class Handle:
    """A name or an object of the candidate's."""

    __slots__ = ("_candidate", "_target")
    _candidate: Candidate
    _target: str | int

    def __init__(self, candidate: Candidate, target: str | int) -> None:
        object.__setattr__(self, "_candidate", candidate)
        object.__setattr__(self, "_target", target)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._candidate.ask(self._target, "call", args, named)

    def __getattr__(self, name: str) -> Any:
        return self._candidate.ask(self._target, "get", (name,), {})

    def __setattr__(self, name: str, value: Any) -> None:
        self._candidate.ask(self._target, "set", (name, value), {})

    def __getitem__(self, key: Any) -> Any:
        return self.__getattr__("__getitem__")(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__getattr__("__setitem__")(key, value)

    def __len__(self) -> int:
        try:
            return self.__getattr__("__len__")()
        except AttributeError as error:  # `list` asks for a length, where there is one
            raise TypeError("an object without a length") from error

    def __iter__(self) -> Iterator[Any]:
        values = self._candidate.ask(self._target, "list", (), {})
        return iter(values if type(values) is list else self._concluded())

    def _concluded(self, *_: object) -> NoReturn:
        self._candidate.refuse("not_literal", "the tests conclude from an object of the program")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __hash__ = _concluded
    __contains__ = _concluded


def run(request: TesterRequest) -> None:
    """Run the tests of ``request`` and say ``{verdict, text}``, with questions in between."""
    candidate = Candidate()
    try:
        _test(request, candidate)
        end, text = "passed", ""
    except Refused as error:
        end, text = error.end, str(error)
    except Ungradable as error:
        end, text = "ungradable", str(error)
    except MemoryError:
        end, text = "memory", "in the tests"
    except BaseException as error:
        end = "raised" if error is candidate.raised else "failed"
        text = f"{type(error).__name__}: {_message_of(error)}"
    if end == "passed" and candidate.refused is not None:
        end, text = candidate.refused.end, str(candidate.refused)
    border.say({"verdict": end, "text": text[:200]})


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # a handle in the message of an assertion
        return ""


def _test(request: TesterRequest, candidate: Candidate) -> None:
    entry = request["entry_point"]
    space: dict[str, Any] = {"__name__": "tests"}
    try:
        exec(request["prelude"], space)
        source = request["setup"] + "\n" + request["tests"]
        tree, code = ast.parse(source), compile(source, "<tests>", "exec", dont_inherit=True)
    except BaseException as error:
        raise Ungradable(f"the tests cannot be run: {type(error).__name__}: {error}") from error
    for name in _free(tree) - space.keys() - vars(builtins).keys():
        trusted = name in sys.stdlib_module_names
        space[name] = importlib.import_module(name) if trusted else Handle(candidate, name)
    if entry:
        space[entry] = Handle(candidate, entry)
    exec(code, space)
    check = space.get("check")
    if "check" in _defined(tree) and callable(check):
        check(*[space[entry]][: check.__code__.co_argcount])


def _defined(tree: ast.Module) -> set[str]:
    """The functions and classes that stand in ``tree``."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def _free(tree: ast.Module) -> set[str]:
    """The names that ``tree`` reads and binds nowhere."""
    read, bound = set(), _defined(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return read - bound
