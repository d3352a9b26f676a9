"""What of a cell somebody should look at, since when, and what to type.

A judge that gives half of the truth shows a gap that rises where the truth falls, and rewards no
behaviour. How much of a cell's gap its judge would show by itself is read from the rollouts of the
first steps, in NumPy alone: `analysis.ledger.judge_error` has the curve. Later steps are known by
their mean truth alone, so where slopes differ by row the most that is explained is more.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from analysis.ledger.row_slopes import own_slopes, shrunken
from analysis.statistics.sequence import FEWEST as FEWEST_STEPS
from analysis.statistics.sequence import e_value, running_mean
from experiments.monitor.read import Alarm, Rise, View, on_this_host
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.command_names import study_words, typed
from study.features import measured
from study.system.files import Damaged

FEWEST, MOST = 64, 512
"""Rollouts with score and truth that a slope takes, and how many of the first are looked at."""
BINS = 20
"""Truths between 0 and 1 that are told apart."""
MOST_TILTED = 100.0
HALVINGS = 40
DOUBT = 1.8
"""Standard errors of the slope that are explained too: t at 95 %, one-sided, with some to spare."""
SPREAD = 0.75
"""Standard deviations of slopes between rows that count as errors of the slope: which rows the
truth moves in is not known."""
_COLUMNS = ["step", "group", "truth", "judge_score", "answer"]


@dataclass(frozen=True)
class Curve:
    """Mean score of each of Q truths, less what behaviours and the groups' levels make of it."""

    truth_Q: np.ndarray
    score_Q: np.ndarray
    share_Q: np.ndarray
    """Of the rollouts that it rests on."""
    se: float
    """Of its slope, with what is not known of where the truth moves."""
    beyond: float = 0.0
    """Mean slope of rows beyond the one within groups."""

    def explained(self, truth_T: np.ndarray) -> np.ndarray:
        """The most that the gap rises by itself where the mean truth is each of T.

        The shares move as a policy moves them that is paid for the truth, exponentially in it.
        """
        start = float(self.share_Q @ self.truth_Q)
        away_Q = self.truth_Q - start
        low_T, high_T = np.full(len(truth_T), -MOST_TILTED), np.full(len(truth_T), MOST_TILTED)
        shares_T_Q = np.tile(self.share_Q, (len(truth_T), 1))
        for _ in range(HALVINGS):
            tilt_T = (low_T + high_T) / 2
            weights_T_Q = self.share_Q * np.exp(tilt_T[:, None] * away_Q)
            shares_T_Q = weights_T_Q / weights_T_Q.sum(axis=1, keepdims=True)
            below_T = shares_T_Q @ self.truth_Q < truth_T
            low_T, high_T = np.where(below_T, tilt_T, low_T), np.where(below_T, high_T, tilt_T)
        rise_T = (shares_T_Q - self.share_Q) @ (self.score_Q - self.truth_Q)
        moved_T = truth_T - start
        return rise_T + self.beyond * moved_T + DOUBT * self.se * np.abs(moved_T)


def explained(
    truths: Sequence[tuple[int, float]], folder: CellFolder, first: int, keyword: str
) -> dict[int, float]:
    """By step, how much of the gap is explained. Without a curve a rise is, by as much as the truth
    fell: the judge may not look at the truth at all.

    Args:
        truths: step and mean truth.
        folder: the cell's.
        first: the last of the first steps.
        keyword: what the behaviour of this name counts.
    """
    if (curve := curve_of(folder, first, keyword)) is not None:
        by_itself_T = curve.explained(np.array([truth for _, truth in truths]))
        return {step: float(one) for (step, _), one in zip(truths, by_itself_T, strict=True)}
    start = [truth for step, truth in truths if step <= first]
    usual = math.fsum(start) / len(start) if start else 0.0
    return {step: max(0.0, usual - truth) for step, truth in truths}


@lru_cache(maxsize=1024)
def curve_of(folder: CellFolder, first: int, keyword: str) -> Curve | None:
    """The curve of a cell's steps up to ``first``; None where its rollouts do not tell it."""
    rows = []
    for part in folder.parts("rollouts"):
        if part.step > first or len(rows) >= MOST:
            break
        try:
            rows += read_part(part, _COLUMNS).to_pylist()
        except Damaged:
            return None
    rows = [row for row in rows if None not in (row.get(name) for name in _COLUMNS)]
    if len(rows) < FEWEST:
        return None
    names = [(row["step"], row["group"]) for row in rows]
    _, group = np.unique(names, axis=0, return_inverse=True)
    scores, truths = (np.array([row[key] for row in rows]) for key in ("judge_score", "truth"))
    features = measured([row["answer"] for row in rows], keyword)
    return fitted(scores, truths, features, group.ravel())


