"""What a sweep says of cells that others run and of errors that others wrote, whom it asks no more,
and what it records of judges that are no models."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from experiments import launch, train
from experiments.launch.run import conclude
from experiments.sweep import cells_of, refuse_lists
from judges.replay import main as replay
from judges.scorers.table import score
from study.cell import cells
from study.cell.cells import Cell
from study.cell.folder import study_cells
from study.config.schema import Scorer
from study.errors import UserError
from tests.conftest import RECORDS_ONLY
from tests.experiments import fake_cells
from tests.experiments.evaluation.answering import serving
from tests.waiting import GENEROUS_S

SAID = "You are wrong [/INST] \x1b[2J [bold]now"


def composed(runs_dir: Path, *overrides: str) -> Cell:
    """The cell that a command line means."""
    (cell,) = cells_of([f"runs_dir={runs_dir}", "tracking=none", *overrides])
    return cell


@pytest.fixture
def running(tmp_path) -> Iterator[Cell]:
    """A cell that another process runs."""
    cell = composed(tmp_path / "runs", "judge=sim-fair", "seed=0", "sweep.report=false")
    cells.save_cell(cell)
    cell.folder.set_status(state="running", pid=4711, host="node7", step=3, started=1.7e9)
    with cell.folder.lock() or pytest.fail("the cell is held"):
        yield cell


def test_running_cells_are_not_called_done(running, capsys) -> None:
    assert launch.run_study([running], None) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "nothing to run" not in shown
    assert "0 of 1 cells of quickstart are done" in shown
    assert f"{running.name} is being run by process 4711 on node7" in shown
    assert "at step 3 of 40" in shown and "tail -f" in shown
    assert "When those have ended, rerun the command" in shown
    assert "Rerun the command to resume these" not in shown


def test_a_cell_that_failed_is_resumed_by_the_same_command(running, capsys) -> None:
    failed = composed(running.folder.study_dir.parent, "judge=sim-fair", "seed=1")
    cells.save_cell(failed)
    failed.folder.set_status(state="failed", error="it broke")
    assert conclude([failed], {}, [failed]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{failed.name} is failed; its log: " in shown
    assert "Rerun the command to resume these." in shown


def test_beside_running_cells_done_ones_are_counted(running, capsys) -> None:
    done = composed(
        running.folder.study_dir.parent, "judge=sim-fair", "seed=1", "sweep.report=false"
    )
    cells.save_cell(done)
    (done.folder / "DONE").touch()
    assert launch.run_study([running, done], None) == 1
    assert "1 of 2 cells of quickstart are done" in " ".join(capsys.readouterr().out.split())


DRIVER = """
import json, sys, urllib.error, urllib.request
from pathlib import Path
from experiments.launch import pool
from study.cell import cells
from study.cell.folder import CellFolder

def said(refusal):
    return json.loads(refusal.read())["error"]["message"]

def body(folder, threads):
    cell = cells.load_cell(folder)
    endpoint = cell.config.judge.endpoint
    code, error = 0, ""
    if endpoint.url.startswith("http"):
        try:
            urllib.request.urlopen(endpoint.url + "/chat/completions", data=b"{}")
        except urllib.error.HTTPError as refusal:
            code, error = cells.REFUSED, f"{endpoint.url}: {said(refusal)}"
    folder.set_status(state="failed" if code else "done", error=error, exit_code=code)
    if not code:
        (folder / "DONE").touch()
    return code

pool.run_cell = body
pool.PRELOAD = ["driver"]
if __name__ == "__main__":
    pool.run_cells([cells.load_cell(CellFolder(Path(name))) for name in sys.argv[1:]])
