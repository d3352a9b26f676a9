"""How far a judge can be followed: over-optimisation over the square root of the KL."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.printed import by_note, show, table, with_problems
from analysis.records.runs import read_runs
from analysis.reports.markup import MISSING, number
from analysis.run.overopt import place, rows
from study.cli import StudyOptions, command, output


@dataclass(frozen=True)
class Options(StudyOptions):
    out: Path | None = output("JSON file for the numbers")


@command("analysis.overopt study=quickstart", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    runs, problems = read_runs(options.folder)
    fits = [row for run in runs for row in rows(run)]
    return show(options, _without_infinities(fits), with_problems(_text(fits), problems))


def _text(fits: Sequence[dict[str, Any]]) -> list[str]:
    """A line per run and score, then the unit and the notes."""
    heads = ("form", "alpha", "beta", "AIC rl - bon", "line - best", "peak d", "[95 %]", "turned")
    rows = []
    for row in fits:
        best, fit = row["best"], [MISSING] * len(heads)
        if best is not None:
            aic = {form["form"]: form["aic"] for form in row["fits"]}
            fit = [
                *(best["form"], number(best["alpha"]), number(best["beta"])),
                number(aic["rl"] - aic["bon"], sign=True),
                number(aic["line"] - best["aic"], sign=True),
                *(place(best["peak"]), f"[{place(row['low'])}, {place(row['high'])}]"),
                number(row["reached"]),
            ]
        run = {"arm": row["arm"], "seed": str(row["seed"]), "score": row["score"]}
        fitted = dict(zip(heads, fit, strict=True))
        rows.append(run | fitted | {"largest d": number(row["d_max"])})
    return table(
        rows,
        "Unit: a run. d = sqrt(KL in nats per completion); score = start + "
        "d (alpha - beta log d) (rl) or d (alpha - beta d) (bon); turned is the share of resampled "
        "curves with a peak before the largest d.",
        *by_note([(row["note"], row["cell"]) for row in fits]),
    )


def _without_infinities(value: Any) -> Any:
    """A table for JSON, in which a peak that is not reached says so."""
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(item) for item in value]
    return "not reached" if value == float("inf") else value


if __name__ == "__main__":
    sys.exit(main())
