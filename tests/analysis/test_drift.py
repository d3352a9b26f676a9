import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.display.markup import bracket
from analysis.drift import estimate as drift
from analysis.drift import failures
from analysis.drift.pairs import paired_shifts
from analysis.records.runs import Run
from analysis.report.evidence import gather
from analysis.report.tables import summary_rows
from analysis.report.words import findings, limits, parameters
from tests.analysis.conftest import made_run


def cell(table: pd.DataFrame, **where: str) -> pd.Series:
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_curves_are_means_over_runs_with_their_t_interval(evidence):
    curves = drift.learning_curves(evidence.scores)
    last = cell(curves, arm="sim-verbose", metric="gap", step=6)
    # words above 6 at step 6: seed + (8 + seed) * 5 = 40, 46, 52; gap = 0.01 of it
    gaps = [0.40, 0.46, 0.52]
    low, high = stats.t.interval(0.95, 2, sum(gaps) / 3, stats.sem(gaps))
    assert last["mean"] == pytest.approx(0.46) and last["n"] == 3
    assert (last["low"], last["high"]) == (pytest.approx(low), pytest.approx(high))
    assert set(curves["metric"]) == set(drift.SCORES)


def run_of(judge, truth, steps=(1,), seed=0) -> Run:
    """A run of one group of G rollouts per step; ``judge`` and ``truth`` are (T, G)."""
    return made_run(judge, truth, step_P=np.array(steps), seed=seed)


def test_the_gap_and_the_naive_error_are_over_rollouts_with_both_scores():
    run = run_of([[0.9, math.nan, 0.5]], [[0.4, 0.1, math.nan]])
    curves = drift.run_curves([run]).set_index("metric")["value"]
    assert curves["gap"] == pytest.approx(0.5)
    assert curves["judge_score"] == pytest.approx(0.7)
    assert curves["truth"] == pytest.approx(0.25)
    judge, truth = [[0.0, 1.0], [2.0, 4.0]], [[0, 0], [0, 0]]
    runs = [run_of(judge, truth, steps=(1, 2), seed=seed) for seed in (0, 1)]
    row = cell(drift.shift_table(drift.run_shifts(runs), None), metric="judge_score")
    # variances .5 and 2 of two rollouts each: 1.25 a run, and the mean of two runs halves the SD
    assert row["naive_se"] == pytest.approx((1.25 + 1.25) ** 0.5 / 2)
    assert row["se"] == 0.0 and row["n"] == 2  # both runs moved alike
    assert math.isnan(row["group_se"])  # one group at each end has no spread between groups


def test_worst_cases_put_what_is_missing_at_the_ends_of_the_scale():
    run = run_of([[0.2, 0.4], [0.8, math.nan]], [[0.1, 0.1], [0.3, 0.3]], steps=(1, 2))
    table = drift.run_shifts([run]).set_index("metric")
    score = table.loc["judge_score"]
    # .3 to .8 as known; the missing one at 0 makes .4 of it, at 1 .9
    assert score["shift"] == pytest.approx(0.5) and score["unscored"] == 0.25
    assert (score["worst_low"], score["worst_high"]) == (pytest.approx(0.1), pytest.approx(0.6))
    gap = table.loc["gap"]  # .2 at first; last .5 as known, .1 to .6 with the missing one
    assert (gap["worst_low"], gap["worst_high"]) == (pytest.approx(-0.1), pytest.approx(0.4))
    assert table.loc[["truth", "reward"], "worst_low"].isna().all()
    whole = drift.run_shifts([run_of([[0.2], [0.8]], [[0.1], [0.1]], steps=(1, 2))])
    own = whole.set_index("metric").loc["judge_score"]
    assert own["worst_low"] == own["worst_high"] == own["shift"] == pytest.approx(0.6)


