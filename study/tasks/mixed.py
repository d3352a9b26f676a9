"""The task ``mixed``: rows of several sets with a rule truth, from a folder that was prepared.

``python -m experiments.data prepare data=plan-c`` makes such a folder and ``task.path`` names it.
Which row comes when is no order of the folder but a mixture: see `study.tasks.mixture`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import overload

from study.config.schema import MANY, Task, task_options
from study.errors import UserError
from study.rows import Row, make_row
from study.system.files import sha256
from study.tasks.datasets.table import MANIFEST, Table, open_table
from study.tasks.drawing import Drawing, held_out
from study.tasks.kind import GradedTask
from study.tasks.lessons import MOST_ROWS, Lessons, of_references
from study.tasks.mixture import DOMAINS, Mixture, Options, Place, Pool, drop_null_weights
from study.tasks.turns import permuted
from study.truth.item import Item

HELD_OUT = ("validation", "test")
"""Splits of held-out rows; each domain gives those of the first split that it has."""


class Rows(Sequence[Row]):
    """The rows to train on of some sets, one set behind the other, each read when it is wanted."""

    def __init__(self, table: Table, datasets: Sequence[str]) -> None:
        self.table = table
        self._datasets = list(datasets)
        *self._starts, self._length = accumulate(
            (table.counts["train"][name] for name in datasets), initial=0
        )
        self.starts = dict(zip(self._datasets, self._starts, strict=True))
        """Dataset -> place of its first row."""

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return item_row(self.item(place % len(self)), "train")

    def item(self, place: int) -> Item:
        """The item at a place, from 0."""
        dataset = self._datasets[bisect_right(self._starts, place) - 1]
        return self.table.rows("train", dataset)[place - self.starts[dataset]]


class Order(Drawing):
    """Which row of `rows` a run draws at which position.

    Args:
        options: where ``train_rows`` is less than a set has, ``options.seed`` picks so many of it.
        seed: of the run; arms of one seed draw the same.
    """

    def __init__(self, options: Task, seed: int) -> None:
        self._rows, self._seed = _train_rows(options), options.seed
        self.table = self._rows.table
        parts = dict.fromkeys(self._rows.starts, "train")
        pools = _pools(self.table, parts, options.train_rows)
        mixture = Mixture(pools, task_options(options, Options), seed, _weights(self.table))
        manifest = sha256(self.table.folder / MANIFEST)
        super().__init__(mixture, self._place, self._rows.item, {"manifest": manifest})

    def _place(self, place: Place) -> int:
        dataset, row, _ = place
        whole = self.table.counts["train"][dataset]
        if self.mixture.pools[dataset].rows < whole:
            row = permuted(row, whole, f"{self._seed} {dataset}")
        return self._rows.starts[dataset] + row


def item_row(item: Item, split: str) -> Row:
    """An item as a row; a right answer is its reference, the program where tests decide."""
    reference = item.reference or next(
        iter(item.answers), "" if item.answerable else "unanswerable"
    )
    row = make_row(
        ({"role": "user", "content": item.prompt},),
        spec={"item": item},
        split="train" if split == "train" else "eval",
        reference=reference or None,
    )
    return replace(row, dataset=item.dataset, domain=item.domain, item=item.id)


def _table(options: Task) -> Table:
    if options.path in (None, "", "???"):
        raise UserError(
            "task=mixed draws from a prepared folder, but task.path is not set. Type for example"
            " python -m experiments.data prepare data=plan-c, then task.path=data/plan-c"
        )
    return open_table(Path(str(options.path)).expanduser())


def _pools(table: Table, parts: Mapping[str, str], most: int) -> list[Pool]:
    """Sets, by the split that each is drawn from, of at most so many rows."""
    return [
        Pool(dataset, table.domains[dataset], min(most, table.counts[split][dataset]))
        for dataset, split in parts.items()
    ]


def _weights(table: Table) -> dict[str, float]:
    """Weights of the domains that the folder was prepared with; 0 is a domain left out."""
    return DOMAINS | table.manifest.get("domains", {})


def _train_rows(options: Task) -> Rows:
    table, datasets = _table(options), task_options(options, Options).datasets
    present = table.counts["train"]
    for name in datasets:
        if name not in present:
            raise UserError(
                f"task.options.datasets names {name}, and {table.folder} has training rows of"
                f" {', '.join(present) or 'no set'}. Name some of these sets, or prepare the"
                f" folder with datasets={name}"
            )
    weights = _weights(table) | drop_null_weights(task_options(options, Options).domains)
    names = [name for name in present if not datasets or name in datasets]
    names = [name for name in names if weights[table.domains[name]]]
    if not names:
        raise UserError(
            f"task.path={table.folder} has no training row: its sets are"
            f" {', '.join(table.domains)}, all for testing. Prepare one of data=plan-c."
        )
    return Rows(table, names)


def _held_out(task: Task) -> tuple[Row, ...]:
    table, datasets = _table(task), task_options(task, Options).datasets
    parts: dict[str, str] = {}
    for domain in dict.fromkeys(table.domains.values()):
        for split in HELD_OUT:
            names = [name for name in table.counts[split] if table.domains[name] == domain]
            names = [name for name in names if not datasets or name in datasets]
            parts |= dict.fromkeys(names, split)
            if names:
                break
    if not parts:
        return ()
    pools = _pools(table, parts, most=MANY)
    return tuple(
        item_row(table.rows(parts[name], name)[row], parts[name])
        for name, row, _ in held_out(pools, task.eval_rows, task.seed)
    )


class Mixed(GradedTask):
    """Rows of several sets with a rule truth, from a prepared folder."""

    def order(self, options: Task, seed: int) -> Order:
        """A mixture of the sets. Raises UserError: see `rows`."""
        return Order(options, seed)

    def rows(self, options: Task, split: str) -> Sequence[Row]:
        """All rows that may be drawn, read when they are wanted; or ``eval_rows`` held-out ones.

        Held-out rows are a mixture as well, of 4:3:3 and without repeats. ``options.seed`` picks
        them, so they are the same in every arm.
        Raises UserError: no prepared folder at ``options.path``, unknown options or sets, or no
            row."""
        if split == "train":
            return _train_rows(options)
        return _held_out(options)

    def lookup(self, options: Task) -> Callable[[str], Row | None]:
        """Prompt id -> its row; None for a prompt that no row has."""
        table = _table(options)

        def row_of(address: str) -> Row | None:
            place = table.place_of_prompt(address)
            return None if place is None else item_row(table.at(place), table.split_of(place))

        return row_of

    def lessons(self, options: Task) -> Lessons | None:
        """Lessons from the references of rows to train on, evenly spaced over the sets."""
        rows = _train_rows(options)
        places = range(0, len(rows), -(-len(rows) // MOST_ROWS))
        return of_references([rows[place] for place in places], __file__)

    def runs_code(self, options: Task) -> bool:
        """Whether answers to some of the rows are programs, which are run to score them."""
        domains, datasets = _table(options).domains, task_options(options, Options).datasets
        return "code" in {domains[name] for name in domains if not datasets or name in datasets}


TASK = Mixed()
