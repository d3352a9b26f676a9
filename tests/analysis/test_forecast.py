"""The push on first rollouts, biases from probes alone, scales fitted through the origin, and how
predictions came out beside what was observed."""

import json
import math
import shutil

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from analysis.forecast.__main__ import main
from analysis.forecast.display import moved_most
from analysis.forecast.estimate import (
    Rollouts,
    ask,
    first_rollouts,
    forecast,
    pushes,
    rank,
    rewards,
)
from analysis.forecast.start import Start
from analysis.forecast.study import edits_of
from analysis.planted.truth import Fault, Tabular, simulate
from analysis.propagation.calibration import PushPrediction, calibrate, fit_scale
from analysis.statistics.estimate import NAN, NO_ESTIMATE, Estimate
from analysis.statistics.prediction import Prediction, score
from experiments.probe import main as probe
from study.cell.cells import load_cell
from study.cell.folder import CellFolder
from study.config.compose import load_judge
from study.config.schema import Trainer
from study.features import FEATURES
from study.rows import Row
from tests.analysis.conftest import arms_of_presets, config_of
from tests.judges.answered_study import write_run


def rollouts(features, names=("length",), prompts=None):
    names_P = range(len(features)) if prompts is None else prompts
    return Rollouts(tuple(Row(str(name), ()) for name in names_P), (), features, names)


def test_a_prompt_that_came_twice_is_one_prompt():
    """Groups (0, 1) rewarded (0, 1), (1, 0) and (0, 1) without division: covariances .5, -.5, .5;
    with the first two of one prompt the means are 0 and .5, not .5, -.5 and .5."""
    features = np.array([[0.0, 1.0]] * 3)[..., None]
    paid = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert pushes("j", paid, rollouts(features), "none")[0].push.value == pytest.approx(1 / 6)
    (one,) = pushes("j", paid, rollouts(features, prompts="aab"), "none")
    assert (one.push.value, one.prompts) == (pytest.approx(0.25), 2)


def test_the_push_is_the_exact_expectation():
    """A tabular policy: E Cov(A, z) summed over every group, against 4,000 sampled ones."""
    truth = np.array([1.0, 0.0, 1.0, 0.0])
    length = np.array([0.0, 1.0, 2.0, 4.0])
    policy = Tabular(truth, length[:, None], np.zeros(4))
    members = policy.sample(np.random.default_rng(0), 4000, 6)
    reward = truth + 0.2 * length
    for scale in ("group", "none"):
        (line,) = pushes("j", reward[members], rollouts(length[members][..., None]), scale)
        exact = policy.expected_cov(reward, 6, scale)[0]
        assert line.push.low < exact < line.push.high
        assert line.push.value == pytest.approx(exact, abs=0.03)
        assert line.in_sds == pytest.approx(line.push.value / length[members].std())


def test_unscored_rollouts_are_left_out_and_counted():
    rng = np.random.default_rng(2)
    data = simulate(rng, 400, Fault(doses={0: 0.2}))
    holed = np.where(rng.random(data.judge.shape) < 0.3, np.nan, data.judge)
    given = rollouts(data.features)
    whole, part = (pushes("j", scores, given, "none")[0] for scores in (data.judge, holed))
    assert part.unscored == pytest.approx(np.isnan(holed).mean())
    assert part.push.low < whole.push.value < part.push.high
    assert math.isnan(pushes("j", holed * np.nan, given, "none")[0].push.value)
    zeroed = pushes("j", np.nan_to_num(holed), given, "none", 0.3)[0]
    assert zeroed.unscored == 0.3 and abs(zeroed.push.value) < abs(whole.push.value)


def test_ranks_are_sure_where_every_prompt_agrees_and_open_where_none_does():
    """Judge a pushes up more than b on every prompt; on tone they differ by chance alone."""
    rng = np.random.default_rng(3)
    low, noise = rng.normal(size=(40, 1)), rng.normal(0, 1, (40, 2))
    by_judge = {
        "b": np.hstack([low, noise[:, :1]]),
        "a": np.hstack([low + 0.1, noise[:, 1:]]),
        "z": np.hstack([low - 9, noise[:, :1] + 9]),
    }
    found = rank(by_judge, ("length", "tone"))
    length = {line.judge: (line.rank.value, line.rank.low, line.rank.high) for line in found[:3]}
    assert length == {"a": (1, 1, 1), "b": (2, 2, 2), "z": (3, 3, 3)}
    tone = {line.judge: (line.rank.low, line.rank.high) for line in found[3:]}
    assert tone == {"z": (1, 1), "a": (2, 3), "b": (2, 3)}


