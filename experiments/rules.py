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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from study.errors import UserError
from study.files import write_json
from study.rules import USAGE, RuleResult, RuleRow, check_rules, read_rows
from study.sandbox.calls import SUSPICIOUS, Outcome
from study.sandbox.pool import Pool


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
