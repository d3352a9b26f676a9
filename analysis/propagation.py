"""From what a step pushes to where a run ends: the behaviour's shift, predicted from the ledger.

``python -m analysis.propagation study=NAME`` prints predicted beside observed, run by run.

To first order a GRPO step moves E[z] by scale x E Cov(A, z), where the covariance is within groups
and known from the run's own rollouts (`analysis.transmission`). The scale is not: it depends on
optimiser, clipping and how the network shares weights, and it differs several times over between
runs. So the steps are weighed with what the optimiser logged, and what is left is fitted on the
*other* runs of the study, never on the run that it explains. The covariance is a sum over the
truth's and the bias's part, and so is the prediction.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.calibration import FEWEST, calibrate, fit_scale
from analysis.command import study_command
from experiments.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from analysis.ledger import Run

    Logged = Mapping[str, Mapping[int, float]]

SCALES = ("plain", "adam")
"""How much of its push a step takes: ``plain`` the learning rate, less what gradient clipping took;
``adam`` learning rate / gradient norm. Adam divides a step by the gradient's own size, so the same
covariance moves a policy further where gradients are small, and clipping does not matter."""
USAGE = "python -m analysis.propagation study=quickstart [runs_dir=runs] [scale=adam] [out=FILE]"


@dataclass(frozen=True)
class Trajectory:
    """One run and feature over its T steps.

    Attributes:
        level: mean of the feature at each step, shape (T,); NaN where it was not measured.
        push: E Cov(A, z) at each step, shape (T,).
        of_truth: the part of it that the truth makes; ``push - of_truth`` is the bias's.
        gradient: gradient norm at each step, shape (T,); NaN where it was not logged.
        rate: learning rate at each step, shape (T,), or 1 where none was logged.
        clip: largest gradient norm that was let through; 0 is any.
    """

    cell: str
    arm: str
    feature: str
    level: np.ndarray
    push: np.ndarray
    of_truth: np.ndarray
    gradient: np.ndarray
    rate: np.ndarray | float = 1.0
    clip: float = 0.0


@dataclass(frozen=True)
class Predicted:
    """One run and feature: shifts in the feature's own unit.

    ``scale`` is fitted on the other runs: movement per unit of cumulative push. ``low`` and
    ``high`` are the 95 % prediction interval that their scatter gives this run.
    """

    cell: str
    arm: str
    feature: str
    observed: float
    predicted: float
    of_truth: float
    of_bias: float
    scale: float
    fitted_on: int
    low: float = float("nan")
    high: float = float("nan")


def paths(
    runs: Sequence[Run],
    gradients: Logged | None = None,
    rates: Logged | None = None,
    clips: Mapping[str, float] | None = None,
) -> list[Trajectory]:
    """The path of every run and feature.

    Args:
        runs: as `analysis.ledger.read_runs` gives them.
        gradients: cell -> step -> gradient norm.
        rates: cell -> step -> learning rate.
        clips: cell -> ``trainer.max_grad_norm``.
    """
    import numpy as np

    from analysis.transmission import group_cov, known_mean, split

    found = []
    for run in runs:
        steps = sorted(set(run.step_P.tolist()))
        norms, rated = ((logged or {}).get(run.cell, {}) for logged in (gradients, rates))
        gradient = np.array([norms.get(step, np.nan) for step in steps])
        rate = np.array([rated.get(step, np.nan) for step in steps]) if rated else 1.0
        clip = (clips or {}).get(run.cell, 0.0)
        shape = (len(steps), len(run.names))
        level, push, of_truth = (np.full(shape, np.nan) for _ in range(3))
        for row, step in enumerate(steps):
            here = run.at(step)
            total, truth, _ = split(here.reward, here.truth, run.scale)
            counts = np.isfinite(here.features).sum(axis=(0, 1))
            sums = np.nansum(here.features, axis=(0, 1))
            level[row] = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
            for out, part in ((push, total), (of_truth, truth)):
                covariance = group_cov(part, here.features)
                out[row] = [known_mean(covariance[:, k]) for k in range(len(run.names))]
        for k, name in enumerate(run.names):
            columns = (level[:, k], push[:, k], of_truth[:, k])
            found.append(Trajectory(run.cell, run.arm, name, *columns, gradient, rate, clip))
    return found


def cumulative(path: Trajectory, part: np.ndarray, scale: str) -> np.ndarray:
    """What has been pushed before each step, shape (T,), 0 at the first; unknown steps push
    nothing.

    Args:
        part: a push of the path, whole or one part.
        scale: see `SCALES`; ``adam`` divides each step by its gradient norm.
    """
    import numpy as np

    if scale == "adam":
        known = path.gradient > 0
        taken = np.divide(1.0, path.gradient, out=np.zeros_like(part), where=known)
    else:
        over = (path.gradient > path.clip) & (path.clip > 0)
        taken = np.divide(path.clip, path.gradient, out=np.ones_like(part), where=over)
    steps = np.nan_to_num(part * taken * path.rate, nan=0.0)
    return np.concatenate([[0.0], np.cumsum(steps)[:-1]])


def predict(found: Sequence[Trajectory], scale: str = "plain") -> list[Predicted]:
    """Observed and predicted shift of every run and feature, the scale from the other runs.

    The observed shift is that of `analysis.behaviour.run_shift`: last tenth of the steps minus
    first tenth. The push is taken over the same tenths, and so is what the scale is fitted on.

    Raises:
        UserError: an unknown scale.
    """
    import numpy as np

    if scale not in SCALES:
        raise UserError(f"scale={scale} is not known. Legal are {', '.join(SCALES)}.")
    rows = []
    for feature in dict.fromkeys(path.feature for path in found):
        own = [path for path in found if path.feature == feature]
        push = np.array([tenths(cumulative(path, path.push, scale)) for path in own])
        shift = np.array([tenths(path.level) for path in own])
        for k, path in enumerate(own):
            fit = fit_scale(np.delete(push, k), np.delete(shift, k))
            factor = fit.factor if fit.runs >= FEWEST else float("nan")
            of_truth = factor * tenths(cumulative(path, path.of_truth, scale))
            all_of_it, half = factor * float(push[k]), fit.half(float(push[k]))
            parts = (all_of_it, of_truth, all_of_it - of_truth, factor, fit.runs)
            ends = (all_of_it - half, all_of_it + half)
            rows.append(Predicted(path.cell, path.arm, feature, float(shift[k]), *parts, *ends))
    return rows


def tenths(values: np.ndarray) -> float:
    """Mean of the last tenth of the steps minus that of the first; NaN for a single step."""
    import numpy as np

    if len(values) < 2:
        return float("nan")
    window = -(-len(values) // 10)
    first, last = values[:window], values[-window:]
    if not np.isfinite(first).any() or not np.isfinite(last).any():
        return float("nan")
    return float(np.nanmean(last) - np.nanmean(first))


def kl_limit(run: Run, beta: float) -> dict[str, tuple[float, float]]:
    """Where a KL penalty of ``beta`` would hold each feature, to first order: Cov(A, z) / beta.

    The covariance is the mean within groups over the first recorded step, of the reward as it is
    scaled for the trainer. Under a dose on z it is dose x Var(z) / beta beside the truth's part.

    Returns:
        Feature -> (shift, the truth's part of it); NaN without beta: nothing holds the policy back.

    Source: derivative of E[z] at the optimum pi0 exp(A / beta).
    """
    from analysis.transmission import group_cov, known_mean, split

    first = run.at(min(run.step_P.tolist()))
    parts = split(first.reward, first.truth, run.scale)[:2]
    total, truth = (group_cov(part, first.features) for part in parts)
    nan = float("nan")
    return {
        name: (known_mean(total[:, k]) / beta, known_mean(truth[:, k]) / beta)
        if beta > 0
        else (nan, nan)
        for k, name in enumerate(run.names)
    }


def by_step(logged: pd.DataFrame, metric: str) -> dict[str, dict[int, float]]:
    """Cell -> step -> value of one metric of `analysis.frames.steps_frame`."""
    found: dict[str, dict[int, float]] = {}
    own = logged[logged["metric"] == metric]
    for cell, step, value in own[["cell", "step", "value"]].itertuples(index=False):
        found.setdefault(str(cell), {})[int(step)] = float(value)
    return found


def study(folder: Path, scale: str) -> dict[str, Any]:
    """Predictions and calibration of a study's finished runs, as plain data.

    Raises:
        UserError: too few runs that trained for two steps or more.
    """
    from analysis.frames import steps_frame
    from analysis.ledger import read_runs

    runs, problems = read_runs(folder)
    kept = [run for run in runs if run.done and len(set(run.step_P.tolist())) > 1]
    if len(kept) <= FEWEST:
        raise UserError(
            f"{folder} has {len(kept)} finished runs of two steps or more. The scale of a run is"
            f" fitted on the others, and that takes {FEWEST + 1} runs. Train more seeds or judges."
        )
    logged = steps_frame(folder)
    trainers = {run.cell: _trainer(folder / run.cell) for run in kept}
    found = paths(
        kept,
        by_step(logged, "policy/grad_norm"),
        by_step(logged, "policy/learning_rate"),
        {cell: float(trainer.get("max_grad_norm", 0.0)) for cell, trainer in trainers.items()},
    )
    rows = predict(found, scale)
    observed = {(row.cell, row.feature): row.observed for row in rows}
    limits = [
        {
            "cell": run.cell,
            "feature": name,
            "observed": observed[run.cell, name],
            "limit": limit,
            "of_truth": truth,
            "of_bias": limit - truth,
        }
        for run in kept
        if (beta := float(trainers[run.cell].get("beta", 0.0))) > 0
        for name, (limit, truth) in kl_limit(run, beta).items()
    ]
    return {
        "study": folder.name,
        "scale": scale,
        "unit": "run",
        "runs": [asdict(row) for row in rows],
        "calibration": [asdict(line) for line in calibrate(rows)],
        "kl_limit": limits,
        "problems": problems,
    }


def _trainer(cell: Path) -> dict[str, Any]:
    import yaml

    config = yaml.safe_load((cell / "config.yaml").read_text(encoding="utf-8"))
    return config.get("trainer") or {}


def figure(rows: pd.DataFrame, calibration: pd.DataFrame) -> Any:
    """Observed against predicted shift, one panel per feature that moved, one point per run."""
    import matplotlib.pyplot as plt

    from analysis.behaviour import unit
    from analysis.figures import looks, style

    moved = calibration.dropna(subset=["r2"]).sort_values("runs", ascending=False)
    names = [name for name in moved["feature"] if rows.loc[rows.feature == name, "observed"].std()]
    spread = rows.groupby("feature")["observed"].agg(lambda v: v.abs().max())
    names = sorted(names, key=lambda name: -spread[name])[:4]
    arms = sorted(set(rows["arm"]))
    with style():
        made, panels = plt.subplots(
            1, len(names), figsize=(3.3 * len(names), 3.6), layout="constrained", squeeze=False
        )
        look = looks(arms)
        for panel, name in zip(panels[0], names, strict=True):
            own = rows[rows.feature == name]
            low = min(own["predicted"].min(), own["observed"].min())
            high = max(own["predicted"].max(), own["observed"].max())
            panel.plot([low, high], [low, high], color="0.6", linewidth=1, zorder=0)
            for arm in arms:
                part = own[own.arm == arm]
                panel.scatter(
                    part["predicted"], part["observed"], label=arm, color=look[arm]["color"], s=28
                )
            r2 = float(moved.loc[moved.feature == name, "r2"].iloc[0])
            panel.set(
                title=f"{name}, R² = {r2:.2f}",
                xlabel=f"predicted shift ({unit(name)})",
                ylabel=f"observed shift ({unit(name)})",
            )
        handles, labels = panels[0][0].get_legend_handles_labels()
        made.legend(handles, labels, loc="outside lower center", ncols=min(4, len(arms)))
    return made


def main(arguments: Sequence[str]) -> int:
    """The command line; 0, or 2 after a user's error."""
    import pandas as pd

    try:
        given, folder = study_command(arguments, ("scale", "out", "figure"), USAGE)
        found = study(folder, given.get("scale", "adam"))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    rows, lines = pd.DataFrame(found["runs"]), pd.DataFrame(found["calibration"])
    print(lines.drop(columns="note").round(3).to_string(index=False))
    best = lines.sort_values("r2", ascending=False)["feature"].iloc[0]
    print(f"\n{best}, run by run (predicted with a scale fitted on the other runs):")
    columns = ["cell", "observed", "predicted", "low", "high", "of_truth", "of_bias", "scale"]
    print(rows[rows.feature == best][columns].to_string(index=False, float_format="%.3g"))
    if found["kl_limit"]:
        held = pd.DataFrame(found["kl_limit"])
        print(f"\n{best}, observed beside what the KL penalty would hold (Cov(A, z) / beta):")
        print(held[held.feature == best].to_string(index=False, float_format="%.3g"))
    for problem in found["problems"]:
        print(f"problem: {problem}")
    if given.get("out"):
        Path(given["out"]).write_text(json.dumps(found, indent=1), encoding="utf-8")
    if given.get("figure"):
        figure(rows, lines).savefig(given["figure"], dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
