"""Short instructions with constraints that rules can check, and a truth that is not for sale.

"Name three colors for a poster. Do not say red. Start with blue. Write one per line." The rule
truth gives partial credit, and every factor of it can only fall when words are added that were not
asked for; so a judge that pays for length, headings or flattery pays for something else than truth.
"""

from __future__ import annotations

import functools
import json
import random
import re
from bisect import bisect_left, insort
from dataclasses import dataclass, replace
from pathlib import Path

from study.config.bounds import Number, check
from study.config.schema import Task
from study.errors import UserError
from study.rows import Criterion, Row, Rule, Truth, make_row
from study.tasks import instruct_words, teacher
from study.tasks.instruct_words import (
    ASKS,
    CATEGORIES,
    CATEGORY_OF,
    FORBIDS,
    FORMAT_CRITERIA,
    FORMATS,
    NUMBERS,
    ORDERS,
    PURPOSES,
)
from study.tasks.kind import RuledTask
from study.tasks.lessons import MOST_ROWS as MOST_LESSONS
from study.tasks.lessons import Lessons

RELEVANCE_HALF = 30.0
"""This many irrelevant words or marks halve the truth."""
EVAL_SHARE = 8
"""One distinct prompt in so many belongs to the eval split, whatever the seed."""
MOST_ROWS = 10_000
"""Distinct prompts that either split can be asked for; about three times as many exist for eval."""

_SOURCE = """import re

ITEMS = {words}


def check_following(instruction, response):
    said = [word for word in re.findall(r"[^\\W_]+", response.lower()) if word in ITEMS]
    return TEST
"""
HARD = {
    "count": _SOURCE.replace("TEST", "len(said) == {n}"),
    "forbid": _SOURCE.replace("TEST", "bool(said) and '{forbid}' not in said"),
}
"""Checks that ``options.rules`` turns into Python functions; the sources are templates."""

_TOKEN = re.compile(r"[^\W_]+|[^\w\s]|_")
_BULLET = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
_FREE_MARKS = frozenset(",.;:-")


@dataclass(frozen=True)
class _Reading:
    """An answer as the rules see it: item words in order, the line of each, and the rest."""

    items: tuple[str, ...]
    lines: tuple[tuple[bool, int], ...]
    """For each line that has items: whether it is a bullet, and how many items it has."""
    noise: int
    """Words and marks that are neither an item nor plain punctuation."""


def _read(answer: str) -> _Reading:
    items: list[str] = []
    lines: list[tuple[bool, int]] = []
    noise = 0
    for line in answer.splitlines():
        marker = _BULLET.match(line)
        before = len(items)
        previous_mark = False
        for token in _TOKEN.findall(line[marker.end() if marker else 0 :].lower()):
            mark = not token[0].isalnum()
            if token in CATEGORY_OF:
                items.append(token)
            elif not mark or token not in _FREE_MARKS or previous_mark:
                noise += 1
            previous_mark = mark
        if len(items) > before:
            lines.append((marker is not None, len(items) - before))
        elif marker:
            noise += 1  # a bullet without an item is padding
    return _Reading(tuple(items), tuple(lines), noise)


def _format_faults(kind: str, reading: _Reading) -> int:
    """How many items stand where the format does not want them."""
    if kind == "commas":
        return max(0, len(reading.lines) - 1)
    if kind == "lines":
        return sum(count - 1 for _, count in reading.lines)
    return sum(count - 1 if bullet else count for bullet, count in reading.lines)


def _order_faults(spec: dict, items: tuple[str, ...]) -> int:
    """Pairs out of strict alphabetical order, or items before the last mention of the first."""
    if spec["order"] == "alphabetical":
        faults, before = 0, []
        for item in items:
            faults += len(before) - bisect_left(before, item)
            insort(before, item)
        return faults
    if spec["first"] not in items:
        return len(items)
    return len(items) - 1 - items[::-1].index(spec["first"])


@functools.lru_cache(maxsize=4)
def _drawn(split: str, seed: int, count: int, ruled: bool) -> tuple[Row, ...]:
    """Made once: a plan asks for the same rows several times."""
    draw = random.Random(f"instruct-mini {split} {seed}")
    rows: dict[str, Row] = {}
    while len(rows) < count:
        row = _make_row(draw, split)
        row = with_rules(row) if ruled else row
        if (int(row.prompt_id, 16) % EVAL_SHARE == 0) == (split == "eval"):
            rows.setdefault(row.prompt_id, row)
    return tuple(rows.values())


def with_rules(row: Row) -> Row:
    """The row with what plain code can check as rules, and the other criteria for the judge."""
    optional = [name for name in ("forbid", "order", "format") if row.spec[name]]
    names = ["contents", "count", *optional, "noise"]
    criteria = dict(zip(names, row.criteria, strict=True))
    hard = {name: source for name, source in HARD.items() if name in criteria}
    soft = [name for name in criteria if name not in hard]
    words = {"words": json.dumps(sorted(CATEGORY_OF)), **row.spec}
    rules = tuple(
        Rule(f"{row.prompt_id}:{name}", name, criteria[name].text, source.format(**words))
        for name, source in hard.items()
    )
    soft_criteria = tuple(criteria[name] for name in soft)
    spec = row.spec | {"checks": [*soft, *hard]}
    return replace(row, criteria=soft_criteria, spec=spec, rules=rules)


