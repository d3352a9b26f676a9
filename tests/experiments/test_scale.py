"""The arithmetic of the scaling page: fits, the rows that it varies, the study that it plans."""

import numpy as np
import pytest

from benchmarks.scale import criteria, planned
from benchmarks.scale.fits import exponent, line, rates
from judges.grading import GRADINGS
from study.config.schema import Task


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_recovered(power) -> None:
    sizes = np.array([1, 2, 4, 8])
    assert exponent(sizes, 3.0 * sizes**power) == pytest.approx((power, 1.0))


def test_a_power_law_that_is_none_has_a_lower_r2_and_rates_are_recovered() -> None:
    slope, r2 = exponent([1, 2, 4, 8], [1, 8, 1, 8])
    assert 0 < slope < 1 and r2 < 0.5
    rows = [{"cell": 1, "step": step, "rollout": step * size} for step in (2, 9) for size in (3, 7)]
    found = rates(rows, [5 + row["rollout"] / 2 for row in rows])
    assert found == pytest.approx({"cell": 5, "step": 0, "rollout": 0.5}, abs=1e-9)


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
