"""The figures of a rehearsal at full size, beside those of the plan."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from experiments.plan.plan import MODEL_CALLS, Spending, spending
from experiments.plan.rates import Rates, expected
from experiments.rehearsal.endpoint import LATE, address
from experiments.rehearsal.extrapolate import Line, Wait, dollars, line, merged, wait_of_step
from experiments.rehearsal.measure import Measured, Use
from experiments.rehearsal.profiles import Profiles, profile_of
from experiments.rehearsal.scale import Full, endpoint_models
from experiments.studies.sizes import format_size
from judges.serving.vllm_command import gpus_of_replica
from study.cell.cells import Cell
from study.config.schema import Judge, Model
from study.screen import duration, plural

WIDE = 10.0
"""An interval whose ends are further apart tells nothing."""


@dataclass(frozen=True)
class ModelFigures:
    """One judge or executor at full size, over all cells that ask it."""

    model: Model
    use: Use
    """Of what was rehearsed."""
    verdicts: float
    """At full size; of an executor its programs."""
    requests: float
    tokens_in: float
    tokens_out: float
    usd: float
    wait: Wait
    """Of one step of one cell."""
    hours: float
    """Of all its cells, one after another, waiting for this model."""
    gpu_hours: float


@dataclass(frozen=True)
class Figures:
    """A rehearsal at full size."""

    full: Full
    sizes: tuple[Measured, ...]
    models: tuple[ModelFigures, ...]
    plan: tuple[Spending, ...]
    rollouts: int
    """At full size."""
    disk: Line
    text: Line
    verdict: Line
    """Bytes of the records of verdicts, by their number."""
    reply: Line
    """Bytes of the store, by its replies."""
    files: Line
    memory: Line
    report: Line | None

    @property
    def copies(self) -> float:
        """Cells at full size for each that was rehearsed."""
        return len(self.full.cells) / self.sizes[0].cells

    @property
    def disk_bytes(self) -> tuple[float, float]:
        """At full size: with texts that compress as those of the rehearsal, and not at all."""
        low = self.disk.at(self.rollouts, self.copies)
        return low, low + self.text.at(self.rollouts, self.copies)


def figures(full: Full, sizes: Sequence[Measured], profiles: Profiles) -> Figures:
    """What was rehearsed, at full size."""
    amounts = [each.rollouts for each in sizes]
    steps = [each.rollouts_a_step for each in sizes]
    reports = [each.report_s for each in sizes if each.report_s is not None]
    return Figures(
        full,
        tuple(sizes),
        tuple(_models(full, sizes, profiles)),
        tuple(spending(full.cells, Rates(full.cells[0].folder.study_dir))),
        sum(expected(cell)["completions"] for cell in full.cells),
        disk=line(amounts, [each.disk for each in sizes]),
        text=line(amounts, [each.text for each in sizes]),
        verdict=line([each.verdicts for each in sizes], [each.verdict_bytes for each in sizes]),
        reply=line([each.replies for each in sizes], [each.reply_bytes for each in sizes]),
        files=line(amounts, [each.files for each in sizes]),
        memory=line(steps, [each.memory for each in sizes]),
        report=line(amounts, reports) if len(reports) == len(sizes) else None,
    )


def _models(full: Full, sizes: Sequence[Measured], profiles: Profiles) -> list[ModelFigures]:
    models = {address(model): model for cell in full.cells for model in endpoint_models(cell)}
    every = []
    for where, model in models.items():
        cells = [cell for cell in full.cells if where in map(address, endpoint_models(cell))]
        use = merged([size.uses[where] for size in sizes if where in size.uses])
        every.append(_model(model, use, cells, sizes, profiles))
    return every


def _model(
    model: Model, use: Use, cells: Sequence[Cell], sizes: Sequence[Measured], profiles: Profiles
) -> ModelFigures:
    trainer = cells[0].config.trainer
    votes = model.sampling.votes if isinstance(model, Judge) else 1
    verdicts = votes * sum(expected(cell)["completions"] for cell in cells)
    # an executor has no verdicts: its requests are of operators, some for each program
    base = use.verdicts if isinstance(model, Judge) else sum(size.rollouts for size in sizes)
    base = max(1, base)
    scale = verdicts / base
    tokens_in, tokens_out = use.tokens_in * scale, use.tokens_out * scale
    profile = profile_of(model, profiles)
    calls = trainer.prompts_per_step * trainer.group_size * votes * use.attempts / base
    wait = wait_of_step(
        use,
        calls,
        model.endpoint.max_concurrency,
        _least(profile.requests_per_min, model.endpoint.requests_per_min),
        _least(profile.tokens_per_min, model.endpoint.tokens_per_min),
    )
    hours = len(cells) * trainer.steps * wait.seconds / 3600
    return ModelFigures(
        model,
        use,
        verdicts,
        use.attempts * scale,
        tokens_in,
        tokens_out,
        dollars(model, tokens_in, tokens_out),
        wait,
        hours,
        hours * (gpus_of_replica(model)[0] if model.serve.model else 0),
    )


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


def compared(every: Figures) -> list[dict[str, str]]:
    """A row for each figure: the plan's, and the rehearsal's at full size."""
    judges = [each for each in every.models if isinstance(each.model, Judge)]
    executors = [each for each in every.models if not isinstance(each.model, Judge)]
    plan_out = sum(each.out.value for each in every.plan)
    plan_usd = sum(each.usd.value for each in every.plan)
    usd = sum(each.usd for each in every.models)
    missing = sum(sum(each.use.missing.values()) for each in judges)
    answered = sum(each.use.verdicts for each in judges)
    low, high = every.disk_bytes
    memory = every.memory.at(every.full.rollouts_a_step)
    rows = [
        (
            "completions",
            f"{every.rollouts:,}",
            f"{every.rollouts:,}, {sum(size.rollouts for size in every.sizes):,} rehearsed",
        ),
        (
            "requests to judges",
            f"{sum(each.calls.value for each in every.plan):,.0f}",
            f"{sum(each.requests for each in judges):,.0f}",
        ),
        (
            "judges' tokens in",
            f"{sum((each.fresh + each.cached).value for each in every.plan):,.0f}",
            f"{sum(each.tokens_in for each in judges):,.0f}",
        ),
        (
            "judges' tokens out",
            f"{plan_out:,.0f}",
            f"{sum(each.tokens_out for each in judges):,.0f}",
        ),
        ("missing verdicts", "no figure", f"{missing / max(1, answered):.2%}"),
        ("dollars", f"${plan_usd:,.2f}", f"${usd:,.2f}"),
        (
            "waiting for judges, cell after cell",
            "no figure",
            duration(3600 * sum(each.hours for each in judges)),
        ),
        (
            "GPU-hours of served models",
            "no figure",
            f"{sum(each.gpu_hours for each in every.models):,.0f}",
        ),
        ("disk", "no figure", f"{format_size(low)} to {format_size(high)}"),
        (
            "disk of a verdict",
            "no figure",
            f"{format_size(every.verdict.each)} on record, {format_size(every.reply.each)} stored",
        ),
        (
            "records of a step's verdicts",
            "no figure",
            format_size(every.verdict.each * _verdicts_a_step(every)),
        ),
        ("files", "no figure", f"{every.files.at(every.rollouts, every.copies):,.0f}"),
        ("main memory of a cell", "no figure", format_size(memory)),
        (
            "CPU time of the report",
            "no figure",
            _report(every),
        ),
    ]
    if executors:
        rows.insert(
            6,
            (
                "requests to executors",
                f"{MODEL_CALLS * every.rollouts:,}",
                f"{sum(each.requests for each in executors):,.0f}",
            ),
        )
    return [
        {"figure": name, "plan": plan, "rehearsal, at full size": value}
        for name, plan, value in rows
    ]


def _verdicts_a_step(every: Figures) -> float:
    """Of one cell, its shadow judges' too."""
    last = every.sizes[-1]
    return every.full.rollouts_a_step * last.verdicts / max(1, last.rollouts)


