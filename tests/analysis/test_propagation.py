"""Predicted shifts against a softmax policy whose steps are known, honest refusals, and the command
line on small studies, whole and damaged."""

import math
import shutil
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from analysis.planted.truth import Tabular
from analysis.propagation.__main__ import main
from analysis.propagation.calibration import AGAINST, calibrate
from analysis.propagation.display import figure
from analysis.propagation.estimate import (
    Trajectory,
    _lacking,
    against,
    cumulative,
    kl_limit,
    paths,
    placebos,
    predict,
    pushed,
    unpredicted,
)
from tests.analysis.conftest import config_of, made_run

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
    return made_run(
        reward, TRUTH[members], cell=f"d{dose}-s{seed}", arm=f"dose={dose}", seed=seed,
        step_P=np.repeat(np.arange(1, steps + 1), prompts), features=features[members],
        names=("length", "tone"), advantage=reward - reward.mean(axis=1, keepdims=True),
        scale="none",
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs():
    return [train(seed, dose) for dose in (-0.3, 0.0, 0.3, 0.6) for seed in (0, 1, 2)]


@pytest.fixture(scope="module")
def predicted(runs):
    return predict(paths(runs))


def test_predictions_hold_out_of_sample_and_split_where_there_is_a_bias(predicted):
    length = next(line for line in calibrate(predicted) if line.feature == "length").scores
    assert length.count == 12
    assert length.r2 > 0.9 and length.correlation > 0.97
    assert length.slope.low < 1 < length.slope.high < 1.2
    for row in predicted:
        assert row.predicted.value == pytest.approx(row.of_truth + row.of_bias)
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


def test_the_push_by_hand_holds_learning_rate_and_clipping():
    path = trajectory([1.0, 2.0, 5.0], gradient=[2.0, 4.0, 1.0])
    assert cumulative(path, path.push, "plain").tolist() == [0.0, 1.0, 3.0]
    assert cumulative(path, path.push, "adam").tolist() == [0.0, 0.5, 1.0]
    still = trajectory([1.0, 2.0, 1.0], gradient=[2.0, 0.0, 1.0])
    assert cumulative(still, still.push, "adam").tolist() == [0.0, 0.5, 0.5]
    # A step of norm 4 under a clip of 1 takes a quarter of its push, at half the rate an eighth;
    # under Adam the clip does not matter.
    falling = np.array([1.0, 0.5, 0.25])
    path = trajectory([1.0, 8.0, 1.0], gradient=[0.5, 4.0, 1.0], rate=falling, clip=1.0)
    assert cumulative(path, path.push, "plain").tolist() == [0.0, 1.0, 2.0]
    assert cumulative(path, path.push, "adam").tolist() == [0.0, 2.0, 3.0]


def test_what_is_unknown_is_not_a_push_of_nothing():
    """NaN from the step on, under Adam without a norm and under a clip without one; a step that
    pushes nothing needs no norm, and the last step's comes after the last level."""
    nan = math.nan
    gap = trajectory([1.0, nan, 1.0, 1.0])
    np.testing.assert_array_equal(cumulative(gap, gap.push, "plain"), [0, 1, nan, nan])
    np.testing.assert_array_equal(cumulative(gap, gap.push, "adam"), [0, nan, nan, nan])
    lost = trajectory([1.0, 2.0, 4.0], gradient=[nan, 2.0, 2.0], clip=1.0)
    np.testing.assert_array_equal(cumulative(lost, lost.push, "plain"), [0, nan, nan])
    dead = trajectory([1.0, 0.0, 4.0], gradient=[2.0, nan, nan])
    np.testing.assert_array_equal(cumulative(dead, dead.push, "adam"), [0, 0.5, 0.5])
    assert pushed(dead, dead.push, "adam") == 0.5 and math.isnan(pushed(gap, gap.push, "plain"))


@pytest.mark.parametrize("missing", [range(1, 21), [7]])
def test_a_run_without_its_log_is_neither_predicted_nor_fitted_on(runs, missing):
    runs = [replace(run, logged={"policy/grad_norm": np.full(20, 2.0)}) for run in runs]
    lacking = runs[4].cell

    def of_tone(norms):
        own = [replace(runs[4], logged={"policy/grad_norm": norms})]
        rows = predict(paths([*runs[:4], *own, *runs[5:]]), "adam")
        return {row.cell: row for row in rows if row.feature == "tone"}

    whole = of_tone(np.full(20, 2.0))
    without = predict(paths([run for run in runs if run.cell != lacking]), "adam")
    rows = of_tone(np.where(np.isin(np.arange(1, 21), missing), np.nan, 2.0))
    own = rows[lacking]
    assert np.isnan([own.predicted.value, own.predicted.low, own.unseen.value]).all()
    assert own.observed == whole[lacking].observed
    assert own.note == f"no gradient norm at {len(missing)} of 20 steps"
    for row in without:
        if row.feature == "tone":
            assert rows[row.cell].predicted == row.predicted and rows[row.cell].fitted_on == 10
            assert rows[row.cell].note == ""
    assert of_tone(np.array([2.0] * 19 + [np.nan])) == whole  # nothing comes after the last


def test_a_run_without_learning_rates_is_not_taken_for_one_at_rate_one(runs):
    told = [replace(run, logged={"policy/learning_rate": np.full(20, 0.5)}) for run in runs[1:]]
    rows = predict(paths([runs[0], *told]))
    first, *others = (row for row in rows if row.feature == "length")
    assert math.isnan(first.predicted.value) and first.note == "no learning rate at 20 of 20 steps"
    assert all(math.isfinite(row.predicted.value) for row in others)


def without_step(run, step):
    """A run of 20 steps that has lost the records of one."""
    kept = run.step_P != step
    arrays = ("step_P", "reward", "advantage", "truth", "judge", "features")
    arrays_kept = {name: getattr(run, name)[kept] for name in arrays}
    return replace(run, config={"trainer.steps": 20}, **arrays_kept)


def test_the_push_of_a_lost_step_is_unknown_and_that_of_an_unscored_one_nothing(runs):
    run = replace(runs[-1], config={"trainer.steps": 20})
    path = paths([without_step(run, 5)])[0]
    assert len(path.level) == 20 and np.flatnonzero(np.isnan(path.level)).tolist() == [4]
    assert np.flatnonzero(np.isnan(path.push)).tolist() == [4]
    silent = replace(run, reward=np.where((run.step_P != 5)[:, None], run.reward, np.nan))
    path = paths([silent])[0]
    assert path.push[4] == 0 and path.of_truth[4] == 0 and np.isfinite(path.level).all()


def test_a_run_that_lost_a_step_is_not_predicted(runs):
    lost = without_step(runs[-1], 5)
    rows = predict([*paths(runs[:-1]), *paths([lost])])
    (row,) = (row for row in rows if row.note and row.feature == "length")
    assert row.cell == lost.cell and math.isnan(row.predicted.value)
    assert row.note == "no covariance of reward and behaviour at 1 of 20 steps"


@pytest.mark.parametrize(
    ("scale", "clip", "why"),
    [
        ("plain", 0.0, "no learning rate at 1 of 3 steps"),
        ("plain", 1.0, "no gradient norm at 1 of 3 steps; no learning rate at 1 of 3 steps"),
        ("adam", 0.0, "no gradient norm at 1 of 3 steps; no learning rate at 1 of 3 steps"),
    ],
)
def test_what_a_push_lacks_is_what_its_scale_asks_for(scale, clip, why):
    """A step that pushes nothing needs neither."""
    norms, rate = [2.0, math.nan, math.nan], np.array([1.0, math.nan, math.nan])
    path = trajectory([1.0, 2.0, 0.0], gradient=norms, rate=rate, clip=clip)
    assert _lacking(path, scale) == why


def test_the_parts_of_a_five_level_judge_are_not_divided_by_nothing():
    """Step by hand: a group whose scores are equal while truth is not, and one (0, 1) without
    bias. Truth's share of the push is all of it: half of .5 / (sqrt .5 + eps)."""
    judge = np.array([[0.5, 0.5], [0.0, 1.0]])
    truth = np.array([[0.4, 0.6], [0.0, 1.0]])
    features = np.array([[3.0, 9.0], [0.0, 1.0]])[..., None]
    (path,) = paths([made_run(judge, truth, features=features)])
    assert path.push[0] == pytest.approx(0.25 / (0.5**0.5 + 1e-4))
    assert path.of_truth[0] == pytest.approx(path.push[0])
    assert path.sd == pytest.approx(np.std([3.0, 9.0, 0.0, 1.0]))


def test_an_arm_out_and_a_repetition_by_hand():
    """Arm a moves by 2 per push, b by 4. From the other arm, a run of a is predicted at 4 and not
    2, and b's at half; the means of the arm's other runs are 2, and 8, 6, 6 for 4, 8, 8."""
    moves = {"a": [(1, 2), (1, 2), (1, 2)], "b": [(1, 4), (2, 8), (2, 8)]}
    found = [
        Trajectory(
            *(f"{arm}{n}", arm, "length", np.array([0.0, moved])),
            *(np.array([float(push), 0.0]), np.zeros(2), np.full(2, np.nan)),
            sd=1.0,
        )
        for arm, pairs in moves.items()
        for n, (push, moved) in enumerate(pairs)
    ]
    rows = predict(found)
    assert [row.unseen.value for row in rows] == pytest.approx([4, 4, 4, 2, 4, 4])
    assert [row.unseen.low for row in rows] == pytest.approx([4, 4, 4, 2, 4, 4])  # no scatter
    assert [row.repeated for row in rows] == pytest.approx([2, 2, 2, 8, 6, 6])
    (line,) = calibrate(rows)
    total = 3 * 4 + 16 + 64 + 64 - 26**2 / 6
    assert (line.scores.arms, line.unseen.inside) == (2, 0.0)
    assert line.unseen.r2 == pytest.approx(1 - (3 * 4 + 4 + 16 + 16) / total)
    assert line.r2_repeated == pytest.approx(1 - (16 + 4 + 4) / total)
    alone = predict([path for path in found if path.arm == "b"])
    assert all(math.isnan(row.unseen.value) for row in alone)  # there is no other arm


def test_a_run_at_another_rate_is_predicted_with_it():
    """Three runs at rate .1 explain a fourth at .03 only where the rate is among the facts."""
    seen = [train(seed, 0.6, rate=0.1, prompts=400) for seed in (0, 1, 2)]
    slow = train(3, 0.6, rate=0.03, prompts=400)
    rates = [np.full(20, 0.1)] * 3 + [np.full(20, 0.03)]
    facts = [
        replace(run, logged={"policy/learning_rate": rate})
        for run, rate in zip([*seen, slow], rates, strict=True)
    ]
    blind, told = (
        {(row.cell, row.feature): row for row in predict(paths(given))}[slow.cell, "length"]
        for given in ([*seen, slow], facts)
    )
    assert told.predicted.value == pytest.approx(told.observed.value, rel=0.25)
    assert told.predicted.value == pytest.approx(blind.predicted.value * 0.3, rel=1e-6)


def world(factors, runs=9, noise=0.0):
    """Runs of two steps in three arms: behaviour k moves by ``factors[k]`` per push, SD 10^-k."""
    rng = np.random.default_rng(5)
    nan = np.full(2, np.nan)
    made = []
    for number in range(runs):
        for k, factor in enumerate(factors):
            sd = 10.0**-k
            push = rng.normal(0, sd)
            moved = factor * push + rng.normal(0, noise * sd)
            shams = {"permuted": rng.normal(0, sd, (5, 2)), "variance": np.full((1, 2), sd**2)}
            made.append(
                Trajectory(
                    *(f"c{number}", f"a{number % 3}", f"z{k}", np.array([0.0, moved])),
                    *(np.array([push, 0.0]), np.zeros(2), nan),
                    **{"sd": sd, "sham": shams},
                )
            )
    return made


def test_planted_first_order_is_recovered_with_one_factor():
    """Five behaviours of SDs over four orders of magnitude, one factor of 20, noise of 2 SDs."""
    trajectories = world([20.0] * 5, noise=2.0)
    rows = predict(trajectories)
    assert {row.fitted_on for row in rows} == {8}
    for cell in {row.cell for row in rows}:
        (scale,) = {row.scale for row in rows if row.cell == cell}
        assert scale == pytest.approx(20.0, rel=0.1)
    lines = calibrate(rows, placebos(trajectories))
    assert len(lines) == 5
    for line in lines:
        assert line.scores.r2 > 0.95 and line.unseen.r2 > 0.95
        assert 0.8 < line.scores.slope.value < 1.2
        assert set(line.placebos) == {"permuted", "variance", "constant"}
        assert max(line.placebos.values()) < line.scores.r2 - 0.05
        assert line.placebos["permuted"] < 0.1


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_world_that_moves_against_its_rewards_is_not_predicted(noise):
    """One factor for each behaviour would fit this world with R2 1.00."""
    rows = predict(world([-2.9, -20.0, -16.0], noise=noise))
    assert {row.note for row in rows} == {AGAINST}
    assert all(row.scale < 0 for row in rows)
    for row in rows:
        parts = (row.predicted.value, row.unseen.value, row.of_truth, row.of_bias)
        assert np.isnan(parts).all()
    for line in calibrate(rows):
        assert math.isnan(line.scores.r2) and math.isnan(line.unseen.r2)
    assert against(rows) == f"9 of 9 runs are not predicted: {AGAINST}." and not unpredicted(rows)


def test_a_behaviour_that_moves_against_its_rewards_has_no_factor_of_its_own():
    """Four behaviours move by 20 per push and one by -2.9: its R2 says so."""
    rows = predict(world([20.0, 20.0, -2.9, 20.0, 20.0], noise=0.5))
    assert all(row.scale > 0 for row in rows) and not against(rows)
    r2 = {line.feature: line.scores.r2 for line in calibrate(rows)}
    assert r2.pop("z2") < 0 and min(r2.values()) > 0.7


def test_placebos_by_hand(runs):
    """The variance is that within groups; permuted advantages keep groups and lose behaviour."""
    run = runs[-1]
    (path, _) = paths([run])
    first = run.at(1).features[..., 0]
    assert path.sham["variance"][0, 0] == pytest.approx(first.var(axis=1, ddof=1).mean())
    assert path.sham["permuted"].shape == (5, 20)
    assert abs(path.sham["permuted"].mean()) < 0.1 * path.push.mean()
    trajectories = world([20.0, 20.0])
    shifts = placebos(trajectories)
    shapes = {name: each.shape for name, each in shifts.items()}
    assert shapes == {"permuted": (5, 18), "variance": (1, 18), "constant": (1, 18)}
    rows = predict(trajectories)
    # of the first run: mean |push| over the others in SDs, the sign of its own push, its SD
    sds = np.array([[row.observed.value / 20 / row.sd for row in rows if row.feature == z] for z in
                    ("z0", "z1")])  # fmt: skip
    least = 20 * abs(sds[:, 1:]).mean()
    assert shifts["constant"][0, 0] == pytest.approx(np.sign(sds[0, 0]) * least)
    assert shifts["constant"][0, 9] == pytest.approx(np.sign(sds[1, 0]) * least * 0.1)
    # where the variance is the same everywhere, it is a constant
    assert shifts["variance"] == pytest.approx(shifts["constant"])
    turned = [replace(path, level=-path.level) for path in trajectories]
    assert not placebos(turned)["constant"].any()  # no step size above 0: no shift
    assert predict([]) == [] and placebos([]) == {}


def test_too_few_runs_predict_nothing(runs):
    rows = predict(paths(runs[:3]))
    assert all(math.isnan(row.predicted.value) and row.fitted_on == 2 for row in rows)
    assert rows[0].note == "2 other runs with a known push and shift; a scale needs 3"
    line = calibrate(rows)[0]
    assert math.isnan(line.scores.r2) and line.note == "0 runs with both numbers"


def test_the_kl_limit_is_covariance_over_beta(runs):
    """Within-group Cov(reward, length) of the first step is about that of the uniform policy."""
    run = train(0, 0.3, prompts=4000, steps=2)
    start = Tabular(TRUTH, np.stack([LENGTH, TONE], 1), np.zeros(6))
    exact, known = start.covariance(TRUTH + 0.3 * LENGTH), start.covariance(TRUTH)
    found, of_truth = kl_limit(run, 0.5)["length"]
    assert found == pytest.approx(exact[0] / 0.5, rel=0.05)
    assert of_truth == pytest.approx(known[0] / 0.5, abs=0.02)
    # what is left is the dose's: dose x Var(length) / beta
    assert found - of_truth == pytest.approx(0.3 * LENGTH.var() / 0.5, rel=0.05)
    assert all(math.isnan(value) for value in kl_limit(run, 0.0)["length"])


def thousandfold(row):
    shift, own = row.observed, row.predicted
    grown = replace(own, value=1000 * own.value, low=1000 * own.low, high=1000 * own.high)
    observed = replace(shift, value=1000 * shift.value)
    return replace(row, observed=observed, predicted=grown, sd=1000 * row.sd)


def test_the_figure_has_a_panel_per_feature_that_moved(predicted):
    lines = calibrate(predicted)
    made = figure(predicted, lines)
    titles = [axes.get_title(loc="left") for axes in made.axes]
    assert [title.split(",")[0] for title in titles] == ["length", "tone"]
    assert made.axes[0].get_xlabel() == "reconstructed shift, 95 % interval (words)"
    bars = made.axes[0].containers[0].lines[2][0].get_segments()  # of the first arm
    arm = min(row.arm for row in predicted)
    first = [row.predicted for row in predicted if (row.feature, row.arm) == ("length", arm)]
    ends = np.array([(each.low, each.high) for each in first])
    assert np.array([bar[:, 0] for bar in bars]) == pytest.approx(ends)
    plt.close(made)
    # one feature in thousandths of its unit is no larger a shift
    rows = [thousandfold(row) if row.feature == "tone" else row for row in predicted]
    made = figure(rows, lines)
    assert [axes.get_title(loc="left").split(",")[0] for axes in made.axes] == ["length", "tone"]
    plt.close(made)


def test_the_command_line(small_study, tmp_path, answered):
    """Four finished runs of two steps each: few, and said in numbers."""
    found, printed = answered(main, small_study, f"figure={tmp_path / 'p.png'}")
    assert {row["fitted_on"] for row in found["runs"]} == {3}
    assert "run by run" in printed and found["kl_limit"] == []
    assert all(row["predicted"] is None for row in found["runs"] if row["feature"] == "keyword")
    assert "r2_repeated: no theory" in printed


def test_a_damaged_config_is_said_and_its_run_left_out(copied, answered):
    study = copied("damaged")
    cells = sorted(study.glob("sim-*"))
    other = shutil.copytree(cells[0], study / f"{cells[0].name}b")
    (other / "config.yaml").write_text("judge: [unclosed")
    found, said = answered(main, study)
    assert other.name in said and "config" in said.split("problem: ")[1]
    assert {row["cell"] for row in found["runs"]} == {cell.name for cell in cells}


def test_a_study_without_logged_norms_says_so(copied, tmp_path, printed):
    study = copied("unlogged")
    for cell in study.glob("sim-*"):
        (cell / "metrics.jsonl").unlink()
    said = printed(main, study, f"figure={tmp_path / 'p.png'}")
    assert said.count("is not predicted: no gradient norm at ") == 4
    assert "no figure was drawn" in said and not (tmp_path / "p.png").exists()


def test_a_kl_penalty_puts_its_limit_beside_the_shift(copied, answered):
    """Copies of finished runs whose configuration has a penalty: limit = Cov(A, z) / beta."""
    study = copied("held")
    for cell in study.glob("sim-*"):
        with config_of(cell) as config:
            config["trainer"]["beta"] = 0.5
    found, said = answered(main, study)
    assert "the limit of the KL penalty" in said
    rows = found["kl_limit"]
    assert len({row["cell"] for row in rows}) == 4
    for row in rows:
        if math.isfinite(row["limit"]):
            assert row["limit"] == pytest.approx(row["of_truth"] + row["of_bias"])
