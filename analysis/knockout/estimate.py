"""What became of a shift once the part of the judge's error that should cause it was taken out.

Three arms of one judge: with a bias, without it, and with it while ``correction.without`` takes it
out of the scores. The ledger said of the first arm's runs what share of the shift the bias made;
the third shows what share goes away with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.display import markup
from analysis.drift.pairs import paired_shifts
from analysis.frozen.effects import Effects
from analysis.propagation.calibration import PushPrediction
from analysis.propagation.estimate import paths, predict, pushed
from analysis.records.runs import Run
from analysis.statistics.estimate import NAN, Estimate, columns, known_mean
from analysis.statistics.intervals import mean_interval, ratio_of_means
from study.config.marks import under
from study.features import unit

NAMES = ("seed", "judge.name", "judge.family", "judge.size", "judge.endpoint.model")
"""Keys that do not make two simulated judges different treatments."""
OUT = ("correction.without.", "correction.parts.", "correction.fit")
NO_ARM = Estimate(NAN, note="no such arm")


@dataclass(frozen=True)
class Knockout:
    """One behaviour whose part was taken out, over the seeds of the arms.

    Attributes:
        biased, out, absent: the arm with the bias, the one that takes it out, and the one whose
            judge does not have it (empty where there is none).
        b, error: score for ``sd`` of the feature that was taken out, and its standard error.
        source: where they are from.
        where: on what the shifts rest: `Effects.where`.
        shift, shift_out, shift_absent: of the behaviour, in its unit, as `Effects` has them.
        lost: ``shift`` - ``shift_out``, paired by seed, as `Effects` has it.
        gone: ``lost`` as a share of ``shift``. A ratio of two effects is neither of them, so it has
            an interval of its own: Fieller's, by Student's t over the seeds.
        gone_absent: the same where the judge never had the bias.
        of_bias: the shift of the rollouts that the ledger's prediction gives to the bias, mean over
            the runs with it; the step size is fitted on the other runs. A prediction is no effect
            of an arm, and its sampling variance is not known: Student's t over the runs.
        lost_rollouts: ``lost`` on rollouts, which the ledger is about.
        missed: ``of_bias`` - ``lost_rollouts``, paired by seed; runs vary in it beyond sampling as
            in the differences of the study.
        pushed: the bias's share of what pushed the behaviour in the runs with it, by the ledger.
        cut: share of the scores with the bias that stand at an end of their scale, where the part
            cannot be taken out exactly; NaN where the ends are not 0 and 1.
    """

    feature: str
    unit: str
    biased: str
    out: str
    absent: str
    b: float
    error: float
    sd: float
    source: str
    where: str
    shift: Estimate
    shift_out: Estimate
    shift_absent: Estimate
    lost: Estimate
    gone: Estimate
    gone_absent: Estimate
    of_bias: Estimate
    lost_rollouts: Estimate
    missed: Estimate
    pushed: Estimate
    cut: float


def knockouts(
    runs: Sequence[Run],
    effects: Effects,
    on_rollouts: Effects,
    predicted: Sequence[PushPrediction] = (),
) -> list[Knockout]:
    """Every behaviour that some arm takes out of a judge that also trained without that.

    Args:
        effects: of the study.
        on_rollouts: the same on rollouts.
        predicted: of these runs; without, no shift is given to the bias.
    """
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.arm, []).append(run)
    settings = {arm: _settings(of_arm[0].identity) for arm, of_arm in arms.items()}
    rows = []
    for out, of_arm in arms.items():
        names = _without(of_arm[0].config)
        other_settings = {key: v for key, v in settings[out].items() if not key.startswith(OUT)}
        biased = next((arm for arm in arms if arm != out and settings[arm] == other_settings), None)
        if not names or biased is None:
            continue
        doses = [f"judge.simulated.doses.{name}" for name in names]
        undosed = {key: value for key, value in other_settings.items() if key not in doses}
        absent = next(
            (
                arm
                for arm, arm_settings in settings.items()
                if arm not in (out, biased)
                and not any(arm_settings.get(key) for key in doses)
                and {key: v for key, v in arm_settings.items() if key not in doses} == undosed
            ),
            "",
        )
        trio = (biased, out, absent)
        rows += [_knockout(name, trio, arms, effects, on_rollouts, predicted) for name in names]
    return rows


def _settings(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What makes runs one treatment: real judges are told apart by their names."""
    simulated = any(under(key, ["judge.simulated"]) for key in identity)
    names = NAMES if simulated else ("seed",)
    return {key: value for key, value in identity.items() if key not in names}


def _without(config: Mapping[str, Any]) -> list[str]:
    """The features that a flat config takes out."""
    return [str(v) for key, v in config.items() if key.startswith("correction.without.")]


