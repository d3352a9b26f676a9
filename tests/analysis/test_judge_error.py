"""A judge's error taken apart, and slopes on a bias that is measured with error."""

import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from scipy.stats import norm

from analysis.dose.errors_in_variables import (
    deming,
    moments,
    plain,
    reliability,
    simex,
    slopes,
)
from analysis.ledger.estimate import (
    advantage_parts,
    errors_of,
    gap_table,
    ledger,
    step_row,
)
from analysis.ledger.judge_error import BINS, PARTS, Window, calibrated, taken_apart
from analysis.ledger.transmission import split
from analysis.natural import main
from analysis.onset.display import onset_text
from analysis.onset.estimate import line, stops
from analysis.onset.planted import (
    DOSE,
    JUDGES,
    Judge,
    falling,
    shares_of,
)
from analysis.records.runs import Run
from analysis.report import sections
from analysis.report.evidence import Evidence, of_records
from analysis.report.words import findings, limits
from analysis.statistics.clipped_line import clipped_mean
from analysis.statistics.estimate import group_sums
from study.config.identity import digest
from study.features import FEATURES, features
from study.rewards.advantages import advantages
from tests.analysis.conftest import config_of
from tests.conftest import in_parts
from tests.tiers import some

BENT = ("compressing", "clipped")
"""Judges with a slope below 1, and with ends of the scale."""

NAN = float("nan")
NOISY = Judge(noise_sd=0.3)


def with_every_behaviour(run: Run, rng: np.random.Generator, **changes: object) -> Run:
    """The run with all behaviours of the project, its own first among them."""
    more = len(FEATURES) - len(run.names)
    features = [run.features, rng.standard_normal((*run.truth.shape, more))]
    found = replace(run, features=np.concatenate(features, axis=-1), names=FEATURES)
    advantage = advantages(run.reward, "group")
    return replace(found, advantage=advantage, rollouts=run.truth.size, **changes)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("judge", [*JUDGES.values(), NOISY], ids=[*JUDGES, "noisy"])
def test_the_parts_add_up(judge: Judge, scale: str) -> None:
    run = falling(np.random.default_rng(0), judge, 0.1)
    score = run.reward.copy()
    score[3, :5] = score[10] = NAN
    run = replace(run, reward=score, judge=score, scale=scale)
    apart = taken_apart(run, score)
    total = apart.level + sum(apart.of[name] for name in PARTS)
    np.testing.assert_allclose(total, score - run.truth, atol=1e-12)
    of_bias = split(score, run.truth, scale)[2]
    parts = advantage_parts(run, apart, scale)
    np.testing.assert_allclose(sum(parts[name] for name in PARTS), of_bias, atol=1e-12)
    row = step_row(run)
    for name in run.names:
        added = sum(row[f"error_{part}/{name}"] for part in PARTS)
        assert added == pytest.approx(row[f"cov_bias/{name}"], abs=1e-12)
    assert sum(row[f"share/{part}"] for part in ("truth", *PARTS)) == pytest.approx(1)


@given(st.floats(-2, 3), st.floats(0, 2))
def test_the_mean_of_a_cut_line_is_an_integral(line: float, spread: float) -> None:
    def cut(noise: float) -> float:
        return min(max(line + spread * noise, 0.0), 1.0) * norm.pdf(noise)

    kinks = [end / spread for end in (-line, 1 - line) if spread > 0 and abs(end) < 9 * spread]
    by_hand = integrate.quad(cut, -9, 9, points=kinks, limit=200)[0]
    assert clipped_mean(np.array(line), spread, 0, 1) == pytest.approx(by_hand, abs=1e-7)
    assert clipped_mean(np.array(line), spread, -np.inf, np.inf) == line


def test_the_slope_of_scores_without_ends_is_that_of_statsmodels() -> None:
    """Scores beyond 0 and 1: a regression on truth, behaviours and one constant per group."""
    run = falling(np.random.default_rng(1), Judge(slope=0.6), 0.1)
    by_group = 0.2 * np.arange(len(run.judge))[:, None] % 1
    run = replace(run, judge=3 * run.judge - 1 + by_group)
    found = calibrated(run, run.judge)
    first = run.step_P <= 4
    groups = np.repeat(np.eye(first.sum()), run.truth.shape[1], axis=0)
    behaviours = run.features[first].reshape(-1, 3)
    design = np.column_stack([run.truth[first].ravel(), behaviours, groups])
    fit = sm.OLS(run.judge[first].ravel(), design).fit()
    assert found.slope == pytest.approx(fit.params[0], abs=1e-6)
    clustered = np.repeat(np.arange(first.sum()), run.truth.shape[1])
    robust = fit.get_robustcov_results("cluster", groups=clustered)
    assert found.slope_se == pytest.approx(robust.bse[0], rel=0.25)
    assert (found.low, found.high) == (-np.inf, np.inf)


