"""The short form of a program, and the class that it stands for.

    program = step ("->" step)*
    step    = Name | "[" program ("," program)* "]" | "(" program ")" "*" n
            | Name "?" program ":" ("done" | program)          n from 1 to 5

    [AnswerGenerate, Programmer] -> ScEnsemble -> Review ? Revise : done

Steps hand on a solution, and the feedback of the last review. A loop before an ensemble makes one
solution a turn, each from the same beginning; any other goes on with what it has made. `done` ends
the program, or the part of a list that it stands in. The parser reads each word once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from experiments.workflow.operators import OPERATORS
from experiments.workflow.program import MOST_BYTES, Program, Refused, snake

MOST_OPERATORS = 12
DEEPEST = 20
"""Brackets and choices in each other."""
MOST_TURNS = 5
MAKERS = ("Custom", "AnswerGenerate", "CustomCodeGenerate", "Programmer")
"""What makes a solution from the problem alone."""
ENSEMBLES = ("ScEnsemble", "MdEnsemble")
CHECKS = ("Review", "Test")
_TOKEN = re.compile(r"\s*(?:(->)|([A-Za-z_]\w*)|(\d+)|([\[\](),*?:]))", re.ASCII)


@dataclass
class Step:
    """A word (``operator``), a list (``branches``), a loop (``body``, ``turns``) or a choice (an
    operator with ``body``, where it says no, and ``other``, which is None for done)."""

    operator: str = ""
    branches: list[list[Step]] = field(default_factory=list)
    body: list[Step] = field(default_factory=list)
    other: list[Step] | None = None
    turns: int = 0

    @property
    def chooses(self) -> bool:
        """Whether it is an operator whose verdict chooses what comes next."""
        return bool(self.operator and self.body)


def parse(text: str) -> list[Step]:
    """The steps of a program. Raises Refused: it is none by the grammar, or too large."""
    if len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise Refused(1, "size", f"more than {MOST_BYTES} bytes")
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, int]] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            token = _TOKEN.match(text, place)
            if token is None:
                self.refuse(f"unexpected {text[place:].strip()[:1]!r}", place)
            word = token[0].strip()
            self.tokens.append((word, token.end() - len(word)))
            place = token.end()
        self.at = 0

    def refuse(self, why: str, place: int | None = None) -> NoReturn:
        """Raise Refused, with the place in the text: the next token's without ``place``."""
        place = self.tokens[min(self.at, len(self.tokens) - 1)][1] if place is None else place
        raise Refused(1, "syntax", f"{why} at character {place + 1} of the DSL")

    def peek(self) -> str:
        """The next token; empty at the end."""
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, symbol: str) -> None:
        """Read ``symbol``. Raises Refused: another token is next."""
        if self.peek() != symbol:
            if not self.tokens:
                raise Refused(1, "no_program", "there is no program")
            self.refuse(f"{symbol} is missing before {self.peek() or 'the end'}")
        self.at += 1

    def program(self) -> list[Step]:
        """The steps of the whole text."""
        steps = self.steps(0)
        if self.peek():
            self.refuse(f"unexpected {self.peek()!r}")
        return steps

    def steps(self, depth: int) -> list[Step]:
        """Steps with arrows between them."""
        if depth > DEEPEST:
            raise Refused(1, "size", f"more than {DEEPEST} brackets in each other")
        steps = [self.step(depth + 1)]
        while self.peek() == "->":
            self.at += 1
            steps.append(self.step(depth + 1))
        return steps

    def step(self, depth: int) -> Step:
        """One step: a list, a loop, an operator, or a choice behind one."""
        token = self.peek()
        if token == "[":
            self.at += 1
            branches = [self.steps(depth)]
            while self.peek() == ",":
                self.at += 1
                branches.append(self.steps(depth))
            self.take("]")
            return Step(branches=branches)
        if token == "(":
            self.at += 1
            body = self.steps(depth)
            self.take(")")
            self.take("*")
            turns = self.peek()
            if not turns.isdecimal() or len(turns) > 4 or not 1 <= int(turns) <= MOST_TURNS:
                self.refuse(f"a loop has 1 to {MOST_TURNS} turns, not {turns or 'none'}")
            self.at += 1
            return Step(body=body, turns=int(turns))
        if not (token[:1].isalpha() or token[:1] == "_") or token == "done":
            if not self.tokens:
                raise Refused(1, "no_program", "there is no program")
            self.refuse(f"an operator is missing before {token or 'the end'}")
        self.at += 1
        if self.peek() != "?":
            return Step(token)
        self.at += 1
        body = self.steps(depth)
        self.take(":")
        if self.peek() == "done":
            self.at += 1
            return Step(token, body=body)
        return Step(token, body=body, other=self.steps(depth))


