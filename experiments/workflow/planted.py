"""What programs come to in a planted world: expected truth, judge score and tokens of each.

The executor is a table (`judges.simulated.operators`), so every program can be tried in this
process, on the real operators, as often as it takes. What a call comes to is remembered: programs
have most of their calls in common. Worlds differ in the executor's seed, so that an expectation is
over all that is drawn.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from analysis.workflow.programs import FILE, VERSION, Contents, Expected, Means, Share
from experiments.workflow import dsl, static
from experiments.workflow.broker import Broker, Budget, Workshop
from experiments.workflow.executor import ATTEMPTS, Answer, Question
from experiments.workflow.find import find
from experiments.workflow.interpret import interpret
from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.base import Arguments, Results
from experiments.workflow.problem import Problem, problem_of
from experiments.workflow.program import Refused, ast_sha
from judges.simulated.bias import Bias
from judges.simulated.operators import Operators
from study.cell.cells import load_cell
from study.cell.folder import study_cells
from study.config.schema import MANY, Executor, Judge, Price, Task
from study.config.simulated import DOMAINS, Simulated, in_domain
from study.config.simulated_executor import SimulatedExecutor
from study.errors import UserError
from study.rows import Row, Truth
from study.sandbox import tiers
from study.sandbox.calls import Call, Result
from study.sandbox.grader import Task as Graded
from study.system.files import write_json
from study.tasks import kind_of, oracle, sample
from study.tasks.kind import grading
from study.tasks.mix import nominal
from study.truth.code import answer_code
from study.truth.item import Item
from study.truth.oracle import Oracle

MOST_PROGRAMS = 200
PROBLEMS = 10
"""Held-out problems of each data set."""
WORLDS = 32
"""Draws of everything on each problem: 640 runs a domain leave a standard error of .02 at most."""
NOISES = 16
"""Draws of a judge's noise on each answer."""
MAKERS = ("Custom", "AnswerGenerate", "Programmer", "CustomCodeGenerate")
TAILS = (
    *("Format", "Revise", "Test", "Custom", "AnswerGenerate"),
    *("Review ? Revise : done", "Review ? Revise : Format"),
    *("Test ? Revise : done", "(Review ? Revise : done) * 2"),
)


def small_programs() -> list[str]:
    """A maker, or an ensemble of makers, and at most one more step; behind a maker alone two, of
    which the second is a choice. Those that no domain offers all operators of are left out."""
    ensembles = [
        *(f"({maker}) * 3 -> {name}" for maker in MAKERS for name in dsl.ENSEMBLES),
        *(
            f"[{first}, {second}] -> {name}"
            for first, second in itertools.combinations(MAKERS, 2)
            for name in dsl.ENSEMBLES
        ),
    ]
    one = [f"{begin} -> {tail}" for begin in (*MAKERS, *ensembles) for tail in TAILS]
    two = [
        f"{maker} -> {first} -> {second}"
        for maker, first, second in itertools.product(MAKERS, TAILS, TAILS)
        if "?" not in first and "?" in second
    ]
    return [text for text in (*MAKERS, *ensembles, *one, *two) if offered(text)]


def offered(text: str) -> set[str]:
    """The domains in which all operators of a program are offered."""
    used = [step.operator for step in dsl.walk(dsl.parse(text)) if step.operator]
    return set.intersection(*(set(OPERATORS[name].domains) for name in used))


@dataclass(frozen=True)
class Trial:
    """What one run came to; ``answer`` is None where a limit ended it."""

    answer: str | None
    tokens: int


class Remembering(Workshop):
    """A workshop that runs equal code once."""

    def __init__(self, tier: tiers.Tier, workers: int = 1) -> None:
        super().__init__(tier, workers)
        self._results: dict[str, Result] = {}

    async def run(self, work: Call | Graded) -> Result:
        """How some code ended. Raises Stop: the sandbox failed twice."""
        key = repr(work)
        if key not in self._results:
            self._results[key] = await super().run(work)
        return self._results[key]


