"""What a sweep is about to do, told without doing it: its cells, their cost, and what it can see.

Nothing here imports torch: a plan answers before a model could be loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.statistics.power import power_lines
from experiments.arms import design
from experiments.estimate import expected
from study import cells
from study.cells import Cell
from study.cli import COSTS, print_table
from study.identity import flatten
from study.status import read_status


def show_plan(todo: Sequence[Cell]) -> int:
    """Cells, state, expected cost, and the smallest effect to be seen; nothing is written."""
    lines = rows(todo, todo[0].config.factors)
    print_table(lines, f"{todo[0].config.study}: {len(todo)} cells", ("error",))
    costs = [expected(cell) for cell in todo]
    total = {name: sum(cost[name] for cost in costs) for name in costs[0]}
    left = sum(expected(cell)["calls"] for cell in todo if cells.state(cell.dir) != "done")
    print(
        f"{total['completions']} completions and {total['calls']} judge calls in all, "
        f"about {total['tokens_in']} tokens in and {total['tokens_out']} out; "
        f"{left} calls in cells that are not done (before retries, less what the store holds)"
    )
    for line in power_lines(*design(todo)):
        print(line)
    return 0


def rows(todo: Sequence[Cell], factors: Sequence[str]) -> list[dict[str, str]]:
    """One line per cell: its name, the swept factors, its state, steps, time and cost."""
    lines = []
    for cell in todo:
        status, estimate, flat = read_status(cell.dir), expected(cell), flatten(cell.data)
        lines.append(
            {
                "cell": cell.name,
                **{name: str(flat.get(name, flat.get(f"{name}.name", ""))) for name in factors},
                "state": cells.state(cell.dir),
                "step": f"{status.get('step', 0)}/{cell.config.trainer.steps}",
                "seconds": f"{status['seconds']:.1f}" if "seconds" in status else "",
                **{column: str(estimate[key]) for key, column in zip(estimate, COSTS, strict=True)},
                "error": str(status.get("error", "")),
            }
        )
    return lines
