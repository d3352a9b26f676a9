"""From three rehearsed sizes to full size: lines through them, and how long judges are waited for.

What grows with the rollouts is read from a least-squares line: y = fixed + each * rollouts. What
is asked of a judge is in proportion to its verdicts. The wait for a judge is laid out anew: replies
of a full step, drawn from those that were rehearsed, in as many slots as its endpoint allows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments.plan.plan import last_end
from experiments.rehearsal.measure import Use
from study.config.schema import Model

STEPS = 16
"""Steps that are drawn for the mean wait of one."""


@dataclass(frozen=True)
class Line:
    """y = fixed + each * x."""

    fixed: float
    each: float
    error: float = field(default=0.0, compare=False)
    """Standard error of ``each``, by what the values are off the line."""

    def at(self, amount: float, copies: float = 1.0) -> float:
        """Its value at full size, with ``copies`` times what is fixed."""
        return self.fixed * copies + self.each * amount


def line(amounts: Sequence[float], values: Sequence[float]) -> Line:
    """The least-squares line through (amount, value) without a falling slope: what is measured does
    not shrink where more is done, so that a slope below 0 is chance, and its value is the mean."""
    count = len(amounts)
    mean_x, mean_y = sum(amounts) / count, sum(values) / count
    spread = sum((x - mean_x) ** 2 for x in amounts)
    shared = sum((x - mean_x) * (y - mean_y) for x, y in zip(amounts, values, strict=True))
    each = max(0.0, shared / spread) if spread else 0.0
    fixed = mean_y - each * mean_x
    off = sum((y - fixed - each * x) ** 2 for x, y in zip(amounts, values, strict=True))
    error = math.sqrt(off / max(1, count - 2) / spread) if spread else 0.0
    return Line(fixed, each, error)


@dataclass(frozen=True)
class Wait:
    """How long one step waits for one model at full size."""

    seconds: float
    bound: str
    """What it waits for: slots (max_concurrency), requests or tokens a minute."""


def wait_of_step(
    use: Use, calls: float, slots: int, requests_per_min: float | None, tokens_per_min: float | None
) -> Wait:
    """The wait for ``calls`` requests of a step.

    Each of ``slots`` takes the next request when it is free; a limit lets no more than itself pass
    in a minute. The longest of the three is the wait.
    """
    draw = random.Random(0)
    count = max(1, round(calls))
    seconds = use.seconds or [0.0]
    scheduled = [last_end(draw.choices(seconds, k=count), slots) for _ in range(STEPS)]
    mean_tokens = sum(map(sum, use.request_tokens)) / max(1, len(use.request_tokens))
    waits = {"max_concurrency": sum(scheduled) / STEPS}
    if requests_per_min:
        waits["requests a minute"] = 60 * count / requests_per_min
    if tokens_per_min:
        waits["tokens a minute"] = 60 * count * mean_tokens / tokens_per_min
    bound = max(waits, key=lambda name: waits[name])
    return Wait(waits[bound], bound)


def merged(uses: Sequence[Use]) -> Use:
    """What one model was asked in all sizes."""
    total = Use()
    for use in uses:
        total.verdicts += use.verdicts
        total.missing += use.missing
        total.attempts += use.attempts
        total.tokens_in += use.tokens_in
        total.tokens_out += use.tokens_out
        total.usd += use.usd
        total.requests += use.requests
        total.seconds += use.seconds
        total.request_tokens += use.request_tokens
    return total


def dollars(model: Model, tokens_in: float, tokens_out: float) -> float:
    """At the model's price, nothing cached."""
    return (tokens_in * model.price.input + tokens_out * model.price.output) / 1e6
