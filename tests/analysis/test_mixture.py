"""The mixture: shares and their parts, predictions, transfer, swaps, the command, the section."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.mixture.__main__ import main
from analysis.mixture.confusion import judged
from analysis.mixture.display import TITLES, lines
from analysis.mixture.estimate import of_runs
from analysis.mixture.step import answers, by_rule, mix, nominal, pulls, windows
from analysis.mixture.teaching import Drawn, compare, expected, outcomes
from analysis.mixture.transfer import best_moved, changes, swaps, taught_by, transfers
from analysis.records.runs import Run, read_study
from analysis.report import sections
from analysis.report.evidence import Evidence, gather
from study.rewards.advantages import advantages, alignment
from study.tasks import mix as arithmetic
from tests.analysis.conftest import made_run
from tests.analysis.mixed_study import ARMS, GAIN, TAUGHT, write_mixed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four arms of three seeds. Not to be changed."""
    return write_mixed(tmp_path_factory.mktemp("runs") / "mixed")


@pytest.fixture(scope="module")
def mixed(folder: Path) -> Evidence:
    return gather(folder)


@pytest.fixture(scope="module")
def runs(mixed: Evidence) -> list[Run]:
    return mixed.records.runs


def make_run(judge, truth, domains, **fields) -> Run:
    """One step in which the judge's score is the reward."""
    facts = {"domain_P": np.array(domains, dtype=object), "prompt_P": np.arange(len(judge))}
    facts |= {"advantage": advantages(np.array(judge, dtype=float))}
    return made_run(judge, truth, **facts | fields)


