"""Names of a function that some path to their use does not bind: a warning, since a program may
know more of its paths than can be seen."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Bound = set[str] | None
"""The names that are bound on every path; None where no path comes by."""
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def maybe_unbound(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[tuple[ast.Name, str]]:
    """(use, name) of each local name that is read where some path has not bound it, each once; none
    of a function that is nested too deeply to follow."""
    try:
        return _Paths(function).uses
    except RecursionError:
        return []


class _Paths:
    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.uses: list[tuple[ast.Name, str]] = []
        arguments = function.args
        parameters = {
            argument.arg
            for argument in (
                *(*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs),
                *(argument for argument in (arguments.vararg, arguments.kwarg) if argument),
            )
        }
        outer: set[str] = set()
        self.local: set[str] = set()
        for node in _inside(function.body):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                outer.update(node.names)
            self.local.update(_binds(node))
        self.local -= outer | parameters
        self.loops: list[list[Bound]] = []
        """What is bound at each break, for the loops around."""
        self.block(function.body, set())

    def block(self, body: list[ast.stmt], bound: set[str]) -> Bound:
        """The names bound behind these statements; None where their end is never reached."""
        for statement in body:
            after = self.statement(statement, bound)
            if after is None:  # what follows is never reached
                return None
            bound = after
        return bound

    def statement(self, node: ast.stmt, bound: set[str]) -> Bound:
        """The names bound behind one statement; None where nothing follows it."""
        if isinstance(node, ast.If):
            self.expression(node.test, bound)
            return _both(self.block(node.body, set(bound)), self.block(node.orelse, set(bound)))
        if isinstance(node, ast.While):
            return self.loop(node, node.test, bound)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return self.loop(node, node.iter, bound)
        if isinstance(node, ast.Try):
            return self.attempt(node, bound)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self.expression(item.context_expr, bound)
                if item.optional_vars is not None:
                    self.expression(item.optional_vars, bound)
            return self.block(node.body, bound)
        if isinstance(node, ast.Match):
            self.expression(node.subject, bound)
            after: Bound = bound
            sure = False
            for case in node.cases:
                mine = bound | {name for part in ast.walk(case.pattern) for name in _binds(part)}
                if case.guard is not None:
                    self.expression(case.guard, mine)
                ended = self.block(case.body, mine)
                after = ended if case is node.cases[0] else _both(after, ended)
                sure |= (
                    case.guard is None
                    and isinstance(case.pattern, ast.MatchAs)
                    and (case.pattern.pattern is None)
                )
            return after if sure else _both(after, bound)
        if isinstance(node, SCOPES):
            return bound | {getattr(node, "name", "")}
        self.expression(node, bound)
        if isinstance(node, (ast.Return, ast.Raise)):
            return None
        if isinstance(node, (ast.Break, ast.Continue)):
            if self.loops and isinstance(node, ast.Break):
                self.loops[-1].append(set(bound))
            return None
        return bound

    def loop(
        self, node: ast.While | ast.For | ast.AsyncFor, head: ast.expr, bound: set[str]
    ) -> Bound:
        """The names bound behind a loop, over its breaks and its regular end."""
        self.expression(head, bound)
        inside = set(bound)
        if not isinstance(node, ast.While):
            self.expression(node.target, inside)
        self.loops.append([])
        self.block(node.body, inside)
        breaks = self.loops.pop()
        endless = isinstance(head, ast.Constant) and bool(head.value)
        after: Bound = None
        if not (isinstance(node, ast.While) and endless):
            after = self.block(node.orelse, set(bound))
        for exit_ in breaks:
            after = _both(after, exit_)
        return after

    def attempt(self, node: ast.Try, bound: set[str]) -> Bound:
        """The names bound behind a ``try``, over its body and its handlers."""
        ended = self.block(node.body, set(bound))
        if ended is not None:
            ended = self.block(node.orelse, ended)
        for handler in node.handlers:
            mine = set(bound) | ({handler.name} if handler.name else set())
            ended = _both(ended, self.block(handler.body, mine))
        if not node.finalbody:
            return ended
        final = self.block(node.finalbody, set(bound))
        return None if ended is None or final is None else ended | final

    def expression(self, node: ast.AST, bound: set[str]) -> None:
        """Look at the names that a node reads, then bind those that it binds."""
        if isinstance(node, COMPREHENSIONS):
            inner = {
                name.id
                for part in node.generators
                for name in ast.walk(part.target)
                if isinstance(name, ast.Name)
            }
            self.children(node, bound | inner)
            return
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            if isinstance(node, ast.AugAssign):
                self.read(node.target, bound)
            if node.value is not None:
                self.expression(node.value, bound)
            if isinstance(node, ast.AnnAssign) and node.value is None:
                return
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self.expression(target, bound)
            return
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self.read(node, bound)
            elif isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            else:
                bound.discard(node.id)
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update(_binds(node))
            return
        self.children(node, bound)

    def children(self, node: ast.AST, bound: set[str]) -> None:
        """Look at the expressions inside a node."""
        for child in ast.iter_child_nodes(node):
            self.expression(child, bound)

    def read(self, node: ast.AST, bound: set[str]) -> None:
        """Note a local name that is read before it is bound, once."""
        if isinstance(node, ast.Name) and node.id in self.local and node.id not in bound:
            self.uses.append((node, node.id))
            bound.add(node.id)  # once is enough


def _both(left: Bound, right: Bound) -> Bound:
    if left is None or right is None:
        return right if left is None else left
    return left & right


def _inside(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Every node of a function that is not inside of another scope."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, COMPREHENSIONS):  # what it binds is its own
            waiting += [part.iter for part in node.generators]
            continue
        if not isinstance(node, SCOPES):
            waiting += ast.iter_child_nodes(node)


def _binds(node: ast.AST) -> Iterator[str]:
    """The names that a node itself binds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        if node.name:
            yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