@pytest.mark.parametrize("name", [*JUDGES])
def test_the_curve_is_found_from_the_first_steps(name: str) -> None:
    """Mean error of 20 calibrations, over truths that the first steps hardly have too."""
    judge, rng, truth = JUDGES[name], np.random.default_rng(2), np.array([0, 0.25, 0.5, 0.75, 1])
    curve = clipped_mean(judge.level + judge.slope * truth, judge.noise_sd, 0, 1)
    found = []
    for seed in range(20):
        run = falling(rng, judge)
        found.append(calibrated(run, run.judge, seed).curve(truth))
    error = np.array(found) - curve
    assert (abs(error.mean(axis=0)) < 0.01 + 3 * error.std(axis=0) / 20**0.5).all()
    assert error.std(axis=0).max() < 0.06


def test_a_compressing_judge_without_noise_is_known_exactly() -> None:
    run = falling(np.random.default_rng(3), Judge(slope=0.5, noise_sd=0.0))
    row = step_row(run)
    assert row["slope"] == pytest.approx(0.5, abs=1e-6)
    # squares: .25 of truth's over 1.25 of them
    assert row["share/compression"] == pytest.approx(0.2, abs=1e-5)
    for part in ("clip", "bias", "noise"):
        assert row[f"share/{part}"] == pytest.approx(0, abs=1e-6)
    assert row["align/truth/cosine"] == pytest.approx(1)
    found = line(run, ())
    assert found.explained == pytest.approx(found.gap_last - found.gap_first, abs=1e-6)
    assert found.alarm is None and np.isnan(found.onset.step.value)


@pytest.mark.parametrize(("truths", "told_apart"), [(BINS, BINS), (BINS + 1, 48)])
def test_truths_are_binned_where_they_are_more_than_there_are_bins(truths, told_apart) -> None:
    """Of k^2 / 64^2 with k from 0 to 64, k^2 / 64 rounded up has 48 values from 1 on."""
    t = (np.linspace(0.0, 1.0, truths) ** 2).reshape(1, -1)
    window = Window.of(t, t, np.zeros((*t.shape, 1)), np.ones(t.shape, dtype=bool))
    assert window is not None and len(window.truth_Q) == told_apart


def test_exact_judges_leave_nothing_and_a_constant_truth_needs_no_calibration() -> None:
    """More truths than are told apart, in groups that differ: only rounding is left."""
    rng = np.random.default_rng(14)
    run = falling(rng, Judge())
    truth = np.clip(run.truth * rng.uniform(0.8, 1.0, run.truth.shape), 0, 1)
    run = replace(run, truth=truth, judge=0.4 * truth + 0.3)
    assert calibrated(run, run.judge).slope == pytest.approx(0.4, abs=1e-7)
    assert line(run, ()).onset.note == "the gap is constant"
    run = falling(np.random.default_rng(10), JUDGES["compressing"])
    run = replace(run, truth=np.full(run.truth.shape, 0.5))
    found = taken_apart(run, run.judge)
    assert (found.of["compression"] == 0).all() and (found.of["clip"] == 0).all()
    # the gap falls as the score does: no behaviour, and no onset
    assert np.isnan(line(run, ()).onset.step.value)


def test_noise_is_half_of_what_a_noisy_judge_rewards_and_few_rollouts_say_so() -> None:
    found = shares_of(falling(np.random.default_rng(4), NOISY))
    assert found["share/noise"] > 0.3 and abs(found["share/bias"]) < 0.02
    run = falling(np.random.default_rng(9), JUDGES["compressing"])
    thin = replace(run, judge=np.where(np.arange(8) < 4, run.judge, NAN))
    found = calibrated(thin, thin.judge)
    assert found.steps == 8 and "first 8 steps: the first tenth has too few" in found.note
    assert calibrated(run, run.judge).steps == 4 and calibrated(run, run.judge).note == ""


def test_a_paid_behaviour_is_bias_and_nothing_else() -> None:
    """Without ends of the scale: dose .2 of a standard normal behaviour, squares without division
    .04 beside those of the truth."""
    run = falling(np.random.default_rng(5), Judge(noise_sd=0.0))
    score = run.truth + 0.2 * run.features[..., 0]
    run = replace(run, reward=score, judge=score, scale="none")
    found = shares_of(run)

    def within(values: np.ndarray) -> float:
        return ((values - values.mean(axis=1, keepdims=True)) ** 2).sum()

    bias, truth = 0.04 * within(run.features[..., 0]), within(run.truth)
    assert found["share/bias"] == pytest.approx(bias / (bias + truth), rel=1e-4)
    assert found["share/compression"] == pytest.approx(0, abs=1e-6)


