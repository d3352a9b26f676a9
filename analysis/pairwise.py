"""Pairwise judges: ``python -m analysis.pairwise FILE out=JSON [invalid=exclude|wrong|half]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.external import tables
from analysis.statistics.proportions import LEVEL

if TYPE_CHECKING:
    pass
from analysis.external.pairwise import INVALID, judge_pairs, read_pairwise, render

USAGE = "python -m analysis.pairwise verdicts.csv out=pairwise.json invalid=exclude"


def _work(path: Path, options: dict[str, str]) -> tuple[dict[str, Any], str]:
    judges = judge_pairs(read_pairwise(path), options["invalid"])
    chosen = {
        "invalid": options["invalid"],
        "invalid_means": INVALID[options["invalid"]],
        "level": LEVEL,
        "file": str(path),
    }
    return {"options": chosen, "judges": judges}, render(judges, options["invalid"])


def main(arguments: Sequence[str]) -> int:
    """Command line. Exit codes: 0 written, 2 a user's error."""
    return tables.run_command(arguments, USAGE, {"invalid": tuple(INVALID)}, _work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
