"""Where the time of a study went: by what its runs and its sweeps did, per step and in all.

Seconds are by the clock and of processors, summed over the runs. Judging is taken apart by the
metrics of the steps: rules and truths, worlds, and what was left to wait for judges when all
answers had ended. Child processes, such as sandboxes and servers, are in no processor seconds. A
sweep's own process writes its account when it comes to its end: one that is killed has none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from analysis.display.printed import aligned, show, with_problems
from study.cell.folder import study_cells
from study.cell.timing import Timing, sentence, sweeps_of, timing_of
from study.cli import ResultOptions, command
from study.errors import UserError
from study.screen import plural
from study.system.spent import Account

MEANS = {
    "starting": "the process and its imports",
    "warming": "rows, the policy and the trainer",
    "generating": "answers of the policy",
    "judging": "until every answer has its reward",
    "updating": "gradients and the optimiser",
    "recording": "rollouts, verdicts and metrics to the disk",
    "tracking": "to MLflow",
    "saving": "checkpoints and the end",
    "evaluating": "held-out rows",
    "done": "the last status",
}
"""What a run does, and what that is."""
MEANS_OF_SWEEP = {
    "starting": "imports, the cells and their checks",
    "waiting": "for the runs; what the report needs is imported",
    "reporting": "the report and the notebook",
    "closing": "the study's run in MLflow, servers",
}
"""What a sweep's own process does, and what that is."""


def rows_of(timing: Timing, sweeps: Mapping[str, Account]) -> list[dict[str, str]]:
    """A row for each thing that runs did, below judging its parts, and at the end the sweeps'."""
    seconds, cpu_s = _sums(timing.accounts)
    rows = []
    for name, account in timing.accounts.items():
        rows.append(
            _row(name, account.seconds, account.cpu_s, timing.steps, seconds, cpu_s)
            | {"what": MEANS.get(name, "")}
        )
        if name == "judging":
            parts = [(part, value) for part, value in timing.judging.items() if value > 0]
            parts.append(("the rest", account.seconds - sum(value for _, value in parts)))
            rows += [
                _row(f"  {part}", value, None, timing.steps, seconds, cpu_s) | {"what": ""}
                for part, value in parts
            ]
    rows.append(_row("in all", seconds, cpu_s, timing.steps, seconds, cpu_s) | {"what": ""})
    seconds, cpu_s = _sums(sweeps)
    return rows + [
        _row(f"sweep: {name}", account.seconds, account.cpu_s, timing.steps, seconds, cpu_s)
        | {"what": MEANS_OF_SWEEP.get(name, "")}
        for name, account in sweeps.items()
    ]


def _sums(accounts: Mapping[str, Account]) -> tuple[float, float]:
    """Seconds and processor seconds of all."""
    each = accounts.values()
    return sum(account.seconds for account in each), sum(account.cpu_s for account in each)


def _row(
    name: str, seconds: float, cpu_s: float | None, steps: int, all_s: float, all_cpu_s: float
) -> dict[str, str]:
    known = cpu_s is not None
    return {
        "": name,
        "s": f"{seconds:.1f}",
        "share": f"{seconds / max(all_s, 1e-9):.0%}",
        "ms a step": f"{1000 * seconds / max(steps, 1):.1f}",
        "CPU s": f"{cpu_s:.1f}" if known else "",
        "CPU share": f"{cpu_s / max(all_cpu_s, 1e-9):.0%}" if known else "",
    }


def _text(timing: Timing, sweeps: Mapping[str, Account]) -> str:
    seconds, _ = _sums(timing.accounts)
    own = f"To keep this account took {timing.own_s:.3f} s, {timing.own_s / seconds:.2%} of it."
    silent = plural(timing.silent, "run")
    problems = [f"{silent} of an earlier version keep no account"] if timing.silent else []
    return with_problems(
        [sentence(timing), "", *aligned(rows_of(timing, sweeps)), "", own], problems
    )


@command("experiments.monitor.timing study=quickstart", __doc__, ResultOptions)
def main(options: ResultOptions) -> int:
    """Exit codes: 0 printed, 2 a user's error."""
    timing = timing_of(study_cells(options.folder), parts=True)
    sweeps = sweeps_of(options.folder)
    if not timing.runs:
        raise UserError(
            f"No run of {options.study} says where its time went: none has begun, or all are of an"
            " earlier version. Train one with this one."
        )
    numbers: dict[str, Any] = {
        "study": options.study,
        **{name: getattr(timing, name) for name in ("runs", "steps", "wall_s", "own_s")},
        "accounts": {name: account._asdict() for name, account in timing.accounts.items()},
        "judging": timing.judging,
        "sweeps": {name: account._asdict() for name, account in sweeps.items()},
    }
    return show(options, numbers, lambda: _text(timing, sweeps))


if __name__ == "__main__":
    sys.exit(main())
