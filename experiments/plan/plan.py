"""What a sweep is about to do, told without doing it: its cells, their cost, and what it can see.

What finished cells took says what these will take (`experiments.plan.rates`); where none is like
them, what is assumed is said to be. Nothing here imports torch, and nothing is written.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analysis.statistics.looks import look_lines
from analysis.statistics.power import power_lines
from experiments.plan.memory import slots_of
from experiments.plan.needs import HERE
from experiments.plan.rates import (
    ANSWER_SHARE,
    CHARACTERS_PER_TOKEN,
    NOTHING,
    Asks,
    Rates,
    Span,
    Usage,
    asks,
    describe_cells,
    expected,
    span,
    thought,
)
from judges.serving.book import auto_served
from judges.serving.vllm_command import gpus_of_replica
from study.cell.cells import Cell, models_of
from study.cell.folder import CellFolder
from study.cell.study_file import looks_of
from study.config.identity import flatten
from study.config.schema import Judge
from study.screen import COSTS, duration, plural, print_table
from study.tasks import order_of

UNKNOWN = Usage(1.0, 1.0, 1.0, 0.0, CellFolder(Path()))
"""Of a judge that no finished cell asked: every question is sent, and nothing is cached."""


def show_plan(todo: Sequence[Cell]) -> int:
    """Cells, state, expected cost and time, and the smallest effect to be seen; nothing is
    written."""
    costs = [expected(cell) for cell in todo]
    lines = rows(todo, todo[0].config.factors, costs)
    print_table(lines, f"{todo[0].config.study}: {plural(len(todo), 'cell')}", ("error",))
    states = [line["state"] for line in lines]
    unfinished = [cell for cell, state in zip(todo, states, strict=True) if state != "done"]
    total = {name: sum(cost[name] for cost in costs) for name in costs[0]}
    still = sum(cost["calls"] for cost, state in zip(costs, states, strict=True) if state != "done")
    print(
        f"{total['completions']:,} completions and {total['calls']:,} judge calls in all, about"
        f" {total['tokens_in']:,} tokens in and {total['tokens_out']:,} out; {still:,}"
        " calls in cells that are not done. Stored verdicts are not subtracted, and repeated"
        " requests are not added"
    )
    rates = Rates(todo[0].folder.study_dir)
    sentences = [
        *usage_lines(unfinished, rates),
        *price_lines(todo, rates),
        *limit_lines(unfinished, rates),
        *executor_lines(todo),
        *time_lines(unfinished, rates),
        *order_lines(todo),
        *power_lines(*design(todo)),
        *look_lines(looks_of(todo[0]), design(todo)[0]),
    ]
    for line in sentences:
        print(line)
    return 0


@dataclass
class Spending:
    """What one judge is expected to take in some cells."""

    judge: Judge
    calls: Span = NOTHING
    fresh: Span = NOTHING
    """Tokens in that the endpoint had not cached."""
    cached: Span = NOTHING
    out: Span = NOTHING
    usd: Span = NOTHING
    most_usd: float = 0.0
    """Where every answer and reply is as long as it may be, and nothing is stored or cached."""
    is_known: bool = True
    """Whether finished cells told it of every cell."""
    source_cells: set[CellFolder] = field(default_factory=set)
    """The folders of those."""


def spending(todo: Sequence[Cell], rates: Rates) -> list[Spending]:
    """What each judge is expected to take in these cells."""
    every: dict[str, Spending] = {}
    for cell in todo:
        for each in asks(cell.config):
            name = each.judge.name
            every.setdefault(name, Spending(each.judge))
            _add(every[name], each, rates.usage(cell.config, each))
    return list(every.values())


def _add(total: Spending, each: Asks, measured: Sequence[Usage]) -> None:
    """Add what a judge takes in one more cell, as it did in finished ones."""
    usages, price = measured or [UNKNOWN], each.judge.price
    total.is_known = total.is_known and bool(measured)
    total.source_cells |= {usage.cell for usage in measured}

    def over(amount: float, of: Sequence[float]) -> Span:
        return (span(of) if measured else Span(of[0], of[0], of[0])) * amount

    total.calls += over(each.calls, [u.calls for u in usages])
    total.fresh += over(each.tokens_in, [u.tokens_in * (1 - u.cached) for u in usages])
    total.cached += over(each.tokens_in, [u.tokens_in * u.cached for u in usages])
    total.out += over(each.tokens_out, [u.tokens_out for u in usages])
    usd = [
        each.tokens_in * u.tokens_in * (1 - u.cached) * price.input
        + each.tokens_in * u.tokens_in * u.cached * (price.cached or price.input)
        + each.tokens_out * u.tokens_out * price.output
        for u in usages
    ]
    total.usd += over(1e-6, usd)
    total.most_usd += (each.longest_in * price.input + each.longest_out * price.output) / 1e6


def usage_lines(unfinished: Sequence[Cell], rates: Rates) -> list[str]:
    """What will be sent, by what was sent in cells like these."""
    if not unfinished:
        return []
    every = spending(unfinished, rates)
    if not all(each.is_known for each in every):
        unknown = ", ".join(each.judge.name for each in every if not each.is_known)
        longest = max(cell.config.trainer.max_completion_length for cell in unfinished)
        return [
            f"No finished cell shows the requests to {unknown}. Assumed: the verdict store is"
            f" empty, an answer takes {ANSWER_SHARE * longest:,.0f} of the {longest:,} tokens"
            f" allowed (trainer.max_completion_length), and a token is {CHARACTERS_PER_TOKEN}"
            " characters"
        ]
    sums = {
        name: sum((getattr(each, name) for each in every), NOTHING)
        for name in ("calls", "fresh", "cached", "out")
    }
    sources = describe_cells(folder for each in every for folder in each.source_cells)
    return [
        f"As in {sources}, unfinished cells send about"
        f" {_count(sums['calls'])} calls, with {_count(sums['fresh'])} tokens in fresh,"
        f" {_count(sums['cached'])} cached, and {_count(sums['out'])} out; the verdict store"
        " answers repeated requests"
    ]


def _count(amount: Span) -> str:
    if round(amount.high) == 0:
        return "0"
    return f"{amount.value:,.0f} ({amount.low:,.0f} to {amount.high:,.0f})"


def price_lines(todo: Sequence[Cell], rates: Rates) -> list[str]:
    """What judges with a price come to, in all cells together, and who of the others is real."""
    every = spending(todo, rates)
    priced = [each for each in every if each.judge.price.input or each.judge.price.output]
    lines = []
    for each in priced:
        price, usd = each.judge.price, each.usd
        cached = price.cached or price.input
        around = f" (${usd.low:,.2f} to ${usd.high:,.2f})" if each.is_known else ""
        source = f"; {price.source}" if price.source else "; judge.price has no date"
        lines.append(
            f"{each.judge.name} would cost about ${usd.value:,.2f}{around} in all cells, and "
            f"${each.most_usd:,.2f} where every answer and reply is as long as it may be: "
            f"${price.input:g} in, ${cached:g} cached and ${price.output:g} out per million tokens"
            f"{source}"
        )
    unpriced = [each.judge.name for each in every if each not in priced and not each.judge.computed]
    if unpriced:
        lines.append(f"no price is set for {', '.join(unpriced)}")
    return lines or ["Simulated judges and scorers cost nothing"]


def limit_lines(unfinished: Sequence[Cell], rates: Rates) -> list[str]:
    """The limits of ``cost`` beside what the dearest cell is expected to take; nothing where no
    judge costs anything and no limit is set."""
    lines = []
    each = [(cell, spending([cell], rates)) for cell in unfinished]
    usd = {cell.name: sum(one.usd.value for one in every) for cell, every in each}
    calls = {cell.name: sum(one.calls.value for one in every) for cell, every in each}
    for name, amounts, form in (("max_usd", usd, "${:,.2f}"), ("max_calls", calls, "{:,.0f}")):
        limits = {getattr(cell.config.cost, name) for cell in unfinished} - {None}
        most = max(amounts.values(), default=0.0)
        if limits:
            limit = min(limits)
            verdict = "reached before its end" if most > limit else "enough"
            lines.append(
                f"cost.{name}={limit:g} for each cell, {form.format(limit * len(unfinished))} for "
                f"{len(unfinished)}: the dearest takes about {form.format(most)}, so that is"
                f" {verdict}"
            )
        elif name == "max_usd" and most > 0:
            lines.append(
                f"No limit is set; the dearest cell takes about {form.format(most)}, and "
                f"cost.max_usd={2 * most:.2g} would stop each cell at twice that"
            )
    return lines


MODEL_CALLS = 2
"""Of one program: about the mean of `experiments.workflow.templates`."""
OPERATOR_TOKENS = 256
"""Of a reply to an operator, besides what a model thinks."""


def executor_lines(todo: Sequence[Cell]) -> list[str]:
    """What the executors of programs are asked, in all cells together; nothing without one."""
    programs = [cell.config for cell in todo if cell.config.world == "workflow"]
    if not programs:
        return []
    completions = sum(expected(cell)["completions"] for cell in todo if cell.config in programs)
    most = max(config.workflow.limits.model_calls for config in programs)
    thinking = max(thought(config.executor) for config in programs)
    tokens = round(completions * MODEL_CALLS * (OPERATOR_TOKENS + thinking))
    return [
        f"{completions:,} programs, and about {MODEL_CALLS * completions:,} calls of their"
        f" operators' model at {MODEL_CALLS} each, with {tokens:,} tokens out;"
        f" {most * completions:,} calls at the most. Repeated calls of a step and stored replies"
        " are not subtracted"
    ]


def order_lines(todo: Sequence[Cell]) -> list[str]:
    """What is to be said of the orders in which the cells draw their rows, once for all."""
    lines: list[str] = []
    configs = {json.dumps([c.data["task"], c.data["trainer"]]): c.config for c in todo}
    for config in configs.values():
        if (order := order_of(config)) is not None:
            lines += order.notes(config.trainer.steps, config.trainer.prompts_per_step)
    return list(dict.fromkeys(lines))


def rows(
    todo: Sequence[Cell], factors: Sequence[str], costs: Sequence[dict[str, int]] | None = None
) -> list[dict[str, str]]:
    """One line per cell: its name, the swept factors, its state, steps, time and cost. ``costs`` is
    what is expected of each, where that is known already."""
    lines = []
    for cell, estimate in zip(todo, costs or map(expected, todo), strict=True):
        status, flat = cell.folder.status(), flatten(cell.data)
        lines.append(
            {
                "cell": cell.name,
                **{name: str(flat.get(name, flat.get(f"{name}.name", ""))) for name in factors},
                "state": cell.folder.state(),
                "step": f"{status.get('step', 0)}/{cell.config.trainer.steps}",
                "seconds": f"{status['seconds']:.1f}" if "seconds" in status else "",
                **{name: f"{cost:,}" for name, cost in zip(COSTS, estimate.values(), strict=True)},
                "error": str(status.get("error", "")),
            }
        )
    return lines


def design(todo: Sequence[Cell]) -> tuple[int, int]:
    """Seeds of the arm that has fewest, and arms: cells that differ in more than their seed."""
    seeds: dict[str, set[object]] = defaultdict(set)
    for cell in todo:
        arm = dict(cell.identity)
        seed = arm.pop("seed", 0)
        seeds[json.dumps(arm, sort_keys=True)].add(seed)
    return min(map(len, seeds.values())), len(seeds)


def wall_time(each: Sequence[Span], at_once: int) -> Span:
    """Seconds of all cells of ``each`` seconds on ``at_once`` slots: they begin in their order,
    each in the slot that is free first."""
    return Span(
        value=last_end([one.value for one in each], at_once),
        low=last_end([one.low for one in each], at_once),
        high=last_end([one.high for one in each], at_once),
    )


def last_end(seconds: Sequence[float], at_once: int) -> float:
    """When the last of so many ends, where each begins in the slot that is free first."""
    slots = [0.0] * max(1, at_once)
    for one in seconds:
        heapq.heappush(slots, heapq.heappop(slots) + one)
    return max(slots)


def time_lines(unfinished: Sequence[Cell], rates: Rates) -> list[str]:
    """Wall time and GPU-hours of what is not done, by the pace of finished cells."""
    if not unfinished:
        return []
    config = unfinished[0].config
    paces = [rates.paces(cell.config) for cell in unfinished]
    here = config.sweep.engine in HERE
    slots = slots_of(unfinished) if here else None
    gpus = slots.gpus_each if slots else config.sweep.gpus_per_cell
    if not all(paces):
        these = "these" if len(unfinished) > 1 else "this one"
        return [
            f"Time: unknown until cells like {these} have run. To estimate it, run a few steps,"
            " then plan again: the same command with one seed, trainer.steps=5 and"
            f" study={config.study}-pace in place of plan=true"
        ]
    spans = [
        span([pace.seconds(cell.config) for pace in of_cell])
        for cell, of_cell in zip(unfinished, paces, strict=True)
    ]
    sources = describe_cells(pace.cell for of_cell in paces for pace in of_cell)
    total = sum(spans, NOTHING)
    at_once = slots.at_once if slots else config.sweep.workers or len(unfinished)
    wall = wall_time(spans, at_once)
    lines = [
        f"Time: about {_spell(wall)} for {plural(len(unfinished), 'cell')}, {at_once}"
        f" at once, or {_spell(total)} of one cell after another, and then the report; by {sources}"
    ]
    hours = total * (gpus / 3600)
    served = sum(
        gpus_of_replica(model)[0] * model.serve.replicas
        for model in auto_served(models_of(unfinished))
    )
    if gpus:
        lines.append(f"GPU-hours: about {_hours(hours)} of cells, at {gpus:g} GPUs each")
    if served:
        server_hours = wall * (served / 3600)
        lines.append(
            f"GPU-hours: about {_hours(server_hours)} of {served} GPUs of the judges' servers"
        )
    return lines


def _spell(seconds: Span) -> str:
    return f"{duration(seconds.value)} ({duration(seconds.low)} to {duration(seconds.high)})"


def _hours(hours: Span) -> str:
    return f"{hours.value:,.2g} ({hours.low:,.2g} to {hours.high:,.2g})"
