"""The report's findings in sentences with their numbers, and what cannot be concluded, and why.

No sentence is about any particular study: every one is made from the tables of one `Evidence`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import binom

from analysis.audit import display as audit
from analysis.display.markup import bracket, listed, number, p_value, render_text, signed
from analysis.drift.figures import NO_REASON
from analysis.frozen.estimate import has_frozen
from analysis.ledger.display import lost_sentences, paid_sentences
from analysis.onset.overopt import place
from analysis.propagation.calibration import Calibration
from analysis.records.frames import NAMELESS
from analysis.report.evidence import Evidence
from analysis.report.tables import row_of, shifts_of
from analysis.statistics.looks import Look
from analysis.statistics.power import ALPHA
from study.cell.folder import CellFolder
from study.cell.timing import sentence, timing_of
from study.config.endpoints import REHEARSED
from study.screen import plural

"""Chance at which a sentence is said where nothing is behind it."""
EXPLAINED = 0.5
"""R2 over runs from which what was rewarded is said to explain a behaviour."""
FEW_PERCENT = 0.02
"""Share of the advantages below which an error is not named; a single run has no interval."""
_finding = partial(render_text, "findings")
MOST_NAMED = 3
"""Behaviours that an arm's comparison names."""
TURNS = 0.035
"""Share of straight lines of which the truth is seen to peak (docs/onset.md)."""
MOST_PAIRS = 2
"""Of behaviours of which one was given up for the other, that an arm's findings name."""


def findings(evidence: Evidence) -> list[str]:
    """What the study shows: its extent, each arm, missing verdicts, then how the errors got in."""
    lines = [extent(evidence), _rests(evidence)]
    for arm in evidence.arms:
        lines.append(_levels(evidence, arm))
        if evidence.base is not None and arm != evidence.base:
            lines.append(_against_base(evidence, arm))
    lines += [
        *_missing(evidence),
        *_advantages(evidence),
        *_lost_and_paid(evidence),
        *_explained(evidence),
        _begun(evidence),
        _peaks(evidence),
        *_inflated(evidence),
        *_overpaid(evidence),
        *substituted(evidence),
    ]
    return [line for line in lines if line]


def extent(evidence: Evidence) -> str:
    """How many runs, rollouts and verdicts there are."""
    cells, outcomes = evidence.cells, evidence.records.outcomes
    if cells.empty:
        return ""
    verdicts = int(outcomes["verdicts"].sum())
    unscored = int(outcomes.loc[outcomes["outcome"].ne("scored"), "verdicts"].sum())
    held_out = sum(run.frozen.rollouts for run in evidence.records.runs if run.frozen is not None)
    apart = f" {_finding('apart', answers=held_out)}" if held_out else ""
    counts = _finding(
        "extent",
        done=int(cells["done"].sum()),
        runs=len(cells),
        arms=plural(len(evidence.arms), "arm"),
        seeds=plural(cells["seed"].nunique(), "seed"),
        rollouts=sum(run.rollouts for run in evidence.records.runs),
        verdicts=verdicts,
        end=_end(verdicts, unscored),
    )
    audited = f" {audit.extent(evidence.audit)}" if evidence.audit else ""
    return counts + apart + audited


def spent(evidence: Evidence) -> str:
    """Where the time of the runs went; nothing where none says it."""
    timing = timing_of(
        [CellFolder(evidence.records.folder / cell) for cell in evidence.cells["cell"]]
    )
    return sentence(timing) if timing.runs else ""


def _end(verdicts: int, unscored: int) -> str:
    """How many verdicts have no score, as the end of a sentence."""
    if not unscored:
        return ", all of them scored." if verdicts else "."
    return f", {number(100 * unscored / verdicts)} % of them unscored."


def _rests(evidence: Evidence) -> str:
    """On what the arms are compared, where that could be frozen evaluation."""
    evaluated = [run for run in evidence.runs if has_frozen(run)]
    if not evaluated:
        return ""
    if evidence.effects.on == "rollouts":
        without_frozen = len(evidence.runs) - len(evaluated)
        return _finding(
            "not_frozen", without=without_frozen, runs=plural(len(evidence.runs), "run")
        )
    start = evaluated[0].frozen
    assert start is not None
    rows, answers = start.at(0).truth.shape
    return _finding("frozen", rows=rows, samples=plural(answers - 1, "drawn answer"))


