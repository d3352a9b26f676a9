"""The task ``mixed-mini``: sums, facts and functions, generated, for a policy of a CPU's size.

Three domains in the form of the prepared sets, 4:3:3, with their rules: sums to 12 (math), a
question about one fact that may not be told (qa), a function of two steps that hidden tests call
in the sandbox (code). The teacher has one habit in each domain, which is wrong in about half of
the rows: RL has that to mend.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from study.bounds import Choice, check
from study.files import sha256
from study.rows import Row
from study.schema import Task, task_options
from study.tables import table
from study.tasks.datasets.item import Item
from study.tasks.drawing import Drawing, held_out
from study.tasks.lessons import MOST_ROWS, Lessons
from study.tasks.mixed import grading, item_row, scores, truths
from study.tasks.mixture import Mixture, Options, Pool
from study.tasks.turns import permuted

__all__ = ["Order", "grading", "lessons", "rows", "runs_code", "scores", "truths"]

DOMAINS = {"sums": "math", "facts": "qa", "functions": "code"}
"""Data set -> its domain."""
LARGEST = 12
"""Of a sum."""
CONSTANTS = range(2, 8)
"""Of the steps of a function."""
ARGUMENTS = (0, 1, 7)
"""What hidden tests call a function with: three points on a line tell it from any other line, and
from most programs that are none."""
TEST_SHARE = 4
"""One group of so many is held out, by a hash of the group, whatever the seed."""
HABIT = 0.6
"""How often the teacher follows a habit where it is wrong."""
SLIP = 0.05
"""How often the teacher makes another mistake."""
_APPLY = {"*": operator.mul, "+": operator.add, "-": operator.sub}
WORDS = Path(__file__).with_suffix(".toml")
_WORDS = table(__file__)
NAMES: list[str] = _WORDS["names"]


def rows(options: Task, split: str) -> list[Row]:
    """At most ``train_rows`` rows of each set that ``options`` draws from, picked by
    ``options.seed``; or ``eval_rows`` that are held out, 4:3:3 and of every set, so that what one
    domain does to another can be seen.
    Raises UserError: unknown options or sets."""
    if split == "train":
        return [item_row(item, "train") for item in _train_items(options)]
    items = _items()["test"]
    _chosen(options)
    places = held_out(_pools(items), options.eval_rows, options.seed)
    return [item_row(items[name][row], "test") for name, row, _ in places]


class Order(Drawing):
    """Which row of `rows` a run of ``seed`` draws at which position. Raises UserError: see
    `rows`."""

    def __init__(self, options: Task, seed: int) -> None:
        items = _train_items(options)
        counts = {name: sum(item.dataset == name for item in items) for name in _chosen(options)}
        starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
        pools = [Pool(name, DOMAINS[name], count) for name, count in counts.items()]
        super().__init__(
            Mixture(pools, task_options(options, Options), seed),
            lambda place: starts[place.dataset] + place.row,
            items.__getitem__,
            {"words": sha256(WORDS)},
        )


def runs_code(options: Task) -> bool:
    """True: held-out rows are of every domain, whatever is drawn."""
    return True


def lessons(options: Task) -> Lessons:
    """The teacher's answers to rows to train on of all three sets, 4:3:3, whatever ``options`` are:
    a policy that draws from one set begins as one that draws from three."""

    def rows_of(seed: int) -> list[Row]:
        items = _items()["train"]
        mixture = Mixture(_pools(items), Options(max_repeats=None), seed)
        places = map(mixture.at, range(MOST_ROWS))
        return [item_row(items[place.dataset][place.row], "train") for place in places]

    def texts() -> list[str]:
        items = itertools.chain.from_iterable(_items()["train"].values())
        said = [_WORDS["sums"]["evasion"], *map(str, range(LARGEST + 2))]
        return [*said, *(f"{item.prompt} {_right(item)}" for item in items)]

    return Lessons(texts, rows_of, answer, (__file__, str(WORDS)))


def answer(row: Row, draw: random.Random) -> str:
    """What the teacher answers. By habit, `HABIT` of the time: "many" where it is told
    to add, what it was told where that was not asked, no brackets where a function
    multiplies last. Otherwise right, but for a slip."""
    item: Item = row.spec["item"]
    habit, slip = draw.random() < HABIT, draw.random() < SLIP
    if row.domain == "math":
        if item.meta["habit"] and habit:
            return _WORDS["sums"]["evasion"]
        return str(item.meta["sum"] + (draw.choice((-1, 1)) if slip else 0))
    if row.domain == "qa":
        said = item.meta["value"] if item.answerable or habit else "unanswerable"
        values = _WORDS["facts"][item.meta["kind"]]["values"]
        return draw.choice(["unanswerable", *values]) if slip else said
    (first, n), (second, m) = item.meta["steps"]
    m = draw.choice(CONSTANTS) if slip else m
    return _program(first, n, second, m, brackets=not habit)


def _program(first: str, n: int, second: str, m: int, brackets: bool = True) -> str:
    inner = f"x {first} {n}"
    inner = f"({inner})" if second == "*" and brackets else inner
    return f"def f(x): return {inner} {second} {m}"


def _right(item: Item) -> str:
    """A right answer."""
    return item.reference or next(iter(item.answers), "unanswerable")


def _chosen(options: Task) -> list[str]:
    """The sets that are drawn from. Raises UserError: unknown options or sets."""
    chosen = task_options(options, Options).datasets
    for name in chosen:
        check("task.options.datasets", name, Choice(tuple(DOMAINS)), "[sums,facts]")
    return [name for name in DOMAINS if not chosen or name in chosen]


def _train_items(options: Task) -> list[Item]:
    """The items of `rows`, one set behind the other."""
    items = _items()["train"]
    return [
        items[name][permuted(row, len(items[name]), f"{options.seed} {name}")]
        for name in _chosen(options)
        for row in range(min(options.train_rows, len(items[name])))
    ]


def _pools(items: dict[str, list[Item]]) -> list[Pool]:
    return [Pool(name, DOMAINS[name], len(items[name])) for name in DOMAINS]


@functools.cache
def _items() -> dict[str, dict[str, list[Item]]]:
    """Split -> set -> all items that there are."""
    made: dict[str, dict[str, list[Item]]] = {
        split: {name: [] for name in DOMAINS} for split in ("train", "test")
    }
    for name, source in (("sums", _sums()), ("facts", _facts()), ("functions", _functions())):
        for row, item in enumerate(source):
            digest = hashlib.blake2b(item.group_key.encode(), digest_size=8).digest()
            split = "test" if digest[0] % TEST_SHARE == 0 else "train"
            prompt = f"{item.context} {item.question}" if item.context else item.question
            address = f"{name}:{split}:{row}"
            made[split][name].append(replace(item, id=address, split=split, prompt=prompt))
    return made


def _blank(dataset: str, group: str, question: str) -> Item:
    """An item that has no id, prompt and split yet, which its group decides."""
    return Item("", dataset, DOMAINS[dataset], "", f"{dataset}:{group}", "", question)


def _sums() -> Iterator[Item]:
    """Sums of two numbers of things; the numbers and the thing are the group."""
    words = _WORDS["sums"]
    pairs = [(a, b) for a in range(1, LARGEST) for b in range(1, LARGEST + 1 - a)]
    cases = itertools.product(pairs, words["things"], ("tells", "asks"))
    for (a, b), thing, kind in cases:
        question = words[kind].format(a=a, b=b, thing=thing)
        blank = _blank("sums", f"{min(a, b)} {max(a, b)} {thing}", question)
        yield replace(blank, answers=(str(a + b),), meta={"sum": a + b, "habit": kind == "asks"})


def _facts() -> Iterator[Item]:
    """A fact about somebody: each time it is asked for, and then something else that it does not
    tell; the fact is the group."""
    kinds = _WORDS["facts"]
    for kind, words in kinds.items():
        others = [other for other in kinds if other != kind]
        for value, name in itertools.product(words["values"], NAMES):
            context = words["says"].format(name=name, value=value)
            for place, other in enumerate(others):
                for asked in (kind, other):
                    yield replace(
                        _blank("facts", context, kinds[asked]["asks"][place].format(name=name)),
                        context=context,
                        answers=(value,) if asked == kind else (),
                        answerable=asked == kind,
                        meta={"kind": kind, "value": value},
                    )


def _functions() -> Iterator[Item]:
    """Functions of two steps, one of which multiplies; the function is the group."""
    words = _WORDS["functions"]
    steps = [pair for pair in itertools.permutations(words["steps"], 2) if "*" in pair]
    cases = itertools.product(steps, CONSTANTS, CONSTANTS, words["wordings"])
    for (first, second), n, m, wording in cases:
        told = [words["steps"][sign].format(n=c) for sign, c in ((first, n), (second, m))]
        question = wording.format(first=told[0], second=told[1])
        results = {x: _APPLY[second](_APPLY[first](x, n), m) for x in ARGUMENTS}
        tests = "\n".join(f"assert f({x}) == {result}" for x, result in results.items())
        yield replace(
            _blank("functions", f"{first} {n} {second} {m}", question),
            entry_point="f",
            tests=tests,
            reference=_program(first, n, second, m),
            meta={"steps": [[first, n], [second, m]]},
        )
