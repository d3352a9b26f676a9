"""Which row of a mixture a run draws when, as a trainer asks for it, and which are held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from study.tasks.mixture import Mixture, Options, Place, Pool
from study.truth.item import Item


class Drawing:
    """The order of a run: a mixture over rows of several sets that stand in one sequence.

    Args:
        mixture: of the run.
        index: (place) -> index of its row in that sequence.
        item: (index) -> the item there.
        source: what the rows are made from; a checkpoint notes it.
    """

    def __init__(
        self,
        mixture: Mixture,
        index: Callable[[Place], int],
        item: Callable[[int], Item],
        source: Mapping[str, str],
    ) -> None:
        self.mixture, self._index, self._item = mixture, index, item
        self._source = dict(source)

    def rows(self, start: int, count: int) -> list[int]:
        """Indexes of the rows at ``count`` positions, fewer where all is drawn up."""
        total, end = self.mixture.total, start + count
        end = end if total is None else min(end, total)
        return [self._index(self.mixture.at(position)) for position in range(start, end)]

    def item(self, place: Place) -> Item:
        """What a place of `mixture` holds."""
        return self._item(self._index(place))

    def check(self, length: int) -> None:
        """Raises UserError: a run draws ``length`` rows, but there are fewer."""
        self.mixture.check(length)

    def notes(self, steps: int, prompts_per_step: int) -> list[str]:
        """A sentence on each set that such a run uses up."""
        ends = self.mixture.used_up(steps * prompts_per_step)
        return [
            f"{name} is used up at step {position // prompts_per_step + 1} of {steps}: each of its"
            f" {self.mixture.pools[name].rows} rows has been drawn task.options.max_repeats="
            f"{self.mixture.repeats} times; the other sets take its share."
            for name, position in ends.items()
        ]

    def state(self, position: int, ahead: int) -> dict[str, Any]:
        """What a checkpoint notes at ``position``: what was drawn from, and what comes next."""
        return {
            "position": position,
            "seed": self.mixture.seed,
            **self._source,
            "next": [self._item(index).id for index in self.rows(position, ahead)],
        }


def held_out(pools: Sequence[Pool], count: int, seed: int) -> list[Place]:
    """Places of ``count`` held-out rows, fewer where there are fewer: 4:3:3 by domain, none twice.
    ``seed`` is the task's, so every arm has the same."""
    mixture = Mixture(pools, Options(max_repeats=1), seed)
    return [mixture.at(position) for position in range(min(count, mixture.total or 0))]