def _levels(evidence: Evidence, arm: str) -> str:
    parts = []
    cells = evidence.cells
    runs = int(cells.loc[cells["cell"].isin(evidence.used_cells), "arm"].eq(arm).sum())
    for metric, label in (("judge_score", "the judge's score"), ("truth", "the rule truth")):
        row = row_of(evidence.score_shifts, arm, metric)
        if row is not None and not math.isnan(row["last"]):
            moved = f"{number(row['first'])} to {number(row['last'])}"
            parts.append(f"{label} went from {moved} ({_shift(row)})")
    gap = row_of(evidence.score_shifts, arm, "gap")
    if gap is not None and not math.isnan(gap["last"]):
        parts.append(f"judge minus truth ended at {number(gap['last'], True)}")
    if not parts:
        return f"{arm}: no score on record, so its training cannot be described."
    return f"{arm} ({plural(runs, 'run')}): {', '.join(parts)}."


def _against_base(evidence: Evidence, arm: str) -> str:
    """The gap and the truth, then the behaviours that differ beyond chance, by their size in SDs
    over all answers."""
    parts, pairs = [], [0]
    for metric, label in (("gap", "judge minus truth"), ("truth", "the rule truth")):
        row = row_of(evidence.score_shifts, arm, metric)
        if row is not None and row["pairs"] > 0:
            parts.append(f"{label} {_difference(row)}")
            pairs.append(int(row["pairs"]))
    shifts = shifts_of(evidence, arm)
    pairs += shifts["pairs"].astype(int).tolist()
    tested = int(shifts["p_holm"].notna().sum())
    alpha = Look(evidence.records.looks, max(pairs)).alpha
    clear = shifts[shifts["p_holm"] < alpha]
    sds = clear["metric"].map(evidence.spread).astype(float)
    by_size = clear.loc[
        (clear["diff"].astype(float) / sds).abs().sort_values(ascending=False).index
    ]
    named = [
        f"{_named(evidence, row['metric'])} {_difference(row)} {row['unit']} "
        f"(Holm p {p_value(row['p_holm'])})"
        for row in by_size.head(MOST_NAMED).to_dict("records")
    ]
    left = len(clear) - len(named)
    named += [f"and {left} more"] if left else []
    if tested and alpha:
        limit = f"{alpha:.2g}"[1:]
        differ = f"{len(clear)} of {plural(tested, 'behaviour')} differ at Holm p < {limit}"
        parts.append(f"{differ}: {', '.join(named)}" if named else differ)
    if not parts:
        return ""
    by_seed = plural(max(pairs), "pair")
    return f"{arm} beyond {evidence.base} ({by_seed} by seed): {'; '.join(parts)}."


def _missing(evidence: Evidence) -> Iterator[str]:
    for row in evidence.failures[evidence.failures["unscored"] > 0].to_dict("records"):
        counts = {name: count for name, count in row.items() if name not in NO_REASON and count}
        reasons = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        named = {name: row[name] for name in ("judge", "role", "verdicts")}
        yield _finding("missing", percent=100 * row["unscored"], reasons=reasons, **named)


def _advantages(evidence: Evidence) -> Iterator[str]:
    """How much of the advantages the judge's bias made, of the arms whose interval does not
    hold 0; then the errors that no behaviour is paid for."""
    by_metric = dict(list(evidence.ledger_by_arm.groupby("metric")))
    shares = by_metric.get("bias_share", evidence.ledger_by_arm.iloc[:0])
    clear_shares = shares[(shares["mean"] >= FEW_PERCENT) & ~(shares["low"] <= 0)]
    by_arm = [
        f"{row['arm']} {number(100 * row['mean'])} % "
        f"{bracket(100 * row['low'], 100 * row['high'])}".strip()
        for row in clear_shares.sort_values("mean", ascending=False).to_dict("records")
    ]
    if by_arm:
        yield _finding("advantages", shares=", ".join(by_arm))
    others = defaultdict(list)
    for part in ("compression", "clip", "noise"):
        for row in by_metric.get(f"share/{part}", shares.iloc[:0]).to_dict("records"):
            if row["mean"] >= FEW_PERCENT and not row["low"] <= 0:
                name = {"clip": "the ends of the scale"}.get(part, part)
                others[row["arm"]].append(f"{name} {number(100 * row['mean'])} %")
    if others:
        errors = "; ".join(f"{arm} {', '.join(parts)}" for arm, parts in others.items())
        yield _finding("errors", shares=errors)


