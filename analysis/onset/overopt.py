"""How far a judge can be followed: over-optimisation over sqrt(KL), and an alarm that stops a run.

Truth and judge of a run against d = sqrt(KL(policy || start)), fitted with the forms of Gao,
Schulman and Hilton (arXiv 2210.10760). Where the KL of a run was not recorded there is no d, and
that is said: nothing in a run's own log-probabilities alone tells it. docs/onset.md has the why.

`best_of_n` says what choosing by a judge would give without training. Expectations are exact over
all subsets of n of a group's rollouts, not simulated: sorted by score, the best of a subset falls
into a block of equal scores with a chance that is a ratio of binomial coefficients, and each
rollout of the block is as likely as any other. The policy that answers with the best of n is KL =
log n - (n - 1) / n nats from the one that answers (Gao, Schulman and Hilton, arXiv 2210.10760, as
for continuous scores; an upper bound where scores are equal: Beirami et al., arXiv 2401.01879).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.stats import norm

from analysis.display.markup import number
from analysis.planted.truth import Fault, simulate
from analysis.records.runs import Run, tenths
from analysis.statistics.bootstrap import step_noise
from analysis.statistics.estimate import (
    FLAT,
    LEVEL,
    NAN,
    NO_ESTIMATE,
    Estimate,
    group_sums,
    known_mean,
)
from analysis.statistics.intervals import mean_interval
from analysis.statistics.proportions import wilson

REPLICATES = 2_000
FEWEST_STEPS = 8
SLACK = 0.5
FALSE_ALARM = 0.05
SIMULATED = 20_000


@dataclass(frozen=True)
class Fit:
    """score = start + d (alpha - beta g(d)), g from `FORMS`; least squares over T steps."""

    form: str
    start: float
    alpha: float
    beta: float
    """NaN for the line, which has none."""
    aic: float
    peak: float
    """d of the highest point; inf where the curve still rises at the largest d seen."""


@dataclass(frozen=True)
class Overopt:
    """The better form of one run and score, and where it peaks, in sqrt(nats)."""

    fits: tuple[Fit, ...] = ()
    best: Fit | None = None
    """The form with the least AIC of the two that can turn down; the line is beside them."""
    peak: Estimate = NO_ESTIMATE
    """d of the best form's highest point, interval over resampled groups; inf is "not reached"."""
    reached: float = NAN
    """Share of the resampled curves that turn down before the largest d."""
    d_max: float = NAN
    note: str = ""
    turns: bool = False
    """Whether a turn is seen: a straight line fits worse, and the peak's interval lies between
    the start and the largest d."""


@dataclass(frozen=True)
class Kl:
    """KL of a run's policy from its start in nats per completion, and where it was taken from."""

    steps: np.ndarray
    kl: np.ndarray
    source: str


@dataclass(frozen=True)
class Rule:
    """A CUSUM alarm: the gap against the mean of the first ``baseline`` steps, in its SEs."""

    baseline: int
    limit: float
    slack: float = SLACK


FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rl": lambda d: np.log(np.maximum(d, 1e-12)),
    "bon": lambda d: d,
    "line": np.zeros_like,
}
"""g(d) of d (alpha - beta g(d)): log d for reinforcement learning, d for best-of-n, none."""


def fit(d_T: np.ndarray, score_T: np.ndarray, form: str) -> Fit:
    """One form by ordinary least squares: it is linear in start, alpha and beta.

    AIC = T log(RSS / T) + 2 (coefficients + 1), the variance being one parameter more.
    """
    solve, design = _solver(d_T, form)
    coefficients = solve @ score_T
    rss = float(((score_T - design @ coefficients) ** 2).sum())
    steps, bent = len(d_T), form != "line"
    # Residuals of rounding alone are a perfect fit, not the better of two such.
    floor = steps * (1e-12 * max(1.0, float(np.abs(score_T).max()))) ** 2
    aic = steps * float(np.log(max(rss, floor) / steps)) + 2 * (3 + bent)
    start, alpha, beta = coefficients.tolist()
    peak = float(_peaks(d_T, coefficients[None], form)[0])
    return Fit(form, start, alpha, beta if bent else NAN, aic, peak)


