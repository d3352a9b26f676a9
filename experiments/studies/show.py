"""Shows one cell: what it is, its numbers, its files, and the command that makes it again.

    python -m experiments.studies.show cell=runs/STUDY/CELL
    python -m experiments.studies.show cell=NAME

``cell`` is a folder, or the name or the beginning of one in the studies of ``runs_dir``.
list says which studies and cells there are, show what one cell is; status prints where a study
stands once, monitor until its end.
"""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiments.studies.list import studies
from experiments.studies.sizes import format_size, size
from experiments.sweep import cells_of
from study.cell import cells
from study.cell.cells import Cell
from study.cell.folder import CellFolder, study_cells
from study.cell.places import local, shown
from study.cli import command, option
from study.config.identity import ABSENT, flatten, identifying, left_out
from study.config.presets import preset_names, read_preset
from study.errors import UserError
from study.screen import print_table, visible

GROUPS = ("judge", "executor", "policy", "task", "reward", "scaffold", "trainer")
FILLED = ("shadow_judges", "correction.parts")
"""What a sweep fills in by itself, from ``shadow`` and ``correction``."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:+-]*")


def arguments_of(cell: Cell) -> list[str]:
    """The arguments of a sweep of this one cell; empty where none makes a cell of its hash, as for
    one of an older version."""
    arguments = [
        f"{group}={name}" for group in GROUPS if (name := _preset(group, cell.data[group]))
    ]
    arguments += [f"study={cell.config.study}", f"seed={cell.config.seed}"]
    if cell.config.shadow:
        arguments.append(f"shadow={value_text(list(cell.config.shadow))}")
    try:
        (rebuilt,) = cells_of(arguments)
        settings = _settings(rebuilt.data, cell.data)
        typed = [*arguments, *(f"{key}={value_text(value)}" for key, value in settings.items())]
        (rebuilt,) = cells_of(typed)
    except (UserError, ValueError):
        return []
    if rebuilt.id != cell.id:
        return []
    factors = value_text(list(cell.config.factors))
    return (
        typed if rebuilt.config.factors == cell.config.factors else [*typed, f"factors={factors}"]
    )


def _preset(group: str, data: object) -> str:
    """The preset of a group that a part of a config is nearest to: that of its name, else the one
    with which it has the most values in common."""
    names = [name for name in preset_names(group) if name != "base"]
    flat = flatten(data)
    if flat.get("name") in names and group not in ("reward", "scaffold"):
        return str(flat["name"])
    best, most = "", float("-inf")
    for name in names:
        values = flatten(read_preset(group, name))
        equal = sum(1 if flat.get(key) == value else -1 for key, value in values.items())
        if equal > most:
            best, most = name, equal
    return best


def _settings(data: Mapping[str, object], target: Mapping[str, object]) -> dict[str, object]:
    """Keys to set in ``data`` so that it is what ``target`` is, as far as that is in the hash."""
    here, there = identifying(data), identifying(target)
    settings: dict[str, object] = {}
    for key in sorted({*here, *there}):
        if here.get(key, ABSENT) != there.get(key, ABSENT) and not key.startswith(FILLED):
            path, value = _at(target, key)
            if value != ABSENT:
                settings[path] = value
    return settings


def _at(data: Mapping[str, object], key: str) -> tuple[str, object]:
    """The value at a flat key, or the whole list that it is in, with the key of that."""
    value: object = data
    names = key.split(".")
    for place, name in enumerate(names):
        if not isinstance(value, Mapping):
            return ".".join(names[:place]), value
        if name not in value:
            return key, left_out(key)
        value = value[name]
    return key, value


def value_text(value: Any) -> str:
    """A value as Hydra reads it behind ``key=``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{value_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(value_text, value)) + "]"
    text = str(value)
    if not isinstance(value, str) or (_PLAIN.fullmatch(text) and not _is_other(text)):
        return text
    # Hydra takes a backslash for itself, but where a quote stands behind it
    quoted = re.sub(r"(\\*)('|$)", lambda at: at[1] * 2 + "\\'" * bool(at[2]), text)
    return f"'{quoted}'"


def _is_other(text: str) -> bool:
    """Whether Hydra would read a text without quotes as a number, a truth value or nothing."""
    if text.lower() in ("null", "true", "false", "nan", "inf"):
        return True
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True


NUMBERS = (
    *("judge/mean", "truth/mean", "reward/mean", "reward/frac_zero_std", "judge/unscored_frac"),
    *("policy/length", "policy/length_tokens", "policy/entropy", "policy/kl", "time/step_s"),
)
"""Recorded numbers that are shown, with those of ``cost/``."""
NEAREST = 5


@dataclass(frozen=True)
class Options:
    """Options of `experiments.studies.show`: the cell, and where to look for it."""

    cell: str = option("folder, name, or beginning of the name, of a cell", required=True)
    study: str | None = option("study to look in; left out, all of runs_dir")
    runs_dir: Path = option("folder that holds the studies", Path("runs"))
    config: bool = option("print the whole config", False)