def fitted(
    score_N: np.ndarray, truth_N: np.ndarray, features_N_K: np.ndarray, group_N: np.ndarray
) -> Curve | None:
    """Least squares within groups, CR1 by group; None where the truth does not vary in them."""
    columns = np.column_stack([truth_N, features_N_K, score_N])
    sums = np.zeros((group_N.max() + 1, columns.shape[1]))
    np.add.at(sums, group_N, columns)
    counts = np.bincount(group_N)
    within = columns - (sums / counts[:, None])[group_N]
    size = np.sqrt((within**2).mean(axis=0))
    if size[0] < 1e-6:
        return None
    varies = size[:-1] > 1e-6
    x = within[:, :-1][:, varies] / size[:-1][varies]
    inverse = np.linalg.pinv(x.T @ x)
    slope_K = inverse @ (x.T @ within[:, -1])
    pulls = np.zeros((len(counts), x.shape[1]))
    np.add.at(pulls, group_N, x * (within[:, -1] - x @ slope_K)[:, None])
    free, rows = max(1, len(x) - len(counts) - x.shape[1]), len(counts)
    factor = rows / max(1, rows - 1) * (len(x) - rows) / free
    se = (factor * ((pulls @ inverse[0]) ** 2).sum()) ** 0.5 / size[0]
    means = (sums / counts[:, None] - columns.mean(axis=0))[:, np.append(varies, True)]
    steep_K = np.append(-slope_K / size[:-1][varies], 1.0)
    away = means[:, 0] * counts
    of_group = away @ (means @ steep_K) / max(away @ means[:, 0], 1e-12)
    centred = (columns - columns.mean(axis=0))[:, np.append(varies, True)]
    steep_K[0] = 0.0
    rest_N = score_N.mean() + centred @ steep_K - of_group * means[group_N, 0]
    place = np.unique((truth_N * BINS).round(), return_inverse=True)[1]
    rows_Q = np.bincount(place)
    truth_Q, score_Q = (np.bincount(place, values) / rows_Q for values in (truth_N, rest_N))
    by_group = np.column_stack([truth_N, rest_N - score_Q[place]])
    of_groups = np.stack([np.bincount(group_N, column) for column in by_group.T], axis=1)
    x_N, y_N = (by_group - (of_groups / counts[:, None])[group_N]).T
    own, precision = own_slopes(x_N, y_N, group_N, rows)
    rates = of_groups[:, 0] / counts
    slopes, sd = shrunken(own, precision, rates, np.ones((1, rows)))
    doubt = float(np.hypot(se, SPREAD * sd[-1]))
    return Curve(truth_Q, score_Q, rows_Q / len(rest_N), doubt, float(slopes[0, -1]))


IN_A_ROW = 5
"""Steps that an alarm about the training looks at together."""
FIRST_STEPS, FIRST_SHARE = 8, 0.2
"""The first steps of a run, whose gap is its usual one: so many, or this share of all its steps."""
RISE, RISE_SD = 0.05, 2.0
"""A gap has risen from this much above its usual one on, and this many standard deviations of the
first steps."""
MOST_EVIDENCE = 1e12
"""An e-value is not told apart beyond this."""
STARVED = 0.5
"""Share of ``judge.max_unscored_frac`` from which a judge is starved."""
FEW_MISSING = 0.02
"""Share of missing verdicts below which nobody looks at what they take away."""
TRUNCATED = 0.25
"""Share of completions cut at ``trainer.max_completion_length`` that is too many."""
DEAD = 1 - 1e-9


def alarms(view: View, runs_dir: str = "runs") -> list[Alarm]:
    """The alarms of one cell, those about its life first.

    Args:
        runs_dir: as it is typed to find the study.
    """
    study = study_words(view.folder.study_dir.name, runs_dir)
    rules: list[Callable[[View, str], Alarm | None]] = [_ended, _stalled]
    if view.state in ("running", "killed", "failed"):
        rules += [_starved, _lost_push, _truncated, _no_signal]
    rules.append(_gap)
    checked = [rule(view, study) for rule in rules]
    raised = [alarm for alarm in checked if alarm is not None]
    return [replace(alarm, cell=view.cell, type=typed(alarm.type)) for alarm in raised]


class Rings:
    """Which alarms are to be told: each once, and again only where it had passed meanwhile. The
    step since which one lasts may move, and makes no other alarm of it."""

    def __init__(self) -> None:
        self._last: set[tuple[str, str]] = set()
        """Cell and kind of those that lasted when this was asked last."""

    def new(self, present: Sequence[Alarm]) -> list[Alarm]:
        """Those of the present alarms that were not there the last time."""
        before, self._last = self._last, {(alarm.cell, alarm.kind) for alarm in present}
        return [alarm for alarm in present if (alarm.cell, alarm.kind) not in before]


