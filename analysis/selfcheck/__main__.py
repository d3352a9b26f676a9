"""Does every interval cover what it claims? ``python -m analysis.selfcheck [replications=500]``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from analysis.selfcheck.checks import (
    FALSE_ALARM,
    FEWEST,
    coverage_table,
    known_faults,
    trained_policies,
)
from analysis.selfcheck.planted_judges import EXPECTED, JUDGES, fields, printed, sentences
from study.cli import command, option, output
from study.config.bounds import Number
from study.system.files import write_json

PLANTED = 20
"""Every so many replications calibrate a planted judge."""


@dataclass(frozen=True)
class Options:
    """Options of `analysis.selfcheck`: how many replications, and the file for the table."""

    replications: int = option(
        "replications of each estimator; fewer are too few to check 95 %",
        FEWEST,
        Number(low=FEWEST),
    )
    out: Path | None = output("JSON file for the table")


@command("analysis.selfcheck replications=1000", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 all as expected, 1 a coverage or a planted judge is not, 2 a user's error."""
    rows = coverage_table(options.replications)
    table = [
        field
        for judge in JUDGES
        for field in fields(judge, options.replications, options.replications // PLANTED)
    ]
    if options.out:
        write_json(options.out, [asdict(row) | {"ok": row.ok} for row in (*rows, *table)])
    print(f"{'estimator':<38}{'truth':>9}{'bias':>10}{'RMSE':>9}{'cover':>8}  band")
    print(*rows, sep="\n")
    bad = [row.estimator for row in rows if not row.ok]
    print(
        f"{len(rows)} estimators, {options.replications} replications each, {len(bad)} outside the"
        f" band{': ' + ', '.join(bad) if bad else ''}. The bands together fail a correct build in "
        f"{FALSE_ALARM:.0%} of seeds; the seed is fixed."
    )
    faults = known_faults(options.replications)
    if faults:
        print("Known not to cover, and not counted above:", *faults, sep="\n")
    print("Planted judges by quantities: silent, or named, and in which share of runs or arms:")
    print(printed(table), *(text for judge in EXPECTED for text in sentences(judge)), sep="\n")
    unlike = [f"{field.judge}: {field.quantity}" for field in table if not field.ok]
    print(f"{len(unlike)} not as expected{': ' + ', '.join(unlike) if unlike else ''}.")
    policies = trained_policies(options.replications)
    print("Predicted less observed shift of trained policies; its bias says where theory stops:")
    print(*policies, sep="\n")
    return 1 if bad or unlike else 0


if __name__ == "__main__":
    sys.exit(main())
