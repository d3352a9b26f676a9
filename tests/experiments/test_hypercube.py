"""The Latin hypercube of the forecast covers every range, and is drawn alike each time."""

import hashlib
import json
from collections import Counter

import numpy as np
import pytest

from experiments import hypercube
from experiments.hypercube import BIASES, CHECKS, DESIGNS, DOSES, STEPS, TRAININGS, drawn, main
from experiments.plan.expand import expand
from study.config.schema import register

FROZEN = {"forecast-fit": "dfb139a3973d181c", "forecast-unseen": "5f9e888ad46b9e80"}
"""What was drawn before any of it was trained: another generator of random numbers shows here."""


@pytest.fixture(params=DESIGNS)
def study(request):
    return request.param


def test_what_is_drawn_is_what_was_trained(study):
    words = [training.words() for training in drawn(DESIGNS[study])]
    assert hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16] == FROZEN[study]


def test_every_part_of_each_range_is_drawn_from_once(study):
    design = DESIGNS[study]
    trainings = drawn(design)
    judges = [judge for training in trainings for judge in training.judges]
    assert len(trainings) == design.trainings and len(judges) == design.trainings * design.judges
    for name, (low, high) in CHECKS.items():
        width = (high - low) / len(judges)
        middles = low + width * (np.arange(len(judges)) + 0.5)
        apart = np.sort([judge[name] for judge in judges]) - middles
        assert np.abs(apart).max() <= width / 2 + 0.0006  # rounded to thousandths
    steps = np.log(np.sort([training.trainer["steps"] for training in trainings]))
    even = np.linspace(*np.log(STEPS), design.trainings + 1)
    assert (steps > even[:-1] - 0.05).all() and (steps < even[1:] + 0.05).all()
    for name, values in TRAININGS.items():
        counts = Counter(training.trainer[name] for training in trainings)
        for value in values:
            share = values.count(value) / len(values) * design.trainings
            assert abs(counts[value] - share) <= 1
    sizes = [dose for judge in judges for dose in judge["doses"].values()]
    assert all(DOSES[0] <= abs(dose) <= DOSES[1] for dose in sizes)
    assert 0.2 < np.mean(np.array(sizes) < 0) < 0.3
    assert {len(judge["doses"]) for judge in judges} == {0, 1, 2, 3}
    dealt = Counter(name for judge in judges for name in judge["doses"])
    assert max(dealt.values()) - min(dealt[name] for name in BIASES) <= 2


def test_no_judge_is_in_both_studies():
    fitted, unseen = (
        {str(judge) for training in drawn(DESIGNS[name]) for judge in training.judges}
        for name in DESIGNS
    )
    assert not fitted & unseen


def test_a_sweep_takes_each_training_with_its_judges():
    training = drawn(DESIGNS["forecast-fit"])[1]
    register()
    cells = []
    words = ["experiment=forecast-fit", *training.words(), "seed=30,31"]
    expand(words, lambda _, config: cells.append(config))
    assert len(cells) == 8
    assert {cell.trainer.steps for cell in cells} == {training.trainer["steps"]}
    for cell, judge in zip(cells[::2], training.judges, strict=True):
        given = {name: getattr(cell.judge.simulated, name) for name in CHECKS}
        assert (
            given | {"doses": {k: v for k, v in cell.judge.simulated.doses.items() if v}} == judge
        )


def test_the_plan_prints_the_sweeps_and_a_failure_ends_them(monkeypatch, capsys):
    assert main(["study=forecast-unseen", "plan=true"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 8
    assert all(line.startswith("judgedrift sweep experiment=forecast-fit study=") for line in lines)
    ran = []

    class Ended:
        returncode = 3

    monkeypatch.setattr(
        hypercube.subprocess, "run", lambda words, check: ran.append(words) or Ended
    )
    assert main(["study=forecast-unseen"]) == 3
    assert len(ran) == 1
