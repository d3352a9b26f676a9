"""A judge's error taken apart: what it does to every answer alike, and what it pays a behaviour.

In the first steps of a run the score is calibrated on the truth. A judge that says half of the
truth, is lenient or stops at the end of its scale has a gap that moves whenever the truth does, and
no behaviour is paid for. What this calibration does not explain is. docs/planted-truth.md has the
parts, docs/onset.md the calibration.

`Window` keeps the first rollouts as sums over groups, of which any draw of groups makes a
calibration: a refit costs what a table of truths costs, however many rollouts there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from analysis.ledger.row_slopes import (
    RowSlopes,
    own_slopes,
    row_names,
    shrunken,
    without_behaviours,
)
from analysis.ledger.transmission import centred, within_regression
from analysis.records.runs import Run
from analysis.statistics.bootstrap import draw_weights
from analysis.statistics.clipped_line import ROUNDED, clipped_mean, fitted, refitted
from analysis.statistics.estimate import FLAT, NAN, known_mean, known_means

FEWEST_GROUPS = 12
"""Groups that a calibration takes; where the truth varies in fewer, it is fitted over all rollouts
and not within groups."""
BINS = 64
"""Truths that are told apart."""
BACKFITS = 5
"""Turns in which the curve and the groups' levels are fitted to what the other leaves."""


