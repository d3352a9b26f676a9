"""Does a judge score its own family's answers higher than their quality earns?"""

from __future__ import annotations

import sys

from analysis.external.preference import preferences, read, render
from analysis.external.tables import TableOptions
from analysis.statistics.estimate import columns
from study.cli import command


@command("analysis.preference table.csv out=preference.json", __doc__, TableOptions)
def main(options: TableOptions) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    result = preferences(read(options.file))
    rows = [columns(preference, effect="") for preference in result]
    options.write({"unit": "item", "preferences": rows})
    print(render(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
