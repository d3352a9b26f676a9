"""Runs the rules of a step's rows in the sandbox, and puts their verdicts into the records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from study.rows import Row
from study.rules import RuleResult, check_rules
from study.sandbox.calls import SUSPICIOUS

if TYPE_CHECKING:
    from study.sandbox.pool import Pool


VERDICTS = {True: "passed", False: "failed"}


class RuleRunner:
    """Runs rules in a pool of sandboxes; asks each rule once what it says of an empty answer."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._empty: dict[tuple[str, str], bool | None] = {}

    def check(self, rows: Sequence[Row], answers: Sequence[str]) -> list[list[RuleResult]]:
        """N lists of R results, in the order of each row's rules."""
        return check_rules(rows, answers, self.pool, self._empty)


def spoken(result: RuleResult) -> str:
    """One result as it is recorded: ``id passed|failed|<outcome> [vacuous] [infeasible]``."""
    verdict = str(result.outcome) if result.passed is None else VERDICTS[result.passed]
    flags = [name for name in ("vacuous", "infeasible") if getattr(result, name)]
    return " ".join([result.rule.id, verdict, *flags])


def verdict(recorded: str) -> bool | None:
    """What `spoken` wrote: passed, failed, or no verdict."""
    return {word: passed for passed, word in VERDICTS.items()}.get(recorded.split(" ")[1])


def rule_metrics(checked: Sequence[Sequence[RuleResult]], seconds: float) -> dict[str, float]:
    """Shares over the rules run in a step, and the time that they took."""
    results = [result for row in checked for result in row]
    metrics = {"system/rules_s": seconds}
    if results:
        passed = [result for result in results if result.passed]
        metrics["rule/pass_frac"] = len(passed) / len(results)
        metrics["rule/error_frac"] = sum(result.passed is None for result in results) / len(results)
        metrics["rule/infeasible_frac"] = sum(bool(r.infeasible) for r in results) / len(results)
        metrics["rule/suspicious"] = float(sum(result.outcome in SUSPICIOUS for result in results))
        if passed:
            metrics["rule/vacuous_pass_frac"] = sum(bool(r.vacuous) for r in passed) / len(passed)
    return metrics
