"""A replay follows the exact policy where there is one, and its fit recovers what was planted."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.forecast.fit import WINDOWS, Fitting, course, drifts, fit, replayed
from analysis.forecast.replay import PARTS, Follows, Pay, exposed, exposure, replay
from analysis.forecast.start import Start, advantage_push, bias_of, start_of
from analysis.planted.truth import Tabular
from analysis.records.runs import shift
from study.config.schema import Trainer
from study.rewards.advantages import advantages

NAN = float("nan")
TRAINER = Trainer(steps=40, learning_rate=6e-4, group_size=4)
EXPOSURE = 40 * 6e-4


def follows(step=(1.0, 1.0, 1.0), growth=1.0, drift=(0.0, 0.0, 0.0)) -> Follows:
    return Follows(np.array(step), growth, np.array(drift), EXPOSURE)


def drawn(prompts: int = 40, rollouts: int = 32, seed: int = 0) -> Start:
    """Length and tone, normal and independent, and a truth that is right half of the time."""
    rng = np.random.default_rng(seed)
    features = rng.normal([10.0, 3.0], [4.0, 1.0], (prompts, rollouts, 2))
    truth = (rng.random((prompts, rollouts)) < 0.5).astype(float)
    return start_of(features, truth, ("length", "tone"))


def test_the_start_is_within_prompts():
    """Two prompts whose levels differ by 10: of the total spread only what is inside counts."""
    length = np.array([[0.0, 2.0], [10.0, 12.0]])
    truth = np.array([[0.0, 1.0], [1.0, 0.0]])
    made = start_of(length[..., None], truth, ("length",))
    assert made.names == ("length", "truth")
    assert made.mean == pytest.approx([6.0, 0.5]) and made.sd == pytest.approx([26**0.5, 0.5])
    # inside: length -1, 1, -1, 1 and truth -.5, .5, .5, -.5, over 4 - 2 degrees of freedom
    assert made.correlation == pytest.approx(np.array([[2 / 26, 0.0], [0.0, 2.0]]))
    assert made.floor == pytest.approx([-6 / 26**0.5, -1.0])
    assert made.z[1, :, 0] == pytest.approx([4 / 26**0.5, 6 / 26**0.5])
    lost = start_of(
        np.array([[[1.0, 5.0], [3.0, 5.0], [99.0, 5.0]]]),
        np.array([[0.0, 1.0, NAN]]),
        ("length", "tone"),
    )
    assert lost.mean == pytest.approx([2.0, 5.0, 0.5])
    assert lost.varies.tolist() == [True, False, True]


def test_the_bias_is_the_dose_over_the_spread_of_the_score():
    rng = np.random.default_rng(0)
    features = rng.normal(0, [3.0, 1.0], (400, 8, 2))
    truth = (rng.random((400, 8)) < 0.5).astype(float)
    score = truth + 0.1 * features[..., 0] + rng.normal(0, 0.2, truth.shape)
    score += rng.normal(0, 5, (400, 1))  # what a prompt shares reaches no advantage
    made = start_of(features, truth, ("length", "tone"))
    spread = (0.25 + 0.3**2 + 0.2**2) ** 0.5
    bias = bias_of(made, score, truth)
    assert bias == pytest.approx([0.3 / spread, 0.0], abs=0.02)
    lost = np.where(rng.random(score.shape) < 0.2, NAN, score)
    assert bias_of(made, lost, truth) == pytest.approx(bias, abs=0.03)
    assert np.isnan(bias_of(made, np.ones(score.shape), truth)).all()


def mean_square(chance: float, scale: str, penalty: float) -> float:
    """E A^2 in groups of four of which each has the behaviour by that chance, and is paid .3; who
    has it loses the penalty."""
    groups = np.array(list(itertools.product([0.0, 1.0], repeat=4)))
    likely = np.prod(np.where(groups == 1, chance, 1 - chance), axis=1)
    lost = penalty * (groups - groups.mean(axis=1, keepdims=True))
    return float(likely @ ((advantages(0.3 * groups, scale) - lost) ** 2).mean(axis=1))


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_a_policy_of_two_answers_follows_the_exact_push(scale, beta):
    """One behaviour that an answer has or not, paid .3, is the policy's one logit: it moves by the
    exact expectation over all groups less the KL penalty's, over the root mean square of advantages
    so far, in 400 small steps."""
    rng = np.random.default_rng(1)
    has = (rng.random((150, 200)) < 0.2).astype(float)
    made = start_of(has[..., None], np.zeros(has.shape), ("emoji",))
    sd = float(made.sd[0])
    policy = Tabular(np.zeros(2), np.array([[0.0], [1.0]]), np.log([1 - has.mean(), has.mean()]))
    reward, speed, squares = np.array([0.0, 0.3]), 2.5, []
    start = policy.logits[1]
    for _ in range(400):
        chance = policy.policy()[1]
        penalty = beta * (policy.logits[1] - start)
        lost = penalty * chance * (1 - chance)
        pushed = (policy.expected_cov(reward, 4, scale)[0] - lost) / sd
        squares.append(mean_square(chance, scale, penalty))
        pace = speed / sd / np.mean(squares) ** 0.5
        policy = replace(policy, logits=policy.logits + np.array([0.0, pace * pushed / 400]))
    pay = Pay(0.3 * has, replace(TRAINER, scale_rewards=scale, beta=beta))
    of = Follows(np.array([speed, 1.0]), 1.0, np.zeros(2), EXPOSURE)
    shown = replay(made, pay, of)
    expected = (policy.policy()[1] - has.mean()) / sd
    assert expected > (0.5 if beta else 1)
    assert shown.shift[-1, 0] == pytest.approx(expected, abs=0.06)
    assert shown.support[0] == pytest.approx(200) and shown.support[-1] < 190


def test_equal_pay_teaches_nothing_and_a_missing_reward_is_no_reward():
    made = drawn()
    rng = np.random.default_rng(2)
    flat = Pay(np.ones((40, 32)), TRAINER)
    assert not flat.differs and abs(replay(made, flat, follows()).shift).max() == 0
    paid = 0.5 * made.z[..., 0]
    whole = replay(made, Pay(paid, TRAINER), follows()).shift[-1]
    lost = np.where(rng.random(paid.shape) < 0.3, NAN, paid)
    part = replay(made, Pay(lost, TRAINER), follows()).shift[-1]
    assert whole[0] > 0.5 and part == pytest.approx(whole, abs=0.1)
    as_zero = replay(made, Pay(np.nan_to_num(lost, nan=-9.0), TRAINER), follows()).shift[-1]
    assert as_zero[0] < 0.8 * whole[0]


def test_growth_exposure_and_steps():
    """Twice the exposure at growth 2 is four times the way; a behaviour of step 0 stays."""
    made = drawn()
    pay = Pay(made.z[..., 0] + made.z[..., 1], TRAINER)
    slow = follows(step=(0.05, 1e-9, 1e-9), growth=2.0)
    once = replay(made, pay, slow).shift
    twice = replay(made, replace(pay, trainer=replace(TRAINER, learning_rate=12e-4)), slow).shift
    assert twice[-1, 0] == pytest.approx(4 * once[-1, 0], rel=0.08)
    assert abs(once[-1, 1]) < 0.01
    assert once[PARTS // 2, 0] == pytest.approx(once[-1, 0] / 4, rel=0.1)


RATES = {
    "constant": lambda share: np.ones(len(share)),
    "linear": lambda share: 1 - share,
    "cosine": lambda share: (1 + np.cos(np.pi * share)) / 2,
}
"""Learning rate at a share of the steps over the first, as PyTorch's schedules have it."""


