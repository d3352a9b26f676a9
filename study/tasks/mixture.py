"""Which row of which set a run draws at which position: a pure function of options and seed.

Domains take turns by their weights, the sets of a domain by theirs, and a set gives its rows in an
order that its name and the seed pick. No row is duplicated or shuffled: position 10,000 is the
same whether a run came there at once or was resumed on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from study.config import bounds
from study.config.bounds import Legal, Number
from study.errors import UserError
from study.tasks.turns import Turns, permuted

DOMAINS = {"math": 4.0, "qa": 3.0, "code": 3.0}
"""Weights of the domains where nothing gives any."""
WEIGHTS: dict[str, Legal] = {"legal": Number(above=0)}


@dataclass(frozen=True)
class Options:
    """``task.options`` of task=mixed."""

    datasets: list[str] = field(default_factory=list, metadata=bounds.NAMES)
    """The sets to draw from; none named: all that have rows to train on."""
    domains: dict[str, float | None] = field(default_factory=dict, metadata=WEIGHTS)
    """Domain -> weight; null is none. Every domain that is drawn from has one, or none has: then
    they are those that the folder was prepared with, 4 for math and 3 for qa and code as a rule."""
    sets: dict[str, float | None] = field(default_factory=dict, metadata=WEIGHTS)
    """Set -> weight inside its domain; null is none. Every set of a domain has one, or none has:
    then they are all alike."""
    temperature: float | None = bounds.number(None, low=0.1, high=1_000_000)
    """Weights that are not given follow the rows instead: a set of n rows has n ** (1 / T), a
    domain the sum of its sets. 1 draws every row as often; the larger, the more alike the sets."""
    max_repeats: int | None = bounds.number(4, low=1, high=1_000_000)
    """How often a run may draw one row. A set whose rows have all been drawn so often leaves its
    share to the other sets of its domain, and a domain without sets to the other domains. null is
    no limit."""


class Pool(NamedTuple):
    """A set as a mixture sees it."""

    dataset: str
    domain: str
    rows: int


class Place(NamedTuple):
    """What is drawn at one position."""

    dataset: str
    row: int
    """Of the set's rows, from 0."""
    repeat: int
    """How often the run has drawn that row before."""


