"""Agreement of rated scores: ``python -m analysis.ratings FILE out=JSON``."""

from __future__ import annotations

import sys

from analysis.external.ratings import agreement_report, read_ratings, render
from analysis.external.tables import TableOptions
from analysis.statistics.proportions import LEVEL
from study.cli import command, writes
from study.files import write_json


@command("analysis.ratings scores.csv out=ratings.json", __doc__, TableOptions)
def main(options: TableOptions) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    report = agreement_report(read_ratings(options.file))
    chosen = {"file": str(options.file), "level": LEVEL}
    with writes("out", options.out):
        write_json(options.out, {"options": chosen, **report})
    print(render(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
