"""A study's records as arrays: one `Run` per cell, and its verdicts counted by outcome.

Cells are read one at a time, texts are dropped as soon as their features are counted, and a large
study is read by one process per core: ten million verdicts fit a laptop. `analysis.records.frames`
gives the same records as data frames, texts and all.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.records import policies
from analysis.records.audited import Reference, truth_of_all, with_reference
from analysis.records.consistency import disagreements
from analysis.records.frames import (
    NAMELESS,
    OPERATOR,
    has_column,
    judge_doses,
    plays,
    read_config,
    rollouts_frame,
    runs_frame,
    steps_frame,
    verdicts_frame,
)
from study.cell import merged
from study.cell.exchange import folder_of
from study.cell.folder import CellFolder
from study.cell.parts import parts
from study.cell.records import CORRECTED, EVALUATIONS, FEATURE, HELD_OUT, KINDS, OVERALL
from study.cell.signature import UNSIGNED, is_unsigned
from study.cell.verify import lost_steps
from study.config.identity import flatten, identifying
from study.errors import UserError
from study.features import FEATURES, measured, shared_keyword
from study.programs.endings import Ending
from study.progress import each
from study.screen import plural
from study.system.files import Damaged

LARGE = 64_000_000
"""Bytes on disk from which other processes are worth their start."""
OUTCOMES = ("cell", "judge", "role", "outcome", "words", "verdicts")
"""Columns of the counted verdicts; words is the length of the answer, NaN where unknown."""
TAIL = 0.1
"""Share of the recorded steps at each end that a shift compares."""
_WANTED = (
    *("rollout_id", "step", "group", "member", "domain", "advantage", "logprob_sum"),
    *policies.NEEDED,
)
REFERENCE = "component/reference_logprob"
"""Rollout column with the log-probability of the completion under the start policy."""


@dataclass(frozen=True, repr=False)
class Run:
    """One run as arrays: P groups of all steps together, G rollouts each, K features."""

    cell: str
    arm: str
    seed: int
    done: bool
    step_P: np.ndarray
    reward: np.ndarray
    """(P, G), as given to the trainer; NaN is a rollout without one, here and below."""
    advantage: np.ndarray
    truth: np.ndarray
    judge: np.ndarray
    """(P, G), the acting judge's score before the failure policy."""
    features: np.ndarray
    names: tuple[str, ...]
    """`study.features.FEATURES`; where every run of the study wrote programs also ``op/NAME``, an
    executed program's calls of an operator."""
    shadows: Mapping[str, np.ndarray] = field(default_factory=dict)
    scale: str = "group"
    on_failure: str = "unscored"
    under: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Failure policy -> the rewards that it would have made, (P, G): `analysis.records.policies`.
    """
    rollouts: int = 0
    """Rollouts on record. The arrays have a place for every member of every group."""
    unasked: int = 0
    """Those of them whose program came to no answer, so that no judge was asked."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The cell's resolved config, flat: ``trainer.beta`` and so on."""
    logged: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Metrics of ``metrics.jsonl`` by name, each (T,) as `steps`; NaN where it was not logged."""
    domain_P: np.ndarray | None = None
    """Domain of each group, "" for none; None where no row has one."""
    prompt_P: np.ndarray | None = None
    """Prompt id of each group."""
    text: np.ndarray | None = None
    """(P, G), a number for each answer, the same for equal texts."""
    held_out: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Domain -> step, 0 too -> accuracy on the held-out rows, where it was evaluated."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What makes the cell what it is: `study.config.identity.identifying` of its config."""
    corrected: np.ndarray | None = None
    """(P, G), what ``correction`` made of the judges' scores, which the rewards are made of; None
    where nothing was corrected."""
    log_ratio: np.ndarray | None = None
    """(P, G), log-probability of a completion under the policy minus under the start policy, in
    nats; None where the start policy's was not recorded."""
    reference: Reference | None = None
    """What the reference of the study's audit said; None where it was asked nothing."""
    frozen: Run | None = None
    """The answers to held-out rows: their groups by evaluated step, 0 too, the greedy one first and
    then those drawn; without reward and advantage. None where there are none."""

    def __repr__(self) -> str:
        steps = plural(len(np.unique(self.step_P)), "step")
        state = "done" if self.done else "not finished"
        return f"<Run {self.cell}: {self.arm}, {steps}, {self.rollouts:,} rollouts, {state}>"

    @property
    def steps(self) -> np.ndarray:
        """The T steps that the run made, shape (T,): all declared ones once it is done.

        A step of a finished run may have lost its records; an unfinished run ends where they end,
        and so does one that its alarm may have ended.
        """
        whole = self.done and not self.config.get("correction.stop")
        declared = int(self.config.get("trainer.steps") or 0) if whole else 0
        return np.union1d(self.step_P, np.arange(1, declared + 1)).astype(int)

    @property
    def acting(self) -> str:
        """Name of the judge that trained it."""
        return str(self.config.get("judge.name") or NAMELESS)

    @property
    def doses(self) -> dict[str, float] | None:
        """Feature -> dose of a simulated judge; None for a real judge."""
        return judge_doses(self.config)

    @property
    def told_P(self) -> np.ndarray | None:
        """Groups whose truth is known, where a reference told some; None where none did."""
        told = self.reference is not None and self.reference.truth_P.any()
        return np.asarray(np.isfinite(self.truth).any(axis=1)) if told else None

    def levels(self, by_group: bool = False) -> np.ndarray:
        """The truth for means over answers, (P, G): `analysis.records.audited.truth_of_all` where
        a reference was asked about some of them, else ``truth``."""
        if self.reference is None or self.told_P is None:
            return self.truth
        return truth_of_all(self.judge, self.truth, self.reference, by_group=by_group)

    def at(self, step: int) -> Run:
        """The groups of one step."""
        return self.where(self.step_P == step)

    def where(self, here: np.ndarray) -> Run:
        """The groups of which ``here``, shape (P,), is true."""
        arrays = ("step_P", "reward", "advantage", "truth", "judge", "features")
        arrays += tuple(
            n for n in ("domain_P", "prompt_P", "text", "corrected") if getattr(self, n) is not None
        )
        part: dict[str, Any] = {name: getattr(self, name)[here] for name in arrays}
        part["reference"] = None if self.reference is None else self.reference.where(here)
        part["shadows"] = {name: scores[here] for name, scores in self.shadows.items()}
        part["under"] = {
            policy: part["reward"] if rewards is self.reward else rewards[here]
            for policy, rewards in self.under.items()
        }
        return replace(self, **part)


