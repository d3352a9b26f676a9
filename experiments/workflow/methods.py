"""The operator calls of one method: their arguments, whether they are awaited, and what becomes of
their results."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.base import Operator
from experiments.workflow.tree import Function, first_of, flat, is_dunder, is_operator, last_of

Say = Callable[[ast.AST, str, str], None]
Results = frozenset[str]
"""The operators whose result a name may be."""
JOINERS = ("gather", "wait_for", "append", "extend", "insert", "add", "put_nowait")
"""Calls that may be given what is awaited later."""


class Method:
    """Looks at the operator calls of one method and at what becomes of their results."""

    def __init__(
        self,
        function: Function,
        attributes: Mapping[str, Results],
        parents: Mapping[ast.AST, ast.AST],
        names: set[str] | None,
        say: Say,
    ) -> None:
        """``attributes`` are the operators that self holds, by name, and ``names`` all that it has,
        or None where nobody can say; ``say`` takes node, code and message of what is wrong."""
        self.function, self.attributes, self.parents = function, attributes, parents
        self.names, self.say = names, say
        self.me = first_of(function)
        self.nodes = flat(function)
        self.single: dict[str, Results | None] = {}
        """Name -> operators whose result it holds; None where it may be anything."""
        self.many: dict[str, Results | None] = {}
        """Name -> operators whose results a list of that name holds."""

    def read(self) -> None:
        """Check attributes, arguments, awaits and keys of the method, and say what is wrong."""
        awaited = self._awaited()
        for node in self.nodes:
            if isinstance(node, ast.Attribute):
                self.attribute(node)
            elif isinstance(node, ast.Call) and (name := self.called(node)) is not None:
                self.arguments(node, OPERATORS[name])
                self.awaited(node, name, awaited)
        self.bind()
        for node in self.nodes:
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                self.key(node)

    def called(self, node: ast.AST) -> str | None:
        """The operator that a call calls, or None."""
        if not isinstance(node, ast.Call):
            return None
        function = node.func
        if isinstance(function, ast.Call) and is_operator(function.func):
            assert isinstance(function.func, ast.Attribute)
            return function.func.attr if function.func.attr in OPERATORS else None
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == self.me
        ):
            return next(iter(self.attributes.get(function.attr, ()) & OPERATORS.keys()), None)
        return None

    def attribute(self, node: ast.Attribute) -> None:
        """Say where an attribute of self, or of an operator that self holds, is unknown."""
        value = node.value
        if isinstance(value, ast.Name) and value.id == self.me and self.me:
            unknown = self.names is not None and node.attr not in self.names
            if unknown and isinstance(node.ctx, ast.Load) and not is_dunder(node.attr):
                what = f"self.{node.attr} is never made"
                self.say(node, "unknown_attribute", what)
        elif (
            isinstance(value, ast.Attribute)
            and isinstance(value.value, ast.Name)
            and value.value.id == self.me
            and self.attributes.get(value.attr)
        ):
            self.say(node, "unknown_attribute", f"self.{value.attr} has no attribute {node.attr}")

    def arguments(self, node: ast.Call, operator: Operator) -> None:
        """Say where a call does not fit the arguments that ``operator`` declares."""
        keywords = [keyword.arg for keyword in node.keywords]
        if None in keywords or any(isinstance(item, ast.Starred) for item in node.args):
            return
        names = [argument.name for argument in operator.arguments]
        placed = names[: len(node.args)]
        required = {argument.name for argument in operator.arguments if argument.required}
        wrong = ""
        if len(node.args) > len(names):
            wrong = f"takes {len(names)} arguments and not {len(node.args)}"
        elif unknown := [str(name) for name in keywords if name not in names]:
            wrong = f"has no argument {unknown[0]}"
        elif twice := [str(name) for name in keywords if name in placed]:
            wrong = f"is given {twice[0]} twice"
        elif missing := sorted(required - {*placed, *map(str, keywords)}, key=names.index):
            wrong = f"needs {', '.join(missing)}"
        if wrong:
            self.say(node, "operator_arguments", f"{operator.name} {wrong}")

    def _awaited(self) -> set[str]:
        """Names that stand where they may be awaited."""
        names: set[str] = set()
        for node in self.nodes:
            parts: list[ast.AST] = []
            if isinstance(node, ast.Await):
                parts = [node.value]
            elif isinstance(node, ast.Call) and last_of(node.func) in JOINERS:
                parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                parts = [node.iter]
            elif isinstance(node, ast.Return) and node.value is not None:
                parts = [node.value] if self.function.name != "__call__" else []
            for part in parts:
                names.update(name.id for name in ast.walk(part) if isinstance(name, ast.Name))
        return names

    def awaited(self, node: ast.Call, name: str, awaited: set[str]) -> None:
        """Say where the call of ``name`` is not awaited; ``awaited`` are names that may be."""
        parent = self.parents[node]
        while isinstance(parent, (ast.IfExp, ast.NamedExpr)):
            parent = self.parents[parent]
        wrong = isinstance(
            parent,
            (
                ast.Expr,
                ast.Subscript,
                ast.Attribute,
                ast.BinOp,
                ast.BoolOp,
                ast.Compare,
                ast.UnaryOp,
                ast.FormattedValue,
                ast.If,
                ast.While,
                ast.For,
            ),
        )
        if isinstance(parent, (ast.Return, ast.Tuple)):
            wrong = self.function.name == "__call__" and (
                isinstance(parent, ast.Return) or isinstance(self.parents[parent], ast.Return)
            )
        elif isinstance(parent, (ast.Assign, ast.AnnAssign)):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            wrong = len(names) == len(targets) and not awaited & set(names)
            wrong |= any(isinstance(target, ast.Tuple) for target in targets)
        elif isinstance(parent, (ast.Call, ast.keyword)):
            call = parent if isinstance(parent, ast.Call) else self.parents[parent]
            function = last_of(call.func) if isinstance(call, ast.Call) else ""
            wrong = self.called(call) is not None or function in ("str", "len", "int", "float")
        if wrong:
            self.say(node, "not_awaited", f"the call of {name} is not awaited")

    # which name holds whose result

    def results(self, value: ast.AST | None) -> Results | None:
        """The operators whose result an expression is."""
        if isinstance(value, ast.Await):
            inner = value.value
            if isinstance(inner, ast.Call) and last_of(inner.func) == "wait_for" and inner.args:
                inner = inner.args[0]
            name = self.called(inner)
            return None if name is None else frozenset([name])
        if isinstance(value, ast.Name):
            return self.single.get(value.id)
        if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name):
            index = value.slice
            if isinstance(index, ast.Constant) and isinstance(index.value, int):
                return self.many.get(value.value.id)
        return None

    def gathered(self, value: ast.AST | None) -> list[str | None]:
        """The operators of ``await gather(...)``, one for each argument; else none."""
        if not isinstance(value, ast.Await) or not isinstance(value.value, ast.Call):
            return []
        call = value.value
        if last_of(call.func) != "gather" or call.keywords:
            return []
        calls: list[str | None] = []
        for item in call.args:
            inner = item.value if isinstance(item, ast.Starred) else item
            if isinstance(inner, (ast.ListComp, ast.GeneratorExp)):
                calls.append(self.called(inner.elt))
            elif isinstance(inner, ast.List):
                calls += [self.called(element) for element in inner.elts]
            else:
                calls.append(self.called(inner))
        return calls

    def bind(self) -> None:
        """Fill `single` and `many` with what each name holds wherever it is bound."""
        explained: set[ast.AST] = set()
        for node in self.nodes:
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            target, calls = node.targets[0], self.gathered(node.value)
            if isinstance(target, ast.Name):
                explained.add(target)
                if calls:
                    of = None if None in calls else frozenset(str(name) for name in calls)
                    _merge(self.many, target.id, of)
                    _merge(self.single, target.id, None)
                else:
                    _merge(self.single, target.id, self.results(node.value))
                    _merge(self.many, target.id, None)
            elif isinstance(target, ast.Tuple) and len(target.elts) == len(calls):
                for element, name in zip(target.elts, calls, strict=True):
                    if isinstance(element, ast.Name):
                        explained.add(element)
                        _merge(self.single, element.id, None if name is None else frozenset([name]))
        for node in self.nodes:
            if (
                isinstance(node, (ast.For, ast.comprehension))
                and isinstance(node.target, ast.Name)
                and isinstance(node.iter, ast.Name)
            ):
                explained.add(node.target)
                _merge(self.single, node.target.id, self.many.get(node.iter.id))
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                if node not in explained:
                    self.single[node.id] = self.many[node.id] = None
            elif isinstance(node, ast.arg):
                self.single[node.arg] = self.many[node.arg] = None
            elif (
                isinstance(node, ast.Subscript)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
            ):  # a program may add a key of its own
                self.single[node.value.id] = None

    def key(self, node: ast.Subscript) -> None:
        """Say where the result of an operator has no such key."""
        index = node.slice
        if not isinstance(index, ast.Constant) or not isinstance(index.value, str):
            return
        names = self.results(node.value)
        if names and all(index.value not in OPERATORS[name].returns for name in names):
            legal = ", ".join(OPERATORS[min(names)].returns)
            what = f"the result of {min(names)} has no {index.value!r}, but {legal}"
            self.say(node, "unknown_key", what)


def _merge(names: dict[str, Results | None], name: str, of: Results | None) -> None:
    earlier = names.get(name, of)
    names[name] = None if earlier is None or of is None else earlier | of
