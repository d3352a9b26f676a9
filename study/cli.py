"""The command line that every command shares: ``key=value`` words in, tables and JSON out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from study.compose import preset_names
from study.errors import UserError
from study.screen import visible
from study.secrets import refuse_arguments

if TYPE_CHECKING:
    pass


def print_table(lines: list[dict[str, str]], title: str, hidden: Sequence[str] = ()) -> None:
    """Print a table; columns that are empty in every row, or hidden, are left out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As Text nothing is taken for markup: names and errors hold what others wrote
    console = Console(width=None if Console().is_terminal else 160)
    table = Table(title=Text(visible(title)), title_justify="left")
    names = [name for name in lines[0] if name not in hidden and any(line[name] for line in lines)]
    for name in names:
        right = name in ("step", "seconds", *COSTS)
        table.add_column(Text(visible(name)), justify="right" if right else "left", overflow="fold")
    for line in lines:
        table.add_row(*(Text(visible(line[name])) for name in names))
    console.print(table)


def read_pairs(
    arguments: Sequence[str], known: Sequence[str], program: str, usage: str
) -> tuple[dict[str, str], list[str]]:
    """``key=value`` arguments as the program's own ones and the overrides of judge and task.

    Raises:
        UserError: something else than key=value, an unknown key, or no judge.
    """
    refuse_arguments(arguments)
    values: dict[str, str] = {}
    overrides = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in known and value.strip("\"'").startswith("["):
            inner = value.strip("\"'[] ")
            raise UserError(
                f"{argument} has brackets, which {program} takes no list in. Type {key}={inner}"
            )
        if equals and key.lstrip("+~").startswith(GROUPS):
            overrides.append(argument)
        elif equals and value and key in known:
            values[key] = value
        else:
            raise UserError(f"{argument!r} is no argument of {program}. Type {usage}")
    if "judge" not in values:
        raise UserError(
            f"{program} needs a judge: one of {', '.join(preset_names('judge'))}. Type {usage}"
        )
    return values, overrides


COSTS = ("completions", "judge calls", "tokens in", "tokens out")
"""Columns of what a cell is expected to take."""


GROUPS = ("judge.", "task.")
