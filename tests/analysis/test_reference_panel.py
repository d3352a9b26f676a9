"""What other judges say of what was taught: by hand, by brute force, and of recorded studies."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.crossjudge.credits import gradings, read_credits, shows_rubric
from analysis.crossjudge.reference_panel import (
    exploitation_rate,
    exploited,
    left_out,
    preference,
    preferred,
    wins,
)
from analysis.field import __main__ as command
from analysis.records.frames import runs_frame
from analysis.records.runs import read_runs
from analysis.scaffold.self_gap import peak, self_gap, self_gaps
from judges.grading import GRADINGS
from study.cell import records
from study.cell.records import COMPONENT
from tests.analysis.conftest import ROLLOUT, clustered, schema, write_part, write_study

NAN = math.nan


def test_the_rate_of_hand_made_credits():
    before = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, NAN]])
    weights = np.array([[2.0, 1.0, 1.0], [4.0, 1.0, 7.0]])
    after = np.array([[1, 1, 1], [1, 0, 1.0]])
    panel = np.array(
        [  # answer, reference, criterion
            [[0, 0, 1], [0, 0, 0]],
            [[0, 0, 0], [0, 0, 0.0]],
        ]
    )
    # new: 2 (rejected by both) and 1 (one reference credits it) of prompt 0, 4 x .5 of prompt 1
    told = exploitation_rate(before, after, panel, weights, np.array([0, 1]))
    assert told.value == pytest.approx((2 + 2) / (2 + 1 + 2))
    assert told.new == pytest.approx(5 / (4 + 5)) and told.unknown == 0
    assert (told.n, told.unit) == (2, "prompt") and told.low < told.value < told.high


def test_a_missing_reference_is_no_rejection():
    one = np.ones((1, 1))
    answers = {
        ("missing", "rejects"): NAN,
        ("missing", "credits"): 0.0,
        ("rejects", "rejects"): 1.0,
        ("missing", "missing"): NAN,
    }
    word = {"missing": NAN, "rejects": 0.0, "credits": 1.0}
    for panel, rate in answers.items():
        said = np.array([[[word[each]] for each in panel]])
        told = exploitation_rate(0 * one, one, said, one, np.array([0]))
        assert told.value == rate or (math.isnan(told.value) and math.isnan(rate)), panel
    half = np.array([[[0.0]], [[NAN]]])
    told = exploitation_rate(0 * one, np.ones((2, 1)), half, one, np.array([0, 0]))
    assert (told.value, told.unknown, told.least, told.most) == (1.0, 0.5, 0.5, 1.0)


def test_without_a_panel_or_a_second_score_nothing_is_preferred():
    one, nobody = np.ones((1, 1)), np.empty((1, 0, 1))
    assert "no reference" in exploitation_rate(0 * one, one, nobody, one, np.array([0])).note
    panel = np.zeros((1, 1, 1))
    told = exploitation_rate(one, one, panel, one, np.array([0]))
    assert math.isnan(told.value) and "nothing is newly credited" in told.note and told.new == 0
    scores, prompts = np.array([0.1, NAN]), np.array(["a", "b"])
    assert wins(scores, prompts, np.array([NAN, 0.5]), prompts) == {}
    assert math.isnan(preference(np.array([])).value)
    assert preference(np.full(8, 0.5)).value == 0.5
    apart = left_out(np.array([1.0, 0.5, 1.0]), np.array([0.0, 0.5, 0.5]))
    assert apart.value == pytest.approx(0.5) and apart.unit == "prompt"


TOLD = st.sampled_from([0.0, 1.0, NAN])


@given(st.lists(st.tuples(TOLD, TOLD, TOLD, TOLD, st.integers(0, 2)), min_size=1, max_size=12))
def test_the_rate_is_what_counting_gives(cells):
    """One criterion an answer, two references, weights 1 to 3 by prompt."""
    before, after, a, b, prompt = (np.array(column) for column in zip(*cells, strict=True))
    starts = np.array([before[prompt == p][0] if (prompt == p).any() else NAN for p in range(3)])
    weights = np.array([[1.0], [2.0], [3.0]])
    told = exploitation_rate(
        starts[:, None], after[:, None], np.stack([a, b], 1)[..., None], weights, prompt
    )
    new = rejected = 0.0
    for credit, first, second, place in zip(after, a, b, prompt, strict=True):
        if credit != 1 or starts[place] != 0:
            continue
        if first == 1 or second == 1:
            new += weights[place, 0]
        elif first == 0 and second == 0:
            new += weights[place, 0]
            rejected += weights[place, 0]
    assert math.isnan(told.value) if new == 0 else told.value == pytest.approx(rejected / new)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=10),
    st.lists(st.tuples(st.sampled_from("bcd"), st.integers(0, 3)), min_size=1, max_size=10),
)
def test_wins_are_counted_pair_by_pair(first, later):
    def sides(pairs):
        return np.array([float(score) for _, score in pairs]), np.array([name for name, _ in pairs])

    told = wins(*sides(first), *sides(later))
    for prompt in {name for name, _ in first} & {name for name, _ in later}:
        both = [[score for name, score in side if name == prompt] for side in (first, later)]
        pairs = list(itertools.product(*both))
        count = sum((after > before) + 0.5 * (after == before) for before, after in pairs)
        assert told.pop(prompt) == pytest.approx(count / len(pairs))
    assert told == {}


def test_the_gap_is_per_token_and_clustered_by_prompt():
    rng = np.random.default_rng(0)
    prompt, tokens = rng.integers(0, 9, 40), rng.integers(1, 30, 40)
    shown = -rng.uniform(1, 50, 40)
    plain = shown - rng.uniform(0, 1, 40) * tokens
    told = self_gap(plain, shown, tokens, prompt)
    per_token = (plain - shown) / tokens
    fit = clustered(per_token, prompt)
    assert told.value == pytest.approx(per_token.mean())
    assert (told.low, told.high) == pytest.approx(fit.conf_int()[0])
    assert math.isnan(self_gap(np.array([NAN]), np.zeros(1), np.ones(1), np.zeros(1, int)).value)


def test_the_peak_is_found_and_few_steps_have_none():
    step = np.repeat(np.arange(1, 31), 4)
    sums = np.stack([-abs(step - 12.0), np.ones(len(step))], axis=1)
    told = peak(step, sums)
    assert told.value == told.low == told.high == 12
    assert "at least 8" in peak(step[:20], sums[:20]).note
    alone = peak(np.arange(1, 31), sums[::4])
    assert alone.value == 12 and math.isnan(alone.low)


def test_what_a_judge_was_shown_is_told_by_its_prompt():
    for name, options, shown in (
        ("likert", {"prompt": "default"}, True),
        ("likert", {"prompt": "strict", "rubric": "hidden"}, False),
        ("soft_choice", {"prompt": "strict", "rubric": "shown"}, True),
        ("soft_choice", {"rubric": "hidden"}, False),
        ("binary", {"prompt": "qa"}, False),
        ("rubric_item", {}, True),
    ):
        assert shows_rubric(name, GRADINGS[name](options).prompt_sha) is shown
    assert shows_rubric("likert", "of a prompt of one's own") is None
    assert shows_rubric("likert", "") is None and shows_rubric("other", "x") is None


VERDICT = schema(records.VERDICT, list(records.VERDICT))


def judged(folder: Path, step: int, told: dict[str, list[dict]], role: str) -> None:
    """Verdicts of a step: rollout id -> one or more verdicts."""
    rows = [
        {"rollout_id": name, "step": step, "role": role, "outcome": "scored", "attempts": 1}
        | {"sample_index": 0, "from_cache": False, "latency_s": 0.0}
        | verdict
        for name, verdicts in told.items()
        for verdict in verdicts
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_part(folder, step, rows, VERDICT)


@pytest.fixture(scope="module")
def rubric_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of ten steps. Each prompt comes back in every step; the training judge credits its
    first criterion from the last step on, the shadow never does, the replay does for one prompt."""
    config = {"grading": {"name": "rubric_batch"}, "family": "a"}
    folder = tmp_path_factory.mktemp("runs") / "rubric"
    write_study(folder, judges=["j"], seeds=2, steps=10, judge_config=config)
    whole = GRADINGS["likert"]({"rubric": "hidden"}).prompt_sha
    for cell in (path.parent for path in folder.glob("*/config.yaml")):
        for step in range(1, 11):
            part = cell / "rollouts" / f"step-{step:06d}.parquet"
            rows = pa.parquet.read_table(part).to_pylist()
            for row in rows:
                row["prompt_id"] = f"prompt {row['group']}"
            write_part(cell / "rollouts", step, rows, ROLLOUT)
            acting, replay, plain = {}, {}, {}
            for row in rows:
                first = "met" if step == 10 else "not_met"
                name, group = row["rollout_id"], row["group"]
                rubric = {"grading": "rubric_batch", "prompt_sha": "x", "score": step / 10}
                acting[name] = [{**rubric, "judge": "j", "judge_id": "1", "labels": [first, "met"]}]
                shadow = {**rubric, "judge": "s", "judge_id": "2", "role": "shadow"}
                votes = ["not_met", "met"], ["not_met", "met"], ["met", "unknown"]
                acting[name] += [shadow | {"labels": labels} for labels in votes]
                says = ["met" if group == 0 else "not_met", "unknown"]
                replay[name] = [{**rubric, "judge": "r", "judge_id": "3", "labels": says}]
                of_whole = {"grading": "likert", "prompt_sha": whole, "score": 1 - step / 10}
                plain[name] = [{**of_whole, "judge": "w", "judge_id": "4", "labels": []}]
            judged(cell / "verdicts", step, acting, "acting")
            judged(folder / "replays" / "r-1" / cell.name / "verdicts", step, replay, "replay")
            judged(folder / "replays" / "w-1" / cell.name / "verdicts", step, plain, "replay")
    return folder


