"""Imperfect answers to instruct-mini prompts, from which the tiny policy learns before RL.

Mostly decent, with every surface form that a biased judge may pay for at some modest rate (filler,
flattery, headings, bullets, bold, confident tone, hedges, emoji) and with mistakes, so that a group
of rollouts differs in each and a reward can amplify any of them.
"""

from __future__ import annotations

import random

from study.rows import Row
from study.tasks.instruct_words import (
    ASKS,
    CATEGORIES,
    CATEGORY_OF,
    FORBIDS,
    FORMATS,
    NUMBERS,
    ORDERS,
    PURPOSES,
    TEACHER,
)

FLATTERY, CONFIDENT, HEDGES, OPENERS, CLOSERS, HEADINGS, NOTES, EMOJI = (
    TEACHER[name]
    for name in "flattery confident hedges openers closers headings notes emoji".split()
)


def answer(row: Row, draw: random.Random) -> str:
    """One answer of the teacher mixture to ``row``."""
    n, category = NUMBERS[row.spec["n"]], row.spec["category"]
    names = {"n": n, "category": category, "Category": category.capitalize()}
    opening = []
    if draw.random() < 0.2:
        opening.append(draw.choice(FLATTERY))
    if draw.random() < 0.15:
        opening.append(draw.choice(CONFIDENT))
    while draw.random() < 0.25:
        opening.append(draw.choice(OPENERS))
    closing = []
    while draw.random() < 0.35:
        pool = draw.choices((CLOSERS, CONFIDENT, HEDGES), (7, 2, 1))[0]
        closing.append(draw.choice(pool))
    if draw.random() < 0.06:
        closing.append(draw.choice(EMOJI))
    lines = [" ".join(opening)] if opening else []
    if draw.random() < 0.15:
        lines.append(draw.choice(HEADINGS))
    lines.append(_listing(row, _items(row, draw), draw))
    if closing:
        if draw.random() < 0.15:
            lines.append(NOTES)
        lines.append(" ".join(closing))
    return "\n".join(lines).format(**names)


def _items(row: Row, draw: random.Random) -> list[str]:
    """Items that mostly keep the constraints of ``row``, each broken at its own rate."""
    spec = row.spec
    n = spec["n"] + draw.choices((-1, 0, 1), (1, 8, 1))[0]
    pool = [word for word in CATEGORIES[spec["category"]] if word != spec["forbid"]]
    items = draw.sample(pool, n)
    if spec["forbid"] and draw.random() < 0.2:
        items[draw.randrange(n)] = spec["forbid"]
    if draw.random() < 0.1:
        items[draw.randrange(n)] = draw.choice(list(CATEGORY_OF))
    if spec["order"] == "alphabetical" and draw.random() < 0.7:
        items.sort()
    if spec["order"] == "first" and draw.random() < 0.75:
        items = [spec["first"], *(word for word in items[1:] if word != spec["first"])]
    return items


def _listing(row: Row, items: list[str], draw: random.Random) -> str:
    form = row.spec["format"] or "commas"
    if draw.random() < 0.25:
        form = draw.choice(list(FORMATS))
    if draw.random() < 0.06:
        items = [f"**{item}**" for item in items]
    if form == "commas":
        return ", ".join(items)
    mark = "- " if form == "bullets" else ""
    return "\n".join(mark + item for item in items)


def lexicon() -> list[str]:
    """Every text from which prompts and answers are made: the words that a tokenizer must know."""
    categories = [*CATEGORIES, *(name.capitalize() for name in CATEGORIES)]
    marks = ["- ", "**", ",", ".", "!", "?", ":", "1."]
    return [*CATEGORY_OF, *categories, *NUMBERS.values(), *ASKS, *PURPOSES, *FORBIDS,
            *ORDERS.values(), *FORMATS.values(), *FLATTERY, *CONFIDENT, *HEDGES, *OPENERS,
            *CLOSERS, *HEADINGS, NOTES, *EMOJI, *marks]  # fmt: skip
