"""First updates of a run move the forecast of its judge's other runs, as far as they tell it."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.forecast.candidates import Candidates
from analysis.forecast.early import Updates, updates
from analysis.forecast.fit import replayed
from analysis.forecast.replay import PARTS, Follows, exposed, replay
from analysis.forecast.scores import scored
from analysis.forecast.spread import Spread
from analysis.forecast.units import UPDATED, fitted
from tests.analysis.test_forecast_units import STUDY, doses, judged, taught
from tests.analysis.test_replay import PLANTED

STEPS = 40


def spread(shared: float, sd: float = 0.3) -> Spread:
    ones = np.ones(3)
    return Spread(sd * ones, 0.0, 0.0, ones, shared * ones, 12, 0.9)


@pytest.fixture(scope="module")
def judges() -> Candidates:
    return judged(doses(1))


def of_each_step(judges: Candidates, arm: int, of: Follows) -> np.ndarray:
    """Where a policy that the replay is right about stands at each step, shape (T, K1)."""
    shown = replay(judges.start, judges.pays[arm], of).shift
    at, parts = exposed(judges.pays[arm].trainer), np.linspace(0, 1, PARTS + 1)
    moved = np.array([np.interp(at, parts, line) for line in shown.T]).T
    return moved + at[:, None] * of.drift


def of_first_run(
    judges: Candidates, of: Follows, count: int, more: float = 0.0, shared=1.0
) -> Updates:
    """What ``count`` updates add where the policy stood, after each, that far off the replay."""
    where = of_each_step(judges, 0, of) + more
    where[count + 1 :] = np.nan  # nothing that comes later is read
    taught_K1 = replayed(judges.start, judges.pays[0], of)[0][-1]
    return updates(where, count, of, spread(shared), judges, 0, taught_K1)


@pytest.mark.parametrize("count", [1, 4, 39])
def test_what_stands_where_it_was_forecast_corrects_nothing(judges, count):
    assert of_first_run(judges, PLANTED, count).correction == pytest.approx(np.zeros(3), abs=1e-9)


@pytest.mark.parametrize("count", [1, 4, 20])
def test_the_weight_is_by_what_is_known_and_what_is_drawn(judges, count):
    linear = replace(PLANTED, growth=1.0)
    made = of_first_run(judges, linear, count, more=0.1)
    # shares of the exposure: 1 to k of 40 were seen, and the last tenth has 36 to 39 behind it
    further = np.mean([36, 37, 38, 39]) / np.mean(np.arange(1, count + 1))
    drawn = judges.start.sampling(8, 4) / count
    about = 0.3**2 + judges.sampling[0]
    weight = further * about / (about + further**2 * drawn)
    assert made.weight == pytest.approx(weight)
    assert made.correction == pytest.approx(made.weight * 0.1)


def test_what_no_two_runs_share_is_never_corrected_and_more_updates_weigh_more(judges):
    assert (of_first_run(judges, PLANTED, 4, more=0.5, shared=0.0).correction == 0).all()
    shares = [of_first_run(judges, PLANTED, count, more=0.1).correction[0] for count in (1, 4, 20)]
    assert shares == sorted(shares) and shares[0] < 0.01 and shares[-1] > 0.1


def test_a_judge_that_moves_further_than_its_forecast_is_corrected_by_its_first_run(judges):
    """Every second judge drifts by .6 more: most of a run tells which, and others are scored."""
    runs = taught(judges, 1)
    at = exposed(judges.pays[0].trainer)
    apart = np.where(runs.arm % 2, 0.6, 0.0)
    rng = np.random.default_rng(0)
    of_steps = []
    for run, arm in enumerate(runs.arm.tolist()):
        where = of_each_step(judges, arm, PLANTED)
        scatter = rng.normal(0, 0.05, (STEPS, 3))
        of_steps.append(where + at[:, None] * apart[run] + scatter)
    course = runs.course + apart[:, None, None] * np.linspace(0, 1, 6)[:, None]
    moved = replace(runs, course=course, of_steps=tuple(of_steps))
    of = fitted(STUDY, judges, moved)
    results = {count: scored(of, STUDY, judges, moved, count) for count in (1, 30)}
    by_count = {
        count: {line.method: line for line in result.pooled} for count, result in results.items()
    }
    none, most = (by_count[count][UPDATED] for count in (1, 30))
    assert none.r2 == pytest.approx(by_count[1]["forecast"].r2, abs=0.02)
    assert most.r2 > by_count[30]["forecast"].r2 + 0.02
    assert most.behind.value == pytest.approx(by_count[30]["forecast"].r2 - most.r2)
    assert {line.runs for line in results[1].methods} == {len(judges.arms)}
    has_interval = {line.method for line in results[1].methods if np.isfinite(line.inside)}
    assert has_interval == {"forecast", UPDATED}
