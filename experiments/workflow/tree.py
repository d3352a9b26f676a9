"""A syntax tree as the static pass looks at it."""

from __future__ import annotations

import ast

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SMALL = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
"""Marks for reading, writing and the kind of an operation: no nodes of their own here."""


def flat(tree: ast.AST, parents: dict[ast.AST, ast.AST] | None = None) -> list[ast.AST]:
    """The nodes of a tree but the `SMALL` ones, each before what is in it; notes their parents."""
    nodes = [tree]
    for node in nodes:
        for name in node._fields:
            value = getattr(node, name, None)
            items = value if type(value) is list else (value,)
            for item in items:
                if isinstance(item, ast.AST) and not isinstance(item, SMALL):
                    nodes.append(item)
                    if parents is not None:
                        parents[item] = node
    return nodes


def is_operator(node: ast.AST) -> bool:
    """Whether a node is ``operator.X``."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "operator"
    )


def is_dunder(name: str | None) -> bool:
    """Whether a name begins and ends with two underscores."""
    return name is not None and name[:2] == "__" == name[-2:] and len(name) > 4


def first_of(function: Function) -> str:
    """The name of a function's first parameter, or nothing."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    return arguments[0].arg if arguments else ""


def last_of(function: ast.AST) -> str:
    """The last part of what is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
