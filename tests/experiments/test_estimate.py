"""What a cell is expected to ask, counted by hand and against what a session then does."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.plan.plan import limit_lines, price_lines
from experiments.plan.rates import ANSWER_SHARE, Rates, expected
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.config.schema import (
    Cost,
    Endpoint,
    Grading,
    Judge,
    Price,
    Sampling,
    Simulated,
    Study,
    Trainer,
)
from study.config.schema import Task as TaskConfig
from study.tasks import TASKS, oracle

TASK = TaskConfig(name="instruct-mini", train_rows=96)
TRAINER = Trainer(steps=5, prompts_per_step=4, group_size=2, max_completion_length=50)
FAIR = Judge(
    name="sim-fair", grading=Grading("likert"), simulated=Simulated(), endpoint=Endpoint(model="x")
)


def cell(judge: Judge = FAIR, shadows: tuple[Judge, ...] = (), **change: Any) -> Cell:
    config = Study(judge=judge, task=TASK, trainer=replace(TRAINER, **change))
    return Cell({}, replace(config, shadow_judges=list(shadows)), "", CellFolder(Path()))


def test_calls_count_every_vote_and_a_judge_that_thinks_talks_more() -> None:
    found = expected(cell(replace(FAIR, sampling=Sampling(votes=2)), (FAIR,)))
    assert (found["completions"], found["calls"]) == (40, 120)
    endpoint = Endpoint(url="http://h/v1", model="m", dialect="vllm")
    real = replace(FAIR, simulated=None, sampling=Sampling(max_tokens=1000), endpoint=endpoint)
    thinks = replace(real, sampling=Sampling(max_tokens=1000, thinking=True))
    always = replace(real, endpoint=replace(endpoint, dialect="vllm-harmony"))
    brief = replace(real, sampling=Sampling(max_tokens=8))
    told = [expected(cell(judge))["tokens_out"] / 40 for judge in (real, thinks, always, brief)]
    assert told == pytest.approx([33.4, 533.4, 533.4, 8.0])


def test_answers_of_frozen_evaluations_are_counted() -> None:
    """At step 0, 2, 4 and after the last; a grading that compares is asked both orders of every
    pair of a group, and the groups of evaluations have their own size."""
    answers = 4 * 256 * (1 + 3)
    found = expected(cell(shadows=(FAIR,), eval_steps=2, eval_samples=3))
    assert (found["completions"], found["calls"]) == (40 + answers, 2 * (40 + answers))
    pairwise = replace(FAIR, grading=Grading("pairwise"))
    asks = 5 * 4 * 2 * math.comb(2, 2) + 4 * 256 * 2 * math.comb(4, 2)
    assert expected(cell(pairwise, eval_steps=2, eval_samples=3))["calls"] == asks
    assert expected(cell(eval_steps=2)) == expected(cell())


def test_tokens_are_those_of_a_simulated_judge_that_is_asked_the_same() -> None:
    from judges.ask.session import Session

    answer = ("word " * 100)[: round(ANSWER_SHARE * 50) * 4]
    rows = TASKS[TASK.name].rows(TASK, "train")
    with Session(FAIR, None, oracle(TASK)) as session:
        verdicts = [draws[0] for draws in session.ask_many([(row, answer) for row in rows])]
    mean = sum(verdict.tokens_in or 0 for verdict in verdicts) / len(rows)
    found = expected(cell())
    assert found["tokens_in"] == pytest.approx(40 * mean, rel=1e-3)
    assert found["tokens_out"] == round(40 * 3.4)


def test_the_labels_of_a_simulated_rubric_judge_take_the_tokens_that_are_expected() -> None:
    from judges.ask.session import Session

    judge = replace(FAIR, grading=Grading("rubric_batch"))
    rows = TASKS[TASK.name].rows(TASK, "train")
    answers = [("red blue green " * count).strip() for count in range(1, 9)]
    with Session(judge, None, oracle(TASK)) as session:
        asked = [(row, answer) for row in rows for answer in answers]
        verdicts = [draws[0] for draws in session.ask_many(asked)]
    mean = sum(verdict.tokens_out or 0 for verdict in verdicts) / len(asked)
    assert expected(cell(judge))["tokens_out"] == pytest.approx(40 * mean, rel=0.1)


def test_judges_with_a_price_are_told_in_dollars(tmp_path) -> None:
    """Acting and shadow judges each by their own price."""
    none = Rates(tmp_path / "none")
    real = replace(FAIR, name="real", simulated=None)
    price = Price(input=2.0, output=10.0, source="2026-10-02, a list")
    priced = replace(real, name="priced", price=price)
    cost = expected(cell(priced))
    usd = (2 * cost["tokens_in"] + 10 * cost["tokens_out"]) / 1e6
    line, others = price_lines([cell(priced), cell(FAIR, (real, priced))], none)
    assert f"priced would cost about ${2 * usd:,.2f} in all cells" in line
    assert "$2 in, $2 cached and $10 out per million tokens; 2026-10-02, a list" in line
    assert others == "no price is set for real"
    assert price_lines([cell(FAIR), cell(real)], none) == ["no price is set for real"]
    assert price_lines([cell(FAIR)], none) == ["Simulated judges and scorers cost nothing"]


def test_limits_stand_beside_what_the_dearest_cell_takes(tmp_path) -> None:
    none = Rates(tmp_path / "none")
    dear = replace(FAIR, name="dear", simulated=None, price=Price(input=1e4))
    todo = [cell(dear), cell(dear, steps=10)]
    usd = [expected(each)["tokens_in"] / 100 for each in todo]
    (line,) = limit_lines(todo, none)
    assert line.startswith(f"No limit is set; the dearest cell takes about ${usd[1]:,.2f}")

    def limited(limit: float) -> str:
        cost = Cost(max_usd=limit)
        (line,) = limit_lines([replace(c, config=replace(c.config, cost=cost)) for c in todo], none)
        return line

    assert "$20.00 for 2" in limited(10.0) and "reached before its end" in limited(10.0)
    assert limited(2 * usd[1]).endswith("so that is enough")
    assert limit_lines([cell(FAIR)], none) == []
