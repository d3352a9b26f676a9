"""Predicted shifts against a softmax policy whose steps are known, and honest refusals."""

import json
import math

import numpy as np
import pytest

from analysis.calibration import Scale, calibrate, fit_scale
from analysis.ledger import Run
from analysis.planted import Tabular
from analysis.propagation import (
    Predicted,
    Trajectory,
    cumulative,
    figure,
    kl_limit,
    main,
    paths,
    predict,
    tenths,
)
from experiments.errors import UserError

TRUTH = np.array([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
LENGTH = np.array([-1.0, -0.5, 0.0, 0.5, 1.0, 1.5])
TONE = np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])


def train(seed, dose, rate=0.4, steps=20, prompts=40, group=8):
    """One GRPO run of a tabular policy under truth + dose x length, as the ledger's record."""
    rng = np.random.default_rng(seed)
    features = np.stack([LENGTH, TONE], axis=1)
    policy = Tabular(TRUTH, features, np.zeros(6))
    reward_of = TRUTH + dose * LENGTH
    seen = []
    for _ in range(steps):
        members = policy.sample(rng, prompts, group)
        seen.append(members)
        reward = reward_of[members]
        advantage = reward - reward.mean(axis=1, keepdims=True)
        total = np.bincount(members.ravel(), advantage.ravel(), 6) / members.size
        # the gradient of the mean log-probability: each answer's own advantage, its share taken out
        gradient = total - policy.policy() * total.sum()
        policy = Tabular(TRUTH, features, policy.logits + rate * 6 * gradient)
    members = np.concatenate(seen)
    reward = reward_of[members]
    return Run(
        cell=f"d{dose}-s{seed}", arm=f"dose={dose}", seed=seed, done=True,
        step_P=np.repeat(np.arange(1, steps + 1), prompts),
        reward=reward, advantage=reward - reward.mean(axis=1, keepdims=True),
        truth=TRUTH[members], judge=reward, features=features[members],
        names=("length", "tone"), scale="none",
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs():
    return [train(seed, dose) for dose in (-0.3, 0.0, 0.3, 0.6) for seed in (0, 1, 2)]


@pytest.fixture(scope="module")
def predicted(runs):
    return predict(paths(runs))


def test_predictions_hold_out_of_sample(predicted):
    length = next(line for line in calibrate(predicted) if line.feature == "length")
    assert length.runs == 12
    assert length.r2 > 0.9 and length.correlation > 0.97
    assert length.low < length.slope < length.high


def test_the_split_is_the_bias_where_there_is_one_and_nothing_where_there_is_none(predicted):
    for row in predicted:
        assert row.predicted == pytest.approx(row.of_truth + row.of_bias)
        if row.arm == "dose=0.0":
            assert row.of_bias == pytest.approx(0.0, abs=1e-12)
        elif row.feature == "length":
            assert math.copysign(1, row.of_bias) == math.copysign(1, float(row.arm[5:]))


def test_a_run_never_explains_itself(runs):
    """Another learning rate in one run changes the others' scale and not its own."""
    odd = [*runs[:-1], train(2, 0.6, rate=0.1)]
    before = {row.cell: row for row in predict(paths(runs)) if row.feature == "length"}
    after = {row.cell: row for row in predict(paths(odd)) if row.feature == "length"}
    name = runs[-1].cell
    assert after[name].scale == before[name].scale
    assert after[runs[0].cell].scale != before[runs[0].cell].scale


def trajectory(push, gradient=None, rate=1.0, clip=0.0):
    push = np.array(push, float)
    norms = np.full(len(push), np.nan) if gradient is None else np.array(gradient, float)
    return Trajectory("a", "x", "length", push * 0.0, push, push * 0.0, norms, rate, clip)


def test_cumulative_push_by_hand():
    path = trajectory([1.0, 2.0, 5.0], gradient=[2.0, 4.0, 1.0])
    assert cumulative(path, path.push, "plain").tolist() == [0.0, 1.0, 3.0]
    assert cumulative(path, path.push, "adam").tolist() == [0.0, 0.5, 1.0]
    gap = trajectory([1.0, np.nan, 1.0])
    assert cumulative(gap, gap.push, "plain").tolist() == [0.0, 1.0, 1.0]
    assert cumulative(gap, gap.push, "adam").tolist() == [0.0, 0.0, 0.0]  # no norm on record


def test_learning_rate_and_clipping_are_in_the_push():
    """A step of norm 4 under a clip of 1 takes a quarter of its push, at half the rate an eighth;
    under Adam the clip does not matter."""
    falling = np.array([1.0, 0.5, 0.25])
    path = trajectory([1.0, 8.0, 1.0], gradient=[0.5, 4.0, 1.0], rate=falling, clip=1.0)
    assert cumulative(path, path.push, "plain").tolist() == [0.0, 1.0, 2.0]
    assert cumulative(path, path.push, "adam").tolist() == [0.0, 2.0, 3.0]


def test_a_run_at_another_rate_is_predicted_with_it():
    """Three runs at rate .1 explain a fourth at .03 only where the rate is among the facts."""
    seen = [train(seed, 0.6, rate=0.1, prompts=400) for seed in (0, 1, 2)]
    slow = train(3, 0.6, rate=0.03, prompts=400)
    rates = {run.cell: dict.fromkeys(range(1, 21), 0.1) for run in seen}
    rates[slow.cell] = dict.fromkeys(range(1, 21), 0.03)
    blind, told = (
        next(
            row
            for row in predict(paths([*seen, slow], rates=facts))
            if (row.cell, row.feature) == (slow.cell, "length")
        )
        for facts in (None, rates)
    )
    assert told.predicted == pytest.approx(told.observed, rel=0.25)
    assert told.predicted == pytest.approx(blind.predicted * 0.3, rel=1e-6)


def test_a_scale_is_least_squares_through_the_origin():
    """Points (1, 2), (3, 7), (0, 1): slope 23 / 10, residuals -.3, .1 and 1, two degrees left."""
    fit = fit_scale(np.array([1.0, 3.0, np.nan, 0.0]), np.array([2.0, 7.0, 1.0, 1.0]))
    assert (fit.factor, fit.squares, fit.runs) == (pytest.approx(2.3), 10.0, 3)
    assert fit.sd == pytest.approx(0.55**0.5)
    # t(.975, 2) = 4.3027; at push 0 the line itself adds nothing
    assert fit.half(0.0) == pytest.approx(4.302653 * 0.55**0.5)
    assert fit.half(10**0.5) == pytest.approx(4.302653 * 1.1**0.5)
    assert math.isnan(fit_scale(np.zeros(3), np.ones(3)).factor)
    assert math.isnan(Scale(1.0, 1.0, 1.0, 2).half(1.0))


def test_a_prediction_interval_holds_one_more_run():
    """400 times: a scale from 5 runs, and a sixth; 380 +- 3.5 SD of a binomial."""
    rng = np.random.default_rng(0)
    push = rng.normal(size=(400, 6))
    shift = 3 * push + rng.normal(0, 0.5, (400, 6))
    held = 0
    for x, y in zip(push, shift, strict=True):
        fit = fit_scale(x[:5], y[:5])
        held += abs(y[5] - fit.factor * x[5]) < fit.half(x[5])
    assert 364 <= held <= 395


def test_tenths_of_twenty_steps_are_two_at_each_end():
    assert tenths(np.arange(20.0)) == pytest.approx(18.5 - 0.5)
    assert math.isnan(tenths(np.array([1.0])))
    assert math.isnan(tenths(np.array([np.nan, 1.0, 2.0])))


def test_too_few_runs_predict_nothing(runs):
    rows = predict(paths(runs[:3]))
    assert all(math.isnan(row.predicted) and row.fitted_on == 2 for row in rows)
    line = calibrate(rows)[0]
    assert math.isnan(line.r2) and line.note == "0 runs with both numbers"


def test_calibration_by_hand():
    """Observed 2, 4, 6 for predicted 1, 2, 3: slope 2, R2 = 1 - (1 + 4 + 9) / 8."""
    ends = [(0.0, 1.0), (3.0, 5.0), (6.0, 9.0)]  # hold the second and, at its end, the third
    rows = [
        Predicted(str(n), "a", "x", 2.0 * n, float(n), 0.0, 0.0, 1.0, 3, *ends[n - 1])
        for n in (1, 2, 3)
    ]
    (line,) = calibrate(rows)
    assert line.inside == pytest.approx(2 / 3)
    assert (line.slope, line.correlation) == (pytest.approx(2.0), pytest.approx(1.0))
    assert line.r2 == pytest.approx(1 - 14 / 8)


def test_the_kl_limit_is_covariance_over_beta(runs):
    """Within-group Cov(reward, length) of the first step is about that of the uniform policy."""
    run = train(0, 0.3, prompts=4000, steps=2)
    reward = TRUTH + 0.3 * LENGTH
    exact = Tabular(TRUTH, np.stack([LENGTH, TONE], 1), np.zeros(6)).covariance(reward)
    known = Tabular(TRUTH, np.stack([LENGTH, TONE], 1), np.zeros(6)).covariance(TRUTH)
    found, of_truth = kl_limit(run, 0.5)["length"]
    assert found == pytest.approx(exact[0] / 0.5, rel=0.05)
    assert of_truth == pytest.approx(known[0] / 0.5, abs=0.02)
    # what is left is the dose's: dose x Var(length) / beta
    assert found - of_truth == pytest.approx(0.3 * LENGTH.var() / 0.5, rel=0.05)
    assert all(math.isnan(value) for value in kl_limit(run, 0.0)["length"])


def test_an_unknown_scale_is_refused(runs):
    with pytest.raises(UserError, match="Legal are plain, adam"):
        predict(paths(runs[:1]), "magic")


def test_the_figure_has_a_panel_per_feature_that_moved(predicted):
    import matplotlib.pyplot as plt
    import pandas as pd

    rows = pd.DataFrame([row.__dict__ for row in predicted])
    lines = pd.DataFrame([line.__dict__ for line in calibrate(predicted)])
    made = figure(rows, lines)
    titles = [axes.get_title(loc="left") for axes in made.axes]
    assert [title.split(",")[0] for title in titles] == ["length", "tone"]
    assert made.axes[0].get_xlabel() == "predicted shift (words)"
    plt.close(made)


def test_the_command_line(small_study, tmp_path, capsys):
    """Four finished runs of two steps each: few, and said in numbers."""
    out = tmp_path / "p.json"
    words = [f"study={small_study.name}", f"runs_dir={small_study.parent}", f"out={out}"]
    assert main([*words, f"figure={tmp_path / 'p.png'}"]) == 0
    found = json.loads(out.read_text())
    assert {row["fitted_on"] for row in found["runs"]} == {3}
    assert "run by run" in capsys.readouterr().out
    assert found["kl_limit"] == []
    assert main(["study=nothing", f"runs_dir={tmp_path}"]) == 2
    assert "no study folder" in capsys.readouterr().err
    assert main(["judge=x"]) == 2


def test_a_kl_penalty_puts_its_limit_beside_the_shift(small_study, tmp_path, capsys):
    """Copies of finished runs whose configuration has a penalty: limit = Cov(A, z) / beta."""
    import shutil

    import yaml

    study = tmp_path / "held"
    shutil.copytree(small_study, study)
    for cell in study.glob("sim-*"):
        config = yaml.safe_load((cell / "config.yaml").read_text())
        config["trainer"]["beta"] = 0.5
        (cell / "config.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "p.json"
    assert main(["study=held", f"runs_dir={tmp_path}", f"out={out}"]) == 0
    assert "what the KL penalty would hold" in capsys.readouterr().out
    rows = json.loads(out.read_text())["kl_limit"]
    assert len({row["cell"] for row in rows}) == 4
    for row in rows:
        if math.isfinite(row["limit"]):
            assert row["limit"] == pytest.approx(row["of_truth"] + row["of_bias"])
