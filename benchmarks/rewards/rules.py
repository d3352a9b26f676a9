"""Rule checks per second in the warm pool, against a fresh sandbox per check: rules.py [FILE]

The functions are those of a VerIF-style file (VerInstruct's by default), the answers a made-up
text of some 200 words. Verdicts of both ways must agree before anything is timed; the fresh way is
timed on fewer checks, which its rate takes account of.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from study.rows import Row
from study.sandbox.pool import Pool
from study.tasks.rules import RuleRunner, read_rows
from study.tasks.where import FILES, data_folder

ANSWER = "There are, I think, many ways to say this; here is one. " * 16
ROUNDS = 3
FRESH = 40
"""Checks in a sandbox of their own."""


def pooled(rows: list[Row], pool: Pool) -> tuple[list[bool | None], float]:
    """Verdicts of every rule on the answer, and the seconds they took."""
    empty_verdicts = {(rule.source, row.prompt_text()): None for row in rows for rule in row.rules}
    started = time.perf_counter()
    results = RuleRunner(pool, empty_verdicts).check(rows, [ANSWER] * len(rows))
    seconds = time.perf_counter() - started
    return [result.passed for row in results for result in row], seconds


def fresh(rows: list[Row]) -> tuple[list[bool | None], float]:
    """The same with a pool that is started and ended for each rule."""
    verdicts = []
    started = time.perf_counter()
    for row in rows:
        for rule in row.rules:
            single = replace(row, rules=(rule,))
            with Pool(1) as pool:
                verdicts += pooled([single], pool)[0]
    return verdicts, time.perf_counter() - started


def main(file: Path) -> None:
    """Equality, then the rates, each the best of three."""
    rows = [row for row in read_rows(file) if row.rules]
    few, count = [], 0
    for row in rows:
        if count < FRESH:
            few.append(row)
            count += len(row.rules)
    with Pool(2) as pool:
        every, _ = pooled(rows, pool)
        alone, _ = fresh(few)
        assert every[: len(alone)] == alone, "a fresh sandbox says something else"
        assert pooled(rows, pool)[0] == every, "a second round says something else"
        warm = max(len(every) / pooled(rows, pool)[1] for _ in range(ROUNDS))
        cold = max(len(alone) / fresh(few)[1] for _ in range(ROUNDS))
        tier = pool.tier
    print(f"{len(every)} rule functions, 2 workers, sandbox {tier}: {warm:.0f} checks/s")
    print(f"a fresh sandbox per check: {cold:.1f} checks/s; the pool is {warm / cold:.1f}x that")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(Path(arguments[0]) if arguments else data_folder() / FILES["verinstruct-verif"])