def test_a_behaviour_without_a_push_has_no_rank():
    one = np.array([[1.0, np.nan, 0.0]] * 5)
    found = rank({"a": one, "b": 2 * one}, ("length", "keyword", "emoji"))
    ranks = [(line.feature, line.judge, line.rank.value) for line in found]
    assert ranks == [("length", "a", 2), ("length", "b", 1)]


def test_what_judges_differ_on_most_is_told_first():
    spread = {"length": (0.1, 0.9), "tone": (0.0, 0.2), "emoji": (math.nan, 1.0)}
    pairs = [(name, value) for name, both in spread.items() for value in both]
    assert moved_most(pairs) == ["length", "tone"]


def test_candidates_that_were_never_trained(small_study, tmp_path, answered):
    before = plt.get_fignums()
    words = ("judges=sim-verbose,sim-strict", f"figure={tmp_path / 'f.png'}")
    found, said = answered(main, small_study, *words)
    assert plt.get_fignums() == before and (tmp_path / "f.png").stat().st_size > 5000
    judges = {push["judge"] for push in found["pushes"]}
    assert judges == {"sim-verbose", "sim-strict"} and "validation" not in found
    assert {line["rank"] for line in found["ranks"]} <= {1, 2}
    # two seeds x two prompts, of groups of four
    assert found["prompts"] * found["rollouts"] == 16 and found["base"] == small_study.name
    on = f"({found['prompts']} prompts x {found['rollouts']} rollouts of {small_study.name})"
    assert f"Push in SDs of each behaviour, before training {on}" in said


def test_the_forecast_is_of_the_reward_and_not_of_the_score(copied, answered):
    """A reward that is all truth: every judge pushes the same, whatever it is partial to."""
    made = {}
    for weight in (0.0, 1.0):
        study = copied(f"weight-{weight}")
        for cell in study.glob("sim-*"):
            with config_of(cell) as config:
                config["reward"]["truth_weight"] = weight
                config["trainer"]["scale_rewards"] = "none"
        found, _ = answered(main, study, "judges=sim-fair,sim-structured")
        made[weight] = {
            push["judge"]: push["push"] for push in found["pushes"] if push["feature"] == "bullets"
        }
    assert abs(made[0.0]["sim-structured"] - made[0.0]["sim-fair"]) > 0.001
    assert made[1.0]["sim-structured"] == pytest.approx(made[1.0]["sim-fair"], abs=1e-12)
    assert made[1.0]["sim-fair"] == pytest.approx(made[0.0]["sim-fair"], abs=1e-6)


def test_rollouts_of_another_policy_or_sampled_otherwise_are_no_base(small_study, copied, capsys):
    """What is forecast has another temperature than the rollouts, then another task."""
    for part, key, value in (("trainer", "temperature", 0.5), ("task", "name", "other")):
        study = copied(f"of-{part}")
        for cell in study.glob("sim-*"):
            with config_of(cell) as config:
                config[part][key] = value
        shutil.copytree(small_study, study.parent / "before", dirs_exist_ok=True)
        words = [f"study={study.name}", f"runs_dir={study.parent}", "base=before"]
        assert main([*words, "judges=sim-fair"]) == 2
        said = capsys.readouterr().err
        shown = f"{part}.{key}" if part == "trainer" else part
        assert f"before has rollouts of {shown}=" in said and f"has {shown}={value}." in said
        assert f"sweep experiment=base {shown}={value} study=NAME" in said


@pytest.mark.long
def test_judges_are_forecast_where_there_is_nothing_yet(tmp_path, capfd):
    """The policy answers first; what is drawn then serves the next judge."""
    out = tmp_path / "shifts.json"
    for judge in ("sim-verbose", "sim-fair"):
        assert main([f"judges={judge}", f"runs_dir={tmp_path}", f"out={out}"]) == 0
        printed, said = capfd.readouterr()
        assert ("The policy answers before training" in said) == (judge == "sim-verbose")
        assert "forecast before training (64 prompts x 64 rollouts of base-tiny" in printed
        shifts = {row["feature"]: row for row in json.loads(out.read_text())["shifts"]}
        assert (shifts["length"]["low"] > 0) == (judge == "sim-verbose")
        assert shifts["length"]["observed"] is None


