"""The one reward function that TRL is given: judges, truth and rules about each rollout.

`Scorer` goes step by step: answers, rules, truths, the acting judge's verdicts, the record so far,
rewards, the shadow judges' verdicts, costs. It returns the rewards alone; all else stays in
``pending`` for the recorder, so the shadow judges never reach the gradient. Rollouts that end while
others are generated may be submitted to the judges before; the verdicts are the same.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from experiments.trainer.audit import audits, verdict_rows
from experiments.trainer.step_metrics import (
    component_shares,
    judge_metrics,
    missing_truths,
    penalty_metrics,
)
from experiments.trainer.world import Direct, Executed, TooManyFailed, World
from study.cell.heartbeat import Heartbeat
from study.cell.records import COMPONENT, ORIGIN, CallRow, rollout_id
from study.config.schema import Study
from study.rewards.checks import for_judge
from study.rewards.compose import Composed, RewardInputs, composed
from study.rewards.corrections.corrector import Corrector, StepVerdicts
from study.rewards.failure import TooManyMissing, too_many_missing
from study.rows import Missing, Row, RuleTruth, Truth
from study.tasks.rules import RuleResult, RuleRunner, encode_result, rule_metrics
from study.truth.oracle import Oracle
from study.verdict import Verdict, VerdictRow, mean_score

if TYPE_CHECKING:
    from judges.ask.budget import Budget
    from judges.ask.session import Ahead, Session

MOST_ROWS = 4096
"""Rows kept from one step for the next; others are read again."""


@dataclass
class StepRecord:
    """What one generation step gave, in generation order; filled up as the step goes on."""

    step: int
    rollouts: list[dict[str, Any]]
    verdicts: list[VerdictRow]
    calls: list[CallRow] | None = None
    """Of operators; None where completions are no programs."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class UnderWay:
    """A step whose judges may be asked already."""

    calls: list[int]
    """Requests to each judge and to the executor before it."""
    hits: int
    """What the acting judge was not asked anew before it."""
    ahead: list[Ahead]
    """Of the acting judge and of each shadow judge."""
    batches: ExitStack
    """Its end leaves nothing in flight."""


