"""Does the truth fall because of the behaviour that the judge paid for? Descriptive, over runs."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from analysis.display.printed import show
from analysis.dose.mediation import Mediation, study
from analysis.statistics.estimate import columns
from study.cli import ResultOptions, command, option
from study.config.bounds import Choice
from study.features import FEATURES


@dataclass(frozen=True)
class Options(ResultOptions):
    """Options of `analysis.mediation`: the study, and the behaviour."""

    feature: str = option("the behaviour", "length", Choice(FEATURES))


@command("analysis.mediation study=dose-response", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    runs, split = study(options.folder, options.feature)
    numbers = {
        **{"study": options.folder.name, "feature": options.feature, "unit": "run"},
        "runs": runs.to_dict("records"),
        **columns(split, indirect=""),
    }
    return show(options, numbers, lambda: _text(split, len(runs), options.feature))


def _text(split: Mediation, runs: int, feature: str) -> str:
    """The effect on the truth, through the behaviour and past it."""
    total, indirect = split.total, split.indirect
    return (
        f"truth per unit of dose, {runs} runs: total {total.value:.3g} [{total.low:.3g},"
        f" {total.high:.3g}], through {feature} {indirect.value:.3g} [{indirect.low:.3g},"
        f" {indirect.high:.3g}], else {split.direct:.3g}\n"
        f"{feature} per unit of dose {split.a.value:.3g}, truth per unit of {feature}"
        f" {split.b.value:.3g}; a common cause with a correlation of {split.rho:.2f} would make all"
        f" of the indirect effect. {split.note}"
    )


if __name__ == "__main__":
    sys.exit(main())
