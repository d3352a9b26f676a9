"""Natural judges: the slope of behaviour on a bias that is itself measured, its error taken out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.display.printed import show, with_problems
from analysis.dose.errors_in_variables import study
from study.cli import ResultOptions, command, option
from study.config.bounds import Choice, Number
from study.features import FEATURES


@dataclass(frozen=True)
class Options(ResultOptions):
    feature: str = option("the behaviour", "length", Choice(FEATURES))
    steps: int = option("first steps that are read", 1, Number(low=1))


@command("analysis.natural study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = study(options.folder, options.feature, options.steps)
    return show(options, result, lambda: _text(result))


def _text(result: dict[str, Any]) -> str:
    """The bias of each judge, and the slopes of behaviour on it."""
    judges, slopes = (
        pd.DataFrame(result[key]).to_string(index=False, float_format="%.4g")
        for key in ("judges", "slopes")
    )
    between = (
        f"\n{result['feature']} per unit of measured bias, judge by judge"
        f" (reliability of the bias {result['reliability']:.3f}):"
    )
    return with_problems([judges, between, slopes], result["problems"])


if __name__ == "__main__":
    sys.exit(main())
