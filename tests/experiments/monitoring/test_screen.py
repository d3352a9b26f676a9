"""The screen: what is on it at every width and height."""

import io
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from experiments.monitor.alarms import alarms
from experiments.monitor.read import View, totals
from experiments.monitor.screen import (
    BARS,
    _alarm_lines,
    line,
    names_of,
    scale,
    screen,
    sparkline,
    throttled,
)
from study.cell.folder import CellFolder


def view(number: int, state: str = "running", **changes: object) -> View:
    """A cell of a judge with a long name, with everything known."""
    name = f"sim-strict-code-s{number}-0123456789"
    known: dict[str, Any] = {
        **{"arm": "sim-strict-code", "judge": "sim-strict-code", "seed": number, "state": state},
        **{"phase": "generating", "step": 10 + number, "steps": 500, "tokens_per_s": 1234.5},
        **{"s_per_step": 2.0, "eta_s": 5_000.0, "beat_age_s": 1.0, "zero_std": 0.5},
        **{"truth": 0.5, "judge_mean": 0.75, "gap": 0.25, "unscored": 0.0},
        "domains": {name: {"accuracy": 0.5} for name in ("math", "qa", "code")},
        "series": {
            name: [(step, step / 100) for step in range(60)]
            for name in ("truth/mean", "judge/mean", "bias/judge_minus_truth")
        },
    }
    made = View(**{"cell": name, "folder": CellFolder(Path("runs/mine") / name)} | known | changes)
    made.alarms = alarms(made)
    return made


def shown(views: list[View], width: int, height: int | None, notes: tuple[str, ...] = ()) -> str:
    console = Console(width=width, height=height or 500, file=io.StringIO(), highlight=False)
    console.print(screen("mine", views, totals(views), notes, width, height), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def crowd(count: int) -> list[View]:
    states = ("running", "new", "done", "failed", "killed")
    return [view(number, states[number % 5]) for number in range(count)]


@given(st.integers(0, 80), st.integers(60, 220), st.integers(16, 80), st.integers(0, 9))
def test_it_fits_and_counts_what_it_leaves_out(count, width, height, notes):
    views = crowd(count)
    text = shown(views, width, height, tuple(f"note {number}" for number in range(notes)))
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines) and len(lines) <= height
    rows = [line for line in lines if line.startswith(("  sim-", "! sim-")) and "/500" in line]
    more = [line for line in lines if " more cells: " in line]
    left = sum(int(line.split()[1]) for line in more)
    assert len(rows) + left == count


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (80, ["state", "step", "truth", "judge", "gap", "ETA"]),
        (120, ["state", "truth", "judge", "gap", "held-out accuracy", "miss", "dead", "ETA"]),
        (180, ["state", "phase", "held-out accuracy", "miss", "dead", "tok/s", "ETA"]),
    ],
)
def test_the_columns_of_each_width(width, words):
    lines = shown([view(0)], width, None).splitlines()
    head, row = next((a, b) for a, b in pairwise(lines) if a.startswith("  cell"))
    places = [head.index(word) for word in words]
    assert places == sorted(places)
    if width == 180:
        assert sum(sign in BARS for sign in row) == 3 * 8


@pytest.mark.parametrize("size", [(1, 1), (10, 3), (20, 8), (40, 12)])
def test_a_tiny_window_is_not_overrun(size):
    lines = shown(crowd(20), *size, notes=("a note",)).splitlines()
    assert len(lines) <= size[1] and all(len(line) <= size[0] for line in lines)


def test_alarms_of_each_kind_come_first_and_move_no_cursor():
    stalled = view(9, beat_age_s=500.0)
    text = shown([view(0), view(1, "done"), view(2, "new"), view(3, "failed"), stalled], 120, None)
    rows = [each for each in text.splitlines()[1:] if "/500" in each]
    order = ("stalled", "failed", "running", "new", "done")
    assert [next(word for word in order if word in row) for row in rows] == list(order)
    assert text.index("stalled: no heartbeat") < text.index("failed: ended at step")
    views = [view(number, "failed") for number in range(30)] + [view(40, beat_age_s=500.0)]
    text = shown(views, 120, 30)
    assert "stalled: no heartbeat" in text and "failed: ended at step" in text
    assert "more alarms: " in text
    bad = view(0, "failed", status={"error": "\x1b[2J\x07oops"}, arm="\x1b[31mred", problem="")
    text = shown([bad], 200, None, ("\x1b]0;title\x07",))
    assert "\x1b" not in text and "\x07" not in text and "oops" in text


def test_the_last_alarm_takes_the_line_that_would_count_it():
    views = [view(0, "failed"), view(1, "killed")]
    names = {each.cell: each.cell for each in views}
    lines = [line.plain for line in _alarm_lines(views, names, 120, None)]
    assert [line.plain for line in _alarm_lines(views, names, 120, len(lines))] == lines
    short = [line.plain for line in _alarm_lines(views, names, 120, len(lines) - 1)]
    assert short[:-1] == lines[: len(short) - 1] and "1 killed" in short[-1]


def test_names_are_told_apart_and_kept_on_a_narrow_screen():
    pair = [view(0), view(0, cell="sim-strict-code-s0-ffffffffff")]
    assert list(names_of(pair).values()) == [each.cell for each in pair]
    named = list(names_of([view(0), view(1)]).values())
    assert named == ["sim-strict-code s0", "sim-strict-code s1"]
    rows = shown([view(number) for number in range(11, 13)], 50, None)
    assert " s11" in rows and " s12" in rows


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=300), st.integers(1, 20))
def test_a_sparkline_goes_from_low_to_high(values, width):
    low, high = scale(values, 0.2)
    bars = sparkline(values, width, low, high)
    assert len(bars) == min(len(values), width) and set(bars) <= set(BARS)
    assert high - low >= 0.2 - 1e-9


def test_a_sparkline_of_what_rises_rises():
    assert sparkline([0.0, 0.5, 1.0], 8, 0.0, 1.0) == "▁▅█"
    assert sparkline(list(range(80)), 8, 0.0, 79.0) == BARS


def test_a_plain_line_says_it_all():
    words = line(view(0), time.time())
    for part in (
        *("sim-strict-code-s0-0123456789", "running", "generating", "step 10/500", "truth 0.50"),
        *("judge 0.75", "gap +0.25", "unscored 0%", "dead 50%", "tokens/s 1234", "eta 1h23m"),
        "accuracy math .50 qa .50 code .50",
    ):
        assert part in words


def test_what_endpoints_hold_back_is_a_line_for_each_judge() -> None:
    words = "throttled by the endpoint: 6 of 50 calls a second"
    views = [view(0, throttled=words), view(1, throttled=words), view(2)]
    assert throttled(views) == [words]
    assert words in line(views[0], time.time()) and "throttled" not in line(views[2], time.time())