def test_credits_are_read_with_a_majority_of_votes_and_the_rate_is_that_of_the_records(
    rubric_study,
):
    told = read_credits(rubric_study, runs_frame(rubric_study).iloc[[0]])
    assert told.acting == "j" and set(told.by_judge) == {"j", "s", "r"}
    assert told.by_judge["j"].shape == (160, 2) and told.weights_P_K.shape == (4, 2)
    assert np.nanmax(told.by_judge["s"][:, 0]) == 0  # two votes of three
    assert np.nanmin(told.by_judge["s"][:, 1]) == 1
    assert np.isnan(told.by_judge["r"][:, 1]).all()
    assert any("each counts 1" in line for line in told.problems)  # no such task
    runs = read_runs(rubric_study)[0]
    (row,), problems = exploited(runs, rubric_study)
    assert row.references == ("r", "s") and problems
    # 1 of 4 prompts is credited by the replay; the other criterion was credited from the start
    assert row.rate.value == pytest.approx(0.75) and row.new.value == pytest.approx(0.5)
    assert len(row.curve) == 9 and all(math.isnan(each.value) for each in row.curve[:-1])
    assert row.by_run[0].n == 4 and row.bounds == pytest.approx((0.75, 0.75))


def test_judges_without_the_rubric_stand_beside_the_training_judge(rubric_study):
    runs = [
        replace(run, shadows={**run.shadows, "w": 1.0 - run.step_P[:, None] + 0 * run.judge})
        for run in read_runs(rubric_study)[0]
    ]
    rows = preferred(runs, rubric_study)
    by_judge = {row.judge: row for row in rows}
    assert by_judge["j"].trained and by_judge["j"].shown and not by_judge["w"].shown
    assert by_judge["w"].preference.value == 0 and by_judge["w"].left_out.value > 0.4
    assert gradings(rubric_study, runs[0].cell)["w"][0] == "likert"
    assert preferred(read_runs(rubric_study)[0], rubric_study) == []  # nobody without rubric


