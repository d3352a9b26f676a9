"""Rule functions of VerIF-style files: run in the sandbox, recorded and counted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.cell.completions import turns
from study.errors import UserError
from study.rows import Row, Rule, make_row
from study.sandbox.calls import SUSPICIOUS, Call, Limits, Outcome, Result
from study.sandbox.pool import Pool
from study.tasks import verif
from study.tasks.prompts import ENDINGS, records

USAGE = "python -m experiments.rules audit file=rows.parquet response=TEXT out=audit.json"
VERDICT = f"""

def verdict_of_rule(instruction, response):
    return bool({verif.FUNCTION}(instruction, response))
"""
"""Rules say yes by any true value: ``re.search(a, x) and re.search(b, x)`` is a match or None."""
LIMITS = Limits(cpu_s=2, wall_s=10.0, memory_mb=256)
LONGEST_WORD = 14
"""Prose with no word shorter than this many characters plus one does not exist."""
MINIMUM = re.compile(
    r"at least|minimum|no fewer|no less|lower limit|below|not be shorter|no shorter", re.IGNORECASE
)


@dataclass(frozen=True)
class RuleResult:
    """One rule on one answer.

    Attributes:
        passed: what the function returned; None where it returned no bool.
        vacuous: whether an empty answer passes too; None where that is unknown.
        infeasible: why no good answer can pass, or None.
    """

    rule: Rule
    outcome: Outcome
    passed: bool | None
    vacuous: bool | None
    infeasible: str | None
    detail: str = ""


def read_rows(path: Path) -> list[Row]:
    """The rows of a Parquet or JSON-lines file.
    Raises UserError: no such file, another format, a row without legal labels, or no rule at all.
    """
    if not path.is_file() or not path.name.endswith(ENDINGS):
        raise UserError(f"file={path} is no {', '.join(ENDINGS)} file. Type: {USAGE}")
    rows = [rule_row(record, index, str(path)) for index, (_, record) in enumerate(records(path))]
    if not any(row.rules for row in rows):
        raise UserError(
            f"{path} has {len(rows)} rows but none has a checker tagged [rule]. A VerIF-style file"
            f" holds {{checkers, functions}} in reward_model.ground_truth. Type: {USAGE}"
        )
    return rows


def rule_row(record: Mapping[str, Any], index: int, where: str) -> Row:
    """The rules of the row at place ``index`` of the file ``where``; checkers without a tag are
    counted as ``spec["untagged"]``, not run.
    Raises UserError: no prompt, or labels that are not {checkers, functions} of equal length."""
    place = f"{where} row {index}"
    labels = verif.labels(record, place)
    prompt = verif.plain(record.get("prompt"))
    legal = isinstance(prompt, str) or (
        isinstance(prompt, list)
        and all(
            isinstance(turn, Mapping)
            and isinstance(turn.get("role"), str)
            and isinstance(turn.get("content"), str)
            for turn in prompt
        )
    )
    if not legal or not prompt:
        raise UserError(
            f"{place}: its prompt is not legal. Legal is a text, or turns of role and content."
            " Correct or remove the row."
        )
    rules = tuple(
        verif.rule(index, number, text, source)
        for number, (tag, text, source) in enumerate(labels)
        if tag == "rule"
    )
    return make_row(
        turns(prompt), spec={"untagged": sum(not tag for tag, _, _ in labels)}, rules=rules
    )


def infeasible(text: str) -> str | None:
    """Why no good answer can satisfy the rule ``text``, or None where nothing speaks against it.

    Reads two faults from the words, without solving anything: a least number of characters that
    prose does not have in every word, and a range that ends before it begins.
    """
    characters = re.search(r"(\d+)\s+characters", text) or re.search(
        r"character count per word.*?\bto (\d+)", text
    )
    about_words = re.search(r"\bwords?\b", text, re.IGNORECASE)
    least = MINIMUM.search(text)
    if characters and about_words and least and int(characters[1]) > LONGEST_WORD:
        return f"every word of {characters[1]} or more characters: only an empty answer has that"
    span = re.search(r"(?:between|range of|from)\s+(\d+)\s+(?:and|to)\s+(\d+)", text, re.IGNORECASE)
    if span and int(span[1]) > int(span[2]):
        return f"a range from {span[1]} to {span[2]}"
    return None


def _call(source: str, instruction: str, answer: str) -> Call:
    return Call(source + VERDICT, "verdict_of_rule", (instruction, answer), LIMITS)


def _verdict(result: Result) -> bool | None:
    return result.value if type(result.value) is bool else None


def _judged(rule: Rule, result: Result, vacuous: bool | None) -> RuleResult:
    passed, detail = _verdict(result), result.detail
    if passed is None and result.outcome is Outcome.RETURNED:
        detail = f"it returned {type(result.value).__name__}, not bool"
    return RuleResult(rule, result.outcome, passed, vacuous, infeasible(rule.text), detail)


VERDICTS = {True: "passed", False: "failed"}
PASSED = {word: passed for passed, word in VERDICTS.items()}


class RuleRunner:
    """Runs rules in a pool of sandboxes; asks each rule once what it says of an empty answer.
    ``empty`` is what each (source, prompt) said of one, as far as it is known."""

    def __init__(
        self, pool: Pool, empty: Mapping[tuple[str, str], bool | None] | None = None
    ) -> None:
        self.pool = pool
        self._empty = dict(empty or {})

    def check(self, rows: Sequence[Row], answers: Sequence[str]) -> list[list[RuleResult]]:
        """Run every rule of each of N rows on the answer to it, the thinking already stripped: N
        lists of R results, in the order of the rules. A row is repeated for each answer of its
        group."""
        calls = [
            (rule.source, row.prompt_text(), answer)
            for row, answer in zip(rows, answers, strict=True)
            for rule in row.rules
        ]
        todo = sorted({(source, prompt) for source, prompt, _ in calls} - self._empty.keys())
        empty = [(source, prompt, "") for source, prompt in todo]
        every_call = [_call(source, prompt, answer) for source, prompt, answer in (*empty, *calls)]
        results = iter(self.pool.run(every_call))
        self._empty |= {key: _verdict(next(results)) for key in todo}
        return [
            [
                _judged(rule, next(results), self._empty[rule.source, row.prompt_text()])
                for rule in row.rules
            ]
            for row in rows
        ]


def encode_result(result: RuleResult) -> str:
    """One result as it is recorded: ``id passed|failed|<outcome> [vacuous] [infeasible]``."""
    verdict = str(result.outcome) if result.passed is None else VERDICTS[result.passed]
    flags = [name for name in ("vacuous", "infeasible") if getattr(result, name)]
    return " ".join([result.rule.id, verdict, *flags])


def verdict(recorded: str) -> bool | None:
    """What `encode_result` wrote: passed, failed, or no verdict."""
    return PASSED.get(recorded.split(" ")[1])


def rule_metrics(checked: Sequence[Sequence[RuleResult]], seconds: float) -> dict[str, float]:
    """Shares over the rules run in a step, and the time that they took."""
    results = [result for row in checked for result in row]
    metrics = {"time/rules_s": seconds}
    if results:
        passed = [result for result in results if result.passed]
        metrics["rule/pass_frac"] = len(passed) / len(results)
        metrics["rule/error_frac"] = sum(result.passed is None for result in results) / len(results)
        metrics["rule/infeasible_frac"] = sum(bool(r.infeasible) for r in results) / len(results)
        metrics["rule/suspicious"] = float(sum(result.outcome in SUSPICIOUS for result in results))
        if passed:
            metrics["rule/vacuous_pass_frac"] = sum(bool(r.vacuous) for r in passed) / len(passed)
    return metrics
