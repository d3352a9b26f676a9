"""Runs whose policy writes programs: what became of each, rollout by rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.records.frames import NUMBERS, OPERATOR, plays, rollouts_frame
from analysis.records.runs import Records, Run
from study.cell.records import FEATURE
from study.programs.endings import INFRASTRUCTURE, Ending

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
        if run.cell not in cells or not plays(records.folder / run.cell):
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
