"""Does the truth fall because of the behaviour that the judge paid for? Descriptive, over runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from analysis.display.printed import show
from analysis.dose.mediation import study
from study.cli import ResultOptions, command, option
from study.config.bounds import Choice
from study.features import FEATURES


@dataclass(frozen=True)
class Options(ResultOptions):
    feature: str = option("the behaviour", "length", Choice(FEATURES))


@command("analysis.mediation study=dose-response", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = study(options.folder, options.feature)
    return show(options, result, lambda: _text(result))


def _text(result: dict[str, Any]) -> str:
    """The effect on the truth, through the behaviour and past it."""
    return (
        f"truth per unit of dose, {len(result['runs'])} runs: total {result['total']:.3g}"
        f" [{result['total_low']:.3g}, {result['total_high']:.3g}], through {result['feature']}"
        f" {result['indirect']:.3g} [{result['low']:.3g}, {result['high']:.3g}], else"
        f" {result['direct']:.3g}\n"
        f"{result['feature']} per unit of dose {result['a']:.3g}, truth per unit of"
        f" {result['feature']} {result['b']:.3g}; a common cause with a correlation of"
        f" {result['rho']:.2f} would make all of the indirect effect. {result['note']}"
    )


if __name__ == "__main__":
    sys.exit(main())
