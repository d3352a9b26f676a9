"""The truth's push that missing verdicts take away: by hand, against the ledger of a judge that
says the truth, and in the worst cases of truths that are not known."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from analysis.ledger.chance import Measured, by_prompt, chance
from analysis.ledger.display import lost_sentences
from analysis.ledger.estimate import judge_table, ledger, step_row
from analysis.ledger.missing import truth_push, unscored, worst_cases
from analysis.records.runs import Run
from analysis.report.evidence import Evidence
from analysis.report.words import findings
from analysis.selfcheck.planted_judges import planted
from analysis.statistics.intervals import ratio_of_means
from study.rewards.advantages import advantages
from study.rewards.failure import POLICIES, apply_failure_policy
from tests.analysis.conftest import clustered, made_run

NAN = np.nan
SCALES = ("group", "batch", "none")


def with_missing(policy: str, scale: str, seed: int = 0, **changes: object) -> Run:
    """Two steps of a judge that says the truth, but nothing of long answers. Of three groups in
    four the truth varies."""
    rng = np.random.default_rng(seed)
    truth = (rng.random((24, 6)) < rng.choice([0.0, 0.4, 0.6, 0.8], (24, 1))).astype(float)
    z = rng.normal(size=(24, 6, 2)) + truth[..., None]
    judge = np.where(z[..., 0] > 1.2, NAN, truth)
    scores = [None if np.isnan(score) else score for score in judge.ravel().tolist()]
    kept = "unscored" if policy == "abort" else policy
    reward = np.array(apply_failure_policy(scores, 6, kept), dtype=float).reshape(judge.shape)
    facts = {"reward": reward, "advantage": advantages(reward, scale), "scale": scale}
    facts |= {"features": z, "names": ("length", "y"), "on_failure": policy}
    return made_run(judge, truth, step_P=np.repeat([1, 2], 12), **facts | changes)


def test_a_group_by_hand_under_each_policy() -> None:
    """Without division. Of all: covariance of (0, 1, 1, 0) and (0, 1, 3, 4) is 0; of the first
    three it is 2/3; a 0 for the last is what its truth is; dropped, only the second group is left,
    whose covariance is 1/2."""
    truth, z = (
        np.array([[0.0, 1, 1, 0], [0, 1, NAN, NAN]]),
        np.array([[0.0, 1, 3, 4], [0, 1, 0, 0]]),
    )
    judge = np.array([[0.1, 0.9, 0.8, NAN], [0.2, 0.3, NAN, NAN]])
    features = np.where(np.isfinite(truth), z, NAN)[..., None]  # places that no rollout fills
    run = made_run(judge, truth, features=features, names=("z",), scale="none")
    for policy, scored in (
        ("unscored", (2 / 3 + 1 / 2) / 2),
        ("zero", 1 / 4),
        ("drop_group", 1 / 2),
    ):
        row = step_row(replace(run, on_failure=policy))
        assert row["truth_push/z"] == pytest.approx((0 + 1 / 2) / 2)
        assert row["lost/z"] == pytest.approx(1 / 4 - scored)
        assert row["lost_low/z"] == row["lost_high/z"] == row["lost/z"]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_left_is_the_push_of_a_judge_that_says_the_truth(policy: str, scale: str) -> None:
    run = with_missing(policy, scale)
    frame = ledger([run])
    left = frame["truth_push/length"] - frame["lost/length"]
    np.testing.assert_allclose(left, frame["cov/length"], atol=1e-12)
    heard = replace(run, judge=run.truth, reward=run.truth)
    np.testing.assert_allclose(frame["truth_push/y"], ledger([heard])["cov/y"], atol=1e-12)
    assert (ledger([heard])["lost/length"] == 0).all()
    whole = truth_push(run)
    assert whole.lost[0] == pytest.approx(
        np.nanmean(whole.every[:, 0]) - np.nanmean(whole.scored[:, 0])
    )
    assert frame["lost/length"].mean() > 0.02


@pytest.mark.parametrize("policy", ["unscored", "drop_group"])
def test_rows_without_a_verdict_that_are_like_the_others_take_nothing(policy: str) -> None:
    """Every group is there twice, once without any verdict."""
    run = with_missing("unscored", "group")
    twice = np.tile(run.truth, (2, 1))
    judge = np.where(np.arange(48)[:, None] < 24, twice, NAN)
    facts = {"features": np.tile(run.features, (2, 1, 1)), "names": run.names}
    half = made_run(judge, twice, on_failure=policy, **facts)
    assert unscored(half).any() and truth_push(half).lost == pytest.approx([0, 0], abs=1e-12)
    zeros = replace(half, on_failure="zero", reward=np.nan_to_num(judge))
    push = truth_push(zeros)
    assert push.lost == pytest.approx(np.nanmean(push.every, axis=0) / 2)


def test_only_what_the_reward_misses_counts() -> None:
    """A rule that rewards a domain does without the judge; a correction may withhold a score."""
    run = with_missing("unscored", "group")
    by_rule = replace(run, reward=run.truth)
    assert not unscored(by_rule).any() and (truth_push(by_rule).lost == 0).all()
    withheld = replace(run, judge=run.truth, corrected=run.judge)
    np.testing.assert_array_equal(unscored(withheld), unscored(run))
    zeros = with_missing("zero", "group")
    np.testing.assert_array_equal(unscored(zeros), unscored(run))
    np.testing.assert_array_equal(
        unscored(replace(by_rule, on_failure="zero", under={"unscored": run.truth})), False
    )


@pytest.mark.parametrize("scale", SCALES)
def test_worst_cases_are_those_of_every_truth_that_could_be(scale: str) -> None:
    """Three truths of two groups are not known, two of them of answers without a verdict."""
    run = with_missing("unscored", scale, seed=3).at(1)
    unknown = np.zeros(run.truth.shape, dtype=bool)
    gone = np.argwhere(unscored(run))
    for p, g in (*gone[:2], (gone[0][0], 0)):
        unknown[p, g] = True
    count = int(unknown.sum())
    hidden = replace(run, truth=np.where(unknown, NAN, run.truth))
    low, high = worst_cases(hidden, truth_push(hidden))
    levels = (0.0, 1.0) if scale == "none" else (0.0, 0.5, 1.0)
    every = []
    for values in itertools.product(levels, repeat=count):
        truth = run.truth.copy()
        truth[unknown] = values
        every.append(truth_push(replace(run, truth=truth)).lost)
    near = 0.05 if scale == "batch" else 1e-9  # there the truths that are known divide
    np.testing.assert_allclose(low, np.min(every, axis=0), atol=near)
    np.testing.assert_allclose(high, np.max(every, axis=0), atol=near)
    assert (high - low > 0.01).all()
    nothing = replace(run, truth=np.full(run.truth.shape, NAN))
    assert np.isnan(worst_cases(nothing, truth_push(nothing))).all()


def test_the_arm_has_fiellers_share_and_the_chance_of_its_prompts() -> None:
    runs = [
        replace(with_missing("unscored", "group", seed), seed=seed, cell=f"c{seed}")
        for seed in range(4)
    ]
    steps = ledger(runs)
    table = judge_table(runs, steps).set_index("metric")
    pairs = steps.groupby("cell")[["lost/length", "truth_push/length"]].mean().to_numpy()
    share = ratio_of_means(pairs, "run")
    found = table.loc["lost_share/length"]
    assert found[["mean", "low", "high", "n"]].tolist() == [share.value, share.low, share.high, 4]
    assert table.loc["lost/length", "p"] < 0.001 and np.isnan(table.loc["cov/length", "p"])
    fair = [replace(run, judge=run.truth, reward=run.truth) for run in runs]
    table = judge_table(fair, ledger(fair)).set_index("metric")
    assert "lost_share/length" not in table.index and np.isnan(table.loc["lost/length", "p"])


def test_chance_is_the_clustered_error_of_a_mean_over_all_runs_of_a_prompt() -> None:
    """Two runs of 15 groups meet ten prompts, three groups each; both runs have the same mean."""
    rng = np.random.default_rng(0)
    prompts = rng.permutation(np.repeat(np.arange(10), 3))
    values = rng.normal(0.3, 1, 30) + prompts % 3
    values[15:] += values[:15].mean() - values[15:].mean()
    parts = []
    for here in (slice(0, 15), slice(15, 30)):
        run = made_run(np.zeros((15, 1)), prompt_P=prompts[here].astype(object))
        mean = values[here].mean(keepdims=True)
        parts.append(by_prompt(run, mean, (values[here] - mean)[:, None] / 15))
    fit = clustered(values, prompts)  # its factor has (N - 1) / (N - 1) beside C / (C - 1)
    assert chance(parts)[0] == pytest.approx(fit.pvalues[0])
    nothing = Measured(np.array([NAN]), (), np.zeros((0, 1)))
    assert np.isnan(chance([nothing])).all()


def test_the_report_says_what_is_gone_and_what_the_worst_cases_are(evidence: Evidence) -> None:
    runs = [planted(np.random.default_rng(seed), "missing where long", seed) for seed in range(3)]
    table = judge_table(runs, ledger(runs))
    whole = replace(evidence, ledger_by_arm=table, spread={"length": 1.0, "y": 1.0, "x": 1.0})
    (said,) = [text for text in findings(whole) if "is gone" in text]
    assert said.startswith("missing where long: with 12.0 % of its verdicts missing, +0.0")
    assert "of the truth's push on length is gone, of +0." in said
    added = table.assign(
        mean=np.where(table["metric"].str.startswith("lost"), -1, 1) * table["mean"]
    )
    (said,) = lost_sentences(added, whole.spread)
    assert "is added to the truth's push on length" in said
    unknown = table.assign(mean=np.where(table["metric"] == "lost_high/length", 0.5, table["mean"]))
    (said,) = lost_sentences(unknown, whole.spread)
    assert "+0.5 whatever the truths that are not known" in said
