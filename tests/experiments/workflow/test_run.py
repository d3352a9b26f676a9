"""What a run costs, how it ends, and what a program cannot see, forge or catch."""

import asyncio
from types import SimpleNamespace

import pytest

from experiments.workflow.broker import Broker, Budget, Ending, Trace, legal
from experiments.workflow.executor import Answer, Down
from experiments.workflow.find import find
from experiments.workflow.play import play
from experiments.workflow.problem import Problem
from experiments.workflow.run import Settings, perform
from study.config.schema import Price
from study.sandbox import conversation
from study.sandbox.worker import Broken
from tests.experiments.workflow.theatre import CHAINS, SUM, TOKENS, Answering, program, script

ONE = program("r = await self.custom(input=problem, instruction='a')\nreturn r['response'], 7")


def test_the_record_of_a_plain_run(theatre):
    record = theatre.run(ONE, {"text": "42"} | TOKENS)
    assert (record["outcome"], record["answer"], record["claimed_cost"]) == ("ok", "42", 7.0)
    assert record["calls"] == [{"operator": "Custom", "ok": True, "error": ""} | TOKENS]
    assert (record["tokens_in"], record["tokens_out"], record["critical_tokens"]) == (10, 1, 11)
    assert record["cost_usd"] == 0.0 and record["sandbox"] == str(theatre.stage.tier)
    assert 0 < record["own_s"] <= record["wall_s"]


def test_unknown_tokens_are_null_of_a_run_and_of_a_trace(theatre):
    record = theatre.run(ONE, "42")
    assert record["calls"][0]["tokens_in"] is None
    assert record["tokens_in"] is record["critical_tokens"] is None
    assert record["cost_usd"] == 0.0
    assert Trace("Custom", tokens_in=1, tokens_out=2).tokens() == 3
    assert Trace("Custom", tokens_in=None, tokens_out=2).tokens() is None


def test_cost_is_what_the_broker_measured(theatre):
    executor = script({"text": "42", "tokens_in": 1000, "tokens_out": 100})
    executor.price = Price(1.0, output=10.0)
    text = program(
        "r = await self.custom(input=problem, instruction='a')\n"
        "return r['response'], self.llm.get_usage_summary()['total_cost'] - 1"
    )
    record = theatre.ask(text, executor)
    assert record["cost_usd"] == pytest.approx(0.002)
    assert record["claimed_cost"] == pytest.approx(0.002 - 1)
    executor.price = None
    assert theatre.ask(text, executor)["cost_usd"] is None


def test_two_problems_at_once_have_accounts_of_their_own(theatre):
    async def reply(question):
        await asyncio.sleep(0.01)
        counts.append(len(question.messages[0]["content"]))
        return Answer("42", tokens_in=counts[-1], tokens_out=0)

    async def both():
        problems = [Problem(str(n), "math", "?" * n) for n in (5, 50)]
        runs = (theatre.recorded(ONE, executor, problem) for problem in problems)
        return await asyncio.gather(*runs)

    counts, executor = [], Answering(reply, Price(1.0))
    records = theatre.runner.run(both())
    assert records[0]["tokens_in"] == records[1]["tokens_in"] - 45
    assert sum(record["tokens_in"] for record in records) == sum(counts)


def test_the_critical_path_is_what_waited_for_what(theatre):
    """Two chains side by side: the dear call of one and the dear call of the other do not add."""

    async def reply(question):
        text = question.messages[0]["content"]
        if question.operator == "Review":
            return Answer("True", tokens_in=5, tokens_out=0)
        key = next(key for key in costs if f"\n{key}\n" in f"{text}\n")
        return Answer("ok", tokens_in=costs[key], tokens_out=0)

    costs = {"1": 100, "2": 1, "3": 1, "4": 100}
    record = theatre.ask(program(CHAINS), Answering(reply))
    assert record["outcome"] == "ok", record
    assert (record["tokens_in"], record["critical_tokens"]) == (207, 106)


def test_calls_of_wait_for_are_on_the_path(theatre):
    body = (
        "import asyncio\n"
        "a = await asyncio.wait_for(self.custom(problem, 'a'), 5)\n"
        "b = await self.custom(a['response'], 'b')\nreturn b['response'], 0"
    )
    assert theatre.run(program(body), {"text": "x"} | TOKENS)["critical_tokens"] == 22