def test_a_behaviour_that_the_first_steps_do_not_have_is_bias() -> None:
    """A phrase that is written from step 20 on is paid .3, and nothing else is."""
    rng = np.random.default_rng(6)
    run = falling(rng, Judge(noise_sd=0.05))
    phrase = (rng.random(run.truth.shape) < 0.5) & (run.step_P >= 20)[:, None]
    score = run.truth + 0.3 * phrase
    features = np.concatenate([run.features, phrase[..., None]], axis=-1)
    run = replace(run, judge=score, reward=score, features=features, names=(*run.names, "phrase"))
    steps = ledger([replace(run, advantage=advantages(score, "group"))])
    assert steps["share/bias"][:18].abs().max() < 1e-4
    assert steps["share/bias"][20:].mean() > 0.1
    moved = gap_table(steps).set_index("metric")["mean"]
    assert moved["bias"] == pytest.approx(0.15, abs=0.02)
    assert moved.sum() == pytest.approx(line(run, ()).gap_last - line(run, ()).gap_first, abs=0.02)


@pytest.mark.parametrize("name", some([*BENT, "lenient", "strict"], standard=("clipped",)))
def test_truth_that_falls_raises_no_alarm_and_a_dose_does(name: str) -> None:
    """Of 16 runs of size .07 more than 5 have an alarm in one of 1,600 builds; all had before."""
    rng = np.random.default_rng(7)
    still = [line(falling(rng, JUDGES[name]), ()) for _ in range(16)]
    assert sum(run.onset.p <= 0.05 for run in still) <= 5
    assert sum(run.alarm is not None for run in still) <= 5
    paid = [line(falling(rng, JUDGES[name], DOSE), ()) for _ in range(5)]
    assert sum(run.onset.p <= 0.05 for run in paid) >= 4
    assert sum(run.alarm is not None for run in paid) >= 4


def test_a_calibration_that_cannot_be_had_says_why() -> None:
    run = falling(np.random.default_rng(8), JUDGES["compressing"])
    unknown = replace(run, truth=np.full(run.truth.shape, NAN))
    assert calibrated(unknown, run.judge).note == "no rollout has both score and truth"
    short = run.where(run.step_P <= 3)
    few = replace(short, judge=np.where(np.arange(24)[:, None] < 4, short.judge, NAN))
    for reduced in (few, run.where(np.arange(len(run.step_P)) < 8)):
        found = calibrated(reduced, reduced.judge)
        assert not found.is_known and "a calibration needs 64 of 12" in found.note
        row = step_row(replace(reduced, reward=reduced.judge))
        assert np.isnan(row["bias_share"]) and np.isnan(row["gap/bias"]) and np.isnan(row["slope"])
    late = replace(run, truth=np.where(run.step_P[:, None] <= 13, 0.5, run.truth))
    assert "truth does not vary in the first" in calibrated(late, run.judge).note
    seen = line(late, ())
    assert seen.alarm is None and np.isnan(seen.onset.p) and "does not vary" in seen.onset.note
    assert "Alarm: no run has a calibration and is long" in "\n".join(onset_text([late], [seen]))


def test_the_report_of_a_run_that_its_alarm_ended_has_that_alarm() -> None:
    """The rule is that of the 40 steps that were declared, however few of them were made."""
    run = falling(np.random.default_rng(11), JUDGES["compressing"], DOSE)
    run = replace(run, config={"trainer.steps": 40, "correction.stop": True})
    ended = next(step for step in range(8, 41) if stops(run.where(run.step_P <= step)))
    made = run.where(run.step_P <= ended)
    assert ended < 40
    assert line(made, ()).alarm == line(run, ()).alarm == ended
    assert line(made, ()).rule == line(run, ()).rule
    # what it heard were the corrected scores, whatever the judge said
    other = replace(made, judge=made.truth, corrected=made.judge)
    assert line(other, ()).alarm == ended and line(other, ()).gap_last == 0


