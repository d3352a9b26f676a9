"""Which behaviour each judge would teach, before anybody trains: from the first rollouts alone."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.arm.forecast import figure, forecast
from analysis.arm.ranking import moved_most, validate
from analysis.printed import show
from study.bounds import Number
from study.cli import StudyOptions, command, option, output


@dataclass(frozen=True)
class Options(StudyOptions):
    judges: str = option("presets with commas between, or study: those of the study", "study")
    steps: int = option("first steps that are read", 1, Number(low=1))
    validate: bool | None = option(
        "compare with the runs that were trained; true where judges=study"
    )
    out: Path | None = output("JSON file for the numbers")
    figure: Path | None = output("file for the figure")


@command("analysis.forecast study=quickstart judges=sim-fair,sim-verbose", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    result = forecast(options.folder, options.judges, options.steps)
    if options.judges == "study" if options.validate is None else options.validate:
        result["validation"] = validate(options.folder, result)
    return show(options, result, lambda: _text(result), lambda: figure(result["pushes"]))


def _text(result: dict) -> str:
    table = pd.DataFrame(result["pushes"])
    lines = [
        f"Push at the first step, in SDs of each behaviour ({result['prompts']} prompts):",
        table.pivot(index="judge", columns="feature", values="in_sds").round(3).to_string(),
    ]
    for name in moved_most(result["pushes"]):
        heading = "push [95 % t interval over prompts], rank [95 % over prompts drawn again]"
        lines.append(f"\n{name}: {heading}")
        pushes = table[table.feature == name].set_index("judge")
        for line in sorted(result["ranks"], key=lambda line: line["rank"]):
            if line["feature"] == name:
                row = pushes.loc[line["judge"]]
                place = f"  {line['rank']}. [{line['low']}, {line['high']}] {line['judge']}:"
                lines.append(f"{place} {row.push:+.3g} [{row.low:+.3g}, {row.high:+.3g}]")
    if "validation" in result:
        lines += ["\nForecast against the runs that were trained (rank correlation over arms):"]
        lines += [pd.DataFrame(result["validation"]).round(3).to_string(index=False)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
