"""Reads the answers of a study step by step, with what every judge said of them.

Of a study of any size one row group of rollouts and one of verdicts are in memory at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.records.frames import NUMBERS, runs_frame
from study.cell.exchange import folder_of
from study.cell.folder import CellFolder
from study.cell.parts import Part, left_out, read_part
from study.cell.records import EVALUATIONS, KINDS
from study.cell.signature import UNSIGNED, is_unsigned
from study.cell.verify import foreign_parts, lost_steps
from study.features import shared_keyword
from study.system.files import Damaged

SETS = ("training", "held-out")
"""What an answer was given to: a row that the policy was trained on, or one of its evaluation."""


@dataclass(frozen=True)
class Source:
    """The answers of one cell to rows of one of `SETS`."""

    cell: str
    arm: str
    judge: str
    """The judge that the cell was trained under."""
    policy: str
    task: str
    on_failure: str
    state: str
    seed: int
    held_out: bool
    folder: CellFolder
    """Where the folders of `study.cell.records.KINDS` are; of an evaluation inside the cell's."""

    @property
    def set(self) -> str:
        """Which of `SETS`."""
        return SETS[self.held_out]


@dataclass(frozen=True)
class Answers:
    """A study whose answers can be read."""

    folder: Path
    sources: list[Source]
    keyword: str
    """Which word the behaviour ``keyword`` counts."""
    runs: pd.DataFrame
    """As `analysis.records.frames.runs_frame` gives them."""
    problems: list[str] = field(default_factory=list)
    """Sentences on what could not be read; more of them while it is read."""

    def of(
        self, arm: str | None = None, seed: int | None = None, held_out: bool | None = None
    ) -> Answers:
        """Those of one arm, one seed or one of `SETS`. What is found damaged is told to both."""
        limits = {"arm": arm, "seed": seed, "held_out": held_out}
        wanted = {name: value for name, value in limits.items() if value is not None}
        return replace(
            self,
            sources=[
                source
                for source in self.sources
                if all(getattr(source, name) == value for name, value in wanted.items())
            ],
        )

    def steps(
        self,
        source: Source,
        kind: str,
        columns: Sequence[str] | None = None,
        only: Collection[int] | None = None,
    ) -> Iterator[tuple[int, pa.Table]]:
        """The rows of a kind (``rollouts``, ``verdicts``), one step after the other. What is
        damaged is left out and becomes a problem."""
        for part in source.folder.parts(kind):
            if only is None or part.step in only:
                table = self._table(part, columns)
                if table is not None:
                    yield part.step, table

    def judged(
        self,
        source: Source,
        rollouts: Sequence[str] | None = None,
        verdicts: Sequence[str] | None = None,
        only: Collection[int] | None = None,
    ) -> Iterator[tuple[int, pa.Table, pa.Table | None]]:
        """The rollouts of every step with its verdicts; None where those cannot be read."""
        verdict_parts = {part.step: part for part in source.folder.parts("verdicts")}
        for step, table in self.steps(source, "rollouts", rollouts, only):
            yield (
                step,
                table,
                self._table(verdict_parts[step], verdicts) if step in verdict_parts else None,
            )

    def numbers(self) -> list[str]:
        """The columns of `NUMBERS` that any answer has, by name; of parts, the heads are read."""
        names: set[str] = set()
        for source in self.sources:
            for part in source.folder.parts("rollouts"):
                if part.group is not None:
                    names.update(part.group.columns)
                elif part.path.is_file():
                    with contextlib.suppress(OSError, pa.ArrowException):  # told when it is read
                        names.update(pq.read_schema(part.path).names)
        return sorted(name for name in names if name.startswith(NUMBERS))

    def _table(self, part: Part, columns: Sequence[str] | None) -> pa.Table | None:
        try:
            table = read_part(part, columns)
            if is_unsigned(part.path) and UNSIGNED not in self.problems:
                self.problems.append(UNSIGNED)
            return table
        except Damaged as error:
            if (sentence := left_out(error)) not in self.problems:
                self.problems.append(sentence)
            return None


def read_answers(study_dir: Path | str) -> Answers:
    """The answers of a study: each cell's to the rows that it was trained on, then those to
    held-out rows where it was evaluated with ``trainer.eval_samples``.
    Raises UserError: the study has another format."""
    folder = folder_of(study_dir)
    runs = runs_frame(folder)
    problems = list(runs.attrs["problems"])
    sources = []
    for row in runs.to_dict("records"):
        cell = CellFolder(folder / str(row["cell"]))
        for held_out, place in enumerate((cell, CellFolder(cell / EVALUATIONS))):
            for kind in KINDS:
                texts = (*foreign_parts(place / kind), *lost_steps(place / kind))
                problems += [text.rstrip(".") for text in texts]
            if (place / "rollouts").is_dir():
                names = ("cell", "arm", "judge", "policy", "task", "on_failure", "state")
                values = (str(row[name]) for name in names)
                sources.append(Source(*values, int(row["seed"]), bool(held_out), place))
    return Answers(folder, sources, shared_keyword(runs["keyword"]), runs, problems)
