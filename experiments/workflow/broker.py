"""The broker: does the operator calls of one program, within limits, and keeps the account.

It sits in the trusted process. A program gets declared results and nothing else; what ends a run
(a limit, an executor that is down, a sandbox that failed) is not told to the program at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from experiments.workflow.executor import Down, Executor, Question, total
from experiments.workflow.instructions import Instruction
from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.base import Arguments, Operator, Results
from experiments.workflow.problem import Problem
from study.programs.endings import Ending
from study.sandbox import tiers
from study.sandbox.calls import Call, Limits, Outcome, Result
from study.sandbox.grader import Pair, Task
from study.sandbox.inside.frames import Spent
from study.sandbox.pool import Crew, Pool

CHARACTERS_PER_TOKEN = 4
"""For the budget alone, where an executor does not count."""
COMPUTE = Limits(cpu_s=2, wall_s=10.0, memory_mb=512, reply_bytes=16384)
TESTED = Limits(cpu_s=2, wall_s=10.0, memory_mb=512, reply_bytes=1 << 20)
LONGEST_OUTPUT = 4096
"""Characters of what computed code returned that a program is given."""


@dataclass(frozen=True)
class Budget:
    """What the operator calls of one run may take."""

    operator_calls: int = 12
    model_calls: int = 40
    tokens: int = 200_000
    """In prompts and replies together."""
    characters: int = 64_000
    """Of the arguments of one call."""
    at_once: int = 4
    """Operator calls that are worked on at a time; more wait."""


class Stop(Exception):
    """Ends the run: its outcome and why."""

    def __init__(self, outcome: Ending, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome


@dataclass
class Trace:
    """One operator call. ``path`` is the largest sum of tokens along what it waited for, itself
    included; unknown tokens count as none there, and `Broker.critical` is then unknown."""

    operator: str
    ok: bool = False
    tokens_in: int | None = 0
    tokens_out: int | None = 0
    path: int = 0
    error: str = ""
    model_calls: int = 0
    attempts: int = 0
    """Requests sent for it; what the store had is none."""
    paid_usd: float | None = 0.0
    """What those cost; None where unknown."""
    keys: list[str] = field(default_factory=list)
    """Of its replies in the store."""
    number: int = 0
    """Its place among the calls of the program, from 1."""

    def tokens(self) -> int | None:
        """In and out; None where either is unknown."""
        return total((self.tokens_in, self.tokens_out))


class Workshop:
    """Sandboxes for the code that operators run, started when they are first needed."""

    def __init__(self, tier: tiers.Tier, workers: int = 2) -> None:
        self.tier, self.workers = tier, workers
        self._crews: dict[str, Crew] = {}
        self._lock = threading.Lock()

    async def run(self, work: Call | Task) -> Result:
        """How some code ended. Raises Stop: the sandbox failed twice."""
        with self._lock:
            kind = type(work).__name__
            if kind not in self._crews:
                tier = self.tier
                self._crews[kind] = (
                    Pool(self.workers, tier=tier)
                    if kind == "Call"
                    else Crew(self.workers, lambda: Pair(tier))
                )
            crew = self._crews[kind]
        result = await asyncio.wrap_future(crew.submit(work))
        if result.outcome is Outcome.SANDBOX:
            raise Stop(Ending.SANDBOX_ERROR, result.detail)
        return result

    def close(self) -> None:
        """Finish what is queued, and end every sandbox."""
        while self._crews:
            self._crews.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Broker:
    """Does the calls of one run of one program.

    Attributes:
        instruct: layer 2: (operator, domain) -> what goes before its prompt and over the executor's
            settings, as `instructions.layer2` says; None is off.
        traces: the calls that have ended, in that order, with what they spent.
        replies: every text that the program was given.
        model_calls: how many were made.
    """

    problem: Problem
    executor: Executor
    workshop: Workshop
    budget: Budget = field(default_factory=Budget)
    instruct: Callable[[Operator, str], Instruction] | None = None
    traces: list[Trace] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    calls: int = 0
    model_calls: int = 0
    tokens: int = 0
    """About how many were used, for the budget."""

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.budget.at_once)
        self._calls_before: Counter[str] = Counter()
        self._paths: dict[int, int] = {}
        self.repeated = 0
        """Calls that were made before with the same arguments."""

    async def call(self, number: int, name: str, arguments: Arguments, after: list[int]) -> Results:
        """The result of the call of that number; ``after`` are the numbers of earlier calls whose
        results the caller has waited for. Raises Stop: the run ends here."""
        self.calls += 1
        if self.calls > self.budget.operator_calls:
            raise Stop(
                Ending.BUDGET_EXCEEDED, f"more than {self.budget.operator_calls} operator calls"
            )
        if size(arguments) > self.budget.characters:
            raise Stop(
                Ending.BUDGET_EXCEEDED, f"more than {self.budget.characters} characters in a call"
            )
        operator, trace = OPERATORS[name], Trace(name, number=number)
        waited = max((self._paths[earlier] for earlier in after), default=0)
        try:
            async with self._places:
                desk = _Desk(self, operator, arguments, trace)
                result = operator.result(await operator.play(desk, operator, **arguments))
        except BaseException as error:
            if isinstance(error, Stop) or trace.tokens() != 0:  # what was spent is on the account
                self._note(number, trace, waited, str(error) or "the run ended before its result")
            raise
        self._note(number, trace, waited, str(result["error"]))
        self.replies += [value for value in result.values() if isinstance(value, str)]
        return result

    def _note(self, number: int, trace: Trace, waited: int, error: str) -> None:
        trace.ok, trace.error = not error, error
        trace.path = self._paths[number] = waited + (trace.tokens() or 0)
        self.traces.append(trace)

    async def ask(self, operator: Operator, prompt: str, trace: Trace) -> str:
        """One model call, on the account of ``trace``. Raises Stop: it is not to be had."""
        self.model_calls += 1
        if self.model_calls > self.budget.model_calls:
            raise Stop(Ending.BUDGET_EXCEEDED, f"more than {self.budget.model_calls} model calls")
        parameters: Mapping[str, float] = {}
        if self.instruct is not None:
            instruction = self.instruct(operator, self.problem.domain)
            prompt = f"{instruction.text}\n\n{prompt}" if instruction.text else prompt
            parameters = instruction.parameters
        messages = ({"role": "user", "content": prompt},)
        sample = self._calls_before[prompt]
        self._calls_before[prompt] += 1
        place = trace.model_calls  # of several at once the order is that in which they are asked
        trace.model_calls += 1
        trace.keys.append("")
        try:
            reply = await self.executor.ask(
                Question(operator.name, messages, operator.max_tokens, sample, parameters)
            )
        except Down as error:
            raise Stop(Ending.OPERATOR_ERROR, f"{operator.name}: {error}") from error
        trace.keys[place] = reply.key
        trace.attempts += reply.attempts
        trace.paid_usd = total((trace.paid_usd, reply.cost_usd))
        trace.tokens_in = total((trace.tokens_in, reply.tokens_in))
        trace.tokens_out = total((trace.tokens_out, reply.tokens_out))
        estimates = ((reply.tokens_in, prompt), (reply.tokens_out, reply.text))
        self.tokens += sum(
            len(text) // CHARACTERS_PER_TOKEN if count is None else count
            for count, text in estimates
        )
        if self.tokens > self.budget.tokens:
            raise Stop(Ending.BUDGET_EXCEEDED, f"more than {self.budget.tokens} tokens")
        return reply.text

    @property
    def tokens_in(self) -> int | None:
        """Of all calls; None where one is unknown."""
        return total(trace.tokens_in for trace in self.traces)

    @property
    def tokens_out(self) -> int | None:
        """Of all calls; None where one is unknown."""
        return total(trace.tokens_out for trace in self.traces)

    @property
    def critical(self) -> int | None:
        """The largest sum of tokens along what waited for what; None where a count is unknown."""
        if any(trace.tokens() is None for trace in self.traces):
            return None
        return max((trace.path for trace in self.traces), default=0)

    @property
    def cost_usd(self) -> float | None:
        """What the executor's price makes of the tokens; None where either is unknown."""
        price = self.executor.price
        if price is None:
            return None
        if not price.input and not price.output:
            return 0.0
        if self.tokens_in is None or self.tokens_out is None:
            return None
        return (self.tokens_in * price.input + self.tokens_out * price.output) / 1e6

    def spent(self) -> Spent:
        """What a program may know of the account, as AFlow's clients tell it."""
        return {
            "total_input_tokens": self.tokens_in or 0,
            "total_output_tokens": self.tokens_out or 0,
            "total_cost": self.cost_usd or 0.0,
        }


