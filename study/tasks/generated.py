"""Tasks whose rows a program makes, of several sets: their splits, their rows, and the order in
which a run draws them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from study.config.bounds import Choice, check
from study.config.schema import Task, task_options
from study.rows import Row
from study.system.files import sha256
from study.tasks.drawing import Drawing, held_out
from study.tasks.kind import GradedTask
from study.tasks.lessons import MOST_ROWS
from study.tasks.mixed import item_row
from study.tasks.mixture import Mixture, Options, Pool
from study.tasks.turns import permuted
from study.truth.item import Item

TEST_SHARE = 4
"""One group of so many is held out, by a hash of the group, whatever the seed."""


def blank(dataset: str, domain: str, group: str, question: str) -> Item:
    """An item that has no id, prompt and split yet, which its group decides."""
    return Item("", dataset, domain, "", f"{dataset}:{group}", "", question)


class Generated(GradedTask):
    """A task of generated rows; held-out ones are of every domain, whatever is drawn.

    Args:
        domains: set -> its domain.
        make: makes set -> its items, each of a prompt of its own; see `blank`.
        words: the file of the words that they are made of; a checkpoint notes its hash.
    """

    def __init__(
        self,
        domains: Mapping[str, str],
        make: Callable[[], Mapping[str, Iterable[Item]]],
        words: Path,
    ) -> None:
        self.domains, self._make, self._words = dict(domains), make, words

    @cached_property
    def items(self) -> dict[str, dict[str, list[Item]]]:
        """Split -> set -> all items that there are."""
        items_by_split: dict[str, dict[str, list[Item]]] = {
            split: {name: [] for name in self.domains} for split in ("train", "test")
        }
        for name, source in self._make().items():
            for row, item in enumerate(source):
                digest = hashlib.blake2b(item.group_key.encode(), digest_size=8).digest()
                split = "test" if digest[0] % TEST_SHARE == 0 else "train"
                prompt = f"{item.context} {item.question}" if item.context else item.question
                address = f"{name}:{split}:{row}"
                items_by_split[split][name].append(
                    replace(item, id=address, split=split, prompt=prompt)
                )
        return items_by_split

    def rows(self, options: Task, split: str) -> list[Row]:
        """At most ``train_rows`` rows of each set that ``options`` draws from, picked by
        ``options.seed``; or ``eval_rows`` that are held out, 4:3:3 and of every set, so that what
        one domain does to another can be seen.
        Raises UserError: unknown options or sets."""
        if split == "train":
            return [item_row(item, "train") for item in self._train_items(options)]
        items = self.items["test"]
        self._chosen(options)
        places = held_out(self._pools(items), options.eval_rows, options.seed)
        return [item_row(items[name][row], "test") for name, row, _ in places]

    def order(self, options: Task, seed: int) -> Drawing:
        """Which row of `rows` a run of ``seed`` draws at which position. Raises UserError: see
        `rows`."""
        items = self._train_items(options)
        datasets = self._chosen(options)
        counts = {name: sum(item.dataset == name for item in items) for name in datasets}
        starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
        pools = [Pool(name, self.domains[name], count) for name, count in counts.items()]
        return Drawing(
            Mixture(pools, task_options(options, Options), seed),
            lambda place: starts[place.dataset] + place.row,
            items.__getitem__,
            {"words": sha256(self._words)},
        )

    def runs_code(self, options: Task) -> bool:
        """True: held-out rows are of every domain, whatever is drawn."""
        return True

    def lesson_rows(self, seed: int) -> list[Row]:
        """Rows to train on of all sets, 4:3:3, whatever a run draws from: a policy that draws from
        one set begins as one that draws from all."""
        items = self.items["train"]
        mixture = Mixture(self._pools(items), Options(max_repeats=None), seed)
        places = map(mixture.at, range(MOST_ROWS))
        return [item_row(items[place.dataset][place.row], "train") for place in places]

    def _chosen(self, options: Task) -> list[str]:
        """The sets that are drawn from. Raises UserError: unknown options or sets."""
        datasets = task_options(options, Options).datasets
        names = tuple(self.domains)
        for name in datasets:
            check("task.options.datasets", name, Choice(names), f"[{names[0]},{names[1]}]")
        return [name for name in names if not datasets or name in datasets]

    def _train_items(self, options: Task) -> list[Item]:
        """The items of `rows`, one set behind the other."""
        items = self.items["train"]
        return [
            items[name][permuted(row, len(items[name]), f"{options.seed} {name}")]
            for name in self._chosen(options)
            for row in range(min(options.train_rows, len(items[name])))
        ]

    def _pools(self, items: dict[str, list[Item]]) -> list[Pool]:
        return [Pool(name, self.domains[name], len(items[name])) for name in self.domains]