@dataclass(frozen=True)
class Window:
    """Sums over each group of the first steps, of which any draw of groups makes a fit.

    Columns are truth, K features in their SDs, score; Q are the truths told apart.
    """

    inside_P: np.ndarray
    """Products of columns centred in their group, (P, K + 2, K + 2)."""
    between_P: np.ndarray
    """Products of 1 and the group's means, times rollouts, (P, K + 3, K + 3)."""
    binned_P: np.ndarray
    """Of every truth: rollouts, and sums of features, group's mean truth and score; all but the
    first and last less their mean over all: (P, Q, K + 3)."""
    truth_Q: np.ndarray
    pooled: bool
    """Whether the truth varies in too few groups to be fitted within them."""

    @classmethod
    def of(
        cls, y_P_G: np.ndarray, t_P_G: np.ndarray, z_P_G_K: np.ndarray, used_P_G: np.ndarray
    ) -> Window | None:
        """None where the truth does not vary."""
        z = np.where(np.isfinite(z_P_G_K) & used_P_G[..., None], z_P_G_K, np.nan)
        has_value = np.isfinite(z)
        middle = known_means(np.concatenate(z))
        z = np.where(has_value, z - middle, 0.0)
        sd = np.sqrt((z**2).sum(axis=(0, 1)) / np.maximum(has_value.sum(axis=(0, 1)), 1))
        z = z / np.where(sd > FLAT, sd, np.inf)
        columns = np.concatenate([t_P_G[..., None], z, y_P_G[..., None]], axis=-1)
        columns = np.where(used_P_G[..., None], columns, 0.0)
        inside = centred(columns, used_P_G)
        counts = used_P_G.sum(axis=1)
        means = columns.sum(axis=1) / np.maximum(counts, 1)[:, None]
        varies = (abs(inside[..., 0]) > FLAT).any(axis=1).sum()
        pooled = bool(varies < FEWEST_GROUPS)
        t = columns[..., 0][used_P_G]
        if np.ptp(t) < FLAT:
            return None
        if pooled:
            whole = columns - columns[used_P_G].mean(axis=0)
            inside = np.where(used_P_G[..., None], whole, 0.0)
        ones = np.ones((len(means), 1))
        at_means = np.concatenate([ones, means], axis=1)
        between = np.einsum("p,pi,pj->pij", counts, at_means, at_means)
        rounded, place = np.unique(t.round(9), return_inverse=True)
        if len(rounded) > BINS:
            cuts = np.linspace(t.min(), t.max(), BINS + 1)[1:-1]
            _, place = np.unique(np.searchsorted(cuts, t), return_inverse=True)
        in_bin = np.bincount(place)
        truth_Q = np.bincount(place, t) / in_bin
        group = np.broadcast_to(np.arange(len(counts))[:, None], used_P_G.shape)[used_P_G]
        binned = np.zeros((len(counts), len(truth_Q), columns.shape[-1] + 1))
        of_group = means[group, 0] - t.mean()
        rows = [np.ones(len(t)), *columns[used_P_G].T[1:-1], of_group, columns[used_P_G][:, -1]]
        np.add.at(binned, (group, place), np.stack(rows, axis=1))
        inside_P = np.einsum("pgi,pgj->pij", inside, inside)
        return cls(inside_P, between, binned, truth_Q, pooled)

    def fit(
        self, weights_B_P: np.ndarray, luck_B_3: np.ndarray, low: float, high: float
    ) -> np.ndarray:
        """`fitted` for every draw of groups, shape (B, 4)."""
        groups = weights_B_P.shape[1]

        def drawn(sums_P: np.ndarray) -> np.ndarray:
            total = weights_B_P @ sums_P.reshape(groups, -1)
            return total.reshape(-1, *sums_P.shape[1:])

        inside, between, binned = map(drawn, (self.inside_P, self.between_P, self.binned_P))
        count = between[:, 0, 0]
        size = np.sqrt(np.diagonal(inside[0])[:-1] / count[0])
        size = np.where(size > FLAT, size, np.inf)
        unit = inside[:, :-1, :-1] / np.outer(size, size)
        # what truth and behaviours share without a difference is the truth's
        least = np.where(np.arange(len(size)) > 0, 1e-7, 1e-10)
        unit = unit + count[:, None, None] * np.diag(least)
        coef = np.linalg.solve(unit, (inside[:, :-1, -1] / size)[..., None])[..., 0] / size
        means = between[:, 0] / count[:, None]
        with_truth = between[:, 1, 1:] / count[:, None] - means[:, 1:2] * means[:, 1:]
        residual_covariance = with_truth[:, -1] - (coef[:, 1:] * with_truth[:, 1:-1]).sum(axis=1)
        total = inside[:, -1, -1] - (coef * inside[:, :-1, -1]).sum(axis=1)
        sd = np.sqrt(np.maximum(total, 0.0) / np.maximum(count - groups - len(size), 1))
        n_B_Q, sums_B_Q = binned[..., 0], binned[..., -1]
        sums_B_Q = sums_B_Q - (binned[..., 1:-2] * coef[:, None, 1:]).sum(axis=-1)
        of_group = binned[..., -2]
        centre = of_group.sum(axis=1) / count
        moved = (of_group - centre[:, None] * n_B_Q) / count[:, None]
        slope_of_group = residual_covariance - coef[:, 0] * with_truth[:, 0]
        curved = np.isfinite(low) or np.isfinite(high)
        turns = BACKFITS if curved and not self.pooled else 1
        curve = np.empty((len(count), 4))
        for turn in range(turns):
            slope_of_group = np.divide(
                slope_of_group,
                with_truth[:, 0],
                out=np.zeros_like(slope_of_group),
                where=(with_truth[:, 0] > FLAT**2) & (not self.pooled),
            )
            rest = sums_B_Q - slope_of_group[:, None] * of_group
            y_B_Q = np.divide(rest, n_B_Q, out=np.zeros_like(rest), where=n_B_Q > 0)
            if turn in (0, turns - 1):
                curve = fitted(self.truth_Q, n_B_Q, y_B_Q, sd, luck_B_3, low, high)
            else:
                curve = refitted(self.truth_Q, n_B_Q, y_B_Q, curve, low, high)
            level, slope, spread, _ = curve.T[..., None]
            line = level + slope * self.truth_Q
            bent = clipped_mean(line, spread, low, high) - line
            slope_of_group = (
                residual_covariance - curve[:, 1] * with_truth[:, 0] - (bent * moved).sum(axis=1)
            )
        return curve


ROLLOUTS, FEWEST = 256, 64
"""Rollouts that a calibration should rest on, and the fewest."""
DRAWS = 200
"""Refits of a calibration."""
PARTS = ("compression", "clip", "bias", "noise")
"""Parts of the error that differ within groups, so that they can reach an advantage."""


