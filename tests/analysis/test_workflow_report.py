"""The report's section on programs: its tables and figures, and nothing where none was written."""

import dataclasses
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from analysis.records.runs import read_study
from analysis.report import sections
from analysis.report.evidence import Evidence, gather, of_records
from analysis.report.words import findings
from analysis.workflow import display as drawn
from analysis.workflow.arm import Optimum
from tests.analysis.program_study import write_programs


@pytest.fixture(scope="module")
def evidence(tmp_path_factory) -> Evidence:
    """Two judges x two seeds x two settings."""
    folder = tmp_path_factory.mktemp("reported") / "runs" / "programs"
    return gather(write_programs(folder, seeds=2, settings=({}, {"fallback": "credit"})))


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


def test_a_study_of_answers_has_no_such_section(planted: Path):
    records = read_study(planted)
    bare = of_records(records, list(records.table["cell"])[:1])
    assert bare.workflow is None and sections.workflow(bare) == []


def test_the_findings_name_what_is_paid_for(evidence: Evidence):
    sentences = [line for line in findings(evidence) if "pays for a call" in line]
    assert len(sentences) == 2 and all("sim-verbose" in line for line in sentences)
    assert all("Review +0.2" in line and "planted +0.2" in line for line in sentences)


def test_no_operator_with_a_slope_is_no_figure(evidence: Evidence):
    bare = {
        name: dataclasses.replace(arm, operators={}) for name, arm in evidence.workflow.arms.items()
    }
    assert drawn.over_rewards(dataclasses.replace(evidence.workflow, arms=bare)) is None