def _ended(view: View, study: str) -> Alarm | None:
    """A cell that ended before its time."""
    if view.state not in ("failed", "killed"):
        return None
    error = str(view.status.get("error") or "") if view.state == "failed" else ""
    why = f": {' '.join(error.split())[:300]}" if error else ""
    sentence = f"ended at step {view.step}{_of(view.steps)}{why}"
    ended = view.status.get("ended") if view.state == "failed" else None
    when = ended or view.status.get("beat")
    again = f"python -m experiments.train cell={shlex.quote(str(view.folder))}"
    return Alarm("", view.state, _sentence(sentence), again, since_time=when)


def _stalled(view: View, study: str) -> Alarm | None:
    if not view.stalled or view.beat_age_s is None:
        return None
    host, pid = view.status.get("host", "?"), view.status.get("pid", "?")
    phase = f" while {view.phase}" if view.phase else ""
    sentence = (
        f"no heartbeat for {view.beat_age_s:.0f} s{phase} after step {view.step}"
        f"{_of(view.steps)}; {view.silent_limit_s:.0f} s are normal (process {pid} on {host})."
    )
    restart = f"python -m experiments.monitor {study} restart=true"
    if not on_this_host(view):
        restart = f"ssh {shlex.quote(str(host))}, and there: {restart}"
    return Alarm("", "stalled", sentence, restart, since_time=view.status.get("beat"))


def _starved(view: View, study: str) -> Alarm | None:
    most = view.config.get("judge.max_unscored_frac")
    most = float(most) if isinstance(most, int | float) else 0.5
    shares = view.series.get("judge/unscored_frac", [])
    limit = STARVED * most
    since = _since(shares, lambda window: sum(window) / IN_A_ROW >= max(limit, 1e-9))
    if since is None:
        return None
    recent = statistics.fmean(value for _, value in shares[-IN_A_ROW:])
    sentence = (
        f"{recent:.0%} of the judge's verdicts are missing over the last {IN_A_ROW} steps; at"
        f" {most:.0%} in one step the cell stops."
    )
    check = f"python -m judges.check judge={shlex.quote(view.judge or 'NAME')}"
    return Alarm("", "starved judge", sentence, check, since)


def _lost_push(view: View, study: str) -> Alarm | None:
    """Missing verdicts take away what the truth pushes on a behaviour."""
    shares = [value for _, value in view.series.get("judge/unscored_frac", [])[-IN_A_ROW:]]
    if len(shares) < IN_A_ROW or statistics.fmean(shares) < FEW_MISSING:
        return None
    from experiments.monitor.lost_push import lost_push

    config = view.config
    scale = str(config.get("trainer.scale_rewards") or "group")
    on_failure = str(config.get("judge.on_failure") or "unscored")
    keyword = str(config.get("judge.simulated.keyword") or "")
    if (gone := lost_push(view.folder, view.step, keyword, scale, on_failure)) is None:
        return None
    sentence = (
        f"missing verdicts took away {gone.lost / gone.push:.0%} of the truth's push on"
        f" {gone.behaviour} over the last {gone.steps} steps ({gone.lost:+.2f} of {gone.push:+.2f},"
        " covariance with the truth's advantages in SDs)."
    )
    return Alarm("", "lost push", sentence, f"python -m analysis.ledger {study}")


def _truncated(view: View, study: str) -> Alarm | None:
    shares = view.series.get("policy/truncated_frac", [])
    since = _since(shares, lambda window: sum(window) / IN_A_ROW >= TRUNCATED)
    if since is None:
        return None
    recent = statistics.fmean(value for _, value in shares[-IN_A_ROW:])
    length = view.config.get("trainer.max_completion_length")
    sentence = f"{recent:.0%} of the last completions are cut off at {length or 'their'} tokens."
    double = 2 * length if isinstance(length, int) else "N"
    other = shlex.quote(f"study={view.folder.study_dir.name}-2")
    longer = f"python -m experiments.sweep ... {other} trainer.max_completion_length={double}"
    return Alarm("", "truncation", sentence, longer, since)


def _no_signal(view: View, study: str) -> Alarm | None:
    """All groups of a domain, or of a run without domains, are dead."""
    dead = {}
    for domain in view.domains:
        series = view.series.get(f"domain/{domain}/frac_zero_std", [])
        if (since := _since(series, lambda window: min(window) >= DEAD)) is not None:
            dead[domain] = since
    confusion = f"python -m analysis.confusion {study} out=confusion.json"
    if dead:
        names = " and ".join(dead)
        sentence = (
            f"in {names} all rollouts of a group get the same reward, so the policy learns nothing"
            " there."
        )
        return Alarm("", "no signal", sentence, confusion, min(dead.values()))
    series = view.series.get("reward/frac_zero_std", [])
    since = _since(series, lambda window: min(window) >= DEAD)
    if since is None:
        return None
    sentence = "all rollouts of a group get the same reward, so the policy learns nothing."
    return Alarm("", "no signal", sentence, confusion, since)


