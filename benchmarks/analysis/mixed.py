"""The random-intercept model on a million verdict rows, against statsmodels and mixedlm.

    python benchmarks/analysis/mixed.py [rows=1000000] [clusters=2000] [rounds=5]

Estimates must agree to 1e-4 before anything is timed: coefficients, standard errors, both variances
and the log-likelihood. Equality with statsmodels is at the end of its powell, led close to the
peak; what is timed is its default, which is faster and can stop a little short of it. `mixedlm` is
raced at several of its settings where it can be imported (python -m pip install mixedlm); nothing
else needs it. Ours is called thrice before every call of a peer, and its median counts.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.planted.random_intercept import RandomIntercept, random_intercept


def planted(rows: int, clusters: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outcome, two columns and clusters in random order, a variance of .25 between clusters."""
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, clusters, rows)
    z = rng.normal(size=rows) + rng.normal(0, 0.5, clusters)[cluster]
    y = 0.2 + 0.3 * z + rng.normal(0, 0.5, clusters)[cluster] + rng.normal(size=rows)
    return y, np.stack([np.ones(rows), z], axis=1), cluster


def statsmodels_peer(y: np.ndarray, x: np.ndarray, cluster: np.ndarray) -> Callable[..., Any]:
    """MixedLM from arrays, by default with bfgs: with lbfgs it ends at an infinite likelihood."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    def fit(**options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return MixedLM(y, x, groups=cluster).fit(**options)

    return fit


def mixedlm_peers(
    y: np.ndarray, x: np.ndarray, cluster: np.ndarray
) -> dict[str, Callable[..., Any]]:
    """`lmer` on a table made beforehand; empty where it is absent."""
    try:
        mixedlm = importlib.import_module("mixedlm")
    except ImportError:
        return {}
    import pandas as pd

    numbers = pd.DataFrame({"y": y, "z": x[:, 1], "cluster": cluster})
    coded = numbers.assign(cluster=numbers["cluster"].astype("category"))
    lean = mixedlm.lmerControl(optimizer="bobyqa", calc_derivs=False, check_conv=False)

    def peer(table: pd.DataFrame, **control: Any) -> Callable[[], Any]:
        return lambda: mixedlm.lmer("y ~ z + (1|cluster)", table, **control)

    return {
        "mixedlm": peer(numbers),
        "mixedlm, clusters coded": peer(coded),
        "mixedlm, coded, bobyqa, no checks": peer(coded, control=lean),
    }


def equal(ours: RandomIntercept, theirs: list[float]) -> None:
    """Coefficients, standard errors, between, within and log-likelihood to 1e-4."""
    own = [*ours.coef, *ours.se, ours.between, ours.within, ours.loglike]
    np.testing.assert_allclose(own, theirs, rtol=1e-4)


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main(arguments: list[str]) -> int:
    given = {"rows": 1_000_000, "clusters": 2_000, "rounds": 5}
    for argument in arguments:
        name, _, text = argument.partition("=")
        if name not in given or not text.isdecimal() or int(text) < 2:
            print(f"{argument}: legal are {', '.join(given)}, whole numbers", file=sys.stderr)
            return 2
        given[name] = int(text)
    y, x, cluster = planted(given["rows"], given["clusters"])
    ours = random_intercept(y, x, cluster)
    peers: dict[str, Callable[..., Any]] = {"statsmodels MixedLM": statsmodels_peer(y, x, cluster)}
    fit = peers["statsmodels MixedLM"](method="powell", xtol=1e-6, ftol=1e-12)
    variances = [float(np.asarray(fit.cov_re)[0, 0]), fit.scale]
    equal(ours, [*fit.fe_params, *fit.bse_fe, *variances, fit.llf])
    rust = mixedlm_peers(y, x, cluster)
    if not rust:
        print("mixedlm is not installed here: not raced")
    for peer in rust.values():
        fit = peer()
        variances = [(fit.theta[0] * fit.get_sigma()) ** 2, fit.get_sigma() ** 2]
        se = np.sqrt(np.diag(fit.vcov()))
        equal(ours, [*fit.fixef().values(), *se, *variances, float(fit.logLik())])
    print("estimates agree to 1e-4")
    peers |= rust
    own: dict[str, list[float]] = {name: [] for name in peers}
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(given["rounds"]):
        for name, peer in peers.items():
            turns = [seconds(lambda: random_intercept(y, x, cluster)) for _ in range(3)]
            own[name].append(statistics.median(turns))
            times[name].append(seconds(peer))
    print(f"{given['rows']} rows, {given['clusters']} clusters; {given['rounds']} rounds in turn")
    every = [taken for turns in own.values() for taken in turns]
    print(f"{'ours':<36}{statistics.median(every):>8.3f} s")
    for name, taken in times.items():
        ratios = [peer / mine for peer, mine in zip(taken, own[name], strict=True)]
        print(
            f"{name:<36}{statistics.median(taken):>8.3f} s   ratio to ours: "
            f"median {statistics.median(ratios):.1f}, smallest {min(ratios):.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
