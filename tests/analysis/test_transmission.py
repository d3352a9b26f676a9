"""The ledger against hand-made groups, statsmodels and a study written by the recorder's rules."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis.ledger.__main__ import main
from analysis.ledger.display import calibration_table
from analysis.ledger.estimate import judge_table, ledger, step_row, under_policy
from analysis.ledger.transmission import (
    comparing,
    dead_groups,
    gains,
    group_cov,
    split,
    tied_groups,
    within_regression,
    yes_no,
)
from analysis.records.runs import Run, read_runs
from analysis.statistics.fixed_effects import fixed_effects
from study.rewards.advantages import EPS, advantages
from tests.analysis.conftest import THIN, made_run

NAN = np.nan


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def test_regression_is_that_of_the_complete_rollouts_within_groups(rng) -> None:
    z = rng.normal(size=(30, 6, 3)) + rng.normal(size=(30, 1, 3))
    y = z @ [0.5, 0.0, -1.0] + rng.normal(size=(30, 1)) * z[..., 0] + rng.normal(size=(30, 6))
    y[0, 0] = y[3, :5] = z[7, 2, 1] = NAN  # group 3 has one rollout left, which says nothing
    known = np.isfinite(y) & np.isfinite(z).all(axis=-1)
    known[3] = False
    found = within_regression(y, z)
    oracle = fixed_effects(y[known], z[known], np.nonzero(known)[0])
    for ours, theirs in zip(vars(found).values(), vars(oracle).values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    assert (found.n, found.groups, found.kept) == (int(known.sum()), 29, (0, 1, 2))


def test_constant_and_redundant_features_are_dropped(rng: np.random.Generator) -> None:
    z = rng.normal(size=(25, 4))
    per_prompt = np.repeat(rng.normal(size=(25, 1)), 4, axis=1)
    gone = np.full((25, 4), NAN)
    found = within_regression(3 * z, np.stack([z, per_prompt, 2 * z, gone], axis=-1))
    assert found.kept == (0,)
    assert found.coef_K[0] == pytest.approx(3)
    assert np.isnan(found.coef_K[1:]).all() and np.isnan(found.se_K[1:]).all()
    assert found.r2 == pytest.approx(1)


@pytest.mark.parametrize("values", [np.full((3, 4), NAN), np.zeros((0, 4)), np.zeros((1, 2))])
def test_nothing_to_regress_is_missing(values: np.ndarray) -> None:
    z = np.arange(values.size, dtype=float).reshape(*values.shape, 1)
    found = within_regression(values, z)
    assert np.isnan(found.coef_K).all() and np.isnan(found.r2)


def test_groups_by_hand_tied_dead_and_without_truth() -> None:
    a = np.array([[1.0, 0.0, -1.0], [1.0, NAN, NAN]])
    z = np.array([[3.0, 5.0, 1.0], [1.0, 2.0, 3.0]])[..., None]
    assert group_cov(a, z)[0, 0] == pytest.approx((3 - 1) / 2)
    assert np.isnan(group_cov(a, z)[1, 0])
    total, of_truth, of_bias = split(np.array([[0.0, 1.0]]), np.array([[0.0, NAN]]), "none")
    assert total.tolist() == [[-0.5, 0.5]]
    assert np.isnan(of_truth).all() and np.isnan(of_bias).all()
    reward = np.array([[1.0, 2.0], [1.0, 1.0], [1.0, NAN], [0.0, 1.0]])
    truth = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    np.testing.assert_array_equal(tied_groups(truth, reward), [1, 0, NAN, 0])
    np.testing.assert_array_equal(dead_groups(reward), [0, 1, NAN, 0])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_split_adds_up_to_the_advantages(scale: str, rng: np.random.Generator) -> None:
    truth = rng.integers(0, 2, size=(20, 8)).astype(float)
    reward = truth + 0.3 * rng.normal(size=(20, 8))
    reward[0, :3] = reward[1, 1:] = NAN
    total, of_truth, of_bias = split(reward, truth, scale)
    scored = np.isfinite(reward)
    scored[1] = False  # one reward cannot be compared with anything
    np.testing.assert_allclose(total[scored], advantages(reward, scale)[scored])
    np.testing.assert_allclose((of_truth + of_bias)[scored], total[scored], atol=1e-12)
    assert np.isnan(of_truth[~scored]).all() and np.isnan(of_bias[~scored]).all()
    if scale == "none":
        np.testing.assert_allclose(of_truth[2], truth[2] - truth[2].mean())


def test_equal_rewards_have_no_parts_however_truth_varies() -> None:
    """A judge on five levels gives both answers of the first group .5; the second group's parts
    are all truth: -+ .5 over the sd of (0, 1)."""
    reward, truth = np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([[0.4, 0.6], [0.0, 1.0]])
    total, of_truth, of_bias = split(reward, truth, "group")
    half = 0.5 / (0.5**0.5 + EPS)
    np.testing.assert_allclose(total, [[0, 0], [-half, half]])
    np.testing.assert_allclose(of_truth, [[0, 0], [-half, half]])
    np.testing.assert_array_equal(of_bias, np.zeros((2, 2)))
    _, of_truth, of_bias = split(reward[:1], truth[:1], "batch")  # the whole batch is flat
    assert (of_truth == 0).all() and (of_bias == 0).all()
    _, of_truth, of_bias = split(reward, truth, "batch")  # here another group divides it
    spread = 0.5 / 1.5**0.5 + 0.0001  # sd of (.5, .5, 0, 1)
    np.testing.assert_allclose(of_truth[0], [-0.1 / spread, 0.1 / spread])
    np.testing.assert_allclose(of_bias[0], -of_truth[0])


def test_rounding_in_a_flat_group_is_no_reward_for_truth() -> None:
    reward, truth = np.array([[0.3, 0.1 + 0.2]]), np.array([[0.0, 1.0]])
    total, of_truth, of_bias = split(reward, truth, "group")
    np.testing.assert_array_equal(of_truth, [[0.0, 0.0]])
    np.testing.assert_array_equal(of_bias, total)
    assert abs(total).max() < 1e-11


def test_the_ledger_of_a_five_level_judge() -> None:
    """Groups (truth, score, length): a dead one and a live one without bias. Mean over groups of
    Cov(A, z) is half the live one's: .5 x (1 / sqrt 2) / (1 + eps sqrt 2)."""
    truth, judge = np.array([[0.4, 0.6], [0.0, 1.0]]), np.array([[0.5, 0.5], [0.0, 1.0]])
    length = np.array([[3.0, 9.0], [0.0, 1.0]])[..., None]
    row = step_row(made_run(judge, truth, features=length, names=("z",)))
    expected = 0.5 * 0.5 / (0.5**0.5 + 1e-4)
    assert row["cov/z"] == pytest.approx(expected)
    assert row["cov_truth/z"] == pytest.approx(expected)
    assert row["cov_bias/z"] == pytest.approx(0, abs=1e-12)
    assert np.isnan(row["bias_share"]) and row["dead"] == 0.5  # two groups calibrate no judge


