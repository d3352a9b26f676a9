"""A process that compares expressions by math-verify: ``python -m study.truth.equations``.

It loads math-verify once, and then forks a child that reads requests from standard input, a line of
JSON each: ``{golds, answer, cpu_s}``. The child answers ``{end, equal}``. An expression that takes
more CPU time than its limit kills the child, and this process says so in its place and forks the
next one: sympy's own time-out is an alarm, which waits for the end of whatever is running in C.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import resource
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from math_verify import parse, verify

MEMORY = 2 << 30
TOLERANCE = 1e-5
"""Between two numbers, relative to the right one; math-verify compares six decimals."""
FULL = 4
"""Exit code of a child that earlier expressions have filled: its last request is put to another."""
SPOILT = 3
"""Exit code of a child that has answered, and is not to be used again."""
EXAMPLES = (
    r"\frac{1}{2}", r"-\sqrt{3}+2", r"(1, 2]\cup[3,\infty)", "x^2 + 3x - 1", "3, -2 + 3i",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\pi \cos 58", "x = 4", "0.25", r"\{1,2\}",
)  # fmt: skip
"""What a parser reads before it is forked, so that no child builds its tables again."""


@functools.lru_cache(4096)
def _parsed(expression: str) -> list[Any]:
    """What math-verify makes of an expression: a sympy object where it can, and its text."""
    return parse(f"${expression}$", parsing_timeout=0)


def _real(parsed: list[Any]) -> Any:
    """The real number that was parsed, or None."""
    if not parsed or not getattr(parsed[0], "is_number", False):
        return None
    value = parsed[0].evalf(30)
    return value if value.is_Float or value.is_Integer else None


def equal(golds: list[str], answer: str) -> bool:
    """Whether ``answer`` is one of ``golds``, all of them tidy LaTeX."""
    mine = _parsed(answer)
    for gold in map(_parsed, golds):
        if verify(gold, mine, timeout_seconds=0):
            numbers = _real(gold), _real(mine)
            if None in numbers or abs(numbers[0] - numbers[1]) <= TOLERANCE * abs(numbers[0]):
                return True
    return False


def _lines() -> Iterator[bytes]:
    data = b""
    while chunk := os.read(0, 1 << 16):
        data += chunk
        if data.endswith(b"\n"):
            yield data
            data = b""


def _say(message: Mapping[str, object]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _serve() -> int:
    """Answer requests until there are no more; the exit code."""
    for nth, line in enumerate(_lines()):
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        try:
            verdict = {"end": "compared", "equal": equal(request["golds"], request["answer"])}
        except MemoryError:
            if nth:
                return FULL
            verdict = {"end": "memory", "equal": False}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        _say(verdict)
        if verdict["end"] == "memory":
            return SPOILT
    return 0


def main() -> None:
    """Serve until standard input ends."""
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for expression in EXAMPLES:
        equal([expression], expression + " + 1")
    while True:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _serve()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        if code != SPOILT:
            _say({"end": "died", "code": code})


if __name__ == "__main__":
    main()