def _report(every: Figures) -> str:
    if every.report is None:
        return "not written"
    seconds = every.report.at(every.rollouts)
    around = every.report.error * every.rollouts
    least = max(size.report_s or 0.0 for size in every.sizes)
    low, high = max(least, seconds - around), max(least, seconds + around)
    if high > WIDE * low:
        return f"not to be told by so few rollouts; {duration(least)} here"
    return f"{duration(low)} to {duration(high)}"


def by_model(every: Figures) -> list[dict[str, str]]:
    """A row for each judge and executor."""
    return [
        {
            "model": address(each.model),
            "requests": f"{len(each.use.seconds):,}",
            "median": f"{_quantile(each.use.seconds, 0.5):.1f} s",
            "p99": f"{_quantile(each.use.seconds, 0.99):.1f} s",
            "missing": _share(each.use),
            "tokens out": f"{each.tokens_out / max(1.0, each.verdicts):,.0f} each",
            "a step waits": f"{duration(each.wait.seconds)} ({each.wait.bound})",
            "all cells": duration(3600 * each.hours),
            "dollars": f"${each.usd:,.2f}" if each.model.price.output else "no price",
        }
        for each in every.models
    ]


def _share(use: Use) -> str:
    if not use.verdicts:
        return ""
    return f"{sum(use.missing.values()) / use.verdicts:.1%}"


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    if share == 0.5:
        return statistics.median(ordered)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def broken(every: Figures) -> list[str]:
    """What did not go as it should, a sentence each."""
    lines = list(chain.from_iterable(size.broken for size in every.sizes))
    for each in every.models:
        use, endpoint, role = each.use, each.model.endpoint, each.model.role
        if late := use.requests[LATE]:
            is_silent = not endpoint.stream and endpoint.idle_timeout_s < endpoint.deadline_s
            limit = "idle_timeout_s" if is_silent else "deadline_s"
            remedy = f", or {role}.endpoint.stream=true" if is_silent else ""
            seconds = getattr(endpoint, limit)
            total = plural(sum(use.requests.values()), "reply", "replies")
            lines.append(
                f"{address(each.model)}: {late} of {total}"
                f" would take longer than {role}.endpoint.{limit}={seconds:g} waits, and were asked"
                f" for again. Type {role}.endpoint.{limit}={3 * seconds:g}{remedy}"
            )
    return lines


def faults(every: Figures) -> list[str]:
    """What the endpoint did as the profiles say, and what became of it, a sentence for each
    model."""
    lines = []
    for each in every.models:
        use, where = each.use, address(each.model)
        made = {name: count for name, count in sorted(use.requests.items()) if name != "stop"}
        if made:
            counts = ", ".join(f"{name} {count}" for name, count in made.items())
            lost = ", ".join(f"{name} {count}" for name, count in sorted(use.missing.items()))
            verdicts = f"; of {plural(use.verdicts, 'verdict')} missing: {lost or 'none'}"
            lines.append(
                f"{where}: of {plural(sum(use.requests.values()), 'request')} {counts}"
                f"{verdicts if use.verdicts else ''}"
            )
    return lines
