"""The push of a judge on first rollouts: against exact expectations, and on a real study."""

import json
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest

from analysis.forecast.__main__ import main
from analysis.forecast.estimate import (
    Push,
    Rollouts,
    ask,
    first_rollouts,
    forecast,
    moved_most,
    pushes,
    rewards,
)
from analysis.forecast.ranking import rank
from analysis.planted.truth import Fault, Tabular, simulate
from analysis.statistics.estimate import Estimate
from study.cell.cells import load_cell
from study.cell.folder import CellFolder
from study.config.compose import load_judge
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
    lines = [
        Push("j", name, Estimate(value), value, 1, 0.0)
        for name, both in spread.items()
        for value in both
    ]
    assert moved_most(lines) == ["length", "tone"]


def test_candidates_that_were_never_trained(small_study, tmp_path, answered):
    before = plt.get_fignums()
    words = ("judges=sim-verbose,sim-strict", "steps=2", f"figure={tmp_path / 'f.png'}")
    found, said = answered(main, small_study, *words)
    assert plt.get_fignums() == before and (tmp_path / "f.png").stat().st_size > 5000
    judges = {push["judge"] for push in found["pushes"]}
    assert judges == {"sim-verbose", "sim-strict"} and "validation" not in found
    assert {line["rank"] for line in found["ranks"]} <= {1, 2}
    # two seeds x two steps x two prompts; the arms' first step is shared, their second is not
    assert 8 <= found["prompts"] <= 12
    assert "Push at the first step" in said


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
    told = first_rollouts(cells, 1)
    assert told.names == (*FEATURES, "op/Custom")
    assert told.features[..., -1].tolist() == [[1, 2, pytest.approx(np.nan, nan_ok=True)]] * 3
    assert told.has_answer.tolist() == [[True, True, False]] * 3
    scores, paid = rewards(load_judge("sim-fair"), cells[0], told, tmp_path)
    assert np.isnan(scores[:, 2]).all() and np.isfinite(scores[:, :2]).all()
    assert paid.tolist() == [[1.0, 1.0, 0.0]] * 3
    assert {push.unscored for push in forecast(ask(study, "sim-fair")).pushes} == {0.0}


def test_a_study_of_two_arms_has_no_shifts_in_units_and_says_what_to_type(small_study, capsys):
    command = [f"study={small_study.name}", f"runs_dir={small_study.parent}"]
    assert main([*command, "fit=nowhere"]) == 2
    assert "python -m analysis.forecast study=nowhere steps=1" in capsys.readouterr().err
    # its own fit would have seen the arms that it forecasts, so that it is made anew, arm by arm
    assert main([*command, f"fit={small_study.name}"]) == 2
    assert "the response fit needs 4" in capsys.readouterr().err
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "No shift in units" in said and "Type fit=STUDY" in said
    assert not (small_study / "response-1.json").exists()


def test_judges_that_are_named_change_nothing_of_what_a_study_keeps(small_study, tmp_path):
    """Five arms; four of them named are presets, and no study of four arms."""
    names = ["sim-fair", "sim-verbose", "sim-structured", "sim-strict", "sim-noisy"]
    study = tmp_path / "five"
    arms_of_presets(study, small_study, names)
    words = [f"study={study.name}", f"runs_dir={tmp_path}"]
    assert main(words) == 0
    kept = (study / "response-1.json").read_text()
    assert json.loads(kept)["response"]["arms"] == len(names)
    assert main([*words, f"judges={','.join(names[:4])}"]) == 0
    assert (study / "response-1.json").read_text() == kept