@dataclass(frozen=True, repr=False)
class Records:
    """Everything numeric that a study has on record."""

    folder: Path
    table: pd.DataFrame
    """`analysis.records.frames.runs_frame`."""
    runs: list[Run]
    """Those that have rollouts, in the order of the table."""
    outcomes: pd.DataFrame
    """Verdicts counted: see `OUTCOMES`."""
    keyword: str
    problems: list[str]
    """Sentences on what could not be read."""
    looks: Sequence[int] = ()
    """Numbers of seeds at which results are looked at, as the study declared them; none is one
    look."""

    def __repr__(self) -> str:
        """``<Study quickstart: 3 arms, 3 seeds, 9 cells (9 done), /home/you/runs/quickstart>``"""
        counts = self.table["state"].value_counts()
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        extent = [
            plural(self.table["arm"].nunique(), "arm"),
            plural(self.table["seed"].nunique(), "seed"),
            plural(len(self.table), "cell") + (f" ({states})" if states else ""),
            *([plural(len(self.problems), "problem")] if self.problems else []),
        ]
        return f"<{type(self).__name__} {self.folder.name}: {', '.join(extent)}, {self.folder}>"


def read_study(study_dir: Path | str) -> Records:
    """Every run of a study that has rollouts, and every verdict counted.

    Shadow verdicts are averaged over votes; unscored votes are left out.
    """
    folder = folder_of(study_dir)
    table = runs_frame(folder)
    keyword = shared_keyword(table["keyword"])
    named = table["judge"].ne(NAMELESS)
    jobs = [(folder, table.iloc[[k]], keyword) for k in range(len(table)) if named[k]]
    lost = [
        f"{cell}: its config.yaml names no judge, so it is in no estimate"
        for cell in table.loc[~named, "cell"]
    ]
    size = sum(part.lstat().st_size for part in folder.glob("*/*/step*.parquet"))
    cells = on_each_core(_read_cell, jobs, size)
    counted = [cell.outcomes for cell in cells if len(cell.outcomes)]
    runs = [run for cell in cells for run in cell.runs]
    unread = [problem for cell in cells for problem in cell.problems]
    if len({run.names for run in runs}) > 1:
        runs = [_of_texts(run) for run in runs]
    empty = pd.DataFrame(columns=list(OUTCOMES))
    return Records(
        folder,
        table,
        runs,
        pd.concat(counted, ignore_index=True) if counted else empty,
        keyword,
        [
            *(*table.attrs["problems"], *lost),
            *(problem for problem in unread if problem != UNSIGNED),
            *([UNSIGNED] if UNSIGNED in unread else []),
        ],
        table.attrs["looks"],
    )