def test_a_study_without_rollouts_is_said(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["study=empty", f"runs_dir={tmp_path}"]) == 2
    assert "no readable rollouts" in capsys.readouterr().err


def test_programs_are_forecast_with_their_calls_and_failures_are_not_asked_about(tmp_path):
    """Each of three groups: a short and a long right answer of one and two calls, and a program
    that failed, which has the floor and no features. The judge pays for length, within yes or no:
    both answers are right, so that only the failure is below them."""
    study = write_run(tmp_path / "runs", reward="judge-binary")
    cells = [load_cell(CellFolder(folder)) for folder in study.glob("sim-*")]
    told = first_rollouts(cells)
    assert told.names == (*FEATURES, "op/Custom")
    assert told.features[..., -1].tolist() == [[1, 2, pytest.approx(np.nan, nan_ok=True)]] * 3
    assert told.has_answer.tolist() == [[True, True, False]] * 3
    scores, paid = rewards(load_judge("sim-fair"), cells[0].config, told, tmp_path)
    assert np.isnan(scores[:, 2]).all() and np.isfinite(scores[:, :2]).all()
    assert paid.tolist() == [[1.0, 1.0, 0.0]] * 3
    assert {push.unscored for push in forecast(ask(study, "sim-fair")).pushes} == {0.0}


def test_a_study_of_two_arms_has_no_shifts_in_units_and_says_what_to_type(small_study, capsys):
    command = [f"study={small_study.name}", f"runs_dir={small_study.parent}"]
    assert main([*command, "fit=nowhere"]) == 2
    assert "python -m analysis.forecast study=nowhere" in capsys.readouterr().err
    # its own fit would have seen the arms that it forecasts, so that it is made anew, arm by arm
    assert main([*command, f"fit={small_study.name}"]) == 2
    assert "the fit needs 4" in capsys.readouterr().err
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "No shift in units" in said and "Type fit=STUDY" in said
    assert not (small_study / "forecast.json").exists()
    assert main([*command, "k=99"]) == 2  # it has runs of fewer steps
    assert "Type k=" in capsys.readouterr().err


def test_judges_that_are_named_change_nothing_of_what_a_study_keeps(small_study, tmp_path):
    """Five arms; four of them named are presets, and no study of four arms."""
    names = ["sim-fair", "sim-verbose", "sim-structured", "sim-strict", "sim-noisy"]
    study = tmp_path / "five"
    arms_of_presets(study, small_study, names, seeds=1)
    words = [f"study={study.name}", f"runs_dir={tmp_path}"]
    assert main(words) == 0
    kept = (study / "forecast.json").read_text()
    assert json.loads(kept)["arms"] == len(names)
    assert main([*words, f"judges={','.join(names[:4])}"]) == 0
    assert (study / "forecast.json").read_text() == kept


START = Start(
    ("length", "bullets", "truth"),
    *(np.array([10.0, 1.0, 0.5]), np.array([4.0, 2.0, 0.5]), np.eye(3)),
    z=np.random.default_rng(9).normal(size=(50, 40, 3)),
)


def edited(rng, n=300, noise=0.0):
    """Edits that change length and bullets, under a judge that pays .2 per SD of length."""
    words, bullets = rng.integers(-8, 9, n), rng.integers(-3, 4, n)
    texts = pd.DataFrame(
        {
            "probe_id": [f"{place}{kind}" for kind in "ab" for place in range(n)],
            "words": np.concatenate([np.full(n, 20.0), 20.0 + words]),
            "bullets": np.concatenate([np.full(n, 3.0), 3.0 + bullets]),
        }
    )
    paid = 0.2 * words / 4 + rng.normal(0, noise, n) - rng.normal(0, noise, n)
    edits = pd.DataFrame(
        {
            "probe_id": [f"{place}b" for place in range(n)],
            "against": [f"{place}a" for place in range(n)],
            "bias_change": paid,
        }
    )
    return edits, texts


