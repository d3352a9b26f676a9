"""What judges said of single criteria: which of them each answer of a run was credited with;
and how each judge graded: by what grading, and whether its prompt showed it the rubric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.records.frames import rollouts_frame, verdicts_frame
from analysis.records.replays import replays_of
from judges.grading import GRADINGS
from judges.grading.base import PROMPTS
from study.cell.cells import load_cell
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.errors import UserError
from study.rows import Row
from study.system.files import Damaged
from study.tasks import kind_of
from study.tasks.scaffold import items

CREDIT = {"met": 1.0, "not_met": 0.0}


@dataclass(frozen=True)
class Credits:
    """N answers of one run to P prompts of up to K criteria, where a judge told of single ones."""

    step_N: np.ndarray
    prompt_N: np.ndarray
    """Row of each answer's prompt in ``weights_P_K``."""
    weights_P_K: np.ndarray
    """Points of each criterion without their sign; 0 where a prompt has fewer."""
    acting: str
    """The judge that trained the run."""
    by_judge: Mapping[str, np.ndarray]
    """Judge -> (N, K): 1 where it credits the criterion, else 0; NaN where its word is missing. A
    criterion that marks a fault is credited where it is not met. Votes of a judge are a majority,
    ties missing."""
    problems: list[str]


def read_credits(study_dir: Path, row: pd.DataFrame) -> Credits | None:
    """The labels of one run's judges and of those that replayed it; None where the judge that
    trained it told of no single criterion.

    A judge of a replay stands under its name, or where that is taken under its folder's; one that
    scored the run anyway adds nothing.

    Args:
        row: the run's row of `runs_frame`.
    """
    (cell,) = row["cell"]
    columns = ["rollout_id", "judge", "judge_id", "role", "labels"]
    verdicts = _labelled(verdicts_frame(study_dir, columns, row))
    acting = verdicts.loc[verdicts["role"] == "acting", "judge"]
    if acting.empty:
        return None
    parts = {str(judge): part for judge, part in verdicts.groupby("judge", observed=True)}
    scored_by = set(verdicts["judge_id"].dropna())
    for folder in replays_of(study_dir, cell):
        replayed = _labelled(verdicts_frame(folder.study_dir, columns, row))
        replayed = replayed[~replayed["judge_id"].isin(scored_by)]
        scored_by |= set(replayed["judge_id"].dropna())
        for judge, part in replayed.groupby("judge", observed=True):
            name = str(judge)
            parts[folder.study_dir.name if name in parts else name] = part
    answers = rollouts_frame(study_dir, ["rollout_id", "step", "prompt_id"], row)
    place = pd.Series(np.arange(len(answers)), index=answers["rollout_id"])
    most = max(int(part["labels"].str.len().max()) for part in parts.values())
    prompt_N, prompts = pd.factorize(answers["prompt_id"])
    count = np.zeros(len(prompts), dtype=int)
    by_judge = {}
    for name, part in parts.items():
        part = part[part["rollout_id"].isin(place.index)]
        at, width = place[part["rollout_id"]].to_numpy(), part["labels"].str.len().to_numpy()
        labels = np.full((len(part), most), np.nan)
        for line, each in enumerate(part["labels"]):
            labels[line, : len(each)] = [CREDIT.get(label, np.nan) for label in each]
        np.maximum.at(count, prompt_N[at], width)
        by_judge[name] = _majority(labels, at, len(answers))
    row_of, problems = _rows(CellFolder(study_dir / cell))
    points = np.zeros((len(prompts), most))
    unknown = 0
    for line, prompt in enumerate(prompts):
        criterion_points = (
            [each.points for each in items(prompt_row)] if (prompt_row := row_of(prompt)) else []
        )
        fits = len(criterion_points) >= count[line] > 0
        points[line, : count[line]] = criterion_points[: count[line]] if fits else 1.0
        unknown += not fits
    if unknown:
        problems.append(
            f"{cell}: the points of the criteria of {unknown} of {len(prompts)} prompts are"
            " unknown, so each counts 1"
        )
    fault = (points < 0)[prompt_N]
    credited = {name: np.where(fault, 1 - each, each) for name, each in by_judge.items()}
    step_N = answers["step"].to_numpy(dtype=int)
    return Credits(step_N, prompt_N, abs(points), str(acting.iloc[0]), credited, problems)


def _labelled(verdicts: pd.DataFrame) -> pd.DataFrame:
    """The verdicts that tell of single criteria."""
    return verdicts[verdicts["labels"].str.len() > 0]


def _majority(labels_V_K: np.ndarray, at_V: np.ndarray, answers: int) -> np.ndarray:
    """What most of the votes on each answer say, (N, K); NaN for none and for a tie."""
    has_label = np.isfinite(labels_V_K)
    sums = np.zeros((2, answers, labels_V_K.shape[1]))
    np.add.at(sums[0], at_V, np.where(has_label, labels_V_K, 0.0))
    np.add.at(sums[1], at_V, has_label)
    balance = 2 * sums[0] - sums[1]
    return np.where(balance > 0, 1.0, np.where(balance < 0, 0.0, np.nan))


def _rows(cell: CellFolder) -> tuple[Callable[[str], Row | None], list[str]]:
    """Prompt id -> row of the cell's task; where that cannot be read, none, and why."""
    try:
        task = load_cell(cell).config.task
        return kind_of(task).lookup(task), []
    except (Damaged, UserError) as error:
        return lambda prompt: None, [f"{cell.name}: its task cannot be read: {error}".rstrip(".")]


SHOWN = ("rubric_batch", "rubric_chunk", "rubric_item", "verif")
"""Gradings that ask about the criteria themselves."""
WITHIN_GROUPS = ("pairwise", "listwise")
"""Gradings whose score says how an answer stands in its own group, and nothing of another's."""


def gradings(study_dir: Path, cell: str) -> dict[str, tuple[str, str]]:
    """Judge -> (grading, prompt's sha), of all that scored a run or replayed it.

    A replay stands under its judge's name and under its folder's. A folder whose first part cannot
    be read is left out: who reads its scores says so.
    """
    named: dict[str, tuple[str, str]] = {}
    for folder in (CellFolder(study_dir / cell), *replays_of(study_dir, cell)):
        for part in folder.parts("verdicts")[:1]:
            try:
                table = read_part(part, _COLUMNS)
            except Damaged:
                continue
            if len(table.column_names) < len(_COLUMNS):  # verdicts that others gave
                continue
            columns = (table[name].to_pylist() for name in _COLUMNS)
            for judge, grading, prompt_sha in set(zip(*columns, strict=True)):
                named.setdefault(judge, (grading, prompt_sha))
                if folder.study_dir != study_dir:
                    named[folder.study_dir.name] = (grading, prompt_sha)
    return named


_COLUMNS = ("judge", "grading", "prompt_sha")


@cache
def shows_rubric(grading: str, prompt_sha: str) -> bool | None:
    """Whether the judge was shown the criteria; None where that is not known, as of a prompt that
    is not shipped."""
    if grading in SHOWN:
        return True
    for path in PROMPTS.glob(f"{grading}-*.txt") if grading in GRADINGS else ():
        made_for = GRADINGS[grading]
        place = "{rubric}" in path.read_text(encoding="utf-8")
        for rubric in made_for.choices.get("rubric", ("",)):
            options = {"prompt": path.stem.removeprefix(f"{grading}-")}
            options |= {"rubric": rubric} if rubric else {}
            if made_for(options).prompt_sha == prompt_sha:
                return place and rubric != "hidden"
    return None
