"""What a program can reach while it runs: no test, no gold, no network, no other program; and a
short form gone through in this process, against its class in the sandbox."""

import asyncio
import contextlib
import dataclasses
import json
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
from experiments.workflow.problem import Problem, make_problem, problem_of
from experiments.workflow.program import Refused
from experiments.workflow.run import Settings, perform
from study.rows import Row
from study.sandbox import tiers
from study.tasks import oracle, workflow_mini
from study.tasks.kind import grading
from tests.experiments.workflow.theatre import CHAINS, TOKENS, Answering, Theatre, program
from tests.experiments.workflow.world import SIM, TASK

SENTINEL = "sentinel-7f3a"
LOOKS = """\
import sys, os, gc
seen = [str(dict(os.environ)), str(sys.argv), str(globals())]
frame = sys._getframe()
while frame:
    seen.append(str(frame.f_locals) + str(frame.f_globals))
    frame = frame.f_back
seen += [str(item) for item in gc.get_objects() if isinstance(item, (dict, list, tuple))]
t = await self.custom(input=problem, instruction=str(len(seen)))
text = ' '.join(seen)
return ('found' if ''.join(['sentinel', '-7f3a']) in text else 'nothing'), 0
"""


def test_hidden_tests_and_gold_are_nowhere_to_be_seen(theatre):
    executor = Answering("x")
    problem = make_problem(
        {
            "id": "h",
            "domain": "code",
            "prompt": "Write f.",
            "entry_point": "f",
            "public_tests": ["assert f(1) == 1"],
            "hidden_tests": [f"assert f('{SENTINEL}')"],
            "answers": [SENTINEL],
        }
    )
    record = theatre.ask(program(LOOKS), executor, problem=problem, checked=False)
    assert (record["outcome"], record["answer"]) == ("ok", "nothing")
    assert SENTINEL not in json.dumps(record) + str(executor.questions) + str(problem)


CALLS = """\
import os, json, time
def call(number, *after):
    words = {'input': 'a', 'instruction': 'b'}
    line = {'call': number, 'operator': 'Custom', 'arguments': words, 'after': after}
    os.write(3, json.dumps(line).encode() + b'\\n')
"""
ADVERSARIES = {
    "endless loop": ("while True:\n    pass", "timeout"),
    "swallows everything": (
        "import asyncio\nwhile True:\n    try:\n        await asyncio.sleep(0)\n"
        "    except BaseException:\n        pass",
        "timeout",
    ),
    "fork bomb": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "timeout",
    ),
    "fork": ("import os\nos.fork()\nreturn 'x', 0", "runtime_error"),
    "10 GB": ("x = 'a' * 10**10\nreturn x, 0", "memory"),
    "endless print": ("while True:\n    print('x' * 10**6)", "timeout"),
    "a secret file": ("return open('/etc/shadow').read(), 0", "runtime_error"),
    "passwd": ("return open('/etc/passwd').read()[:9], 0", "runtime_error"),
    "socket": ("import socket\nsocket.socket()\nreturn 'x', 0", "runtime_error"),
    "os._exit": ("import os\nos._exit(0)", "runtime_error"),
    "SystemExit": ("raise SystemExit", "runtime_error"),
    "50 calls": (
        "for _ in range(50):\n    r = await self.custom(problem, 'a')\nreturn 'x', 0",
        "budget_exceeded",
    ),
    "50 calls at once": (
        "import asyncio\n"
        "await asyncio.gather(*[self.custom(problem, 'a') for _ in range(50)])\nreturn 'x', 0",
        "budget_exceeded",
    ),
    "1 MB": ("return 'a' * 10**6, 0", "output_limit"),
    "10 MB": ("return 'a' * 10**7, 0", "output_limit"),
    "1 MB of arguments": ("await self.custom('a' * 10**5, 'a')\nreturn 'x', 0", "budget_exceeded"),
    "a forged call": (
        "import os\nos.write(3, b'{\"call\": 9}\\n')\nreturn 'x', 0",
        "runtime_error",
    ),
    "a flood": ("import os\nwhile True:\n    os.write(3, b'x' * 65536)", "output_limit"),
    "a flood of lines": (
        "import os\nwhile True:\n    os.write(3, b'\\n' * 65536)",
        "runtime_error",
    ),
    "asks twice under one number": (CALLS + "call(1)\ncall(1)\ntime.sleep(60)", "runtime_error"),
    "waited for what never was": (CALLS + "call(1, 5)\ntime.sleep(60)", "runtime_error"),
    "never reads a reply": (CALLS + "[call(n) for n in range(1, 12)]\ntime.sleep(60)", "timeout"),
    "answers itself": ("import os\nos.write(4, b'{}')\nreturn 'x', 0", "runtime_error"),
    "sleeps": ("import asyncio\nawait asyncio.sleep(1000)\nreturn 'x', 0", "timeout"),
    "sleeps deeply": ("import time\ntime.sleep(1000)\nreturn 'x', 0", "timeout"),
    "kills": ("import os\nos.kill(1, 9)\nreturn 'x', 0", "runtime_error"),
    "crashes": ("import ctypes\nctypes.string_at(0)", "runtime_error"),
    "recursion": ("def f():\n    return f()\nreturn f(), 0", "runtime_error"),
    "always equal": (
        "class Same:\n    def __eq__(self, other):\n        return True\nreturn Same(), 0",
        "contract_error",
    ),
    "nothing": ("pass", "contract_error"),
    "cost -1": ("return 'x', -1", "ok"),
    "an endless number": ("return 10**5000, 0", "contract_error"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("endless loop", marks=pytest.mark.long),  # one that also catches all is below
        *(name for name in ADVERSARIES if name != "endless loop"),
    ],
)
def test_an_adversary_ends_with_its_label(theatre, name):
    body, outcome = ADVERSARIES[name]
    record = theatre.run(program(body), {"text": "x"} | TOKENS, checked=False)
    assert record["outcome"] == outcome, record["why"]
    if outcome != "ok":
        assert record["answer"] is None
    else:
        assert (record["claimed_cost"], record["cost_usd"]) == (-1.0, 0.0)