def test_the_group_error_is_that_of_a_clustered_regression():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(12, 4)) + rng.normal(size=(12, 1))
    values[2, 1] = values[5] = math.nan
    run = run_of(values, np.zeros_like(values), steps=[1] * 6 + [2] * 6)
    found = drift.run_shifts([run]).set_index("metric").loc["judge_score", "group_var"]
    oracle = 0.0
    for half in (values[:6], values[6:]):
        group, _ = np.nonzero(np.isfinite(half))
        y = half[np.isfinite(half)]
        fitted = sm.OLS(y, np.ones_like(y)).fit(cov_type="cluster", cov_kwds={"groups": group})
        oracle += float(fitted.bse[0]) ** 2
    assert found == pytest.approx(oracle)


def test_shifts_are_paired_by_seed_against_the_fair_judge(evidence):
    assert evidence.base == "sim-fair"
    gap = cell(evidence.score_shifts, arm="sim-verbose", metric="gap")
    # shifts of the three seeds are .40, .45 and .50; those of sim-fair are 0
    oracle = stats.ttest_1samp([0.40, 0.45, 0.50], 0)
    interval = oracle.confidence_interval()
    assert gap["shift"] == pytest.approx(0.45) and gap["diff"] == pytest.approx(0.45)
    assert gap["diff_low"] == pytest.approx(interval.low)
    assert gap["diff_high"] == pytest.approx(interval.high)
    assert gap["p_t"] == pytest.approx(oracle.pvalue) and gap["p_sign_flip"] == 0.25
    assert gap["pairs"] == gap["n"] == 3
    truth = cell(evidence.score_shifts, arm="sim-verbose", metric="truth")
    assert truth["shift"] == pytest.approx(0, abs=1e-12) and truth["p_t"] == 1.0
    # Holm over judge_score, truth, reward, gap of two arms: the smallest p is multiplied by 8
    ours = evidence.score_shifts
    assert ours["p_holm"].min() == pytest.approx(min(1, 8 * ours["p_t"].min()))
    fair = evidence.score_shifts[evidence.score_shifts["arm"] == "sim-fair"]
    assert fair["diff"].isna().all()


def grouped(rng, arm: str, seed: int, moves, groups: int = 6, prompts: str = "p") -> Run:
    """A run of two steps in which each of K behaviours moves by its own number of SDs."""
    moves = np.asarray(moves, dtype=float)
    features = rng.normal(size=(2 * groups, 4, len(moves)))
    features[groups:] += moves
    return made_run(
        np.full(features.shape[:2], math.nan), cell=f"{arm}{seed}", arm=arm, seed=seed,
        step_P=np.repeat([1, 2], groups), features=features,
        names=tuple(f"z{k}" for k in range(len(moves))),
        prompt_P=np.array([f"{prompts}{k}" for k in range(2 * groups)], dtype=object),
    )  # fmt: skip


def test_no_interval_is_narrower_than_sampling_within_the_runs_allows():
    """Two runs that moved alike by chance: their SE is nearly 0, their groups' is not."""
    rng = np.random.default_rng(0)
    runs = [grouped(rng, arm, seed, [0.3]) for arm in "ab" for seed in (0, 1)]
    shifts = drift.run_shifts(runs, drift.feature_values)
    shifts["shift"] = [0.3, 0.3004, 0.1, 0.1001]
    row = cell(drift.shift_table(shifts, "b"), arm="a")
    assert row["se"] == pytest.approx(0.0002) and row["group_se"] > 0.1
    widest = stats.t.ppf(0.975, 1)
    assert 1.96 < (row["high"] - row["low"]) / 2 / row["group_se"] < widest
    # the difference's: groups of equal step and prompt are paired
    first, last = (
        [run.features[here, :, 0].mean(axis=1) for run in runs] for here in (slice(6), slice(6, 12))
    )
    parts = [np.var(end[k] - end[2 + k], ddof=1) / 6 for end in (first, last) for k in (0, 1)]
    error = np.mean(parts) ** 0.5  # two ends, and the mean of two pairs
    assert 1.96 < (row["diff_high"] - row["diff_low"]) / 2 / error < widest
    normal, student = (2 * law.sf(row["diff"] / error) for law in (stats.norm, stats.t(1)))
    assert normal < row["p_t"] < student


