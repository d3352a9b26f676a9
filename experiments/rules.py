"""Rule functions of VerIF-style files, run in the sandbox: for rewards, and as an audit.

    python -m experiments.rules audit file=PARQUET_OR_JSONL response=TEXT out=FILE

A row's ``reward_model.ground_truth`` is JSON text {checkers, functions}: checkers tagged [rule]
have, at the same place in functions, Python source of ``check_following(instruction, response)``.
That source is untrusted. A rule that an empty answer satisfies says little: it is called vacuous.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.errors import UserError
from study.files import write_json
from study.rows import Rule, flatten
from study.sandbox.calls import SUSPICIOUS, Call, Limits, Outcome, Result
from study.sandbox.pool import Pool
from study.tasks import verif
from study.tasks.prompts import ENDINGS, records

FUNCTION = verif.FUNCTION
VERDICT = f"""

def verdict_of_rule(instruction, response):
    return bool({FUNCTION}(instruction, response))
"""
"""Rules say yes by any true value: ``re.search(a, x) and re.search(b, x)`` is a match or None."""
LIMITS = Limits(cpu_s=2, wall_s=10.0, memory_mb=256)
LONGEST_WORD = 14
"""Prose with no word shorter than this many characters plus one does not exist."""
MINIMUM = re.compile(
    r"at least|minimum|no fewer|no less|lower limit|below|not be shorter|no shorter", re.IGNORECASE
)
USAGE = "python -m experiments.rules audit file=rows.parquet response=TEXT out=audit.json"


@dataclass(frozen=True)
class RuleRow:
    """A row as far as rules go: the prompt as it is passed to them, and the rules (R >= 0)."""

    instruction: str
    rules: tuple[Rule, ...]
    untagged: int = 0


@dataclass(frozen=True)
class RuleResult:
    """One rule on one answer.

    Attributes:
        passed: what the function returned; None where it returned no bool.
        vacuous: whether an empty answer passes too; None where that cannot be told.
        infeasible: why no good answer can pass, or None.
    """

    rule: Rule
    outcome: Outcome
    passed: bool | None
    vacuous: bool | None
    infeasible: str | None
    detail: str = ""


def read_rows(path: Path) -> list[RuleRow]:
    """The rows of a Parquet or JSON-lines file.

    Raises:
        UserError: no such file, another format, a row without legal labels, or no rule at all.
    """
    if not path.is_file() or not path.name.endswith(ENDINGS):
        raise UserError(f"file={path} is no {', '.join(ENDINGS)} file. Type: {USAGE}")
    rows = [rule_row(record, index, str(path)) for index, (_, record) in enumerate(records(path))]
    if not any(row.rules for row in rows):
        raise UserError(
            f"{path} has {len(rows)} rows and no checker tagged [rule] in any. A VerIF-style"
            f" file holds {{checkers, functions}} in reward_model.ground_truth. Type: {USAGE}"
        )
    return rows


def rule_row(record: Mapping[str, Any], index: int, where: str) -> RuleRow:
    """The rules of one row; checkers without a tag are counted, not run.

    Args:
        index: place of the row in its file, from 0.
        where: the file, for messages.

    Raises:
        UserError: no prompt, or labels that are not {checkers, functions} of equal length.
    """
    place = f"{where} row {index}"
    labels = verif.labels(record, place)
    instruction = _instruction(record.get("prompt"))
    if instruction is None:
        raise UserError(
            f"{place}: it has no legal prompt. Legal is a text, or turns of role and content."
            " Correct or remove the row."
        )
    rules = tuple(
        verif.rule(index, number, text, source)
        for number, (tag, text, source) in enumerate(labels)
        if tag == "rule"
    )
    return RuleRow(instruction, rules, sum(not tag for tag, _, _ in labels))


def _instruction(prompt: Any) -> str | None:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not prompt:
        return None
    turns = []
    for turn in prompt:
        keys = ("role", "content")
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in keys):
            return None
        turns.append({key: turn[key] for key in keys})
    return flatten(tuple(turns))


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


def check_rules(
    rows: Sequence[RuleRow],
    answers: Sequence[str],
    pool: Pool,
    empty: dict[tuple[str, str], bool | None] | None = None,
) -> list[list[RuleResult]]:
    """Run every rule of each row on the answer to it.

    Args:
        rows: N rows; repeat a row for each answer of its group.
        answers: N texts, the thinking already stripped.
        pool: where the functions run.
        empty: what each (source, instruction) said of an empty answer. Filled here; hand the same
            one in again and no rule is asked twice.

    Returns:
        N lists of R results, in the order of the rules.
    """
    empty = {} if empty is None else empty
    pairs = list(zip(rows, answers, strict=True))
    wanted = {(rule.source, row.instruction) for row in rows for rule in row.rules}
    todo = sorted(wanted - empty.keys())
    calls = [_call(source, instruction, "") for source, instruction in todo]
    calls += [
        _call(rule.source, row.instruction, answer) for row, answer in pairs for rule in row.rules
    ]
    results = iter(pool.run(calls))
    for key in todo:
        empty[key] = _verdict(next(results))
    return [
        [_judged(rule, next(results), empty[rule.source, row.instruction]) for rule in row.rules]
        for row, _ in pairs
    ]


def _call(source: str, instruction: str, answer: str) -> Call:
    return Call(source + VERDICT, "verdict_of_rule", (instruction, answer), LIMITS)


def _verdict(result: Result) -> bool | None:
    return result.value if type(result.value) is bool else None


def _judged(rule: Rule, result: Result, vacuous: bool | None) -> RuleResult:
    passed, detail = _verdict(result), result.detail
    if passed is None and result.outcome is Outcome.RETURNED:
        detail = f"it returned {type(result.value).__name__}, not bool"
    return RuleResult(rule, result.outcome, passed, vacuous, infeasible(rule.text), detail)


def audit(rows: Sequence[RuleRow], response: str, pool: Pool) -> dict[str, Any]:
    """What every rule of ``rows`` says of one ``response``; the keys are those of docs/sandbox.md.

    Raises:
        UserError: the sandbox itself failed on some rule, so the counts would not be of the rules.
    """
    judged = check_rules(rows, [response] * len(rows), pool)
    results = [result for row in judged for result in row]
    lost = [result for result in results if result.outcome is Outcome.SANDBOX]
    if lost:
        raise UserError(
            f"The sandbox ({pool.tier}) failed on {len(lost)} of {len(results)} rules, first on "
            f"{lost[0].rule.id}: {lost[0].detail}. Free memory or processes and type it again."
        )
    shares = [_share(row) for row in judged if row]
    categories: dict[str, dict[str, int]] = {}
    for result in results:
        of = categories.setdefault(result.rule.category, {"n": 0, "pass": 0})
        of["n"] += 1
        of["pass"] += result.passed is True
    return {
        "n_rules": len(results),
        "n_pass": sum(result.passed is True for result in results),
        "n_error": sum(result.passed is None for result in results),
        "n_rows": len(rows),
        "n_rows_with_rules": len(shares),
        "n_untagged": sum(row.untagged for row in rows),
        "mean_row_score": sum(shares) / len(shares),
        "rows_perfect": sum(share == 1.0 for share in shares),
        "per_category": categories,
        "vacuous": _ids(result for result in results if result.vacuous),
        "infeasible": _ids(result for result in results if result.infeasible),
        "errors": {
            result.rule.id: f"{result.outcome}: {result.detail}"
            for result in results
            if result.passed is None
        },
        "outcomes": dict(Counter(str(result.outcome) for result in results)),
        "n_suspicious": sum(result.outcome in SUSPICIOUS for result in results),
        "sandbox": str(pool.tier),
        "response": response,
    }


def _share(row: Sequence[RuleResult]) -> float:
    return sum(result.passed is True for result in row) / len(row)


def _ids(results: Iterable[RuleResult]) -> list[str]:
    return [result.rule.id for result in results]


def arguments(words: Sequence[str]) -> dict[str, str]:
    """``audit`` and its key=value words.

    Raises:
        UserError: another command, an unknown or missing key, or a value that is not legal.
    """
    legal = {"file", "response", "out", "workers", "sandbox"}
    given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    stray = [word for word in words[1:] if "=" not in word] + sorted(given.keys() - legal)
    missing = sorted({"file", "response", "out"} - given.keys())
    if list(words[:1]) != ["audit"] or stray or missing:
        fault = f"{stray[0]} is not known" if stray else f"{', '.join(missing)} is missing"
        fault = fault if words[:1] == ["audit"] else "the one command is audit"
        raise UserError(
            f"{' '.join(words) or 'Nothing'} was given: {fault}. Legal keys are file, response "
            f"(may be empty), out, workers=2 and sandbox=auto|unsafe. Type: {USAGE}"
        )
    options = {"workers": "2", "sandbox": "auto"} | given
    if not re.fullmatch(r"[1-9]\d?", options["workers"]):
        raise UserError(f"workers={options['workers']} is no number from 1 to 99. Type: workers=2")
    if options["sandbox"] not in ("auto", "unsafe"):
        raise UserError(f"sandbox={options['sandbox']} is not auto or unsafe. Type: sandbox=auto")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """The command line; 2 after a fault that the user can put right."""
    try:
        options = arguments(sys.argv[1:] if words is None else list(words))
        rows = read_rows(Path(options["file"]))
        with Pool(int(options["workers"]), unsafe=options["sandbox"] == "unsafe") as pool:
            found = audit(rows, options["response"], pool)
        try:
            write_json(Path(options["out"]), found)
        except OSError as error:
            raise UserError(f"out={options['out']} cannot be written ({error}).") from error
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(
        f"{found['n_pass']} of {found['n_rules']} rules passed, {found['n_error']} errors; "
        f"{found['rows_perfect']} of {found['n_rows_with_rules']} rows perfect; "
        f"{len(found['vacuous'])} rules are vacuous (sandbox: {found['sandbox']})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
