"""The answers of a study and what its judges said of them, as data frames.

The columns are those of the export (`analysis.answers.files`), under the same names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from analysis.answers.files import (
    GAP,
    JUDGED,
    WHOSE,
    answer_columns,
    answer_names,
    difference,
    recorded,
    schema_of,
    tables,
)
from analysis.answers.reading import Answers, Source
from study.config.presets import unknown_name
from study.errors import UserError

SPOKEN = ("judge", "outcome", "reason", "reply")
"""Columns of an answer's row with the verdict of the judge that trained the run."""
WORST = (
    *("arm", "seed", "step", "gap", "judge_score", "truth", "prompt", "answer"),
    *("judge", "reason", "reply", "cell", "set", "rollout_id"),
)
"""Columns of the answers that a judge overrates most."""

OTHER_NAMES = {"text": "answer", "acting_score": "judge_score"}
"""Names of other tables and of earlier versions, and what the column is called here."""


@dataclass(frozen=True)
class Part:
    """Which answers of a study; None is all."""

    arm: str | None = None
    seed: int | None = None
    step: int | Collection[int] | None = None
    held_out: bool = False

    @property
    def steps(self) -> Collection[int] | None:
        """The steps, where only some are wanted."""
        if self.step is None or isinstance(self.step, Collection):
            return self.step
        return [int(self.step)]

    def of(self, answers: Answers) -> Answers:
        """The answers of it.
        Raises UserError: the study has no such arm or seed, or no answers to held-out rows."""
        name = answers.folder.name
        arms = list(dict.fromkeys(source.arm for source in answers.sources))
        if self.arm is not None and self.arm not in arms:
            raise UserError(unknown_name(self.arm, f"an arm of {name} with answers", arms))
        of_arm = answers.of(arm=self.arm)
        seeds = sorted({source.seed for source in of_arm.sources})
        if self.seed is not None and self.seed not in seeds:
            whose = self.arm or name
            raise UserError(
                f"{whose} has no answers of seed {self.seed}. Its seeds are"
                f" {', '.join(map(str, seeds)) or 'none yet'}."
            )
        part = of_arm.of(seed=self.seed, held_out=self.held_out)
        if self.held_out and answers.sources and not part.sources:
            raise UserError(
                "on=held_out needs runs with recorded answers to held-out rows, which"
                " trainer.eval_samples makes; these have none. Type on='rollouts'."
            )
        return part


