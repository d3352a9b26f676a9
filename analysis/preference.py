"""Does a judge score its own family's answers higher than their quality earns?

The table is a file, or a folder that ``experiments.probe`` wrote, whose texts have authors.
"""

from __future__ import annotations

import sys

from analysis.display.markup import render_text
from analysis.external.preference import preferences, read, render
from analysis.external.tables import TableOptions
from analysis.probes import profile
from analysis.probes.judges import OTHERS, authored
from analysis.statistics.estimate import columns
from study.cli import command
from study.errors import UserError


@command("analysis.preference table.csv out=preference.json", __doc__, TableOptions)
def main(options: TableOptions) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    if options.file.is_dir():
        evidence = profile.read(options.file)
        table, quality_by = authored(profile.scores(evidence), evidence.manifest)
        if table.empty:
            raise UserError(f"{options.file}: {render_text('profile', 'no_author')}")
    else:
        table, quality_by = read(options.file), "the table"
    result = preferences(table, offset=quality_by == OTHERS)
    rows = [columns(preference, effect="") for preference in result]
    options.write({"unit": "item", "quality_by": quality_by, "preferences": rows})
    print(render(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