class Mixture:
    """What a run draws, from its first position to the last that the cap on repeats allows.

    In every prefix each domain is within one row of its share, and each set within one row of its
    share of its domain; shares change only where a set is used up. See `Turns`.

    Args:
        pools: sets with at least one row each, of different names.
        options: raises UserError where its weights do not fit ``pools``.
        seed: of the run; it decides the order of a set's rows, not whose turn it is.
        domains: weights for those that ``options`` gives none.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        options: Options,
        seed: int,
        domains: Mapping[str, float] = DOMAINS,
    ) -> None:
        self.seed, self.repeats = seed, options.max_repeats
        self.pools = {pool.dataset: pool for pool in pools}
        self.domains, self.sets = weights(pools, options, domains)
        self.limits = {
            pool.dataset: None if self.repeats is None else self.repeats * pool.rows
            for pool in pools
        }
        self._domains = list(self.domains)
        self._sets = {
            domain: [pool.dataset for pool in pools if pool.domain == domain]
            for domain in self._domains
        }
        caps = {domain: [self.limits[name] for name in self._sets[domain]] for domain in self._sets}
        ends = [None if None in caps[d] else sum(filter(None, caps[d])) for d in self._domains]
        self.total = None if None in ends else sum(filter(None, ends))
        """Rows that can be drawn in all; None where there is no limit."""
        self._of_domains = Turns([self.domains[domain] for domain in self._domains], ends)
        self._of_sets = {
            domain: Turns([self.sets[name] for name in names], caps[domain])
            for domain, names in self._sets.items()
        }

    def at(self, position: int) -> Place:
        """What is drawn after ``position`` others. Raises IndexError: all is drawn up."""
        domain, before = self._of_domains.at(position)
        name = self._domains[domain]
        place, before = self._of_sets[name].at(before)
        pool = self.pools[self._sets[name][place]]
        repeat, index = divmod(before, pool.rows)
        key = f"{self.seed} {pool.dataset} {repeat}"
        return Place(pool.dataset, permuted(index, pool.rows, key), repeat)

    def check(self, length: int) -> None:
        """Raises UserError: a run draws ``length`` rows, but there are fewer."""
        if self.total is not None and length > self.total:
            rows = sum(pool.rows for pool in self.pools.values())
            least = -(-length // rows)
            raise UserError(
                f"The run draws {length} rows (trainer.steps x trainer.prompts_per_step), but"
                f" {rows} rows, each drawn at most task.options.max_repeats={self.repeats} times,"
                f" make {self.total}. Type fewer trainer.steps, or task.options.max_repeats={least}"
            )

    def used_up(self, length: int) -> dict[str, int]:
        """Set -> the position, from 0, of its last row, for sets that the first ``length``
        positions use up."""
        whole = sum(self.domains.values())
        inside = {d: sum(self.sets[name] for name in names) for d, names in self._sets.items()}
        enough = all(
            limit is None
            or length * self.domains[self.pools[name].domain] / whole + 1
            < limit * inside[self.pools[name].domain] / self.sets[name] - 1
            for name, limit in self.limits.items()
        )
        if enough:
            return {}
        limits = {name: limit for name, limit in self.limits.items() if limit is not None}
        ends = {}
        for position in range(length):
            name = self.at(position).dataset
            if name in limits:
                limits[name] -= 1
                if not limits[name]:
                    ends[name] = position
        return ends


def weights(
    pools: Sequence[Pool], options: Options, otherwise: Mapping[str, float] = DOMAINS
) -> tuple[dict[str, float], dict[str, float]]:
    """(domain -> weight, set -> weight inside its domain), each adding up to what it may.
    ``otherwise`` are the weights of domains that have none given.
    Raises UserError: weights that name something else than what is drawn from, or not all of it."""
    sizes = {pool.dataset: float(pool.rows) for pool in pools}
    if options.temperature is not None:
        sizes = {name: size ** (1 / options.temperature) for name, size in sizes.items()}
    by_domain: dict[str, list[str]] = {}
    for pool in pools:
        by_domain.setdefault(pool.domain, []).append(pool.dataset)
    of_sets, of_domains = drop_null_weights(options.sets), drop_null_weights(options.domains)
    _only("sets", of_sets, sizes)
    sets: dict[str, float] = {}
    for domain, names in by_domain.items():
        chosen = {name: of_sets[name] for name in names if name in of_sets}
        if chosen:
            _all("sets", chosen, names, f"the sets of {domain}")
        plain = dict.fromkeys(names, 1.0)
        sets |= chosen or ({n: sizes[n] for n in names} if options.temperature else plain)
    _only("domains", of_domains, by_domain)
    if of_domains:
        _all("domains", of_domains, by_domain, "the domains")
        return {domain: of_domains[domain] for domain in by_domain}, sets
    if options.temperature is not None:
        return {domain: sum(sizes[n] for n in names) for domain, names in by_domain.items()}, sets
    return {domain: otherwise[domain] for domain in by_domain}, sets


def drop_null_weights(weights: Mapping[str, float | None]) -> dict[str, float]:
    """The weights that are not null."""
    return {name: weight for name, weight in weights.items() if weight is not None}


def _only(key: str, weights: Mapping[str, float], legal: Mapping[str, object]) -> None:
    for name in weights:
        if name not in legal:
            _refuse(f"task.options.{key} names {name}, and there are {', '.join(legal)}", key)


def _all(
    key: str, weights: Mapping[str, float], wanted: Sequence[str] | Mapping[str, object], what: str
) -> None:
    if missing := [name for name in wanted if name not in weights]:
        _refuse(
            f"task.options.{key} gives {', '.join(weights)} a weight and {', '.join(missing)} none,"
            f" but {what} are {', '.join(wanted)}",
            key,
        )


def _refuse(problem: str, key: str) -> NoReturn:
    example = "{math:4,qa:3,code:3}" if key == "domains" else "{gsm8k:1,math:2}"
    raise UserError(
        f"{problem}. Give each a weight above 0, for example '+task.options.{key}={example}', or"
        " leave a set out by naming the others: task.options.datasets=[gsm8k,squad2]"
    )
