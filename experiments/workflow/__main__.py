"""Workflows: ``python -m experiments.workflow COMMAND KEY=VALUE ...``, each with its own --help."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from study.config.bounds import shown

COMMANDS = (
    *("operators", "validate", "run", "reward", "prompt", "buffer", "optimise", "overrides"),
    "planted",
)
"""First words."""
MODULES = {name: f"experiments.workflow.{name}_command" for name in COMMANDS} | {
    "overrides": "experiments.config.overrides"
}
"""Each command's module, which is loaded when it is asked for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: those of the command; 2 where there is no such command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = next((text for text in words if text in COMMANDS), "")
    if name:
        return import_module(MODULES[name]).main(words)
    usage = f"python -m experiments.workflow {'|'.join(COMMANDS)} KEY=VALUE ..."
    if {"-h", "--help"} & set(words):
        print(f"usage: {usage}\n\n{__doc__}")
        return 0
    reason = f"{shown(words[0])!r} is not one" if words else "none is given"
    print(
        f"experiments.workflow needs a command, and {reason}. Legal are {', '.join(COMMANDS)}."
        f" Type for example: python -m experiments.workflow {COMMANDS[0]} --help",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
