"""Every completion of every step, and every verdict beside it, as one Parquet part per step.

A part is written to a temporary name and renamed, so a reader never sees half of one. Metrics go
to ``metrics.jsonl`` with the time at which the step was first recorded: a step that is redone
after a crash keeps its time, so that logging it twice stores it once.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from experiments.files import write_text

ROLLOUT = {
    "rollout_id": "string",
    "step": "int32",
    "prompt_id": "string",
    "group": "int32",
    "member": "int32",
    "prompt": "string",
    "completion": "string",
    "answer": "string",
    "tokens": "int32",
    "stop": "string",
    "logprob_sum": "float64",
    "reward": "float64",
    "advantage": "float64",
    "truth": "float64",
    "judge_score": "float64",
}
VERDICT = {
    "rollout_id": "string",
    "step": "int32",
    "role": "string",
    "judge": "string",
    "judge_id": "string",
    "revision": "string",
    "grading": "string",
    "grading_version": "string",
    "prompt_sha": "string",
    "sample_index": "int32",
    "outcome": "string",
    "labels": "list<string>",
    "score": "float64",
    "reason": "string",
    "text": "string",
    "reasoning": "string",
    "finish_reason": "string",
    "attempts": "int32",
    "latency_s": "float64",
    "tokens_in": "int64",
    "tokens_cached": "int64",
    "tokens_out": "int64",
    "cost_usd": "float64",
    "from_cache": "bool",
    "key": "string",
    "served_model": "string",
}
OPTIONAL = {"rules": "list<string>", "scaffold_items": "list<int32>"}
"""Rollout columns of runs that have rules to run, or a scaffold."""
METRICS = "metrics.jsonl"
COMPONENT = "component/"
"""Prefix of the extra rollout columns that hold the parts of a composed reward."""


def rollout_id(step: int, row: int) -> str:
    """Name of a rollout inside its cell; the same in ``rollouts/`` and ``verdicts/``."""
    return f"{step:06d}-{row:04d}"


def recorded(folder: Path) -> list[dict[str, Any]]:
    """The lines of a cell's ``metrics.jsonl``; a last line cut by a crash is left out."""
    lines = []
    path = folder / METRICS
    if path.exists():
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break
    return lines


class Recorder:
    """Writes one cell's records.

    Args:
        folder: the cell.
        after_step: the last step that a checkpoint holds; later records are of steps that will
            be redone and are dropped here, all but the time they were first made.
    """

    def __init__(self, folder: Path, after_step: int = 0) -> None:
        self.folder = folder
        self._times = {line["step"]: line["time_ms"] for line in self.metrics()}
        kept = [line for line in self.metrics() if line["step"] <= after_step]
        write_text(self._metrics_path, "".join(json.dumps(line) + "\n" for line in kept))
        for kind in ("rollouts", "verdicts"):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            for part in (folder / kind).iterdir():
                if part.suffix != ".parquet" or _step_of(part) > after_step:
                    part.unlink()

    @property
    def _metrics_path(self) -> Path:
        return self.folder / METRICS

    def metrics(self) -> list[dict[str, Any]]:
        """The lines recorded so far."""
        return recorded(self.folder)

    def write_step(
        self,
        step: int,
        rollouts: list[dict[str, Any]],
        verdicts: list[dict[str, Any]],
        metrics: dict[str, float],
    ) -> dict[str, Any]:
        """Record one step whole, the metrics line last.

        Returns:
            The metrics line as written: step, time_ms, metrics.
        """
        write_part(self.folder / "rollouts" / part_name(step), rollouts, ROLLOUT)
        write_part(self.folder / "verdicts" / part_name(step), verdicts, VERDICT)
        line = {
            "step": step,
            "time_ms": self._times.get(step, int(time.time() * 1000)),
            "metrics": metrics,
        }
        with self._metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return line


def write_part(path: Path, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Write one Parquet part under its name in one rename; component columns are added."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    extra = sorted({key for row in rows for key in row if key.startswith(COMPONENT)})
    present = [item for item in OPTIONAL.items() if any(item[0] in row for row in rows)]
    fields = [*columns.items(), *present, *((name, "float64") for name in extra)]
    schema = pa.schema([(name, _arrow(kind)) for name, kind in fields])
    temporary = path.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary)
    os.replace(temporary, path)


def part_name(step: int) -> str:
    """File name of a step's part."""
    return f"step-{step:06d}.parquet"


def _arrow(name: str) -> Any:
    import pyarrow as pa

    inner = name.removeprefix("list<").removesuffix(">")
    return pa.list_(pa.type_for_alias(inner)) if inner != name else pa.type_for_alias(name)


def _step_of(part: Path) -> int:
    return int(part.stem.removeprefix("step-"))