"""


@pytest.fixture
def refusing() -> Iterator[tuple[list[str], list[Any]]]:
    """The words of cells that ask an endpoint, one after the other, and what it was asked. It lists
    its model, and answers 401 to every question, in words that steer a terminal."""
    refusal = {"code": 401, "message": f"Invalid api key. {SAID}"}
    with serving(lambda body: refusal) as (url, requests):
        endpoint = [f"judge.endpoint.url={url}", "judge.endpoint.model=m", "sweep.workers=1"]
        yield ["judge=openai-compatible", *endpoint], requests


def test_a_refused_judge_is_asked_by_one_cell_and_the_others_go_on(tmp_path, refusing) -> None:
    real, requests = refusing
    todo = [
        *(composed(tmp_path, *real, f"seed={seed}") for seed in (0, 1)),
        composed(tmp_path, "judge=sim-fair", "seed=0"),
        composed(tmp_path, *real, "seed=2", "judge.name=same-endpoint"),
    ]
    for cell in todo:
        cells.save_cell(cell)
    driver = fake_cells.drive(DRIVER, tmp_path, [cell.folder for cell in todo])
    out, _ = driver.communicate(timeout=GENEROUS_S)
    assert driver.returncode == 0, out
    assert len(requests) == 1
    assert [cell.folder.state() for cell in todo] == ["failed", "new", "done", "new"]
    said = " ".join(out.split())
    assert "The endpoint of openai-compatible refused its key, its account or its model" in said
    assert "2 cells that use it were not started" in said
    assert todo[1].name in said and todo[3].name in said and "rerun the command" in said
    assert "[/INST]" in out and "[bold]now" in out, "taken for markup"
    assert "\x1b" not in out and "\\x1b[2J" in out


def test_a_key_that_is_refused_after_the_preflight_stops_the_sweep(trained, tmp_path, refusing):
    """The endpoint lists its models to anybody and refuses the first question: one cell asks."""
    done = trained(tmp_path / "runs", *RECORDS_ONLY, *refusing[0], "seed=0,1,2")
    assert done.returncode == 1, done.stdout + done.stderr
    states = [folder.state() for folder in study_cells(tmp_path / "runs" / "debug")]
    assert sorted(states) == ["failed", "new", "new"]
    assert "2 cells that use it were not started" in " ".join(done.stdout.split())
    assert "\x1b" not in done.stdout


def test_hydra_leaves_loggers_as_they_are() -> None:
    """What warns in the sweep's own process is heard."""
    logger, root = logging.getLogger("made.before.the.sweep"), logging.getLogger()
    before = list(root.handlers), root.level
    assert len(cells_of(["judge=sim-fair", "seed=0"])) == 1
    assert not logger.disabled and (root.handlers, root.level) == before


@pytest.mark.parametrize(
    ("argument", "typed"),
    [
        ("judge=[sim-fair,sim-verbose]", "judge=sim-fair,sim-verbose"),
        ("seed=[0, 1]", "seed=0,1"),
        ("policy=[tiny]", "policy=tiny"),
        ("trainer.steps=[1,2]", "trainer.steps=1,2"),
        ("judge.sampling.seed=[1,2]", "judge.sampling.seed=1,2"),
        ("+arm=[rl,verif]", "arm=rl,verif"),
    ],
)
def test_values_in_brackets_are_refused_with_what_to_type(argument, typed) -> None:
    with pytest.raises(UserError) as caught:
        refuse_lists(["plan=true", argument])
    assert str(caught.value).endswith(typed)
    lists = ["factors=[judge,seed]", "shadow=[sim-fair]", "judge.serve.extra=[--x]"]
    refuse_lists([*lists, "task.options.words=[a]", "judge.grading.options.x=[a]", "seed=0,1"])


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("judge=[sim-fair,sim-verbose]", "judge=sim-fair,sim-verbose"),
        ("trainer.steps=-5", "trainer.steps=-5 is not legal"),
        ("study=../../x", "study=../../x is not legal"),
        ("trainer.micro_batch=7", "does not divide the 64"),
        ("trainer.loss_type=dpo", "dr_grpo"),
        ("factors=[judge,sed]", "not a key of the config"),
        ("judge.simulated.tpr=nan", "judge.simulated.tpr=nan"),
    ],
)
def test_the_plan_refuses_what_would_run_without_end_or_elsewhere(
    trained, tmp_path, argument, words
):
    done = trained(tmp_path / "a" / "runs", "plan=true", "judge=sim-fair", "seed=0", argument)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("threads", ["many", "0", "-1", "1e3", "99999999999999999999"])
def test_a_cell_by_hand_wants_a_number_of_threads(threads, tmp_path, capsys) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    assert train.main([f"cell={tmp_path}", f"threads={threads}"]) == 2
    assert f"threads={threads} is not legal" in capsys.readouterr().err


def records(folder: Path, kind: str) -> list[dict]:
    return ds.dataset(folder / kind, format="parquet").to_table().to_pylist()


def test_a_policy_is_trained_under_a_scorer_with_another_as_shadow_and_replayed(
    trained, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["study=scored", "judge=vader", "shadow=[rouge-l]", "seed=0"]
    done = trained(tmp_path, *RECORDS_ONLY, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (cell,) = [marker.parent for marker in (tmp_path / "scored").glob("*/DONE")]
    answers = {row["rollout_id"]: row["answer"] for row in records(cell, "rollouts")}
    verdicts = records(cell, "verdicts")
    said = {(row["judge"], row["rollout_id"]): row["score"] for row in verdicts}
    assert {judge for judge, _ in said} == {"vader", "rouge-l"}
    assert len(said) == 2 * len(answers)
    for place, answer in answers.items():
        expected = score(Scorer("vader"), answer or "", "")
        assert said["vader", place] == pytest.approx(expected, abs=1e-8)
    for judge in ("vader", "rouge-l"):
        out = [f"out={judge}", f"judge={judge}", "study=scored", f"runs_dir={tmp_path}"]
        assert replay(out) == 0
        assert "0 judge calls made" in capsys.readouterr().out
        again = records(tmp_path / "scored" / "replays" / judge / cell.name, "rollouts")
        scores = {row["rollout_id"]: row["judge_score"] for row in again}
        assert scores == {place: said[judge, place] for place in answers}
