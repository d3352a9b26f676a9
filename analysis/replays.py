"""Judges that scored a run's rollouts once more (`judges.replay`), as if they had looked on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from analysis.records import Run


def with_replays(runs: Sequence[Run], study_dir: Path) -> tuple[list[Run], list[str]]:
    """Runs with the scores of every finished replay as shadows, and sentences on the others.

    A replay by a judge that scored the run anyway, the same down to its settings, adds nothing and
    is left out. Another judge stands under its name; where that is taken, as by the same preset
    with other settings, under its folder's.
    """
    import pyarrow as pa

    found, problems = [], []
    for run in runs:
        shadows = dict(run.shadows)
        folders = sorted((study_dir / "replays").glob(f"*/{run.cell}"))
        known = _judges(study_dir / run.cell) if folders else {}
        for folder in folders:
            try:
                new = {who: name for who, name in _judges(folder).items() if who not in known}
                scores = _scores(folder, run) if new else None
            except (OSError, pa.ArrowInvalid) as error:
                problems.append(f"{folder} cannot be read and is left out: {error}")
                continue
            if not new:
                continue
            if scores is None:
                problems.append(f"{folder}: this replay holds other groups than its run; left out")
                continue
            (who, name), *_ = new.items()
            shadows[folder.parent.name if name in known.values() else name] = scores
            known[who] = name
        found.append(replace(run, shadows=shadows))
    return found, problems


def _judges(folder: Path) -> dict[str, str]:
    """Identity -> name of the judges in the first part of a folder's verdicts.

    Verdicts of others have no identity; the name stands for it then.
    """
    import pyarrow.parquet as pq

    for part in sorted((folder / "verdicts").glob("*.parquet"))[:1]:
        key = "judge_id" if "judge_id" in pq.read_schema(part).names else "judge"
        table = pq.read_table(part, columns=sorted({key, "judge"}))
        return dict(zip(table[key].to_pylist(), table["judge"].to_pylist(), strict=True))
    return {}


def _scores(folder: Path, run: Run) -> np.ndarray | None:
    """A replay's scores, shape (P, G); None where its groups are not those of the run."""
    import numpy as np
    import pandas as pd
    import pyarrow.parquet as pq

    columns = ["step", "group", "member", "judge_score"]
    parts = sorted((folder / "rollouts").glob("*.parquet"))
    if not parts:
        return None
    table = pd.concat([pq.read_table(part, columns=columns).to_pandas() for part in parts])
    wide = table.pivot(index=["step", "group"], columns="member", values="judge_score")
    scores = wide.to_numpy(dtype=float)
    same = scores.shape == run.judge.shape and np.array_equal(
        wide.index.get_level_values("step"), run.step_P
    )
    return scores if same else None