@dataclass(frozen=True)
class Calibrated:
    """Expected score = clip(level + slope x truth + spread x N(0, 1)), over the noise.

    All NaN where it could not be had, and ``note`` says why; it also says where the first tenth of
    the steps was too little.
    """

    level: float = NAN
    slope: float = NAN
    spread: float = NAN
    low: float = -np.inf
    high: float = np.inf
    """Ends of the scale, infinite where scores lie beyond 0 or 1."""
    slope_se: float = NAN
    start: float = NAN
    """Mean truth of the rollouts that it rests on."""
    features_K: np.ndarray | None = None
    """Mean features of these rollouts."""
    refits_B_3: np.ndarray | None = None
    """Level, slope and spread refitted to groups drawn anew."""
    groups: int = 0
    steps: int = 0
    """How many groups, and steps from the first, it rests on."""
    note: str = ""
    rows: RowSlopes | None = None
    """How slopes of rows differ from that one; None where the first steps do not tell."""

    @property
    def is_known(self) -> bool:
        """Whether there is one."""
        return self.slope == self.slope

    def curve(self, truth: np.ndarray) -> np.ndarray:
        """Score of answers with this truth that behave as the first ones did, of any shape, where
        nothing is known of their row."""
        line = self.level + self.slope * truth
        return clipped_mean(line, self.spread, self.low, self.high)

    def expected(self, run: Run) -> np.ndarray:
        """Score of a run's answers that the truth and the row let expect, (P, G)."""
        return self.curve(run.truth) + (0.0 if self.rows is None else self.rows.beyond(run))

    def deviations(self, run: Run) -> np.ndarray:
        """How far refits' mean expected score of each step lies from this one's, shape (B, T).

        Their spread is stretched to that of Student's t over the groups. The means are over the
        rollouts that the run's judge scored and that have a truth.
        """
        counted = np.isfinite(run.judge) & np.isfinite(run.truth)
        here = counted.any(axis=1)
        truth_P_G, step_P = np.where(counted, run.truth, np.nan)[here], run.step_P[here]
        has_truth = np.isfinite(truth_P_G)
        steps, at = np.unique(step_P, return_inverse=True)
        low, high = truth_P_G[has_truth].min(initial=1), truth_P_G[has_truth].max(initial=0)
        grid = np.linspace(min(low, high), max(low, high), BINS + 1)
        place = (truth_P_G[has_truth] - grid[0]) / max(grid[-1] - grid[0], 1e-12) * BINS
        left = np.clip(place.astype(int), 0, BINS - 1)
        row = np.broadcast_to(at[:, None], has_truth.shape)[has_truth]
        shares = np.zeros((len(steps), BINS + 1))
        np.add.at(shares, (row, left), 1 - (place - left))
        np.add.at(shares, (row, left + 1), place - left)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
        if self.refits_B_3 is None:
            return np.zeros((1, len(steps)))
        level, slope, spread = self.refits_B_3.T[..., None]
        curves = clipped_mean(level + slope * grid, spread, self.low, self.high)
        moves = (curves - self.curve(grid)) @ shares.T
        if self.rows is not None:
            moves = moves + self.rows.deviations(run, counted)
        return stretch(self.groups) * moves


