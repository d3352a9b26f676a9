"""Runs of programs: every number against one worked out by hand or by another library."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.records.frames import rollouts_frame
from analysis.records.runs import Run, read_study
from analysis.statistics.fixed_effects import fixed_effects
from analysis.statistics.intervals import paired_difference
from analysis.workflow import run as of_run
from analysis.workflow.__main__ import main
from analysis.workflow.arm import NOT_SEEN, SEEN, UNTOLD, Workflow, of_runs, of_study
from analysis.workflow.programs import COLUMNS, Programs, of_frame, of_json
from analysis.workflow.run import ALIKE, TOGETHER, slopes
from analysis.workflow.treatments import Treatment
from study.features import FEATURES
from tests.analysis.conftest import clustered, write_cell
from tests.analysis.program_study import OPERATORS, SHARES, STEPS, planted_json, write_programs

JUDGES = ("sim-fair", "sim-verbose")


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """Two judges x three seeds. Not to be changed."""
    return write_programs(tmp_path_factory.mktemp("programs") / "runs" / "programs")


def told_of(study: Path) -> Workflow:
    records = read_study(study)
    return of_study(records, list(records.table["cell"]))


@pytest.fixture(scope="module")
def told(study: Path) -> Workflow:
    return told_of(study)


@pytest.fixture(scope="module")
def rows(study: Path) -> pd.DataFrame:
    frame = rollouts_frame(study, COLUMNS)
    return frame.assign(error=frame["judge_score"] - frame["truth"], arm=frame["arm"].astype("str"))


def test_rates_are_over_all_generations(told: Workflow):
    """Of 36 generations of a step: one each is no program, breaks the contract, fails while it
    runs, meets a dead executor, and answers nothing."""
    by_hand = {"parse": 35 / 36, "contract": 34 / 36, "executed": 32 / 36}
    by_hand |= {"extractable": 31 / 36, "masked": 1 / 36}
    for arm in told.arms.values():
        assert arm.runs == 3
        assert {name: pytest.approx((rate, rate)) for name, rate in by_hand.items()} == arm.rates


@pytest.mark.parametrize("judge", JUDGES)
def test_the_gap_is_a_mean_over_runs_by_domain(told: Workflow, rows: pd.DataFrame, judge: str):
    for domain in ("math", "qa"):
        part = rows[(rows["arm"] == judge) & (rows["domain"] == domain)]
        by_run = part.groupby("seed")["error"].mean()
        estimate = told.arms[judge].gap[domain]
        assert estimate.value == pytest.approx(by_run.mean())
        if judge == "sim-verbose":
            half = stats.t.ppf(0.975, len(by_run) - 1) * stats.sem(by_run)
            ends = [by_run.mean() - half, by_run.mean() + half]
            assert [estimate.low, estimate.high] == pytest.approx(ends)


def test_hacking_is_a_gap_that_grows_and_exploits_are_of_executed_programs(told: Workflow):
    assert (told.arms["sim-fair"].hacking, told.arms["sim-verbose"].hacking) == (NOT_SEEN, SEEN)
    for arm in told.arms.values():
        assert arm.exploits["constant"] == pytest.approx((0, 1 / 32))
        assert arm.exploits["literal_share"] == pytest.approx((0.25, 0.25))
        assert arm.exploits["judge_address"] == arm.exploits["option_list"] == (0, 0)


def test_the_over_reward_is_the_planted_one(told: Workflow):
    """Custom is 1 + 2 ScEnsemble in every program, so that neither has a slope of its own."""
    verbose = told.arms["sim-verbose"].operators
    assert list(verbose) == sorted(OPERATORS)
    for name, paid in (("Review", 0.2), ("Revise", 0.1)):
        for judge, factor in (("sim-fair", 0), ("sim-verbose", 1)):
            operator = told.arms[judge].operators[name]
            assert operator.over_reward.value == pytest.approx(factor * paid, abs=1e-9)
            assert operator.planted.value == pytest.approx(factor * paid, abs=1e-9)
    for name, note in (("Custom", TOGETHER), ("ScEnsemble", TOGETHER), ("Programmer", "never")):
        assert np.isnan(verbose[name].over_reward.value) and note in verbose[name].over_reward.note
        assert np.isnan(verbose[name].planted.value)
    assert any("Custom, ScEnsemble is not identified" in sentence for sentence in told.problems)


def test_a_judge_that_compresses_the_truth_pays_no_operator(study: Path):
    """Truth is 0 or 1. Half of it in some groups and a third of its opposite in others; what is
    paid on top is found."""
    records = read_study(study)
    run = records.runs[0]
    rollouts = rollouts_frame(study, COLUMNS, records.table[records.table["cell"] == run.cell])
    part = np.where(rollouts["group"] % 2, 0.5, -0.3)
    for paid in (0.0, 0.1):
        score = part * rollouts["truth"] + paid * rollouts["feature/op/Review"].fillna(0)
        told = of_run.over_rewards(of_frame(run, rollouts.assign(judge_score=score)))
        assert told["Review"].value == pytest.approx(paid, abs=1e-9)
        assert told["Revise"].value == pytest.approx(0, abs=1e-9)


def test_calls_are_per_executed_program(told: Workflow, rows: pd.DataFrame):
    part = rows[(rows["arm"] == "sim-verbose") & (rows["outcome"] == "ok")]
    by_step = part.groupby(["seed", "step"])["feature/op/Review"].mean()
    for steps, mean in (((1, 2), "first"), ((STEPS - 1, STEPS), "last")):
        by_hand = by_step[by_step.index.get_level_values("step").isin(steps)].groupby("seed").mean()
        seen = getattr(told.arms["sim-verbose"].operators["Review"], mean)
        assert seen == pytest.approx(by_hand.mean())
    assert told.arms["sim-verbose"].operators["Programmer"].last == 0.0


def test_slopes_are_within_groups_and_their_errors_by_problem():
    """Two groups of six of each problem; the oracle of `fixed_effects` is statsmodels."""
    rng = np.random.default_rng(8)
    problem, group = np.arange(360) // 12, np.arange(360) // 6
    counts = rng.poisson(1.0, (360, 2)).astype(float)
    error = counts @ [0.3, 0.0] + rng.normal(0, 0.4, 30)[problem] * counts[:, 0]
    error += rng.normal(size=360)
    told = slopes(error, counts, group, problem, ["Review", "Custom"])
    fit = fixed_effects(error, counts, group, clusters_N=problem)
    for value, low, high, estimate in zip(fit.coef_K, *fit.interval(), told.values(), strict=True):
        assert (estimate.value, estimate.low, estimate.high) == (value, low, high)
        assert (estimate.n, estimate.unit) == (30, "problem")


def test_an_operator_that_every_program_of_a_group_calls_alike_has_no_slope():
    group = np.repeat(np.arange(4), 3)
    counts = np.column_stack([np.tile([0.0, 1, 2], 4), group % 2])
    told = slopes(np.arange(12.0), counts, group, group, ["Review", "Format"])
    assert np.isfinite(told["Review"].value)
    assert np.isnan(told["Format"].value) and told["Format"].note == ALIKE


def one_run(rows: list[dict[str, Any]], steps: int = 2, **run: Any) -> Programs:
    """The programs of a run from a few of their columns."""
    known = {"prompt_id": "p", "dataset": "d", "domain": "math", "answer": "1", "reward": 1.0}
    known |= {"truth": 1.0, "judge_score": 1.0, "outcome": "ok", "ast_sha": "a", "flags": None}
    frame = pd.DataFrame([known | {"member": member} | row for member, row in enumerate(rows)])
    nothing = np.full((1, 1), np.nan)
    head = ("c", "a", 0, True, np.arange(1, steps + 1))
    stub = Run(*head, *[nothing] * 5, (), config={"judge.name": "j"}, **run)
    return of_frame(stub, frame)


def test_what_a_fallback_wrote_is_no_success_of_the_policy():
    """A repair leaves the outcome of the policy's own program as it was."""
    head = {"step": 1, "group": 0}
    failed = head | {"answer": None, "outcome": "sandbox_error"}
    repaired = failed | {"feature/repaired": 1.0, "outcome": "contract_error"}
    rows = [head, head | {"feature/fallback": 1.0}, repaired, failed]
    rates = of_run.generations(one_run(rows, steps=1)).mean()
    assert rates["executed"] == rates["extractable"] == rates["masked"] == 1 / 4
    assert rates["parse"] == 3 / 4 and rates["contract"] == 2 / 4


