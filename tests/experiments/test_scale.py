"""The arithmetic of the scaling page: fits, the rows that it varies, the study that it plans."""

import os

import numpy as np
import pytest

from analysis.records.frames import verdicts_frame
from benchmarks.memory import Held, held
from benchmarks.scale import criteria, growth, planned
from benchmarks.scale.fits import exponent, line, rates
from benchmarks.scale.written import Size, write
from judges.grading import GRADINGS
from study.config.schema import Task


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_recovered(power) -> None:
    sizes = np.array([1, 2, 4, 8])
    fitted = exponent(sizes, 3.0 * sizes**power)
    assert (fitted.slope, fitted.r2) == pytest.approx((power, 1.0))
    assert fitted.low == pytest.approx(power) == fitted.high


def test_a_power_law_that_is_none_has_a_lower_r2_and_rates_are_recovered() -> None:
    fitted = exponent([1, 2, 4, 8], [1, 8, 1, 8])
    assert 0 < fitted.slope < 1 and fitted.r2 < 0.5
    assert fitted.low < 0 and fitted.high > 1
    rows = [{"cell": 1, "step": step, "rollout": step * size} for step in (2, 9) for size in (3, 7)]
    costs = rates(rows, [5 + row["rollout"] / 2 for row in rows])
    assert costs == pytest.approx({"cell": 5, "step": 0, "rollout": 0.5}, abs=1e-9)


def test_intervals_of_a_line_hold_one_more_measurement_as_often_as_they_say() -> None:
    draw = np.random.default_rng(3)
    sizes, inside = [1.0, 2.0, 4.0, 8.0, 16.0], 0
    for _ in range(400):
        fit = line(sizes, [5 + 2 * size + draw.normal() for size in sizes])
        _, low, high = fit.at(100)
        inside += low <= 205 + draw.normal() <= high
    assert 363 <= inside <= 397  # 380 expected, 4.4 their standard deviation


@pytest.mark.parametrize("wanted", [1, 4, 8, 13])
def test_a_row_has_as_many_criteria_as_are_asked_for_and_each_has_its_check(wanted) -> None:
    rows = criteria.TASK.rows(Task(train_rows=50, options={"criteria": wanted}), "train")
    grading = GRADINGS["rubric_batch"]({})
    for row, truth in zip(rows, criteria.TASK.truths(rows, ["apple"] * len(rows)), strict=True):
        assert len({each.text for each in row.criteria}) == wanted == len(truth.checks)
        assert len(grading.requests(row, "apple")) == 1


def test_the_full_study_has_the_rollouts_calls_and_tokens_of_the_scale_law() -> None:
    """460,800 = J S T U G; a judge reads 19,200 groups at 3,066 or so fresh tokens each, the
    figure of the cacheable layout for a VerInstruct rubric."""
    assert planned.ROLLOUTS == 460_800
    for case in range(3):
        laid = planned.judges(case)
        assert [judge.calls for judge in laid] == [153_600] * 3
        assert all(judge.fresh == pytest.approx(19_200 * 3_066, rel=0.15) for judge in laid)
        assert all(judge.fresh < judge.tokens_in / 2 for judge in laid)


def test_a_better_case_costs_less_everywhere() -> None:
    for place in planned.PLACES:
        bad, mid, good = (planned.study(place, case) for case in range(3))
        assert bad > mid > good
        assert mid[1] == pytest.approx(mid[0] * place.gpus)


def test_a_study_of_a_size_is_whole_and_has_so_many_verdicts(tmp_path) -> None:
    size = Size(judges=2, seeds=1, steps=3, groups=2)
    study = write(tmp_path, "sized", size)
    verdicts = verdicts_frame(study)
    assert len(verdicts) == size.verdicts == 2 * 3 * 2 * 8 * 4
    assert set(verdicts["judge"]) == {"sim-fair", "sim-verbose", "other-1", "other-2", "other-3"}
    growth.equal(tmp_path / "equal")


def test_growth_is_what_a_command_takes_beyond_its_start() -> None:
    def spent(command: str, series: str, cells: int, verdicts: int, cpu_s: float) -> growth.Spent:
        return growth.Spent(command, series, cells, verdicts, cpu_s, cpu_s, Held(0, 0))

    rows = [
        *(spent(name, "least", 1, 1, 2.0) for name in ("grows", "does not")),
        *(spent("grows", "verdicts", 4, n, 2 + n**0.5) for n in (100, 10_000, 1_000_000)),
        *(spent("does not", "verdicts", 4, n, 1.9) for n in (100, 10_000, 1_000_000)),
        *(spent("sweep", "cells", n, 1, 5 + 3 * n) for n in (1, 4, 16)),
    ]
    by_verdicts, by_cells = growth.powers(rows, "verdicts"), growth.powers(rows, "cells")
    assert by_verdicts["does not"] is None
    assert by_verdicts["grows"].slope == pytest.approx(0.5)
    assert by_cells["sweep"].slope == pytest.approx(1)


def test_what_a_process_holds_is_more_where_nothing_is_taken_for_shared() -> None:
    mine = held(os.getpid())
    assert 10**7 < mine.shared_once <= mine.each
    assert held(2**22 + 1) == Held(0, 0)