def test_rollouts_that_both_runs_of_a_pair_share_add_no_sampling_error():
    rng = np.random.default_rng(1)
    ours, theirs = grouped(rng, "a", 0, [0.0]), grouped(rng, "b", 0, [0.0])
    others = grouped(rng, "b", 0, [0.0], prompts="q")
    theirs.features[:6] = ours.features[:6]

    def variance(*pair: Run) -> float:
        parts = [drift.run_shifts([run], drift.feature_values).set_index("seed") for run in pair]
        return paired_shifts(*parts).loc[0, "within"]

    last = ours.features[6:, :, 0].mean(axis=1) - theirs.features[6:, :, 0].mean(axis=1)
    assert variance(ours, theirs) == pytest.approx(last.var(ddof=1) / 6)
    apart = drift.run_shifts([ours, others], drift.feature_values)["group_var"].sum()
    assert variance(ours, others) == pytest.approx(apart)


@pytest.mark.parametrize(("studies", "most"), [(7, 0), pytest.param(12, 1, marks=pytest.mark.long)])
def test_null_studies_of_ten_arms_hardly_ever_report_a_difference(studies, most):
    """None of seven studies in which no arm differs, and one of twelve at most: more have a chance
    of 97 and 98 % with each arm corrected by itself and intervals over runs alone, which alarm in
    39 %."""
    rng, alarms = np.random.default_rng(2), 0
    arms = ["base", *(f"a{k}" for k in range(10))]
    for _ in range(studies):
        runs = [
            grouped(rng, arm, seed, rng.normal(0, 0.5, 10), 3) for arm in arms for seed in range(3)
        ]
        table = drift.shift_table(drift.run_shifts(runs, drift.feature_values), "base")
        alarms += bool((table["p_holm"] < 0.05).any())
    assert alarms <= most
    doses = [(arm, 3.0 if arm == "a0" else 0.0) for arm in arms]
    runs = [grouped(rng, arm, seed, [dose, 0.0], 40) for arm, dose in doses for seed in range(6)]
    table = drift.shift_table(drift.run_shifts(runs, drift.feature_values), "base")
    clear = table[table["p_holm"] < 0.05]
    assert list(zip(clear["arm"], clear["metric"], strict=True)) == [("a0", "z0")]


def test_the_base_is_fair_else_undosed_else_the_first():
    def base(*arms: str, undosed: str = "") -> str | None:
        return drift.base_arm(pd.DataFrame({"arm": arms, "undosed": [a == undosed for a in arms]}))

    assert base("b", "sim-fair", "a", undosed="b") == "sim-fair"
    assert base("b", "sim-fair, reward=mixed", "a") == "sim-fair, reward=mixed"
    assert base("dose=-0.1", "dose=0.0", "dose=0.1", undosed="dose=0.0") == "dose=0.0"
    assert base("b", "a") == "a"
    assert base() is None


def test_unfinished_runs_are_left_out_unless_none_is_finished(evidence):
    runs = evidence.cells.assign(done=[True] + [False] * 8)
    assert drift.usable_cells(runs) == [runs["cell"].iloc[0]]
    assert len(drift.usable_cells(runs.assign(done=False))) == 9


def test_the_failure_table_adds_up_to_the_verdicts(evidence):
    table = evidence.failures.set_index("judge")
    assert table["verdicts"].sum() == evidence.records.outcomes["verdicts"].sum() == 864
    assert table.loc["sim-flaky", ["scored", "unparsed", "verdicts"]].tolist() == [216, 72, 288]
    assert table.loc["sim-flaky", "unscored"] == 0.25 and table.loc["sim-fair", "unscored"] == 0
    assert list(table.drop(columns=["role", "verdicts", "unscored"])) == ["scored", "unparsed"]