def _lost_and_paid(evidence: Evidence) -> Iterator[str]:
    """What missing verdicts took of the truth's push, and what scores do at equal truth."""
    for sentences in (lost_sentences, paid_sentences):
        yield from sentences(evidence.ledger_by_arm, evidence.spread, evidence.same)


def _explained(evidence: Evidence) -> Iterator[str]:
    """What of the behaviours that moved the advantages explain over runs, are consistent with, or
    do not account for.

    They explain a behaviour where the step size of *other arms* gives its shifts better than the
    arm's other runs repeat them: else nothing was told that repetition does not tell.
    """
    moved = [
        line
        for line in evidence.calibration
        if line.scores.r2 == line.scores.r2 and evidence.moved.get(line.feature, 1.0) < ALPHA
    ]
    fitting = sorted(
        (line for line in moved if line.scores.r2 >= EXPLAINED), key=lambda line: -line.scores.r2
    )
    explained = [line for line in fitting if _beats_repetition(line)]
    consistent = [line for line in fitting if not _beats_repetition(line)]
    others = [
        f"{line.feature} (R2 {line.scores.r2:.2f})" for line in moved if line.scores.r2 < EXPLAINED
    ]
    for name, lines in (("explained", explained), ("consistent", consistent)):
        if lines:
            yield _finding(name, behaviours="; ".join(map(_fitted, lines)))
    if others:
        yield _finding("unaccounted", behaviours=", ".join(others))


def _beats_repetition(line: Calibration) -> bool:
    """Whether the step size of other arms does well, and better than repeating where an arm has
    runs to repeat."""
    return line.unseen.r2 >= EXPLAINED and not line.unseen.r2 <= line.r2_repeated


def _fitted(line: Calibration) -> str:
    return _finding(
        "explained_behaviour",
        feature=line.feature,
        r2=line.scores.r2,
        runs=line.scores.count,
        unseen=number(line.unseen.r2),
        repeated=number(line.r2_repeated),
    )


def _begun(evidence: Evidence) -> str:
    """When the gap began to rise, by arm, and how many such runs chance alone would show.

    Runs without a rise show one in `ALPHA` of cases each. As many as come by chance in `ALPHA` of
    studies (binomial) are no finding.
    """
    tested = sum(line.onset.p == line.onset.p for line in evidence.onsets)
    rising = sum(math.isfinite(line.onset.step.value) for line in evidence.onsets)
    if not rising:
        return ""
    by_chance = _finding("onsets_by_chance", runs=plural(tested, "run"), n=number(ALPHA * tested))
    if binom.sf(rising - 1, tested, ALPHA) >= ALPHA:
        return _finding("no_onset", rising=plural(rising, "run"), by_chance=by_chance)
    by_arm = []
    for arm in dict.fromkeys(line.arm for line in evidence.onsets):
        steps = [line.onset.step for line in evidence.onsets if line.arm == arm]
        begun = [step for step in steps if math.isfinite(step.value)]
        if begun:
            by_arm.append(
                _finding(
                    "onset_of_arm",
                    arm=arm,
                    steps=_steps([step.value for step in begun]),
                    begun=len(begun),
                    runs=len(steps),
                    reach=_steps([end for step in begun for end in (step.low, step.high)]),
                )
            )
    return _finding("onset", arms=", ".join(by_arm), by_chance=by_chance)


def _steps(steps: Sequence[float]) -> str:
    """One step, or the first and the last of several."""
    first, last = f"{min(steps):.0f}", f"{max(steps):.0f}"
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _peaks(evidence: Evidence) -> str:
    """Where the truth turns down, of the runs that a straight line does not fit as well.

    Of straight lines `TURNS` seem to. As many as come by chance in `ALPHA` of studies (binomial)
    are no finding.
    """
    fitted = [row for row in evidence.overoptimisation if row["best"] and row["score"] == "truth"]
    peaks = [
        f"{row['arm']} seed {row['seed']} {place(row['best']['peak'])} "
        f"[{place(row['low'])}, {place(row['high'])}]"
        for row in fitted
        if row["turns"]
    ]
    if not peaks:
        return ""
    of, runs = plural(len(peaks), "run"), plural(len(fitted), "run")
    by_chance = _finding("peaks_by_chance", runs=runs, n=number(TURNS * len(fitted)))
    if binom.sf(len(peaks) - 1, len(fitted), TURNS) >= ALPHA:
        return _finding("no_peak", turning=of, by_chance=by_chance)
    return _finding("peaks", peaks=", ".join(peaks), by_chance=by_chance)


