"""Cluster bootstrap of a mean over a million verdict rows, against gathers of rows.

    python -m benchmarks.analysis.bootstrap [rows=1000000] [clusters=2000] [replicates=10000]

All resample whole clusters of unequal size. Before anything is timed, the same draws must give the
same means to 1e-10, and each peer's standard error must agree within its Monte Carlo error. Ours
runs all replicates; a peer runs few, and its time is scaled to as many, which the output says.
`arch` is raced where it can be imported (python -m pip install arch); nothing else needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial

import numpy as np

from analysis.planted.bootstrap import cluster_bootstrap, cluster_sums
from analysis.statistics.bootstrap import draw_weights, resampled_sums
from benchmarks.race import race, read_sizes

ROUNDS = 5
PEER_REPLICATES = 60


def planted(rows: int, clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores with a cluster effect; cluster sizes vary, rows are in random order."""
    rng = np.random.default_rng(0)
    labels = rng.choice(clusters, rows, p=rng.dirichlet(np.full(clusters, 20.0)))
    labels[:clusters] = rng.permutation(clusters)
    return rng.normal(0, 0.3, clusters)[labels] + rng.normal(0.5, 1.0, rows), labels


class Rows:
    """The rows of every cluster, and of the clusters drawn: what a gather needs."""

    def __init__(self, values: np.ndarray, labels: np.ndarray) -> None:
        self.values = values
        order = np.argsort(labels, kind="stable")
        ends = np.bincount(labels).cumsum()
        self.of = np.split(order, ends[:-1])

    def mean(self, drawn: np.ndarray) -> float:
        return float(self.values[np.concatenate([self.of[cluster] for cluster in drawn])].mean())


def numpy_gather(rows: Rows, replicates: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    count = len(rows.of)
    return np.array([rows.mean(rng.integers(0, count, count)) for _ in range(replicates)])


def sorted_gather(rows: Rows, replicates: int, seed: int) -> np.ndarray:
    """The same with the rows sorted by cluster first, so that what is copied lies together."""
    blocks = [rows.values[own] for own in rows.of]
    rng = np.random.default_rng(seed)
    count = len(blocks)
    return np.array(
        [
            np.concatenate([blocks[cluster] for cluster in rng.integers(0, count, count)]).mean()
            for _ in range(replicates)
        ]
    )


def arch_peer() -> Callable[[Rows, int, int], np.ndarray] | None:
    """arch's bootstrap over cluster numbers, its statistic the gather; None where it is absent."""
    try:
        arch = importlib.import_module("arch.bootstrap")
    except ImportError:
        return None

    def run(rows: Rows, replicates: int, seed: int) -> np.ndarray:
        numbers = np.arange(len(rows.of))
        boot = arch.IIDBootstrap(numbers, seed=np.random.default_rng(seed))
        return boot.apply(lambda drawn: np.array([rows.mean(drawn)]), replicates)[:, 0]

    return run


def equal(values: np.ndarray, labels: np.ndarray, rows: Rows) -> None:
    """The same draws give the same means, as weights and as gathered rows."""
    weights = draw_weights(np.random.default_rng(1), np.empty((5, len(rows.of))))
    sums = cluster_sums(values, labels)
    drawn = resampled_sums(sums, 5, np.random.default_rng(1))
    for (total, count), counts in zip(drawn, weights, strict=True):
        picked = np.repeat(np.arange(len(counts)), counts.astype(int))
        assert abs(total / count - rows.mean(picked)) < 1e-10


def main() -> None:
    """Equality, then the race."""
    sizes = read_sizes(rows=1_000_000, clusters=2_000, replicates=10_000)
    replicates = sizes["replicates"]
    values, labels = planted(sizes["rows"], sizes["clusters"])
    rows = Rows(values, labels)
    equal(values, labels, rows)
    print("the same draws give the same means (1e-10)")
    peers: dict[str, Callable[[Rows, int, int], np.ndarray]] = {
        "NumPy gather": numpy_gather,
        "NumPy gather, rows sorted first": sorted_gather,
    }
    arch = arch_peer()
    if arch is None:
        print("arch is not installed here: not raced")
    else:
        peers["arch IIDBootstrap over clusters"] = arch
    ours = cluster_bootstrap(values, labels, replicates=replicates)
    for name, peer in peers.items():
        # the SD of 60 draws is known to 1 / sqrt(2 * 59) = 9 %; 5 of these either way
        ratio = peer(rows, PEER_REPLICATES, 0).std(ddof=1) / ours.se
        assert 0.54 < ratio < 1.46, (name, ratio)
    print("standard errors agree within Monte Carlo error")
    print(
        f"{sizes['rows']} rows, {sizes['clusters']} clusters, {replicates} replicates; peers timed "
        f"on {PEER_REPLICATES} and scaled; {ROUNDS} rounds in turn"
    )
    race(
        lambda: cluster_bootstrap(values, labels, replicates=replicates),
        {name: partial(peer, rows, PEER_REPLICATES, 0) for name, peer in peers.items()},
        ROUNDS,
        repeats=1,
        scale=replicates / PEER_REPLICATES,
    )


if __name__ == "__main__":
    main()
