"""Faults that can be planted: where in a file, of which kind, and what stands there instead.

Six kinds, each an edit of one expression or statement that leaves a file that compiles:

- ``comparison``: ``==`` for ``!=``, ``<`` for ``>=``, ``in`` for ``not in``, ``is`` for ``is not``
- ``boundary``: ``<`` for ``<=``, ``>`` for ``>=``
- ``constant``: a number plus one (a float doubled, 0.0 becomes 1.0), True for False
- ``returned_none``: ``return value`` becomes ``return None``; not of False, which is no as well
- ``swapped``: the first two positional arguments of a call change places
- ``dropped``: a call, an augmented assignment, an assignment to an attribute or an item, a
  ``raise``, a ``continue`` or a ``break`` becomes ``pass``

Annotations, docstrings, f-strings (Python 3.11 does not know where their parts stand) and what is
under TYPE_CHECKING are left alone, and so is what no test could tell from the original: see
`UNSEEN_KEYWORDS`, `SYMMETRIC`, `NEVER_EQUAL` and `TOLERANCES`.
"""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("study", "judges", "analysis", "experiments")
KINDS = ("comparison", "boundary", "constant", "returned_none", "swapped", "dropped")
OPPOSITE = {
    ast.Eq: ast.NotEq,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
}
OPPOSITE |= {other: operator for operator, other in OPPOSITE.items()}
UNSEEN_KEYWORDS = {
    "strict": "only a second fault makes the parts of a zip differ in length",
    "frozen": "nothing assigns to a field of what is frozen",
    "slots": "as frozen",
    "maxsize": "how much a cache holds is a matter of speed",
}
"""Keywords of a call whose value is no place for a fault, and why."""
SYMMETRIC = frozenset("max min maximum minimum fmax fmin isclose gcd hypot logaddexp".split())
"""Functions that do not care which of two arguments comes first."""
NEVER_EQUAL = frozenset("random monotonic perf_counter time".split())
"""Functions whose value is never the bound itself but by chance: boundaries of draws and clocks."""
TOLERANCES = frozenset("DISTINCT EXACT FLAT NOISE NO_GAIN NO_SPREAD ROUNDING TIED ZERO".split())
"""Constants, like a number below `ROUNDED`, that only rounding comes near: what is compared with
them is zero or far above, so a boundary there decides nothing."""
ROUNDED = 1e-5
NEIGHBOUR = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


@dataclass(frozen=True)
class Fault:
    """One edit of one file.

    ``name`` finds the same place in another version of the source: path, function, kind, the text
    that is replaced, and which of several such places of the function it is.
    """

    name: str
    path: str
    line: int
    kind: str
    begin: int
    """First byte of the file that is replaced."""
    end: int
    before: str
    after: str
    deferred: bool
    """Whether it stands in a function; otherwise it is run when the file is imported."""


def sources(root: Path) -> dict[str, Path]:
    """Every file of the four packages by its path from the root."""
    return {
        path.relative_to(root).as_posix(): path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }


def faults_of(path: str, text: str) -> list[Fault]:
    """All faults that can be planted in a file, in the order of its text."""
    data = text.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    counts: Counter[str] = Counter()
    faults = []
    for node, scope, deferred in _places(ast.parse(text)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = data[begin:end].decode()
        for kind, after in _replacements(node):
            head = f"{path}::{scope}::{kind}::{' '.join(before.split())}"
            name = f"{head}::{counts[head]}"
            counts[head] += 1
            faults.append(Fault(name, path, node.lineno, kind, begin, end, before, after, deferred))
    return sorted(faults, key=lambda fault: (fault.begin, fault.end, fault.kind))


def all_faults(root: Path) -> list[Fault]:
    """All faults that can be planted in the four packages."""
    return [
        fault for path, file in sources(root).items() for fault in faults_of(path, file.read_text())
    ]


def drawn(faults: list[Fault], n: int, seed: int) -> list[Fault]:
    """A sample of ``n`` faults, as many of each kind, each kind's drawn without replacement."""
    dice = random.Random(seed)
    chosen = []
    for index, kind in enumerate(KINDS):
        share = n // len(KINDS) + (index < n % len(KINDS))
        of_kind = [fault for fault in faults if fault.kind == kind]
        chosen += dice.sample(of_kind, min(share, len(of_kind)))
    return chosen


def planted(text: str, faults: list[Fault]) -> str:
    """The file with faults that do not overlap."""
    data = text.encode()
    for fault in sorted(faults, key=lambda fault: -fault.begin):
        assert data[fault.begin : fault.end].decode() == fault.before, fault.name
        data = data[: fault.begin] + fault.after.encode() + data[fault.end :]
    return data.decode()


Place = tuple[ast.expr | ast.stmt, str, bool]


def _places(tree: ast.Module) -> Iterator[Place]:
    """Every expression and statement that runs, with its function and whether it is deferred."""

    def visit(node: ast.AST, scope: str, deferred: bool) -> Iterator[Place]:
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        ):
            return
        if isinstance(node, ast.expr | ast.stmt):
            yield node, scope, deferred
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{node.name}" if scope else node.name
            outside = [*node.decorator_list]
            if isinstance(node, ast.ClassDef):
                outside += [*node.bases, *(keyword.value for keyword in node.keywords)]
                inside = deferred
            else:
                outside += [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]
                inside = True
            for each in outside:
                yield from visit(each, scope, deferred)
            for each in node.body:
                yield from visit(each, inner, inside)
            return
        if isinstance(node, ast.Lambda):
            yield from visit(node.body, scope, True)
            return
        if isinstance(node, ast.keyword) and node.arg in UNSEEN_KEYWORDS:
            return
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns"):
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    yield from visit(each, scope, deferred)

    for statement in tree.body:
        yield from visit(statement, "", False)


def _replacements(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    """(kind, text) of each fault of one place."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=comparators):
            tables = (("comparison", OPPOSITE), ("boundary", NEIGHBOUR))
            for kind, table in tables:
                if type(operator) in table and not (kind == "boundary" and _is_unseen(node)):
                    other = ast.Compare(left, [table[type(operator)]()], comparators)
                    yield kind, f"({ast.unparse(other)})"
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", str(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", repr(value * 2 if value else 1.0)
        case ast.Return(value=ast.expr() as value) if not (
            isinstance(value, ast.Constant) and (value.value is None or value.value is False)
        ):
            yield "returned_none", "return None"
        case ast.Call(func=function, args=[first, second, *rest], keywords=keywords) if not (
            isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
        ):
            called = ast.unparse(function).rpartition(".")[2]
            if called not in SYMMETRIC and ast.unparse(first) != ast.unparse(second):
                other = ast.Call(function, [second, first, *rest], keywords)
                yield "swapped", ast.unparse(other)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
            yield "dropped", "pass"
        case ast.Continue() | ast.Break():
            yield "dropped", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "dropped", "pass"


def _is_unseen(comparison: ast.Compare) -> bool:
    """Whether both sides are equal by chance or by rounding alone."""
    for node in ast.walk(comparison):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                unseen = name in NEVER_EQUAL
            case ast.Name(id=name) | ast.Attribute(attr=name):
                unseen = name in TOLERANCES
            case ast.Constant(value=float(value)):
                unseen = 0 < value < ROUNDED
            case _:
                unseen = False
        if unseen:
            return True
    return False
