"""One effect has one value and one interval, on the same rows in both arms, wherever it stands."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.display.markup import score, signed
from analysis.drift.pairs import paired_shifts
from analysis.families.display import judges_table
from analysis.families.estimate import of_runs as families_of
from analysis.field.display import tables as field_tables
from analysis.frozen.effects import Effects, effects_of
from analysis.frozen.estimate import held_out_table
from analysis.interventions.display import bought_table
from analysis.knockout.display import knockout_table
from analysis.records.runs import Run
from analysis.report.evidence import Evidence, of_records
from analysis.report.sections import shifts_table
from analysis.statistics.estimate import Estimate
from analysis.study import Study
from tests.analysis.test_frozen import make_run
from tests.analysis.test_interventions import records_of

DOSE = "judge.simulated.doses.length"
PART = {"b": 0.1, "error": 0.0, "sd": 1.0, "source": "dose"}
OUT = {"correction.without.0": "length"}
OUT |= {f"correction.parts.length.{name}": value for name, value in PART.items()}
ARMS: dict[str, tuple[dict[str, Any], float]] = {
    "absent": ({DOSE: 0.0}, 0.0),
    "biased": ({DOSE: 0.1}, 3.0),
    "out": ({DOSE: 0.1, **OUT}, 0.5),
}
"""Identity of each arm, and the words by which its answers grow."""


def runs_of(evaluated: bool) -> list[Run]:
    """A judge with a dose, the same with its part taken out, and one that never had it."""
    runs = []
    for place, (arm, (identity, words)) in enumerate(ARMS.items()):
        for seed in range(3):
            rng = np.random.default_rng([seed, place])
            run = make_run(rng, arm, seed, moved=(words, 0.2 * place), noise=0.5)
            given = {"seed": seed, "judge.simulated.noise_sd": 0.0, **identity}
            config = {**run.config, **given}
            assert run.frozen is not None
            end = (run.frozen.step_P == 10)[:, None]
            truth = run.frozen.truth + end * rng.normal(0.05 * place, 0.05, run.frozen.truth.shape)
            judge = run.frozen.judge + end * rng.normal(0.1 * place, 0.1, truth.shape)
            frozen = dataclasses.replace(run.frozen, truth=truth, judge=judge)
            frozen = frozen if evaluated else None
            changed = dataclasses.replace(run, config=config, identity=given, frozen=frozen)
            runs.append(dataclasses.replace(changed, reward=run.judge, advantage=run.judge))
    return runs


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(True, id="held_out"),
        pytest.param(False, id="rollouts", marks=pytest.mark.long),
    ],
)
def told(request, tmp_path_factory) -> Evidence:
    runs = runs_of(request.param)
    records = records_of(tmp_path_factory.mktemp("study"), runs)
    undosed = records.table["arm"].eq("absent")
    table = records.table.assign(undosed=undosed, keyword="", step=10, steps=10)
    return of_records(dataclasses.replace(records, table=table))


def same(one: Estimate, other: Estimate) -> None:
    ends = [(each.value, each.low, each.high, each.n) for each in (one, other)]
    assert ends[0] == ends[1] and np.isfinite(ends[0]).all()


def test_tables_of_shifts_have_the_effects_of_the_study(told):
    study, effects = Study(**vars(told.records)), told.effects
    assert effects.base == told.base == "absent"
    for table in (told.score_shifts, told.feature_shifts):
        for row in table.to_dict("records"):
            if row["metric"].startswith("score by") or np.isnan(row["shift"]):
                continue
            shift = effects.shift(row["metric"], row["arm"])
            assert (row["shift"], row["low"], row["high"]) == (shift.value, shift.low, shift.high)
            assert str(study.shift(row["metric"], row["arm"])) == str(shift)
            if row["arm"] != "absent":
                pair = effects.difference(row["metric"], row["arm"], "absent")
                shown = (row["diff"], row["diff_low"], row["diff_high"], row["p_t"])
                assert shown == (pair.value, pair.low, pair.high, pair.p_t)


def test_interventions_knock_outs_and_field_tables_have_them_too(told):
    effects = told.effects
    plain, out = told.interventions.arms
    assert (plain.arm, out.arm) == ("biased", "out")
    for metric, estimate in {"length": out.behaviour, "truth": out.truth}.items():
        same(estimate, effects.difference(metric, "out", "biased"))
    same(plain.behaviour, effects.shift("length", "biased"))
    same(plain.truth, effects.shift("truth", "biased"))
    (row,) = told.knockouts
    for arm, shift in {
        "biased": row.shift,
        "out": row.shift_out,
        "absent": row.shift_absent,
    }.items():
        same(shift, effects.shift("length", arm))
    same(row.lost, effects.difference("length", "biased", "out"))
    assert row.lost.value == -out.behaviour.value
    assert row.gone.value == pytest.approx(row.lost.value / row.shift.value)
    for compared in told.field.compared:
        same(compared.by_run, effects.difference("truth", compared.arm, "absent"))
    wheres = {told.interventions.where, row.where, told.field.where}
    assert wheres == {effects.where}


def test_they_are_written_alike(told):
    """To the digit, in the cells of the tables."""
    shown = pd.concat(
        [shifts_table(t, told.base) for t in (told.score_shifts, told.feature_shifts)]
    )
    shown = shown.set_index(["measure", "arm"])
    bought = bought_table(told.interventions).set_index("arm")
    assert bought.loc["biased", "length (words)"] == shown.loc[("length (words)", "biased")].iloc[2]
    truth = next(measure for measure, _ in shown.index if "truth (score)" in measure)
    assert bought.loc["biased", "truth"] == shown.loc[(truth, "biased"), "shift [95 %]"]
    removed = knockout_table(told.knockouts).iloc[0]
    assert f"+{removed['shift']}" == shown.loc[("length (words)", "biased"), "shift [95 %]"]
    compared = field_tables(told.field)["compared"].set_index("arm")
    for arm in ("biased", "out"):
        beside = shown.loc[(truth, arm), "vs absent [95 %]"]
        assert compared.loc[arm, "effect over runs"] == beside


def test_held_out_tables_have_them_too(told):
    if told.effects.on == "rollouts":
        return
    table = held_out_table(told.runs, "absent", told.effects.variances)
    for row in table[table["metric"].isin(["length", "truth", "gap"])].to_dict("records"):
        shift = told.effects.shift(row["metric"], row["arm"])
        assert (row["shift"], row["low"], row["high"]) == (shift.value, shift.low, shift.high)
    # what is beyond held-out rows is said to be, and compared where the ledger is at home
    (row,) = told.knockouts
    assert row.lost_rollouts.value != row.lost.value


def test_judges_by_family_have_the_effects_of_their_arm():
    runs = []
    for run in runs_of(True):
        config = {"judge.name": run.arm, "judge.family": run.arm, "trainer.steps": 10}
        runs.append(dataclasses.replace(run, config=config, identity={}))
    effects = effects_of(runs, None)
    families = families_of(runs, {"length": 2.0}, effects)
    shown = judges_table(families).set_index("family")
    for judge in families.judges:
        same(judge.truth, effects.shift("truth", judge.arm))
        same(judge.score, effects.shift("judge_score", judge.arm))
        (length,) = judge.behaviours
        whole = effects.shift("length", judge.arm)
        ends = (whole.value / 2, whole.low / 2, whole.high / 2)
        assert (length.shift.value, length.shift.low, length.shift.high) == pytest.approx(ends)
        assert shown.loc[judge.arm, "shift of the truth"] == score(judge.truth)
    assert signed(families.judges[0].truth)


def without_row(run: Run, step: int, place: int) -> Run:
    """A run that lost a held-out row at one end."""
    frozen = run.frozen
    kept = np.ones(len(frozen.step_P), dtype=bool)
    kept[np.flatnonzero(frozen.step_P == step)[place]] = False
    return dataclasses.replace(run, frozen=frozen.where(kept))


def pair_of(effects: Effects, metric: str) -> pd.DataFrame:
    return paired_shifts(effects.runs_of(metric, "biased"), effects.runs_of(metric, "absent"))


def test_arms_are_compared_on_the_rows_that_both_answered():
    """Row 4 is lost in one run of one arm alone: the difference is that of the other eleven."""
    runs = [run for run in runs_of(True) if run.arm != "out"]
    changed = [without_row(run, 10, 4) if run.cell == "biased-0" else run for run in runs]
    of_seed = {run.arm: run.frozen.features[..., 1:, 0] for run in runs if run.seed == 0}
    moves = {arm: np.delete(z[12:] - z[:12], 4, axis=0) for arm, z in of_seed.items()}
    row = pair_of(effects_of(changed, "absent"), "length").loc[0]
    assert row["treated"] == pytest.approx(moves["biased"].mean())
    assert row["base"] == pytest.approx(moves["absent"].mean())
    by_row = (moves["biased"] - moves["absent"]).mean(axis=1)
    assert row["within"] == pytest.approx(by_row.var(ddof=1) / 11)
    # each arm's own shift has all rows that it answered
    alone = effects_of(changed, "absent").shift("length", "absent")
    assert alone.value == effects_of(runs, "absent").shift("length", "absent").value


def rollouts_of(run: Run, kept: Sequence[int]) -> Run:
    return dataclasses.replace(run.where(np.isin(np.arange(len(run.step_P)), kept)), frozen=None)


def test_a_group_that_one_run_lost_is_left_out_of_both():
    runs = [run for run in runs_of(False) if run.arm != "out"]
    groups = len(runs[0].step_P)
    lost = groups - 2  # of the last step's four
    kept = [place for place in range(groups) if place != lost]
    changed = [rollouts_of(run, kept) if run.cell == "absent-1" else run for run in runs]
    row = pair_of(effects_of(changed, "absent"), "length").loc[1]
    (ours,) = (run for run in runs if run.cell == "biased-1")
    first = ours.features[ours.step_P == 1][..., 0].mean()
    last = ours.features[[groups - 4, groups - 3, groups - 1]][..., 0].mean()
    assert row["treated"] == pytest.approx(last - first)
    others = pair_of(effects_of(runs, "absent"), "length")
    assert row["treated"] != others.loc[1, "treated"]
    unchanged = pair_of(effects_of(changed, "absent"), "length").loc[[0, 2]]
    pd.testing.assert_frame_equal(unchanged, others.loc[[0, 2]])


def test_a_run_that_was_stopped_has_rows_of_its_own_at_its_end():
    """Its last steps are no others' last steps: there the two are independent."""
    runs = [run for run in runs_of(False) if run.arm != "out"]
    early = [
        dataclasses.replace(run.where(run.step_P <= 6), config={"trainer.steps": 6})
        if run.arm == "biased"
        else run
        for run in runs
    ]
    row = pair_of(effects_of(early, "absent"), "length").loc[0]
    ours, theirs = (next(r for r in early if r.cell == f"{arm}-0") for arm in ("biased", "absent"))
    for name, run, step in (("treated", ours, 6), ("base", theirs, 10)):
        first, last = (run.features[run.step_P == at][..., 0].mean() for at in (1, step))
        assert row[name] == pytest.approx(last - first)