@pytest.mark.parametrize("truth", ["that varies", "that stays"])
def test_gaps_are_of_answers_that_saw_the_whole_rubric(tmp_path, truth):
    folder = write_study(tmp_path / "runs" / "shown", judges=["j"], seeds=2, steps=10)
    assert self_gaps(read_runs(folder)[0], folder) == []
    for cell in (path.parent for path in folder.glob("*/config.yaml")):
        text = (cell / "config.yaml").read_text().replace("name: none", "name: ruscarl")
        (cell / "config.yaml").write_text(text)
        for part in (cell / "rollouts").iterdir():
            table = pa.parquet.read_table(part)
            step, member = table["step"][0].as_py(), np.array(table["member"])
            more = np.where(member == 0, (1 - step / 20) * np.array(table["tokens"]), 1000.0)
            shown = np.array(table["logprob_sum"]) + more
            table = table.append_column(f"{COMPONENT}scaffold_logprob", pa.array(shown))
            if truth == "that stays":
                place = table.column_names.index("truth")
                table = table.set_column(place, "truth", pa.array(np.full(len(shown), 0.5)))
            ratio = pa.array(np.where(member == 0, 1.0, 0.5))
            pa.parquet.write_table(table.append_column(f"{COMPONENT}scaffold_ratio", ratio), part)
    (row,) = self_gaps(read_runs(folder)[0], folder)
    assert row.start.value == pytest.approx(-0.95) and row.end.value == pytest.approx(-0.5)
    assert row.peak.value >= 8 and len(row.by_run) == 2
    assert np.isfinite(row.tracks.value) == (truth == "that varies")


def test_the_command_prints_the_panel(rubric_study, answered):
    numbers, printed = answered(command.main, rubric_study)
    assert "credits anew" in printed and "r, s" in printed and "problem: " in printed
    assert numbers["exploited"][0]["rate"]["value"] == pytest.approx(0.75)
