"""Measures, fits and writes docs/scaling.md and its figure.

    python -m benchmarks.scale.page [rounds=2] [decades=7]

Trains about forty tiny cells under simulated judges, runs the commands that read a study on those
of up to 10^``decades`` verdicts, and sweeps of up to 16 cells (`benchmarks.scale.growth`), and
plans the full study: half an hour on two quiet cores. Nothing of the page is typed by hand but its
sentences.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.race import read_sizes
from benchmarks.scale import cells, figure, growth, planned
from benchmarks.scale.cells import Cost
from benchmarks.scale.fits import Line, exponent, line, rates
from benchmarks.scale.growth import Spent
from study.system.files import write_text

ROOT = Path(__file__).resolve().parents[2]
PAGE, FIGURE = ROOT / "docs" / "scaling.md", ROOT / "docs" / "scaling.svg"
GOAL = 10**8
"""Rows of verdicts that a report is asked about."""
Rows = list[tuple[str, int, int, Cost, dict[str, int]]]
"""What is varied, its multiple, criteria, what it cost, and what the plan said of it."""


def measure() -> Rows:
    """Every cell of every series, in a folder that is taken away. A first cell teaches the tiny
    policy, which the others find."""
    rows, done = [], {}
    with tempfile.TemporaryDirectory(prefix="judgedrift-") as name, contextlib.chdir(name):
        laid = list(cells.series())
        cells.measured(laid[0][2], Path(name) / "first", {})
        for what, times, todo in laid:
            cost = cells.measured(todo, Path(name) / "scale", done)
            wanted = todo[0].config.task.options["criteria"]
            rows.append((what, times, wanted, cost, cells.planned(todo)))
            print(f"{what} x {times}: {cost.cpu_s:.1f} s of CPU", flush=True)
    return rows


def units(what: str, criteria: int, cost: Cost, steps: int) -> dict[str, float]:
    """What the time of these cells is made of."""
    calls = cost.calls if what == "criteria, a call each" else 0
    return {
        "cell": cost.cells,
        "step": steps,
        "rollout": cost.rollouts,
        "criterion": cost.rollouts * criteria,
        "call of its own": calls,
    }


def steps_of(what: str, times: int) -> int:
    """Steps of all cells of a row."""
    return cells.STEPS * (times if what in ("judges", "seeds", "steps") else 1)


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def of_series(rows: Rows, what: str) -> Rows:
    return [row for row in rows if row[0] == what]


def exponents(rows: Rows, start_s: float) -> str:
    """The fitted exponents, with their intervals."""
    columns: dict[str, Callable[[Cost], float]] = {
        "calls": lambda cost: cost.calls,
        "tokens in": lambda cost: cost.tokens_in,
        "fresh": lambda cost: cost.fresh,
        "tokens out": lambda cost: cost.tokens_out,
        "CPU": lambda cost: cost.cpu_s,
        "CPU without starts": lambda cost: max(1e-9, cost.cpu_s - start_s * cost.cells),
        "peak memory": lambda cost: cost.memory,
        "records": lambda cost: cost.records,
    }
    body = []
    for what in dict.fromkeys(row[0] for row in rows):
        members = of_series(rows, what)
        sizes = [times for _, times, *_ in members]
        fitted = (exponent(sizes, [read(row[3]) for row in members]) for read in columns.values())
        body.append([what, *(power.describe() for power in fitted)])
    return table(["varied", *columns], body)


def costs(rows: Rows) -> str:
    """All that was measured."""
    head = "varied|x|cells|rollouts|calls|fresh|cached|out|wall s|CPU s|peak MB|records kB"
    body = [
        [
            *(what, str(times), str(cost.cells), f"{cost.rollouts:,}", f"{cost.calls:,}"),
            *(f"{cost.fresh:,}", f"{cost.tokens_in - cost.fresh:,}", f"{cost.tokens_out:,}"),
            *(f"{cost.wall_s:.1f}", f"{cost.cpu_s:.1f}"),
            *(f"{cost.memory / 1e6:.0f}", f"{cost.records / 1e3:.0f}"),
        ]
        for what, times, _, cost, _ in rows
    ]
    return table(head.split("|"), body)


def against_plan(rows: Rows) -> tuple[str, dict[str, float]]:
    """The plan over what was measured, and seconds of CPU of each unit. Time is predicted for the
    largest cells of each series from all smaller ones."""
    large = max(cells.TIMES)
    units_by_row = [units(row[0], row[2], row[3], steps_of(row[0], row[1])) for row in rows]
    small = [place for place, row in enumerate(rows) if row[1] < large]
    fitted = rates(
        [units_by_row[place] for place in small], [rows[place][3].cpu_s for place in small]
    )
    body = []
    for row, unit in zip(rows, units_by_row, strict=True):
        what, times, _, cost, planned_counts = row
        if times < large:
            continue
        seconds = sum(unit[name] * each for name, each in fitted.items())
        shares = (
            planned_counts["completions"] / cost.rollouts,
            planned_counts["calls"] / cost.calls,
            planned_counts["tokens_in"] / cost.tokens_in,
            planned_counts["tokens_out"] / cost.tokens_out,
            seconds / cost.cpu_s,
        )
        body.append([f"{what} x {times}", *(f"{share:.2f}" for share in shares)])
    head = ["varied", "completions", "calls", "tokens in", "tokens out", "CPU seconds"]
    return table(head, body), fitted


def commands_table(spent: Sequence[Spent], series: str) -> str:
    """CPU seconds of every command by the size of the study, and what the power is beyond the
    start."""
    members = [each for each in spent if each.series == series]
    sizes = sorted({getattr(each, series) for each in members})
    powers = growth.powers(spent, series)
    body = []
    for command, power in powers.items():
        means = [
            statistics.mean(
                each.cpu_s
                for each in members
                if each.command == command and getattr(each, series) == size
            )
            for size in sizes
        ]
        exponent_words = power.describe() if power else "none"
        body.append([command, *(f"{mean:.2f}" for mean in means), exponent_words])
    head = ["command", *(f"{size:,}" for size in sizes), "exponent"]
    return table(head, body)


def reports_of(spent: Sequence[Spent]) -> list[Spent]:
    """The reports of the series by verdicts."""
    return [each for each in spent if (each.command, each.series) == ("report", "verdicts")]


def report_table(spent: Sequence[Spent], fits: dict[str, Line]) -> str:
    """What a report took, and what the lines say of `GOAL` rows; none goes through wall seconds,
    which are as much the machine's load as the report's."""
    head = ["verdicts", "wall s", "CPU s", "memory MB"]
    body = [
        [f"{r.verdicts:,}", f"{r.wall_s:.1f}", f"{r.cpu_s:.1f}", f"{_memory(r) / 1e6:.0f}"]
        for r in reports_of(spent)
    ]
    scale = {"cpu_s": 1.0, "memory": 1e6}
    ends = {n: [max(0.0, part / scale[n]) for part in fits[n].at(GOAL)] for n in scale}
    estimates = [f"{at:,.0f} [{low:,.0f}, {high:,.0f}]" for at, low, high in ends.values()]
    r2 = [f"{fits[name].r2:.3f}" for name in scale]
    return table(head, [*body, [f"{GOAL:,}, by the line", "", *estimates], ["R2", "", *r2]])


def at_once_table(spent: Sequence[Spent]) -> str:
    """Nine cells, so many at once: time, and what all processes hold together."""
    head = ["cells at once", "wall s", "CPU s", "memory MB", "if nothing were shared, MB"]
    body = [
        [
            each.command.split()[1],
            *(f"{each.wall_s:.1f}", f"{each.cpu_s:.1f}"),
            *(f"{each.memory.shared_once / 1e6:.0f}", f"{each.memory.each / 1e6:.0f}"),
        ]
        for each in spent
        if each.series == "at once"
    ]
    return table(head, body)


def _memory(spent: Spent) -> float:
    return float(spent.memory.shared_once)


def study_tables(row_bytes: float) -> tuple[str, str, str]:
    """The full study by place, its judges, and the rates."""
    places = []
    for place in planned.PLACES:
        wall, used = zip(*(planned.study(place, case) for case in range(3)), strict=True)
        places.append(
            [
                place.name,
                *(f"{wall[1]:.0f} [{wall[2]:.0f}, {wall[0]:.0f}]",),
                *(f"{used[1]:.0f} [{used[2]:.0f}, {used[0]:.0f}]",),
            ]
        )
    judges = []
    for cases in zip(*(planned.judges(case) for case in range(3)), strict=True):
        bad, mid, good = cases
        hours = [judge.seconds / 3600 for judge in (mid, good, bad)]
        judges.append(
            [
                mid.name,
                f"{mid.calls:,}",
                f"{mid.fresh / 1e6:.0f} M",
                f"{(mid.tokens_in - mid.fresh) / 1e6:.0f} M",
                f"{mid.tokens_out / 1e6:.0f} M [{good.tokens_out / 1e6:.0f}, "
                f"{bad.tokens_out / 1e6:.0f}]",
                f"{hours[0]:.1f} [{hours[1]:.1f}, {hours[2]:.1f}]",
            ]
        )
    sizes = [planned.bytes_of(case, row_bytes) / 1e9 for case in (1, 2, 0)]
    judges.append(
        ["records", "", "", "", "", f"{sizes[0]:.1f} GB [{sizes[1]:.1f}, {sizes[2]:.1f}]"]
    )
    rate_rows = [
        [name.replace("_", " "), *(f"{each:g}" for each in rate["values"]), rate["unit"],
         rate["source"]]
        for name, rate in planned.RATES.items() if "values" in rate
    ]  # fmt: skip
    return (
        table(["where", "hours", "GPU-hours"], places),
        table(["judge", "calls", "fresh", "cached", "out", "hours of one GPU"], judges),
        table(["number", "pessimistic", "expected", "optimistic", "unit", "source"], rate_rows),
    )


def main() -> None:
    sizes = read_sizes(rounds=2, decades=7)
    load = os.getloadavg()[0]
    started = time.perf_counter()
    rows = measure()
    spent = growth.measure(sizes["rounds"], sizes["decades"])
    read = reports_of(spent)
    verdicts = [float(each.verdicts) for each in read]
    fits = {
        "cpu_s": line(verdicts, [each.cpu_s for each in read]),
        "memory": line(verdicts, [_memory(each) for each in read]),
    }
    by_steps = [row[3] for row in of_series(rows, "steps")]
    start = line([cost.rollouts for cost in by_steps], [cost.cpu_s for cost in by_steps])
    row_bytes = line([cost.rollouts for cost in by_steps], [cost.records for cost in by_steps])
    plan_table, unit_s = against_plan(rows)
    places, judges, rate_table = study_tables(row_bytes.slope)
    unit_words = ", ".join(f"{1e3 * each:.3g} ms a {name}" for name, each in unit_s.items() if each)
    took = (time.perf_counter() - started) / 60
    points = {"cpu_s": [each.cpu_s for each in read], "memory": [_memory(each) for each in read]}
    figure.draw(rows, max(0.0, start.start), verdicts, points, fits, GOAL).savefig(
        FIGURE, metadata={"Date": None}
    )
    template = (Path(__file__).with_name("page.md")).read_text(encoding="utf-8")
    filled = template.format(
        load=f"{load:.1f}",
        cores=len(os.sched_getaffinity(0)),
        minutes=f"{took:.0f}",
        base=f"{cells.STEPS} steps of {cells.PROMPTS} prompts x {cells.GROUP} rollouts, with "
        f"{cells.CRITERIA} criteria each (those of the last two series begin at 1)",
        start=f"{max(0.0, start.start):.2f}",
        exponents=exponents(rows, max(0.0, start.start)),
        costs=costs(rows),
        against_plan=plan_table,
        units=unit_words,
        report=report_table(spent, fits),
        by_verdicts=commands_table(spent, "verdicts"),
        by_cells=commands_table(spent, "cells"),
        at_once=at_once_table(spent),
        places=places,
        judges=judges,
        rates=rate_table,
        row_bytes=f"{row_bytes.slope:.0f}",
        rollouts=f"{planned.ROLLOUTS:,}",
        largest=f"{max(verdicts):,.0f}",
    )
    write_text(PAGE, filled)
    print(f"{PAGE} and {FIGURE.name}, in {took:.1f} minutes")


if __name__ == "__main__":
    main()
