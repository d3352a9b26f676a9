"""The schedule of a scaffold before any training: how many criteria each rollout will be shown."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from analysis.display.figures import blank, style
from study.config import override_errors as causes
from study.config.compose import hydra_presets
from study.config.schema import Scaffold, freeze, register
from study.errors import UserError
from study.tasks.scaffold import choose, group_share, step_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def schedule(scaffold: Scaffold, steps: int, group_size: int, criteria: int) -> pd.DataFrame:
    """How many of ``criteria`` each rollout of a group is shown.

    Returns T * G rows: step (from 1), member (from 0), ratio (share in [0, 1]), shown (count).
    """
    draw = random.Random(0)  # which ones is drawn, how many is not
    rows = []
    for step in range(1, steps + 1):
        strength = step_share(scaffold, step, steps)
        for member in range(group_size):
            ratio = strength * group_share(scaffold, member, group_size)
            shown = len(choose(scaffold, criteria, ratio, draw))
            rows.append({"step": step, "member": member, "ratio": ratio, "shown": shown})
    return pd.DataFrame(rows)


def changes(table: pd.DataFrame) -> pd.DataFrame:
    """The steps at which the counts of a group change: step, then one column per member."""
    wide = table.pivot(index="step", columns="member", values="shown")
    changed = wide.ne(wide.shift()).any(axis=1)
    return wide[changed]


@style()
def figure(scaffold: Scaffold, table: pd.DataFrame, criteria: int) -> Figure:
    """Counts shown by step and rollout, and the strength over the steps above them."""
    import matplotlib

    wide = table.pivot(index="member", columns="step", values="shown")
    steps = wide.columns.to_numpy()
    drawn = blank(8, 5.5)
    above, below = drawn.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    above.plot(steps, [step_share(scaffold, int(t), len(steps)) for t in steps])
    above.set(ylabel="strength", ylim=(-0.05, 1.05))
    above.set_title(
        f"Scaffold: group {scaffold.group}, decay {scaffold.decay}, {criteria} criteria"
    )
    edges = np.append(steps - 0.5, steps[-1] + 0.5)
    colours = matplotlib.colormaps["cividis"].resampled(criteria + 1)
    mesh = below.pcolormesh(
        edges,
        np.arange(len(wide) + 1) - 0.5,
        wide.to_numpy(),
        cmap=colours,
        vmin=-0.5,
        vmax=criteria + 0.5,
    )
    below.set(xlabel="training step", ylabel="rollout of the group", yticks=range(len(wide)))
    below.invert_yaxis()
    below.grid(False)
    drawn.colorbar(mesh, ax=below, label="criteria shown", ticks=range(criteria + 1))
    return drawn


def load_scaffold(settings: Sequence[str]) -> Scaffold:
    """The scaffold ruscarl with other settings, such as ``scaffold.x0=0.2``. Raises UserError: a
    setting that the schema does not take."""
    from hydra import compose
    from hydra.errors import HydraException

    register()
    try:
        with hydra_presets():
            composed: Any = compose(overrides=["+scaffold=ruscarl", *settings])
    except (HydraException, OmegaConfBaseException) as error:
        reason = causes.reason(error, settings) or causes.own_words(error)
        raise UserError(f"The settings do not fit: {reason}") from error
    return freeze(Scaffold, OmegaConf.to_container(composed.scaffold, resolve=True))