def test_rewards_of_a_policy_that_were_not_composed_are_missing() -> None:
    """Of two groups the judge has no score of the second rollout, and nobody composed again."""
    judge = np.array([[0.6, NAN], [0.2, 0.4]])
    run = made_run(judge, np.zeros((2, 2)), features=np.zeros((2, 2, 1)), names=("z",))
    assert np.isnan(under_policy(run, "zero")).all()
    assert under_policy(run, "unscored") is run.reward
    frame = ledger([run])
    assert frame["zero/cosine"].isna().all() and frame["zero/cov/z"].isna().all()
    zero = np.array([[0.6, 0.0], [0.2, 0.4]])
    np.testing.assert_array_equal(under_policy(replace(run, under={"zero": zero}), "zero"), zero)


def test_a_policy_that_changes_nothing_changes_nothing(rng: np.random.Generator) -> None:
    """Half the reward is a rule's, as in VerIF; every rollout was scored."""
    run = planted_run(rng)
    reward = 0.5 * run.judge + 0.5 * (run.features[..., 0] > 0)
    run = replace(run, reward=reward, config={"reward.name": "verif", "reward.rules": "run"})
    row = step_row(run)
    for policy in ("unscored", "zero", "drop_group"):
        assert row[f"{policy}/cosine"] == pytest.approx(1)
        assert row[f"{policy}/flips"] == row[f"{policy}/silenced"] == 0
        assert row[f"{policy}/cov/z"] == row["cov/z"]


def test_phi_and_youden_by_hand_and_by_sklearn_formula() -> None:
    truth = np.array([[1.0, 1, 1, 1, 0, 0, 0, 0]])
    judge = np.array([[0.9, 0.8, 0.5, 0.1, 0.7, 0.2, 0.1, NAN]])
    found = yes_no(judge, truth)
    tp, fn, fp, tn = 3, 1, 1, 2
    assert found["tpr"] == 3 / 4 and found["fpr"] == pytest.approx(1 / 3)
    assert found["j"] == pytest.approx(3 / 4 - 1 / 3)
    phi = (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert found["phi"] == pytest.approx(phi)
    constant = yes_no(np.ones((1, 8)), truth)
    assert np.isnan(constant["phi"]) and constant["j"] == 0
    assert np.isnan(yes_no(judge, np.ones((1, 8)))["j"])


def test_gain_weighs_a_point_in_tied_groups_more() -> None:
    reward = np.array([[0.0, 0.02], [0.0, 2.0], [1.0, 1.0]])
    weights = gains(reward, np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]))
    tied, other = 1 / (0.02 / 2**0.5 + EPS), 1 / (2 / 2**0.5 + EPS)
    assert weights["gain_tied"] == pytest.approx(tied)
    assert weights["gain"] == pytest.approx((tied + other) / 2)
    assert weights["amplification"] == pytest.approx(tied / other)


