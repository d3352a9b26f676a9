"""The static pass: what is forbidden, and what breaks the contract, read off the syntax tree.

One walk over the tree, and a second over each function for names that some path does not bind. A
program that does what cannot be seen here meets the dry run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from experiments.workflow.bound import maybe_unbound
from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.base import Operator
from experiments.workflow.program import MOST_BYTES, MOST_NODES, Diagnostic, Program
from study.sandbox.inside import headers

MODULES = frozenset(
    (
        "typing re json math string collections collections.abc itertools functools statistics"
        " fractions decimal random asyncio"
    ).split()
)
OF_ASYNCIO = frozenset(("gather", "sleep", "wait_for", "TimeoutError"))
NAMES = frozenset(
    (
        "eval exec compile open getattr setattr globals locals vars input breakpoint __import__"
    ).split()
)
DEFINED = ("__init__", "__call__")
"""The dunder names that a program may define."""
JOINERS = ("gather", "wait_for", "append", "extend", "insert", "add", "put_nowait")
"""Calls that may be given what is awaited later."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Results = frozenset[str]
"""The operators whose result a name may be."""


def read(program: Program) -> tuple[ast.Module | None, list[Diagnostic]]:
    """The tree of a program's class, and what is wrong before anything runs."""
    if len(program.source.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        return None, [Diagnostic(program.line(1), "size", f"more than {MOST_BYTES} bytes")]
    try:
        tree = ast.parse(program.python)
    except SyntaxError as error:
        return None, [Diagnostic(program.line(error.lineno), "syntax", str(error.msg))]
    except (ValueError, RecursionError, MemoryError) as error:
        why = str(error) or "it is nested too deeply"
        return None, [Diagnostic(program.line(1), "syntax", why)]
    if program.form == "dsl":
        return tree, []
    reader = _Reader(tree, program)
    return tree, sorted(reader.diagnostics)


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


def nodes_of(tree: ast.AST) -> int:
    """How many nodes a tree has; see `flat`."""
    return len(flat(tree))


def made(tree: ast.AST) -> list[str]:
    """The operators that a program makes, in order and each once."""
    names = [
        (node.lineno, node.col_offset, node.func.attr)
        for node in flat(tree)
        if isinstance(node, ast.Call)
        and _is_operator(node.func)
        and isinstance(node.func, ast.Attribute)
    ]
    return list(dict.fromkeys(name for _, _, name in sorted(names)))


def _is_operator(node: ast.AST) -> bool:
    """Whether a node is ``operator.X``."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "operator"
    )


def _dunder(name: str | None) -> bool:
    return name is not None and name[:2] == "__" == name[-2:] and len(name) > 4


class _Reader:
    def __init__(self, tree: ast.Module, program: Program) -> None:
        self.program = program
        self.diagnostics: list[Diagnostic] = []
        self.asyncio = {"asyncio"}
        """Names of the module asyncio."""
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes = flat(tree, self.parents)
        if len(self.nodes) > MOST_NODES:
            self.say(tree, "size", f"{len(self.nodes)} nodes; at most {MOST_NODES}")
            return
        for node in self.nodes:
            self.forbidden(node)
        classes = [
            node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Workflow"
        ]
        if not classes:
            self.say(tree, "no_class", "it defines no class Workflow")
        else:
            self.contract(classes[-1])
        for function in self.nodes:
            if isinstance(function, FUNCTIONS):
                for node, name in maybe_unbound(function):
                    self.say(node, "maybe_unbound", f"some path does not bind {name}")

    def say(self, node: ast.AST, code: str, message: str) -> None:
        line = self.program.line(getattr(node, "lineno", 1))
        self.diagnostics.append(Diagnostic(line, code, message))

    # what is forbidden

    def forbidden(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.module(node, alias.name, alias.asname)
        elif isinstance(node, ast.ImportFrom):
            self.members(node)
        elif isinstance(node, ast.Attribute):
            self.attribute(node)
        if isinstance(node, ast.Name) and node.id in NAMES and not self.is_local(node):
            self.say(node, "name", f"{node.id} is forbidden")
        names = NAMED.get(type(node))
        for name in names(node) if names else ():
            if _dunder(name) and not (isinstance(node, FUNCTIONS) and name in DEFINED):
                self.say(node, "name", f"{name} is forbidden")

    def is_local(self, name: ast.Name) -> bool:
        """Whether a name is bound in the function around it, so that it is no builtin."""
        around: ast.AST | None = name
        while around is not None and not isinstance(around, FUNCTIONS):
            around = self.parents.get(around)
        if around is None or name.id == "__import__":
            return False
        parts = list(ast.walk(around))
        if any(isinstance(part, (ast.Global, ast.Nonlocal)) for part in parts):
            return False
        return any(
            (isinstance(part, ast.arg) and part.arg == name.id)
            or (
                isinstance(part, ast.Name)
                and part.id == name.id
                and isinstance(part.ctx, ast.Store)
                and not isinstance(self.parents.get(part), ast.comprehension)
            )
            for part in parts
        )

    def module(self, node: ast.AST, name: str, alias: str | None) -> None:
        if headers.is_module(name, alias):
            return
        if name not in MODULES:
            self.say(node, "import", f"import {name} is forbidden")
        elif name == "asyncio":
            self.asyncio.add(alias or name)

    def members(self, node: ast.ImportFrom) -> None:
        name, members = node.module or "", [alias.name for alias in node.names]
        plain = all(alias.asname is None for alias in node.names)
        if not node.level and plain and headers.is_member(name, members):
            return
        if node.level or name not in MODULES:
            self.say(node, "import", f"from {'.' * node.level}{name} import is forbidden")
        elif name == "asyncio":
            for member in members:
                if member not in OF_ASYNCIO:
                    self.say(node, "import", f"asyncio.{member} is forbidden")

    def attribute(self, node: ast.Attribute) -> None:
        if (
            isinstance(node.value, ast.Name)
            and node.value.id in self.asyncio
            and node.attr not in OF_ASYNCIO
        ):
            self.say(node, "import", f"asyncio.{node.attr} is forbidden")
        if isinstance(node.ctx, (ast.Store, ast.Del)):
            root: ast.AST = node
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id == "operator":
                self.say(node, "name", "an attribute of operator is assigned")

    # the contract

    def contract(self, workflow: ast.ClassDef) -> None:
        methods = {node.name: node for node in workflow.body if isinstance(node, FUNCTIONS)}
        self.attributes: dict[str, Results] = {}
        """What __init__ and others make: name -> operators; empty for what is none."""
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "prompt_custom" and node.attr not in self.program.prompts:
                    self.say(node, "unknown_prompt", f"there is no prompt {node.attr}")
                elif node.value.id == "operator" and isinstance(node.ctx, ast.Load):
                    self.made(node)
        self.call_method(workflow, methods.get("__call__"))
        self.init_method(workflow, methods.get("__init__"))
        for function in methods.values():
            self.assigned(function)
        inherits = any(
            not (isinstance(base, ast.Name) and base.id == "object") for base in workflow.bases
        )
        known = {
            *self.attributes,
            *methods,
            *(
                name.id
                for node in workflow.body
                for name in ast.walk(node)
                if isinstance(name, ast.Name)
                and isinstance(name.ctx, ast.Store)
                and not isinstance(node, FUNCTIONS)
            ),
            *(node.name for node in workflow.body if isinstance(node, ast.ClassDef)),
        }
        for function in methods.values():
            _Method(self, function, known, inherits).read()

    def made(self, node: ast.Attribute) -> None:
        """Look at ``operator.X`` and at how it is made."""
        if node.attr not in OPERATORS:
            self.say(node, "unknown_operator", f"there is no operator {node.attr}")
            return
        call = self.parents.get(node)
        if isinstance(call, ast.Attribute):
            self.say(call, "unknown_attribute", f"operators have no attribute {call.attr}")
        if not isinstance(call, ast.Call) or call.func is not node:
            return
        given = [keyword.arg for keyword in call.keywords]
        starred = None in given or any(isinstance(item, ast.Starred) for item in call.args)
        if not starred and (
            not 1 <= len(call.args) + len(given) <= 2
            or not set(given) <= {"llm", "name"}
            or not (call.args or "llm" in given)
        ):
            what = f"operator.{node.attr} is made with the client alone: ({node.attr}(self.llm))"
            self.say(call, "operator_arguments", what)

    def init_method(self, workflow: ast.ClassDef, init: Function | None) -> None:
        needed = "__init__(self, name, llm_config, dataset)"
        if init is None:
            self.say(workflow, "signature", f"Workflow has no {needed}")
            return
        arguments = init.args
        positional = [*arguments.posonlyargs, *arguments.args]
        required = len(positional) - len(arguments.defaults)
        keywords = sum(default is None for default in arguments.kw_defaults)
        if required > 4 or keywords or (len(positional) < 4 and not arguments.vararg):
            self.say(init, "signature", f"__init__ does not take {needed}")

    def call_method(self, workflow: ast.ClassDef, call: Function | None) -> None:
        if call is None:
            self.say(workflow, "no_call", "Workflow has no __call__")
            return
        if isinstance(call, ast.FunctionDef):
            self.say(call, "not_async", "__call__ is not async")
        arguments = call.args
        positional = [*arguments.posonlyargs, *arguments.args]
        required = positional[1 : len(positional) - len(arguments.defaults)]
        required += [
            argument
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default is None
        ]
        for argument in required:
            if argument.arg not in ("problem", "entry_point"):
                self.say(argument, "signature", f"__call__ is not given {argument.arg}")
        names = [argument.arg for argument in [*positional[1:], *arguments.kwonlyargs]]
        if (not positional and not arguments.vararg) or (
            "problem" not in names
            and not arguments.kwarg
            and not any(argument.arg not in ("problem", "entry_point") for argument in required)
        ):
            self.say(call, "signature", "__call__ does not take problem")

    def assigned(self, function: Function) -> None:
        """Note what a method puts into self."""
        me = _first(function)
        for node in flat(function):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == me
            ):
                parent = self.parents[node]
                if isinstance(parent, ast.AugAssign):
                    continue
                value = parent.value if isinstance(parent, (ast.Assign, ast.AnnAssign)) else None
                of = frozenset[str]()
                if isinstance(value, ast.Call) and _is_operator(value.func):
                    assert isinstance(value.func, ast.Attribute)
                    of = frozenset([value.func.attr])
                elif isinstance(parent, ast.AnnAssign) and value is None:
                    continue
                known = self.attributes.get(node.attr)
                self.attributes[node.attr] = of if known in (None, of) else frozenset()


def _first(function: Function) -> str:
    arguments = [*function.args.posonlyargs, *function.args.args]
    return arguments[0].arg if arguments else ""


NAMED: dict[type, Callable[[Any], Iterable[str | None]]] = {
    ast.Name: lambda node: (node.id,),
    ast.Attribute: lambda node: (node.attr,),
    ast.FunctionDef: lambda node: (node.name,),
    ast.AsyncFunctionDef: lambda node: (node.name,),
    ast.ClassDef: lambda node: (node.name,),
    ast.arg: lambda node: (node.arg,),
    ast.keyword: lambda node: (node.arg,),
    ast.alias: lambda node: (node.asname,),
    ast.ExceptHandler: lambda node: (node.name,),
    ast.MatchAs: lambda node: (node.name,),
    ast.MatchStar: lambda node: (node.name,),
    ast.Global: lambda node: node.names,
    ast.Nonlocal: lambda node: node.names,
    ast.MatchMapping: lambda node: (node.rest,),
    ast.MatchClass: lambda node: node.kwd_attrs,
}
"""Kind of node -> the identifiers that stand in it itself."""


class _Method:
    """Looks at the operator calls of one method and at what becomes of their results."""

    def __init__(
        self, reader: _Reader, function: Function, known: set[str], inherits: bool
    ) -> None:
        self.reader, self.function, self.known, self.inherits = reader, function, known, inherits
        self.me = _first(function)
        self.nodes = flat(function)
        self.single: dict[str, Results | None] = {}
        """Name -> operators whose result it holds; None where it may be anything."""
        self.many: dict[str, Results | None] = {}
        """Name -> operators whose results a list of that name holds."""

    def read(self) -> None:
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
        if isinstance(function, ast.Call) and _is_operator(function.func):
            assert isinstance(function.func, ast.Attribute)
            return function.func.attr if function.func.attr in OPERATORS else None
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == self.me
        ):
            return next(
                iter(self.reader.attributes.get(function.attr, ()) & OPERATORS.keys()), None
            )
        return None

    def attribute(self, node: ast.Attribute) -> None:
        value = node.value
        if isinstance(value, ast.Name) and value.id == self.me and self.me:
            unknown = node.attr not in self.known and not self.inherits
            if unknown and isinstance(node.ctx, ast.Load) and not _dunder(node.attr):
                what = f"self.{node.attr} is never made"
                self.reader.say(node, "unknown_attribute", what)
        elif (
            isinstance(value, ast.Attribute)
            and isinstance(value.value, ast.Name)
            and value.value.id == self.me
            and self.reader.attributes.get(value.attr)
        ):
            self.reader.say(
                node, "unknown_attribute", f"self.{value.attr} has no attribute {node.attr}"
            )

    def arguments(self, node: ast.Call, operator: Operator) -> None:
        given = [keyword.arg for keyword in node.keywords]
        if None in given or any(isinstance(item, ast.Starred) for item in node.args):
            return
        names = [argument.name for argument in operator.arguments]
        placed = names[: len(node.args)]
        required = {argument.name for argument in operator.arguments if argument.required}
        wrong = ""
        if len(node.args) > len(names):
            wrong = f"takes {len(names)} arguments and not {len(node.args)}"
        elif unknown := [str(name) for name in given if name not in names]:
            wrong = f"has no argument {unknown[0]}"
        elif twice := [str(name) for name in given if name in placed]:
            wrong = f"is given {twice[0]} twice"
        elif missing := sorted(required - {*placed, *map(str, given)}, key=names.index):
            wrong = f"needs {', '.join(missing)}"
        if wrong:
            self.reader.say(node, "operator_arguments", f"{operator.name} {wrong}")

    def _awaited(self) -> set[str]:
        """Names that stand where they may be awaited."""
        names: set[str] = set()
        for node in self.nodes:
            parts: list[ast.AST] = []
            if isinstance(node, ast.Await):
                parts = [node.value]
            elif isinstance(node, ast.Call) and _last(node.func) in JOINERS:
                parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                parts = [node.iter]
            elif isinstance(node, ast.Return) and node.value is not None:
                parts = [node.value] if self.function.name != "__call__" else []
            for part in parts:
                names.update(name.id for name in ast.walk(part) if isinstance(name, ast.Name))
        return names

    def awaited(self, node: ast.Call, name: str, awaited: set[str]) -> None:
        parent = self.reader.parents[node]
        while isinstance(parent, (ast.IfExp, ast.NamedExpr)):
            parent = self.reader.parents[parent]
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
                isinstance(parent, ast.Return)
                or isinstance(self.reader.parents[parent], ast.Return)
            )
        elif isinstance(parent, (ast.Assign, ast.AnnAssign)):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            wrong = len(names) == len(targets) and not awaited & set(names)
            wrong |= any(isinstance(target, ast.Tuple) for target in targets)
        elif isinstance(parent, (ast.Call, ast.keyword)):
            call = parent if isinstance(parent, ast.Call) else self.reader.parents[parent]
            function = _last(call.func) if isinstance(call, ast.Call) else ""
            wrong = self.called(call) is not None or function in ("str", "len", "int", "float")
        if wrong:
            self.reader.say(node, "not_awaited", f"the call of {name} is not awaited")

    # which name holds whose result

    def results(self, value: ast.AST | None) -> Results | None:
        """The operators whose result an expression is."""
        if isinstance(value, ast.Await):
            inner = value.value
            if isinstance(inner, ast.Call) and _last(inner.func) == "wait_for" and inner.args:
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
        if _last(call.func) != "gather" or call.keywords:
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
        index = node.slice
        if not isinstance(index, ast.Constant) or not isinstance(index.value, str):
            return
        names = self.results(node.value)
        if names and all(index.value not in OPERATORS[name].returns for name in names):
            legal = ", ".join(OPERATORS[min(names)].returns)
            what = f"the result of {min(names)} has no {index.value!r}, but {legal}"
            self.reader.say(node, "unknown_key", what)


def _merge(names: dict[str, Results | None], name: str, of: Results | None) -> None:
    earlier = names.get(name, of)
    names[name] = None if earlier is None or of is None else earlier | of


def _last(function: ast.AST) -> str:
    """The last part of what is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
