"""Results of evaluations: JSON that another model's never overwrites, and metrics in MLflow.

The metrics are those of a checkpoint's LoggedModel: one per cell and step, under the cell's run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.evaluation.options import Options
from experiments.tracking.evaluations import (
    PREFIX,
    Evaluation,
    keep_evaluation,
    send_evaluation,
)
from experiments.tracking.store import client_of, load_mlflow
from study.errors import UserError
from study.system.files import first_line, read_json, write_json


def guard(
    target: Path, model: str | None, evaluation: str, judge: str | None = None
) -> Mapping[str, Any]:
    """What ``target`` holds already. Raises UserError where that is not an earlier result of the
    same model, evaluation and judge."""
    if target.is_file() and not target.stat().st_size:
        return {}
    before = read_json(target)
    if not before:
        return {}
    if "evaluation" not in before:
        raise UserError(f"out={target} exists and is not a result. Give another out=FILE.")
    if before.get("model") != model:
        raise UserError(
            f"out={target} holds the result of {before.get('model') or 'a model without name'},"
            f" but this is {model or 'a file that names no model'}. Give another out=FILE: a"
            " result never overwrites another model's."
        )
    earlier = (before["evaluation"], before.get("judge", {}).get("name"))
    if earlier != (evaluation, judge):
        former, current = (
            " under judge=".join(filter(None, pair)) for pair in (earlier, (evaluation, judge))
        )
        raise UserError(
            f"out={target} holds a result of {former}, but this is {current}. Give another"
            " out=FILE."
        )
    return before


def write_result(target: Path, result: Mapping[str, Any]) -> None:
    """Write a result, unless `guard` refuses to.

    Files that name no model may be of different ones: the result of another file is then kept
    beside the new one, under a name with the hash of its responses.
    """
    judge = result.get("judge", {}).get("name")
    before = guard(target, result["model"], result["evaluation"], judge)
    if before and result["model"] is None and _file_of(before)[0] != _file_of(result)[0]:
        _set_aside(target, before)
    write_json(target, dict(result))


def write_in_study(target: Path, result: Mapping[str, Any]) -> None:
    """Write a result of verifiable sets where its study looks for it.

    One over more rows by the same model stays there. Any other that is not of the same model, rows
    and judge is kept beside the new one, under a name with the hash of its responses.
    """
    before = read_json(target)
    if before and before["model"] == result["model"]:
        rows, fewer = (sum(entry["n"] for entry in each["datasets"]) for each in (before, result))
        if fewer < rows:
            print(f"{target} keeps its result over {rows} rows; this one is over {fewer}.")
            return
    if before and _about(before) != _about(result):
        _set_aside(target, before)
    write_json(target, dict(result))


def _about(result: Mapping[str, Any]) -> tuple[Any, ...]:
    """The model, the rows and the judge of a result of verifiable sets."""
    return result["model"], result["data"]["digest"], result.get("judge")


def _set_aside(target: Path, before: Mapping[str, Any]) -> None:
    """Keep the result in ``target`` beside it."""
    path, sha = _file_of(before)
    aside = target.with_name(f"{target.stem}.{sha[:8]}{target.suffix}")
    write_json(aside, dict(before))
    print(f"{target} held the result of {path}; it is now {aside}")


def _file_of(result: Mapping[str, Any]) -> tuple[str, str]:
    """Path and hash of the first file of responses behind a result."""
    files = result["responses"]
    first = files[0] if isinstance(files, list) else files
    return str(first["path"]), str(first["sha256"])


def track(
    options: Options, evaluation: str, numbers: Mapping[str, float], result: Mapping[str, Any]
) -> str | None:
    """Log ``numbers`` as eval/<evaluation>/<name> on the model that was evaluated.

    Only a run has a place in the tracking store; a model folder, an endpoint or a file of responses
    has its JSON alone. ``track=false`` switches it off. Raises UserError where the run was tracked,
    and the store does not take the metrics. Returns the LoggedModel's id, None where there is
    nothing to log it on.
    """
    cell = options.run
    if cell is None or not options.track:
        return None
    run = read_json(cell / "mlflow.json")
    if not run:
        print(f"run={cell} is not tracked, so the result is in its JSON alone.")
        return None
    entry = Evaluation(
        name=evaluation,
        step=options.step,
        model=str(result["model"]),
        dataset=str(result["dataset"]["name"]),
        digest=str(result["dataset"]["digest"]),
        time_ms=int(time.time() * 1000),
        metrics={f"{PREFIX}{evaluation}/{name}": value for name, value in numbers.items()},
    )
    keep_evaluation(cell, entry)
    try:
        model_id = send_evaluation(client_of(run["uri"]), run, cell.path.resolve().name, entry)
    except load_mlflow().exceptions.MlflowException as error:
        raise UserError(
            f"The result is written, but the tracking store {run['uri']} does not take it:"
            f" {first_line(error)} Repair the store and rerun the command, or type track=false."
        ) from error
    print(f"logged as eval/{evaluation}/* on the model {model_id} of run {run['run_id']}")
    return model_id
