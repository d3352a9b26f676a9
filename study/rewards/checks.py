"""Refuses reward settings that make no sense, or that the task's rows cannot serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from study.config import bounds
from study.config.schema import Judge, Reward
from study.errors import UserError
from study.rewards.formulas import HYBRID_PARTS
from study.rows import Criterion, Row


def check_reward(
    reward: Reward,
    judge: Judge,
    rows: Sequence[Row],
    max_tokens: int,
    domains: Iterable[str] = (),
) -> None:
    """Refuse a reward that is not possible with these training rows and
    ``trainer.max_completion_length``; ``domains`` are those that the task has besides theirs.
    Raises UserError: naming the setting, or how many rows lack what it needs."""
    if reward.name == "rubric" and not judge.grading.name.startswith("rubric_"):
        raise UserError(
            f"reward=rubric adds up the points of criteria, but judge.grading.name="
            f"{judge.grading.name} labels no criteria. Type judge.grading.name=rubric_batch (or"
            " rubric_chunk, rubric_item)."
        )
    if reward.name == "hybrid":
        unknown = sorted(set(reward.weights) - set(HYBRID_PARTS))
        if unknown or not any(reward.weights.values()):
            raise UserError(
                f"reward.weights={dict(reward.weights)} names no part of reward=hybrid. Legal are"
                f" {', '.join(HYBRID_PARTS)}; type for example"
                " '+reward.weights={judge:0.5,rule:0.5}'."
            )
    if reward.overlong.buffer > max_tokens:
        raise UserError(
            f"reward.overlong.buffer={reward.overlong.buffer} is longer than a completion. Give at"
            f" most trainer.max_completion_length={max_tokens}."
        )
    _check_domains(reward, sorted({*domains, *(row.domain for row in rows)}))
    _check_rules(reward, rows)


def _check_domains(reward: Reward, present: Sequence[str]) -> None:
    """Refuse a reward by domain that does not fit the domains ``present`` in the task's rows."""
    paid = reward.domains
    if reward.name != "by-domain":
        if paid:
            raise UserError(
                f"reward.domains={dict(paid)} gives each domain its reward, but reward="
                f"{reward.name} trains all alike. Type reward=by-domain, or leave reward.domains"
                " out."
            )
        return
    if not all(present):
        some = "some rows" if any(present) else "the rows"
        raise UserError(
            f"reward=by-domain trains each domain by its own reward, but {some} of the task have"
            " no domain. Type reward=judge or reward=rule, or take a task of several domains, for"
            " example task=mixed."
        )
    shown = [bounds.shown(name) for name in present]
    typed = " ".join(f"reward.domains.{name}={paid.get(name, 'rule')}" for name in shown)
    if not paid:
        raise UserError(
            "reward=by-domain needs reward.domains, which is empty. The task's domains are"
            f" {', '.join(shown)}, each with the reward judge or rule. Type for example {typed}"
        )
    if unknown := [name for name in paid if name not in present]:
        raise UserError(
            f"reward.domains names {bounds.shown(unknown[0])}, but the task's domains are"
            f" {', '.join(shown)}. Type for example {typed}"
        )
    if unpaid := [name for name in shown if name not in paid]:
        raise UserError(
            f"reward.domains gives {', '.join(paid)} a reward and {', '.join(unpaid)} none, but"
            f" the task has rows of each. Legal are judge and rule. Type for example {typed}"
        )


def _check_rules(reward: Reward, rows: Sequence[Row]) -> None:
    ruled = sum(bool(row.rules) for row in rows)
    needed = reward.name == "rule" or reward.weights.get("rule", 0.0) != 0.0
    if reward.rules != "ignore" and not ruled:
        raise UserError(
            f"reward.rules={reward.rules} needs rules, but no row of the task has one. Type"
            " reward.rules=ignore, or take a task with rules, for example task=verinstruct-verif."
        )
    if reward.name == "rule" and not ruled:
        return  # the task's own truth is the rule
    if needed and (reward.rules != "run" or ruled < len(rows)):
        raise UserError(
            f"reward={reward.name} needs rules: reward.rules is {reward.rules} and"
            f" {len(rows) - ruled} of {len(rows)} rows have no rule, so they would have no reward."
            " Type reward.rules=run task.options.needs=rules task.options.on_unfit=drop"
        )


def for_judge(row: Row, rules: str) -> Row:
    """The row as the judge is asked about it: with ``rules=judge`` its rules are criteria too."""
    if rules != "judge" or not row.rules:
        return row
    added = tuple(Criterion(rule.text, rule.points) for rule in row.rules)
    return dataclasses.replace(row, criteria=row.criteria + added)