@pytest.mark.parametrize("scheduler", RATES)
def test_the_exposure_is_the_sum_of_the_learning_rates(scheduler):
    trainer = Trainer(steps=100, learning_rate=1.0, lr_scheduler=scheduler)
    rates = RATES[scheduler](np.arange(100) / 100)
    assert exposure(trainer) == pytest.approx(rates.sum(), abs=0.6)
    behind = np.concatenate([[0.0], np.cumsum(rates)[:-1]]) / rates.sum()
    assert exposed(trainer) == pytest.approx(behind, abs=0.02)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=60))
def test_the_end_of_a_course_is_the_shift_of_a_run(values):
    made = course(np.array(values))
    assert made.shape == (WINDOWS + 1,)
    assert made[-1] == pytest.approx(shift(np.array(values)), abs=1e-12)


def test_a_course_by_hand():
    """Steps of 0 to 9: the first tenth is 0, fifths are at .5, 2.5, ..., the last tenth at 9."""
    assert course(np.arange(10.0)).tolist() == [0.5, 2.5, 4.5, 6.5, 8.5, 9.0]
    assert np.isnan(course(np.ones(1))).all()
    assert course(np.array([0.0, NAN, 2.0]))[-1] == 2.0
    (steady,) = drifts(np.array([2.0]), [Pay(np.zeros((1, 2)), TRAINER)])
    assert steady[-1] == 2.0 and np.diff(steady[:-1]) == pytest.approx(np.full(4, 2 * 8 / 36))


