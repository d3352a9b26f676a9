"""Agreement of rated scores: ``python -m analysis.ratings FILE out=JSON``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.external import tables
from analysis.statistics.proportions import (
    LEVEL,
)

if TYPE_CHECKING:
    pass
from analysis.external.ratings import agreement_report, read_ratings, render

USAGE = "python -m analysis.ratings scores.csv out=ratings.json"


def _work(path: Path, options: dict[str, str]) -> tuple[dict[str, Any], str]:
    found = agreement_report(read_ratings(path))
    return {"options": {"file": str(path), "level": LEVEL, **options}, **found}, render(found)


def main(arguments: Sequence[str]) -> int:
    """Command line. Exit codes: 0 written, 2 a user's error."""
    return tables.run_command(arguments, USAGE, {}, _work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
