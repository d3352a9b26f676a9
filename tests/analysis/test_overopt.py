"""Over-optimisation fits, their peaks and intervals, where d is from, and the alarm; best-of-n
is the mean over every subset of recorded groups, ties and gaps included."""

import itertools
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis.onset.display import best_of_n_table
from analysis.onset.overopt import (
    Rule,
    best_of_n,
    bias_free_gaps,
    calibrated,
    expected_best,
    false_alarms,
    first_alarms,
    fit,
    kl_path,
    overoptimisation,
    rows,
)
from analysis.onset.planted import _groups
from analysis.overopt import main
from analysis.records.runs import REFERENCE, read_runs
from tests.analysis.conftest import made_run, write_kl
from tests.conftest import RECORDS_ONLY, Trained

D = np.linspace(0.25, 8, 32)


def bon(alpha: float, beta: float) -> np.ndarray:
    return 0.4 + D * (alpha - beta * D)


def rl(alpha: float, beta: float) -> np.ndarray:
    return 0.4 + D * (alpha - beta * np.log(D))


def test_a_curve_without_noise_gives_its_parameters_back() -> None:
    found = fit(D, bon(0.2, 0.02), "bon")
    assert [found.start, found.alpha, found.beta] == pytest.approx([0.4, 0.2, 0.02])
    assert found.peak == pytest.approx(5.0)  # .2 / (2 * .02)
    found = fit(D, rl(0.25, 0.1), "rl")
    assert [found.start, found.alpha, found.beta] == pytest.approx([0.4, 0.25, 0.1])
    assert found.peak == pytest.approx(np.exp(1.5))  # exp(.25 / .1 - 1)
    assert fit(D, bon(-0.1, 0.01), "bon").peak == 0.0, "a curve that only falls"


@pytest.mark.parametrize("form", ["rl", "bon", "line"])
def test_least_squares_and_aic_are_those_of_statsmodels(form: str) -> None:
    score = rl(0.2, 0.08) + np.random.default_rng(0).normal(0, 0.05, len(D))
    columns = {"rl": [-D * np.log(D)], "bon": [-D * D], "line": []}[form]
    design = np.stack([np.ones_like(D), D, *columns], axis=1)
    oracle = sm.OLS(score, design).fit()
    found = fit(D, score, form)
    own = [found.start, found.alpha, found.beta][: design.shape[1]]
    assert own == pytest.approx(oracle.params)
    # statsmodels counts no variance and keeps the constant of the likelihood
    expected = oracle.aic + 2 - len(D) * (np.log(2 * np.pi) + 1)
    assert found.aic == pytest.approx(expected)


@pytest.mark.parametrize("true, other", [("rl", "bon"), ("bon", "rl")])
def test_aic_prefers_the_form_that_made_the_curve(true: str, other: str) -> None:
    path = {"rl": rl(0.25, 0.1), "bon": bon(0.2, 0.02)}[true]
    score = path + np.random.default_rng(1).normal(0, 0.01, len(D))
    assert fit(D, score, true).aic < fit(D, score, other).aic - 5
    assert fit(D, score, true).aic < fit(D, score, "line").aic - 5


@pytest.mark.parametrize("path", [bon(0.2, 0.005), bon(0.2, 0.0), bon(0.1, -0.01), rl(0.5, 0.1)])
def test_a_curve_that_still_rises_has_not_reached_its_peak(path: np.ndarray) -> None:
    """Peaks at d = 20, nowhere, nowhere, and exp(4) = 55, beyond the largest d of 8."""
    rng = np.random.default_rng(2)
    found = overoptimisation(D, *_groups(rng, path, sd=0.05), replicates=200)
    assert found.best.peak == np.inf
    assert (found.peak.low, found.peak.high, found.reached) == (np.inf, np.inf, 0.0)


def test_a_straight_line_is_said_to_be_one_and_steps_without_a_score_left_out() -> None:
    found = overoptimisation(D, *_groups(np.random.default_rng(3), bon(0.1, 0.0)), replicates=200)
    assert "a straight line fits as well" in found.note
    steps, sums = _groups(np.random.default_rng(7), bon(0.2, 0.02), sd=0.05)
    sums[steps == 3] = 0.0
    found = overoptimisation(D, steps, sums, replicates=100)
    kept = steps != 3
    shorter = overoptimisation(np.delete(D, 2), steps[kept], sums[kept], replicates=100)
    assert (found.best, found.reached) == (shorter.best, shorter.reached)
    assert (found.peak.low, found.peak.high) == (shorter.peak.low, shorter.peak.high)


