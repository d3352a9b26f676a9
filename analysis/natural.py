"""Natural judges: the slope of behaviour on a bias that is itself measured, its error taken out."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pandas as pd

from analysis.display.printed import show, with_problems
from analysis.dose.errors_in_variables import study
from study.cli import ResultOptions, command, option
from study.config.bounds import Choice, Number
from study.features import FEATURES


@dataclass(frozen=True)
class Options(ResultOptions):
    """Options of `analysis.natural`: the study, the behaviour, and the first steps."""

    feature: str = option("the behaviour", "length", Choice(FEATURES))
    steps: int = option("number of first steps to read", 1, Number(low=1))


@command("analysis.natural study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = study(options.folder, options.feature, options.steps)
    slopes = [
        {"method": method, "slope": slope.value, "low": slope.low, "high": slope.high}
        | {"judges": slope.n}
        for method, slope in result.slopes.items()
    ]
    numbers = {
        **{"study": options.folder.name, "feature": options.feature, "unit": "judge"},
        **{"judges": result.judges, "reliability": result.reliability},
        **{"slopes": slopes, "problems": result.problems},
    }
    tables = [
        pd.DataFrame(rows).to_string(index=False, float_format="%.4g")
        for rows in (result.judges, slopes)
    ]
    between = (
        f"\n{options.feature} per unit of measured bias, judge by judge"
        f" (reliability of the bias {result.reliability:.3f}):"
    )
    lines = [tables[0], between, tables[1]]
    return show(options, numbers, lambda: with_problems(lines, result.problems))


if __name__ == "__main__":
    sys.exit(main())
