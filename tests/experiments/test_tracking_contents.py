"""What a cell's run holds beside its metrics, live and rebuilt, in a real MLflow store, and what
the printed links open in a browser."""

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments.tracking import contents, traces
from experiments.tracking.__main__ import main
from experiments.tracking.evaluations import (
    EVALUATED,
    Evaluation,
    keep_evaluation,
    kept_evaluations,
    send_evaluation,
)
from experiments.tracking.pages import charts_link, parent_link
from experiments.tracking.store import CHARTS, FIRST, client_of, trace_to
from study.cell import cells
from study.cell.folder import CellFolder, study_cells
from study.system.files import read_json
from tests.chromium import Browser
from tests.experiments.mlflow_runs import copy_runs, copy_store, everything, served, sql
from tests.waiting import wait_for

KEY = "sk-test-0123456789abcdef0123456789abcdef"
FOUND = Evaluation("ifeval", 2, "policy@1", "ifeval", "d1", 1_700_000_000_000, {"eval/ifeval/x": 1})
Moved = Callable[[Path, Path], Path]
Projected = tuple[Path, Any, dict[str, str]]


@pytest.fixture
def moved(template: Path) -> Moved:
    """Copy a study to another folder of studies, which has a store without any run."""

    def move(study: Path, runs: Path) -> Path:
        copy_store(template, runs / "mlflow.db")
        return shutil.copytree(study, runs / study.name, symlinks=True)

    return move


@pytest.fixture
def study(small_study: Path, tmp_path: Path, moved: Moved) -> Path:
    """A copy of the small study, to be changed."""
    return moved(small_study, tmp_path / "runs")


@pytest.fixture
def cell(study: Path) -> cells.Cell:
    return cells.load_cell(study_cells(study)[0])