def walk(steps: list[Step]) -> Iterator[Step]:
    """Every step, those inside of others too."""
    for step in steps:
        yield step
        for part in (*step.branches, step.body, step.other or []):
            yield from walk(part)


def count(steps: list[Step]) -> int:
    """Operators after loops, both sides of a choice included."""
    return sum(
        bool(step.operator)
        + sum(map(count, step.branches))
        + (step.turns or 1) * count(step.body)
        + count(step.other or [])
        for step in steps
    )


def check(steps: list[Step]) -> None:
    """Refuse what parses and cannot work.
    Raises Refused: an unknown operator, too many, a list without an ensemble, no solution at the
        beginning, or a choice by what does not check."""
    if (number := count(steps)) > MOST_OPERATORS:
        raise Refused(1, "size", f"{number} operators after loops; at most {MOST_OPERATORS}")
    for step in walk(steps):
        if step.operator and step.operator not in OPERATORS:
            raise Refused(1, "unknown_operator", f"there is no operator {step.operator}")
        if step.chooses and step.operator not in CHECKS:
            raise Refused(1, "operator_arguments", f"? follows Review or Test, not {step.operator}")
    _check_lists(steps)
    if (wrong := _without_solution(steps)) is not None:
        makers = ", ".join(MAKERS)
        raise Refused(
            1, "operator_arguments", f"{wrong} has no solution yet: begin with one of {makers}"
        )


def _check_lists(steps: list[Step]) -> None:
    for place, step in enumerate(steps):
        behind = steps[place + 1].operator if place + 1 < len(steps) else ""
        if step.branches and behind not in ENSEMBLES:
            raise Refused(
                1, "operator_arguments", f"a list is followed by {' or '.join(ENSEMBLES)}"
            )
        for part in (*step.branches, step.body, step.other or []):
            _check_lists(part)


def _without_solution(steps: list[Step]) -> str | None:
    """The operator that would come first and needs a solution, or None."""
    first = steps[0]
    if first.operator:
        return None if first.operator in MAKERS else first.operator
    for part in first.branches or [first.body]:
        if (wrong := _without_solution(part)) is not None:
            return wrong
    return None


def compiled(text: str, offset: int = 0) -> Program:
    """The program of a DSL text. Raises Refused: it is none."""
    steps = parse(text)
    check(steps)
    used = [step.operator for step in walk(steps) if step.operator]
    names = list(dict.fromkeys(used))
    source = text.strip()
    return Program(source, "dsl", _Writer(names).write(steps), offset, tuple(names))


HEAD = """\
class Workflow:
    def __init__(self, name, llm_config, dataset):
        self.llm = create_llm_instance(llm_config)
"""
TASK = "self.task(problem, solution)"
SO_FAR = "\n\nSolution so far:\n"
"""Stands between a problem and what has been written so far."""
CALLS = {
    "Custom": ("input={task}, instruction=''", "response"),
    "AnswerGenerate": ("input={task}", "answer"),
    "CustomCodeGenerate": ("problem={task}, entry_point=entry_point", "response"),
    "Programmer": ("problem=problem, analysis=solution or 'None'", "output"),
    "ScEnsemble": ("solutions=solutions, problem=problem", "response"),
    "MdEnsemble": ("solutions=solutions, problem=problem", "solution"),
    "Test": ("problem=problem, solution=solution, entry_point=entry_point", "solution"),
    "Format": ("problem=problem, solution=solution", "solution"),
    "Review": ("problem=problem, solution=solution", ""),
    "Revise": ("problem=problem, solution=solution, feedback=feedback", "solution"),
}
"""Operator -> how a step calls it, and the key of its solution. One that is not here is called with
the names that it declares."""
STATE = "problem, entry_point, solution, feedback"


