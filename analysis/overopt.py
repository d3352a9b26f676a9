"""How far a judge can be followed: over-optimisation over sqrt(KL), and an alarm that stops a
run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.command import study_command
from analysis.records.runs import read_runs
from analysis.reports.markup import MISSING, number
from study.errors import UserError

if TYPE_CHECKING:
    pass
from analysis.run.overopt import place, rows

USAGE = "python -m analysis.overopt study=quickstart [runs_dir=runs] [out=overopt.json]"


def main(arguments: Sequence[str]) -> int:
    """Command line. Exit codes: 0 printed, 2 a user's error."""
    try:
        given, folder = study_command(arguments, ("out",), USAGE)
        runs, problems = read_runs(folder)
        table = [row for run in runs for row in rows(run)]
        if given.get("out"):
            text = json.dumps([_plain(row) for row in table], indent=1, allow_nan=False)
            Path(given["out"]).write_text(text + "\n", encoding="utf-8")
        _print(table)
        for problem in problems:
            print(f"problem: {problem}")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: missing is null, a peak that is not reached says so."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value != value:
        return None
    return "not reached" if value == float("inf") else value


def _print(table: Sequence[dict[str, Any]]) -> None:
    if not table:
        print("No run of this study has recorded rollouts yet.")
        return

    heads = ("arm", "seed", "score", "form", "alpha", "beta", "AIC rl - bon", "line - best")
    heads += ("peak d", "[95 %]", "turned", "largest d")
    lines = [heads]
    for row in table:
        best = row["best"]
        axes = (row["arm"], str(row["seed"]), row["score"])
        if best is None:
            lines.append((*axes, *[MISSING] * 8, number(row["d_max"])))
            continue
        aic = {one["form"]: one["aic"] for one in row["fits"]}
        lines.append(
            (
                *axes,
                *(best["form"], number(best["alpha"]), number(best["beta"])),
                number(aic["rl"] - aic["bon"], sign=True),
                number(aic["line"] - best["aic"], sign=True),
                *(place(best["peak"]), f"[{place(row['low'])}, {place(row['high'])}]"),
                *(number(row["reached"]), number(row["d_max"])),
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )
    print(
        "\nUnit: a run. d = sqrt(KL in nats per completion); score = start + "
        "d (alpha - beta log d) (rl) or d (alpha - beta d) (bon); turned is the share of resampled "
        "curves with a peak before the largest d."
    )
    for note in dict.fromkeys(row["note"] for row in table if row["note"]):
        cells = dict.fromkeys(row["cell"] for row in table if row["note"] == note)
        print(f"{note} ({', '.join(cells)})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
