"""What the built-in task says of a prompt: a right answer, one half right, a wrong one, a rollout.

All four are laid out as the prompt asks and begin with the same plain sentence, so they differ in
what they name and in nothing else; only the rollout is as loose as a policy's.
"""

from __future__ import annotations

import random

from study.rows import Row
from study.tasks.instruct_mini import CATEGORIES
from study.tasks.teacher import answer as rollout

LEAD_IN = "Here is my answer."


def contents(row: Row, seed: int = 0) -> dict[str, str]:
    """Texts by what they are worth: correct, partial, wrong and policy.

    ``partial`` names one thing of another category in place of the last; ``wrong`` names nothing
    but such. Order, format and the forbidden word are kept by all three.
    """
    draw = random.Random(f"probe {seed} {row.prompt_id}")
    spec = row.spec
    words = [word for word in CATEGORIES[spec["category"]] if word != spec["forbid"]]
    items = draw.sample(words, spec["n"])
    if spec["order"] == "first":
        items = [spec["first"], *(word for word in items if word != spec["first"])][: spec["n"]]
    other = draw.choice([name for name in CATEGORIES if name != spec["category"]])
    strangers = draw.sample(CATEGORIES[other], spec["n"])
    return {
        "correct": _laid_out(row, items),
        "partial": _laid_out(row, [*items[:-1], strangers[0]]),
        "wrong": _laid_out(row, strangers),
        "policy": rollout(row, draw),
    }


def _laid_out(row: Row, items: list[str]) -> str:
    if row.spec["order"] == "alphabetical":
        items = sorted(items)
    if row.spec["format"] in ("lines", "bullets"):
        mark = "- " if row.spec["format"] == "bullets" else ""
        return "\n".join([LEAD_IN, *(mark + item for item in items)])
    return f"{LEAD_IN}\n{', '.join(items)}"


def stratum(row: Row) -> str:
    """What a prompt asks for, as far as it decides how an answer looks."""
    return f"{row.spec['format'] or 'free'} {row.spec['order'] or 'any order'}"