def call_of(name: str) -> tuple[str, str]:
    """The arguments of a step of that operator, with ``{task}`` for the problem and the solution so
    far, and the key of its solution; empty where it makes none."""
    operator = OPERATORS[name]
    required = [argument.name for argument in operator.arguments if argument.required]
    plain = ", ".join(f"{key}={key if key != 'input' else '{task}'}" for key in required)
    first = next((key for key, kind in operator.results.items() if kind == "str"), "")
    return CALLS.get(name, (plain, first))


def verdict_key(name: str) -> str:
    """The key by which a choice after that operator goes on."""
    return "review_result" if name == "Review" else "result"


class _Writer:
    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.parts: list[list[str]] = []
        """Methods of the parts of lists."""
        self.n_parts = 0

    def write(self, steps: list[Step]) -> str:
        """The source of the class."""
        main = self.method("steps", steps)
        lines: list[str] = [HEAD.rstrip("\n")]
        lines += [f"        self.{snake(name)} = operator.{name}(self.llm)" for name in self.names]
        lines += [
            "",
            "    def task(self, problem, solution):",
            f"        so_far = {SO_FAR!r} + solution",
            "        return problem + so_far if solution else problem",
            "",
            "    async def __call__(self, problem, entry_point=''):",
            "        solution = await self.steps(problem, entry_point, '', '')",
            "        return solution, self.llm.get_usage_summary()['total_cost']",
        ]
        for part in [main, *self.parts]:
            lines += ["", *part]
        if any("asyncio" in line for line in lines):
            lines.insert(0, "import asyncio")
        return "\n".join(lines) + "\n"

    def method(self, name: str, steps: list[Step]) -> list[str]:
        """The lines of a method that does these steps."""
        lines = [f"    async def {name}(self, {STATE}):", "        solutions = [solution]"]
        self.body(steps, 2, lines)
        return [*lines, "        return solution"]

    def body(self, steps: list[Step], depth: int, lines: list[str]) -> None:
        """Add the lines of some steps, ``depth`` levels deep."""
        behind = [step.operator for step in steps[1:]]
        for step, then in zip(steps, [*behind, ""], strict=True):
            self.step(step, depth, lines, collects=then in ENSEMBLES)

    def step(self, step: Step, depth: int, lines: list[str], collects: bool) -> None:
        """Add the lines of one step; where it ``collects``, each turn of a loop starts alike."""
        indent = "    " * depth
        if step.branches:
            calls = []
            for branch in step.branches:
                self.n_parts += 1
                name = f"part_{self.n_parts}"
                calls.append(f"self.{name}({STATE})")
                self.parts.append(self.method(name, branch))
            lines.append(f"{indent}solutions = await asyncio.gather({', '.join(calls)})")
            lines.append(f"{indent}solution = solutions[0]")
            return
        if step.turns:
            made, begun = f"made_{depth}", f"begun_{depth}"
            lines += [f"{indent}{made} = []", f"{indent}{begun} = solution"]
            lines.append(f"{indent}for _ in range({step.turns}):")
            if collects:
                lines.append(f"{indent}    solution = {begun}")
            self.body(step.body, depth + 1, lines)
            lines.append(f"{indent}    {made}.append(solution)")
            lines.append(f"{indent}solutions = {made}")
            return
        self.call(step.operator, indent, lines)
        if step.chooses:
            lines.append(f"{indent}if not result['{verdict_key(step.operator)}']:")
            self.body(step.body, depth + 1, lines)
            lines.append(f"{indent}else:")
            if step.other is None:
                lines.append(f"{indent}    return solution")
            else:
                self.body(step.other, depth + 1, lines)

    def call(self, name: str, indent: str, lines: list[str]) -> None:
        """Add the lines of an operator's call."""
        arguments, key = call_of(name)
        arguments = arguments.replace("{task}", TASK)
        lines.append(f"{indent}result = await self.{snake(name)}({arguments})")
        if name == "Review":
            lines.append(f"{indent}feedback = result['feedback']")
        elif key:
            lines.append(f"{indent}solution = result['{key}']")
            lines.append(f"{indent}solutions = [solution]")
