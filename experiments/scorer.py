"""The one reward function that TRL is given.

It asks the acting judge and the shadow judges about the same rollouts, runs the rules, computes the
rule truth, and returns the composed reward. What else was learned stays in ``pending`` for the
recorder: the shadow judges and the truth never reach the gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from judges.session import judge_all
from study.answers import answer_of
from study.records import COMPONENT, rollout_id
from study.rewards.checks import for_judge
from study.rewards.compose import RewardInputs, composed
from study.rewards.failure import TooManyMissing, too_many_missing
from study.rewards.ruled import RuleRunner, rule_metrics, spoken
from study.rows import Row, Truth
from study.schema import Study
from study.verdict import DIFFERENT, Outcome, Verdict, mean_score

if TYPE_CHECKING:
    from judges.budget import Budget
    from judges.session import Session


@dataclass
class StepRecord:
    """What one generation step gave, in generation order; filled up as the step goes on."""

    step: int
    rollouts: list[dict[str, Any]]
    verdicts: list[dict[str, Any]]
    metrics: dict[str, float] = field(default_factory=dict)


class Scorer:
    """Callable reward for TRL over P prompts x G rollouts.

    Args:
        config: the cell's config.
        rows: prompt id -> row.
        truth: (row, answer) -> rule truth, or None where no rule can tell.
        acting: the judge in the reward.
        shadows: judges that only look.
        budget: what the verdicts of all of them may cost.
        rules: runs the rows' rule functions, where ``reward.rules`` is run.
    """

    __name__ = "reward"

    def __init__(
        self,
        config: Study,
        rows: dict[str, Row],
        truth: Callable[[Row, str], Truth | None],
        acting: Session,
        shadows: Sequence[Session] = (),
        budget: Budget | None = None,
        rules: RuleRunner | None = None,
    ) -> None:
        self.config = config
        self.rows = rows
        self.asked = {name: for_judge(row, config.reward.rules) for name, row in rows.items()}
        self.rules = rules
        self.decode: Callable[[list[list[int]]], list[str]] | None = None
        """Token ids -> texts as they came. Chat messages may have been parsed: some templates take
        thinking out of them, closed or not, and only `answer_of` may do that."""
        self.truth = truth
        self.acting = acting
        self.shadows = list(shadows)
        self.budget = budget
        self.pending: StepRecord | None = None
        self.on_starved: Callable[[int, list[dict[str, Any]], list[dict[str, Any]]], None] = (
            lambda step, rollouts, verdicts: None
        )
        """Keeps the rollouts and verdicts of a step that the failure policy stops at."""

    def __call__(
        self,
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        prompt_id: list[str],
        trainer_state: Any,
        **_: Any,
    ) -> list[float | None]:
        """Rewards of P * G rollouts in group order; None is a rollout without a reward.

        Raises:
            TooManyMissing: by the failure policy.
            BudgetSpent: the step may pass a limit of ``cost``; nothing was asked.
        """
        entered = time.perf_counter()
        if self.budget is not None:
            self.budget.check()
        sent = self._sent()
        step = trainer_state.global_step + 1
        texts = (
            self.decode(completion_ids)
            if self.decode is not None
            else [completion[0]["content"] for completion in completions]
        )
        answers = [answer_of(text) for text in texts]
        rows = [self.rows[name] for name in prompt_id]
        given = [answer or "" for answer in answers]
        items = [(self.asked[row.prompt_id], text) for row, text in zip(rows, given, strict=True)]

        looked = 0.0
        started = time.perf_counter()
        calls, hits = self.acting.calls, self.acting.hits
        group_size = self.config.trainer.group_size
        votes_N = judge_all(self.acting, items, group_size)
        waited = time.perf_counter() - started
        scores = [mean_score(votes) for votes in votes_N]
        truths = [
            None if (found := self.truth(row, text)) is None else found.score
            for row, text in zip(rows, given, strict=True)
        ]
        ruled = time.perf_counter()
        checked = self.rules.check(rows, given) if self.rules is not None else [()] * len(rows)
        ruled = time.perf_counter() - ruled
        known = [
            RewardInputs(
                row, asked, text, len(ids), truth, tuple(result.passed for result in results)
            )
            for row, (asked, text), ids, truth, results in zip(
                rows, items, completion_ids, truths, checked, strict=True
            )
        ]
        policy, most = self.config.judge.on_failure, self.config.judge.max_unscored_frac
        names = [rollout_id(step, index) for index in range(len(texts))]
        verdicts = _verdict_rows(step, names, "acting", self.acting.judge.name, votes_N)
        rollouts = [
            {
                "rollout_id": names[index],
                "step": step,
                "prompt_id": row.prompt_id,
                "group": index // group_size,
                "member": index % group_size,
                "prompt": row.prompt_text(),
                "completion": texts[index],
                "answer": answers[index],
                "tokens": len(completion_ids[index]),
                "truth": truths[index],
                "judge_score": scores[index],
            }
            | ({"rules": [spoken(one) for one in checked[index]]} if self.rules else {})
            for index, row in enumerate(rows)
        ]
        try:
            found = composed(self.config, known, scores, group_size, policy, most)
        except TooManyMissing as error:
            self.on_starved(step, rollouts, verdicts)
            votes = [vote for votes in votes_N for vote in votes]
            raise too_many_missing(str(error), votes, self.acting.judge) from error
        rewards = [reward for reward, _ in found]
        terms = [term for _, term in found]
        for rollout, reward, term in zip(rollouts, rewards, terms, strict=True):
            rollout["reward"] = reward
            rollout |= {f"{COMPONENT}{name}": value for name, value in term.items()}

        for shadow in self.shadows:
            asked_at = time.perf_counter()
            votes = judge_all(shadow, items, group_size)
            looked += time.perf_counter() - asked_at
            verdicts += _verdict_rows(step, names, "shadow", shadow.judge.name, votes)
        if self.budget is not None:
            self.budget.add(self._sent() - sent, verdicts)
        self.pending = StepRecord(step, rollouts, verdicts)
        self.pending.metrics = judge_metrics([v for votes in votes_N for v in votes]) | {
            "system/judge_s": waited,
            "system/reward_s": time.perf_counter() - entered - waited - looked,
            **(rule_metrics(checked, ruled) if self.rules is not None else {}),
            **_penalty_metrics(terms),
            "cost/calls": float(self.acting.calls - calls),
            "cost/cache_hits": float(self.acting.hits - hits),
        }
        return rewards

    def _sent(self) -> int:
        return sum(session.calls for session in (self.acting, *self.shadows))


def _penalty_metrics(terms: Sequence[dict[str, float | None]]) -> dict[str, float]:
    """Mean of each penalty that is switched on."""
    found = {}
    for name in ("overlong", "repetition"):
        values = [value for one in terms if (value := one.get(name)) is not None]
        if values:
            found[f"reward/{name}"] = sum(values) / len(values)
    return found


def judge_metrics(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Failure shares by reason, latency, tokens and cost of one step's acting verdicts."""
    total = max(len(verdicts), 1)
    metrics = {
        f"judge/unscored/{outcome}": sum(v.outcome == outcome for v in verdicts) / total
        for outcome in Outcome
        if outcome is not Outcome.scored
    }
    metrics["judge/unscored_frac"] = sum(v.score is None for v in verdicts) / total
    metrics["judge/different_verdicts_frac"] = (
        sum(v.score is None and DIFFERENT in v.reason for v in verdicts) / total
    )
    asked = [v for v in verdicts if not v.from_cache]
    if asked:
        metrics["judge/latency_s"] = sum(v.latency_s for v in asked) / len(asked)
        metrics["cost/tokens_in"] = float(sum(v.tokens_in or 0 for v in asked))
        metrics["cost/tokens_out"] = float(sum(v.tokens_out or 0 for v in asked))
        metrics["cost/usd"] = sum(v.cost_usd or 0.0 for v in asked)
    return metrics


def _verdict_rows(
    step: int, names: list[str], role: str, judge: str, votes_N: list[list[Verdict]]
) -> list[dict[str, Any]]:
    return [
        verdict.as_row() | {"rollout_id": name, "step": step, "role": role, "judge": judge}
        for name, votes in zip(names, votes_N, strict=True)
        for verdict in votes
    ]