def test_no_environment_is_there_and_a_patched_operator_is_its_own(theatre):
    body = "import os\nreturn ' '.join(sorted(os.environ)), 0"
    record = theatre.run(program(body), "x", checked=False)
    assert not {"HOME", "PATH", "OPENAI_API_KEY"} & set(record["answer"].split())
    body = (
        "class Fake:\n    def __init__(self, llm):\n        pass\n"
        "    async def __call__(self, **given):\n        return {'response': 'free'}\n"
        "operator.Custom = Fake\nr = await operator.Custom(1)(input=1)\nreturn r['response'], 0"
    )
    record = theatre.run(program(body), "x", checked=False)
    assert (record["outcome"], record["calls"]) == ("ok", [])
    assert theatre.run(program(body), "x")["outcome"] == "forbidden"


@pytest.mark.parametrize("tier", [tiers.Tier.BWRAP, tiers.Tier.LANDLOCK])
def test_programs_run_on_each_tier(tier):
    if wrong := tiers.try_tier(tier):
        pytest.skip(f"no {tier} here: {wrong}")
    with contextlib.closing(Theatre(tier)) as stands:
        record = stands.run(program(CHAINS), {"text": "True"} | TOKENS)
        assert (record["outcome"], record["sandbox"]) == ("ok", str(tier))
        body, outcome = ADVERSARIES["socket"]
        assert stands.run(program(body), "x", checked=False)["outcome"] == outcome


def test_programs_in_flight_do_not_meet(theatre):
    """Each finds the world as the first did, and has its own replies."""
    body = (
        "import builtins, random\nleft = hasattr(builtins, 'mark')\nbuiltins.mark = problem\n"
        "r = await self.custom(problem, 'a')\n"
        "return f\"{left} {r['response']} {builtins.mark} {random.random()}\", 0"
    )

    async def echo(question):
        await asyncio.sleep(0.01)
        return Answer(question.messages[0]["content"][-2:], tokens_in=1, tokens_out=1)

    async def many():
        problems = [Problem(str(n), "math", f"{n:02d}") for n in range(12)]
        runs = (
            theatre.recorded(program(body), Answering(echo), problem, checked=False)
            for problem in problems
        )
        return await asyncio.gather(*runs)

    answers = [record["answer"].split() for record in theatre.runner.run(many())]
    assert [(left, text, mark) for left, text, mark, _ in answers] == [
        ("False", f"{n:02d}", f"{n:02d}") for n in range(12)
    ]
    assert len({number for *_, number in answers}) == 1


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


@pytest.mark.parametrize("examples", [20, pytest.param(60, marks=pytest.mark.long)])
def test_it_answers_as_the_class_in_the_sandbox_does(theatre, workshop, examples):
    names = st.sampled_from([name for name in OPERATORS if name not in dsl.ENSEMBLES])

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps(names), st.sampled_from(sorted(ROWS)), st.integers(0, 1000))
    def answers_alike(text, dataset, seed):
        check_alike(theatre, workshop, text, ROWS[dataset], seed)

    answers_alike()


def check_alike(theatre: Theatre, workshop: Remembering, text: str, row: Row, seed: int) -> None:
    """A program gives one answer by the same calls, interpreted and as a class in its sandbox."""
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
