"""What source files import, read from their statements alone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def import_statements(text: str) -> tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]:
    """Every import of a source, those under TYPE_CHECKING too, and whether a function holds it."""
    return tuple(_found(ast.parse(text).body, inside=False))


def _found(
    nodes: Iterable[ast.AST], inside: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, inside
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            parts = getattr(node, part, None)
            if isinstance(parts, list):  # the body of an expression holds no import
                yield from _found(parts, inside or isinstance(node, FUNCTIONS))
