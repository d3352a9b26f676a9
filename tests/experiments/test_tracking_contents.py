"""What a cell's run holds beside its metrics, live and rebuilt, in a real MLflow store."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments.track import contents, traces
from experiments.track.evaluations import (
    EVALUATED,
    Evaluation,
    keep_evaluation,
    kept_evaluations,
    send_evaluation,
)
from experiments.track.store import client_of
from experiments.tracking import main
from study import cells
from study.files import read_json

KEY = "sk-test-0123456789abcdef0123456789abcdef"
FOUND = Evaluation("ifeval", 2, "policy@1", "ifeval", "d1", 1_700_000_000_000, {"eval/ifeval/x": 1})


@pytest.fixture
def study(small_study: Path, tmp_path: Path) -> Path:
    """A copy of the small study, to be changed."""
    return shutil.copytree(small_study, tmp_path / "runs" / small_study.name, symlinks=True)


def rebuilt(study: Path) -> tuple[Any, dict[str, str]]:
    assert main(["rebuild", f"study={study.name}", f"runs_dir={study.parent}"]) == 0
    ids = read_json(study / "study.json")["mlflow"]
    return client_of(ids["uri"]), ids


def held(client: Any, run_id: str) -> dict[str, Any]:
    """What a run has beside its metrics."""
    run = client.get_run(run_id)
    calls = client.search_traces(locations=[run.info.experiment_id], run_id=run_id)
    models = client.search_logged_models([run.info.experiment_id])
    return {
        "description": run.data.tags["mlflow.note.content"],
        "data": [(each.dataset.name, each.dataset.digest) for each in run.inputs.dataset_inputs],
        "files": sorted(
            item.path for at in (None, "figures") for item in client.list_artifacts(run_id, at)
        ),
        "calls": sorted(
            (call.info.tags[traces.MADE], call.info.tags["judge.name"], call.info.state.value)
            for call in calls
        ),
        "models": [each.name for each in models if each.source_run_id == run_id],
    }


def test_a_rebuilt_cell_holds_what_the_live_one_did(study: Path) -> None:
    live = read_json(study / "study.json")["mlflow"]
    old = client_of(live["uri"])
    folders = cells.study_cells(study)
    before = {
        folder.name: held(old, read_json(folder / "mlflow.json")["run_id"]) for folder in folders
    }
    for _ in range(2):  # again: nothing is there twice
        client, ids = rebuilt(study)
        assert ids["uri"] != live["uri"]
        for folder in folders:
            run_id = read_json(folder / "mlflow.json")["run_id"]
            after = held(client, run_id)
            assert after == before[folder.name]
            assert after["models"] == [f"{folder.name}-step-2"]
            assert after["files"] == ["figures", "figures/judge-and-truth.svg", "samples.json"]
            assert [name for name, _ in after["data"]] == ["instruct-mini"]
            assert len(after["calls"]) == traces.MOST
            assert "| What the judge gives |" in after["description"]
            tags = client.get_run(run_id).data.tags
            assert json.loads(tags["mlflow.loggedArtifacts"])[0]["type"] == "table"
    flaky = [calls for name in before if "flaky" in name for calls in before[name]["calls"]]
    assert "ERROR" in {state for _, _, state in flaky}


def test_failed_verdicts_come_first(study: Path) -> None:
    (folder,) = (each for each in cells.study_cells(study) if "flaky-s3" in each.name)
    outcomes = [verdict["outcome"] for verdict, _ in traces.chosen(folder)]
    assert outcomes[0] != "scored"
    assert set(outcomes[outcomes.index("scored") :]) == {"scored"}
    assert all(rollout["prompt"] for _, rollout in traces.chosen(folder))


def test_samples_are_a_table_of_short_texts_without_keys(study: Path, monkeypatch) -> None:
    cell = cells.load_cell(cells.study_cells(study)[0])
    monkeypatch.setattr(contents, "LONGEST", 9)
    table = contents.of_cell(cell).table
    assert len(table["data"]) == 2 * contents.PER_STEP
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert {row["step"] for row in rows} == {1, 2}
    assert all(row["outcome"] for row in rows)
    long = contents.bounded(f"key {KEY} \x1b[2J", 40)
    assert KEY[:20] not in long and "\x1b" not in long
    assert contents.bounded("w" * 30, 10) == "w" * 10 + " ... (20 more characters)"
    assert contents.bounded(None) == ""


def test_the_picture_is_a_drawing_of_judge_and_truth() -> None:
    series = {"judge/mean": [(1, 0.5), (2, 0.9)], "truth/mean": [(1, 0.9), (2, 0.9)]}
    drawing = ElementTree.fromstring(contents._picture(series))
    assert len([each for each in drawing.iter() if each.tag.endswith("polyline")]) == 2
    assert contents._picture({"judge/mean": [(1, 0.5)], "truth/mean": []}) == ""


def test_a_cell_without_records_has_a_description(study: Path, tmp_path: Path) -> None:
    cell = cells.load_cell(cells.study_cells(study)[0])
    empty = contents.of_cell(dataclasses.replace(cell, dir=tmp_path))
    assert empty.description
    assert list(traces.chosen(tmp_path)) == []


def test_evaluations_come_back_with_their_models(study: Path, tmp_path: Path) -> None:
    client, ids = rebuilt(study)
    folder = cells.study_cells(study)[0]
    run = {**ids, "run_id": read_json(folder / "mlflow.json")["run_id"]}
    keep_evaluation(folder, FOUND)
    with (folder / EVALUATED).open("a") as file:
        file.write('{"name": "cut\n[1]\n{"name": 3}\n')
    assert list(kept_evaluations(folder)) == [FOUND]
    model = send_evaluation(client, run, folder.name, FOUND)
    rebuilt(study)
    assert read_json(folder / "mlflow.json")["run_id"] == run["run_id"]  # it is no stranger
    moved = shutil.copytree(study, tmp_path / "other" / study.name, symlinks=True)
    client, ids = rebuilt(moved)
    named = f"{folder.name}-step-2"
    found = client.search_logged_models([ids["experiment_id"]], filter_string=f"name = '{named}'")
    (policy,) = (each for each in found if each.tags["judgedrift.model"] == "policy@1")
    assert policy.model_id != model
    (metric,) = client.get_logged_model(policy.model_id).metrics
    assert (metric.key, metric.value, metric.dataset_digest) == ("eval/ifeval/x", 1.0, "d1")


def test_an_evaluation_that_was_not_written_down_survives_a_run_that_is_replaced(
    study: Path,
) -> None:
    client, ids = rebuilt(study)
    folder = cells.study_cells(study)[0]
    run_id = read_json(folder / "mlflow.json")["run_id"]
    send_evaluation(client, {**ids, "run_id": run_id}, folder.name, FOUND)
    client.log_metric(run_id, "reward/mean", 9.0, step=77)  # of a step that the records dropped
    rebuilt(study)
    again = read_json(folder / "mlflow.json")["run_id"]
    assert again != run_id
    assert client.get_run(again).data.metrics["eval/ifeval/x"] == 1.0


@pytest.mark.parametrize("text", ["", "\x00", "{}", '{"name": "a", "metrics": {"x": "y"}}'])
def test_lines_that_are_no_evaluations_are_left_out(text: str, tmp_path: Path) -> None:
    (tmp_path / EVALUATED).write_text(text)
    assert list(kept_evaluations(tmp_path)) == []