def overoptimisation(
    d_T: np.ndarray,
    step_P: np.ndarray,
    score_P_2: np.ndarray,
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Overopt:
    """Both forms fitted to a run's step means of a score, and an interval of the peak.

    The interval fits both forms again to step means of resampled groups and takes the better one's
    peak: it holds the doubt about the form, takes d as known, and is about this run alone.

    Args:
        d_T: sqrt(KL) of each step that occurs in ``step_P``, in order; NaN is unknown.
        step_P: the step of every group.
        score_P_2: sum of the score over each group's rollouts that have one, and their number.
    """
    usable = np.isin(step_P, np.unique(step_P)[np.isfinite(d_T)]) & (score_P_2[:, 1] > 0)
    d = d_T[np.isin(np.unique(step_P), step_P[usable])]
    rng = np.random.default_rng(seed)
    steps, means, errors, noise = step_noise(step_P[usable], score_P_2[usable], replicates, rng)
    d_max = float(d.max()) if len(d) else NAN
    if len(steps) < FEWEST_STEPS:
        why = f"{len(steps)} steps with a score and a KL, at least {FEWEST_STEPS} are needed"
        return Overopt(d_max=d_max, note=why)
    if np.ptp(d) < 1e-6 or len(np.unique(d)) < 4:
        return Overopt(d_max=d_max, note="the policy did not move away")
    fits = tuple(fit(d, means, form) for form in FORMS)
    best = min(fits[:2], key=lambda bent: bent.aic)
    notes, straight = [], fits[2].aic <= best.aic
    if straight:
        notes.append("a straight line fits as well: no turn is seen")
    if not np.isfinite(errors).all():
        notes.append("steps of one group: no interval")
        return Overopt(fits, best, Estimate(best.peak), NAN, d_max, "; ".join(notes))
    peaks = _refitted_peaks(d, means + noise, [bent.form for bent in fits[:2]])
    # Quantiles that are one of the replicates: between a peak and "not reached" lies nothing.
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low, high = np.quantile(peaks, tails, method="inverted_cdf")
    reached = float(np.isfinite(peaks).mean())
    peak = Estimate(best.peak, float(low), float(high), len(steps), "step")
    turns = not straight and peak.low > 0 and peak.high < np.inf
    return Overopt(fits, best, peak, reached, d_max, "; ".join(notes), bool(turns))


def _refitted_peaks(d_T: np.ndarray, scores_B_T: np.ndarray, forms: Sequence[str]) -> np.ndarray:
    """Peak (B,) of whichever form leaves the smaller squares for each row of step means."""
    squares, peaks = [], []
    for form in forms:
        solve, design = _solver(d_T, form)
        coefficients = scores_B_T @ solve.T
        squares.append(((scores_B_T - coefficients @ design.T) ** 2).sum(axis=1))
        peaks.append(_peaks(d_T, coefficients, form))
    better = np.argmin(squares, axis=0)
    return np.take_along_axis(np.array(peaks), better[None], axis=0)[0]


def _solver(d_T: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray]:
    """Pseudo-inverse (3, T) and design (T, 3) of one form: 1, d, - d g(d)."""
    design = np.stack([np.ones_like(d_T), d_T, -d_T * FORMS[form](d_T)], axis=1)
    return np.linalg.pinv(design), design


def _peaks(d_T: np.ndarray, coefficients_B_3: np.ndarray, form: str) -> np.ndarray:
    """d of the highest point of each curve over 0 .. largest d; inf where that is its end.

    Where beta > 0 a top inside is at alpha / (2 beta) for d (alpha - beta d) and at
    exp(alpha / beta - 1) for d (alpha - beta log d); else the higher end is the peak.
    """
    last = d_T.max()
    _, alpha, beta = coefficients_B_3.T
    ends = np.where(last * (alpha - beta * FORMS[form](last)) > 0, np.inf, 0.0)
    bends = beta > 0
    ratio = np.divide(alpha, beta, out=np.full_like(alpha, np.inf), where=bends)
    top = ratio / 2 if form == "bon" else np.exp(np.minimum(ratio - 1, 700.0))
    return np.where(bends & (top > 0) & (top < last), top, ends)


def kl_path(run: Run) -> Kl:
    """KL per step of one run, with the words for where it is from, or for why there is none.

    From the trainer's policy/kl (nats per token, measured where trainer.beta > 0) times the mean
    tokens of a completion; else from the start policy's log-probabilities of whole completions
    where the rollouts have them, see `_whole`. docs/onset.md says why in this order.
    """
    nothing = np.full(len(run.steps), np.nan)
    tokens = run.logged.get("policy/length_tokens", nothing)
    kl = run.logged.get("policy/kl", nothing) * tokens
    if (measured := np.isfinite(kl)).any():
        return Kl(run.steps[measured], np.maximum(kl[measured], 0.0), "policy/kl x tokens")
    if run.log_ratio is not None:
        steps = np.unique(run.step_P)
        ratios = [run.log_ratio[run.step_P == step] for step in steps]
        whole = np.array([_whole(ratio[np.isfinite(ratio)]) for ratio in ratios])
        return Kl(steps, whole, "log-probabilities of the start")
    why = (
        "no KL was recorded, so d = sqrt(KL) is unknown: neither policy/kl, which is measured "
        "where trainer.beta is above 0, nor log-probabilities under the start policy"
    )
    return Kl(np.empty(0, dtype=int), np.empty(0), why)


def _whole(r_N: np.ndarray) -> float:
    """KL from log policy - log start of whole completions; NaN of none.

    Their mean and the mean of exp(-r) - 1 + r are both unbiased. The second is less noisy below
    about a nat and never negative; beyond, a rare completion makes nearly all of it.
    """
    mean = known_mean(r_N)
    if np.isnan(mean):
        return mean
    return mean if mean > 1 else float((np.exp(-r_N) - 1 + r_N).mean())


def first_alarms(gap_N_T: np.ndarray, se_N_T: np.ndarray, rule: Rule) -> np.ndarray:
    """Index of the step at which the rule first says stop, of every run (N,); -1 for never.

    S = max(0, S + z - slack) from the end of the baseline on, z the gap less the baseline's mean
    in units of the standard error pooled over the steps so far; an alarm is S > limit.
    """
    over = _cusum(gap_N_T, se_N_T, rule.baseline, rule.slack) > rule.limit
    return np.where(over.any(axis=1), over.argmax(axis=1), -1)


@cache
def calibrated(steps: int, groups: int) -> Rule:
    """The rule that stops `FALSE_ALARM` of bias-free runs of this length, with normal noise.

    The baseline is the first fifth of the run, at least three steps. The limit is the quantile of
    the largest S over simulated runs whose gap is constant, its mean and standard error unknown.
    """
    rng, shape = np.random.default_rng(0), (SIMULATED, steps)
    baseline = max(3, steps // 5)
    se = np.sqrt(rng.chisquare(max(1, groups - 1), shape) / max(1, groups - 1))
    highest = _cusum(rng.standard_normal(shape), se, baseline, SLACK).max(axis=1)
    return Rule(baseline, float(np.quantile(highest, 1 - FALSE_ALARM)))


def doubt(refits_B_T: np.ndarray, rule: Rule) -> np.ndarray:
    """How much of each step's gap (T,) the doubt about a calibration may make: the gap that an
    alarm is about is less by this.

    The SDs of refits that an error of `FALSE_ALARM` takes, of their distance from the baseline;
    the error of a calibration stays all through a run, so it is no noise that steps average out.
    """
    moved = refits_B_T - refits_B_T[:, : rule.baseline].mean(axis=1, keepdims=True)
    margin = norm.ppf(1 - FALSE_ALARM) * moved.std(axis=0)
    return np.where(np.arange(len(margin)) < rule.baseline, 0.0, margin)


def bias_free_gaps(
    rng: np.random.Generator, runs: int, steps: int, groups: int, group: int, noise_sd: float = 0.3
) -> tuple[np.ndarray, np.ndarray]:
    """Gap means and their standard errors, each (runs, steps), of policies under a fair judge.

    The judge scores truth plus noise (`analysis.planted.truth`): the gap is that noise, whatever
    the policy learns.
    """
    means, errors = np.empty((runs, steps)), np.empty((runs, steps))
    for t in range(steps):
        data = simulate(rng, runs * groups, Fault(noise_sd=noise_sd), group=group)
        by_group = (data.judge - data.truth).mean(axis=1).reshape(runs, groups)
        means[:, t] = by_group.mean(axis=1)
        errors[:, t] = by_group.std(axis=1, ddof=1) / groups**0.5
    return means, errors


def false_alarms(rule: Rule, gaps: tuple[np.ndarray, np.ndarray]) -> Estimate:
    """Share of runs that the rule stops, with Wilson's 95 % interval."""
    stopped = int((first_alarms(*gaps, rule) >= 0).sum())
    return wilson(stopped, len(gaps[0]))


def _cusum(gap_N_T: np.ndarray, se_N_T: np.ndarray, baseline: int, slack: float) -> np.ndarray:
    """S of every run and step, 0 during the baseline; see `first_alarms`."""
    steps = gap_N_T.shape[1]
    start = gap_N_T[:, :baseline].mean(axis=1, keepdims=True)
    pooled = np.sqrt((se_N_T**2).cumsum(axis=1) / np.arange(1, steps + 1))
    above = gap_N_T - start
    above = np.where(np.abs(above) < FLAT, 0.0, above)
    z = np.divide(above, pooled, out=np.sign(above) * 1e9, where=pooled > 0)
    sums = np.zeros_like(gap_N_T)
    for t in range(baseline, steps):
        sums[:, t] = np.maximum(0.0, sums[:, t - 1] + z[:, t] - slack)
    return sums


def rows(run: Run) -> list[dict[str, Any]]:
    """Truth and judge of one run over d: cell, arm, seed, score, where d is from, `Overopt`."""
    kl = kl_path(run)
    by_step = dict(zip(kl.steps.tolist(), kl.kl.tolist(), strict=True))
    d = np.sqrt([by_step.get(step, NAN) for step in np.unique(run.step_P).tolist()])
    lines = []
    for name, scores in (("truth", run.levels(by_group=True)), ("judge", run.judge)):
        fitted = overoptimisation(d, run.step_P, group_sums(scores))
        note = fitted.note if len(kl.steps) else kl.source
        axes = {"cell": run.cell, "arm": run.arm, "seed": run.seed, "score": name}
        ends = {"low": fitted.peak.low, "high": fitted.peak.high}
        lines.append({**axes, "kl": kl.source, **asdict(fitted), **ends, "note": note})
    return lines


def place(value: float) -> str:
    """A peak for people: a number, or "not reached" where the curve still rises at the end."""
    return "not reached" if value == float("inf") else number(value)


@dataclass(frozen=True)
class BestOfN:
    """The best of n answers by one judge's score; intervals are 95 % t over prompts."""

    arm: str
    judge: str
    n: int
    kl: float
    """From the policy that answers, in nats per completion."""
    truth: Estimate = NO_ESTIMATE
    score: Estimate = NO_ESTIMATE
    """What the judge itself says of them."""
    gain: Estimate = NO_ESTIMATE
    """Truth beyond that of any one answer to the same prompt."""


def expected_best(score_G: np.ndarray, values_G_V: np.ndarray) -> np.ndarray:
    """Mean of V values of the best of n by score, n = 1 .. M, over all subsets: (M, V).

    Args:
        score_G: of a group's rollouts; of equally scored ones each is the best as often.
        values_G_V: rollouts without a score, or without one of these, are left out; M are left.
    """
    is_complete = np.isfinite(score_G) & np.isfinite(values_G_V).all(axis=1)
    blocks, member, sizes = np.unique(score_G[is_complete], return_inverse=True, return_counts=True)
    sums = np.zeros((len(blocks), values_G_V.shape[1]))
    np.add.at(sums, member, values_G_V[is_complete])
    of_blocks, upto = sums / sizes[:, None], np.cumsum(sizes)
    rollouts = int(is_complete.sum())
    best = np.empty((rollouts, values_G_V.shape[1]))
    for n in range(1, rollouts + 1):
        within = np.array([math.comb(count, n) / math.comb(rollouts, n) for count in [0, *upto]])
        best[n - 1] = np.diff(within) @ of_blocks
    return best


def best_of_n(runs: Sequence[Run]) -> list[BestOfN]:
    """E[truth | best of n by judge] of each arm, n = 1 .. G, by its own judge and by each shadow.

    The groups are those of the first tenth of each run's steps, as yet close to the initial policy.
    A prompt is the mean over its groups, of all runs of the arm, that have n rollouts with score
    and truth. A judge that scored none is left out.
    """
    by_arm: dict[tuple[str, str], dict[int, dict[Any, list[np.ndarray]]]] = {}
    for run in runs:
        start = run.where(np.isin(run.step_P, tenths(np.unique(run.step_P))[0]))
        for judge, scores in {**start.shadows, start.acting: start.judge}.items():
            by_n = by_arm.setdefault((run.arm, judge), {})
            for n, prompt, values in _of_groups(start, scores):
                by_n.setdefault(n, {}).setdefault(prompt, []).append(values)
    lines = []
    for (arm, judge), by_n in by_arm.items():
        for n, by_prompt in sorted(by_n.items()):
            truth, score, one = np.array([np.mean(v, axis=0) for v in by_prompt.values()]).T
            intervals = (mean_interval(each.tolist(), "prompt") for each in (truth, score))
            gain = mean_interval((truth - one).tolist(), "prompt")
            lines.append(BestOfN(arm, judge, n, math.log(n) - (n - 1) / n, *intervals, gain))
    return lines


def _of_groups(run: Run, scores_P_G: np.ndarray) -> Iterator[tuple[int, Any, np.ndarray]]:
    """n, the prompt, and truth, score and truth of one answer, (3,), for every n of every group."""
    names = [(run.cell, group) for group in range(len(run.step_P))]
    prompts = names if run.prompt_P is None else run.prompt_P.tolist()
    for prompt, score_G, truth_G in zip(prompts, scores_P_G, run.truth, strict=True):
        best = expected_best(score_G, np.stack([truth_G, score_G], axis=1))
        for n, (truth, score) in enumerate(best, start=1):
            yield n, prompt, np.array([truth, score, best[0, 0]])
