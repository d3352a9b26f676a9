"""What a command takes, without what it works with: for its help, which then takes no second.

A module that reads a study loads pandas, SciPy and more at its top. Of its source only those
statements are run here that its options are made of: the dataclass, and what that names.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from study.cli import Command

FUTURE = "__future__"


def module_of(command: str) -> str:
    """The module of a command's ``main``, by the name behind ``python -m``: of a package its
    ``__main__``."""
    spec = find_spec(command)
    is_package = spec is not None and spec.submodule_search_locations is not None
    return f"{command}.__main__" if is_package else command


def declared(command: str) -> Command[Any]:
    """A command by the name behind ``python -m``; it can be asked for its help and its keys, and
    does nothing."""
    module = module_of(command)
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (main,) = (node for node in tree.body if getattr(node, "name", "") == "main")
    assert isinstance(main, ast.FunctionDef)
    main.args, main.returns = _no_arguments(), None
    main.body[:] = [ast.Pass()]
    stub = types.ModuleType(f"{module} as declared", ast.get_docstring(tree, clean=False))
    sys.modules[stub.__name__] = stub  # where dataclasses look for what annotations name
    try:
        declarations = ast.fix_missing_locations(ast.Module(_needed(tree, main), []))
        exec(compile(declarations, str(path), "exec"), vars(stub))
    finally:
        del sys.modules[stub.__name__]
    stub_command: Command[Any] = vars(stub)["main"]
    return stub_command


def _no_arguments() -> ast.arguments:
    return ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def _needed(tree: ast.Module, main: ast.stmt) -> list[ast.stmt]:
    """The statements of a module that ``main`` needs, in their order."""
    binding = {name: node for node in tree.body for name in _bound(node)}
    needed = {id(main)}
    todo = [main]
    while todo:
        for name in _named(todo.pop()):
            node = binding.get(name)
            if node is not None and id(node) not in needed:
                needed.add(id(node))
                todo.append(node)
    return [node for node in tree.body if id(node) in needed or _is_future(node)]


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == FUTURE


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module makes."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (each.asname or each.name.partition(".")[0] for each in node.names)
    elif isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (each.id for t in targets for each in ast.walk(t) if isinstance(each, ast.Name))


def _named(node: ast.stmt) -> Iterator[str]:
    """The names that a statement needs when it is run; a method's body is not run then."""
    inside: list[ast.AST] = [node]
    if isinstance(node, ast.ClassDef):
        body = [each for each in node.body if not isinstance(each, ast.FunctionDef)]
        inside = [*node.decorator_list, *node.bases, *body]
    for part in inside:
        for each in ast.walk(part):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                yield each.id
