"""The steps of a short form, gone through in this process, against the class in its sandbox."""

import dataclasses
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.workflow import dsl
from experiments.workflow.broker import Broker, Budget
from experiments.workflow.executor import Answer, Question
from experiments.workflow.interpret import interpret
from experiments.workflow.operators import OPERATORS
from experiments.workflow.planted import InProcess, Remembering, small_programs
from experiments.workflow.problem import problem_of
from experiments.workflow.program import Refused
from experiments.workflow.run import Settings, perform
from study.rows import Row
from study.tasks import oracle, workflow_mini
from study.tasks.kind import grading
from tests.experiments.workflow.theatre import Theatre
from tests.experiments.workflow.world import SIM, TASK

BUDGET = Budget(model_calls=100)
ROWS = {row.dataset: row for row in workflow_mini.TASK.rows(TASK, "eval")}


@pytest.fixture(scope="module")
def workshop(theatre: Theatre) -> Generator[Remembering]:
    with grading(), Remembering(theatre.stage.tier) as workshop:
        yield workshop


class Forgetful(InProcess):
    """Gives equal questions of a run one reply, so that it does not matter which part of a list
    asks first."""

    async def ask(self, question: Question) -> Answer:
        return await super().ask(dataclasses.replace(question, sample=0))


def steps(names: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts of programs, most of which work. Parts of lists hold no ensemble: which of two equal
    ones shuffles first depends on the order of parts."""
    plain = names
    chain = st.lists(plain, min_size=1, max_size=3).map(" -> ".join)
    choice = st.builds(
        "{} ? {} : {}".format,
        st.sampled_from(["Review", "Test"]),
        chain,
        st.one_of(st.just("done"), chain),
    )
    ensemble = st.sampled_from(dsl.ENSEMBLES)
    body = st.lists(st.one_of(plain, choice), min_size=1, max_size=2).map(" -> ".join)
    maker = st.sampled_from(dsl.MAKERS)
    part = st.builds("{} -> {}".format, maker, body) | maker
    several = st.builds("[{}, {}] -> {}".format, part, part, ensemble)
    loop = st.builds("({}) * {}".format, body, st.integers(1, 3))
    collected = st.builds("({}) * {} -> {}".format, part, st.integers(1, 3), ensemble)
    first = st.one_of(maker, several, collected)
    later = st.lists(st.one_of(plain, choice, loop, collected), max_size=3)
    return st.builds(lambda begin, rest: " -> ".join([begin, *rest]), first, later)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=steps(st.sampled_from([name for name in OPERATORS if name not in dsl.ENSEMBLES])),
    dataset=st.sampled_from(sorted(ROWS)),
    seed=st.integers(0, 1000),
)
def test_it_answers_as_the_class_in_the_sandbox_does(theatre, workshop, text, dataset, seed):
    row: Row = ROWS[dataset]
    try:
        program = dsl.compiled(text)
    except Refused:
        return
    executor = Forgetful(dataclasses.replace(SIM.simulated, seed=seed), oracle(TASK))
    problem = problem_of(row)
    played, account = theatre.runner.run(
        perform(program, problem, executor, theatre.stage, workshop, Settings(BUDGET))
    )
    broker = Broker(problem, executor, workshop, BUDGET)
    calls: list[str] = []

    async def ask(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append(name)
        return await broker.call(len(calls), name, arguments, [])

    answer = theatre.runner.run(interpret(dsl.parse(text), problem, ask))
    assert (played.outcome, played.answer) == ("ok", answer)
    assert sorted(calls) == sorted(trace.operator for trace in account.traces)
    assert account.tokens_out == broker.tokens_out


def test_small_programs_are_many_valid_and_different():
    texts = small_programs()
    assert len(texts) >= 150
    assert len({dsl.compiled(text).python for text in texts}) == len(texts)
    assert {name for text in texts for name in dsl.compiled(text).operators} == set(OPERATORS)