def test_refits_vary_as_calibrations_of_other_runs_do() -> None:
    """SD over 60 runs of what a calibration expects of step 40 beyond the first steps, against the
    SD that the refits of one run say (mean over 20)."""
    rng, judge = np.random.default_rng(11), JUDGES["lenient"]
    same = falling(rng, judge)
    step_P = same.step_P
    expected, told = [], []
    for seed in range(60):
        run = falling(rng, judge)
        found = calibrated(run, run.judge, seed)
        sums = group_sums(found.expected(same))
        expected.append(sums[step_P == 40].sum() / 64 - sums[step_P <= 4].sum() / 256)
        if seed < 20:
            moves = found.deviations(same)
            told.append((moves[:, -1] - moves[:, :4].mean(axis=1)).std())
    # safer than that by what is not known of the ends of the scale, and of slopes of rows
    assert 0.9 * np.std(expected) <= np.mean(told) <= 2 * np.std(expected)


def test_composed_rewards_have_a_calibration_of_their_own() -> None:
    """Half of the reward is the truth: its slope is half way from the judge's to 1."""
    run = falling(np.random.default_rng(12), Judge(slope=0.5, noise_sd=0.05))
    of_reward, of_judge = errors_of(replace(run, reward=0.5 * run.judge + 0.5 * run.truth))
    assert of_judge.calibration.slope == pytest.approx(0.5, abs=0.05)
    assert of_reward.calibration.slope == pytest.approx(0.75, abs=0.05)


def odd_runs() -> dict[str, Run]:
    """Runs of a judge that says half of the truth, each with something missing or the same."""
    run = falling(np.random.default_rng(15), JUDGES["compressing"])
    first, z, nothing = np.arange(8) < 1, run.features, np.full(run.truth.shape, NAN)
    yes = (run.judge > 0.3).astype(float)
    with_truth = np.concatenate([z, run.truth[..., None]], axis=-1)
    return {
        "behaviours of one member unknown": replace(run, features=np.where(first[:, None], NAN, z)),
        "a behaviour that nobody measured": replace(run, features=z * [1, NAN, 1]),
        "no behaviour": replace(run, features=z[..., :0], names=()),
        "the truth a behaviour": replace(run, features=with_truth, names=(*run.names, "t")),
        "rewards of another scale": replace(run, reward=15 * run.judge - 5),
        "yes and no": replace(run, judge=yes, reward=yes),
        "one score": replace(run, judge=0 * yes + 1, reward=0 * yes + 1),
        "truth tied in groups": replace(run, truth=np.repeat(run.truth[:, :1], 8, axis=1)),
        "no score": replace(run, judge=nothing, reward=nothing),
    }


@pytest.mark.parametrize("name", odd_runs())
def test_what_is_missing_or_the_same_is_no_alarm(name: str) -> None:
    run = odd_runs()[name]
    steps = ledger([replace(run, advantage=advantages(run.reward, "group"))])
    found = line(run, ())
    assert found.alarm is None and not found.onset.p <= 0.01
    if name in ("behaviours of one member unknown", "no behaviour", "the truth a behaviour"):
        assert steps["slope"][0] == pytest.approx(0.5, abs=0.15)
    shares = steps["share/bias"].mean()
    assert np.isnan(shares) or abs(shares) < 0.06


BY_ARM = {"sim-fair": NOISY, "sim-flaky": Judge(slope=0.5), "sim-verbose": JUDGES["clipped"]}


def study_of(evidence: Evidence, dose: float) -> Evidence:
    """The evidence of a study whose judges compress, are clipped, or noisy; sim-verbose's pays."""
    rng, runs = np.random.default_rng(13), []
    for before in evidence.records.runs:
        paid = dose if before.arm == "sim-verbose" else 0.0
        run = falling(rng, BY_ARM[before.arm], paid, moved=1.5 if dose else 0.0)
        axes = {"cell": before.cell, "arm": before.arm, "seed": before.seed}
        runs.append(with_every_behaviour(run, rng, **axes))
    return of_records(replace(evidence.records, runs=runs))


SECTIONS = (sections.scores, sections.gap, sections.ledger, sections.onsets)


@pytest.mark.long
@pytest.mark.usefixtures("unrendered")
def test_the_report_of_judges_without_a_bias_says_so(evidence: Evidence) -> None:
    unpaid = study_of(evidence, 0.0)
    said = findings(unpaid) + limits(unpaid)
    assert [text for text in said if re.search(r"\bbias", text, re.IGNORECASE)] == []
    assert not any("begins to rise" in text for text in said)
    (errors,) = [text for text in said if text.startswith("What else of the judge's error")]
    for named in ("sim-fair noise", "sim-flaky compression", "sim-verbose the ends of the scale"):
        assert named in errors
    page = "".join(fragment for section in SECTIONS for fragment in section(unpaid))
    text = re.sub(r"<svg.*?</svg>|<img[^>]*>|<[^>]*>", " ", page, flags=re.S)
    text = text.replace("advantages from behaviour bias (share)", "")  # the name of a row
    assert not re.search(r"\bbias", text, re.IGNORECASE)
    assert "slope of the score on the truth (compression)" in text


