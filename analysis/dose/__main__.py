"""Dose and response over runs: how much behaviour, or gap, a unit of injected bias makes."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from analysis.display.printed import show, with_problems
from analysis.dose.display import dose_caption, dose_response
from analysis.dose.estimate import DoseResponse, left_out, straight, study
from study.cli import FigureOptions, command, option
from study.config.bounds import Choice
from study.features import FEATURES


@dataclass(frozen=True)
class Options(FigureOptions):
    """Options of `analysis.dose`: the study, and the behaviour."""

    feature: str = option("the behaviour", "length", Choice(FEATURES))


@command("analysis.dose study=dose-response", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result, problems = study(options.folder, options.feature)
    numbers = {"study": options.folder.name, **result.numbers(), "problems": problems}
    return show(
        options,
        numbers,
        lambda: with_problems(_lines(result), problems),
        lambda: dose_response(result),
    )


def _lines(result: DoseResponse) -> list[str]:
    """Slope, line, monotone and Emax fits of one behaviour over doses."""
    fit, bent, slope = result.line, result.emax, result.slope
    curve = bent.note or (
        f"e0 {bent.e0:.3g}, emax {bent.emax:.3g}, ed50 {bent.ed50:.3g}; AIC"
        f" {bent.aic:.1f} against {bent.aic_line:.1f} of the line"
    )
    return [
        f"{result.feature}: {fit.runs} runs, shift per unit of dose {slope.value:.3g}"
        f" [{slope.low:.3g}, {slope.high:.3g}] over {slope.n} {slope.unit}s"
        f"{' (' + slope.note + ')' if slope.note else ''}; trend p {result.trend_p:.4g}"
        f" (doses permuted{' within seeds' if slope.unit == 'seed' else ''})",
        f"line over runs treated as independent: [{fit.slope.low:.3g}, {fit.slope.high:.3g}],"
        f" R2 {fit.r2:.3f}; {straight(result.lack_of_fit_p)}",
        "monotone: " + ", ".join(f"{dose:g} -> {value:.3g}" for dose, value in result.monotone),
        f"Emax: {curve}",
        dose_caption(result),
        *filter(None, [left_out(result.left_out)]),
    ]


if __name__ == "__main__":
    sys.exit(main())
