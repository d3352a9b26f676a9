"""Agreement of rated scores: ``python -m analysis.ratings FILE out=JSON``."""

from __future__ import annotations

import sys

from analysis.external.ratings import agreement_report, check_ratings, render
from analysis.external.tables import TableOptions, read_table
from analysis.statistics.proportions import LEVEL
from study.cli import command


@command("analysis.ratings scores.csv out=ratings.json", __doc__, TableOptions)
def main(options: TableOptions) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    report = agreement_report(check_ratings(read_table(options.file)))
    options.write({"options": {"file": str(options.file), "level": LEVEL}, **report})
    print(render(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
