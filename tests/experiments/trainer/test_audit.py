"""Judges that say what is true while a run is trained: whom they are asked about, and who hears."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from analysis.audit.__main__ import main as audit
from analysis.audit.estimate import audit_of
from analysis.records.runs import read_study
from experiments.plan.rates import expected
from experiments.trainer.alarm import Alarm
from experiments.trainer.audit import audit_metrics, audits
from judges.ask.session import Session
from study.cell import cells
from study.cell.audit import AUDIT, drawn_of
from study.cell.folder import CellFolder, study_cells
from study.config.compose import load_judge
from study.config.correction import Correction
from study.config.schema import ByAudit, Study, Trainer
from study.rewards.compose import RewardInputs
from study.rows import make_row
from study.truth.oracle import Oracle
from tests.conftest import RECORDS_ONLY
from tests.faults import lives

STEPS, GROUPS, SIZE = 6, 4, 2
WORDS = "amber brick cloud delta ember frost grain haven".split()


def step_of(ruled):
    """The answers of a step, those of the groups ``ruled`` with a truth by rule."""
    return [
        RewardInputs(
            row := make_row(({"role": "user", "content": f"q{group}"},)),
            row,
            "word " * (group + member + 1),
            tokens=5,
            truth=1.0 if group in ruled else None,
            rules=(),
        )
        for group in range(GROUPS)
        for member in range(SIZE)
    ]


def test_drawn_groups_are_asked_about_and_no_others():
    trainer = Trainer(steps=20, prompts_per_step=GROUPS, group_size=SIZE)
    config = Study(trainer=trainer, truth=ByAudit(["flesch"], share=0.5))
    asked = set()
    nobody = Oracle(lambda prompt_id: None, lambda rows, answers: [None] * len(rows))
    with Session(load_judge("flesch"), None, nobody) as auditor:
        for step in range(1, 21):
            rows = audits(config, step, step_of(ruled={0}), [auditor])
            assert {row["role"] for row in rows} <= {AUDIT}
            groups = {int(row["rollout_id"][7:]) // SIZE for row in rows}
            assert len(rows) == SIZE * len(groups)
            asked |= {(step, group) for group in groups}
    assert asked == {(step, group) for step, group in drawn_of(config) if group != 0}
    assert len(asked) > 20
    assert not audits(Study(trainer=trainer), 1, step_of(ruled=()), [])


def test_a_step_without_a_rule_has_the_gap_of_its_audited_answers():
    rollouts = [
        {"rollout_id": name, "judge_score": score}
        for name, score in (("a", 1.0), ("b", 0.5), ("c", None), ("d", 0.25))
    ]
    votes = [
        {"rollout_id": name, "judge": judge, "score": score, "role": role}
        for name, judge, score, role in (
            ("a", "x", 0.25, AUDIT),
            ("a", "y", 0.75, AUDIT),
            ("b", "x", 0.5, AUDIT),
            ("b", "y", None, AUDIT),  # one of two said nothing: no truth
            ("c", "x", 1.0, AUDIT),
            ("c", "y", 1.0, AUDIT),
            ("d", "x", 0.0, "shadow"),
        )
    ]
    assert audit_metrics(rollouts, votes) == {"truth/audited": 0.5, "bias/judge_minus_truth": 0.5}
    assert audit_metrics(rollouts, votes[-1:]) == {}


def write_prompts(path):
    """Rows of which every fourth has a reference, so that the tiny policy has lessons."""
    rows = [{"prompt": f"Name thing {n}."} for n in range(32)]
    for n, row in enumerate(rows[::4]):
        row["reference"] = f"a {WORDS[n]} thing"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def study(trained, tmp_path_factory):
    """A run on prompts without a truth, judged by variety of words and audited by ease of reading:
    two judges that nobody planted."""
    folder = tmp_path_factory.mktemp("audited")
    prompts = write_prompts(folder / "prompts.jsonl")
    done = trained(
        folder / "runs",
        *(*RECORDS_ONLY, "task=prompts", f"task.path={prompts}", "judge=type-token", "seed=0"),
        *("truth.audit=[flesch]", "truth.share=0.5", f"trainer.steps={STEPS}"),
        *(f"trainer.prompts_per_step={GROUPS}", "trainer.micro_batch=16"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / "debug"


def test_what_was_said_while_it_was_trained_is_the_truth_of_a_run(study):
    (folder,) = study_cells(study)
    config = cells.load_cell(folder).config
    rollouts = {row["rollout_id"]: row for row in lives.parts(folder.path, "rollouts")}
    verdicts = [row for row in lives.parts(folder.path, "verdicts") if row["role"] == AUDIT]
    by_rule = {(row["step"], row["group"]) for row in rollouts.values() if row["truth"] is not None}
    places = {
        (row["step"], row["group"])
        for each in verdicts
        if (row := rollouts[each["rollout_id"]])["truth"] is None
    }
    assert {each["judge"] for each in verdicts} == {"flesch"}
    assert places == drawn_of(config) - by_rule
    assert 0 < len(places) < STEPS * GROUPS - len(by_rule)
    (run,) = read_study(study).runs
    assert run.reference is not None and not run.shadows
    assert run.reference.asked_P.sum() == len(places)
    scores = {each["rollout_id"]: each["score"] for each in verdicts}
    said = [scores[name] for name in sorted(scores)]
    assert run.truth[run.reference.asked_P].ravel().tolist() == said
    assert np.isfinite(run.truth).all(axis=1).sum() == len(places) + len(by_rule)
    assert sum(run.reference.sizes.values()) == STEPS * GROUPS - len(by_rule)
    estimate = audit_of([run], study)
    assert estimate is not None and estimate.audit.reference == ("flesch",)
    assert estimate.arms[0].groups == len(places)


def test_a_plan_counts_the_drawn_answers(study):
    (folder,) = study_cells(study)
    cell = cells.load_cell(folder)
    plain = dataclasses.replace(cell.config, truth=ByAudit(), shadow_judges=[])
    calls = [
        expected(dataclasses.replace(cell, config=config))["calls"]
        for config in (cell.config, plain)
    ]
    size = cell.config.trainer.group_size
    # a computed judge sends one request a verdict
    assert calls[0] - calls[1] == len(drawn_of(cell.config)) * size
    own = dataclasses.replace(cell.config, judge=cell.config.shadow_judges[0])
    assert expected(dataclasses.replace(cell, config=own))["calls"] == calls[0]


def test_another_reference_is_refused_and_the_same_one_adds(study, tmp_path, capsys):
    folder = tmp_path / "runs" / "debug"
    shutil.copytree(study, folder)
    where = ("study=debug", f"runs_dir={folder.parent}")
    assert audit([*where, "by=vader"]) == 2
    assert "asked flesch while it was trained" in " ".join(capsys.readouterr().err.split())
    assert not (folder / "replays").exists()
    before = read_study(folder).runs[0].reference
    assert audit([*where, "by=flesch", "share=1"]) == 0
    after = read_study(folder).runs[0].reference
    assert before is not None and after is not None
    assert after.asked_P.sum() > before.asked_P.sum()
    both = before.asked_P & after.asked_P
    assert both.sum() == before.asked_P.sum()
    assert np.array_equal(before.score[both], after.score[both])
    assert dict(before.sizes) == dict(after.sizes)


def heard(config, steps, leaves, rng):
    """Rollouts and verdicts of a run whose judge leaves the truth by .05 a step from a step on; the
    truth is told of drawn groups alone."""
    drawn, size = drawn_of(config), config.trainer.group_size
    for step in range(1, steps + 1):
        level = rng.normal(0.5, 0.05, (config.trainer.prompts_per_step, size))
        gap = 0.05 * max(0, step - leaves) + rng.normal(0, 0.02, level.shape)
        rollouts, verdicts = [], []
        for (group, member), truth in np.ndenumerate(level):
            name = f"{step:06d}-{group * size + member:06d}"
            score = float(truth + gap[group, member])
            place = {"step": step, "prompt_id": f"{step}-{group}", "answer": "a word"}
            rollouts.append({"rollout_id": name, **place, "judge_score": score, "truth": None})
            if (step, group) in drawn:
                vote = {"rollout_id": name, "judge": "auditor", "score": float(truth)}
                verdicts.append(vote | {"role": AUDIT})
        yield rollouts, verdicts


@pytest.mark.parametrize("leaves", [15, 40])
def test_an_alarm_on_audits_ends_a_run_that_leaves_the_reference(leaves, tmp_path):
    config = Study(
        trainer=Trainer(steps=40, prompts_per_step=8, group_size=4),
        truth=ByAudit(["auditor"], share=0.25),
        correction=Correction(stop=True),
    )
    alarm, ends = Alarm(config, CellFolder(tmp_path)), []
    for rollouts, verdicts in heard(config, 40, leaves, np.random.default_rng(0)):
        alarm.add(rollouts, verdicts)
        ends.append(alarm.step)
    if leaves == 40:
        assert ends == [None] * 40
        return
    first = next(step for step in ends if step is not None)
    # the gap is .4 by then, eight times what a group's truth varies by
    assert leaves < first <= leaves + 10
    unheard = Alarm(config, CellFolder(tmp_path))
    for rollouts, _ in heard(config, 40, leaves, np.random.default_rng(0)):
        unheard.add(rollouts, [])
    assert unheard.step is None