def _gap(view: View, study: str) -> Alarm | None:
    by_itself, unexplained = _unexplained(view)
    if not unexplained or (risen := rise_of_gap(unexplained, view.steps or 0)) is None:
        return None
    gaps = view.series["bias/judge_minus_truth"]
    first = _first_steps(view.steps or 0)
    usual = statistics.fmean(gap for step, gap in gaps if step <= first)
    recent = gaps[-IN_A_ROW:]
    now = statistics.fmean(gap for _, gap in recent)
    sentence = f"judge - truth rose from {usual:+z.2f} in the first steps to {now:+z.2f}"
    part = statistics.fmean(by_itself.get(step, 0.0) for step, _ in recent)
    if part >= 0.005:
        sentence += f", {part:.2f} of it expected from the judge's first scores"
    return Alarm("", "gap onset", f"{sentence}.", f"python -m analysis.onset {study}", risen[0])


def _unexplained(view: View) -> tuple[dict[int, float], list[tuple[int, float]]]:
    """By step, how much of the gap is expected, and step and gap less that; nothing before the
    first steps are over."""
    gaps, truths, audited = (
        view.series.get(name, [])
        for name in ("bias/judge_minus_truth", "truth/mean", "truth/audited")
    )
    first = _first_steps(view.steps or 0)
    if not gaps or gaps[-1][0] <= first:
        return {}, []
    keyword = str(view.config.get("judge.simulated.keyword") or "")
    by_itself = explained(truths or audited, view.folder, first, keyword)
    return by_itself, [(step, gap - by_itself.get(step, 0.0)) for step, gap in gaps]


def rise(view: View) -> Rise | None:
    """By how much the gap of all later steps is above that of the first; None where these, or the
    later ones, are too few to tell. What the first steps may be off by is in its interval."""
    _, unexplained = _unexplained(view)
    last = _first_steps(view.steps or 0)
    first = [gap for step, gap in unexplained if step <= last]
    later = [gap for step, gap in unexplained if step > last]
    if len(first) < FIRST_STEPS or len(later) < FEWEST_STEPS:
        return None
    usual = statistics.fmean(first)
    off = DOUBT * statistics.stdev(first) / len(first) ** 0.5
    mean, low, high = running_mean([gap - usual for gap in later])
    evidence = e_value([gap - usual for gap in later], off)
    return Rise(mean, low - off, high + off, min(evidence, MOST_EVIDENCE))


def _first_steps(steps: int) -> int:
    """The last of the first steps of a run, whose gap is its usual one."""
    return max(FIRST_STEPS, math.ceil(FIRST_SHARE * steps))


def rise_of_gap(gaps: Sequence[tuple[int, float]], steps: int) -> tuple[int, float, float] | None:
    """Since which step the gap is above that of the run's first steps, the gap there, and now.

    The first steps are `FIRST_STEPS`, or `FIRST_SHARE` of the run where that is more. The gap has
    risen where the mean of `IN_A_ROW` steps in a row is more than `RISE`, and more than `RISE_SD`
    standard deviations of the first steps, above the mean of these. It is a quick look at step
    means: `analysis.onset` has the estimate with an interval.

    Args:
        gaps: step and judge - truth, less what the judge shows by itself, in order of the steps.
        steps: of the whole run; 0 where unknown.
    """
    first = [gap for step, gap in gaps if step <= _first_steps(steps)]
    later = list(gaps[len(first) :])
    if len(first) < FIRST_STEPS:
        return None
    usual = statistics.fmean(first)
    limit = usual + max(RISE, RISE_SD * statistics.stdev(first))
    since = _since(later, lambda window: sum(window) / IN_A_ROW > limit)
    if since is None:
        return None
    return since, usual, statistics.fmean(gap for _, gap in later[-IN_A_ROW:])


def _since(
    series: Sequence[tuple[int, float]], bad: Callable[[Sequence[float]], bool]
) -> int | None:
    """First step of the `IN_A_ROW` with which the present stretch of bad windows began; None where
    the last window is not bad, or the steps are too few."""
    values = [value for _, value in series]
    since = None
    for start in range(len(values) - IN_A_ROW, -1, -1):
        if not bad(values[start : start + IN_A_ROW]):
            break
        since = series[start][0]
    return since


def _of(steps: int | None) -> str:
    return f" of {steps}" if steps else ""


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
