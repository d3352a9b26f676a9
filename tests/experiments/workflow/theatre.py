"""What tests of workflow programs share: one event loop with its sandboxes, and small programs."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

from experiments.workflow.broker import Broker, Workshop
from experiments.workflow.executor import Answer, Executor, Question, Script
from experiments.workflow.problem import STAND_IN, Problem
from experiments.workflow.run import execute, record
from experiments.workflow.validate import Report, validate
from study.config.schema import Price
from study.sandbox import tiers
from study.sandbox.conversation import Stage

SUM = Problem("sum", "math", "What is 6 times 7?")
HEAD = """\
class Workflow:
    def __init__(self, name, llm_config, dataset):
        self.llm = create_llm_instance(llm_config)
        self.custom = operator.Custom(self.llm)
        self.answer_generate = operator.AnswerGenerate(self.llm)
        self.review = operator.Review(self.llm)
        self.revise = operator.Revise(self.llm)
        self.sc_ensemble = operator.ScEnsemble(self.llm)

    async def __call__(self, problem):
"""
TOKENS = {"tokens_in": 10, "tokens_out": 1}
CHAINS = """\
import asyncio
async def chain(first, second):
    a = await self.custom(input=first, instruction='x')
    b = await self.revise(problem=second, solution=a['response'], feedback='')
    return b['solution']
texts = await asyncio.gather(chain('1', '2'), chain('3', '4'))
last = await self.review(problem=problem, solution=texts[0])
return last['feedback'], 0
"""
"""Two chains side by side, and one call after them."""


def program(body: str, top: str = "") -> str:
    """A program whose __call__ has that body."""
    lines = "\n".join(" " * 8 + line for line in body.strip("\n").split("\n"))
    return f"{top}{HEAD}{lines}\n"


def script(*lines: dict[str, Any] | str) -> Script:
    """An executor that says these lines; a text stands for a line with it."""
    return Script([{"text": line} if isinstance(line, str) else line for line in lines])


class Answering:
    """An executor that answers as ``reply`` does, or with that text at a token in and one out."""

    name = "answering"

    def __init__(
        self, reply: Callable[[Question], Awaitable[Answer]] | str, price: Price | None = None
    ) -> None:
        self.reply, self.price, self.questions = reply, price, list[Question]()

    async def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        if isinstance(self.reply, str):
            return Answer(self.reply, tokens_in=1, tokens_out=1)
        return await self.reply(question)


class Theatre:
    """One event loop, the sandboxes of programs, and those of operators."""

    def __init__(self, tier: tiers.Tier) -> None:
        self.runner = asyncio.Runner()
        self.runner.run(asyncio.sleep(0))
        self.stage = Stage(4, tier)
        self.workshop = Workshop(tier, 1)

    def validate(self, text: str, **options: Any) -> Report:
        """What validation says."""
        return self.runner.run(validate(text, self.stage, **options))

    async def recorded(
        self, text: str, executor: Executor, problem: Problem = SUM, **options: Any
    ) -> dict[str, Any]:
        """The record of one run."""
        execution = await execute(text, problem, executor, self.stage, self.workshop, **options)
        return record(execution, problem, self.stage)

    def run(self, text: str, *lines: dict[str, Any] | str, **options: Any) -> dict[str, Any]:
        """The record of one run in which the executor says ``lines``."""
        return self.ask(text, script(*lines), **options)

    def ask(self, text: str, executor: Executor, **options: Any) -> dict[str, Any]:
        """The record of one run with that executor."""
        return self.runner.run(self.recorded(text, executor, **options))

    def call(
        self, name: str, arguments: dict[str, Any], *lines: Any, problem: Problem = STAND_IN
    ) -> tuple[dict[str, Any], Broker]:
        """The result of one operator call, and the broker that did it. ``lines`` are a script's, or
        an executor."""
        executor = lines[0] if isinstance(lines[0], Answering) else script(*lines)
        broker = Broker(problem, executor, self.workshop)
        return self.runner.run(broker.call(1, name, arguments, [])), broker

    def close(self) -> None:
        """End every process."""
        self.stage.close()
        self.workshop.close()
        self.runner.close()


def opened() -> Generator[Theatre]:
    """A theatre for the tests of a file; they are skipped where nothing isolates code."""
    try:
        tier = tiers.find()
    except tiers.SandboxUnavailable as error:
        pytest.skip(str(error))
    theatre = Theatre(tier)
    yield theatre
    theatre.close()
