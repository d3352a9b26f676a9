"""Blocks of the source: which statements always run together, and a mark in front of each.

A block is a function's body or one branch of a statement. It has a number; a file that was marked
says which of its blocks were entered by writing a 1 to that number of a shared map of bytes. A line
counts as reached with its block, so a test is chosen rather once too often.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.faults import Fault, sources

MARKS = "__reached__"
"""Name of the map within a file that was marked."""
BRANCHES = ("body", "orelse", "finalbody")


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """The statements of each block, in the order of the tree; those of a module have none."""

    def visit(node: ast.AST, inside: bool) -> Iterator[list[ast.stmt]]:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        inside = inside or is_function
        is_block = inside and not isinstance(node, ast.ClassDef | ast.Lambda | ast.IfExp)
        for name in BRANCHES:
            body = getattr(node, name, None)
            if is_block and isinstance(body, list) and body:
                yield body
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    for statement in tree.body:
        yield from visit(statement, False)


def marked(text: str, first: int) -> ast.Module:
    """The tree of a file whose blocks, numbered from ``first``, say that they were entered."""
    tree = ast.parse(text)
    for number, body in enumerate(list(_bodies(tree)), first):
        place = 1 if _is_docstring(body[0]) and len(body) > 1 else 0
        mark = ast.parse(f"{MARKS}[{number}] = 1").body[0]
        for node in ast.walk(mark):
            ast.copy_location(node, body[place])
        body.insert(place, mark)
    place = 1 if tree.body and _is_docstring(tree.body[0]) else 0
    while place < len(tree.body) and _is_future(tree.body[place]):
        place += 1
    tree.body.insert(place, ast.parse(f"from _reach import {MARKS}").body[0])
    return ast.fix_missing_locations(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def table(root: Path) -> dict[str, int]:
    """Number of the first block of each file, and under "" how many blocks there are."""
    first, numbers = 0, {}
    for path, file in sources(root).items():
        numbers[path] = first
        first += sum(1 for _ in _bodies(ast.parse(file.read_text())))
    return numbers | {"": first}


def block_of(fault: Fault, text: str, first: int) -> int | None:
    """Number of the innermost block that a fault stands in; None where it runs at import."""
    if not fault.deferred:
        return None
    numbers = [
        (body[-1].end_lineno - body[0].lineno, number)
        for number, body in enumerate(_bodies(ast.parse(text)), first)
        if body[0].lineno <= fault.line <= (body[-1].end_lineno or 0)
    ]
    return min(numbers)[1] if numbers else None