def _knockout(
    feature: str,
    trio: tuple[str, str, str],
    arms: Mapping[str, Sequence[Run]],
    effects: Effects,
    on_rollouts: Effects,
    predicted: Sequence[PushPrediction],
) -> Knockout:
    biased, out, absent = trio
    part = f"correction.parts.{feature}."
    config = arms[out][0].config
    seeds = {run.cell: run.seed for run in arms[biased]}
    of_bias = pd.Series(
        {
            seeds[row.cell]: row.of_bias
            for row in predicted
            if row.cell in seeds and row.feature == feature
        },
        dtype=float,
    )
    scores = np.concatenate([run.judge[np.isfinite(run.judge)] for run in arms[biased]])
    within = scores.size and scores.min() >= 0 and scores.max() <= 1
    b, error, sd = (float(config[f"{part}{name}"]) for name in ("b", "error", "sd"))
    shift, shift_out, shift_absent = (
        effects.shift(feature, arm) if arm else NO_ARM for arm in trio
    )
    return Knockout(
        *(feature, unit(feature), biased, out, absent, b, error, sd),
        source=str(config[f"{part}source"]),
        where=effects.where,
        shift=shift,
        shift_out=shift_out,
        shift_absent=shift_absent,
        lost=effects.difference(feature, biased, out),
        gone=_gone(effects, feature, biased, out),
        gone_absent=_gone(effects, feature, biased, absent) if absent else NO_ARM,
        of_bias=mean_interval(of_bias.tolist()),
        lost_rollouts=on_rollouts.difference(feature, biased, out),
        missed=_missed(of_bias, on_rollouts, feature, biased, out),
        pushed=_share(arms[biased], feature),
        cut=known_mean(np.isin(scores, (0.0, 1.0)).astype(float)) if within else NAN,
    )


def _missed(of_bias: pd.Series, effects: Effects, feature: str, biased: str, out: str) -> Estimate:
    """What is predicted less what went away, by seed."""
    pairs = paired_shifts(effects.runs_of(feature, biased), effects.runs_of(feature, out))
    missed = (of_bias - (pairs["treated"] - pairs["base"])).dropna()
    return mean_interval(
        missed.tolist(),
        "seed pair",
        pairs["within"].reindex(missed.index).tolist(),
        ratios=effects.variances.differences,
    )


def _gone(effects: Effects, feature: str, biased: str, other: str) -> Estimate:
    """(shift with the bias - shift of the other arm) / shift with the bias, over shared seeds."""
    of_biased, of_other = (effects.runs_of(feature, arm) for arm in (biased, other))
    both = paired_shifts(of_biased, of_other)
    pairs = np.stack([both["treated"] - both["base"], both["treated"]], axis=1)
    v, other_v = (float(runs["group_var"].mean()) for runs in (of_biased, of_other))
    apart = float(both["within"].mean())
    # Var(x - y) = v + other_v - 2 Cov(x, y), so Cov(x - y, x) = (Var(x - y) + v - other_v) / 2
    shared = (apart + v - other_v) / 2
    within = np.array([[apart, shared], [shared, v]])
    return ratio_of_means(pairs, within_2_2=within if np.isfinite(within).all() else None)


def _share(runs: Sequence[Run], feature: str) -> Estimate:
    """The bias's part of the cumulative push on a feature, over the whole push."""
    feature_paths = [path for path in paths(runs) if path.feature == feature]
    pairs = [
        (whole - pushed(path, path.of_truth, "adam"), whole)
        for path in feature_paths
        for whole in [pushed(path, path.push, "adam")]
    ]
    return ratio_of_means(np.array(pairs, dtype=float).reshape(-1, 2), "run")


def of_study(runs: Sequence[Run], effects: Effects, on_rollouts: Effects) -> list[Knockout]:
    """`knockouts` of the finished runs, or of all where none is finished, with their predictions.

    ``effects``, ``on_rollouts``: as in `knockouts`.
    """
    done = [run for run in runs if run.done] or list(runs)
    if not any(_without(run.config) for run in done):
        return []
    return knockouts(done, effects, on_rollouts, predict(paths(done), "adam"))


def numbers(rows: Sequence[Knockout]) -> list[dict[str, Any]]:
    """For JSON: a row for each behaviour that was taken out."""
    return [columns(row) for row in rows]


def sentence(row: Knockout) -> str:
    """What a knock-out says of the ledger's account, in words."""
    if not np.isfinite(row.lost.value):
        return (
            f"{row.out} takes out what {row.biased} pays for {row.feature}, and no seed has both"
            " arms with that measured: what went away is not known."
        )
    lost = markup.signed(row.lost)
    share = f" ({row.gone.value:.0%})" if np.isfinite(row.gone.low) else ""
    opening = (
        f"Taking out what {row.biased} pays for {row.feature} took away {lost}{share} of its shift"
        f" of {markup.number(row.shift.value, sign=True)} {row.unit} {row.where}"
    )
    if not np.isfinite(row.missed.low):
        return f"{opening}; what the ledger says of that is not known."
    apart = not row.missed.low <= 0 <= row.missed.high
    that = "that"
    if row.lost_rollouts.value != row.lost.value:  # on other answers than the ledger's
        that = f"the {markup.number(row.lost_rollouts.value, sign=True)} of the rollouts"
    return (
        f"{opening}. The ledger's prediction gives {markup.number(row.of_bias.value, sign=True)} to"
        f" the judge's error, which {row.missed.n} pairs of runs {'' if apart else 'do not '}tell"
        f" from {that} (difference {markup.signed(row.missed)})."
    )