@dataclass(eq=False, repr=False)
class Scorer:
    """Callable reward for TRL over P prompts x G rollouts."""

    __name__ = "reward"

    config: Study
    oracle: Oracle
    """The task's rows by prompt, and what its rules say of answers."""
    acting: Session
    """The judge in the reward."""
    shadows: Sequence[Session] = ()
    """Judges that only look."""
    auditors: Sequence[Session] = ()
    """Those of ``truth.audit``, which are asked about drawn groups alone."""
    budget: Budget | None = None
    """What the verdicts of all of them may cost."""
    rules: RuleRunner | None = None
    """Runs the rows' rule functions, where ``reward.rules`` is run."""
    decode: Callable[[list[list[int]]], list[str]] | None = None
    """Token ids -> texts as they came. Chat messages may have been parsed: some templates take
    thinking out of them, closed or not, and only `answer_of` may do that."""
    on_missing: Callable[..., None] = field(default=lambda step, rollouts, verdicts, calls: None)
    """Keeps the records of a step that the failure policy stops at."""
    heart: Heartbeat = field(default_factory=Heartbeat)
    corrector: Corrector = field(default_factory=Corrector)
    """Makes of the verdicts what the rewards are made of; of a resumed run it knows the labels."""
    world: World = field(default_factory=Direct)
    """Says what the answer of a completion is."""
    pending: StepRecord | None = None
    _under_way: UnderWay | None = None

    def __post_init__(self) -> None:
        self._sessions = (self.acting, *self.shadows)
        self._row = functools.lru_cache(maxsize=MOST_ROWS)(self._read_row)

    def _read_row(self, prompt_id: str) -> tuple[Row, Row]:
        """The row of a prompt, and the row as a judge is asked about it."""
        row = self.oracle.row_of(prompt_id)
        assert row is not None, "the trainer asks about rows of the task alone"
        return row, for_judge(row, self.config.reward.rules)

    def submit(self, ended: Mapping[int, tuple[str, list[int]]]) -> None:
        """Ask the judges about rollouts that have ended, and do not wait; `__call__` collects.

        Args:
            ended: index in the step -> (prompt id, token ids).

        Raises:
            BudgetSpent: the step may pass a limit of ``cost``; nothing was asked.
        """
        assert self.decode is not None, "only token ids say where thinking ends"
        under_way = self._begin()
        if not self.world.answers_early:
            return
        texts = self.decode([ids for _, ids in ended.values()])
        played = self.world.play([self._row(name)[0] for name, _ in ended.values()], texts)
        items = {
            index: (self._row(prompt_id)[1], each.answer or "")
            for (index, (prompt_id, _)), each in zip(ended.items(), played, strict=True)
        }
        for session, ahead in zip(self._sessions, under_way.ahead, strict=True):
            # A simulated judge says at once what it says, if it need not wait for the truth.
            if not (self.oracle.waits and session.judge.simulated):
                ahead.submit(items)

    def drop(self) -> None:
        """End the step, if one is under way: what its judges were asked in vain is cancelled."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.batches.close()

    def _begin(self) -> UnderWay:
        """The step under way, begun within the budget."""
        if self._under_way is None:
            if self.budget is not None:
                self.budget.check()
            batches, size = ExitStack(), self.config.trainer.group_size
            self._under_way = UnderWay(
                calls=[*self._calls()],
                hits=self.acting.hits,
                ahead=[batches.enter_context(each.batch(size)) for each in self._sessions],
                batches=batches,
            )
        return self._under_way

    @contextmanager
    def _ending(self) -> Generator[UnderWay]:
        """The step under way; it is over with the block."""
        try:
            yield self._begin()
        finally:
            self.drop()

    def __call__(
        self,
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        prompt_id: list[str],
        trainer_state: Any,
        **_: Any,
    ) -> list[float | None]:
        """Rewards of N = P * G rollouts in group order; None is a rollout without a reward.

        Raises:
            TooManyMissing: by the failure policy.
            BudgetSpent: the step may pass a limit of ``cost``; nothing was asked.
        """
        seconds: dict[str, float] = {}
        self.heart.beat(sum(map(len, completion_ids)))
        waiting = self.heart.waiting("judging")
        with _timed(seconds, "step"), self._ending() as under_way, waiting:
            step = trainer_state.global_step + 1
            if self.decode is not None:
                texts_N = self.decode(completion_ids)
            else:
                texts_N = [completion[0]["content"] for completion in completions]
            rows = [self._row(name)[0] for name in prompt_id]
            with _timed(seconds, "world"):
                executed_N = self._play(step, rows, texts_N, completion_ids)
            rules_N: Sequence[Sequence[RuleResult]] = [()] * len(rows)
            with _timed(seconds, "rules"):
                if self.rules is not None:
                    rules_N = self.rules.check(rows, [each.answer or "" for each in executed_N])
            with _timed(seconds, "truth"):
                truths_N = self._truths(rows, executed_N)
            inputs_N = self._inputs(
                rows,
                executed_N,
                tokens_N=map(len, completion_ids),
                truths_N=truths_N,
                rules_N=rules_N,
            )
            with _timed(seconds, "judge"):
                votes_N = self._ask(0, inputs_N, under_way)
                # a panel's reward is made of them too; else they never hold it up
                panel = self.config.correction.panel != "none"
                shadows_J_N = self._ask_shadows(inputs_N, under_way) if panel else []
            record = StepRecord(
                step,
                self._rollout_rows(step, inputs_N, texts_N, executed_N, votes_N, rules_N),
                verdict_rows(step, "acting", self.acting, votes_N),
                None if self.world.answers_early else _call_rows(step, executed_N),
            )
            rewarded = self._compose(inputs_N, votes_N, shadows_J_N, record, under_way)
            for row, (reward, terms) in zip(record.rollouts, rewarded, strict=True):
                row["reward"] = reward
                row |= {f"{COMPONENT}{name}": value for name, value in terms.items()}
            with _timed(seconds, "shadows"):
                shadows_J_N = shadows_J_N or self._ask_shadows(inputs_N, under_way)
                for shadow, shadow_votes_N in zip(self.shadows, shadows_J_N, strict=True):
                    record.verdicts += verdict_rows(step, "shadow", shadow, shadow_votes_N)
                record.verdicts += audits(self.config, step, inputs_N, self.auditors)
            if self.budget is not None:
                calls = sum(self._calls()) - sum(under_way.calls)
                self.budget.add(calls, record.verdicts, record.calls or ())
            self.world.learn(record.rollouts)
        record.metrics = judge_metrics([vote for votes in votes_N for vote in votes]) | {
            "time/judge_s": seconds["judge"],
            "time/world_s": seconds["world"],
            "time/reward_s": seconds["step"]
            - sum(seconds[name] for name in ("world", "judge", "shadows")),
            "time/truth_s": seconds["truth"],
            **(rule_metrics(rules_N, seconds["rules"]) if self.rules is not None else {}),
            **penalty_metrics([terms for _, terms in rewarded]),
            **missing_truths(inputs_N),
            **self.world.metrics(record.rollouts),
            **(
                {}
                if record.calls is None
                else component_shares(record.rollouts, self.config.trainer.group_size)
            ),
            "cost/calls": float(self.acting.calls - under_way.calls[0]),
            "cost/cache_hits": float(self.acting.hits - under_way.hits),
        }
        self.pending = record
        self.heart.phase("updating")
        return [reward for reward, _ in rewarded]

    def look(
        self,
        step: int,
        rows: Sequence[Row],
        texts_N: Sequence[str],
        tokens_N: Sequence[int],
        executed_N: Sequence[Executed],
        group_size: int,
        judges: Sequence[Session],
    ) -> StepRecord:
        """Answers that nothing is learned from, as a step's are recorded: truths and verdicts, and
        no reward.

        Args:
            tokens_N: length of each completion.
            executed_N: what each completion came to.
            judges: the acting judge and the shadow judges, as they are to be asked now.
        """
        rules_N = [()] * len(rows)
        truths_N = self._truths(rows, executed_N)
        inputs_N = self._inputs(rows, executed_N, tokens_N, truths_N, rules_N)
        items_N, votes_J_N = [each.item for each in inputs_N], []
        for judge in judges:
            votes_J_N.append(judge.ask_many(items_N, group_size))
            judge.stop_if_refused()
        return StepRecord(
            step,
            self._rollout_rows(
                step, inputs_N, texts_N, executed_N, votes_J_N[0], rules_N, group_size
            ),
            [
                row
                for role, judge, votes_N in zip(self.roles, judges, votes_J_N, strict=True)
                for row in verdict_rows(step, role, judge, votes_N)
            ],
            None if self.world.answers_early else _call_rows(step, executed_N),
        )

    @property
    def roles(self) -> list[str]:
        """Role of the acting judge and of each shadow judge."""
        return ["acting", *("shadow" for _ in self.shadows)]

    def _play(
        self, step: int, rows: list[Row], texts_N: list[str], ids_N: list[list[int]]
    ) -> list[Executed]:
        """What each completion came to; what a step has cost that is stopped here is kept.
        Raises TooManyFailed."""
        try:
            return self.world.play(rows, texts_N)
        except TooManyFailed as error:
            nothing: list[list[Any]] = [[] for _ in rows]
            executed_N = list(error.executed)
            truths_N = [None] * len(rows)
            inputs_N = self._inputs(rows, executed_N, map(len, ids_N), truths_N, nothing)
            rollouts = self._rollout_rows(step, inputs_N, texts_N, executed_N, nothing, nothing)
            self.on_missing(step, rollouts, [], _call_rows(step, executed_N))
            raise

    def _truths(self, rows: Sequence[Row], executed_N: Sequence[Executed]) -> list[RuleTruth]:
        """What the rules say of each answer; None where there is none to ask about."""
        pairs = [
            (row, each.answer)
            for row, each in zip(rows, executed_N, strict=True)
            if each.has_answer
        ]
        truths = iter(self.oracle.truths([row for row, _ in pairs], [text for _, text in pairs]))
        if any(judge.judge.simulated for judge in (*self._sessions, *self.auditors)):
            # judges are shown "" of these, and what a simulated one says must be known
            cut = [row for row, answer in pairs if answer is None]
            self.oracle.truths(cut, [""] * len(cut))
        return [next(truths) if each.has_answer else None for each in executed_N]

    def _inputs(
        self,
        rows: Sequence[Row],
        executed_N: Sequence[Executed],
        tokens_N: Iterable[int],
        truths_N: Sequence[RuleTruth],
        rules_N: Sequence[Sequence[RuleResult]],
    ) -> list[RewardInputs]:
        """All that each reward is made of but the judge's score."""
        return [
            RewardInputs(
                row=row,
                judged_row=self._row(row.prompt_id)[1],
                answer=executed.answer or "",
                tokens=tokens,
                truth=truth.score if isinstance(truth, Truth) else None,
                rules=tuple(result.passed for result in rules),
                truth_missing=truth.reason if isinstance(truth, Missing) else None,
                played=executed.played,
            )
            for row, executed, tokens, truth, rules in zip(
                rows, executed_N, tokens_N, truths_N, rules_N, strict=True
            )
        ]

    def _ask(
        self, place: int, inputs_N: list[RewardInputs], under_way: UnderWay
    ) -> list[list[Verdict]]:
        """One judge's votes on each rollout. Raises EndpointRefused."""
        votes_N = under_way.ahead[place].votes([rollout.item for rollout in inputs_N])
        self._sessions[place].stop_if_refused()
        return votes_N

    def _calls(self) -> Iterator[int]:
        """Requests to each judge and to the executor so far."""
        for session in (*self._sessions, *self.auditors):
            yield session.calls
        yield self.world.calls

    def _ask_shadows(
        self, inputs_N: list[RewardInputs], under_way: UnderWay
    ) -> list[list[list[Verdict]]]:
        """The votes of each shadow judge on each rollout."""
        places = range(1, len(self._sessions))
        return [self._ask(place, inputs_N, under_way) for place in places]

    def _rollout_rows(
        self,
        step: int,
        inputs_N: list[RewardInputs],
        texts_N: Sequence[str],
        executed_N: Sequence[Executed],
        votes_N: list[list[Verdict]],
        rules_N: Sequence[Sequence[RuleResult]],
        group_size: int = 0,
    ) -> list[dict[str, Any]]:
        """Rollouts as they are recorded, before there are rewards; ``group_size`` of 0 is that of
        training."""
        group_size = group_size or self.config.trainer.group_size
        return [
            {
                "rollout_id": rollout_id(step, index),
                "step": step,
                "prompt_id": rollout.row.prompt_id,
                "group": index // group_size,
                "member": index % group_size,
                "prompt": rollout.row.prompt_text(),
                "completion": texts_N[index],
                "answer": executed_N[index].answer,
                "tokens": rollout.tokens,
                "truth": rollout.truth,
                "judge_score": mean_score(votes_N[index]),
            }
            | {name: value for name in ORIGIN if (value := getattr(rollout.row, name))}
            | ({"rules": [*map(encode_result, rules_N[index])]} if self.rules else {})
            | ({} if rollout.truth_missing is None else {"truth_missing": rollout.truth_missing})
            | dict(executed_N[index].columns)
            for index, rollout in enumerate(inputs_N)
        ]

    def _compose(
        self,
        inputs_N: list[RewardInputs],
        votes_N: list[list[Verdict]],
        panel_J_N: list[list[list[Verdict]]],
        record: StepRecord,
        under_way: UnderWay,
    ) -> list[Composed]:
        """Each reward, and the terms that it is composed of; see `__call__` for what is raised."""
        judge, group_size = self.config.judge, self.config.trainer.group_size
        policy, most = judge.on_failure, judge.max_unscored_frac
        others = [[mean_score(votes) for votes in each_N] for each_N in panel_J_N]
        verdicts = StepVerdicts(self.config, record.step, group_size, inputs_N, votes_N, others)
        scores_N, columns_N = self.corrector(verdicts)
        try:
            rewarded = composed(self.config, inputs_N, scores_N, group_size, policy, most)
        except TooManyMissing as error:
            for place, shadow in enumerate(self.shadows, 1):
                # paid for, so kept, and counts in the budget
                if panel_J_N:
                    panel_N = panel_J_N[place - 1]
                elif under_way.ahead[place].has_requests:
                    panel_N = self._ask(place, inputs_N, under_way)
                else:
                    continue
                record.verdicts += verdict_rows(record.step, "shadow", shadow, panel_N)
            self.on_missing(record.step, record.rollouts, record.verdicts, record.calls)
            votes = [vote for votes in votes_N for vote in votes]
            raise too_many_missing(str(error), votes, self.acting.judge) from error
        return [
            (reward, terms | columns)
            for (reward, terms), columns in zip(rewarded, columns_N, strict=True)
        ]


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Generator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started


def _call_rows(step: int, executed_N: Sequence[Executed]) -> list[CallRow]:
    """The operator calls of a step."""
    return [
        {**call, "rollout_id": rollout_id(step, index), "step": step}
        for index, executed in enumerate(executed_N)
        for call in executed.calls
    ]
