"""Runs whose policy writes programs: what became of each, rollout by rollout.

``planted.json`` says what each is expected to do under a simulated executor. It has, for every
small program and every other one that the study's runs wrote, its expected truth and its expected
score under each judge, by data set; both are means over problems, draws and the judge's noise.
``python -m experiments.workflow planted study=NAME`` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import pandas as pd

from analysis.records.frames import NUMBERS, OPERATOR, plays, rollouts_frame
from analysis.records.runs import Records, Run
from analysis.statistics.estimate import NAN
from study.cell.folder import CellFolder
from study.cell.records import FEATURE
from study.programs.endings import INFRASTRUCTURE, Ending
from study.system.files import Damaged, read_json

FILE = "planted.json"
VERSION = 1


Means = dict[str, float]
"""Data set -> a mean."""


class Share(TypedDict):
    """A data set: its domain, and the share of a run's draws that it is meant to have."""

    domain: str
    share: float


class Expected(TypedDict):
    """What one program is expected to do; ``dsl`` is its short form."""

    dsl: str
    small: bool
    truth: Means
    score: dict[str, Means]
    """Judge -> its scores."""
    tokens: Means


class Contents(TypedDict):
    """The file, of this `VERSION`."""

    version: int
    executor: str
    problems: int
    """Of each data set."""
    datasets: dict[str, Share]
    programs: dict[str, Expected]
    """Hash of the class -> its program."""
    cells: NotRequired[list[str]]
    """Those that it holds for."""


@dataclass(frozen=True)
class Best:
    """The programs of highest expected score, one for each data set.

    ``truth`` and ``score`` are means over the data sets' shares; ``programs`` data set -> the
    program's short form.
    """

    truth: float
    score: float
    programs: dict[str, str]


@dataclass(frozen=True)
class PlantedPrograms:
    """What is expected of programs, and the share of each data set among the problems.

    Attributes:
        values: columns sha, dataset, dsl, small, quantity ("truth" or "score"), judge ("" of a
            truth), value.
    """

    shares: dict[str, float]
    values: pd.DataFrame

    def of(self, rollouts: pd.DataFrame, judge: str = "") -> np.ndarray:
        """Expected score under ``judge`` of each rollout's program on its data set, or its expected
        truth where no judge is named, (N,); NaN where nothing is known."""
        part = self._part(judge)
        value_by_program = part.set_index(["sha", "dataset"])["value"]
        at = pd.MultiIndex.from_arrays([rollouts["ast_sha"], rollouts["dataset"]])
        return value_by_program.reindex(at).to_numpy(dtype=float)

    def best(self, judge: str = "", datasets: tuple[str, ...] = ()) -> Best | None:
        """What a policy would write that got the highest expected score under ``judge`` (the
        highest truth where none is named) from small programs; None where nothing is known.

        Args:
            judge: a name.
            datasets: those to look at; all by default.
        """
        dataset_names = datasets or tuple(self.shares)
        scored = self._part(judge)
        scored = scored[scored["small"] & scored["dataset"].isin(dataset_names)].dropna(
            subset="value"
        )
        if set(scored["dataset"]) != set(dataset_names):
            return None
        top = scored.sort_values(["value", "sha"], ascending=[False, True])
        top = top.drop_duplicates("dataset").set_index("dataset")
        truths = self._part("").set_index(["sha", "dataset"])["value"]
        truth = {name: truths.get((row["sha"], name), NAN) for name, row in top.iterrows()}
        return Best(
            self.weighted(truth),
            self.weighted(top["value"].to_dict()),
            {str(name): str(row["dsl"]) for name, row in top.iterrows()},
        )

    def weighted(self, by_dataset: dict[Any, float]) -> float:
        """A mean over data sets by their shares."""
        total = sum(self.shares[name] for name in by_dataset)
        if not total:
            return NAN
        return float(sum(self.shares[name] * value for name, value in by_dataset.items()) / total)

    def _part(self, judge: str) -> pd.DataFrame:
        quantity = "score" if judge else "truth"
        values = self.values
        return values[(values["quantity"] == quantity) & (values["judge"] == judge)]