@command("experiments.studies.show cell=runs/quickstart/CELL", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0, 2 for a user's error."""
    folder = find(options.cell, options.runs_dir, options.study)
    folder.find()
    cell = cells.load_cell(folder)
    if options.config:
        print(visible(yaml.safe_dump(cell.data, sort_keys=False)), end="")
        return 0
    _print_state(cell)
    _print_numbers(folder)
    print_table(_files(folder.path), f"files, {format_size(size(folder.path))}")
    print("settings in its hash (all settings: config=true):")
    for key, value in identifying(cell.data).items():
        print(visible(f"  {key} = {value}"))
    print(f"\nto make it again, type:\n  {visible(again(cell))}")
    return 0


def find(name: str, runs_dir: Path, study: str | None = None) -> CellFolder:
    """The folder of a cell.
    Raises UserError: none is called so, or several begin so."""
    place = local(name).absolute()
    if (place / "config.yaml").exists():
        return CellFolder(place)
    folders = [runs_dir / study] if study else studies(runs_dir)
    candidates = [cell for folder in folders for cell in study_cells(folder)]
    cell_name = Path(name).name
    fitting = [cell for cell in candidates if cell.name == cell_name]
    fitting = fitting or [
        cell for cell in candidates if cell_name and cell.name.startswith(cell_name)
    ]
    if len(fitting) == 1:
        return CellFolder(fitting[0].path.absolute())
    if fitting:
        matches = ", ".join(str(cell) for cell in fitting[:NEAREST])
        more = f" and {len(fitting) - NEAREST} more" if len(fitting) > NEAREST else ""
        raise UserError(
            f"cell={name} is the beginning of {len(fitting)} cells: {matches}{more}. Type"
            f" cell={fitting[0]}"
        )
    names = [cell.name for cell in candidates]
    nearest = difflib.get_close_matches(cell_name, names, n=NEAREST, cutoff=0.4) or names[:NEAREST]
    where = shown(runs_dir / study) if study else shown(runs_dir)
    hint = f"The nearest are {', '.join(nearest)}" if nearest else f"{where} holds no cell"
    listing = f"judgedrift list runs_dir={runs_dir}" + (f" study={study}" if study else "")
    raise UserError(f"cell={name} is not a cell in {where}. {hint}. To see all, type: {listing}")


def again(cell: Cell) -> str:
    """The command that makes a cell again."""
    if arguments := arguments_of(cell):
        runs_dir = cell.folder.study_dir.parent
        return shlex.join(["judgedrift", "sweep", *arguments, f"runs_dir={shown(runs_dir)}"])
    return shlex.join(["python", "-m", "experiments.train", f"cell={shown(cell.folder.path)}"])


def _print_state(cell: Cell) -> None:
    status, config = cell.folder.status(), cell.config
    words = [cell.folder.state(), f"step {status.get('step', 0)} of {config.trainer.steps}"]
    if "seconds" in status:
        words.append(f"{status['seconds']:.1f} s")
    if status.get("host"):
        words.append(f"on {status['host']}")
    print(visible(f"{cell.name}: {', '.join(words)}"))
    print(
        visible(
            f"  judge {config.judge.name}, policy {config.policy.name}, task {config.task.name},"
            f" seed {config.seed}, study {config.study}"
        )
    )
    if status.get("error"):
        print(visible(f"  error: {status['error']}"))
    print()


def _print_numbers(folder: CellFolder) -> None:
    """The first and the last recorded step, side by side."""
    lines = [line for line in folder.lines() if line["step"] > 0]
    if not lines:
        print("No step is recorded yet.\n")
        return
    first, last = lines[0], lines[-1]
    names = [name for name in _names_shown(last["metrics"]) if name in first["metrics"]]
    columns = (f"step {first['step']}", f"step {last['step']}")
    rows = [
        {
            "number": name,
            columns[0]: _number(first["metrics"][name]),
            columns[1]: _number(last["metrics"][name]),
        }
        for name in names
    ]
    if rows:
        print_table(rows, "numbers")


def _names_shown(metrics: dict[str, Any]) -> list[str]:
    """The numbers that are shown."""
    costs = sorted(name for name in metrics if name.startswith("cost/"))
    return [*(name for name in NUMBERS if name in metrics), *costs]


def _number(value: Any) -> str:
    """Three digits of what is measured; what is counted, or large, whole."""
    if not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _files(folder: Path) -> list[dict[str, str]]:
    places = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return [
        {
            "file": path.name + "/" * path.is_dir(),
            "files": str(sum(each.is_file() for each in path.rglob("*"))) if path.is_dir() else "",
            "size": format_size(size(path)),
        }
        for path in places
    ]


if __name__ == "__main__":
    sys.exit(main())