JUDGE = [[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1]]
TRUTH = [[1, 0, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
NAMES = ["qa", "math", "code", "qa"]


def test_a_run_knows_its_domains_and_what_was_held_out(runs: list[Run]) -> None:
    run = next(run for run in runs if "lenient, lenient" in run.arm and run.seed == 2)
    assert run.domain_P is not None and run.prompt_P is not None
    prompts = zip(run.domain_P, run.prompt_P, strict=True)
    assert all(prompt.startswith(f"{domain}-") for domain, prompt in prompts)
    assert set(run.held_out) == set(GAIN), "averages over domains are of no domain"
    assert run.held_out["math"] == {0: 0.5, 6: pytest.approx(0.5 + 0.1 * 1.1)}
    part = run.at(3)
    assert part.domain_P is not None and len(part.domain_P) == len(part.reward) == 20


def test_shares_are_those_of_the_arithmetic_and_parts_add_up() -> None:
    run = make_run(JUDGE, TRUTH, NAMES)
    shares = mix(pulls(run), {"code": 0.3, "math": 0.4, "qa": 0.3})
    each_domain = np.repeat(NAMES, 4)
    right, by_truth = (
        arithmetic.shares(advantages(rewards), each_domain) for rewards in (run.reward, run.truth)
    )
    for domain, each in shares.items():
        assert each.effective.value == pytest.approx(right[domain])
        assert each.rule_effective.value == pytest.approx(by_truth[domain])
        assert each.truth_part.value + each.rest.value == pytest.approx(each.effective.value)
        rows = np.array(NAMES) == domain
        cosine = alignment(run.advantage[rows], by_rule(run)[rows])
        assert each.truth_part.value == pytest.approx(right[domain] * cosine * abs(cosine))
        assert np.isnan(each.effective.low) and "fewer than 10 prompts" in each.effective.note
    assert shares["math"].rest.value == pytest.approx(0)
    assert shares["code"].truth_part.value < 0, "wrong answers are preferred"
    assert (shares["qa"].realised, shares["qa"].dead, shares["qa"].nominal) == (0.5, 0.5, 0.3)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_under_the_rule_all_is_truth(scale: str) -> None:
    truth = (np.random.default_rng(1).random((30, 6)) < 0.5).astype(float)
    told = np.concatenate([advantages(truth[:15], scale), advantages(truth[15:], scale)])
    steps = np.repeat([1, 2], 15)
    run = make_run(truth, truth, ["a", "b"] * 15, scale=scale, advantage=told, step_P=steps)
    for each in mix(pulls(run)).values():
        assert each.rest.value == pytest.approx(0, abs=1e-12)
        assert each.effective.value == pytest.approx(each.rule_effective.value)
        assert each.effective.low < each.effective.value < each.effective.high


def test_what_is_missing_is_in_no_share() -> None:
    judge, truth = np.array(JUDGE, dtype=float), np.array(TRUTH, dtype=float)
    judge[0, 0], truth[1, 1] = np.nan, np.nan
    run = make_run(judge, truth, [*NAMES[:3], ""])
    groups = pulls(run).set_index("domain")
    assert Drawn.of([run]).shown_P_2().sum(axis=1).tolist() == [3, 3, 4]
    assert groups.loc["math", "squares"] == 0 < groups.loc["math", "pull"]
    shares = mix(pulls(run))
    assert list(shares) == ["code", "math", "qa"], "a row without a domain is in none"
    assert shares["math"].truth_part.value == 0
    nothing = mix(pulls(make_run([[1, 1]], [[1, 0]], ["qa"])))
    assert np.isnan(nothing["qa"].effective.value) and nothing["qa"].dead == 1
    assert mix(pulls(run).iloc[:0]) == {}


def test_weights_are_those_that_were_logged_then_those_of_the_config() -> None:
    domains = ["code", "math", "qa"]
    run = make_run(JUDGE, TRUTH, NAMES)
    assert nominal(run, domains) == pytest.approx({"code": 0.3, "math": 0.4, "qa": 0.3})
    values = zip(domains, (1, 2, 1), strict=True)
    run = replace(run, config={f"task.options.domains.{d}": w for d, w in values})
    assert nominal(run, domains)["math"] == 0.5
    values = zip(domains, (0.2, 0.7, 0.1), strict=True)
    logged = {f"domain/{d}/nominal_share": np.array([np.nan, w]) for d, w in values}
    assert nominal(replace(run, logged=logged), domains)["math"] == pytest.approx(0.7)
    assert np.isnan(nominal(run, ["law", "math"])["math"])


def test_windows_hold_every_step_once(runs: list[Run]) -> None:
    groups = pulls(runs[0])
    assert windows(groups) == [(1, 2), (3, 4), (5, 6)], "36 groups of code are three windows"
    assert windows(groups, 4) == [(1, 4), (5, 6)]
    assert windows(groups[groups["step"] > 3]) == [(4, 6)], "18 groups of code are one window"
    assert windows(groups.iloc[:0]) == []


KINDS = st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=2, max_size=5)
"""Different answers of a group: how many gave each, and whether it is right."""


@given(KINDS, st.floats(0, 1), st.floats(0, 1), st.sampled_from([None, 0.3]))
def test_outcomes_are_sums_over_all_verdicts(kinds, tpr, fpr, scale) -> None:
    count, right = (np.array(column) for column in zip(*kinds, strict=True))
    truth, rates = np.repeat(right, count), np.where(right, tpr, fpr)
    sums = np.zeros(3)
    for verdicts in product([0.0, 1.0], repeat=len(count)):
        told = np.repeat(verdicts, count)
        chance = np.prod(np.where(np.array(verdicts) == 1, rates, 1 - rates))
        made = advantages(told[None], "group" if scale is None else "none")[0] / (scale or 1)
        measures = abs(made).sum(), (made * truth).mean(), np.ptp(told) == 0
        sums += chance * np.array(measures, dtype=float)
    (made,) = outcomes(count[None], right[None], tpr, fpr, scale)
    assert made == pytest.approx(sums, abs=1e-9)
    padded = np.pad(count, (0, 2))[None], np.pad(right, (0, 2))[None]
    assert outcomes(*padded, tpr, fpr, scale)[0] == pytest.approx(made, abs=1e-9)


def test_equal_answers_stand_or_fall_together() -> None:
    """One right text and one wrong one: dead where both pass or both fail."""
    truth = np.tile([1.0, 1.0, 1.0, 0.0], (12, 1))
    judge = np.tile([[1.0, 1, 1, 0], [0.0, 0, 0, 1], [1.0, 1, 1, 1], [0.0, 0, 0, 0]], (3, 1))
    run = make_run(judge, truth, ["qa"] * 12, text=np.tile([5.0, 5, 5, 7], (12, 1)))
    drawn = Drawn.of([run])
    assert drawn.count_P_G[0].tolist() == [3, 0, 0, 1]
    assert drawn.yes_P_2[:4].tolist() == [[3, 0], [0, 1], [3, 1], [0, 0]]
    (qa,) = expected(drawn, {}).values()
    assert (qa.tpr, qa.fpr, qa.dead.value) == (0.5, 0.5, pytest.approx(0.5))
    (apart,) = expected(Drawn.of([replace(run, text=None)]), {}).values()
    assert apart.dead.value == pytest.approx(2 * 0.5**4), "as many texts as rollouts"
    lost = replace(run, truth=np.where(np.arange(4) == 1, np.nan, truth))
    assert Drawn.of([lost]).count_P_G[0].tolist() == [2, 0, 0, 1]


def test_expectations_are_by_the_scale_of_the_trainer(runs: list[Run]) -> None:
    """Without division a strict judge's domain pulls less, as its verdicts vary less."""
    (strict,) = [run for run in runs if run.arm.endswith("strict") and run.seed == 0]
    shares = {"code": 0.3, "math": 0.4, "qa": 0.3}
    by_scale = {
        scale: expected(Drawn.of([strict]), shares, scale) for scale in ("group", "batch", "none")
    }
    assert by_scale["none"]["code"].effective.value < by_scale["group"]["code"].effective.value
    for domain in shares:
        plain, batch = by_scale["none"][domain], by_scale["batch"][domain]
        assert batch.effective.value == pytest.approx(plain.effective.value)
    # J p (1 - p) over that of the rule: J itself, where nothing is divided
    code = by_scale["none"]["code"]
    assert code.relative.value == pytest.approx(code.tpr - code.fpr)
    assert by_scale["group"]["qa"].relative.low == by_scale["group"]["qa"].relative.high == 1


def test_what_never_varies_has_no_interval() -> None:
    run = make_run([[1, 0]] * 12, [[1, 0]] * 12, ["qa"] * 12)
    (qa,) = expected(Drawn.of([run]), {}).values()
    assert qa.dead.value == 0 and np.isnan(qa.dead.low) and "no spread" in qa.dead.note
    (alone,) = expected(Drawn.of([make_run([[1, 0]], [[1, 0]], ["qa"])]), {}).values()
    assert np.isnan(alone.effective.low) and "one prompt" in alone.effective.note
    tied = make_run([[1, 1]] * 3, [[1, 1]] * 3, ["qa"] * 3)
    (dead,) = expected(Drawn.of([tied]), {}).values()
    assert np.isnan(dead.effective.value) and np.isnan(dead.relative.value)
    assert np.isnan(dead.fpr), "no answer was wrong"


def test_predictions_stand_beside_what_was_observed(runs: list[Run]) -> None:
    groups = pulls_of(runs)
    made = compare(runs, groups, (1, 3))
    assert made.rule_arm == "sim-lenient, by-rule" and made.note == ""
    assert {(row.arm, row.feature) for row in made.accuracies} == {
        (arm_name(arm), domain) for arm in ARMS if arm != "by-rule" for domain in GAIN
    }
    for row in made.accuracies:
        share = TAUGHT.get((row.arm.split(", ")[1], row.feature), 1.0)
        assert row.observed.value == pytest.approx(GAIN[row.feature] * share)
        assert row.observed.n == 3
        assert row.predicted.value == pytest.approx(row.relative * GAIN[row.feature])
        if share == 1:
            assert row.relative == pytest.approx(1)
            assert row.difference.value == pytest.approx(0)
        else:
            assert row.relative < 0.7
    assert made.of_accuracies.count == 9 and made.of_accuracies.rank > 0.8
    for row in made.shares:
        assert row.predicted.value == pytest.approx(row.observed.value, abs=0.09)
    whole = compare(runs, groups, (1, 6))
    assert all(np.isnan(row.observed.value) for row in whole.shares), "no step came after"
    without = [run for run in runs if "by-rule" not in run.arm]
    assert "reward=rule" in compare(without, pulls_of(without), (1, 3)).note
    domain_P = np.full(len(runs[0].step_P), "math", dtype=object)
    alone = [replace(run, arm="a", domain_P=domain_P) for run in runs if "by-rule" in run.arm]
    with_alone = compare([*runs, *alone], pulls_of([*runs, *alone]), (1, 3))
    assert with_alone.rule_arm == made.rule_arm, "the rule over all domains"
    assert with_alone.accuracies == made.accuracies, "an arm of one domain is not compared"
    blind = [replace(run, held_out={}) for run in runs]
    assert "trainer.eval_steps" in compare(blind, groups, (1, 3)).note


def pulls_of(runs: list[Run]) -> pd.DataFrame:
    return pd.concat([pulls(run) for run in runs], ignore_index=True)


def arm_name(arm: str) -> str:
    return f"{ARMS[arm][0]}, {arm}"


def test_who_rewards_which_domain(runs: list[Run]) -> None:
    teachers = {run.arm: taught_by(run) for run in runs}
    assert set(teachers[arm_name("by-rule")].values()) == {"rule"}
    assert set(teachers[arm_name("strict")].values()) == {"sim-strict"}
    by_both = {"code": "sim-lenient", "math": "sim-lenient", "qa": "rule"}
    assert teachers[arm_name("qa-by-rule")] == by_both
    weighted = replace(runs[0], config={"reward.name": "judge", "reward.truth_weight": 1.0})
    assert set(taught_by(weighted).values()) == {"rule"}


def test_the_matrix_has_every_arm_and_tested_domain(runs: list[Run]) -> None:
    rows = {(row.arm, row.tested): row for row in transfers(runs)}
    assert len(rows) == len(ARMS) * 3
    row = rows[arm_name("lenient"), "qa"]
    by_hand = 0.2 * 0.5 * np.array([0.9, 1.0, 1.1])
    half = 4.302653 * by_hand.std(ddof=1) / 3**0.5
    assert row.change.value == pytest.approx(by_hand.mean())
    assert row.change.low == pytest.approx(by_hand.mean() - half)
    only_math = make_run(JUDGE, TRUTH, ["math"] * 4, held_out={"qa": {0: 0.1, 5: 0.4}})
    (elsewhere,) = transfers([only_math])
    assert list(elsewhere.trained) == ["math"] and elsewhere.tested == "qa"
    assert elsewhere.change.value == pytest.approx(0.3)
    assert changes([replace(only_math, held_out={"qa": {5: 0.4}})]) == {}


def test_a_swap_differs_in_one_domain_and_in_nothing_else(runs: list[Run]) -> None:
    rows = swaps(runs)
    swapped = ("qa", arm_name("lenient"), arm_name("qa-by-rule"))
    assert {(row.swapped, row.judged, row.ruled) for row in rows} == {swapped}
    by_tested = {row.tested: row.change for row in rows}
    assert by_tested["qa"].value == pytest.approx(0.1) and by_tested["qa"].n == 3
    assert by_tested["math"].value == pytest.approx(0)
    assert set(best_moved(rows).values()) == {"qa"}

    def with_other(key: str, value: object) -> list[Run]:
        return [
            replace(run, identity={**run.identity, key: value}) if "qa-by" in run.arm else run
            for run in runs
        ]

    assert swaps(with_other("policy.name", "other")) == []
    assert swaps(with_other("judge.grading.name", "other")) == [], "another judge in math and code"
    assert len(swaps(with_other("reward.threshold", 0.5))) == 0


def test_leniency_is_over_items() -> None:
    frame = pd.DataFrame(
        {"item": [1, 1, 2, 2, 3, 3], "domain": "qa", "judge": [1, 1, 1, 0, 0, 0]}
        | {"truth": [0, 1, 0, 0, 0, 0]}
    )
    made = judged(frame).leniency
    half = 4.302653 * np.array([0.5, 0.5, 0.0]).std(ddof=1) / 3**0.5
    assert made.value == pytest.approx(1 / 3)
    assert (made.low, made.high) == pytest.approx((1 / 3 - half, min(1, 1 / 3 + half)))
    assert np.isnan(judged(frame.iloc[:2]).leniency.low)
    assert np.isnan(judged(frame.iloc[:0]).leniency.value)
    strict = judged(frame.assign(judge=0.0, truth=1.0)).leniency
    assert strict.value == -1 and np.isnan(strict.low)


def test_the_command_finds_what_was_planted(folder: Path, answered) -> None:
    made, printed = answered(main, folder, "window=3")
    assert "qa moves most" in printed and max(map(len, printed.splitlines())) <= 100
    assert TITLES["swaps"] in printed
    assert set(made["domains"]) == {"all", *GAIN} and made["problems"] == []
    rates = made["domains"]["code"]["rates"]
    assert {(row["first_step"], row["last_step"]) for row in rates} == {(1, 6), (1, 3), (4, 6)}
    (strict,) = [row for row in rates if "strict" in row["arm"] and row["last_step"] == 6
                 and row["first_step"] == 1]  # fmt: skip
    assert strict["tpr"]["low"] < 0.3 < strict["tpr"]["high"]
    assert strict["leniency"]["high"] < 0
    for domain in GAIN:
        for row in made["domains"][domain]["mix"]:
            effective = row["effective"]
            assert effective["low"] < effective["value"] < effective["high"]
            parts = row["truth_part"]["value"] + row["rest"]["value"]
            assert parts == pytest.approx(effective["value"])
    assert made["prediction"]["rule_arm"] == arm_name("by-rule")
    assert len(made["prediction"]["mix"]) == len(made["transfer"]) == 12
    assert {row["tested"] for row in made["swaps"]} == set(GAIN)


def test_without_domains_there_is_no_mixture_and_graded_rewards_are_told(
    evidence: Evidence, runs: list[Run]
) -> None:
    assert of_runs(evidence.records.runs) is None
    assert sections.mixture(evidence) == []
    (problem,) = of_runs([replace(runs[0], reward=runs[0].reward * 0.8)]).problems
    assert runs[0].arm in problem and "neither 0 nor 1" in problem


def test_the_report_has_a_section(mixed: Evidence) -> None:
    before = plt.get_fignums()
    text = "".join(sections.mixture(mixed))
    for head in ("did the judge do to each domain", "Judge against rule", "replaced by the rule"):
        assert head in text
    assert "<svg" in text and "rank correlation" in text
    assert plt.get_fignums() == before


@pytest.mark.usefixtures("unrendered")
def test_one_arm_without_evaluations_still_has_its_shares(tmp_path: Path) -> None:
    study = write_mixed(tmp_path / "runs" / "one", seeds=1, arms=("strict",))
    for metrics in study.glob("*/metrics.jsonl"):
        metrics.write_text("")
    made = of_runs(read_study(study).runs)
    assert made.transfers == [] and made.swaps == []
    assert "No change of held-out accuracy is predicted" in "".join(sections.mixture(gather(study)))


@pytest.mark.usefixtures("unrendered")
def test_a_domain_may_bear_any_name(runs: list[Run], mixed: Evidence) -> None:
    hostile = "<b>\x1b[31m$x"
    renamed = {"qa": "all", "code": hostile, "math": "math"}
    changed = [
        replace(
            run,
            domain_P=np.array([renamed[name] for name in run.domain_P], dtype=object),
            held_out={renamed[name]: steps for name, steps in run.held_out.items()},
        )
        for run in runs
    ]
    made = of_runs(changed)
    assert made.domains == sorted(renamed.values())
    assert all(list(rates) == made.domains for _, _, rates in made.rates), "all is that domain"
    assert not any("\x1b" in line for line in lines(made, 0.95))
    text = "".join(sections.mixture(replace(mixed, mixture=made)))
    assert "<b>" not in text and "&lt;b&gt;" in text


def test_answers_leave_out_places_that_no_rollout_fills() -> None:
    run = make_run([[1, np.nan], [0, 1]], [[1, np.nan], [np.nan, 1]], ["qa", "qa"])
    run = replace(run, advantage=np.array([[0.0, np.nan], [-1.0, 1.0]]))
    assert len(answers([run])) == 3
    assert judged(answers([run])).without_truth == 1
