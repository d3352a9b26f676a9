"""Logs of others' runs of programs, made by hand, and the report's section on programs."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from analysis.report import sections
from analysis.report.evidence import Evidence, gather, of_records
from analysis.report.words import findings
from analysis.workflow import display as drawn
from analysis.workflow.__main__ import main
from analysis.workflow.arm import Optimum
from analysis.workflow.log import COLLAPSED, HEALED, PERSISTED, SOUND, describe_run, read
from tests.analysis.program_study import write_programs
from tests.study.tasks.datasets import roots


def write(path: Path, fallbacks: Callable[[int], bool], updates: Callable[[int], bool]) -> Path:
    """Twenty steps of one group of two; the reward is 1 of the first and 0 of the second in odd
    steps, equal in even ones."""
    rows: list[dict[str, Any]] = [
        {"run": "a", "step": step, "prompt": 1, "member": member, "update": updates(step)}
        | {"fallback": fallbacks(step), "dsl": f"Custom {step % 2}", "ops": 1}
        | {"reward": float(step % 2 and member == 1)}
        for step in range(1, 21)
        for member in (1, 2)
    ]
    return roots.lines(path, rows)


def often(step: int) -> bool:
    return step % 3 == 0


def test_a_collapse_that_heals_without_an_update(tmp_path: Path):
    (run,) = read(write(tmp_path / "log.jsonl", lambda step: often(step - 1), often)).values()
    assert (run.updates, run.rollouts, run.steps) == (6, 40, 20)
    assert (run.groups, run.tied) == (20, 10)
    assert (run.after_update.value, run.after_none.value, run.two_after.value) == (1, 0, 0)
    assert (run.collapse, run.healing) == (COLLAPSED, HEALED)


def test_a_collapse_that_stays(tmp_path: Path):
    """Once updated, the programs are defaults but in every third step."""
    (run,) = read(write(tmp_path / "log.jsonl", lambda step: not often(step), often)).values()
    assert (run.after_update.value, run.two_after.value) == (1, 1)
    assert run.after_none.value == pytest.approx(7 / 13)
    assert (run.collapse, run.healing) == (COLLAPSED, PERSISTED)
    assert any("did not heal" in sentence for sentence in describe_run(run))


def test_a_sound_log_needs_no_healing_and_missing_steps_do_not_follow_each_other(tmp_path: Path):
    (run,) = read(write(tmp_path / "log.jsonl", lambda step: step % 2 == 0, often)).values()
    assert (run.collapse, run.healing) == (SOUND, "")
    assert not any("collapse" in sentence for sentence in describe_run(run))
    path = write(tmp_path / "log.jsonl", often, often)
    lines = map(json.loads, path.read_text().splitlines())
    (run,) = read(roots.lines(path, [line for line in lines if line["step"] != 10])).values()
    assert run.after_update.n + run.after_none.n == 17


@pytest.mark.parametrize(
    "change, said",
    [
        ({"fallback": "maybe"}, "column fallback holds 'maybe'"),
        ({"step": None}, "column step holds a blank cell"),
        ({"member": 2}, "repeats run"),
        ({"update": True}, "more than one update"),
        ({"reward": "a lot"}, "column reward"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, capsys, change: dict[str, Any], said: str):
    path = write(tmp_path / "log.jsonl", often, often)
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | change), *rest]))
    assert main([f"log={path}"]) == 2
    told_user = capsys.readouterr().err
    assert said in told_user and "Traceback" not in told_user


def test_a_table_of_something_else_is_refused(tmp_path: Path, capsys):
    assert main([f"log={roots.lines(tmp_path / 'log.jsonl', [{'item': 1}])}"]) == 2
    assert "no column run" in capsys.readouterr().err


@pytest.fixture(scope="module")
def evidence(tmp_path_factory) -> Evidence:
    """Two judges x two settings, a run each."""
    folder = tmp_path_factory.mktemp("reported") / "runs" / "programs"
    return gather(write_programs(folder, seeds=1, settings=({}, {"fallback": "credit"})))


def test_the_section_has_every_table_and_figure(evidence: Evidence):
    before = plt.get_fignums()
    text = "".join(sections.workflow(evidence))
    heads = [
        "Which programs did the judge teach?", "Programs that parse", "Calls per executed program",
        "Judge minus truth of executed programs", "Ways to a judge", "Effective shares",
        "Where each judge leads", "What single settings did", "is not identified",
    ]  # fmt: skip
    places = [text.index(head) for head in heads]
    assert places == sorted(places)
    assert text.count("<figure>") == 3 and plt.get_fignums() == before
    assert "workflow.fallback=credit" in text
    assert sections.workflow in sections.SECTIONS


@pytest.mark.usefixtures("unrendered")
def test_without_planted_truth_there_is_no_figure_of_it(evidence: Evidence):
    told = evidence.workflow
    bare = {
        name: dataclasses.replace(
            arm,
            optimum=Optimum(),
            operators={k: dataclasses.replace(v, planted=None) for k, v in arm.operators.items()},
        )
        for name, arm in told.arms.items()
    }
    changed = dataclasses.replace(evidence, workflow=dataclasses.replace(told, arms=bare))
    text = "".join(sections.workflow(changed))
    assert text.count("<figure>") == 2 and "Where each judge leads" not in text
    assert drawn.lost_truth(dataclasses.replace(told, arms=bare)) is None


def test_the_figure_shows_seen_beside_planted(evidence: Evidence):
    figure = drawn.over_rewards(evidence.workflow)
    by_arm = {axes.get_title(loc="left"): axes for axes in figure.axes}
    (verbose,) = (axes for name, axes in by_arm.items() if "verbose" in name and "credit" in name)
    points = {line.get_label(): line.get_xdata() for line in verbose.lines}
    assert sorted(points["seen"]) == pytest.approx([0.1, 0.2])
    assert sorted(points["planted"]) == pytest.approx([0.1, 0.2])


def test_without_operators_or_programs_there_is_no_section_and_no_figure(
    gathered: Callable[..., Evidence], evidence: Evidence
):
    records = gathered().records
    bare = of_records(records, list(records.table["cell"])[:1])
    assert bare.workflow is None and sections.workflow(bare) == []
    bare = {
        name: dataclasses.replace(arm, operators={}) for name, arm in evidence.workflow.arms.items()
    }
    assert drawn.over_rewards(dataclasses.replace(evidence.workflow, arms=bare)) is None


def test_the_findings_name_what_is_paid_for(evidence: Evidence):
    sentences = [line for line in findings(evidence) if "pays for a call" in line]
    assert len(sentences) == 2 and all("sim-verbose" in line for line in sentences)
    assert all("Review +0.2" in line and "planted +0.2" in line for line in sentences)
