"""Pairwise judges: ``python -m analysis.pairwise FILE out=JSON [invalid=exclude|wrong|half]``."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from analysis.external.pairwise import INVALID, check_pairwise, judge_pairs, render
from analysis.external.tables import TableOptions, read_table
from analysis.statistics.proportions import LEVEL
from study.cli import command, option
from study.config.bounds import Choice


@dataclass(frozen=True)
class Options(TableOptions):
    """Options of `analysis.pairwise`: the table, and how invalid verdicts count."""

    invalid: str = option(
        "how a verdict that names neither counts", "exclude", Choice(tuple(INVALID))
    )


@command("analysis.pairwise verdicts.csv out=pairwise.json invalid=exclude", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    judges = judge_pairs(check_pairwise(read_table(options.file)), options.invalid)
    chosen = {
        "invalid": options.invalid,
        "invalid_means": INVALID[options.invalid],
        "level": LEVEL,
        "file": str(options.file),
    }
    options.write({"options": chosen, "judges": judges})
    print(render(judges, options.invalid))
    return 0


if __name__ == "__main__":
    sys.exit(main())
