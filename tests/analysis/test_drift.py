from __future__ import annotations

import math

import pandas as pd
import pytest
from scipy import stats

from analysis import drift
from analysis.findings import findings, gather, limits, parameters, summary_rows


@pytest.fixture(scope="module")
def found(planted):
    return gather(planted)


def cell(table: pd.DataFrame, **where: str) -> pd.Series:
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_curves_are_means_over_runs_with_their_t_interval(found):
    curves = drift.learning_curves(found.scores)
    last = cell(curves, arm="sim-verbose", metric="gap", step=6)
    # words above 6 at step 6: seed + (8 + seed) * 5 = 40, 46, 52; gap = 0.01 of it
    gaps = [0.40, 0.46, 0.52]
    low, high = stats.t.interval(0.95, 2, sum(gaps) / 3, stats.sem(gaps))
    assert last["mean"] == pytest.approx(0.46) and last["n"] == 3
    assert (last["low"], last["high"]) == (pytest.approx(low), pytest.approx(high))
    assert set(curves["metric"]) == set(drift.SCORES)


def test_the_gap_uses_rollouts_that_have_both_scores():
    rows = {
        "cell": ["c"] * 3,
        "arm": ["a"] * 3,
        "seed": [0] * 3,
        "step": [1] * 3,
        "reward": [0.0, 0.0, 0.0],
        "judge_score": [0.9, math.nan, 0.5],
        "truth": [0.4, 0.1, math.nan],
    }
    curves = drift.run_curves(pd.DataFrame(rows)).set_index("metric")["value"]
    assert curves["gap"] == pytest.approx(0.5)
    assert curves["judge_score"] == pytest.approx(0.7)
    assert curves["truth"] == pytest.approx(0.25)


def test_shifts_are_paired_by_seed_against_the_fair_judge(found):
    assert found.base == "sim-fair"
    gap = cell(found.score_shifts, arm="sim-verbose", metric="gap")
    # shifts of the three seeds are .40, .45 and .50; those of sim-fair are 0
    oracle = stats.ttest_1samp([0.40, 0.45, 0.50], 0)
    interval = oracle.confidence_interval()
    assert gap["shift"] == pytest.approx(0.45) and gap["diff"] == pytest.approx(0.45)
    assert gap["diff_low"] == pytest.approx(interval.low)
    assert gap["diff_high"] == pytest.approx(interval.high)
    assert gap["p_t"] == pytest.approx(oracle.pvalue) and gap["p_sign_flip"] == 0.25
    assert gap["pairs"] == gap["n"] == 3
    truth = cell(found.score_shifts, arm="sim-verbose", metric="truth")
    assert truth["shift"] == pytest.approx(0, abs=1e-12) and truth["p_t"] == 1.0
    # Holm over judge_score, truth, reward, gap: the smallest p is multiplied by 4
    ours = found.score_shifts[found.score_shifts["arm"] == "sim-verbose"]
    assert ours["p_holm"].min() == pytest.approx(min(1, 4 * ours["p_t"].min()))
    fair = found.score_shifts[found.score_shifts["arm"] == "sim-fair"]
    assert fair["diff"].isna().all()


def test_the_base_is_sim_fair_or_the_first():
    assert drift.base_arm(["b", "sim-fair", "a"]) == "sim-fair"
    assert drift.base_arm(["b", "sim-fair, reward=mixed", "a"]) == "sim-fair, reward=mixed"
    assert drift.base_arm(["b", "a"]) == "a"
    assert drift.base_arm([]) is None


def test_unfinished_runs_are_left_out_unless_none_is_finished(found):
    runs = found.runs.assign(done=[True] + [False] * 8)
    assert drift.usable_cells(runs) == [runs["cell"].iloc[0]]
    assert len(drift.usable_cells(runs.assign(done=False))) == 9


def test_the_failure_table_adds_up_to_the_verdicts(found):
    table = found.failures.set_index("judge")
    assert table["verdicts"].sum() == len(found.verdicts) == 864
    assert table.loc["sim-flaky", ["scored", "unparsed", "verdicts"]].tolist() == [216, 72, 288]
    assert table.loc["sim-flaky", "unscored"] == 0.25 and table.loc["sim-fair", "unscored"] == 0
    assert [name for name in table if name not in ("role", "verdicts", "unscored")] == [
        "scored",
        "unparsed",
    ]


def test_outcomes_of_another_version_are_still_counted():
    verdicts = pd.DataFrame(
        {"judge": "j", "role": "acting", "outcome": ["timeout", "new_kind", "timeout"]}
    )
    (row,) = drift.failure_table(verdicts).to_dict("records")
    assert (row["scored"], row["timeout"], row["new_kind"], row["verdicts"]) == (0, 2, 1, 3)


