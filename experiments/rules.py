"""Rule functions of VerIF-style files, run in the sandbox: for rewards, and as an audit.

    python -m experiments.rules audit file=PARQUET_OR_JSONL response=TEXT out=FILE

A row's ``reward_model.ground_truth`` is JSON text {checkers, functions}: checkers tagged [rule]
have, at the same place in functions, Python source of ``check_following(instruction, response)``.
That source is untrusted. A rule that an empty answer satisfies says little: it is called vacuous.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.cli import command, option, word, writes
from study.config.bounds import Choice, Number
from study.errors import UserError
from study.rows import Row
from study.sandbox.calls import SUSPICIOUS, Outcome
from study.sandbox.pool import Pool
from study.system.files import write_json
from study.tasks.rules import RuleRunner, read_rows


def audit(rows: Sequence[Row], response: str, pool: Pool) -> dict[str, Any]:
    """What every rule of ``rows`` says of one ``response``; the keys are those of docs/sandbox.md.
    Raises UserError where the sandbox itself failed on some rule: the counts would not be of the
    rules."""
    judged = RuleRunner(pool).check(rows, [response] * len(rows))
    results = [result for row in judged for result in row]
    failures = [result for result in results if result.outcome is Outcome.SANDBOX]
    if failures:
        raise UserError(
            f"The sandbox ({pool.tier}) failed on {len(failures)} of {len(results)} rules, first on"
            f" {failures[0].rule.id}: {failures[0].detail}. Free memory or processes and rerun the"
            " command."
        )
    shares = [sum(result.passed is True for result in row) / len(row) for row in judged if row]
    categories: dict[str, dict[str, int]] = {}
    for result in results:
        counts = categories.setdefault(result.rule.category, {"n": 0, "pass": 0})
        counts["n"] += 1
        counts["pass"] += result.passed is True
    errors = {
        result.rule.id: f"{result.outcome}: {result.detail}"
        for result in results
        if result.passed is None
    }
    return {
        "n_rules": len(results),
        "n_pass": sum(result.passed is True for result in results),
        "n_error": sum(result.passed is None for result in results),
        "n_rows": len(rows),
        "n_rows_with_rules": len(shares),
        "n_untagged": sum(row.spec["untagged"] for row in rows),
        "mean_row_score": sum(shares) / len(shares),
        "rows_perfect": sum(share == 1.0 for share in shares),
        "per_category": categories,
        "vacuous": [result.rule.id for result in results if result.vacuous],
        "infeasible": [result.rule.id for result in results if result.infeasible],
        "errors": errors,
        "outcomes": dict(Counter(str(result.outcome) for result in results)),
        "n_suspicious": sum(result.outcome in SUSPICIOUS for result in results),
        "sandbox": str(pool.tier),
        "response": response,
    }


@dataclass(frozen=True)
class Options:
    """Options of `experiments.rules`: the file of rules, the response, and the sandbox."""

    what: str = word("run every rule of a file on one response", "audit")
    file: Path = option("Parquet or JSONL of rows with rules", required=True)
    response: str = option("the response, which may be empty", required=True, empty=True)
    out: Path = option("JSON file for the result", required=True)
    workers: int = option("sandboxes at once", 2, Number(low=1, high=99))
    sandbox: str = option(
        "auto refuses without isolation; unsafe runs the rules without it",
        "auto",
        Choice(("auto", "unsafe")),
    )


@command("experiments.rules audit file=rows.parquet response=TEXT out=audit.json", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 written, 2 for a user's error."""
    rows = read_rows(options.file)
    with Pool(options.workers, unsafe=options.sandbox == "unsafe") as pool:
        result = audit(rows, options.response, pool)
    with writes("out", options.out):
        write_json(options.out, result)
    print(
        f"{result['n_pass']} of {result['n_rules']} rules passed, {result['n_error']} errors; "
        f"{result['rows_perfect']} of {result['n_rows_with_rules']} rows perfect; "
        f"{len(result['vacuous'])} rules are vacuous (sandbox: {result['sandbox']})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
