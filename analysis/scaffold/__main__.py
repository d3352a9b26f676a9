"""What a scaffold will show, before any training: its schedule as a table and a figure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.scaffold.display import changes, figure, load_scaffold, schedule
from study.cli import command, option, overrides
from study.config.bounds import Number
from study.errors import UserError


@dataclass(frozen=True)
class Options:
    """Options of `analysis.scaffold`: the figure, the steps and the scaffold's settings."""

    out: Path = option("file for the figure: .png, .svg or .pdf", required=True)
    steps: int = option("steps of the training", 350, Number(low=1))
    group_size: int = option("rollouts in a group", 8, Number(low=1))
    criteria: int = option("criteria of a row", 6, Number(low=1))
    overrides: list[str] = overrides("scaffold.")

    def check(self) -> None:
        """Refuse a file that is not of a figure."""
        if self.out.suffix not in (".png", ".svg", ".pdf"):
            raise UserError(f"out={self.out} must end in .png, .svg or .pdf.")


@command("analysis.scaffold out=scaffold.png steps=350 scaffold.x0=0.2", __doc__, Options)
def main(options: Options) -> int:
    """Draw the figure and print the steps at which it changes; 2 for a user's error."""
    scaffold = load_scaffold(options.overrides)
    table = schedule(scaffold, options.steps, options.group_size, options.criteria)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure(scaffold, table, options.criteria).savefig(options.out, dpi=150)
    print(changes(table).to_string())
    print(
        f"{options.out}: criteria shown of {options.criteria}, by rollout (columns), where they"
        " change"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