def test_the_report_of_a_judge_that_pays_names_it_alone(evidence: Evidence) -> None:
    paid = study_of(evidence, DOSE)
    (bias,) = [text for text in findings(paid) if text.startswith("Share of the advantages")]
    assert "sim-verbose" in bias and "sim-flaky" not in bias and "sim-fair" not in bias
    (begun,) = [text for text in findings(paid) if "begins to rise" in text]
    assert re.search(r"under sim-verbose at steps? [^(]*\(3 of 3 runs\)", begun)


def planted(seed, judges, other=0.0):
    """Slope 2 on biases of SD 1 measured with error .5, mean shifts with error .4."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=judges)
    error, spread = np.full(judges, 0.5), np.full(judges, 0.4)
    shift = 2 * true + rng.normal(0, spread) + other * rng.normal(size=judges)
    return true + rng.normal(0, error), error, shift, spread


def test_errors_flatten_the_slope_and_fool_deming_where_judges_differ():
    """Reliability 1 / 1.25 = .8: plain 1.6, corrected 2; SIMEX stays a little below."""
    given = planted(0, 20_000)
    assert reliability(given[0], given[1]) == pytest.approx(0.8, abs=0.01)
    assert plain(*given) == pytest.approx(1.6, abs=0.03)
    assert moments(*given) == pytest.approx(2.0, abs=0.04)
    assert deming(*given) == pytest.approx(2.0, abs=0.04)
    assert 1.85 < simex(*given) < 2.02
    given = planted(1, 20_000, other=1.0)
    assert moments(*given) == pytest.approx(2.0, abs=0.05)
    assert deming(*given) > 2.2


def test_slopes_are_plain_without_error_and_deming_is_the_major_axis():
    bias, _, shift, spread = planted(3, 12)
    by_method = slopes(bias, np.full(12, 1e-9), shift, spread)
    for name in ("moments", "simex"):
        assert by_method[name].value == pytest.approx(by_method["plain"].value, rel=1e-6)
    assert by_method["moments"].low < by_method["plain"].value < by_method["moments"].high
    # With equal errors the line is the first principal axis, whichever way it is turned.
    points = np.random.default_rng(2).normal(size=(2, 30))
    points[1] += 0.7 * points[0]
    same = np.ones(30)
    axes = np.linalg.svd(points - points.mean(axis=1, keepdims=True))[0]
    found = deming(points[0], same, points[1], same)
    assert found == pytest.approx(axes[1, 0] / axes[0, 0])
    assert deming(points[1], same, points[0], same) == pytest.approx(1 / found)


def test_what_cannot_be_corrected_is_nan_or_refused():
    bias, error, shift, spread = planted(4, 6)
    assert math.isnan(moments(bias, 9 * error, shift, spread))
    three = slopes(bias[:3], error[:3], shift[:3], spread[:3]).values()
    assert all(math.isfinite(slope.value) and math.isnan(slope.low) for slope in three)
    for wrong in (
        (bias[:2], error[:2], shift[:2], spread[:2]),
        (bias * 0, error, shift, spread),
        (bias, error * 0, shift, spread),
    ):
        with pytest.raises(ValueError, match="three judges"):
            slopes(*wrong)


def test_a_study_of_three_judges_is_read(copied, answered):
    """Copies of a real study's runs under the name of a third judge, whose scores favour length."""
    study = copied("three")
    for cell in sorted(in_parts(study).glob("sim-fair-*")):
        copy = shutil.copytree(cell, study / "copy")
        with config_of(copy) as config:
            config["judge"]["name"] = "sim-long"
        other = copy.rename(study / f"sim-long-s{config['seed']}-{digest(config)}")
        for part in (other / "rollouts").glob("*.parquet"):
            table = pq.read_table(part)
            pairs = zip(table["truth"].to_pylist(), table["answer"].to_pylist(), strict=True)
            scores = [truth + 0.01 * features(answer or "")["length"] for truth, answer in pairs]
            place = table.column_names.index("judge_score")
            pq.write_table(table.set_column(place, "judge_score", [scores]), part)
    found, said = answered(main, study, "steps=2")
    biases = {judge["arm"]: judge["bias"] for judge in found["judges"]}
    assert biases["sim-long"] == pytest.approx(0.01, abs=1e-9)
    assert [line["method"] for line in found["slopes"]] == ["plain", "moments", "deming", "simex"]
    assert "per unit of measured bias" in said
