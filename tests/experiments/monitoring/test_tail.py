"""Metrics that are read while they are written."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.monitor.read import View, totals
from experiments.monitor.tail import RECENT, SPREAD, TIME, Tail, thinned
from study.cell.folder import CellFolder
from study.cell.records import METRICS
from tests.experiments.monitoring.conftest import metrics_line, record

NUMBERS = st.floats(0, 1, allow_nan=False)


def read_tail(folder):
    tail = Tail(CellFolder(folder))
    tail.read()
    return tail


@given(values=st.lists(NUMBERS, max_size=30), cuts=st.lists(st.integers(0, 4000), max_size=8))
def test_a_file_that_grows_byte_by_byte_is_read_as_the_whole_one(tmp_path_factory, values, cuts):
    folder = tmp_path_factory.mktemp("cell")
    lines = [
        metrics_line(step, {"truth/mean": value, "cost/usd": value, "else": 1.0})
        for step, value in enumerate(values, start=1)
    ]
    data = "".join(f"{line}\n" for line in lines).encode()
    tail = Tail(CellFolder(folder))
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        with (folder / METRICS).open("ab") as file:
            file.write(data[file.tell() : end])
        tail.read()
    expected = [
        (line["step"], line["metrics"]["truth/mean"]) for line in CellFolder(folder).lines()
    ]
    assert tail.series.get("truth/mean", []) == expected
    assert tail.sums.get("cost/usd", 0.0) == pytest.approx(sum(values))
    assert "else" not in tail.series and tail.problem == ""
    assert tail.read() is False


def test_a_torn_last_line_waits_for_its_end(tmp_path):
    record(tmp_path, 2, truth__mean=0.5)
    whole = metrics_line(3, {"truth/mean": 0.75})
    with (tmp_path / METRICS).open("a") as file:
        file.write(whole[:30])
    tail = read_tail(tmp_path)
    assert (tail.step, tail.problem) == (2, "")
    with (tmp_path / METRICS).open("a") as file:
        file.write(whole[30:] + "\n")
    tail.read()
    assert tail.series["truth/mean"] == [(1, 0.5), (2, 0.5), (3, 0.75)]


def test_a_run_that_goes_on_from_a_checkpoint_is_read_anew(tmp_path):
    record(tmp_path, 8, truth__mean=0.5, cost__usd=1.0)
    tail = read_tail(tmp_path)
    kept = "".join(f"{metrics_line(step, {'truth/mean': 0.25})}\n" for step in (1, 2, 3))
    (tmp_path / "new").write_text(kept)
    (tmp_path / "new").rename(tmp_path / METRICS)
    tail.read()
    assert tail.series["truth/mean"] == [(1, 0.25), (2, 0.25), (3, 0.25)] and tail.sums == {}
    (tmp_path / METRICS).unlink()
    assert tail.read() and tail.series == {}


def test_a_step_that_is_there_twice_counts_as_it_was_written_last(tmp_path):
    record(tmp_path, 4, truth__mean=0.5, cost__calls=2.0)
    record(tmp_path, range(3, 4), truth__mean=0.75, cost__calls=5.0)
    tail = read_tail(tmp_path)
    assert tail.series["truth/mean"] == [(1, 0.5), (2, 0.5), (3, 0.75), (4, 0.5)]
    assert tail.sums == {"cost/calls": 11.0}
    record(tmp_path, range(5, 6), truth__mean=0.25, cost__calls=1.0)
    tail.read()
    assert tail.series["truth/mean"][-1] == (5, 0.25) and tail.sums == {"cost/calls": 12.0}


def test_lines_in_another_order_leave_no_metric_without_a_step(tmp_path):
    record(tmp_path, range(2, 3), truth__mean=0.5)
    record(tmp_path, range(1, 2), truth__mean=None)
    assert all(read_tail(tmp_path).series.values())


def test_of_a_long_file_some_steps_are_kept_and_everything_is_summed(tmp_path):
    steps, early, late = 2000, 1970, 1000
    text = ""
    for step in range(1, steps + 1):
        metrics = {"truth/mean": step / steps, "cost/usd": 0.25, "cost/calls": 64.0}
        if step in (late, 500):
            metrics["eval/averages/math"] = step / steps
        text += metrics_line(step, metrics) + "\n"
    (tmp_path / METRICS).write_text(text)
    tail = read_tail(tmp_path)
    kept = [step for step, _ in tail.series["truth/mean"]]
    assert all(value == step / steps for step, value in tail.series["truth/mean"])
    assert set(range(steps - RECENT + 1, steps + 1)) < set(kept) and kept[0] == 1
    old = [step for step in kept if step < early]
    assert SPREAD - 2 <= len(old) <= SPREAD + 2
    assert max(b - a for a, b in pairwise(old)) < 2.5 * steps / SPREAD
    assert tail.accuracy == {"math": (late, 0.5)}
    assert tail.sums == {"cost/usd": 500.0, "cost/calls": 128_000.0}


@given(st.integers(1, 3000))
def test_steps_that_come_one_by_one_stay_few_and_evenly_spread(steps):
    series: list[tuple[int, float]] = []
    for step in range(1, steps + 1):
        series = thinned([*series, (step, 0.0)])
    kept = [step for step, _ in series]
    assert kept == sorted(set(kept)) and kept[0] == 1 and kept[-1] == steps
    assert len(kept) <= 2 * (SPREAD + RECENT)
    assert max((b - a for a, b in pairwise(kept)), default=0) <= max(1, 4 * steps / SPREAD)


@pytest.mark.parametrize(
    "line", [b"{", b"\xff\xfe", b"[1]", b'{"step": -1, "time_ms": 0}', b'{"step": 1e9}', b"null"]
)
def test_a_line_that_is_no_step_is_said_and_the_others_are_read(tmp_path, line):
    record(tmp_path, 2, truth__mean=0.5)
    with (tmp_path / METRICS).open("ab") as file:
        file.write(line + b"\n")
    record(tmp_path, range(3, 5), truth__mean=0.5)
    tail = read_tail(tmp_path)
    assert [step for step, _ in tail.series["truth/mean"]] == [1, 2, 3, 4]
    assert tail.problem.endswith("are left out: 1")


@pytest.mark.parametrize("cost", ["Infinity", "NaN", "null", "1e999", "-", '"much"', "[]"])
def test_what_is_no_number_is_not_kept_and_leaves_its_sum_unknown(tmp_path, cost):
    whole = metrics_line(1, {"cost/usd": 0.5, "cost/calls": 1})
    metrics = f'{{"truth/mean": NaN, "judge/mean": null, "cost/usd": {cost}, "cost/calls": 2}}'
    line = f'{{"step": 2, "time_ms": 5000, "metrics": {metrics}}}'
    last = metrics_line(3, {"cost/usd": 0.5, "cost/calls": 1})
    (tmp_path / METRICS).write_text(f"{whole}\n{line}\n{last}\n")
    tail = read_tail(tmp_path)
    assert tail.series.keys() == {TIME}
    assert tail.sums == {"cost/usd": None, "cost/calls": 4.0}
    known = View("a", tmp_path, sums={"cost/usd": 1.0, "cost/calls": 3.0})
    both = totals([known, View("b", tmp_path, sums=tail.sums), View("new", tmp_path)])
    assert (both["usd"], both["calls"]) == (None, 7.0)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_something_else_in_place_of_the_file(tmp_path, make):
    make(tmp_path / METRICS)
    tail = read_tail(tmp_path)
    assert tail.series == {} and json.dumps(tail.sums) == "{}"
    assert bool(tail.problem) == (tmp_path / METRICS).is_dir()
