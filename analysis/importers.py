"""What others' judge evaluations and trainers left on disk, as the two plain tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from study.errors import UserError
from study.files import write_text

if TYPE_CHECKING:
    pass
from analysis.external.importers import USAGE, read_as

KINDS = ("alpaca_eval", "judgebench", "llmbar", "ifeval", "trl", "verl")


def main(arguments: Sequence[str]) -> int:
    """Command line. Exit codes: 0 written, 2 a user's error."""
    try:
        options = dict(one.split("=", 1) for one in arguments if "=" in one)
        out, plain = options.pop("out", ""), [one for one in arguments if "=" not in one]
        if len(plain) != 2 or plain[0] not in KINDS or not out.endswith(".csv"):
            raise UserError(
                f"A KIND, one FILE and out=TABLE.csv are needed; kinds are {', '.join(KINDS)}. "
                f"Type: {USAGE}"
            )
        table = read_as(plain[0], Path(plain[1]), options)
        try:
            write_text(Path(out), table.to_csv(index=False))
        except OSError as error:
            raise UserError(f"out={out} cannot be written: {error}") from error
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    command = "pairwise" if "verdict" in table else "ratings"
    lost = table.attrs.get("lost", 0)
    note = f" {lost} damaged records are lost." if lost else ""
    print(f"{len(table)} rows for python -m analysis.{command} {out}.{note}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