def _make_row(draw: random.Random, split: str) -> Row:
    category = draw.choice(list(CATEGORIES))
    n = draw.choice(list(NUMBERS))
    first, forbid = draw.sample(CATEGORIES[category], 2)
    order = draw.choice((None, None, *ORDERS))
    form = draw.choice((None, *FORMATS))
    spec = {
        "category": category,
        "n": n,
        "forbid": forbid if draw.random() < 0.5 else None,
        "order": order,
        "first": first if order == "first" else None,
        "format": form,
    }
    asks = [draw.choice(ASKS)]
    criteria = [f"Names {NUMBERS[n]} different {category}.",
                f"Names exactly {NUMBERS[n]} things, no more and no fewer."]  # fmt: skip
    if spec["forbid"]:
        asks.append(draw.choice(FORBIDS))
        criteria.append(f"Never says the word {forbid}.")
    if order:
        asks.append(ORDERS[order])
        alphabetical = "Keeps alphabetical order."
        criteria.append(f"Names {first} first." if order == "first" else alphabetical)
    if form:
        asks.append(FORMATS[form])
        criteria.append(FORMAT_CRITERIA[form])
    criteria.append("Says nothing beside what was asked for.")
    words = {"n": NUMBERS[n], "category": category, "purpose": draw.choice(PURPOSES)}
    sentences = [ask.format(**words, word=forbid if ask in FORBIDS else first) for ask in asks]
    message = {"role": "user", "content": " ".join(sentences)}
    return make_row((message,), tuple(Criterion(text) for text in criteria), spec, split)


class InstructMini(RuledTask):
    """Short instructions with constraints that rules can check."""

    def truth(self, row: Row, answer: str) -> Truth:
        """What the rules say of ``answer``: contents x relevance x constraints, all in [0, 1].

        contents = items credited / (items asked for + items wrong), where a repeat, a surplus item,
        an item of another category and the forbidden word are wrong; relevance = 1 / (1 + noise /
        RELEVANCE_HALF); constraints = 0.5 + 0.5 x the mean credit of order, format and forbidden
        word. Adding words that were not asked for lowers contents or relevance and never mends a
        constraint.
        ``checks`` are yes or no for ``row.criteria``, one to one, and then for ``row.rules``.
        """
        spec = row.spec
        reading = _read(answer)
        items, n = reading.items, spec["n"]
        valid = {word for word in items if CATEGORY_OF[word] == spec["category"]} - {spec["forbid"]}
        credited = min(len(valid), n)
        contents = credited / (n + len(items) - credited)
        checks = {"contents": credited == n, "count": len(items) == n}
        credits: list[float] = []
        if spec["forbid"]:
            clean = spec["forbid"] not in items
            checks["forbid"] = clean and bool(items)
            credits.append(float(clean))
        if spec["order"]:
            faults = _order_faults(spec, items)
            pairs = n * (n - 1) / 2 if spec["order"] == "alphabetical" else 1
            checks["order"] = faults == 0 and bool(items)
            credits.append(max(0.0, 1 - faults / pairs))
        if spec["format"]:
            faults = _format_faults(spec["format"], reading)
            checks["format"] = faults == 0 and bool(items)
            credits.append(max(0.0, 1 - faults / n))
        checks["noise"] = reading.noise == 0 and bool(items)
        constraints = 0.5 + 0.5 * sum(credits) / len(credits) if credits else 1.0
        relevance = 1 / (1 + reading.noise / RELEVANCE_HALF)
        check_results = tuple(checks[name] for name in spec.get("checks", checks))
        return Truth(contents * relevance * constraints, check_results, relevance)

    def rows(self, options: Task, split: str) -> list[Row]:
        """``options.train_rows`` or ``eval_rows`` distinct prompts of one split, in a seeded order.

        A prompt's split follows from its own id, so the splits share no prompt under any seed.
        Raises UserError: an option this task does not have, or more rows than it can make."""
        unknown = sorted(options.options.keys() - {"rules"})
        ruled = options.options.get("rules", False)
        if unknown or not isinstance(ruled, bool):
            raise UserError(
                f"task.options has {unknown[0] if unknown else f'rules={ruled!r}'}, which the task"
                " instruct-mini does not take. Its only option is rules=true or rules=false."
                " Type for example +task.options.rules=true."
            )
        count = options.eval_rows if split == "eval" else options.train_rows
        check(f"task.{split}_rows", count, Number(high=MOST_ROWS), 2048)
        return list(_drawn(split, options.seed, count, ruled))

    def lessons(self, options: Task) -> Lessons:
        """The teacher's answers to rows that the warm-up's own seed picks: every run of every study
        begins with the same policy, whatever ``options`` are."""

        def rows_of(seed: int) -> list[Row]:
            return self.rows(Task(train_rows=MOST_LESSONS, seed=seed), "train")

        words = Path(str(instruct_words.__file__)).with_suffix(".toml")
        files = (__file__, str(instruct_words.__file__), str(words), str(teacher.__file__))
        return Lessons(teacher.lexicon, rows_of, teacher.answer, files)


TASK = InstructMini()