class InProcess:
    """The simulated executor without a wire between; an `executor.Executor`."""

    def __init__(self, settings: SimulatedExecutor, truths: Oracle) -> None:
        self.name = "simulated"
        self.price: Price | None = Price()
        self._operators, self._truths = Operators(settings, truths.row_of), truths

    async def ask(self, question: Question) -> Answer:
        """The reply to one question, asked for again where it is empty.
        Raises UserError: a truth could not be had."""
        text = "\n".join(turn["content"] for turn in question.messages)
        spent_in = spent_out = 0
        for attempt in range(1, ATTEMPTS + 1):
            draw = f"{question.sample} {attempt}\0{text}".encode("utf-8", "surrogatepass")
            request = self._operators.read(text, hashlib.blake2b(draw, digest_size=12).digest())
            rights = []
            if request.row is not None:
                truths = self._truths.truths([request.row] * len(request.answers), request.answers)
                rights = [certain(truth).score == 1.0 for truth in truths]
            reply = self._operators.reply(request, rights)
            spent_in, spent_out = spent_in + reply.tokens_in, spent_out + reply.tokens_out
            if reply.text:
                break
        return Answer(reply.text, spent_in, spent_out, attempt)


def certain(truth: Any) -> Truth:
    """A truth that was had. Raises UserError: it was not."""
    if isinstance(truth, Truth):
        return truth
    raise UserError(
        f"The rule truth of an answer is missing: {getattr(truth, 'reason', 'no rule')}. Free"
        " memory or processes and rerun the command."
    )


Values = tuple[str | int | tuple[str, ...] | None, ...]
"""The arguments of one call, in the order that its operator declares."""


class World:
    """One problem in one world: the calls that were made there, and what they came to."""

    def __init__(self, problem: Problem, executor: InProcess, workshop: Workshop) -> None:
        self.problem, self._executor, self._workshop = problem, executor, workshop
        self._calls: dict[tuple[str, tuple[Values, ...]], tuple[Results, int, int]] = {}

    async def play(self, steps: list[dsl.Step], budget: Budget) -> Trial:
        """One run of a program."""
        alike: defaultdict[tuple[object, ...], tuple[Values, ...]] = defaultdict(tuple)
        spent = [0, 0]

        async def ask(name: str, arguments: Arguments) -> Results:
            # Only an equal call, or one of an ensemble over the same solutions, asks the model what
            # was asked before, and then gets another draw.
            values: Values = tuple(
                tuple(value) if isinstance(value, list) else value for value in arguments.values()
            )
            kin = (name, *(tuple(sorted(v)) if isinstance(v, tuple) else v for v in values))
            alike[kin] += (values,)
            key = (name, alike[kin])
            if key not in self._calls:
                self._calls[key] = await self._call_result(name, list(arguments), alike[kin])
            result, tokens, model_calls = self._calls[key]
            spent[0] += tokens
            spent[1] += model_calls
            if spent[0] > budget.tokens or spent[1] > budget.model_calls:
                raise _Spent
            return result

        try:
            answer = await interpret(steps, self.problem, ask)
        except _Spent:
            return Trial(None, spent[0])
        return Trial(answer, spent[0])

    async def _call_result(
        self, name: str, names: list[str], calls: Sequence[Values]
    ) -> tuple[Results, int, int]:
        """Result, tokens and model calls of the last of some calls that are alike."""
        broker = Broker(self.problem, self._executor, self._workshop)
        result: Results = {}
        before = 0
        for number, values in enumerate(calls, 1):
            before = broker.model_calls
            arguments: Arguments = {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in zip(names, values, strict=True)
            }
            result = await broker.call(number, name, arguments, [])
        return result, broker.traces[-1].tokens() or 0, broker.model_calls - before


class _Spent(Exception):
    """A run is over its budget."""


