"""What audited groups say of all answers, on planted truth, by hand, and in a report."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from httpx import ASGITransport, AsyncClient
from hypothesis import given
from hypothesis import strategies as st

from analysis.audit import display
from analysis.audit.estimate import (
    Stratum,
    audit_of,
    mean_of_run,
    strata_of,
    weighted_mean,
)
from analysis.audit.person import Desk
from analysis.audit.plan import delay, plan
from analysis.audit.planted import (
    FALL,
    RISE,
    against_fair,
    audit_of_some,
    audited,
    expected_fall,
    gap_of,
    planted,
)
from analysis.drift.estimate import run_curves, run_shifts
from analysis.ledger.estimate import ledger
from analysis.onset.estimate import by_looks, own_line
from analysis.records.audited import Reference, truth_of_all
from analysis.records.runs import shift, step_means
from study.cell import audit as kept
from study.cell.audit import Audit, Drawn, Question
from study.rows import Criterion, make_row


def run_of(seed=0, **settings):
    return planted(np.random.default_rng(seed), seed=seed, **settings)


def test_the_truth_of_all_answers_by_hand():
    judge = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, np.nan], [1.0, 0.0]])
    truth = np.array([[0.0, 0.0], [np.nan, np.nan], [np.nan, np.nan], [1.0, 0.5]])
    audited_P = np.array([True, False, False, False])
    reference = Reference(truth, audited_P, audited_P, np.zeros(4, dtype=int), {0: 4})
    # score - truth is 1 and 0 of the audited group: .5 in the mean, of 2 of 5 scored answers
    smooth = truth_of_all(judge, truth, reference, by_group=False)
    assert smooth[:3].tolist() == [
        [0.5, -0.5],
        [0.5, 0.5],
        [-0.5, pytest.approx(np.nan, nan_ok=True)],
    ]
    assert smooth[3].tolist() == [1.0, 0.5]  # by a rule
    spread = truth_of_all(judge, truth, reference, by_group=True)
    assert spread[0].tolist() == [0.5 - 0.5 * 5 / 2, -0.5 + 0.5 * 5 / 2]
    assert np.nansum(spread) == pytest.approx(np.nansum(smooth))


@given(st.integers(0, 50), st.sampled_from([0.02, 0.1, 0.5]))
def test_where_all_is_audited_nothing_changes(seed, share):
    run = run_of(seed, steps=20, groups=4)
    whole = audited(run, 1.0, seed)
    assert np.allclose(whole.levels(by_group=True), run.truth)
    assert whole.levels().mean() == pytest.approx(run.truth.mean())
    shifts = [run_shifts([each]).set_index("metric")["shift"] for each in (run, whole)]
    assert shifts[0]["gap"] == pytest.approx(shifts[1]["gap"])
    assert shifts[0]["truth"] == pytest.approx(shifts[1]["truth"])
    gap = gap_of(whole)
    assert gap.value == pytest.approx((run.judge - run.truth).mean())
    assert gap.low == gap.high == gap.value  # nothing was left to chance
    some = audited(run, share, seed)
    # the score is the truth and the gap, whatever was audited
    parts = run_shifts([some]).set_index("metric")["shift"]
    assert parts["judge_score"] - parts["gap"] == pytest.approx(parts["truth"])


def test_a_stratified_mean_by_hand():
    strata = [Stratum(8, np.array([1.0, 3.0])), Stratum(24, np.array([0.0, 0.0, 3.0]))]
    estimate = weighted_mean(strata)
    assert estimate.value == pytest.approx(0.25 * 2 + 0.75 * 1)
    variance = 0.25**2 * (1 - 2 / 8) * 2 / 2 + 0.75**2 * (1 - 3 / 24) * 3 / 3
    t = 3.182446  # of 3 degrees of freedom
    assert estimate.high - estimate.value == pytest.approx(t * variance**0.5, rel=1e-6)
    assert estimate.n == 5
    one = weighted_mean([Stratum(8, np.array([1.0]))])
    assert np.isnan(one.low) and "no interval" in one.note
    assert np.isnan(weighted_mean([]).value)


def test_a_run_with_a_stretch_that_has_no_answer_yet_is_one_stretch():
    strata = {0: Stratum(8, np.array([1.0])), 2: Stratum(24, np.array([0.0, 5.0]))}
    whole = mean_of_run(strata, {0: 8, 1: 16, 2: 24})
    assert whole == weighted_mean([Stratum(48, np.array([1.0, 0.0, 5.0]))])
    assert whole.value == 2.0 and np.isfinite(whole.low)
    assert mean_of_run(strata, {0: 8, 2: 24}).value == 0.25 * 1.0 + 0.75 * 2.5
    assert np.isnan(mean_of_run({}, {0: 8}).value)


def test_estimates_are_right_in_the_mean_and_covered():
    # 150 data sets: the SE of a share of .95 is .018, so four of them are .071
    for row in audit_of_some(np.random.default_rng(0), 150).values():
        within = (row.low <= row.truth) & (row.truth <= row.high)
        assert within.mean() > 0.95 - 0.071
        error = row.estimate - row.truth
        assert abs(error.mean()) < 4 * error.std() / 150**0.5


def test_the_expected_fall_is_that_of_many_runs():
    fall = [shift(step_means(run, run.truth)) for run in map(run_of, range(60))]
    assert np.mean(fall) == pytest.approx(expected_fall(), abs=4 * np.std(fall) / 60**0.5)
    assert -FALL < expected_fall() < 0


def test_a_difference_is_narrower_than_the_truth_of_the_audited_groups_alone():
    """The judge's scores of all groups say how hard the audited ones were."""
    whole, beside, alone = [], [], []
    for seed in range(40):
        run = run_of(seed, rise=0.0)
        some = audited(run, 0.05, seed)
        whole.append(shift(step_means(run, run.truth)))
        beside.append(run_shifts([some]).set_index("metric").loc["truth", "shift"])
        alone.append(shift(step_means(some, some.truth)))
    errors = [np.std(np.subtract(each, whole)) for each in (beside, alone)]
    assert errors[0] < 0.8 * errors[1]