def _inflated(evidence: Evidence) -> Iterator[str]:
    """What each arm gained with its own judge beside what it gained with others."""
    for row in evidence.inflation:
        gain = row.inflation
        if math.isfinite(gain.value) and row.reading:
            yield (
                f"{row.arm} gained {number(row.own)} with its own judge and {number(row.others)} "
                f"with others ({signed(gain)} over {row.runs} runs): "
                f"{row.reading}."
            )


def _overpaid(evidence: Evidence) -> Iterator[str]:
    """Which operators each judge pays for beyond the truth, beside what is planted."""
    for arm, programs in (evidence.workflow.arms if evidence.workflow else {}).items():
        parts = []
        for name, each in programs.operators.items():
            slope = each.over_reward
            if slope.low > 0 or slope.high < 0:
                planted = f", planted {number(each.planted.value, True)}" if each.planted else ""
                parts.append(f"{name} {signed(slope)}{planted}")
        if parts:
            yield _finding("overpaid", arm=arm, operators="; ".join(parts))


def substituted(evidence: Evidence) -> list[str]:
    """Behaviours given up for others: of each arm the `MOST_PAIRS` first pairs, and how many more
    there are."""
    pairs = {}
    for pair in evidence.substitutions:
        risen, fallen = (evidence.same.get(name, name) for name in (pair.risen, pair.fallen))
        pairs.setdefault((pair.arm, risen, fallen), pair)
    by_arm = defaultdict(list)
    for pair in pairs.values():
        by_arm[pair.arm].append(
            _finding(
                "substituted",
                pair=pair,
                fall=-pair.down,
                arms=plural(pair.arms, "arm"),
                chance=number(pair.chance),
            )
        )
    sentences = []
    for arm, arm_sentences in by_arm.items():
        sentences += arm_sentences[:MOST_PAIRS]
        if (more := len(arm_sentences) - MOST_PAIRS) > 0:
            sentences.append(_finding("more_substituted", arm=arm, pairs=plural(more, "pair")))
    return sentences


def _named(evidence: Evidence, behaviour: str) -> str:
    """A behaviour with those that go with it and are not counted beside it."""
    others = [name for name, first in evidence.same.items() if first == behaviour]
    return f"{behaviour} (and {', '.join(others)} with it)" if others else behaviour


def _shift(row: dict[str, Any]) -> str:
    if math.isnan(row["shift"]):
        return "one step, so no shift"
    interval = bracket(row["low"], row["high"])
    moved = number(row["shift"], True)
    return f"{moved} {interval}" if interval else f"{moved}, {row['note']}"


def _difference(row: dict[str, Any]) -> str:
    interval = bracket(row["diff_low"], row["diff_high"]) or "(one pair, no interval)"
    return f"{number(row['diff'], True)} {interval}"


FEW_SEEDS = 5
"""Up to this many seeds no sign-flip test over seeds can reach p < .05."""
SMALL_JUDGE = 1e9
"""Parameters below which a real judge shows the path, and nothing about judging quality."""
_limit = partial(render_text, "limits")


def limits(evidence: Evidence) -> list[str]:
    """What cannot be concluded from this study, and why."""
    if evidence.cells.empty:
        return [_limit("no_run")]
    lines = [
        *_of_runs(evidence),
        *_of_seeds(evidence),
        *_of_scores(evidence),
        *_of_judges(evidence),
    ]
    if unread := evidence.records.problems:
        lines.append(_limit("unread", count=len(unread)))
    return [*lines, *_of_the_path(evidence)]


