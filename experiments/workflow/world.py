"""The world of policies that write programs: a completion is a program, an executor runs it.

Each program of a step is validated, executed on its problem and measured; judge and rules then see
the problem and the executed answer alone. The same program on the same problem is run once: equal
questions have equal replies in the store, so a second run would be told the same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.policies.tokens import by_rule
from experiments.trainer.world import Executed, Messages, TooManyFailed
from experiments.workflow import rollouts, static
from experiments.workflow.broker import Budget, Workshop
from experiments.workflow.embedding import Embeddings
from experiments.workflow.executor import Down, Question
from experiments.workflow.experience import Buffer
from experiments.workflow.find import find
from experiments.workflow.instructions import VERSION, layer2
from experiments.workflow.model import ModelExecutor
from experiments.workflow.play import LIMITS
from experiments.workflow.problem import Problem, problem_of
from experiments.workflow.prompt import Prompt, Prompter, offered
from experiments.workflow.repair import REPAIR, repair_prompt
from experiments.workflow.run import Execution, Settings, execute
from experiments.workflow.templates import TEMPLATES
from experiments.workflow.validate import WORLDS, Report
from judges.endpoint.loop import Loop, gather
from study.answers import answer_of
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.cell.records import FEATURE
from study.programs.endings import INFRASTRUCTURE, Ending
from study.programs.rewards import SHARES, ExecutedProgram
from study.rows import Row
from study.sandbox import tiers
from study.sandbox.conversation import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from judges.ask.replies import Store
    from study.config.schema import Study
    from study.truth.oracle import Oracle

AT_ONCE = 32
"""Programs that are executed at a time; they wait for their executor most of it."""
SIMULATED_AT_ONCE = 8
"""As many where the executor is simulated in this process, and keeps nobody waiting."""
MOST_REPORTS = 4096
"""Validations that are remembered."""
FALLBACK = {"code": "code", "math": "answer", "qa": "answer"}
"""Domain -> the template that runs in place of an invalid program, where that is the treatment."""


class Programs:
    """The world of programs of one cell; use it as a context.

    Args:
        folder: of the cell, whose records fill the buffer again; None begins anew.
        count: tokens of a text, as the policy counts them.
        checked: whether programs are validated; false is for those that are known to be valid.
    Raises UserError: the executor's settings cannot work, or no sandbox holds here.
    """

    answers_early: bool = False

    def __init__(
        self,
        config: Study,
        store: Store | None,
        oracle: Oracle,
        folder: CellFolder | None = None,
        count: Callable[[str], int] | None = None,
        checked: bool = True,
    ) -> None:
        self.config, self.settings, self.checked = config, config.workflow, checked
        self.executor = ModelExecutor(config.executor, store, oracle)
        self.tier = tiers.find(config.sandbox == "unsafe")
        self.prompts = self.settings.prompt == "layered" or not self.settings.shows_problem
        limits, form = self.settings.limits, self.settings.form
        operators, blocks = offered(self.settings), self.settings.blocks
        self._prompter = Prompter(form, count or by_rule, operators, blocks)
        self._run = Settings(
            Budget(limits.operator_calls, limits.model_calls, limits.tokens),
            dataclasses.replace(LIMITS, own_s=limits.own_s),
            layer2(config.executor.name) if self.settings.instructions else None,
        )
        self._row_of = oracle.row_of
        settings, embedder = self.settings.buffer, self.settings.buffer.embedder
        by_vectors = settings.shots and embedder.endpoint.model
        self.embeddings = Embeddings(embedder, store) if by_vectors else None
        self.buffer = Buffer(verified=settings.verified, vectors=self.embeddings)
        self._loop = Loop(self._shut)
        self._stage: Stage | None = None
        self._workshop: Workshop | None = None
        self._reports: dict[tuple[str, str], Report] = {}
        self._prompts: dict[tuple[str, bool], tuple[Messages, str]] = {}
        """What is shown until something is learned."""
        if folder is not None and self.settings.buffer.shots:
            for part in folder.parts("rollouts"):
                self.learn(read_part(part).to_pylist())

    @property
    def calls(self) -> int:
        """Requests sent to the executor so far."""
        return self.executor.asker.channel.calls

    def prompt_for(self, row: Row, learning: bool = True) -> Messages:
        """Layer 1: what the policy is shown of a row; while it is learning, with examples."""
        return self.prompt(row, learning)[0]

    def prompt(self, row: Row, learning: bool = True) -> tuple[Messages, str]:
        """The messages, and the version of the texts behind them; with layer 2, of both layers."""
        key = (row.prompt_id, learning)
        if key not in self._prompts:
            self._prompts[key] = self._prompt(row, learning)
        return self._prompts[key]

    def _prompt(self, row: Row, learning: bool) -> tuple[Messages, str]:
        second = f"+layer2-{VERSION}" if self.settings.instructions else ""
        settings, problem = self.settings, problem_of(row)
        if not settings.shows_problem:
            problem = dataclasses.replace(problem, prompt=HIDDEN[problem.domain], entry_point="")
        if settings.prompt == "problem":
            messages = ({"role": "user", "content": problem.prompt},)
            prompt_messages = row.messages if settings.shows_problem else messages
            return prompt_messages, f"{settings.prompt}{second}"
        buffer = settings.buffer
        examples = self.buffer if learning and buffer.shots else None
        prompt = self._prompter.prompt(problem, examples, settings.cap, buffer.shots, buffer.mode)
        return prompt.messages, f"{version_of(prompt)}{second}"

    def play(self, rows: Sequence[Row], texts: Sequence[str]) -> list[Executed]:
        """What N completions to N rows came to.
        Raises TooManyFailed: executor or sandbox failed in too large a share of them.
        Raises EndpointRefused: the executor's key, account or model is refused."""
        played = self._loop.run(self._play(rows, texts))
        self.executor.asker.stop_if_refused()
        outcomes = [each.played.outcome for each in played if each.played is not None]
        n_lost = sum(outcome in INFRASTRUCTURE for outcome in outcomes)
        most = self.config.executor.max_failed_frac
        if n_lost > most * len(played):
            why = next(
                each.why
                for each in played
                if each.played is not None and each.played.outcome in INFRASTRUCTURE
            )
            raise TooManyFailed(
                f"{n_lost} of the {len(played)} programs of this step failed in executor="
                f"{self.config.executor.name} or the sandbox, not by their own fault: {why}. The "
                "policy did not learn from them. Restart the executor and rerun the command to "
                "resume from the last checkpoint. To accept more failures, type "
                "executor.max_failed_frac=SHARE",
                played,
            )
        return played

    async def _play(self, rows: Sequence[Row], texts: Sequence[str]) -> list[Executed]:
        stage, workshop = self._open()
        problems = [problem_of(row, self.settings.tests) for row in rows]
        pairs = list(zip(problems, texts, strict=True))
        first: dict[tuple[str, str], int] = {}
        for place, (problem, text) in enumerate(pairs):
            first.setdefault((problem.id, text), place)
        run = partial(self._execute, stage=stage, workshop=workshop)
        executed = await gather(
            partial(run, problem=problems[place], text=texts[place]) for place in first.values()
        )
        by_pair = dict(zip(first, executed, strict=True))
        results = []
        for place, (row, (problem, text)) in enumerate(zip(rows, pairs, strict=True)):
            each = by_pair[problem.id, text]
            again = first[problem.id, text] != place
            version = self.prompt(row)[1]
            results.append(self._executed(each, version, again))
        return results

    def _open(self) -> tuple[Stage, Workshop]:
        """The sandboxes, made by the thread that uses them."""
        if self._stage is None or self._workshop is None:
            simulated = self.config.executor.simulated is not None
            at_once = SIMULATED_AT_ONCE if simulated else AT_ONCE
            self._stage = Stage(at_once + len(WORLDS), self.tier)
            self._workshop = Workshop(self.tier)
        return self._stage, self._workshop

    async def _execute(
        self, problem: Problem, text: str, stage: Stage, workshop: Workshop
    ) -> rollouts.Rollout:
        """One program on one problem, with what took its place and what was made of it."""
        form = self.settings.form
        run = partial(
            execute,
            problem=problem,
            executor=self.executor,
            stage=stage,
            workshop=workshop,
            settings=self._run,
        )
        program = answer_of(text)
        if program is None:  # it was cut off while it was thinking
            program = ""
        # what a DSL does in a stub world does not depend on the problem
        key = (problem.domain if form == "dsl" else problem.id, program)
        report = self._reports.get(key) if self.checked else _valid(program, form)
        execution = await run(program, form=form, report=report)
        self._reports[key] = execution.report
        while len(self._reports) > MOST_REPORTS:
            del self._reports[next(iter(self._reports))]
        invalid = execution.played is None
        fallback = mended = None
        if invalid and self.settings.fallback == "credit":
            fallback = await run(TEMPLATES[FALLBACK[problem.domain]], form=None)
        if invalid and self.settings.repair:
            mended = await self._repair(program, execution, problem, run)
        return rollouts.Rollout(problem, execution, fallback, mended)

    async def _repair(
        self, program: str, execution: Execution, problem: Problem, run: Any
    ) -> rollouts.Repair | None:
        """What the executor makes of an invalid program, and how that ran; None without a reply."""
        prompt = repair_prompt(program, execution.report, self.settings.form)
        messages = ({"role": "user", "content": prompt},)
        try:
            answer = await self.executor.ask(Question(REPAIR, messages, rollouts.REPAIR_TOKENS))
        except Down:
            return None
        mended = await run(answer.text, form=self.settings.form)
        return rollouts.Repair(answer, mended)

    def _executed(self, rollout: rollouts.Rollout, version: str, again: bool) -> Executed:
        columns = rollouts.columns(rollout, self.settings) | {"prompt_version": version}
        effective = rollout.fallback or rollout.execution
        shares = {name: columns[f"{FEATURE}{name}"] for name in SHARES}
        measured = {
            name: share if isinstance(share, float) else 0.0 for name, share in shares.items()
        }
        played = ExecutedProgram(str(effective.outcome), **measured)
        answer = effective.answer if effective.outcome is Ending.OK else None
        calls = rollouts.calls(rollout, again)
        return Executed(answer, played, columns, calls, effective.why)

    def learn(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Put a step's programs into the buffer, by the rule or, as a treatment, by the judge."""
        self._prompts.clear()
        if self.settings.buffer.shots:
            self.buffer = self.buffer.updated(rollouts.entries(records, self._row_of))

    def metrics(self, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Rates over all programs of a step, and means over those that ran."""
        values = rollouts.metrics(records)
        if self.settings.buffer.shots:
            values["workflow/buffer_size"] = float(len(self.buffer.entries))
            if self.embeddings is not None:
                values["workflow/without_vector"] = float(len(self.embeddings.lost))
            values["workflow/buffer_sha"] = float(int(self.buffer.sha[:12], 16))
            if (contamination := self.buffer.contamination) is not None:
                values["workflow/contamination"] = contamination
        return values

    def check(self) -> None:
        """Raises UserError: the executor does not answer, or serves another model."""
        self._loop.run(self.executor.asker.check())

    async def _shut(self) -> None:
        await self.executor.close()
        if self._stage is not None:
            self._stage.close()
        if self._workshop is not None:
            await asyncio.to_thread(self._workshop.close)

    def close(self) -> None:
        """End what runs, the sandboxes and the connections."""
        self._loop.close()
        if self.embeddings is not None:
            self.embeddings.close()

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


HIDDEN = {
    "math": "Write a program for problems of mathematics.",
    "code": "Write a program for problems of programming.",
    "qa": "Write a program for questions.",
}
"""Stands in place of the problem where the policy is not to see it."""


def _valid(text: str, form: str) -> Report:
    """The report of a program that is known to be valid. Raises Refused: it is none."""
    program = find(text, form)
    return Report(Ending.OK, (), program, static.read(program)[0])


def version_of(prompt: Prompt) -> str:
    """12 hex digits over the texts that a prompt is made of, whatever was put into them."""
    hashes = " ".join(f"{block.id} {block.sha}" for block in prompt.blocks if block.kept)
    return hashlib.sha256(hashes.encode()).hexdigest()[:12]