def test_what_happens_within_groups_is_measured_in_the_audited_ones():
    rng = np.random.default_rng(0)
    run = run_of(steps=40)
    run = replace(
        run,
        judge=run.truth + 0.3 * run.features[..., 0] + 0.1 * rng.standard_normal(run.truth.shape),
    )
    some = audited(run, 0.3, 0)
    steps = [ledger([each])["bias/length"].dropna() for each in (run, some)]
    assert steps[1].mean() == pytest.approx(steps[0].mean(), abs=0.02)
    assert 10 < len(steps[1]) <= len(steps[0])


def test_curves_are_flat_between_audits_and_end_where_the_shift_does():
    some = audited(run_of(), 0.05, 0)
    curves = run_curves([some]).pivot(index="step", columns="metric", values="value")
    gaps = curves["gap"].to_numpy()
    assert (np.diff(gaps) != 0).sum() <= 9
    assert np.abs(gaps).max() < 1
    assert shift(gaps) == pytest.approx(run_shifts([some]).set_index("metric").loc["gap", "shift"])


def test_steps_with_one_audited_group_are_looked_at_together():
    some = audited(run_of(), 0.1, 0)
    seen = by_looks(some)
    steps, counts = np.unique(seen.step_P, return_counts=True)
    assert counts.min() >= 2
    assert steps[-1] == some.step_P[np.isfinite(some.truth).any(axis=1)].max()
    assert len(seen.step_P) == np.isfinite(some.truth).any(axis=1).sum()
    plain = run_of()
    assert by_looks(plain) is plain


def test_the_alarm_rings_for_a_gap_that_grows_on_audited_rows_and_not_for_one_that_does_not():
    rings = [
        [
            own_line(audited(run_of(seed, rise=rise, steps=80, groups=16), 0.2, seed)).alarm
            for seed in range(6)
        ]
        for rise in (0.5, 0.0)
    ]
    assert sum(each is not None for each in rings[0]) == 6
    assert sum(each is not None for each in rings[1]) <= 1  # .05 each: two of six in .03


def test_groups_that_nobody_was_asked_about_are_no_lost_truths():
    run = run_of(steps=20)
    lost = np.random.default_rng(0).random(run.judge.shape) < 0.1
    scores = np.where(lost, np.nan, run.judge)
    some = audited(replace(run, judge=scores, reward=scores), 0.3, 0)
    rows = ledger([some])
    known = rows[rows["lost/length"].notna()]
    assert len(known) > 10
    for end in ("lost_low/length", "lost_high/length"):  # every audited truth is known
        assert known[end].to_numpy() == pytest.approx(known["lost/length"].to_numpy())


def test_missing_answers_of_the_reference_have_bounds(tmp_path):
    run = run_of()
    rng = np.random.default_rng(0)
    some = audited(run, 0.2, 0, missing=0.1, rng=rng)
    study = study_audit([some], tmp_path)
    arm = study.arms[0]
    assert 0 < arm.missing < arm.answers
    assert arm.least < arm.gap.value < arm.most
    # a tenth of the answers, each between 0 and 1
    assert arm.most - arm.least == pytest.approx(0.1, abs=0.03)
    text = " ".join(display.findings(study))
    assert f"gave no score to {arm.missing:,}" in text


