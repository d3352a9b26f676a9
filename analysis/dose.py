"""Dose and response over runs: how much behaviour, or gap, a unit of injected bias makes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from analysis.arm.dose import straight, study
from analysis.command import study_command, write_json
from analysis.reports.figures import dose_caption, dose_response
from study.errors import UserError

USAGE = "python -m analysis.dose study=dose-response [feature=length] [runs_dir=runs] [out=FILE]"


def main(arguments: Sequence[str]) -> int:
    """The command line; 0, or 2 after a user's error."""
    try:
        given, folder = study_command(arguments, ("feature", "out", "figure"), USAGE)
        found = study(folder, given.get("feature", "length"))
        if given.get("out"):
            write_json(given["out"], found)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    fit, bent, slope = found["line"], found["emax"], found["slope"]
    print(f"{found['feature']}: {fit['runs']} runs, shift per unit of dose {slope['slope']:.3g}"
          f" [{slope['low']:.3g}, {slope['high']:.3g}] over {slope['n']} {slope['unit']}s"
          f"{' (' + slope['note'] + ')' if slope['note'] else ''}; trend p {found['trend_p']:.4g}"
          f" (doses permuted{' within seeds' if slope['unit'] == 'seed' else ''})")  # fmt: skip
    print(f"line over runs taken for independent: [{fit['low']:.3g}, {fit['high']:.3g}],"
          f" R2 {fit['r2']:.3f}; {straight(found['lack_of_fit_p'])}")  # fmt: skip
    print("monotone: " + ", ".join(f"{dose:g} -> {value:.3g}" for dose, value in found["monotone"]))
    curve = bent["note"] or (
        f"e0 {bent['e0']:.3g}, emax {bent['emax']:.3g}, ed50 {bent['ed50']:.3g}; AIC"
        f" {bent['aic']:.1f} against {bent['aic_line']:.1f} of the line"
    )
    print(f"Emax: {curve}")
    print(dose_caption(found))
    for problem in found["problems"]:
        print(f"problem: {problem}")
    if given.get("figure"):
        dose_response(found).savefig(given["figure"], dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