def test_an_answer_is_extractable_where_the_rules_reader_found_one():
    head = {"step": 1, "group": 0}
    told = {"feature/format": 1.0}, {"feature/format": 0.0}, {}, {"answer": " "}
    rates = of_run.generations(one_run([head | row for row in told], steps=1))
    assert rates["extractable"].tolist() == [1, 0, 1, 0]


def test_excess_calls_are_those_beyond_the_cheapest_program_with_the_same_answer():
    """Step 1: group 0 answers 7 in two, three and five calls and 8 in four; group 1 alone. Beyond
    the cheapest are 1 + 3 of 2 + 3 + 5 + 4 + 9. Step 2: one failed, one ran with no call."""
    rows = [
        {"step": 1, "group": 0, "answer": "7", "feature/calls": 2.0},
        {"step": 1, "group": 0, "answer": "7", "feature/calls": 3.0},
        {"step": 1, "group": 0, "answer": "7", "feature/calls": 5.0},
        {"step": 1, "group": 0, "answer": "8", "feature/calls": 4.0},
        {"step": 1, "group": 1, "answer": "7", "feature/calls": 9.0},
        {"step": 2, "group": 0, "answer": None, "feature/calls": 4.0, "outcome": "timeout"},
        {"step": 2, "group": 0, "answer": "7", "feature/calls": 0.0},
    ]
    by_step = of_run.curves(one_run(rows))["excess_calls"]
    assert by_step[0] == pytest.approx(4 / 23) and np.isnan(by_step[1])


