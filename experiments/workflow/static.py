"""The static pass: what is forbidden, and what breaks the contract, read off the syntax tree.

One walk over the tree, and a second over each function for names that some path does not bind. A
program that does what cannot be seen here meets the dry run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from experiments.workflow.bound import maybe_unbound
from experiments.workflow.methods import Method, Results
from experiments.workflow.operators import OPERATORS
from experiments.workflow.program import MOST_BYTES, MOST_NODES, Diagnostic, Program
from experiments.workflow.tree import FUNCTIONS, Function, first_of, flat, is_dunder, is_operator
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


def nodes_of(tree: ast.AST) -> int:
    """How many nodes a tree has; see `flat`."""
    return len(flat(tree))


def operators_made(tree: ast.AST) -> list[str]:
    """The operators that a program makes, in order and each once."""
    names = [
        (node.lineno, node.col_offset, node.func.attr)
        for node in flat(tree)
        if isinstance(node, ast.Call)
        and is_operator(node.func)
        and isinstance(node.func, ast.Attribute)
    ]
    return list(dict.fromkeys(name for _, _, name in sorted(names)))


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
        """Note what is wrong at a node."""
        line = self.program.line(getattr(node, "lineno", 1))
        self.diagnostics.append(Diagnostic(line, code, message))

    # what is forbidden

    def forbidden(self, node: ast.AST) -> None:
        """Say where a node imports or names what is forbidden."""
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
            if is_dunder(name) and not (isinstance(node, FUNCTIONS) and name in DEFINED):
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
        """Check one module of an ``import``."""
        if headers.is_module(name, alias):
            return
        if name not in MODULES:
            self.say(node, "import", f"import {name} is forbidden")
        elif name == "asyncio":
            self.asyncio.add(alias or name)

    def members(self, node: ast.ImportFrom) -> None:
        """Check a ``from ... import``."""
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
        """Check an attribute of asyncio, and that none of operator is assigned."""
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
        """Check what the class Workflow has to be."""
        methods = {node.name: node for node in workflow.body if isinstance(node, FUNCTIONS)}
        self.attributes: dict[str, Results] = {}
        """What __init__ and others make: name -> operators; empty for what is none."""
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id == "prompt_custom" and node.attr not in self.program.prompts:
                    self.say(node, "unknown_prompt", f"there is no prompt {node.attr}")
                elif node.value.id == "operator" and isinstance(node.ctx, ast.Load):
                    self.check_operator(node)
        self.call_method(workflow, methods.get("__call__"))
        self.init_method(workflow, methods.get("__init__"))
        for function in methods.values():
            self.assigned(function)
        inherits = any(
            not (isinstance(base, ast.Name) and base.id == "object") for base in workflow.bases
        )
        names = {
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
            Method(
                function, self.attributes, self.parents, None if inherits else names, self.say
            ).read()

    def check_operator(self, node: ast.Attribute) -> None:
        """Look at ``operator.X`` and at how it is made."""
        if node.attr not in OPERATORS:
            self.say(node, "unknown_operator", f"there is no operator {node.attr}")
            return
        call = self.parents.get(node)
        if isinstance(call, ast.Attribute):
            self.say(call, "unknown_attribute", f"operators have no attribute {call.attr}")
        if not isinstance(call, ast.Call) or call.func is not node:
            return
        keywords = [keyword.arg for keyword in call.keywords]
        starred = None in keywords or any(isinstance(item, ast.Starred) for item in call.args)
        if not starred and (
            not 1 <= len(call.args) + len(keywords) <= 2
            or not set(keywords) <= {"llm", "name"}
            or not (call.args or "llm" in keywords)
        ):
            what = f"operator.{node.attr} is made with the client alone: ({node.attr}(self.llm))"
            self.say(call, "operator_arguments", what)

    def init_method(self, workflow: ast.ClassDef, init: Function | None) -> None:
        """Check the signature of ``__init__``."""
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
        """Check the signature of ``__call__``."""
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
        me = first_of(function)
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
                if isinstance(value, ast.Call) and is_operator(value.func):
                    assert isinstance(value.func, ast.Attribute)
                    of = frozenset([value.func.attr])
                elif isinstance(parent, ast.AnnAssign) and value is None:
                    continue
                earlier = self.attributes.get(node.attr)
                self.attributes[node.attr] = of if earlier in (None, of) else frozenset()


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