class Scores:
    """Expected scores of answers, by one judge."""

    def __init__(self, settings: Simulated) -> None:
        self._bias = {name: Bias(in_domain(settings, name)) for name in DOMAINS}

    def of(self, row: Row, answer: str, truth: Truth) -> float:
        """The mean score in [0, 1] over the judge's draws, before any call has made it drift."""
        draw = Random(f"{row.prompt_id} {answer}")
        bias = self._bias[row.domain]
        return sum(bias.decide(answer, truth, draw, 0)[0] for _ in range(NOISES)) / NOISES


def planted(
    task: Task,
    executor: Executor,
    judges: Sequence[Judge],
    programs: Iterable[str] = (),
    unsafe: bool = False,
) -> Contents:
    """The contents of ``planted.json``: each small program and each of ``programs`` (short forms),
    by the hash of its class, with E truth, E score by judge and E tokens for each data set.

    An expectation is over problems, worlds and a judge's noise. A run that a limit ended has no
    answer: it counts 0 as truth and as score. Judges without ``simulated`` settings are left out.
    Limits are the defaults, and no treatment of ``workflow`` is in force.
    Raises UserError: executor or task have no planted world, or the sandbox failed.
    """
    settings = executor.simulated
    if settings is None:
        raise UserError(
            f"executor={executor.name} has no `simulated` settings, so its replies are unknown."
            " Type executor=sim"
        )
    small = _distinct(small_programs())
    texts = _distinct(programs) | small
    rows = _rows(task)
    tier = tiers.find(unsafe)
    with grading(unsafe), Remembering(tier) as workshop, asyncio.Runner() as runner:
        truths = oracle(replace(task, eval_rows=MANY))
        scores = {j.name: Scores(j.simulated) for j in judges if j.simulated is not None}
        totals = runner.run(_totals(list(texts.values()), rows, settings, truths, scores, workshop))
    expectations: dict[str, Expected] = {}
    for (sha, text), (truth, score, tokens) in zip(texts.items(), totals, strict=True):
        expectations[sha] = {
            "dsl": text,
            "small": sha in small,
            "truth": truth,
            "score": score,
            "tokens": tokens,
        }
    return {
        "version": VERSION,
        "executor": executor.name,
        "problems": PROBLEMS,
        "datasets": _datasets(task, rows),
        "programs": expectations,
    }


def _distinct(texts: Iterable[str]) -> dict[str, str]:
    """Hash of the class -> text of each program, the first of those with an equal class."""
    shas: dict[str, str] = {}
    for text in texts:
        tree, _ = static.read(dsl.compiled(text))
        sha = None if tree is None else ast_sha(tree)
        if sha is not None:
            shas.setdefault(sha, text)
    return shas


def _rows(task: Task) -> dict[str, list[Row]]:
    """Data set -> some of its held-out rows, evenly spaced. Raises UserError: rows of a task that
    has no planted world."""
    every = kind_of(task).rows
    items = [row.spec.get("item") for row in every(replace(task, eval_rows=1), "eval")]
    if not items or any(item is None or "wrong" not in item.meta for item in items):
        raise UserError(
            f"task={task.name} has no planted world: its rows do not list a model's possible"
            " answers. Type task=workflow-mini"
        )
    rows: dict[str, list[Row]] = {}
    for row in every(replace(task, eval_rows=MANY), "eval"):
        rows.setdefault(row.dataset, []).append(row)
    return {name: sample(some, PROBLEMS)[:PROBLEMS] for name, some in rows.items()}


def _datasets(task: Task, rows: Mapping[str, list[Row]]) -> dict[str, Share]:
    """Domain of each data set, and the share of a run's draws that it is meant to have."""
    order = kind_of(task).order(task, 0)
    assert order is not None, "a task with a planted world has an order"
    mixture = order.mixture
    domains = nominal(mixture.domains)
    shares: dict[str, float] = {}
    for domain, share in domains.items():
        names = [name for name, pool in mixture.pools.items() if pool.domain == domain]
        inside = nominal({name: mixture.sets[name] for name in names})
        shares |= {name: share * part for name, part in inside.items()}
    return {
        name: {"domain": some[0].domain, "share": shares.get(name, 0.0)}
        for name, some in rows.items()
    }