def answers_frame(
    answers: Answers, part: Part, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """One row for each answer, in the order of the runs and their steps.

    ``gap`` is the score of the judge that trained the run minus the truth; of its votes the reasons
    and replies stand below each other, and ``outcome`` is ``scored`` where any vote was.

    Args:
        columns: those to have, in this order; by default all. Fewer are read faster.

    Raises UserError: a column that there is not, or no such answers (`Part.of`, `_whole`).
    """
    schema = schema_of(answers)
    own = answer_names(schema.names)
    names = _names(columns, [*WHOSE, *_with_gap(own), *SPOKEN])
    rows = _answer_tables(part.of(answers), part, names)
    return _whole(answers, part, rows, pa.schema([schema.field(name) for name in names]))


def verdicts_frame(
    answers: Answers, part: Part, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """One row for each verdict on each answer, shadow judges and all votes too: the rows of the
    export, but for answers that no judge was asked about. ``gap`` is this verdict's score minus the
    truth. Arguments and errors: as `answers_frame`."""
    schema = schema_of(answers)
    names = _names(columns, schema.names)
    wanted = pa.schema([schema.field(name) for name in dict.fromkeys([*names, "judge"])])
    rows = (
        table.filter(table["judge"].is_valid()).select(names)
        for table in tables(part.of(answers), wanted, part.steps)
    )
    return _whole(answers, part, rows, pa.schema([schema.field(name) for name in names]))


def worst(answers: Answers, part: Part, most: int) -> pd.DataFrame:
    """The answers with the largest gap, judge score minus truth, the largest first; of equal ones
    those that come first in the study. The columns are `WORST`.
    Raises UserError: no answer has both scores, or as `answers_frame`."""
    if most < 1:
        raise UserError(f"{most} is no number of answers. Give 1 or more.")
    key = ["cell", "rollout_id"]
    gaps = answers_frame(answers, part, [*key, "step", GAP]).dropna(subset=GAP)
    if gaps.empty:
        raise UserError(
            "No answer has both a judge score and a truth, so none has a gap. To sort by the judge"
            " alone, type: study.answers().nlargest(5, 'judge_score')"
        )
    chosen = gaps.sort_values(GAP, ascending=False, kind="stable").head(most)
    steps = Part(part.arm, part.seed, sorted({*map(int, chosen["step"])}), part.held_out)
    rows = answers_frame(answers, steps, WORST).set_index(key, drop=False)
    frame = rows.loc[list(chosen[key].itertuples(index=False, name=None))]
    return frame.reset_index(drop=True)


def _with_gap(names: Sequence[str]) -> list[str]:
    """The columns of an answer with `GAP` behind the judge's score."""
    at = names.index("judge_score") + 1
    return [*names[:at], GAP, *names[at:]]


def _names(columns: Sequence[str] | None, legal: Sequence[str]) -> list[str]:
    """The columns that are wanted. Raises UserError: one that there is not."""
    if isinstance(columns, str):
        raise UserError(f"columns={columns!r} is a text. Type columns=[{columns!r}].")
    names = list(legal if columns is None else dict.fromkeys(columns))
    for name in names:
        if name not in legal:
            near = OTHER_NAMES.get(name, str(name).rpartition("/")[2])
            raise UserError(unknown_name(name, "a column of this frame", legal, near=near))
    return names


def _answer_tables(answers: Answers, part: Part, names: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of the answers, step by step."""
    needed = [*names, *(("judge_score", "truth") if GAP in names else ())]
    columns = recorded(answer_names(needed))
    spoken = [name for name in SPOKEN if name in names]
    acting = ["rollout_id", "role", "sample_index", *(JUDGED[name] for name in SPOKEN)]
    for source in answers.sources:
        for rollouts, verdicts in _steps(
            answers, source, columns, acting if spoken else None, part
        ):
            table = answer_columns(answers, source, rollouts, needed)
            if GAP in names:
                table[GAP] = difference(table["judge_score"], table["truth"])
            if spoken:
                ids = rollouts["rollout_id"].to_pylist()
                rows = _spoken(verdicts)
                of_rows = [rows.get(each, {}) for each in ids]
                table |= {
                    name: pa.array([row.get(name) for row in of_rows], pa.string())
                    for name in spoken
                }
            yield pa.table({name: table[name] for name in names})


def _steps(
    answers: Answers,
    source: Source,
    columns: Sequence[str],
    verdict_columns: Sequence[str] | None,
    part: Part,
) -> Iterator[tuple[pa.Table, pa.Table | None]]:
    """The rollouts of each step, with its verdicts where their columns are given."""
    if verdict_columns is None:
        for _, rollouts in answers.steps(source, "rollouts", columns, part.steps):
            yield rollouts, None
    else:
        for _, rollouts, verdicts in answers.judged(source, columns, verdict_columns, part.steps):
            yield rollouts, verdicts


def _spoken(verdicts: pa.Table | None) -> dict[str, dict[str, str | None]]:
    """Rollout -> `SPOKEN` of the judge that trained the run."""
    votes: dict[str, list[dict[str, Any]]] = {}
    for vote in [] if verdicts is None else verdicts.to_pylist():
        if vote["role"] == "acting":
            votes.setdefault(vote["rollout_id"], []).append(vote)
    rows = {}
    for name, of_answer in votes.items():
        in_order = sorted(of_answer, key=lambda vote: vote.get("sample_index") or 0)
        outcomes = [vote["outcome"] for vote in in_order]
        rows[name] = {
            "judge": in_order[0]["judge"],
            "outcome": "scored" if "scored" in outcomes else outcomes[0],
            "reason": _below(in_order, "reason"),
            "reply": _below(in_order, JUDGED["reply"]),
        }
    return rows


def _below(votes: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """The texts of all votes, with an empty line between them; None where there is none."""
    texts = [vote[name] for vote in votes if vote.get(name) is not None]
    return "\n\n".join(filter(None, texts)) if texts else None


def _whole(
    answers: Answers, part: Part, rows: Iterable[pa.Table], schema: pa.Schema
) -> pd.DataFrame:
    """The rows as one frame; ``attrs`` says what could not be read.
    Raises UserError: there is no answer of the steps that were given."""
    batches = [table.cast(schema) for table in rows]
    if part.step is not None and answers.sources and not any(map(len, batches)):
        steps = [each.step for of in answers.sources for each in of.folder.parts("rollouts")]
        raise UserError(
            f"No answer of step {part.step} is on record. The last recorded step is"
            f" {max(steps, default=0)}."
        )
    frame = pa.concat_tables(batches).to_pandas() if batches else schema.empty_table().to_pandas()
    frame.attrs["problems"] = list(answers.problems)
    return frame