def calibrated(run: Run, scores_P_G: np.ndarray, seed: int = 0) -> Calibrated:
    """Scores calibrated on the truth of a run's first tenth of steps.

    Slope and features are fitted together within groups (over all rollouts where the truth varies
    in too few groups), so that a bias that goes with the truth is no slope. Then the curve is
    fitted by least squares to the means of equal truths, less what features and the groups' levels
    make of them. Fewer than `ROLLOUTS` are filled up from later steps, up to a third of the run.
    """
    has_both = np.isfinite(scores_P_G) & np.isfinite(run.truth)
    truths = run.truth[has_both]
    if not truths.size:
        return Calibrated(note="no rollout has both score and truth")
    here, note = _first(run.step_P, has_both)
    used = has_both & here[:, None]
    used &= used.sum(axis=1, keepdims=True) > 1
    groups, rollouts = int(used.any(axis=1).sum()), int(used.sum())
    steps = len(np.unique(run.step_P[here]))
    ends = scores_P_G[has_both]
    low = 0.0 if ends.min() >= -FLAT else -np.inf
    high = 1.0 if ends.max() <= 1 + FLAT else np.inf
    chosen = used.any(axis=1)
    z = run.features[chosen]
    means_K = known_means(z[used[chosen]])
    if np.ptp(truths) < FLAT:
        level = known_mean(ends - truths)
        return Calibrated(level, 1.0, 0.0, slope_se=0.0, start=truths[0], features_K=means_K)
    if rollouts < FEWEST or groups < FEWEST_GROUPS:
        few = (
            f"the first {steps} steps have {rollouts} rollouts of {groups} groups with score and "
            f"truth: a calibration needs {FEWEST} of {FEWEST_GROUPS} groups"
        )
        return Calibrated(note=few)
    window = Window.of(scores_P_G[chosen], run.truth[chosen], z, used[chosen])
    if window is None:
        return Calibrated(note=f"the truth does not vary in the first {steps} steps")
    weights = np.ones((DRAWS + 1, groups))
    rng = np.random.default_rng(seed)
    draw_weights(rng, weights[1:])
    luck = np.zeros((len(weights), len(ROUNDED)))
    luck[1:] = rng.gumbel(size=luck[1:].shape)
    if len(window.truth_Q) < 3:  # any ends fit two means
        luck[:, 1:] = -np.inf
    fits = window.fit(weights, luck, low, high)
    se = float(fits[1:, 1].std()) * stretch(groups)
    start = float(run.truth[used].mean())
    level, slope, spread = fits[0, :3].tolist()
    rest = (se, start, np.nan_to_num(means_K), fits[1:, :3], groups, steps, note)
    found = Calibrated(level, slope, spread, low, high, *rest)
    if window.pooled:
        return found
    return replace(found, rows=_row_slopes(found, run, scores_P_G, used, weights, rng))


def _row_slopes(
    found: Calibrated,
    run: Run,
    scores_P_G: np.ndarray,
    used_P_G: np.ndarray,
    weights_B_P: np.ndarray,
    rng: np.random.Generator,
) -> RowSlopes:
    """Slopes of rows beyond the curve, from the rollouts that it rests on."""
    chosen = used_P_G.any(axis=1)
    used, truth, z = used_P_G[chosen], run.truth[chosen], run.features[chosen]
    code_P, names = pd.factorize(np.array(row_names(run), dtype=object)[chosen])
    row_N = np.broadcast_to(code_P[:, None], used.shape)[used]
    truth_N = centred(truth, used)[used]
    z_N_K = centred(z, used[..., None] & np.isfinite(z))[used]
    score_N = centred(scores_P_G[chosen] - found.curve(truth), used)[used]
    score_N = without_behaviours(score_N, z_N_K, truth_N, row_N)
    own_R, precision_R = own_slopes(truth_N, score_N, row_N, len(code_P))
    count_R = np.bincount(row_N)
    rate_R = np.bincount(row_N, truth[used]) / count_R
    drawn = np.zeros((len(names), len(weights_B_P)))
    np.add.at(drawn, code_P, weights_B_P.T)
    slopes_B_R, sd_R = shrunken(own_R, precision_R, rate_R, drawn.T / np.bincount(code_P))
    # Where the truth moves may go with what is not known of the slopes: a correlation of any size,
    # for moves that differ between rows by as much as they are on average.
    doubt_B = rng.uniform(-1, 1, len(slopes_B_R) - 1)
    chance_R = (truth_N @ truth_N) / max(len(row_N) - len(code_P), 1) / count_R
    between = max(0.0, float(rate_R.var() - chance_R.mean()))
    share_R = between / np.maximum(between + chance_R, FLAT)
    near_R = found.start + share_R * (rate_R - found.start)
    return RowSlopes(
        {name: place for place, name in enumerate(names)},
        slopes_B_R[0],
        slopes_B_R[1:] + doubt_B[:, None] * sd_R,
        np.append(near_R, found.start),
        int(run.step_P[chosen].max()),
    )