def lengths_study(lengths: list[float], lost: list[bool]) -> tuple[pd.DataFrame, pd.DataFrame]:
    ids = [f"r{k}" for k in range(len(lengths))]
    outcome = ["timeout" if gone else "scored" for gone in lost]
    cells = [pd.DataFrame({"cell": name, "rollout_id": ids}) for name in ("x", "y")]
    both = pd.concat(cells, ignore_index=True)
    verdicts = both.assign(judge="j", role="acting", outcome=outcome * 2)
    return verdicts, both.assign(length=lengths * 2)


def test_failures_by_length_find_the_long_answers_that_lose_theirs():
    lengths = [float(k) for k in range(100)]
    verdicts, words = lengths_study(lengths, [k >= 95 for k in range(100)])
    table = drift.failures_by_length(verdicts, words)
    assert len(table) == 10 and table["verdicts"].tolist() == [20] * 10
    assert table["mean"].tolist() == [0.0] * 9 + [0.5]
    assert table["words_high"].iloc[-1] == 99 and set(table["n"]) == {2}


def test_one_length_is_one_bin():
    verdicts, words = lengths_study([7.0] * 10, [True] + [False] * 9)
    table = drift.failures_by_length(verdicts, words)
    assert table[["words_low", "words_high", "mean"]].to_numpy().tolist() == [[7.0, 7.0, 0.1]]


def test_samples_show_the_same_prompt_under_every_arm(found):
    table = drift.sample_completions(found.rollouts, ranks=2)
    assert len(table) == 3 * 2 * 3
    assert set(table["seed"]) == {0}
    for _, cards in table.groupby(["when", "rank"], observed=True):
        assert cards["prompt"].nunique() == 1
        assert cards["arm"].tolist() == ["sim-fair", "sim-flaky", "sim-verbose"]
    steps = table.groupby("when", observed=True)["step"].first().tolist()
    assert steps == [1, 3, 6]
    last = cell(table[table["rank"] == 1], when="last", arm="sim-verbose")
    assert last["judge_score"] == pytest.approx(0.5 + 0.01 * 40)
    assert len(last["completion"].split()) == 46


def test_a_missing_group_is_stood_in_for_by_the_nearest(found):
    some = found.rollouts[found.rollouts["group"] != 0]
    table = drift.sample_completions(some, ranks=1)
    assert table["prompt"].str.contains("prompt 1").all()
    assert drift.sample_completions(some.head(0)).empty


def test_findings_carry_the_planted_numbers(found):
    text = " ".join(findings(found))
    assert "9 of 9 runs are finished (3 arms, 3 seeds)" in text
    assert "864 rollouts and 864 verdicts" in text
    assert "judge minus truth shifted by +0.45 [0.326, 0.574] more" in text
    # words: 40, 45 and 50 more, and one of 16 last answers of each run has 15 hostile words on top
    assert "the behaviours that differ most are length +45.9 [33.5, 58.4] words" in text
    assert "sim-flaky (acting) left 25.0 % of 288 verdicts unscored: unparsed 72" in text
    assert "nan" not in text.lower()
    rows = {row["judge"]: row for row in summary_rows(found)}
    assert rows["sim-verbose"]["judge - truth"] == "0.01 -> 0.46"
    assert rows["sim-flaky"]["words beyond sim-fair"] == "+10 [-2.42, 22.4]"
    assert all(isinstance(value, str) for row in rows.values() for value in row.values())


@pytest.mark.parametrize(
    "options, said",
    [
        ({"seeds": 1}, "One run only for sim-fair, sim-flaky and sim-verbose"),
        ({}, "With 3 seeds per judge the exact sign-flip test cannot give p below 0.25"),
        ({"judges": ["sim-fair"]}, "There is one arm (sim-fair)"),
        ({"truth": False}, "No rollout has a rule truth"),
        ({"scored": False}, "Every verdict of sim-fair is unscored"),
        ({"constant": 0.5}, "sim-fair gave every answer 0.5: a constant score"),
        ({"state": "failed"}, "No run is finished"),
        ({"steps": 0, "state": "new"}, "No rollout is on record"),
        (
            {"judge_config": {"family": "SmolLM2", "size": "135M", "simulated": None}},
            "sim-fair is a very small model (SmolLM2 135M)",
        ),
    ],
)
def test_what_cannot_be_concluded_is_said(make_study, options, said):
    found = gather(make_study(**options))
    text = " ".join(limits(found))
    assert said in text
    assert "nan" not in (text + " ".join(findings(found))).lower()


def test_sizes():
    assert parameters("135M") == 1.35e8 and parameters("7b") == 7e9
    assert parameters("") is None and parameters("large") is None