def test_calls_stand_in_the_order_of_completion(theatre):
    async def reply(question):
        if question.operator == "Custom":
            await asked.wait()
            await asyncio.sleep(0.05)  # what the other has still to do is not waited for
        asked.set()
        return Answer("<answer>1</answer>", tokens_in=1, tokens_out=1)

    asked = asyncio.Event()
    body = (
        "import asyncio\n"
        "a, b = await asyncio.gather(self.custom(problem, 'a'), self.answer_generate(problem))\n"
        "return b['answer'], 0"
    )
    record = theatre.ask(program(body), Answering(reply))
    assert [call["operator"] for call in record["calls"]] == ["AnswerGenerate", "Custom"]


def test_at_most_four_calls_are_worked_on_at_once(theatre):
    now, most, full = 0, 0, asyncio.Event()

    async def reply(question):
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 4:
            full.set()
        await full.wait()
        await asyncio.sleep(0.02)  # a fifth would come now
        now -= 1
        return Answer("x", tokens_in=1, tokens_out=1)

    body = (
        "import asyncio\n"
        "rs = await asyncio.gather(*[self.custom(problem, str(n)) for n in range(12)])\n"
        "return rs[0]['response'], 0"
    )
    assert theatre.ask(program(body), Answering(reply))["outcome"] == "ok"
    assert most == Budget().at_once == 4


def test_three_equal_calls_are_three_draws_and_come_again_the_same(theatre):
    async def reply(question):
        return Answer(f"draw {question.sample}", tokens_in=1, tokens_out=1)

    body = (
        "import asyncio\n"
        "rs = await asyncio.gather(*[self.custom(problem, 'a') for _ in range(3)])\n"
        "return ' '.join(r['response'] for r in rs), 0"
    )
    answers = []
    for _ in range(2):
        executor = Answering(reply)
        answers.append(theatre.ask(program(body), executor)["answer"])
        samples = sorted((asked.operator, asked.sample) for asked in executor.questions)
        assert samples == [("Custom", n) for n in range(3)]
    assert answers == ["draw 0 draw 1 draw 2"] * 2


@pytest.mark.parametrize("failure", ["timeout", "http_500"])
def test_an_executor_that_is_down_ends_the_run_where_nothing_can_catch_it(theatre, failure):
    body = (
        "for _ in range(3):\n    try:\n        r = await self.custom(problem, 'a')\n"
        "        return r['response'], 0\n"
        "    except BaseException:\n        pass\nreturn 'caught', 0"
    )
    record = theatre.run(program(body), {"fail": failure})
    assert (record["outcome"], record["answer"]) == ("operator_error", None)
    assert [(call["operator"], call["ok"]) for call in record["calls"]] == [("Custom", False)]


def test_what_a_call_spent_before_it_ended_the_run_is_on_the_account(theatre):
    """The reply without a tag is asked for again, and by then the executor is down."""
    body = "r = await self.answer_generate(problem)\nreturn r['answer'], 0"
    record = theatre.run(program(body), {"text": "no tag"} | TOKENS, {"fail": "timeout"})
    assert record["outcome"] == "operator_error"
    assert (record["tokens_in"], record["tokens_out"], record["critical_tokens"]) == (10, 1, 11)


def test_a_failure_that_passes_is_repeated_and_an_empty_reply_is_no_outage(theatre):
    record = theatre.run(ONE, {"fail": "http_500"}, {"fail": "timeout"}, {"text": "42"})
    assert (record["outcome"], record["answer"]) == ("ok", "42")
    record = theatre.run(ONE, {"fail": "empty"} | TOKENS)
    assert record["outcome"] == "ok" and not record["calls"][0]["ok"]
    assert record["tokens_in"] == 30


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (Budget(operator_calls=2), "operator calls"),
        (Budget(model_calls=2), "model calls"),
        (Budget(tokens=25), "tokens"),
        (Budget(characters=20), "characters"),
    ],
)
def test_a_budget_ends_the_run(theatre, budget, why):
    body = (
        "for n in range(5):\n    try:\n        r = await self.custom(problem * (n + 1), 'a')\n"
        "    except BaseException:\n        pass\nreturn 'caught', 0"
    )
    record = theatre.run(program(body), {"text": "x"} | TOKENS, settings=Settings(budget))
    assert record["outcome"] == "budget_exceeded" and why in record["why"]


