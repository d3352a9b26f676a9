"""Two studies side by side: what differs in their config, what each taught, one by the other."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.compare.display import text
from analysis.compare.estimate import compare
from analysis.display.printed import show
from study.cli import StudyOptions, command, option, output
from study.errors import UserError


@dataclass(frozen=True)
class Options:
    """Options of `analysis.compare`: two studies, and whether each forecasts the other."""

    study: list[str] = option("two studies, separated by a comma", [], required=True)
    runs_dir: Path = option("folder that holds the studies", Path("runs"))
    forecast: bool = option(
        "forecast each by the other; asks judges for verdicts of first rollouts that are not"
        " stored",
        True,
    )
    out: Path | None = output("JSON file for the numbers")

    def check(self) -> None:
        """Refuse anything but two studies that are there."""
        if len(self.study) != 2:
            raise UserError(
                f"study={','.join(self.study)} does not name two different studies, separated by a"
                " comma."
            )
        for name in self.study:
            StudyOptions(name, self.runs_dir).check()


@command("analysis.compare study=quickstart,quickstart-2", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    folders = [(options.runs_dir / name).absolute() for name in options.study]
    result = compare(*folders, forecast=options.forecast)
    return show(options, result.numbers(), lambda: text(result))


if __name__ == "__main__":
    sys.exit(main())
