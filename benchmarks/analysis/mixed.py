"""The random-intercept model on a million verdict rows, against statsmodels and mixedlm.

    python -m benchmarks.analysis.mixed [rows=1000000] [clusters=2000] [rounds=5]

Estimates must agree to 1e-4 before anything is timed: coefficients, standard errors, both variances
and the log-likelihood. Equality with statsmodels is at the end of its powell, led close to the
peak; what is timed is its default, which is faster and can stop a little short of it. `mixedlm` is
raced at several of its settings where it can be imported (python -m pip install mixedlm); nothing
else needs it. Ours is called thrice before every call of a peer, and its median counts.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.planted.random_intercept import RandomIntercept, random_intercept
from benchmarks.race import race, read_sizes


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


def main() -> None:
    """Equality, then the race."""
    sizes = read_sizes(rows=1_000_000, clusters=2_000, rounds=5)
    y, x, cluster = planted(sizes["rows"], sizes["clusters"])
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
    print(f"{len(y)} rows, {sizes['clusters']} clusters; {sizes['rounds']} rounds in turn")
    race(lambda: random_intercept(y, x, cluster), peers, sizes["rounds"])


if __name__ == "__main__":
    main()
