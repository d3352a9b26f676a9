"""A cell in words: for pipes, and the pieces that the terminal shows too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from experiments.monitor.read import View, clock
from study.cell.folder import STATES
from study.screen import plural

BARS = "▁▂▃▄▅▆▇█"
UNKNOWN = "-"


def line(view: View, now: float) -> str:
    """One plain line that says what the cell is at."""
    words = [clock(now), view.cell, state(view)]
    if view.phase and view.state == "running":
        words.append(view.phase)
    words.append(f"step {view.step}/{view.steps or '?'}")
    for name, text in (
        ("truth", number(view.truth)),
        ("judge", number(view.judge_mean)),
        ("gap", number(view.gap, "+z.2f")),
        ("unscored", share(view.unscored)),
        ("dead", share(view.zero_std)),
        ("tokens/s", number(view.tokens_per_s, ".0f")),
        ("eta", duration(view.eta_s)),
        ("accuracy", accuracies(view)),
    ):
        if text != UNKNOWN:
            words.append(f"{name} {text}")
    return "  ".join(words)


def state(view: View) -> str:
    """The state of a cell, where one that stalled is not called running."""
    return "stalled" if view.stalled else view.state


def accuracies(view: View) -> str:
    """Each domain's accuracy at the last held-out evaluation."""
    by_domain = {name: each["accuracy"] for name, each in view.domains.items()}
    texts = [
        f"{name} {value:.2f}".replace(" 0.", " .")
        for name, value in by_domain.items()
        if value is not None
    ]
    return " ".join(texts) or UNKNOWN


def summary(totals: dict[str, Any]) -> str:
    """The study in one line."""
    counts = [f"{totals[name]} {name}" for name in STATES if totals[name]]
    if totals["stalled"]:
        counts.append(f"{totals['stalled']} of the running stalled")
    words = [f"{plural(totals['cells'], 'cell')}: {', '.join(counts) or 'none yet'}"]
    if totals["steps"]:
        words.append(f"step {totals['step']}/{totals['steps']}")
    if totals["tokens_per_s"] is not None:
        words.append(f"{totals['tokens_per_s']:.0f} tokens/s")
    if totals["calls"] is not None:
        words.append(f"{totals['calls']:.0f} judge calls")
    if totals["unscored"] is not None:
        words.append(f"missing {totals['unscored']:.1%}")
    if totals["usd"] is not None:
        words.append(f"${totals['usd']:.2f}")
    if totals["eta_s"] is not None:
        words.append(f"eta {duration(totals['eta_s'])}")
    if totals["alarms"]:
        words.append(plural(totals["alarms"], "alarm"))
    return "  ".join(words)


def number(value: float | None, form: str = ".2f") -> str:
    """A number in ``form``; a dash where there is none."""
    return UNKNOWN if value is None else format(value, form)


def share(value: float | None) -> str:
    """A share in whole percent; a dash where there is none."""
    return UNKNOWN if value is None else f"{value:.0%}"


def dollars(view: View) -> str:
    """What the acting judge of a cell has cost; nothing where it costs nothing."""
    usd = view.sums.get("cost/usd")
    return f"${usd:.2f}" if usd else UNKNOWN


def duration(seconds: float | None) -> str:
    """Seconds for people: 42s, 3m05s, 2h10m, 4d03h."""
    if seconds is None:
        return UNKNOWN
    days, rest = divmod(round(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def sparkline(values: Sequence[float], width: int, low: float, high: float) -> str:
    """The values in ``width`` characters at most, means where there are more values than that.

    Args:
        low: what the lowest bar stands for.
        high: what the highest one stands for, more than ``low``.
    """
    if len(values) > width:
        ends = [place * len(values) // width for place in range(width + 1)]
        parts = [values[a:b] for a, b in pairwise(ends)]
        values = [math.fsum(part) / len(part) for part in parts]
    shares = [(value - low) / (high - low) for value in values]
    return "".join(BARS[round(min(max(part, 0.0), 1.0) * (len(BARS) - 1))] for part in shares)


def scale(values: Sequence[float], least: float) -> tuple[float, float]:
    """Lowest and highest value, ``least`` apart at the least."""
    if not values:
        return 0.0, least
    low, high = min(values), max(values)
    slack = max(0.0, least - (high - low)) / 2
    return low - slack, high + slack


def bar(step: int, of: int | None, width: int) -> str:
    """A bar of steps."""
    full = round(width * min(step / of, 1.0)) if of else 0
    return "━" * full + "╌" * (width - full)


def cut(text: str, width: int) -> str:
    """``text`` in ``width`` characters at most."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
