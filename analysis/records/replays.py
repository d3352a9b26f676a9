"""Judges that scored a run's rollouts once more (`judges.replay`), as if they had looked on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.records.runs import Run
from study.cell.audit import AUDIT
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.system.files import Damaged


def with_replays(runs: Sequence[Run], study_dir: Path) -> tuple[list[Run], list[str]]:
    """Runs with the scores of every finished replay as shadows, and sentences on the others.

    A replay by a judge that scored the run anyway, the same down to its settings, adds nothing and
    is left out. Another judge stands under its name; where that is taken, as by the same preset
    with other settings, under its folder's.
    """
    replayed, problems = [], []
    for run in runs:
        shadows = dict(run.shadows)
        folders = replays_of(study_dir, run.cell)
        try:
            scored_by = _judges(CellFolder(study_dir / run.cell)) if folders else {}
        except Damaged as error:
            problems.append(f"{error.path}: it {error.why}; replays of this run are left out")
            folders = []
        for folder in folders:
            try:
                new = {who: name for who, name in _judges(folder).items() if who not in scored_by}
                scores = _scores(folder, run) if new else None
            except Damaged as error:
                problems.append(f"{error.path}: it {error.why}; this replay is left out")
                continue
            if not new:
                continue
            if scores is None:
                problems.append(f"{folder}: this replay holds other groups than its run; left out")
            else:
                (who, name), *_ = new.items()
                shadows[folder.study_dir.name if name in scored_by.values() else name] = scores
                scored_by[who] = name
        replayed.append(replace(run, shadows=shadows))
    return replayed, problems


def replays_of(study_dir: Path, cell: str) -> list[CellFolder]:
    """The folders of a run's replays, by name; an audit is none, as it is of some answers."""
    folders = map(CellFolder, (study_dir / "replays").glob(f"*/{cell}"))
    return sorted(folder for folder in folders if folder.study_dir.name != AUDIT)


def _judges(folder: CellFolder) -> dict[str, str]:
    """Identity -> name of the judges in the first part of a folder's verdicts.

    Verdicts of others have no identity; the name stands for it then.
    """
    for part in folder.parts("verdicts")[:1]:
        table = read_part(part, ["judge_id", "judge"])
        if "judge" not in table.column_names:
            raise Damaged(part.path, "names no judge")
        key = "judge_id" if "judge_id" in table.column_names else "judge"
        return dict(zip(table[key].to_pylist(), table["judge"].to_pylist(), strict=True))
    return {}


def _scores(folder: CellFolder, run: Run) -> np.ndarray | None:
    """A replay's scores, shape (P, G); None where its groups are not those of the run."""
    place = ["step", "group", "member"]
    tables = []
    for part, table in folder.records("rollouts", [*place, "judge_score"]):
        tables.append(table.to_pandas())
        if tables[-1].shape[1] < 4:
            raise Damaged(part.path, f"has not all of the columns {', '.join(place)}, judge_score")
    if not tables or (table := pd.concat(tables)).duplicated(place).any():
        return None
    wide = table.pivot(index=place[:2], columns="member", values="judge_score")
    scores = wide.to_numpy(dtype=float)
    same = scores.shape == run.judge.shape and np.array_equal(
        wide.index.get_level_values("step"), run.step_P
    )
    return scores if same else None