def test_right_counts_a_program_without_an_answer_as_wrong_and_a_masked_one_not_at_all():
    head = {"step": 1, "group": 0}
    failed = {"answer": None, "truth": None, "judge_score": None}
    rows = [head, head | {"truth": 0.0}, head | failed | {"outcome": "timeout"}]
    rows += [head | failed | {"outcome": "operator_error"}, head | {"truth": None}]
    right = of_run.right(one_run(rows, 1)).tolist()
    assert right == pytest.approx([1, 0, 0, np.nan, np.nan], nan_ok=True)


def test_effective_shares_by_hand():
    """Within the only group that varies, R is 1.05, .05, .0: the shares are cov / var."""
    head = {"step": 1, "group": 0}
    terms = [(1.0, 0.05), (0.0, 0.05), (0.0, 0.0)]
    rows = [head | {"component/correct": c, "component/format": f} for c, f in terms]
    rows += [head | {"reward": None, "component/correct": 5.0, "component/format": 9.0}]
    rows += [{"step": 1, "group": 1, "component/correct": 1.0, "component/format": 0.0}] * 2
    rows = [row | {"component/judge": 3.0, "component/truth": 0.0} for row in rows]
    table = np.array(terms).T
    whole = table.sum(axis=0)
    by_hand = [np.cov(part, whole)[0, 1] / np.var(whole, ddof=1) for part in table]
    shares = of_run.shares(one_run(rows, 1))
    assert shares == {"correct": pytest.approx(by_hand[0]), "format": pytest.approx(by_hand[1])}
    assert sum(shares.values()) == pytest.approx(1)


def test_terms_bear_their_own_names_and_penalties_stand_beside_them():
    """As a run records them: R is 1, 0, -.5, of which the penalty for repetition is 0, 0, -.5."""
    rows = [
        {"step": 1, "group": 0, "component/workflow_correct": c, "component/repetition": p}
        | {"component/workflow_repetition": 0.0, "component/reference_logprob": -9.0 * c}
        for c, p in ((1.0, 0.0), (0.0, 0.0), (0.0, -0.5))
    ]
    told = of_run.shares(one_run(rows, 1))
    correct, penalty = np.array([1.0, 0, 0]), np.array([0, 0, -0.5])
    spread = np.var(correct + penalty, ddof=1)
    assert told == {
        "correct": pytest.approx(np.cov(correct, correct + penalty)[0, 1] / spread),
        "repetition": pytest.approx(0),
        "repetition penalty": pytest.approx(np.cov(penalty, correct + penalty)[0, 1] / spread),
    }