def read_planted(study_dir: Path) -> tuple[PlantedPrograms | None, list[str]]:
    """What a study's ``planted.json`` says; None where there is none, and a sentence where it
    cannot be read."""
    path = study_dir / FILE
    try:
        content = read_json(path)
        return (of_json(cast(Contents, content)) if content else None), []
    except Damaged as error:
        return None, [f"{path} is left out: it {error.why}"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return None, [f"{path} is left out: it is not in the form of version {VERSION} ({error!r})"]


def of_json(content: Contents) -> PlantedPrograms:
    """The content of a ``planted.json``. Raises KeyError, TypeError, AttributeError, ValueError: it
    is in another form."""
    if content["version"] != VERSION:
        raise ValueError(f"version {content['version']}")
    shares = {name: float(each["share"]) for name, each in content["datasets"].items()}
    rows = []
    for sha, program in content["programs"].items():
        head = (sha, program["dsl"], bool(program["small"]))
        rows += [(*head, "truth", "", name, p) for name, p in program["truth"].items()]
        rows += [
            (*head, "score", judge, name, s)
            for judge, by_dataset in program["score"].items()
            for name, s in by_dataset.items()
        ]
    columns = ["sha", "dsl", "small", "quantity", "judge", "dataset", "value"]
    values = pd.DataFrame(rows, columns=columns)
    values["value"] = values["value"].astype(float)
    return PlantedPrograms(shares, values[values["dataset"].isin(list(shares))])


COLUMNS = (
    *("step", "group", "member", "prompt_id", "dataset", "domain", "answer", "truth"),
    *("judge_score", "reward", "outcome", "ast_sha", "flags", *NUMBERS),
)


@dataclass(frozen=True)
class Programs:
    """One run and its rollouts, whose completions are programs.

    Attributes:
        rollouts: `COLUMNS`, with every recorded column of `NUMBERS`; ``answer`` is a number for
            each text, the same for equal ones, NaN for none, and ``blank`` says that it is empty.
    """

    run: Run
    rollouts: pd.DataFrame

    @property
    def operators(self) -> list[str]:
        """Every operator of which calls were counted, by name."""
        return sorted(
            name.removeprefix(OPERATOR) for name in self.rollouts if name.startswith(OPERATOR)
        )

    @cached_property
    def executed(self) -> pd.DataFrame:
        """The rollouts whose program ran to an answer."""
        return self.rollouts[self.rollouts["outcome"].eq(Ending.OK)]

    @cached_property
    def judged(self) -> pd.DataFrame:
        """The executed rollouts with a score and a truth, and ``error``, judge minus truth."""
        error = self.executed["judge_score"] - self.executed["truth"]
        return self.executed.assign(error=error)[error.notna()]

    @property
    def groups_N(self) -> np.ndarray:
        """The group of each judged rollout, as a number."""
        return self.judged.groupby(["step", "group"], sort=False).ngroup().to_numpy()

    def feature(self, name: str, rollouts: pd.DataFrame | None = None) -> pd.Series:
        """One ``feature/`` of the rollouts, of all by default; NaN where it was not recorded."""
        rows = self.rollouts if rollouts is None else rollouts
        column = f"{FEATURE}{name}"
        return rows[column] if column in rows else pd.Series(np.nan, rows.index)

    def has_flag(self, name: str, rollouts: pd.DataFrame) -> pd.Series:
        """Whether each of the rollouts bears a flag; NaN where flags were not recorded."""
        flags = rollouts["flags"]
        return flags.map(
            lambda each: float(name in each) if isinstance(each, np.ndarray | list) else np.nan
        ).astype(float)

    def by_step(self, values: pd.Series) -> np.ndarray:
        """Mean of the known values of each step of the run, (T,); NaN where none is known."""
        steps = self.rollouts["step"].reindex(values.index)
        return values.groupby(steps).mean().reindex(self.run.steps).to_numpy(dtype=float)


def read_programs(records: Records, cells: Sequence[str]) -> tuple[list[Programs], list[str]]:
    """The runs of some cells whose rollouts have an outcome, and sentences on what could not be
    read.

    Args:
        records: of the study.
        cells: those to rest on.
    """
    runs, problems = [], []
    for run in records.runs:
        if run.cell not in cells or not plays(CellFolder(records.folder / run.cell)):
            continue
        row = records.table[records.table["cell"] == run.cell]
        rollouts = rollouts_frame(records.folder, COLUMNS, row)
        problems += rollouts.attrs["problems"]
        if (programs := of_frame(run, rollouts)) is not None:
            runs.append(programs)
    return runs, [problem for problem in problems if problem not in records.problems]


def of_frame(run: Run, rollouts: pd.DataFrame) -> Programs | None:
    """The programs of a run from its rollouts; None where none has an outcome."""
    placed = rollouts[rollouts[["step", "group", "member"]].notna().all(axis=1)]
    if not placed["outcome"].notna().any():
        return None
    codes, _ = pd.factorize(placed["answer"])
    answer = np.where(codes < 0, np.nan, codes)
    blank = placed["answer"].fillna("").str.strip().eq("")
    named = placed.assign(
        answer=answer,
        blank=blank,
        domain=placed["domain"].fillna("").astype("str"),
        dataset=placed["dataset"].fillna("").astype("str"),
    )
    return Programs(run, named.reset_index(drop=True))


def masked(outcome: pd.Series) -> pd.Series:
    """Which rollouts an infrastructure failure ended."""
    return outcome.isin(INFRASTRUCTURE)