def test_sizes_are_read_and_new_outcomes_counted():
    outcomes = {"outcome": ["timeout", "new_kind"], "verdicts": [2, 1]}
    outcomes = pd.DataFrame({"judge": "j", "role": "acting"} | outcomes)
    (row,) = failures.failure_table(outcomes).to_dict("records")
    assert (row["scored"], row["timeout"], row["new_kind"], row["verdicts"]) == (0, 2, 1, 3)
    assert parameters("135M") == 1.35e8 and parameters("7b") == 7e9
    assert parameters("") is None and parameters("large") is None


def test_an_outcome_of_any_name_is_a_reason(evidence):
    """Also one that is called like a part of the sentence."""
    lines = findings(replace(evidence, failures=evidence.failures.assign(reasons=4, percent=3)))
    assert any("unparsed 72, reasons 4, percent 3" in line for line in lines)


def counted(lengths: list[float], lost: list[bool]) -> pd.DataFrame:
    """One verdict per length in each of two runs."""
    outcome = ["timeout" if gone else "scored" for gone in lost]
    one = pd.DataFrame({"judge": "j", "role": "acting", "outcome": outcome, "words": lengths})
    return pd.concat([one.assign(cell=name, verdicts=1) for name in ("x", "y")])


def test_failures_by_length_find_the_long_answers_that_lose_theirs():
    lengths = [float(k) for k in range(100)]
    table = failures.failures_by_length(counted(lengths, [k >= 95 for k in range(100)]))
    assert len(table) == 10 and table["verdicts"].tolist() == [20] * 10
    assert table["mean"].tolist() == [0.0] * 9 + [0.5]
    assert table["words_high"].iloc[-1] == 99 and set(table["n"]) == {2}
    # one length is one bin
    table = failures.failures_by_length(counted([7.0] * 10, [True] + [False] * 9))
    assert table[["words_low", "words_high", "mean"]].to_numpy().tolist() == [[7.0, 7.0, 0.1]]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=60))
def test_the_deciles_of_counts_are_those_of_pandas(rows):
    lengths, lost = (list(column) for column in zip(*rows, strict=True))
    each = counted([float(words) for words in lengths], lost)
    by = ["cell", "judge", "role", "outcome", "words"]
    table = failures.failures_by_length(each.groupby(by, as_index=False)["verdicts"].sum())
    bins = pd.qcut(each["words"], 10, labels=False, duplicates="drop").fillna(0)
    shares = each["outcome"].ne("scored").groupby(bins.to_numpy()).mean()
    assert table["mean"].tolist() == pytest.approx(shares.tolist())
    assert table["verdicts"].tolist() == bins.value_counts(sort=False).sort_index().tolist()


def test_samples_show_the_same_prompt_under_every_arm(evidence):
    rollouts = drift.sample_rollouts(evidence.records, evidence.used_cells)
    table = drift.sample_completions(rollouts, ranks=2)
    assert len(table) == 3 * 2 * 3
    assert set(table["seed"]) == {0}
    for _, cards in table.groupby(["when", "rank"], observed=True):
        assert cards["prompt"].nunique() == 1
        assert cards["arm"].tolist() == ["sim-fair", "sim-flaky", "sim-verbose"]
    assert table.groupby("when", observed=True)["step"].first().tolist() == [1, 3, 6]
    last = cell(table[table["rank"] == 1], when="last", arm="sim-verbose")
    assert last["judge_score"] == pytest.approx(0.4 + 0.01 * 40)
    assert len(last["completion"].split()) == 46


def test_a_missing_group_is_stood_in_for_by_the_nearest(evidence):
    rollouts = drift.sample_rollouts(evidence.records, evidence.used_cells)
    some = rollouts[rollouts["group"] != 0]
    assert drift.sample_completions(some, ranks=1)["prompt"].str.contains("prompt 1").all()
    assert drift.sample_completions(some.head(0)).empty