def test_layer_2_stands_before_the_prompt_and_a_program_cannot_see_it(theatre):
    def instruct(operator, domain):
        return SimpleNamespace(text=f"{operator.name} of {domain}", parameters={"temperature": 0.5})

    executor = Answering("x")
    broker = Broker(SUM, executor, theatre.workshop, instruct=instruct)
    work = play(find(ONE), SUM, theatre.stage, broker.call, broker.spent)
    assert theatre.runner.run(work).answer == "x"
    (question,) = executor.questions
    assert question.messages[0]["content"].startswith("Custom of math\n\na\n")
    assert question.parameters == {"temperature": 0.5}


def test_waiting_for_an_operator_is_not_own_time(theatre):
    async def reply(question):
        clock = asyncio.get_running_loop().time
        began = clock()
        await asyncio.sleep(0.5)
        waited.append(clock() - began)
        return Answer("42", tokens_in=1, tokens_out=1)

    waited = []
    record = theatre.ask(ONE, Answering(reply))
    assert record["outcome"] == "ok" and record["own_s"] <= record["wall_s"] - waited[0]


def test_a_lost_sandbox_is_no_verdict_on_the_program(theatre, monkeypatch):
    runs = []

    async def breaks(*_):
        runs.append(1)
        raise Broken("it ended")

    monkeypatch.setattr(conversation, "_run", breaks)
    work = perform(find(ONE), SUM, script("42"), theatre.stage, theatre.workshop)
    played, _ = theatre.runner.run(work)
    assert played.outcome is Ending.SANDBOX_ERROR and len(runs) == 2


def test_a_sandbox_that_dies_in_a_run_is_started_again(theatre):
    async def reply(question):
        if len(executor.questions) == 1:
            for worker in list(started):
                worker.process.kill()
            await asyncio.sleep(3600)  # until it is noticed
        return Answer("42", tokens_in=1, tokens_out=1)

    executor = Answering(reply)
    started = []
    start = conversation.tiers.start

    async def work():
        with conversation.Stage(1, theatre.stage.tier) as stage:
            conversation.tiers.start = lambda tier: started.append(start(tier)) or started[-1]
            try:
                return await perform(find(ONE), SUM, executor, stage, theatre.workshop)
            finally:
                conversation.tiers.start = start

    played, broker = theatre.runner.run(work())
    assert played.answer == "42" and len(broker.traces) == 1 and len(started) == 2


def test_a_run_that_is_cancelled_leaves_nothing_behind(theatre):
    async def reply(question):
        asked.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        raise Down("late")

    async def work():
        broker = Broker(SUM, Answering(reply), theatre.workshop)
        with conversation.Stage(1, theatre.stage.tier) as stage:
            task = asyncio.create_task(play(find(ONE), SUM, stage, broker.call))
            await asked.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return len(stage._idle)

    asked, ended = asyncio.Event(), asyncio.Event()
    assert theatre.runner.run(work()) == 0
    assert ended.is_set()


@pytest.mark.parametrize(
    ("name", "arguments", "fits"),
    [
        ("Custom", {"input": "a", "instruction": "b"}, True),
        ("Custom", {"input": "a"}, False),
        ("Custom", {"input": 1, "instruction": "b"}, False),
        ("Custom", {"input": None, "instruction": "b"}, False),
        ("Custom", {"input": "a", "instruction": "b", "more": "c"}, False),
        ("Shell", {"input": "a", "instruction": "b"}, False),
        (["Custom"], {}, False),
        ("Custom", [], False),
        ("ScEnsemble", {"solutions": ["a"], "problem": ""}, True),
        ("ScEnsemble", {"solutions": "a", "problem": ""}, False),
        ("ScEnsemble", {"solutions": [1], "problem": ""}, False),
        ("Format", {"problem": "a", "solution": "b", "mode": None}, True),
    ],
)
def test_the_broker_takes_declared_arguments_alone(name, arguments, fits):
    assert legal(name, arguments) is fits