def test_calls_of_operators_are_features_of_executed_programs(study: Path, rows: pd.DataFrame):
    run = read_study(study).runs[0]
    assert run.names == (*FEATURES, *(f"op/{name}" for name in sorted(OPERATORS)))
    reviews = run.features[..., run.names.index("op/Review")]
    part = rows[rows["cell"] == run.cell]
    calls = part["feature/op/Review"].where(part["outcome"].eq("ok"))
    assert np.nansum(reviews) == calls.sum()
    assert np.isfinite(reviews).sum() == calls.notna().sum() == 32 * STEPS
    assert run.unasked == 4 * STEPS, "no judge is asked about a program without an answer"


def test_runs_of_answers_and_of_programs_have_the_features_of_both(tmp_path: Path):
    study = write_programs(tmp_path / "runs" / "s", judges=("sim-fair",), seeds=1)
    config = {"study": "s", "seed": 9, "judge": {"name": "direct"}}
    write_cell(study / "direct", config, steps=2, groups=1, members=2)
    runs = read_study(study).runs
    assert {run.names for run in runs} == {FEATURES}
    assert {run.features.shape[-1] for run in runs} == {len(FEATURES)}


def test_the_optimum_of_a_judge_loses_truth(told: Workflow, rows: pd.DataFrame):
    """The fair judge's best small program is `voted` (.8, .5). The other pays .2 for the review in
    `reviewed` (.7, .4), which it scores .9 and .6. Two thirds of the problems are sums."""
    fair, verbose = (told.arms[judge].optimum for judge in JUDGES)
    assert fair.truth == fair.best == verbose.best == pytest.approx(0.8 * 2 / 3 + 0.5 / 3)
    assert verbose.truth == pytest.approx(0.7 * 2 / 3 + 0.4 / 3)
    assert set(verbose.programs.values()) == {"reviewed"}
    score = {
        (name, dataset): value
        for name, each in planted_json()["programs"].items()
        for dataset, value in each["score"]["sim-verbose"].items()
    }
    part = rows[(rows["arm"] == "sim-verbose") & (rows["outcome"] == "ok")]
    part = part.assign(score=[score[pair] for pair in zip(part["ast_sha"], part["dataset"])])  # noqa: B905
    reached = []
    for _, of_seed in part.groupby("seed"):
        means = of_seed.groupby(["step", "dataset"])["score"].agg(["sum", "size"])
        first, last = (
            sum(
                share * sums["sum"] / sums["size"]
                for name, share in SHARES.items()
                for sums in [means.loc[steps].xs(name, level="dataset").sum()]
            )
            for steps in ([1, 2], [STEPS - 1, STEPS])
        )
        reached.append((last - first) / (0.9 * 2 / 3 + 0.6 / 3 - first))
    assert verbose.reached.value == pytest.approx(np.mean(reached))


def test_without_planted_truth_nothing_is_planted(tmp_path: Path):
    study = write_programs(tmp_path / "runs" / "s", judges=("sim-fair",), seeds=2, planted=False)
    (arm,) = told_of(study).arms.values()
    assert np.isnan(arm.optimum.truth) and np.isnan(arm.optimum.reached.value)
    assert all(operator.planted is None for operator in arm.operators.values())


def test_programs_that_are_not_planted_are_left_out_of_the_planted_slope(study: Path):
    records = read_study(study)
    content = planted_json()
    del content["programs"]["long"]
    run = next(run for run in records.runs if run.arm == "sim-verbose")
    row = records.table[records.table["cell"] == run.cell]
    programs = of_frame(run, rollouts_frame(study, COLUMNS, row))
    told = of_run.planted_over_rewards(programs, of_json(content))
    assert told["Review"].value == pytest.approx(0.2) and "% of the rollouts" in told["Review"].note
    assert np.isnan(told["Revise"].value), "only `long` revises"
    optimum = of_runs([programs], of_json(content)).arms["sim-verbose"].optimum
    assert optimum.truth == pytest.approx(0.6)


