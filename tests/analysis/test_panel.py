"""What a panel of judges is worth: planted correlated errors, shared and separate biases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.crossjudge.estimate import within_groups
from analysis.ledger.estimate import judge_table, ledger
from analysis.panel.__main__ import main
from analysis.panel.display import advice, panels_table
from analysis.panel.estimate import (
    ALONE,
    HOWS,
    effective_votes,
    memberships,
    of_run,
    weighted,
    worth,
)
from analysis.panel.planted import NOISE_SD, PAID, TRUTH_SD, mean_of, planted, share
from analysis.records.runs import Run
from analysis.report import sections
from study.rewards.corrections.panel import together


def run_of(seed: int = 0, **options: Any) -> Run:
    """A run of 400 groups; see `planted`."""
    rng = np.random.default_rng(seed)
    return planted(rng, steps=10, groups=40, seed=seed, **options)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_votes_and_bias_shares_are_those_that_were_planted(correlation):
    panels, trained = of_run(run_of(correlation=correlation))
    assert trained == panels[("a",), ALONE].bias_share
    assert trained == pytest.approx(share(PAID, NOISE_SD**2), abs=0.015)
    for judges in (("a", "b"), ("a", "c"), ("a", "b", "c")):
        votes, left = mean_of(len(judges), correlation)
        assert panels[judges, "mean"].votes == pytest.approx(votes, rel=0.03)
        assert panels[judges, "mean"].bias_share == pytest.approx(left, abs=0.01)


def test_weights_are_the_inverse_of_the_covariance_of_errors():
    run = run_of(correlation=0.3, paid=(0.3, 0.05, 0.0, 0.6))
    scores = np.stack([run.judge, *run.shadows.values()])
    one_score = weighted(run, scores)
    paid = np.array([0.3, 0.05, 0.0, 0.6])
    covariance = NOISE_SD**2 * (0.7 * np.eye(4) + 0.3) + np.outer(paid, paid)
    weights = np.linalg.solve(covariance, np.ones(4))
    assert (weights[:3] > 0).all() and weights[3] < 0  # the last one would count against
    kept = np.zeros(4)
    kept[:3] = np.linalg.solve(covariance[:3, :3], np.ones(3))
    error = one_score - np.tensordot(kept / kept.sum(), scores, axes=1)
    assert (error - error.mean(axis=1, keepdims=True)).std() < 0.02
    panels, _ = of_run(run)
    judges = ("a", "b", "c", "d")
    assert panels[judges, "weighted"].bias_share < panels[judges, "mean"].bias_share / 4


def test_no_answer_decides_its_own_weights():
    """Eight scores that say nothing of the truth: weights of their own half
    would give them a correlation of .13."""
    correlations = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        run = planted(rng, paid=(0.0,) * 8, steps=1, groups=16)
        run = replace(run, truth=rng.normal(0.5, TRUTH_SD, run.truth.shape))
        one_score = weighted(run, np.stack([run.judge, *run.shadows.values()]))
        correlations.append(within_groups(one_score, run.truth))
    assert np.isfinite(correlations).all() and np.mean(correlations) < 0.05


def test_a_judge_that_says_nothing_is_left_out_of_its_panel():
    run = run_of()
    scores = np.stack([run.judge, *run.shadows.values()])
    scores[1, ::3] = np.nan
    scores[:, 5] = np.nan
    one_score = weighted(run, scores)
    assert np.isnan(one_score[5]).all() and np.isfinite(np.delete(one_score, 5, axis=0)).all()
    inside = one_score - one_score.mean(axis=1, keepdims=True)
    whole = weighted(run, np.stack([run.judge, *run.shadows.values()]))
    whole = whole - whole.mean(axis=1, keepdims=True)
    with_all = np.ones(len(whole), dtype=bool)
    with_all[::3] = with_all[5] = False
    assert inside[with_all] == pytest.approx(whole[with_all], abs=0.05)


@given(st.integers(2, 6), st.floats(0, 0.95))
def test_votes_are_those_of_equal_correlations(judges, correlation):
    rng = np.random.default_rng(judges)
    shape = (400, 8)
    shared = rng.standard_normal(shape)
    errors = [
        correlation**0.5 * shared + (1 - correlation) ** 0.5 * rng.standard_normal(shape)
        for _ in range(judges)
    ]
    expected = judges / (1 + (judges - 1) * correlation)
    assert effective_votes(errors) == pytest.approx(expected, rel=0.1)
    assert effective_votes(errors[:1] * judges) == pytest.approx(1.0)


def test_errors_that_cancel_or_are_none_have_no_votes():
    error = np.random.default_rng(0).standard_normal((50, 4))
    assert np.isnan(effective_votes([error, -error]))
    assert np.isnan(effective_votes([error, np.zeros((50, 4))]))


def test_each_set_of_judges_stands_once():
    assert list(memberships("ab")) == [("a", "b")]
    assert list(memberships("abc")) == [("a", "b"), ("a", "c"), ("a", "b", "c")]
    sets = [*("ab", "ac", "ad"), "abcd", *("acd", "abd", "abc")]
    assert list(memberships("abcd")) == [tuple(each) for each in sets]


def trained_by_panel(seed: int) -> Run:
    """A run whose reward is the mean of the three."""
    run = run_of(seed)
    scores = together(np.stack([run.judge, *run.shadows.values()]), "mean")
    config = {"judge.name": "a", "shadow_judges.0.name": "b", "shadow_judges.1.name": "c"}
    config |= {"shadow_judges.1.grading.name": "rubric", "correction.panel": "mean"}
    return replace(
        run, cell=f"panel-{seed}", arm="panel", corrected=scores, reward=scores, config=config,
        identity={"seed": seed, "correction.panel": "mean", "shadow_judges.0.name": "b"},
    )  # fmt: skip


def test_a_panel_stands_beside_the_arm_that_it_trained():
    others = [trained_by_panel(seed) for seed in (3, 4, 5)]
    kl = [replace(run, arm="kl", identity=run.identity | {"trainer.beta": 0.1}) for run in others]
    runs = [*(run_of(seed) for seed in (0, 1, 2)), *others, *kl]
    panels = worth(runs)
    plain = {(row.judges, row.how): row for row in panels if row.arm == "plain"}
    assert len(plain) == 1 + 3 * len(HOWS) - 2
    row = plain[("a", "b", "c"), "mean"]
    steps = ledger(others)
    by_arm = judge_table(others, steps).set_index("metric")
    assert row.observed.value == pytest.approx(by_arm.loc["bias_share", "mean"])
    assert row.observed.n == 3  # none of the arm that has another penalty
    assert row.observed.value == pytest.approx(row.bias_share.value, abs=0.01)
    assert row.fall.low > 0 and row.fall.n == 3
    assert row.fall.value == pytest.approx(
        plain[("a",), ALONE].bias_share.value - row.bias_share.value
    )
    assert plain[("a", "b"), "mean"].observed.n == 0
    of_panel = {(row.judges, row.how): row for row in panels if row.arm == "panel"}
    alone = of_panel[("a",), ALONE]
    assert alone.observed.value == pytest.approx(plain[("a",), ALONE].bias_share.value)
    assert of_panel[("a", "b", "c"), "mean"].observed.n == 0  # its own runs are no other's


def test_the_sentence_names_the_least_and_the_judge_that_is_spared():
    panels = worth([run_of(seed, paid=(PAID, PAID, 0.0)) for seed in range(3)])
    (line,) = advice([row for row in panels if row.how in (ALONE, "mean")])
    assert line.startswith("plain: the bias share of a alone is 0.23")
    assert "Of 3 panels that can train the mean of a and c has the least, 0.0" in line
    assert line.endswith("Type correction.panel=mean shadow=[c].")
    assert "not told from none" not in line
    (line,) = advice(panels)
    assert "Of 7 panels that can train the worst of a and c" in line
    same = [run_of(seed, correlation=1.0, paid=(PAID, PAID)) for seed in range(3)]
    (line,) = advice(worth(same))
    assert "which is not told from none" in line
    table = panels_table(panels)
    assert table["fall"].iloc[0] == "" and len(table) == 11


def test_a_run_without_truth_or_other_judges_says_nothing():
    run = run_of()
    assert worth([replace(run, shadows={})]) == []
    assert worth([replace(run, truth=np.full(run.truth.shape, np.nan))]) == []
    assert advice([]) == []


def test_the_report_has_a_section_where_several_judges_scored(evidence):
    assert sections.panels(evidence) == []
    panels = worth([run_of(seed) for seed in range(2)])
    page = "".join(sections.panels(replace(evidence, panels=panels)))
    assert "What would a panel of judges be worth?" in page and "a + b + c" in page


def test_the_command_prints_and_writes_what_judges_that_looked_on_say(
    small_study, tmp_path, answered
):
    figure = tmp_path / "panel.png"
    result, printed = answered(main, small_study, f"figure={figure}")
    assert "Votes: independent judges" in printed and figure.stat().st_size > 1000
    assert "sim-fair + sim-verbose" in printed
    assert {row["how"] for row in result["panels"]} == {ALONE, *HOWS} - {"median"}