PLANTED = follows(step=(1.4, 0.7, 0.4), growth=1.8, drift=(-0.2, 0.1, 0.05))


def planted(seed: int, arms: int = 10, noise: float = 0.03) -> tuple[Start, list[Pay], np.ndarray]:
    """Judges that pay for one or both behaviours, and the mean courses of runs that they taught."""
    rng = np.random.default_rng(seed)
    made = drawn(seed=seed)
    doses = rng.uniform(-0.3, 0.6, (arms, 2)) * (rng.random((arms, 2)) < 0.7)
    truth = made.z[..., -1] * made.sd[-1]
    pays = [Pay(truth + made.z[..., :-1] @ dose, TRAINER) for dose in doses]
    shapes = drifts(np.ones(arms), pays)[..., None]
    courses = [replayed(made, pay, PLANTED)[0] for pay in pays] + PLANTED.drift * shapes
    return made, pays, courses + rng.normal(0, noise, courses.shape)


@pytest.fixture(scope="module")
def fitting() -> tuple[Start, list[Pay], np.ndarray, Fitting]:
    made, pays, courses = planted(3)
    return made, pays, courses, fit(made, pays, courses, np.full(len(pays), 2))


def test_a_planted_policy_is_recovered(fitting):
    *_, found = fitting
    assert found.follows.step[:2] == pytest.approx(PLANTED.step[:2], rel=0.3)
    assert found.follows.growth == pytest.approx(1.8, abs=0.25)
    assert found.follows.drift == pytest.approx(PLANTED.drift, abs=0.08)
    assert found.follows.exposure == pytest.approx(EXPOSURE)


def test_a_judge_that_was_left_out_is_forecast_as_by_a_fit_to_the_others(fitting):
    made, pays, courses, found = fitting
    arm = int(np.argmax(abs(courses[:, -1, 0])))
    others = [n for n in range(len(pays)) if n != arm]
    again = fit(made, [pays[n] for n in others], courses[others], np.full(len(others), 2)).follows
    without = found.without([arm])
    ends = [
        replayed(made, pays[arm], of)[0][-1] + of.drift for of in (again, without, found.follows)
    ]
    assert ends[1] == pytest.approx(ends[0], abs=0.06)
    assert not np.array_equal(ends[1], ends[2])
    with pytest.raises(ValueError, match="known shifts"):
        fit(made, pays, np.full(courses.shape, NAN), np.full(len(pays), 2))


@settings(max_examples=20)
@given(st.integers(0, 2**16), st.floats(0.05, 40), st.sampled_from(["group", "batch", "none"]))
def test_no_replay_leaves_what_the_rollouts_show(seed, speed, scale):
    rng = np.random.default_rng(seed)
    made = drawn(prompts=5, rollouts=8, seed=seed)
    pay = Pay(rng.normal(size=(5, 8)), replace(TRAINER, scale_rewards=scale))
    shown = replay(made, pay, follows(step=(speed, 1.0, speed)))
    least, most = made.z.min(axis=1).mean(axis=0), made.z.max(axis=1).mean(axis=0)
    middle = made.z.mean(axis=(0, 1))
    assert (shown.shift + middle >= least - 1e-9).all()
    assert (shown.shift + middle <= most + 1e-9).all()
    assert (shown.support >= 1 - 1e-9).all() and (shown.support <= 8 + 1e-9).all()


def test_the_first_move_is_the_push():
    """Where the weights stay equal, theta is step x E Cov(A, z) over the rms of A."""
    made = drawn(prompts=200, rollouts=64)
    paid = 0.3 * made.z[..., 0] + made.z[..., -1]
    tiny = follows(step=(0.01, 0.01, 0.01))
    moved = replay(made, Pay(paid, TRAINER), tiny).shift[-1]
    pushed, square = advantage_push(made.z.reshape(-1, 4, 3), paid.reshape(-1, 4), "group")
    assert square == pytest.approx(3 / 4, abs=1e-3)  # over four of variance 1 by n - 1
    assert moved == pytest.approx(0.01 * made.correlation @ pushed / square**0.5, abs=0.001)


def test_the_size_of_the_reward_changes_no_pace():
    made = drawn()
    of = follows(step=(1.0, 1.0, 1.0))
    plain = replace(TRAINER, scale_rewards="none")
    paid = made.z[..., 0] + made.z[..., -1]
    small, large = (replay(made, Pay(f * paid, plain), of).shift[-1] for f in (0.1, 7.0))
    assert small == pytest.approx(large) and small[0] > 0.3
    grouped = replay(made, Pay(paid, TRAINER), of).shift[-1]
    assert small[0] == pytest.approx(grouped[0], rel=0.2)