def test_a_dose_over_its_spread_and_too_few_edits_no_bias():
    edits, texts = edited(np.random.default_rng(0))
    spread = (0.2**2 + 0.5**2) ** 0.5
    assert edits_of(edits, texts, START).bias(START) == pytest.approx([0.2 / spread, 0.0], abs=0.01)
    noisy, texts = edited(np.random.default_rng(1), n=20_000, noise=0.3)
    spread = (0.2**2 + 0.5**2 + 0.3**2) ** 0.5
    assert edits_of(noisy, texts, START).bias(START) == pytest.approx([0.2 / spread, 0.0], abs=0.02)
    edits, texts = edited(np.random.default_rng(0))
    whole = edits_of(edits, texts, START).bias(START)
    edits.loc[::2, "bias_change"] = np.nan
    assert edits_of(edits, texts, START).bias(START) == pytest.approx(whole, abs=0.02)
    assert np.isnan(edits_of(edits.head(4), texts, START).bias(START)).all()


def test_rollouts_are_paid_as_edits_were():
    """.2 per SD of length beside the truth, and noise of .3."""
    made = edits_of(*edited(np.random.default_rng(1), n=20_000, noise=0.3), START)
    truth = (START.z[..., 2] > 0).astype(float)
    paid = made.pay(truth, START, Trainer()).rewards
    rest = paid - truth - 0.2 * START.z[..., 0]
    assert rest.std() == pytest.approx(0.3, abs=0.02)
    assert abs(np.corrcoef(rest.ravel(), START.z[..., 0].ravel())[0, 1]) < 0.05


def test_what_is_no_folder_of_probes_is_said(small_study, tmp_path, capsys):
    words = [f"study={small_study.name}", f"runs_dir={small_study.parent}"]
    assert main([*words, f"probes={tmp_path}"]) == 2
    assert "not a folder of probes" in capsys.readouterr().err


def test_probed_judges_and_a_study_of_few_arms(small_study, tmp_path, capsys):
    runs_dir = tmp_path / "runs"
    assert (
        probe(["judge=sim-fair", "n=2", "variants=hedged", f"runs_dir={runs_dir}", "report=false"])
        == 0
    )
    capsys.readouterr()
    words = [f"study={small_study.name}", f"runs_dir={small_study.parent}"]
    folder = next(path.parent for path in runs_dir.rglob("probes.parquet"))
    assert main([*words, f"probes={folder}"]) == 2
    assert "the fit needs 4" in capsys.readouterr().err


def test_a_scale_is_least_squares_through_the_origin():
    """Points (1, 2), (3, 7), (0, 1): slope 23 / 10, residuals -.3, .1 and 1, two degrees left."""
    push, shift = np.array([[1.0, 3.0, np.nan, 0.0], [2.0, 7.0, 1.0, 1.0]])[..., None]
    fit = fit_scale(push, shift, np.full((4, 1), 5.0))  # one behaviour's SD has no weight
    assert (fit.factor, fit.runs) == (pytest.approx(2.3), 3)
    assert fit.sd_K == pytest.approx([0.55**0.5])
    assert fit.free_K == pytest.approx([2.0])
    # without each run in turn: 21 / 9, 2 / 1, 23 / 10
    assert fit.error == pytest.approx((2 / 3 * ((7 / 3 - 2.3) ** 2 + 0.3**2)) ** 0.5)
    # t(.975, 2) = 4.3027; at push 0 the line itself adds nothing
    assert fit.at(0.0).high == pytest.approx(4.302653 * 0.55**0.5)
    further = fit.at(2.0)
    spread = (0.55 + 4 * fit.error**2) ** 0.5
    assert further.high - further.value == pytest.approx(4.302653 * spread)
    assert math.isnan(fit_scale(np.zeros((3, 1)), np.ones((3, 1)), np.ones((3, 1))).factor)
    few = fit_scale(push[:2], shift[:2], np.ones((2, 1)))
    assert few.factor > 0 and math.isnan(few.at(1.0).value)


