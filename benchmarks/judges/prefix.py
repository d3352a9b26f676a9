"""Prompt tokens that a judge server must prefill per group, by layout of the rubric prompt.

    python benchmarks/judges/prefix.py

A server that caches prefixes reads again only what follows the longest prefix that it has seen.
This counts it: the prompts of our own gradings, in the order in which a group is asked, against a
cache of whole blocks that never forgets (a radix cache). Rubrics have the sizes that were measured
on the real sets; a token is four characters. Nothing is timed, so the numbers repeat exactly.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from judges.grading import GRADINGS
from study.rows import Criterion, Row, make_row

GROUP = 8
GROUPS = 50
RESPONSE = 1200
"""Characters of a response."""
BLOCK = 64
"""Characters of a block: 16 tokens of 4, as in vLLM."""
TOKEN = 4


@dataclass(frozen=True)
class Rubrics:
    """Mean sizes of a set of rubrics: criteria per prompt, characters of each and of the prompt."""

    criteria: float
    characters: int
    prompt: int
    wanted: float
    """How many times fewer tokens the cacheable layout should need at least."""


SETS = {
    "VerInstruct": Rubrics(5.80, 187, 1575, 2.2),
    "HealthBench": Rubrics(11.93, 265, 666, 3.0),
    "ResearchQA": Rubrics(7.46, 138, 138, 2.2),
}


def text(draw: random.Random, characters: int) -> str:
    """Words that repeat nowhere else."""
    words = ""
    while len(words) < characters:
        words += f"{draw.getrandbits(28):07x} "
    return words[:characters].strip()


def row(draw: random.Random, sizes: Rubrics) -> Row:
    """A prompt with a rubric of about the mean size."""
    count = int(sizes.criteria) + (draw.random() < sizes.criteria % 1)
    criteria = tuple(Criterion(text(draw, sizes.characters)) for _ in range(count))
    return make_row(({"role": "user", "content": text(draw, sizes.prompt)},), criteria)


class Radix:
    """A cache of prefixes in whole blocks."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def prefill(self, prompt: str) -> int:
        """Characters that are not in the cache; they are, from now on."""
        cached = 0
        for end in range(BLOCK, len(prompt) + 1, BLOCK):
            if prompt[:end] in self._seen and cached == end - BLOCK:
                cached = end
            self._seen.add(prompt[:end])
        return len(prompt) - cached


def tokens(name: str, layout: str, sizes: Rubrics) -> tuple[float, float]:
    """Tokens per group: all of the prompts', and those that must be prefilled."""
    draw = random.Random(0)
    grading: Any = GRADINGS[name]({"layout": layout})
    cache = Radix()
    full = fresh = 0
    for _ in range(GROUPS):
        request_row = row(draw, sizes)
        for _ in range(GROUP):
            for ask in grading.requests(request_row, text(draw, RESPONSE)):
                prompt = ask.messages[0]["content"]
                full += len(prompt)
                fresh += cache.prefill(prompt)
    return full / GROUPS / TOKEN, fresh / GROUPS / TOKEN


def main() -> None:
    """Print the table."""
    print(f"{'rubrics':12} {'grading':13} {'all':>8} {'ancestor':>9} {'cacheable':>9} {'ratio':>6}")
    for name, sizes in SETS.items():
        for grading in ("rubric_batch", "rubric_chunk", "rubric_item"):
            full, before = tokens(grading, "ancestor", sizes)
            same, after = tokens(grading, "cacheable", sizes)
            assert abs(full - same) < 1, "the layouts do not say the same"
            note = f"   wanted: {sizes.wanted:g}" if grading == "rubric_batch" else ""
            print(
                f"{name:12} {grading:13} {full:8.0f} {before:9.0f} {after:9.0f} "
                f"{before / after:6.2f}{note}"
            )


if __name__ == "__main__":
    main()
