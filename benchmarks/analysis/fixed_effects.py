"""Slopes within groups, clustered by group, on a million verdict rows, against pyfixest.

    python -m benchmarks.analysis.fixed_effects [rows=1000000] [groups=2000] [rounds=5]

Equality first: coefficients to 1e-8, standard errors to 1e-6. Both take the small-sample factor
P/(P-1) * (N-1)/(N-df) for P groups. df is the K columns here and K + 1 there: the constants of the
groups are nested in the clusters and not counted by either, but pyfixest counts one in their place.
So theirs are multiplied by the root of (N-K-1)/(N-K). pyfixest is raced at several of its settings
where it can be imported (python -m pip install pyfixest); nothing else needs it, and statsmodels on
centred columns is a second check that needs no factor. Ours is called thrice before every call of a
peer, and its median counts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.statistics.fixed_effects import fixed_effects
from benchmarks.race import race, read_sizes


def planted(rows: int, groups: int) -> pd.DataFrame:
    """Outcome, two columns and groups in random order; noise that is larger where x1 is."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, groups, rows)
    x1 = rng.normal(size=rows) + rng.normal(0, 0.5, groups)[group]
    x2 = 0.3 * x1 + rng.normal(size=rows)
    own_slope = 0.3 + rng.normal(0, 0.2, groups)[group]
    y = own_slope * x1 + rng.normal(0, 0.5, groups)[group] + rng.normal(size=rows)
    return pd.DataFrame({"y": y, "x1": x1, "x2": x2, "group": group})


def pyfixest_peers(table: pd.DataFrame) -> dict[str, Callable[[], Any]]:
    """`feols`; empty where it is absent. Lean: no copy, nothing kept, groups coded beforehand."""
    try:
        pyfixest = importlib.import_module("pyfixest")
    except ImportError:
        return {}
    lean = {"copy_data": False, "store_data": False, "lean": True}
    coded = table.assign(group=table["group"].astype("category"))
    numba = pyfixest.MapDemeaner(backend="numba")

    def peer(data: pd.DataFrame, **options: Any) -> Callable[[], Any]:
        return lambda: pyfixest.feols(
            "y ~ x1 + x2 | group", data, vcov={"CRV1": "group"}, **options
        )

    return {
        "pyfixest": peer(table),
        "pyfixest, lean": peer(table, **lean),
        "pyfixest, lean, groups coded": peer(coded, **lean),
        "pyfixest, lean, numba": peer(table, demeaner=numba, **lean),
    }


def by_statsmodels(table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and standard errors of least squares on columns centred in their group."""
    import statsmodels.api as sm

    columns = table[["y", "x1", "x2"]]
    centred = columns - columns.groupby(table["group"]).transform("mean")
    fit = sm.OLS(centred["y"], centred[["x1", "x2"]]).fit(
        cov_type="cluster", cov_kwds={"groups": table["group"].to_numpy()}
    )
    return fit.params.to_numpy(), fit.bse.to_numpy()


def main() -> None:
    """Equality, then the race."""
    sizes = read_sizes(rows=1_000_000, groups=2_000, rounds=5)
    table = planted(sizes["rows"], sizes["groups"])
    y, group = table["y"].to_numpy(), table["group"].to_numpy()

    def ours() -> Any:
        return fixed_effects(y, table[["x1", "x2"]].to_numpy(), group)

    estimates = ours()
    coef, se = by_statsmodels(table)
    np.testing.assert_allclose(estimates.coef_K, coef, rtol=0, atol=1e-8)
    np.testing.assert_allclose(estimates.se_K, se, rtol=1e-6)
    print("equal to statsmodels on centred columns: coefficients 1e-8, standard errors 1e-6")
    peers = pyfixest_peers(table)
    if not peers:
        print("pyfixest is not installed here: not raced")
    align = np.sqrt((estimates.n - 3) / (estimates.n - 2))
    for peer in peers.values():
        fit = peer()
        np.testing.assert_allclose(estimates.coef_K, fit.coef(), rtol=0, atol=1e-8)
        np.testing.assert_allclose(estimates.se_K, fit.se() * align, rtol=1e-6)
    if peers:
        print("equal to pyfixest: the same")
    print(f"{len(y)} rows, {sizes['groups']} groups; {sizes['rounds']} rounds in turn")
    race(ours, peers, sizes["rounds"])


if __name__ == "__main__":
    main()