def _of_runs(evidence: Evidence) -> Iterator[str]:
    """Runs that are not finished, and steps that were lost."""
    cells = evidence.cells
    unfinished = cells[~cells["done"]]
    if len(unfinished) == len(cells):
        yield _limit("no_run_finished")
    elif len(unfinished):
        counts = unfinished["state"].value_counts().items()
        states = ", ".join(f"{count} {state}" for state, count in counts)
        yield _limit("some_unfinished", unfinished=len(unfinished), runs=len(cells), states=states)
    for run in evidence.runs:
        recorded, steps = len(np.unique(run.step_P)), len(run.steps)
        if recorded < steps:
            yield _limit("steps_lost", cell=run.cell, recorded=recorded, steps=steps)


def _of_seeds(evidence: Evidence) -> Iterator[str]:
    """Too few runs of an arm, or one arm alone."""
    used_rows = evidence.cells[evidence.cells["cell"].isin(evidence.used_cells)]
    seeds = used_rows.groupby("arm")["seed"].nunique()
    if len(seeds) and seeds.min() == 1:
        yield _limit("one_run", arms=listed(sorted(seeds[seeds == 1].index)))
    if len(seeds) and 1 < seeds.max() <= FEW_SEEDS:
        n = int(seeds.max())
        yield _limit("few_seeds", n=n, p=2 / 2**n)
    if len(evidence.arms) == 1:
        yield _limit("one_arm", arm=evidence.arms[0])


def _of_scores(evidence: Evidence) -> Iterator[str]:
    """Scores, truths and answers that are missing, and scores that never differ."""
    runs = evidence.records.runs
    if not runs:
        yield _limit("no_rollout")
        return
    if not any(np.isfinite(run.truth).any() for run in runs):
        yield _limit("no_truth", study=evidence.name)
    if evidence.audit is not None and evidence.audit.is_truth:
        yield _limit("audited", who=audit.who(evidence.audit))
    for arm in sorted({run.arm for run in runs}):
        scores = np.concatenate([run.judge.ravel() for run in evidence.recorded(arm)])
        scores = scores[~np.isnan(scores)]
        if not scores.size:
            yield _limit("unscored", arm=arm)
        elif scores.min() == scores.max():
            yield _limit("constant", arm=arm, score=number(float(scores[0])))
    answered = sum(int(np.isfinite(run.features[..., 0]).sum()) for run in runs)
    unanswered = 1 - answered / sum(run.rollouts for run in runs)
    if unanswered > 0:
        yield _limit("no_answer", percent=100 * unanswered)


def _of_judges(evidence: Evidence) -> Iterator[str]:
    """Judges that say nothing about judging: simulated ones and very small ones."""
    cells = evidence.cells
    judges = cells[cells["judge"].ne(NAMELESS)].drop_duplicates("judge")
    simulated = judges.loc[judges["simulated"], "judge"]
    if len(simulated):
        noun = "is a simulated judge" if len(simulated) == 1 else "are simulated judges"
        yield _limit("simulated", judges=f"{listed(sorted(simulated))} {noun}")
    rehearsed = judges.loc[judges["judge_revision"].eq(REHEARSED), "judge"]
    if len(rehearsed):
        yield _limit("rehearsed", judges=listed(sorted(rehearsed)))
    for judge in judges[~judges["simulated"]].to_dict("records"):
        size = parameters(judge["judge_size"])
        if size is not None and size < SMALL_JUDGE:
            model = " ".join(filter(None, [judge["judge_family"], judge["judge_size"]]))
            yield _limit("small_judge", judge=judge["judge"], model=model)


def _of_the_path(evidence: Evidence) -> Iterator[str]:
    """What the way from verdict to behaviour cannot show."""
    if not evidence.runs:
        return
    if evidence.no_prediction:
        yield _limit("no_prediction", why=evidence.no_prediction)
    fits = evidence.overoptimisation
    if fits and not any(row["best"] for row in fits):
        yield _limit("no_fit", why="; ".join(sorted({row["note"] for row in fits})))
    if not any(run.shadows for run in evidence.runs):
        yield _limit("one_judge")
    if evidence.no_substitution:
        yield evidence.no_substitution


def parameters(size: str) -> float | None:
    """``135M`` -> 1.35e8, ``7B`` -> 7e9; None where the text is not a size."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kKmMbBtT])\s*", size)
    if match is None:
        return None
    return float(match[1]) * {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[match[2].lower()]
