"""Rule truth against a run in one process: python benchmarks/verifiable/truth.py [code] [math]

Code: the references of HumanEval and MBPP in the two-process grader, against the same sandbox with
tests and candidate in one process. MATH: every row with the answer of a solution of its own, of
another row, and of an equal form, in children, against one process that can not be killed. Verdicts
must agree before anything is timed; both ways take turns, on two workers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from sympy.core.cache import clear_cache

from study.sandbox.pool import Pool
from study.truth import Grader, score
from study.truth.equations import _parsed, equal
from study.truth.item import Item
from study.truth.mathematics import Comparison, compare
from study.truth.score import Score
from tests.study.truth.shared import official, together

ROUNDS = 3


def ours(items: Sequence[Item], answers: Sequence[str]) -> tuple[list[bool], float]:
    """Verdicts in the order of the items, and the seconds from the first process on."""
    started = time.perf_counter()
    with Grader(2) as grader:
        scores = score(items, answers, grader)
    return [bool(verdict and verdict.correct) for verdict in scores], time.perf_counter() - started


def one_process(items: Sequence[Item], answers: Sequence[str]) -> tuple[list[bool], float]:
    """Tests and candidate in one child of the same sandbox: fast, and open to every forgery."""
    started = time.perf_counter()
    with Pool(2) as pool:
        verdicts = together(items, answers, pool)
    return verdicts, time.perf_counter() - started


def no_children(items: Sequence[Item], answers: Sequence[str]) -> tuple[list[bool], float]:
    """math-verify in this process, one after the other."""
    _parsed.cache_clear()
    clear_cache()  # sympy's own, which the last round has filled
    started = time.perf_counter()
    verdicts = []
    for item, answer in zip(items, answers, strict=True):
        comparison = compare(item, answer)
        if isinstance(comparison, Comparison):
            verdicts.append(equal(list(comparison.golds), comparison.answer))
        else:
            verdicts.append(isinstance(comparison, Score) and comparison.correct)
    return verdicts, time.perf_counter() - started


def race(
    name: str,
    other: Callable[[Sequence[Item], Sequence[str]], tuple[list[bool], float]],
    items: Sequence[Item],
    answers: Sequence[str],
) -> None:
    """Equality, then the smallest and the median ratio of the rounds."""
    assert ours(items, answers)[0] == other(items, answers)[0], "the verdicts differ"
    mine, theirs = [], []
    for _ in range(ROUNDS):
        mine.append(ours(items, answers)[1])
        theirs.append(other(items, answers)[1])
    ratios = sorted(ours_s / other_s for ours_s, other_s in zip(mine, theirs, strict=True))
    print(
        f"{name}: {len(items)} answers in {min(mine):.1f} to {max(mine):.1f} s, "
        f"{other.__name__} {min(theirs):.1f} to {max(theirs):.1f} s, "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f} times"
    )


def main(words: list[str]) -> None:
    """The races that are named, or both."""
    if unknown := set(words) - {"code", "math"}:
        sys.exit(f"{' '.join(sorted(unknown))}: legal are code and math")
    if "code" in (words or ["code"]):
        tasks = [*official("humaneval"), *official("mbpp")]
        race("references", one_process, tasks, [task.reference for task in tasks])
    if "math" in (words or ["math"]):
        rows = official("math")
        equal_form = [f"\\boxed{{{row.answers[0].replace('frac', 'dfrac')} + 0}}" for row in rows]
        others = [f"\\boxed{{{row.answers[0]}}}" for row in [*rows[1:], rows[0]]]
        kinds = zip(rows, others, equal_form, strict=True)
        answers = [
            (row.reference, other, form)[place % 3]
            for place, (row, other, form) in enumerate(kinds)
        ]
        race("MATH", no_children, rows, answers)


if __name__ == "__main__":
    main(sys.argv[1:])
