"""Does the truth fall because of the behaviour that the judge paid for? Descriptive, over runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.command import study_command, write_json
from study.errors import UserError

if TYPE_CHECKING:
    pass
from analysis.arm.mediation import study

USAGE = (
    "python -m analysis.mediation study=dose-response [feature=length] [runs_dir=runs] [out=FILE]"
)


def main(arguments: Sequence[str]) -> int:
    """The command line; 0, or 2 after a user's error."""
    try:
        given, folder = study_command(arguments, ("feature", "out"), USAGE)
        found = study(folder, given.get("feature", "length"))
        if given.get("out"):
            write_json(given["out"], found)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(
        f"truth per unit of dose, {len(found['runs'])} runs: total {found['total']:.3g}"
        f" [{found['total_low']:.3g}, {found['total_high']:.3g}], through {found['feature']}"
        f" {found['indirect']:.3g} [{found['low']:.3g}, {found['high']:.3g}], else"
        f" {found['direct']:.3g}"
    )
    print(
        f"{found['feature']} per unit of dose {found['a']:.3g}, truth per unit of"
        f" {found['feature']} {found['b']:.3g}; a common cause with a correlation of"
        f" {found['rho']:.2f} would make all of the indirect effect. {found['note']}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