def study_audit(runs, study_dir):
    """What the audit of these runs says, its settings kept in a folder."""
    settings = {"share": 0.1, "seed": 0, "rules": False, "reference_ids": ("x",)}
    kept.save(Audit(reference=("sim-fair",), **settings), study_dir)
    study = audit_of(runs, study_dir)
    assert study is not None
    return study


def test_a_share_costs_what_its_plan_says():
    shares = plan(40, 8)
    assert [each.groups for each in shares] == [20, 20, 20, 40, 70]
    halves = [each.half for each in shares]
    assert halves == sorted(halves, reverse=True)
    run = run_of(3, steps=40, groups=8)
    some = audited(run, 0.2, 0)
    assert sum(len(each.gap_P) for each in strata_of(some, run.judge - run.truth).values()) == 70


def test_a_larger_rise_and_a_larger_share_are_noticed_earlier():
    by_rise = [delay(200, 320, rise, 0.15) for rise in (0.2, 0.4, 0.8)]
    assert by_rise == sorted(by_rise, reverse=True)
    by_share = [delay(200, groups, 0.4, 0.15) for groups in (80, 320, 1280)]
    assert by_share == sorted(by_share, reverse=True)
    assert np.isnan(delay(200, 40, 0.01, 0.15))


def test_an_audit_is_a_section_of_the_report_and_says_whose_word_the_truth_is(tmp_path):
    runs = [
        run_of(seed, arm=arm, rise=rise)
        for arm, rise in (("biased", RISE), ("fair", 0.0))
        for seed in range(3)
    ]
    some = [audited(run, 0.2, 0) for run in runs]
    study = study_audit(some, tmp_path)
    assert study.is_truth
    assert display.who(study) == "sim-fair"
    assert "No rule knows the truth" in display.extent(study)
    fragments = display.section(study)
    assert any("judge - reference" in str(fragment) for fragment in fragments)
    table = display.audit_table(study)
    assert table["arm"].tolist() == ["biased", "fair"]
    assert "could be" not in table and "judge - rule [95 %]" not in table
    gap = {arm.arm: arm.gap for arm in study.arms}
    assert gap["biased"].low > gap["fair"].value
    beyond = against_fair(some)
    assert beyond.low < expected_fall() < beyond.high


HOSTILE = '</pre><script>alert(1)</script><img src=x onerror="alert(2)">'


def test_what_a_policy_wrote_is_text_on_the_page(tmp_path):
    audit = Audit(("person",), (), 0.1, 0, False, (Drawn("a-s0", 1, 0, 0),))
    kept.save(audit, tmp_path)
    row = make_row(({"role": "user", "content": HOSTILE},), (Criterion(HOSTILE, -1.0),))
    desk = Desk(tmp_path, audit, [(Question("n", 0, row.prompt_text(), HOSTILE), row)], 2)

    async def pages():
        transport = ASGITransport(desk.app())
        async with AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            first = await client.get(f"/{desk.token}/")
            form = {"at": "0", "score": "1"}
            second = await client.post(f"/{desk.token}/", data=form, follow_redirects=True)
            return first.text, second.text

    first, last = asyncio.run(pages())
    assert HOSTILE not in first
    assert first.count("&lt;/pre&gt;&lt;script&gt;") == 3
    assert first.count("<script>") == 1
    assert "(should not)" in first
    assert "wrong" in first and "right" in first
    assert "All 1 answers are done" in last
    assert kept.load_answers(tmp_path) == {"n": 1.0}


def test_beside_a_rule_nothing_of_the_report_changes(tmp_path):
    """With rules=true the reference is asked and the rule stays the truth."""
    run = run_of()
    some = audited(run, 0.1, 0)
    assert some.reference is not None and some.told_P is not None
    nobody = np.zeros(len(run.step_P), dtype=bool)
    beside = replace(run, reference=replace(some.reference, truth_P=nobody))
    assert beside.told_P is None
    assert beside.levels() is beside.truth
    shifts = [run_shifts([each]).drop(columns="tails") for each in (run, beside)]
    assert shifts[0].equals(shifts[1])
    free = [run_shifts([each])["tails"].iloc[1][0].free for each in (run, beside, some)]
    assert free[0] == free[1] > free[2] == 7  # eight of 72 groups of a tenth were drawn
    assert by_looks(beside) is beside