def test_findings_carry_the_planted_numbers(evidence):
    text = " ".join(findings(evidence))
    assert "9 of 9 runs are finished (3 arms, 3 seeds)" in text
    assert "864 rollouts and 864 verdicts" in text
    length, gap = (
        cell(table, arm="sim-verbose", metric=metric)
        for table, metric in ((evidence.feature_shifts, "length"), (evidence.score_shifts, "gap"))
    )
    # words: 40, 45 and 50 more, and one of 16 last answers of each run has 15 hostile words on top
    assert length["diff"] == pytest.approx(45 + 15 / 16) and gap["diff"] == pytest.approx(0.45)
    shown = f"judge minus truth +0.45 {bracket(gap['diff_low'], gap['diff_high'])}"
    assert f"sim-verbose beyond sim-fair (3 pairs by seed): {shown}" in text
    shown = f"length +45.9 {bracket(length['diff_low'], length['diff_high'])} words"
    assert f"behaviours differ at Holm p < .05: {shown} (Holm p " in text
    assert "sim-flaky (acting) left 25.0 % of 288 verdicts unscored: unparsed 72" in text
    assert "nan" not in text.lower()
    rows = {row["judge"]: row for row in summary_rows(evidence)}
    assert rows["sim-verbose"]["judge - truth"] == "0.01 -> 0.46"
    assert rows["sim-flaky"]["words vs sim-fair"] == "+10 [-2.4, 22.4]"
    assert all(isinstance(value, str) for row in rows.values() for value in row.values())


ONE_RUN = {"judges": ["sim-fair"], "seeds": 1, "steps": 2}


@pytest.mark.parametrize(
    "options, said",
    [
        ({"seeds": 1}, "One run only for sim-fair, sim-flaky and sim-verbose"),
        ({}, "With 3 seeds per judge the exact sign-flip test cannot give p below 0.25"),
        ({"judges": ["sim-fair"]}, "There is one arm (sim-fair)"),
        ({"truth": False, "seeds": 2}, "No rollout has a rule truth"),
        ({"scored": False, "seeds": 2}, "Every verdict of sim-fair is unscored"),
        ({"constant": 0.5, "seeds": 2}, "sim-fair gave every answer 0.5: a constant score"),
        ({"state": "failed", **ONE_RUN}, "No run is finished"),
        ({"steps": 0, "state": "new"}, "No rollout is on record"),
        (
            {"judge_config": {"family": "SmolLM2", "size": "135M", "simulated": None}, **ONE_RUN},
            "sim-fair is a very small model (SmolLM2 135M)",
        ),
    ],
)
def test_what_cannot_be_concluded_is_said(gathered, options, said):
    evidence = gathered(**options)
    text = " ".join(limits(evidence))
    assert said in text
    assert "nan" not in (text + " ".join(findings(evidence))).lower()


def test_steps_that_were_lost_are_said_and_are_no_end_of_a_run(make_study):
    study = make_study(judges=["sim-verbose"], seeds=1, steps=20)
    for step in (5, 19, 20):
        next(study.glob(f"*/rollouts/step-{step:06d}.parquet")).unlink()
    evidence = gather(study)
    assert "has 17 of its 20 steps on record" in " ".join(limits(evidence))
    gap = cell(evidence.score_shifts, metric="gap")
    assert math.isnan(gap["shift"]) and gap["first"] == pytest.approx(0.04)
    curve = evidence.scores[evidence.scores["metric"] == "gap"].set_index("step")["value"]
    assert len(curve) == 20 and curve.isna().sum() == 3


def test_a_run_that_names_no_judge_is_under_no_treatment(make_study):
    study = make_study(judges=["sim-fair"], seeds=3)
    sorted(study.glob("*/config.yaml"))[0].write_text("judge: [unclosed")
    sorted(study.glob("*/config.yaml"))[1].write_text("judge: a word")
    evidence = gather(study)
    assert len(evidence.runs) == 1 and evidence.base == "sim-fair"
    text = " ".join([*findings(evidence), *limits(evidence), *evidence.records.problems])
    assert "(no name)" not in text and "names no judge, so it is in no estimate" in text
    assert [row["judge"] for row in summary_rows(evidence)] == ["sim-fair"]