@pytest.fixture(scope="module")
def whole(small_study: Path, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of studies with the small study and a store that a rebuild has filled."""
    runs = tmp_path_factory.mktemp("whole") / "runs"
    copy_store(template, runs / "mlflow.db")
    rebuilt(shutil.copytree(small_study, runs / small_study.name, symlinks=True))
    return runs


@pytest.fixture
def projected(whole: Path, small_study: Path, tmp_path: Path) -> Projected:
    """A copy of that study, to be changed, with the client and the ids of its store."""
    copy_runs(whole, tmp_path / "runs")
    study = tmp_path / "runs" / small_study.name
    ids = read_json(study / "study.json")["mlflow"]
    trace_to(ids["uri"])
    return study, client_of(ids["uri"]), ids


@pytest.fixture
def first_alone(projected: Projected) -> Projected:
    """The same without the records of all cells but the first, which are rebuilt otherwise."""
    for folder in study_cells(projected[0])[1:]:
        shutil.rmtree(folder.path)
    return projected


def rebuilt(study: Path) -> tuple[Any, dict[str, str]]:
    assert main(["rebuild", f"study={study.name}", f"runs_dir={study.parent}"]) == 0
    ids = read_json(study / "study.json")["mlflow"]
    return client_of(ids["uri"]), ids


def rebuilt_data(client: Any, ids: dict[str, str], folder: Path) -> None:
    run_id = read_json(folder / "mlflow.json")["run_id"]
    contents.send_contents(client, ids, run_id, cells.load_cell(CellFolder(folder)))


@pytest.mark.parametrize(
    "rebuilds", [1, pytest.param(2, marks=pytest.mark.long)], ids=["once", "again and elsewhere"]
)
def test_a_rebuilt_cell_holds_what_the_live_one_did(
    rebuilds, small_study, projected, tmp_path, moved
):
    live = read_json(small_study / "study.json")["mlflow"]
    study, client, ids = projected
    folders = study_cells(study)
    before = everything(client_of(live["uri"]), live["experiment_id"])
    assert {folder.name for folder in folders} < before.keys()
    for number in range(rebuilds):  # again: nothing is there twice
        if number:
            client, ids = rebuilt(study)
        assert ids["uri"] != live["uri"]
        after = everything(client, ids["experiment_id"])
        assert after.keys() == before.keys()
        for name in after.keys() - {study.name}:
            assert after[name] == before[name]
        parent = before[study.name]
        for part in parent.keys() - {"state"}:  # the live one began before its first cell
            assert after[study.name][part] == parent[part]
    for folder in folders:
        cell = after[folder.name]
        model = f"{folder.name}-step-2"
        assert cell["outputs"] == [(model, 2)] and model in {each[0] for each in after["models"]}
        assert set(cell["files"]) == {"figures/judge-and-truth.svg", "samples.json"}
        assert [data["name"] for data, _ in cell["data"]] == ["instruct-mini"]
        assert len(cell["calls"]) == traces.MOST
        assert "| Judge score |" in cell["tags"]["mlflow.note.content"]
        assert json.loads(cell["tags"]["mlflow.loggedArtifacts"])[0]["type"] == "table"
    flaky = [call for name in after if "flaky" in name for call in after[name]["calls"]]
    assert "ERROR" in {call[1] for call in flaky}
    if rebuilds == 1:
        return
    run = {**ids, "run_id": read_json(folders[0] / "mlflow.json")["run_id"]}
    keep_evaluation(folders[0], FOUND)
    send_evaluation(client, run, folders[0].name, FOUND)
    evaluated = everything(client, ids["experiment_id"])
    assert evaluated != after
    client, ids = rebuilt(moved(study, tmp_path / "other"))
    assert everything(client, ids["experiment_id"]) == evaluated


def calls_of(client: Any, ids: dict[str, str], run_id: str) -> list[Any]:
    return client.search_traces(locations=[ids["experiment_id"]], run_id=run_id)


def delete_calls(client: Any, ids: dict[str, str], run_id: str) -> None:
    names = [call.info.trace_id for call in calls_of(client, ids, run_id)]
    client.delete_traces(ids["experiment_id"], trace_ids=names)


def test_cells_of_one_seed_keep_their_own_traces(projected: Projected) -> None:
    study, client, ids = projected
    folders = study_cells(study)
    runs = [read_json(folder / "mlflow.json")["run_id"] for folder in folders]
    for run_id in runs:
        delete_calls(client, ids, run_id)
    for folder, run_id in zip(folders, runs, strict=True):
        random.seed(0)  # as the training of every cell of this seed does
        before = random.getstate()
        traces.send_traces(client, ids, run_id, cells.load_cell(folder))
        assert random.getstate() == before
    for run_id in runs:
        assert len(calls_of(client, ids, run_id)) == traces.MOST


def test_a_run_has_each_call_once_and_none_of_an_earlier_choice(projected: Projected) -> None:
    study, client, ids = projected
    folder = study_cells(study)[0]
    cell, run_id = cells.load_cell(folder), read_json(folder / "mlflow.json")["run_id"]
    wanted = sorted(call.info.tags[traces.MADE] for call in calls_of(client, ids, run_id))
    theirs = client.start_trace("theirs", experiment_id=ids["experiment_id"], run_id=run_id)
    client.end_trace(theirs.trace_id)
    first, *others = list(traces.choose_verdicts(folder))
    earlier = ({**first[0], "rollout_id": "earlier"}, first[1])
    for call in (first, earlier):  # a double, and what was chosen before the cell went on
        traces._send(client, ids, run_id, call, {}, [])
    assert len(calls_of(client, ids, run_id)) == traces.MOST + 3
    traces.send_traces(client, ids, run_id, cell)
    names = [call.info.tags.get(traces.MADE) for call in calls_of(client, ids, run_id)]
    assert sorted(name for name in names if name) == wanted
    assert names.count(None) == 1 and len(others) == traces.MOST - 1


def test_traces_that_mlflow_takes_at_the_last_try_are_not_lost(cell, monkeypatch) -> None:
    tries, kept = [], set()

    def send(client: Any, ids: Any, run_id: str, call: Any, *_: Any) -> None:
        tries.append(name := traces._name(call[0]))
        if tries.count(name) == traces.TRIES - late:
            kept.add(name)

    monkeypatch.setattr(traces, "_send", send)
    monkeypatch.setattr(traces, "_tidy_traces", lambda *_: set(kept))
    ids = {"uri": "sqlite://", "experiment_id": "1"}
    late = 0
    traces.send_traces(None, ids, "run", cell)
    assert len(tries) == traces.TRIES * traces.MOST
    kept.clear()
    late = -1
    tries.clear()
    with pytest.raises(traces.Lost, match=cell.name):
        traces.send_traces(None, ids, "run", cell)


def test_a_call_says_how_long_it_took_or_that_nobody_knows(projected: Projected) -> None:
    study, client, ids = projected
    folder = study_cells(study)[0]
    run_id = read_json(folder / "mlflow.json")["run_id"]
    verdict, rollout = next(traces.choose_verdicts(folder))
    for number, latency in enumerate((None, 0.25)):
        timed = {**verdict, "rollout_id": f"timed-{number}", "latency_s": latency}
        traces._send(client, ids, run_id, (timed, rollout), {}, [])
    tags = [call.info.tags for call in calls_of(client, ids, run_id)]
    said = {each["latency"] for each in tags if each[traces.MADE].startswith("timed-")}
    assert said == {"not recorded", "0.25 s"}


def test_a_damaged_part_is_said(cell: cells.Cell, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("rollouts", "verdicts"):
        for path in (cell.folder / kind).iterdir():
            path.write_bytes(b"PAR1 cut")
        assert contents.of_cell(cell).table == {} or kind == "verdicts"
        list(traces.choose_verdicts(cell.folder))
        assert f"{kind}/" in capsys.readouterr().err


def test_measures_of_other_steps_stay_in_the_description(cell: cells.Cell) -> None:
    series = {name: [(1, 0.5), (4, 0.25)] for name in contents.CHARTS}
    series["truth/mean"] = [(2, 0.5), (3, 0.125)]
    said = contents._description(cell, series)
    assert "| Judge score | 0.5 at step 1 | 0.25 at step 4 |" in said
    assert "| Truth (rule score) | 0.5 at step 2 | 0.125 at step 3 |" in said


def test_two_cells_that_end_at_one_moment_both_name_their_data(projected: Projected) -> None:
    from mlflow.store.tracking.dbmodels.models import SqlDataset
    from sqlalchemy import event

    study, client, ids = projected
    first, second = study_cells(study)[:2]
    sql(study.parent, "delete from inputs where source_type = 'DATASET'")
    sql(study.parent, "delete from datasets")
    begun: list[Path] = []

    def other_one_was_faster(*_: Any) -> None:
        if not begun:
            begun.append(first.path)
            rebuilt_data(client, ids, first.path)

    event.listen(SqlDataset, "init", other_one_was_faster)
    try:
        rebuilt_data(client, ids, second.path)
    finally:
        event.remove(SqlDataset, "init", other_one_was_faster)
    assert begun and sql(study.parent, "select count(*) from datasets") == [(1,)]
    assert sql(study.parent, "select count(*) from inputs where source_type = 'DATASET'") == [(2,)]


def test_a_call_shows_what_was_said_and_the_picture_judge_and_truth() -> None:
    said = dict.fromkeys(traces._VERDICT) | {"outcome": "scored", "score": 0.12345, "reason": ""}
    shown = {"outcome": "scored", "score": 0.123, "truth": 0.5}
    assert traces._outputs(said, {"truth": 0.5}, []) == shown
    series = {"judge/mean": [(1, 0.5), (2, 0.9)], "truth/mean": [(1, 0.9), (2, 0.9)]}
    drawing = ElementTree.fromstring(contents._picture(series))
    assert len([each for each in drawing.iter() if each.tag.endswith("polyline")]) == 2
    assert contents._picture({"judge/mean": [(1, 0.5)], "truth/mean": []}) == ""


def test_failed_verdicts_come_first(study: Path) -> None:
    (folder,) = (each for each in study_cells(study) if "flaky-s3" in each.name)
    outcomes = [verdict["outcome"] for verdict, _ in traces.choose_verdicts(folder)]
    assert outcomes[0] != "scored"
    assert set(outcomes[outcomes.index("scored") :]) == {"scored"}
    assert all(rollout["prompt"] for _, rollout in traces.choose_verdicts(folder))


def test_samples_are_a_table_of_short_texts_without_keys(cell: cells.Cell, monkeypatch) -> None:
    monkeypatch.setattr(contents, "LONGEST", 9)
    table = contents.of_cell(cell).table
    assert len(table["data"]) == 2 * contents.PER_STEP
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert {row["step"] for row in rows} == {1, 2}
    assert all(row["outcome"] for row in rows)
    assert table["columns"][:5] == ["step", "judge_score", "truth", "prompt", "answer"]
    assert all(row["truth"] == round(row["truth"], 3) for row in rows)
    long = contents.bounded(f"key {KEY} \x1b[2J", most=40)
    assert KEY[:20] not in long and "\x1b" not in long
    assert contents.bounded("w" * 30, most=10) == "w" * 10 + " ... (20 more characters)"
    assert contents.bounded(None) == ""


@pytest.mark.parametrize(("key", "known"), [(KEY, ()), ("plain-looking", ("plain-looking",))])
def test_no_part_of_a_key_is_left_where_a_text_is_cut(key: str, known: tuple[str, ...]) -> None:
    for offset in range(len(key) + 30):
        text = f"{'w' * (30 + len(key) - offset)} {key} and what follows it"
        said = contents.bounded(text, known, most=60)
        assert not any(key[:length] in said for length in range(4, len(key) + 1))


def test_keys_of_the_judges_reach_neither_samples_nor_traces(projected, monkeypatch) -> None:
    study, client, ids = projected
    folder = study_cells(study)[0]
    cell = cells.load_cell(folder)
    prompt = next(traces.choose_verdicts(folder))[1]["prompt"]
    monkeypatch.setenv("JUDGE_KEY", prompt)  # a key that a judge's reply or a policy gives away
    endpoint = dataclasses.replace(cell.config.judge.endpoint, api_key_env="JUDGE_KEY")
    judge = dataclasses.replace(cell.config.judge, endpoint=endpoint)
    keyed = dataclasses.replace(cell, config=dataclasses.replace(cell.config, judge=judge))
    assert prompt in json.dumps(contents.of_cell(cell).table)
    assert prompt not in json.dumps(contents.of_cell(keyed).table)
    run_id = read_json(folder / "mlflow.json")["run_id"]
    for sent in (cell, keyed):
        delete_calls(client, ids, run_id)
        traces.send_traces(client, ids, run_id, sent)
        said = "".join(call.to_json() for call in calls_of(client, ids, run_id))
        assert (prompt in said) == (sent is cell)


def test_a_cell_without_records_has_a_description(cell: cells.Cell, tmp_path: Path) -> None:
    assert contents.of_cell(dataclasses.replace(cell, folder=CellFolder(tmp_path))).description
    assert list(traces.choose_verdicts(CellFolder(tmp_path))) == []


def test_evaluations_come_back_with_their_models(first_alone, tmp_path, moved) -> None:
    study, client, ids = first_alone
    folder = study_cells(study)[0]
    run = {**ids, "run_id": read_json(folder / "mlflow.json")["run_id"]}
    keep_evaluation(folder, FOUND)
    with (folder / EVALUATED).open("a") as file:
        file.write('{"name": "cut\n[1]\n{"name": 3}\n')
    assert list(kept_evaluations(folder)) == [FOUND]
    model = send_evaluation(client, run, folder.name, FOUND)
    rebuilt(study)
    assert read_json(folder / "mlflow.json")["run_id"] == run["run_id"]  # it is no stranger
    client, ids = rebuilt(moved(study, tmp_path / "other"))
    named = f"{folder.name}-step-2"
    found = client.search_logged_models([ids["experiment_id"]], filter_string=f"name = '{named}'")
    (policy,) = (each for each in found if each.tags["judgedrift.model"] == "policy@1")
    assert policy.model_id != model
    (metric,) = client.get_logged_model(policy.model_id).metrics
    assert (metric.key, metric.value, metric.dataset_digest) == ("eval/ifeval/x", 1.0, "d1")


def test_an_evaluation_that_was_not_written_down_survives_a_run_that_is_replaced(
    first_alone,
) -> None:
    study, client, ids = first_alone
    folder = study_cells(study)[0]
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


def shown(browser: Browser, url: str, *awaited: str) -> str:
    """The text of a page as soon as it says all that is awaited."""
    page = browser.open(url, width=1440, height=4000)

    def text() -> str:
        return " ".join(page.ask("document.body.innerText").split())

    said = wait_for(lambda: all(words in (said := text()) for words in awaited) and said)
    page.close()
    return said


@pytest.mark.long
@pytest.mark.slow
def test_the_printed_links_open_what_they_promise(browser, small_study, tmp_path, monkeypatch):
    study = shutil.copytree(small_study, tmp_path / "runs" / small_study.name, symlinks=True)
    assert main(["rebuild", f"study={study.name}", f"runs_dir={study.parent}"]) == 0
    ids = read_json(study / "study.json")["mlflow"]
    folder = study_cells(study)[0]
    run = {**ids, "parent_run_id": read_json(folder / "mlflow.json")["run_id"]}
    groups = ("Group: sim-fair", "Group: sim-flaky")
    told = (
        "found : No judge is seen to have taught",
        "sim-flaky",
        "Child runs",
        "sim-fair, sim-flaky",
        "3, 4",
    )
    held = ("Judge score", "instruct-mini", f"{folder.name}-step-2", "Parent run")
    with served(ids["uri"], tmp_path, monkeypatch) as address:
        charts = shown(browser, charts_link(address, ids), FIRST, *groups, *CHARTS)
        parent = shown(browser, parent_link(address, ids), *told)
        cell = shown(browser, parent_link(address, run), *held)
    assert "Training runs" in charts and FIRST in charts
    places = [charts.find(f" {metric} ", charts.find(FIRST)) for metric in CHARTS]
    assert -1 not in places and places == sorted(places)
    assert [words for words in groups if words not in charts] == []
    assert [words for words in told if words not in parent] == []
    assert [words for words in held if words not in cell] == []