def test_alignment_of_a_judge_with_itself_and_its_opposite(rng: np.random.Generator) -> None:
    reward = rng.normal(size=(5, 4))
    same = comparing(reward, "none")(3 * reward + 1)
    opposite = comparing(reward, "group")(-reward)
    assert same["cosine"] == pytest.approx(1) and same["flips"] == 0
    assert opposite["correlation"] == pytest.approx(-1) and opposite["flips"] == 1
    assert np.isnan(comparing(reward, "group")(np.ones((5, 4)))["correlation"])
    assert comparing(reward, "group")(np.ones((5, 4)))["silenced"] == 1


def planted_run(rng: np.random.Generator, **changes: object) -> Run:
    truth = rng.integers(0, 2, size=(24, 8)).astype(float)
    z = rng.normal(size=(24, 8, 1))
    judge = truth + 0.5 * z[..., 0]
    facts = {"step_P": np.repeat([1, 2], 12), "features": z, "names": ("z",)}
    facts |= {"advantage": advantages(judge), "shadows": {"fair": truth, "against": -judge}}
    return replace(made_run(judge, truth, **facts), **changes)


def test_row_of_a_planted_run(rng: np.random.Generator) -> None:
    run = planted_run(rng)
    row = step_row(run)
    assert row["bias/z"] == pytest.approx(0.5)
    assert row["bias_r2"] == pytest.approx(1)
    assert row["cov/z"] == pytest.approx(row["cov_truth/z"] + row["cov_bias/z"])
    variance = run.features[..., 0].var(axis=1, ddof=1).mean()
    assert row["cov_bias_none/z"] == pytest.approx(0.5 * variance)
    assert row["check/group"] == 0 and row["check/none"] > 0.1
    assert row["align/fair/cosine"] == row["align/truth/cosine"] > 0.5
    assert row["align/against/flips"] == 1


def test_step_holds_only_its_groups(rng: np.random.Generator) -> None:
    run = planted_run(rng)
    second = run.at(2)
    assert second.reward.shape == (12, 8) and second.shadows["fair"].shape == (12, 8)
    frame = ledger([run])
    assert frame["step"].tolist() == [1, 2]
    assert frame["cov/z"].mean() == pytest.approx(step_row(run)["cov/z"])


def test_what_is_unknown_stays_unknown(rng: np.random.Generator) -> None:
    none = np.full((24, 8), NAN)
    row = step_row(planted_run(rng, truth=none))
    for key in ("bias/z", "cov_truth/z", "cov_bias/z", "phi", "j", "tied", "bias_share"):
        assert np.isnan(row[key]), key
    assert np.isfinite(row["cov/z"])
    unscored = step_row(planted_run(rng, judge=none, reward=none, advantage=none))
    assert unscored["unscored"] == 1 and unscored["too_few"] == 1
    for key in ("cov/z", "dead", "gain", "check/group", "align/truth/cosine", "unscored/cov/z"):
        assert np.isnan(unscored[key]), key


def test_ledger_of_a_recorded_study(make_study, printed) -> None:
    study = make_study(judges=["sim-flaky", "sim-verbose"], steps=2)
    frame = ledger(study)
    assert len(frame) == 2 * 3 * 2
    flaky = frame[frame["arm"] == "sim-flaky"]
    assert (flaky["unscored"] == 0.25).all()
    assert (frame["dead"] == 1).all()  # every group of this study has equal rewards
    # sim-flaky fails on one member of four: written as 0 its group comes to life.
    assert (flaky["zero/cov/length"] == 0).all() and flaky["drop_group/cov/length"].isna().all()
    runs, problems = read_runs(study)
    assert problems == [] and runs[0].reward.shape == (8, 4)
    table = judge_table(runs, frame).set_index(["arm", "metric"])
    assert table.loc[("sim-flaky", "unscored"), "mean"] == 0.25
    assert table.loc[("sim-flaky", "unscored"), "n"] == 3
    assert "sim-verbose: 3 runs" in printed(main, study)


@pytest.mark.parametrize("options", [*THIN, {"groups": 1, "members": 1}])
def test_poor_studies_are_printed_all_the_same(make_study, options: dict, printed) -> None:
    assert "nan" not in printed(main, make_study(**{"steps": 2} | options))


def test_a_slope_stands_before_its_interval():
    columns = {"feature": ["length"], "slope": [0.5], "low": [0.1], "high": [0.9], "r2": [np.nan]}
    shown = calibration_table(pd.DataFrame(columns))
    assert "0.5 [0.1, 0.9]" in shown.iloc[0].tolist()
    assert shown.shape == (1, 2)  # nothing has an R2