@dataclass(frozen=True)
class Parts:
    """score - truth of every rollout as a sum, each (P, G); all NaN without a calibration.

    The parts of `PARTS` and a level that all rollouts share add up exactly, because noise is what
    the others leave: also what no line in the behaviours shows.
    """

    calibration: Calibrated
    level: float
    of: Mapping[str, np.ndarray]
    halves: tuple[np.ndarray, np.ndarray]
    """The bias by what either half of the prompts says of it: the mean of their product is the
    square of the bias, to which the sampling error of one estimate adds."""

    def where(self, here: np.ndarray) -> Parts:
        """The groups of which ``here``, shape (P,), is true."""
        first, second = (half[here] for half in self.halves)
        of = {name: part[here] for name, part in self.of.items()}
        return replace(self, of=of, halves=(first, second))


def taken_apart(run: Run, scores_P_G: np.ndarray, calibration: Calibrated | None = None) -> Parts:
    """The parts of a score's error in every rollout of a run.

    ``compression`` is (slope - 1) (truth - its mean in the first steps), ``clip`` what the ends of
    the scale take from the calibration's line or add to it, ``bias`` what behaviours are paid
    beyond it: one regression within all groups of the run, jointly with the truth, times their
    distance from the first steps. A behaviour that is not known is paid nothing. ``calibration`` is
    that of the scores, where it was made.
    """
    calibration = calibration or calibrated(run, scores_P_G)
    if not calibration.is_known:
        missing = np.full(scores_P_G.shape, np.nan)
        return Parts(calibration, NAN, dict.fromkeys(PARTS, missing), (missing, missing))
    expected = calibration.expected(run)
    residual = scores_P_G - expected
    away = run.features - calibration.features_K
    away = np.where(np.isfinite(away), away, 0.0)
    columns = np.concatenate([run.truth[..., None], run.features], axis=-1)

    def paid(groups: np.ndarray) -> np.ndarray:
        coef_K = within_regression(residual[groups], columns[groups]).coef_K[1:]
        return away @ np.nan_to_num(coef_K)

    even = half_of_prompts(run)
    level = calibration.level + (calibration.slope - 1) * calibration.start
    curve, line = calibration.curve(run.truth), calibration.level + calibration.slope * run.truth
    parts = {
        "compression": (calibration.slope - 1) * (run.truth - calibration.start) + expected - curve,
        "clip": curve - line,
        "bias": paid(np.ones(len(residual), dtype=bool)),
    }
    parts["noise"] = scores_P_G - run.truth - level - sum(parts.values())
    return Parts(calibration, level, parts, (paid(even), paid(~even)))


def half_of_prompts(run: Run) -> np.ndarray:
    """The groups of every other prompt, (P,), or every other group where there is one prompt."""
    groups = np.arange(len(run.step_P))
    names = groups if run.prompt_P is None else pd.factorize(run.prompt_P)[0]
    return (names if names.any() else groups) % 2 == 0


def stretch(groups: int) -> float:
    """What makes deviations of resampled groups as wide as Student's t, of mean squares C / (C - 1)
    (Hesterberg 2015, see `analysis.statistics.bootstrap.widened`)."""
    if groups < 2:
        return 1.0
    return float((groups / (groups - 1)) ** 0.5 * stdtrit(groups - 1, 0.975) / 1.959964)


def _first(step_P: np.ndarray, has_both_P_G: np.ndarray) -> tuple[np.ndarray, str]:
    """The groups that a calibration rests on, and a note where they reach beyond the first tenth of
    the steps."""
    steps, at = np.unique(step_P, return_inverse=True)
    counts = np.bincount(at, has_both_P_G.sum(axis=1), len(steps))
    tenth = max(1, len(steps) // 10)
    enough = int(np.searchsorted(counts.cumsum(), ROLLOUTS)) + 1
    step_count = min(max(tenth, enough), max(tenth, len(steps) // 3))
    note = ""
    if step_count > tenth:
        note = f"calibrated on the first {step_count} steps: the first tenth has too few rollouts"
    return at < step_count, note
