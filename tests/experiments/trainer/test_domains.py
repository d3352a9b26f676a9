"""Metrics by domain: by hand on made rollouts, and of real steps from what those recorded."""

import dataclasses
import math

import pytest

from experiments.tracking.projection import points
from experiments.trainer.record_step import domain_metrics
from study.cell.folder import CellFolder
from study.config.schema import Judge, Reward, Task
from study.tasks import TASKS
from study.tasks.mixture import Mixture, Options, Pool
from tests import lazy_task
from tests.invariants.test_grpo import LengthJudge, run, study

MIX = {"math": 0.4, "qa": 0.3, "code": 0.3}


def rollout(domain, truth, judge, advantage=0.0, reward=None, tokens=4):
    reward = judge if reward is None else reward
    values = {"truth": truth, "judge_score": judge, "advantage": advantage}
    return {"domain": domain, "reward": reward, "tokens": tokens} | values


STEP = [
    rollout("qa", 1.0, 1.0, 0.5, tokens=2),
    rollout("qa", 0.0, 1.0, 0.5),
    rollout("qa", 0.0, None, 0.0),
    rollout("qa", 0.0, 0.0, -1.0, tokens=6),
    *[rollout("math", 1.0, 0.75) for _ in range(4)],
]


def test_a_step_by_hand():
    metrics = domain_metrics(STEP, 4, "group", MIX)
    assert {point.name for point in points(1, 0, metrics)} == set(metrics)  # as MLflow has them
    assert metrics.pop("domain/math/gap") == pytest.approx(-0.25)
    assert metrics.pop("domain/qa/gap") == pytest.approx(1 / 3)  # (0 + 1 + 0) of three with both
    assert metrics.pop("domain/qa/judge") == metrics.pop("domain/qa/reward") == pytest.approx(2 / 3)
    expected = {
        "qa": {"n": 4, "truth": 0.25, "tpr": 1.0, "fpr": 0.5, "unscored_frac": 0.25}
        | {"frac_zero_std": 0.0, "nominal_share": 0.3, "realised_share": 0.5, "tokens": 4.0}
        | {"effective_share": 1.0, "rule_effective_share": 1.0},
        # every answer is right: there is no rate of wrong ones, and not a rate of 0
        "math": {"n": 4, "truth": 1.0, "judge": 0.75, "tpr": 1.0, "unscored_frac": 0.0}
        | {"frac_zero_std": 1.0, "nominal_share": 0.4, "realised_share": 0.5, "tokens": 4.0}
        | {"effective_share": 0.0, "rule_effective_share": 0.0, "reward": 0.75},
        # drawn in no group of this step
        "code": {"n": 0, "nominal_share": 0.3, "realised_share": 0.0}
        | {"effective_share": 0.0, "rule_effective_share": 0.0},
    }
    flat = {f"domain/{d}/{name}": v for d, part in expected.items() for name, v in part.items()}
    assert metrics == flat


def test_what_a_step_cannot_give_or_nobody_knows_is_absent():
    metrics = domain_metrics([rollout("qa", None, None) for _ in range(4)], 4, "group", {"qa": 1.0})
    told = {name.removeprefix("domain/qa/"): value for name, value in metrics.items()}
    shares = {"nominal_share": 1.0, "realised_share": 1.0, "unscored_frac": 1.0}
    assert told == {"n": 4.0, "tokens": 4.0} | shares
    assert domain_metrics([{**row, "domain": ""} for row in STEP], 4, "group", {}) == {}
    metrics = domain_metrics(STEP, 4, "group", {})
    assert metrics == {
        name: value
        for name, value in domain_metrics(STEP, 4, "group", MIX).items()
        if "nominal" not in name and "code" not in name
    }


class Ordered(Mixture):
    """The lazy task's rows as a mixture of 4:3:3 would draw them."""

    def __init__(self, options, seed):
        pools = [Pool(name, name, options.train_rows // 3) for name in lazy_task.DOMAINS]
        super().__init__(pools, Options(), seed)
        self.mixture = self

    def rows(self, start, count):
        places = [self.at(position) for position in range(start, start + count)]
        return [3 * place.row + lazy_task.DOMAINS.index(place.dataset) for place in places]

    def notes(self, steps, prompts_per_step):
        return []

    def state(self, position, ahead):
        return {"position": position}


PAID = Reward(name="by-domain", domains={"math": "rule", "qa": "judge", "code": "judge"})


@pytest.fixture(scope="module")
def trained(tmp_path_factory, cache):
    folder = tmp_path_factory.mktemp("domains")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "lazy", lazy_task.TASK)
        patch.setattr(lazy_task.TASK, "order", Ordered)
        patch.setattr(lazy_task.TASK, "truths", some_right)
        config = dataclasses.replace(
            study(steps=3, prompts_per_step=4, micro_batch=16),
            task=Task(name="lazy", train_rows=60, eval_rows=0),
            reward=PAID,
            judge=Judge(name="length", max_unscored_frac=0.9),
        )
        yield folder, run(config, folder, cache, LengthJudge())


def some_right(rows, answers):
    """Half of the answers are right, by their length."""
    return [
        lazy_task.Truth(float(right), (right,))
        for right in (len(answer or "") % 2 == 0 for answer in answers)
    ]


def test_every_rollout_is_paid_by_its_domain(trained):
    _, outcome = trained
    assert {row["domain"] for row in outcome.records} == {"math", "qa", "code"}
    lost = [row for row in outcome.records if row["judge_score"] is None]
    assert any(row["domain"] == "math" for row in lost)
    for row in outcome.records:
        paid_by = "truth" if row["domain"] == "math" else "judge_score"
        assert row["reward"] == row[paid_by]
    assert any(row["advantage"] for row in outcome.records if row["domain"] == "math")


def test_the_metrics_of_a_step_are_those_of_its_records(trained):
    folder, outcome = trained
    lines = {line["step"]: line["metrics"] for line in CellFolder(folder).lines()}
    for step, metrics in lines.items():
        rows = [row for row in outcome.records if row["step"] == step]
        rows.sort(key=lambda row: (row["group"], row["member"]))
        pushed = math.fsum(abs(row["advantage"]) for row in rows)
        for domain, share in MIX.items():
            mine = [row for row in rows if row["domain"] == domain]
            told = {
                name.rpartition("/")[2]: value
                for name, value in metrics.items()
                if name.startswith(f"domain/{domain}/")
            }
            assert told["nominal_share"] == pytest.approx(share)
            assert told["n"] == len(mine)
            assert told["realised_share"] == pytest.approx(len(mine) / len(rows))
            part = math.fsum(abs(row["advantage"]) for row in mine)
            assert told["effective_share"] == pytest.approx(part / pushed)
            if mine:
                right = [row for row in mine if row["truth"] == 1.0]
                assert told["truth"] == pytest.approx(len(right) / len(mine))
                missing = sum(row["judge_score"] is None for row in mine)
                assert told["unscored_frac"] == pytest.approx(missing / len(mine))
        total = sum(metrics[f"domain/{domain}/rule_effective_share"] for domain in MIX)
        assert total == pytest.approx(1.0)