async def _totals(
    texts: Sequence[str],
    rows: Mapping[str, list[Row]],
    settings: SimulatedExecutor,
    truths: Oracle,
    scores: Mapping[str, Scores],
    workshop: Workshop,
) -> list[tuple[Means, dict[str, Means], Means]]:
    """Of each program: data set -> truth, judge -> data set -> score, data set -> tokens."""
    parsed, budget = [dsl.parse(text) for text in texts], Budget()
    executors = [
        InProcess(replace(settings, seed=(settings.seed + draw) % 2**32), truths)
        for draw in range(WORLDS)
    ]
    means: list[tuple[Means, dict[str, Means], Means]] = [
        ({}, {name: {} for name in scores}, {}) for _ in texts
    ]
    for dataset, some in rows.items():
        # truth, tokens, and the score of each judge
        sums = np.zeros((len(texts), 2 + len(scores)))
        for row in some:
            values: dict[str | None, np.ndarray] = {None: np.zeros(2 + len(scores))}
            for executor in executors:
                world = World(problem_of(row), executor, workshop)
                for place, steps in enumerate(parsed):
                    played = await world.play(steps, budget)
                    if played.answer not in values:
                        worth = _worth(row, played.answer or "", truths, scores)
                        values[played.answer] = np.array(worth)
                    sums[place] += values[played.answer]
                    sums[place, 1] += played.tokens
        sums /= len(some) * len(executors)
        for (truth, score, tokens), line in zip(means, sums.tolist(), strict=True):
            truth[dataset], tokens[dataset] = line[:2]
            for name, value in zip(score, line[2:], strict=True):
                score[name][dataset] = value
    return means


def _worth(row: Row, answer: str, truths: Oracle, scores: Mapping[str, Scores]) -> list[float]:
    """Truth, 0 tokens, and each judge's score of one answer."""
    item: Item = row.spec["item"]
    text = answer_code(item, answer) if item.domain == "code" else answer
    truth = certain(truths.truths([row], [text])[0])
    return [truth.score, 0.0, *(judge.of(row, answer, truth) for judge in scores.values())]


def write_planted(folder: Path) -> Contents:
    """Write ``planted.json`` into the folder of a study: its world, the judges of its arms and, of
    its rollouts' programs in short form, the `MOST_PROGRAMS` most frequent. Where cells have
    several worlds, such as treatments of the executor, it is that of the most cells, the first of
    equally many; ``cells`` are those that it holds for.
    Raises UserError: no cell has a planted world."""
    configs = {cell.name: load_cell(cell).config for cell in study_cells(folder)}
    worlds: dict[str, list[str]] = {}
    for name, config in configs.items():
        if config.world == "workflow" and config.executor.simulated is not None:
            world = repr((config.task, config.executor.simulated))
            worlds.setdefault(world, []).append(name)
    if not worlds:
        raise UserError(
            f"{folder.name} has no planted world in its {len(configs)} cells. It needs a cell with"
            " world=workflow task=workflow-mini executor=sim. Name a study with one."
        )
    cells = max(worlds.values(), key=len)
    config = configs[cells[0]]
    every = [judge for each in configs.values() for judge in (each.judge, *each.shadow_judges)]
    judges = list({judge.name: judge for judge in every}.values())
    unsafe = config.sandbox == "unsafe"
    expectations = planted(config.task, config.executor, judges, short_forms(folder), unsafe)
    expectations["cells"] = cells
    write_json(folder / FILE, expectations)
    return expectations


def short_forms(folder: Path) -> list[str]:
    """The most frequent programs in short form of a study's rollouts."""
    completions = Counter(
        completion
        for cell in study_cells(folder)
        for _, table in cell.records("rollouts", ["completion"])
        for completion in table["completion"].drop_null().to_pylist()
    )
    texts: Counter[str] = Counter()
    for completion, count in completions.items():
        try:
            program = find(completion, "dsl")
        except Refused:
            continue
        texts[program.source] += count
    return [text for text, _ in texts.most_common(MOST_PROGRAMS)]