def _of_texts(run: Run) -> Run:
    """A run with the features that every answer has."""
    frozen = None if run.frozen is None else _of_texts(run.frozen)
    features = run.features[..., : len(FEATURES)]
    return replace(run, features=features, names=FEATURES, frozen=frozen)


def step_means(run: Run, values_P_G: np.ndarray) -> np.ndarray:
    """Mean of the known values of every step, shape (T,); NaN where none is known."""
    steps = run.steps
    at = np.searchsorted(steps, run.step_P)
    finite = np.isfinite(values_P_G)
    count = np.bincount(at, finite.sum(axis=1), len(steps))
    total = np.bincount(at, np.where(finite, values_P_G, 0.0).sum(axis=1), len(steps))
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


def tenths(of_steps_T: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last tenth (rounded up) of what has one entry for each step, in order."""
    window = math.ceil(len(of_steps_T) * TAIL)
    return of_steps_T[:window], of_steps_T[len(of_steps_T) - window :]


def ends(values_T: np.ndarray) -> tuple[float, float]:
    """Means of the first and the last tenth of the steps; NaN where none is known."""
    parts = tenths(values_T)
    first, last = (float(np.nanmean(p)) if np.isfinite(p).any() else math.nan for p in parts)
    return first, last


def shift(values_T: np.ndarray) -> float:
    """How far a run moved: the mean of its last tenth of the steps minus that of the first.

    NaN for a single step, and where the first or the last tenth holds no value at all.
    """
    first, last = ends(values_T)
    return last - first if len(values_T) > 1 else math.nan


def read_runs(study_dir: Path | str) -> tuple[list[Run], list[str]]:
    """The runs of `read_study`, and sentences on what could not be read."""
    records = read_study(study_dir)
    return records.runs, records.problems


def on_each_core(
    function: Callable[[Any], Any], jobs: Sequence[Any], size: int, large: int = LARGE
) -> list[Any]:
    """``function`` of every job, in order; in one process per core where ``size`` is large.

    Args:
        function: of a module, as other processes import it.
        size: bytes behind all jobs together.
        large: see `LARGE`.

    Raises:
        UserError: one of the processes was killed, or could not start.
    """
    cores = len(os.sched_getaffinity(0))
    if size < large or min(cores, len(jobs)) < 2:
        return list(each(map(function, jobs), "runs", len(jobs)))
    try:
        return list(each(_workers(cores).map(function, jobs), "runs", len(jobs)))
    except BrokenProcessPool as error:
        _workers.cache_clear()
        raise UserError(
            f"A worker process ended too early ({error}). In a script, put the"
            ' call under `if __name__ == "__main__":`, as each process imports the script. If it'
            " is there already, memory may have run out: free some and rerun the script."
        ) from error


@cache
def _workers(cores: int) -> ProcessPoolExecutor:
    """One pool for all that a command does: a worker's imports take longer than a run's reading."""
    # A forked child would inherit the locks of threads that Arrow and Jupyter run.
    # Ctrl-C reaches all of them: this one says it, the others just end.
    return ProcessPoolExecutor(
        cores, multiprocessing.get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_DFL)
    )


def _read_cell(job: tuple[Path, pd.DataFrame, str]) -> Records:
    """What one cell has on record, a row of the table."""
    folder, row, keyword = job
    cell = CellFolder(folder / str(row.iloc[0]["cell"]))
    run, counts, problems = _read_run(cell, row, keyword)
    kinds = merged.kinds(cell)
    files = {part.path for kind in kinds for part in parts(kind) if part.path.is_file()}
    problems += [UNSIGNED] if any(map(is_unsigned, files)) else []
    return Records(folder, row, [] if run is None else [run], counts, keyword, problems)


def _read_run(
    cell: CellFolder, row: pd.DataFrame, keyword: str
) -> tuple[Run | None, pd.DataFrame, list[str]]:
    done = bool(row.iloc[0]["done"])
    counted = [OPERATOR] if plays(cell) else []
    # a correction may leave no score at all: that is a run without scores, not one without it
    corrected = [CORRECTED] if has_column(cell, CORRECTED) else []
    run, rollouts, verdicts, problems = _read_answers(cell, row, keyword, [*counted, *corrected])
    counts = _counted(verdicts)
    if run is None:
        return None, counts, problems
    place, _ = _placing(rollouts)
    domain_P = _of_groups(place, rollouts["domain"]) if rollouts["domain"].notna().any() else None
    ratio = rollouts["logprob_sum"] - rollouts[REFERENCE]
    under, why = policies.rewards_under(cell, rollouts)
    problems += [f"{cell.name}: {why}"] if why else []
    recorded = rollouts["reward"].to_numpy()
    reward = place(recorded)
    resolved = read_config(cell, [])
    config = flatten(resolved)
    logged = steps_frame(cell.study_dir, row)
    problems += [
        f"{cell.name} is damaged: {why}"
        for why in disagreements(rollouts, verdicts, logged, config, done)
    ]
    evaluated = logged[logged["metric"].str.startswith(HELD_OUT) & logged["value"].notna()]
    held_out: dict[str, dict[int, float]] = {}
    for step, metric, value in zip(
        evaluated["step"], evaluated["metric"], evaluated["value"], strict=True
    ):
        held_out.setdefault(metric.removeprefix(HELD_OUT), {})[int(step)] = float(value)
    run = replace(
        run,
        done=done,
        reward=reward,
        advantage=place(rollouts["advantage"].to_numpy()),
        scale=str(config.get("trainer.scale_rewards", "group")),
        on_failure=str(config.get("judge.on_failure", "unscored")),
        under={
            policy: reward if np.array_equal(rewards, recorded, equal_nan=True) else place(rewards)
            for policy, rewards in under.items()
        },
        unasked=int((rollouts["outcome"].notna() & rollouts["outcome"].ne(Ending.OK)).sum()),
        config=config,
        corrected=place(rollouts[CORRECTED].to_numpy()) if corrected else None,
        log_ratio=place(ratio.to_numpy()) if ratio.notna().any() else None,
        domain_P=domain_P,
        text=place(pd.factorize(rollouts["answer"])[0]) if domain_P is not None else None,
        identity=identifying(resolved),
        held_out={name: held_out[name] for name in held_out if name not in OVERALL},
    )
    wide = logged.pivot(index="step", columns="metric", values="value").reindex(run.steps)
    run = replace(run, logged={str(name): wide[name].to_numpy(dtype=float) for name in wide})
    problems += logged.attrs["problems"]
    if (cell / EVALUATIONS / "rollouts").is_dir():
        frozen, *_, unread = _read_answers(cell, row, keyword, counted, frozen=True)
        problems += unread
        run = replace(run, frozen=None if frozen is None else replace(frozen, config=config))
    else:
        kinds = (cell / EVALUATIONS / kind for kind in KINDS)
        problems += [text.rstrip(".") for kind in kinds for text in lost_steps(kind)]
    return run, counts, problems


def _read_answers(
    cell: CellFolder, row: pd.DataFrame, keyword: str, more: Sequence[str], frozen: bool = False
) -> tuple[Run | None, pd.DataFrame, pd.DataFrame, list[str]]:
    """The answers of a run, or its ``frozen`` ones to held-out rows, as a run without rewards,
    which is None where there are none; the rollouts and verdicts that it is made of, these with
    ``at``, the rollout of each (-1 for none), and its ``words``; and what could not be read."""
    rollouts = rollouts_frame(cell.study_dir, [*_WANTED, REFERENCE, *more], row, frozen=frozen)
    features = measured(rollouts["answer"].tolist(), keyword)
    calls = [str(name) for name in rollouts if str(name).startswith(OPERATOR)]
    ran = rollouts[calls].where(rollouts["outcome"].eq(Ending.OK), np.nan)
    features = np.hstack([features, ran.to_numpy(dtype=float)])
    columns = ["rollout_id", "judge", "role", "outcome", "score"]
    verdicts = verdicts_frame(cell.study_dir, columns, row, frozen=frozen)
    problems = [*rollouts.attrs["problems"], *verdicts.attrs["problems"]]
    at = _positions(verdicts["rollout_id"], rollouts["rollout_id"])
    words = np.append(features[:, FEATURES.index("length")], np.nan)[at]  # -1 is the last: unknown
    verdicts = verdicts.assign(at=at, words=words)
    if rollouts.empty:
        return None, rollouts, verdicts, problems
    place, step_P = _placing(rollouts)
    truth, reference = place(rollouts["truth"].to_numpy()), None
    try:
        truth, reference = with_reference(cell, rollouts, verdicts, place, truth, frozen)
    except Damaged as error:
        problems.append(f"{error.path}: it {error.why}")
    nothing = np.full_like(truth, np.nan)
    run = Run(
        *(cell.name, str(row.iloc[0]["arm"]), int(row.iloc[0]["seed"]), False, step_P),
        *(nothing, nothing, truth),
        judge=place(rollouts["judge_score"].to_numpy()),
        features=place(features),
        names=(*FEATURES, *(name.removeprefix(FEATURE) for name in calls)),
        shadows={name: place(scores) for name, scores in _shadow_means(verdicts, len(rollouts))},
        reference=reference,
        rollouts=len(rollouts),
        prompt_P=_of_groups(place, rollouts["prompt_id"]),
    )
    return run, rollouts, verdicts, problems


def _placing(rollouts: pd.DataFrame) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]:
    """What puts a column (N,) or (N, K) into (P, G) or (P, G, K), and the step of each group.

    A place that no rollout fills is NaN.
    """
    step, group, member = (
        rollouts[name].to_numpy().astype(int) for name in ("step", "group", "member")
    )
    most = int(group.max()) + 1
    groups, row = np.unique(step * most + group, return_inverse=True)
    shape = (len(groups), int(member.max()) + 1)

    def place(values: np.ndarray) -> np.ndarray:
        out = np.full(shape + values.shape[1:], np.nan)
        out[row, member] = values
        return out

    return place, groups // most


def _of_groups(place: Callable[[np.ndarray], np.ndarray], column: pd.Series) -> np.ndarray:
    """What all rollouts of a group have in a column of texts, (P,)."""
    codes, names = pd.factorize(column.astype(object).fillna(""))
    return np.asarray(names, dtype=object)[np.nanmax(place(codes), axis=1).astype(int)]


def _positions(wanted_ids: pd.Series, ids: pd.Series) -> np.ndarray:
    """Where each wanted id stands first in ``ids``; -1 for nowhere."""
    codes, names = pd.factorize(pd.concat([ids, wanted_ids], ignore_index=True))
    first = np.full(len(names) + 1, -1)
    first[codes[: len(ids)][::-1]] = np.arange(len(ids))[::-1]
    first[-1] = -1  # what has no id, which factorize gives the code -1
    return first[codes[len(ids) :]]


def _shadow_means(verdicts: pd.DataFrame, rollouts: int) -> Iterator[tuple[str, np.ndarray]]:
    """Each shadow judge, and its mean score of every rollout over the scored votes, shape (N,)."""
    shadows = verdicts[verdicts["role"].eq("shadow") & verdicts["at"].ge(0)]
    codes, judges = pd.factorize(shadows["judge"], sort=True)
    score, at = shadows["score"].to_numpy(dtype=float), shadows["at"].to_numpy()
    for code, judge in enumerate(judges):
        votes = (codes == code) & np.isfinite(score)
        count = np.bincount(at[votes], minlength=rollouts)
        total = np.bincount(at[votes], score[votes], rollouts)
        nan = np.full(rollouts, np.nan)
        yield str(judge), np.divide(total, count, out=nan, where=count > 0)


def _counted(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Verdicts by judge, role, outcome and length of the answer."""
    by = list(OUTCOMES[:-1])
    counts = verdicts[by].groupby(by, observed=True, dropna=False, sort=True).size()
    return counts.reset_index(name="verdicts").astype({"cell": "str"})