@pytest.mark.parametrize("form, sd", [("rl", 0.2), ("bon", 0.4)])
def test_the_interval_covers_where_the_form_cannot_be_told(form: str, sd: float) -> None:
    path, peak = {"rl": (rl(0.25, 0.1), np.exp(1.5)), "bon": (bon(0.2, 0.02), 5.0)}[form]
    rng, covered, right = np.random.default_rng(4), 0, 0
    for seed in range(200):
        found = overoptimisation(D, *_groups(rng, path, sd=sd), replicates=200, seed=seed)
        covered += found.peak.low <= peak <= found.peak.high
        right += found.best.form == form
    assert right / 200 < 0.95
    # binomial(200, .95): below .905 in one of 300 seeds
    assert covered / 200 >= 0.905


def test_too_little_is_refused_in_words() -> None:
    steps, sums = _groups(np.random.default_rng(6), bon(0.2, 0.02))
    unknown = np.where(np.arange(len(D)) < 27, np.nan, D)
    found = overoptimisation(unknown, steps, sums)
    assert found.best is None and "5 steps with a score and a KL" in found.note
    still = overoptimisation(np.zeros(len(D)), steps, sums)
    assert still.best is None and still.note == "the policy did not move away"
    single = overoptimisation(D, np.arange(len(D)), sums[:: len(sums) // len(D)])
    assert single.best is not None and np.isnan([single.peak.low, single.peak.high]).all()
    assert "steps of one group" in single.note


def test_without_a_recorded_kl_there_is_no_d(make_study) -> None:
    runs, _ = read_runs(make_study(judges=("sim-fair",), seeds=1, steps=1))
    found = kl_path(runs[0])
    assert len(found.kl) == 0 and "no KL was recorded" in found.source


def test_the_trainers_kl_is_per_token(make_study) -> None:
    study = make_study(judges=("sim-fair",), seeds=1)
    write_kl(study, 6)
    runs, _ = read_runs(study)
    found = kl_path(runs[0])
    assert found.source == "policy/kl x tokens"
    assert found.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.kl == pytest.approx(0.2 * np.arange(1, 7))


@pytest.mark.parametrize(
    "ratio, expected",
    # below a nat (exp(-r) - 1 + r) / 2 with r = log 2; beyond it the mean of r, (6 + 0) / 2
    [(np.log(2), (0.5 - 1 + np.log(2)) / 2), (6.0, 3.0)],
)
def test_log_probabilities_of_the_start_tell_it_too(make_study, ratio, expected) -> None:
    """r = log policy - log start is the ratio for half of a step's rollouts, 0 for the others; one
    step has no log-probabilities of the start."""
    study = make_study(judges=("sim-fair",), seeds=1)
    for part in next(study.glob("sim-fair-*")).glob("rollouts/*.parquet"):
        frame = pq.read_table(part).to_pandas()
        shift = np.where(np.arange(len(frame)) % 2, ratio, 0.0)
        frame[REFERENCE] = frame["logprob_sum"] - shift
        if part.stem == "step-000003":
            frame[REFERENCE] = np.nan
        frame.to_parquet(part)
    runs, _ = read_runs(study)
    found = kl_path(runs[0])
    assert found.source == "log-probabilities of the start"
    assert found.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.kl == pytest.approx([expected] * 2 + [np.nan] + [expected] * 3, nan_ok=True)


@pytest.fixture(scope="module")
def held(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of nine steps under a KL penalty, trained for real; the study's folder."""
    runs_dir = tmp_path_factory.mktemp("runs")
    settings = ("trainer.beta=0.05", "trainer.steps=9", "trainer.prompts_per_step=4")
    done = trained(runs_dir, *RECORDS_ONLY, "judge=sim-verbose", "seed=0", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return runs_dir / "debug"


def test_a_trained_run_starts_at_its_start_and_moves_away(held: Path, tmp_path: Path) -> None:
    """The adapter begins at zero, so the first step is the start policy, to rounding."""
    runs, _ = read_runs(held)
    found = kl_path(runs[0])
    assert found.source == "policy/kl x tokens" and found.steps.tolist() == list(range(1, 10))
    assert found.kl[0] == pytest.approx(0.0, abs=1e-6)
    assert (found.kl >= 0).all() and found.kl[-3:].min() > found.kl[1] > 0
    # without the trainer's numbers, the rollouts' log-probabilities tell nearly the same
    study = shutil.copytree(held, tmp_path / "held")
    (study / runs[0].cell / "metrics.jsonl").unlink()
    other = kl_path(read_runs(study)[0][0])
    assert other.source == "log-probabilities of the start"
    assert other.kl[0] == pytest.approx(0.0, abs=1e-6)
    assert 1 / 3 < other.kl[1:].sum() / found.kl[1:].sum() < 3


def test_a_trained_run_is_fitted(held: Path, printed) -> None:
    runs, _ = read_runs(held)
    found = {row["score"]: row for row in rows(runs[0])}
    d_max = kl_path(runs[0]).kl.max() ** 0.5
    for row in found.values():
        assert row["best"] is not None and row["d_max"] == pytest.approx(d_max)
        peak = row["best"]["peak"]
        assert 0 <= peak <= d_max or peak == np.inf
        assert row["low"] <= row["high"] and 0 <= row["reached"] <= 1
    said = printed(main, held)
    assert "sqrt(KL in nats per completion)" in said and "no KL" not in said


def test_the_command_line(make_study, answered) -> None:
    study = make_study(judges=("sim-verbose",), seeds=1, steps=12)
    write_kl(study, 12)
    found, said = answered(main, study)
    table = {row["score"]: row for row in found}
    # the study's judge rises without end, its truth is one number throughout
    assert table["judge"]["best"]["peak"] == "not reached" and "not reached" in said
    assert table["judge"]["d_max"] == pytest.approx((0.12 * 20) ** 0.5)


def test_an_alarm_by_hand_and_for_a_judge_that_is_gamed() -> None:
    """Baseline 0, 0; then z = 2, 2, 2 with slack .5: S = 1.5, 3, 4.5; limit 4 is passed last."""
    gap = np.array([[0.0, 0.0, 0.2, 0.2, 0.2], [0.0, 0.0, -1.0, 0.2, 0.2]])
    assert first_alarms(gap, np.full((2, 5), 0.1), Rule(baseline=2, limit=4.0)).tolist() == [4, -1]
    noise = np.random.default_rng(0).normal(0, 1e-9, (50, 40))
    assert (first_alarms(noise, np.abs(noise), calibrated(40, 8)) == -1).all()
    rng = np.random.default_rng(1)
    rise = 0.3 * np.clip((np.arange(40) - 20) / 10, 0, 1)
    gap = rise + rng.normal(0, 0.05, (200, 40))
    at = first_alarms(gap, np.full((200, 40), 0.05), calibrated(40, 8))
    assert np.mean((at > 20) & (at < 29)) > 0.9


def test_bias_free_runs_keep_their_gap_and_alarms_are_as_calibrated() -> None:
    means, errors = bias_free_gaps(np.random.default_rng(4), 400, 20, 8, 8, noise_sd=0.4)
    # judge - truth is noise of SD .4 over 64 rollouts
    assert means.mean() == pytest.approx(0.0, abs=0.003)
    assert means.std() == pytest.approx(0.05, rel=0.05)
    assert (errors**2).mean() ** 0.5 == pytest.approx(0.05, rel=0.05)
    rule = calibrated(40, 8)
    gaps = bias_free_gaps(np.random.default_rng(3), 1000, 40, 8, 8)
    share = false_alarms(rule, gaps)
    assert share.low <= 0.05 <= share.high and share.low < share.value < share.high
    # a limit of nothing stops every run
    assert false_alarms(Rule(8, 0.0), gaps).value > 0.99


SCORES = st.sampled_from([0.0, 0.25, 0.5, 1.0, np.nan])
"""Few, so that ties are common."""


def by_hand(score, truth, n):
    """The mean over all subsets of n of the mean truth of those with the highest score."""
    known = [k for k in range(len(score)) if score[k] == score[k] and truth[k] == truth[k]]
    means = []
    for subset in itertools.combinations(known, n):
        most = max(score[k] for k in subset)
        means.append(np.mean([truth[k] for k in subset if score[k] == most]))
    return np.mean(means)


@given(
    arrays(float, 6, elements=SCORES),
    arrays(float, 6, elements=st.one_of(st.floats(0, 1), st.just(np.nan))),
)
def test_it_is_the_mean_over_every_subset(score, truth):
    best = expected_best(score, truth[:, None])
    assert len(best) == (np.isfinite(score) & np.isfinite(truth)).sum()
    for n in range(1, len(best) + 1):
        assert best[n - 1, 0] == pytest.approx(by_hand(score, truth, n), abs=1e-12)


def make_run(judge, truth, prompts=None, **changes):
    prompt_P = None if prompts is None else np.array(prompts, dtype=object)
    return made_run(judge, truth, prompt_P=prompt_P, config={"judge.name": "own"}, **changes)


def test_a_group_by_hand():
    """Scores 1, 2, 3: the best of two is 3 in two of three pairs and 2 in the other."""
    truth = np.array([[0.0, 0.6, 0.3]])
    lines = best_of_n([make_run(np.array([[1.0, 2.0, 3.0]]), truth)])
    assert [line.n for line in lines] == [1, 2, 3]
    assert [line.truth.value for line in lines] == pytest.approx([0.3, 0.4, 0.3])
    assert [line.gain.value for line in lines] == pytest.approx([0.0, 0.1, 0.0])
    assert [line.score.value for line in lines] == pytest.approx([2.0, 8 / 3, 3.0])
    assert lines[1].kl == pytest.approx(math.log(2) - 0.5) and lines[0].kl == 0
    assert math.isnan(lines[0].truth.low) and lines[0].truth.n == 1


def test_the_prompt_is_the_unit_over_runs_and_nothing_scored_no_curve():
    """Two groups of one prompt are one observation; the interval is over the two prompts."""
    judge = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    truth = np.array([[0.0, 1.0], [0.0, 0.5], [0.25, 0.0]])
    best = best_of_n([make_run(judge, truth, ["p", "p", "q"])])[-1]
    assert (best.n, best.truth.n) == (2, 2)
    assert best.truth.value == pytest.approx((0.75 + 0.25) / 2)
    standard_error, quantile = 0.25, 12.706204736
    assert best.truth.high - best.truth.value == pytest.approx(quantile * standard_error)
    # Two seeds that answered the same prompts say no more of other prompts than one does.
    judge = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    truth = np.array([[0.0, 1.0], [0.5, 0.0], [0.25, 0.0]])
    runs = [make_run(judge, truth, ["p", "q", "r"]) for _ in range(2)]
    assert best_of_n(runs) == best_of_n(runs[:1])
    unnamed = [replace(make_run(judge, truth), cell=cell) for cell in "ab"]
    assert best_of_n(unnamed)[-1].truth.n == 6
    assert best_of_n([make_run(np.full((3, 2), np.nan), np.ones((3, 2)))]) == []
    assert best_of_n([]) == []


def test_only_the_first_tenth_of_the_steps_counts_and_shadows_have_their_own_curve():
    rng = np.random.default_rng(0)
    judge, truth = rng.random((20, 4)), rng.random((20, 4))
    shadow = truth.copy()
    shadow[0, 0] = np.nan
    run = make_run(judge, truth, shadows={"oracle": shadow}, step_P=np.arange(1, 21))
    lines = {(line.judge, line.n): line for line in best_of_n([run])}
    assert lines["own", 1].truth.n == 2
    assert lines["own", 1].truth.value == pytest.approx(truth[:2].mean())
    assert lines["oracle", 4].truth.n == 1, "a group that lost a score has no best of four"
    assert lines["oracle", 4].truth.value == pytest.approx(truth[1].max())
    table = best_of_n_table(list(lines.values()))
    assert table["n"].tolist() == [1, 2, 4, 1, 2, 4]
    assert set(table["chosen by"]) == {"own", "oracle"}


def test_a_judge_that_sees_the_truth_gains_and_one_that_sees_its_opposite_loses():
    rng = np.random.default_rng(1)
    truth = rng.random((40, 6))
    gains = {}
    for name, score in (("right", truth), ("wrong", -truth), ("blind", rng.random((40, 6)))):
        gains[name] = best_of_n([make_run(score, truth)])[-1].gain
    assert gains["right"].low > 0 > gains["wrong"].high
    assert gains["blind"].low < 0 < gains["blind"].high