def test_one_factor_over_behaviours_by_hand():
    """Pushes 1, 2, 0 of SD 1 and 10, 0, 20 of SD 10 for shifts 3, 4, 1 and 10, 5, 30: in SDs
    1, 2, 0, 1, 0, 2 for 3, 4, 1, 1, .5, 3, hence (3 + 8 + 1 + 6) / 10. A third, without an SD, is
    predicted and not fitted on."""
    push = np.array([[1.0, 10.0, 0.1], [2.0, 0.0, 0.2], [0.0, 20.0, -0.3]])
    shift = np.array([[3.0, 10.0, -7.0], [4.0, 5.0, -8.0], [1.0, 30.0, 9.0]])
    sd = np.array([[1.0, 10.0, 0.0], [1.0, 10.0, np.nan], [1.0, np.nan, 0.0]])
    fit = fit_scale(push, shift, sd)
    assert fit.factor == pytest.approx(1.8)
    assert fit.free_K == pytest.approx([2.5, 2.5, 3.0])
    assert fit.sd_K[0] == pytest.approx(((1.2**2 + 0.4**2 + 1) / 2.5) ** 0.5)
    assert fit.sd_K[1] == pytest.approx(((8**2 + 5**2 + 6**2) / 2.5) ** 0.5)
    assert [fit.at(2.0, k).value for k in (0, 1, 2)] == pytest.approx([3.6] * 3)
    # counted in other units nothing changes
    unit = np.array([1.0, 1000.0, 1.0])
    same = fit_scale(push * unit, shift * unit, sd * unit)
    assert (same.factor, same.error) == (pytest.approx(fit.factor), pytest.approx(fit.error))
    assert same.sd_K == pytest.approx(fit.sd_K * unit)


@pytest.mark.parametrize("factor", [-4.0, 0.0])
def test_a_scale_that_is_not_above_zero_predicts_nothing(factor):
    push = np.array([[1.0], [2.0], [3.0], [-1.0]])
    fit = fit_scale(push, factor * push, np.ones((4, 1)))
    assert fit.factor == factor and not fit.usable
    assert math.isnan(fit.at(1.0).value) and fit.estimate.value == factor


def test_calibration_by_hand():
    """Observed 2, 4, 6 for predicted 1, 2, 3: slope 2, R2 = 1 - (1 + 4 + 9) / 8."""
    ends = [(0.0, 1.0), (3.0, 5.0), (6.0, 9.0)]  # hold the second and, at its end, the third
    rows = [
        PushPrediction(
            *(str(n), "a", "x", Estimate(2.0 * n), Estimate(n, *ends[n - 1])),
            *(0.0, 0.0, 1.0, 3),
        )
        for n in (1, 2, 3)
    ]
    (line,) = calibrate(rows)
    scores = line.scores
    assert scores.inside == pytest.approx(2 / 3)
    assert (scores.slope.value, scores.correlation) == (pytest.approx(2.0), pytest.approx(1.0))
    assert scores.r2 == pytest.approx(1 - 14 / 8)


def of(*pairs, arm="a"):
    """Predictions of pairs (predicted, observed)."""
    return [Prediction("", arm, "x", Estimate(seen), Estimate(value)) for value, seen in pairs]


def test_scores_by_hand():
    """Observed 2, 4, 6 for predicted 1, 2, 3: slope 2, R2 = 1 - (1 + 4 + 9) / 8."""
    ends = [(0.0, 1.0), (3.0, 5.0), (6.0, 9.0)]  # hold the second and, at its end, the third
    made = score(
        [
            Prediction("", "ab"[n % 2], "x", Estimate(2.0 * n), Estimate(n, *ends[n - 1]))
            for n in (1, 2, 3)
        ]
    )
    assert (made.count, made.arms, made.inside) == (3, 2, pytest.approx(2 / 3))
    assert (made.slope.value, made.r2) == (pytest.approx(2.0), pytest.approx(1 - 14 / 8))
    assert (made.correlation, made.rank) == (pytest.approx(1.0), pytest.approx(1.0))


def test_scores_take_pairs_and_a_constant_prediction_has_no_line():
    made = score(of((0, 0), (1, 2), (2, 4), (NAN, 1), (3, NAN)))
    assert (made.count, made.slope.value) == (3, pytest.approx(2))
    assert made.rank == pytest.approx(1)
    assert np.isnan(score(of((1, 1), (2, 2))).slope.value)
    nothing = score([])
    assert nothing.count == nothing.arms == 0
    assert np.isnan((nothing.rank, nothing.r2, nothing.correlation, nothing.inside)).all()
    made = score(of((2, 1), (2, 2), (2, 3)))
    assert made.r2 == 0 and made.slope is NO_ESTIMATE
    assert np.isnan((made.correlation, made.rank)).all()
    assert np.isnan(score(of((1, 2), (2, 2), (3, 2))).r2)
