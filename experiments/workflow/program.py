"""A workflow program: its text, what it compiles to, and what is wrong with it."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from experiments.workflow.broker import Ending

MOST_BYTES = 16 * 1024
MOST_NODES = 2000
OUTCOMES = {
    Ending.SYNTAX_ERROR: ("no_program", "syntax"),
    Ending.FORBIDDEN: ("import", "name", "size"),
    Ending.CONTRACT_ERROR: (
        *("no_class", "no_call", "not_async", "signature", "unknown_operator"),
        *("operator_arguments", "unknown_prompt", "unknown_attribute", "not_awaited"),
        *("unknown_key", "return"),
    ),
    Ending.DRY_RUN_ERROR: ("dry_run",),
}
"""Outcome -> the codes of errors that lead to it, the gravest first."""
WARNINGS = ("maybe_unbound", "fragile")


class Diagnostic(NamedTuple):
    """One thing that is wrong, or may be, and where: lines count from 1 in the text as given."""

    line: int
    code: str
    message: str

    @property
    def level(self) -> str:
        """error, which decides the outcome, or warning."""
        return "warning" if self.code in WARNINGS else "error"

    def as_row(self) -> dict[str, str | int]:
        """As `validate` writes it."""
        return {"line": self.line, "code": self.code, "level": self.level, "message": self.message}


class Refused(Exception):
    """A text that is no program: one diagnostic says why."""

    def __init__(self, line: int, code: str, message: str) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(line, code, message)


@dataclass(frozen=True)
class Program:
    """A program that was found in a completion.

    Attributes:
        source: what the policy wrote, without what stands around it.
        form: python or dsl.
        python: the class that is run: the source, or what a DSL compiles to.
        offset: lines of the completion before the source; a DSL's lines are not those of its class.
        operators: of a DSL, in order.
    """

    source: str
    form: str
    python: str
    offset: int = 0
    operators: tuple[str, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def sha(self) -> str:
        """SHA-256 of the source."""
        return _sha(self.source)

    def line(self, line: int | None) -> int:
        """A line of the class as one of the completion."""
        return 1 + self.offset if self.form == "dsl" else (line or 1) + self.offset


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def ast_sha(tree: ast.AST) -> str | None:
    """SHA-256 of a program without its layout and comments; None where it is nested too deeply."""
    try:
        return _sha(ast.dump(tree))
    except RecursionError:
        return None


def outcome_of(diagnostics: list[Diagnostic]) -> Ending:
    """The gravest outcome that an error leads to; ok where there is none."""
    codes = {diagnostic.code for diagnostic in diagnostics}
    return next((outcome for outcome, of in OUTCOMES.items() if codes & set(of)), Ending.OK)


_SNAKE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake(name: str) -> str:
    """AnswerGenerate -> answer_generate."""
    return _SNAKE.sub("_", name).lower()


def read_prompts(text: str) -> dict[str, str]:
    """The names that a prompt file binds at its top, and their texts; a text that is computed is
    empty. The file is never run. Raises SyntaxError, ValueError: it is no Python."""
    try:
        tree = ast.parse(text)
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error
    prompts = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) and node.value else targets
        for target in targets:
            if isinstance(target, ast.Name):
                value = getattr(node, "value", None)
                constant = value.value if isinstance(value, ast.Constant) else ""
                prompts[target.id] = constant if isinstance(constant, str) else ""
    return prompts