class _Desk:
    """What `Broker` lends one call; see `operators.base.Desk`."""

    def __init__(
        self, broker: Broker, operator: Operator, arguments: Arguments, trace: Trace
    ) -> None:
        self.broker, self.operator, self.trace = broker, operator, trace
        self.domain, self.entry_point = broker.problem.domain, broker.problem.entry_point
        key = repr((broker.problem.id, operator.name, sorted(arguments.items())))
        broker.repeated += broker._calls_before[key] > 0
        broker._calls_before[key] += 1
        seed = f"{key} {broker._calls_before[key]}".encode("utf-8", "surrogatepass")
        self.random = Random(hashlib.sha256(seed).digest())
        self.model_calls_left = operator.max_model_calls

    async def ask(self, prompt: str) -> str:
        self.model_calls_left -= 1
        assert self.model_calls_left >= 0, f"{self.operator.name} makes more calls than it declares"
        return await self.broker.ask(self.operator, prompt, self.trace)

    async def compute(self, source: str, function: str) -> tuple[str | None, str]:
        result = await self.broker.workshop.run(Call(source, function, (), COMPUTE))
        if result.outcome is not Outcome.RETURNED:
            return None, f"{result.outcome}: {result.detail}"
        if result.value is None:
            return None, ""
        return str(result.value)[:LONGEST_OUTPUT], ""

    async def test(self, code: str) -> tuple[bool | None, str]:
        tests = "\n".join(self.broker.problem.public_tests)
        if not tests.strip():
            return None, "the problem has no public tests"
        task = Task(((code,),), tests, self.entry_point, limits=TESTED)
        result = await self.broker.workshop.run(task)
        passed = result.outcome is Outcome.RETURNED and result.value is True
        how = "a test failed" if result.outcome is Outcome.RETURNED else str(result.outcome)
        return passed, "" if passed else f"{how}: {result.detail}\nThe tests:\n{tests}"


def size(arguments: Arguments) -> int:
    """Characters of the arguments of a call."""
    return sum(
        sum(map(len, value)) if isinstance(value, list) else len(str(value))
        for value in arguments.values()
    )


def legal(name: Any, arguments: Any) -> bool:
    """Whether a call that a child sent is one that its stand-ins can have made."""
    if not isinstance(name, str) or name not in OPERATORS or not isinstance(arguments, dict):
        return False
    declared = {argument.name: argument for argument in OPERATORS[name].arguments}
    if arguments.keys() != declared.keys():
        return False
    for key, value in arguments.items():
        kind = declared[key].type
        if kind == "list[str]":
            fits = isinstance(value, list) and all(type(item) is str for item in value)
        elif kind == "int":
            fits = type(value) is int
        else:
            fits = type(value) is str or (value is None and kind == "str | None")
        if not fits:
            return False
    return True