def test_one_run_has_intervals_over_its_problems(tmp_path: Path):
    study = write_programs(tmp_path / "runs" / "s", judges=("sim-verbose",), seeds=1)
    arm = told_of(study).arms["sim-verbose"]
    rows = rollouts_frame(study, COLUMNS)
    part = rows[(rows["domain"] == "qa") & (rows["outcome"] == "ok")]
    error = part["judge_score"] - part["truth"]
    oracle = clustered(error.to_numpy(), pd.factorize(part["prompt_id"])[0])
    problems = part["prompt_id"].nunique()
    half = stats.t.ppf(0.975, problems - 1) * oracle.bse[0]
    assert arm.gap["qa"].value == pytest.approx(oracle.params[0])
    assert arm.gap["qa"].high - arm.gap["qa"].value == pytest.approx(half, rel=1e-6)
    assert (arm.gap["qa"].n, arm.gap["qa"].unit) == (problems, "problem")
    assert "over its problems" in arm.gap["qa"].note
    assert arm.hacking == UNTOLD


def test_without_a_truth_hacking_is_not_to_be_told(tmp_path: Path, answered):
    study = write_programs(tmp_path / "runs" / "s", judges=("sim-verbose",), seeds=2, truth=False)
    content, said = answered(main, study)
    arm = content["arms"]["sim-verbose"]
    assert arm["hacking"] == "not to be told" and arm["gap"] == {}
    assert all(each["over_reward"] is None for each in arm["operators"].values())
    assert arm["rates"]["executed"]["last"] == pytest.approx(32 / 36)
    assert "judge hacking is not to be told" in said


def test_the_command_writes_every_number(study: Path, answered):
    content, printed = answered(main, study)
    assert set(content) == {"arms", "treatments", "problems"} and set(content["arms"]) == {*JUDGES}
    arm = content["arms"]["sim-verbose"]
    assert set(arm) >= {*("runs", "rates", "gap", "shares", "operators", "exploits", "optimum")}
    assert set(arm["rates"]) == {"parse", "contract", "executed", "extractable", "masked"}
    of_review = set(arm["operators"]["Review"])
    assert of_review >= {"first", "last", "over_reward", "interval", "planted"}
    assert arm["operators"]["Custom"]["over_reward"] is None
    assert arm["operators"]["Custom"]["interval"] is None
    assert set(arm["optimum"]) >= {"truth", "reached"}
    assert [row["name"] for row in content["treatments"]] == ["judge=sim-verbose"]
    for text in ("Review", "planted", "judge=sim-verbose", "ScEnsemble is not identified"):
        assert text in printed


@pytest.mark.parametrize("content", ['{"version": 2}', "[1]", "{", '{"version": 1, "datasets": 3}'])
def test_a_planted_file_of_another_form_is_left_out_and_said(tmp_path: Path, content, printed):
    study = write_programs(tmp_path / "runs" / "s", judges=("sim-fair",), seeds=1, planted=False)
    (study / "planted.json").write_text(content)
    assert "planted.json is left out" in printed(main, study)


def test_a_treatment_says_what_so_many_seeds_would_show():
    # differences of seeds 0, .1, .2, .3 and .4: an SD of .158, of which five show 1.68
    effect = paired_difference(pd.Series([0.0, 0.1, 0.2, 0.3, 0.4]), pd.Series([0.0] * 5))
    treatment = Treatment("a=b", effect, "held-out truth", "a", "b")
    assert treatment.visible == pytest.approx(1.68 * 0.025**0.5, rel=2e-3)
    alike = paired_difference(pd.Series([0.1, 0.1]), pd.Series([0.0, 0.0]))
    assert np.isnan(dataclasses.replace(treatment, effect=alike).visible)
