"""Evaluations of a cell's policies, as lines of the cell and as metrics of LoggedModels.

A LoggedModel is one policy: a cell at a step, with the label of its weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from study.cell.folder import CellFolder
from study.system.files import append_line

EVALUATED = "evaluations.jsonl"
"""A line for each evaluation that was tracked; a rebuild sends them again."""
PREFIX = "eval/"
"""What the names of their metrics begin with, and of held-out rows on the way."""
TAG = "judgedrift.model"
"""Tag of a LoggedModel that holds the label of its weights."""


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found of one policy of a cell."""

    name: str
    step: int
    model: str
    """Label of the weights."""
    dataset: str
    digest: str
    time_ms: int
    metrics: dict[str, float]


def keep_evaluation(cell: CellFolder, evaluation: Evaluation) -> None:
    """Write down what was found, for a rebuild."""
    append_line(cell / EVALUATED, json.dumps(asdict(evaluation)))


def kept_evaluations(cell: CellFolder) -> Iterator[Evaluation]:
    """What `keep_evaluation` kept, in order; lines that are not of its form are left out."""
    path = cell / EVALUATED
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    names = {each.name for each in fields(Evaluation)}
    for line in lines:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(content, dict) or content.keys() != names:
            continue
        metrics = content["metrics"]
        numbers = ("step", "time_ms")
        whole = all(type(content[name]) is int for name in numbers) and all(
            isinstance(content[name], str) for name in names - {*numbers, "metrics"}
        )
        if whole and isinstance(metrics, dict) and {*map(type, metrics.values())} <= {int, float}:
            yield Evaluation(**content)


def send_evaluation(client: Any, run: Mapping[str, str], cell: str, evaluation: Evaluation) -> str:
    """Log an evaluation of a cell's policy in the cell's run; the id of its LoggedModel. Sent
    again, it is the same."""
    from mlflow.entities import Metric

    model_id = logged_model(client, run, cell, evaluation.step, evaluation.model)
    metrics = [
        Metric(
            name,
            value,
            evaluation.time_ms,
            evaluation.step,
            model_id=model_id,
            dataset_name=evaluation.dataset,
            dataset_digest=evaluation.digest,
        )
        for name, value in evaluation.metrics.items()
    ]
    for start in range(0, len(metrics), 900):
        client.log_batch(run["run_id"], metrics=metrics[start : start + 900])
    return model_id


def logged_model(client: Any, run: Mapping[str, str], cell: str, step: int, label: str) -> str:
    """The id of the LoggedModel of these weights of the cell, made on first use and listed on the
    page of its run. Its label has their fingerprint: weights that were trained anew under the same
    name are another model."""
    from mlflow.entities import LoggedModelOutput

    model_id = _model(client, run, cell, step, label)
    outputs = client.get_run(run["run_id"]).outputs
    listed = {each.model_id for each in outputs.model_outputs} if outputs else set()
    if model_id not in listed:
        client.log_outputs(run["run_id"], [LoggedModelOutput(model_id, step)])
    return model_id


def _model(client: Any, run: Mapping[str, str], cell: str, step: int, label: str) -> str:
    experiment, name = run["experiment_id"], f"{cell}-step-{step}"
    for candidate in client.search_logged_models([experiment], filter_string=f"name = '{name}'"):
        if (candidate.source_run_id, candidate.tags.get(TAG)) == (run["run_id"], label):
            return str(candidate.model_id)
    created = client.create_logged_model(
        experiment,
        name=name,
        source_run_id=run["run_id"],
        tags={"judgedrift.cell": cell, TAG: label},
        params={"step": str(step)},
        model_type="policy",
    )
    client.finalize_logged_model(created.model_id, "READY")
    return str(created.model_id)
