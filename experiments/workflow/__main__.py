"""Workflows: ``python -m experiments.workflow COMMAND KEY=VALUE ...``, each with its own --help."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from experiments.workflow import (
    buffer_command,
    operators_command,
    prompt_command,
    reward_command,
    run_command,
    validate_command,
)
from study.bounds import shown
from study.cli import Command

COMMANDS: dict[str, Command[Any]] = {
    "operators": operators_command.main,
    "validate": validate_command.main,
    "run": run_command.main,
    "reward": reward_command.main,
    "prompt": prompt_command.main,
    "buffer": buffer_command.main,
}
"""First word -> what it does with all of the words."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: those of the command; 2 where there is no such command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = next((text for text in words if text in COMMANDS), "")
    if name:
        return COMMANDS[name](words)
    usage = f"python -m experiments.workflow {'|'.join(COMMANDS)} KEY=VALUE ..."
    if {"-h", "--help"} & set(words):
        print(f"usage: {usage}\n\n{__doc__}")
        return 0
    given = f"{shown(words[0])!r} is not one of them" if words else "none is given"
    print(
        f"experiments.workflow needs a command, and {given}. Legal are {', '.join(COMMANDS)}."
        f" Type for example: python -m experiments.workflow {next(iter(COMMANDS))} --help",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
