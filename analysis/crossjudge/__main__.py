"""Every final policy under every judge: who likes what it taught, and what was given up for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pandas as pd

from analysis.crossjudge.estimate import figure, mean_gains, study
from analysis.display.printed import show, with_problems
from analysis.drift.substitution import LEAST
from study.cli import FigureOptions, command, option
from study.config.bounds import Number


@dataclass(frozen=True)
class Options(FigureOptions):
    """Options of `analysis.crossjudge`: the study, and the smallest shift of a substitution."""

    min_shift_sd: float = option(
        "smallest rise and fall of a substitution, in SDs", LEAST, Number(above=0), former="least"
    )


@command("analysis.crossjudge study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = study(options.folder, options.min_shift_sd)
    matrix = pd.DataFrame(result["matrix"])
    least = options.min_shift_sd
    return show(options, result, lambda: _text(result, least), lambda: figure(matrix))


def _text(result: dict, min_shift_sd: float) -> str:
    inflation, pairs = pd.DataFrame(result["inflation"]), pd.DataFrame(result["agreement"])
    lines = [
        "Gain from the first to the last tenth of the steps, by the judge that scored, on",
        "rollouts that the own judge scored as well; mean over runs:",
        mean_gains(pd.DataFrame(result["matrix"])).round(3).to_string(),
        "\nGain with the own judge [95 % t intervals over runs]:",
        inflation.round(3).to_string(index=False),
        *(f"  {name}: {meaning}" for name, meaning in result["inflation_columns"].items()),
        "\nCorrelation within groups, mean over runs [95 % t interval over runs]:",
        pairs[pairs["judge"] < pairs["other"]].round(3).to_string(index=False) + "\n",
    ]
    swaps = [
        f"{swap['arm']}: {swap['risen']} rose by {swap['up']:.2f} SD or more beyond {swap['base']}"
        f" in each of {swap['runs']} pairs of runs, {swap['fallen']} fell by {-swap['down']:.2f}"
        f" SD or more; {swap['arms']} bias-free arms would show any so far apart in"
        f" {swap['chance']:.2g} of studies"
        for swap in result["substitutions"]
    ]
    none = result["substitutions_untold"] or (
        f"No behaviour rose while another fell by {min_shift_sd:g} SD beyond {result['base_arm']}"
        " in all pairs of runs of an arm, and further than by chance."
    )
    return with_problems([*lines, *(swaps or [none])], result["problems"])


if __name__ == "__main__":
    sys.exit(main())
