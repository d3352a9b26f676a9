"""All stages of a pipeline once, and no stage twice: with a random little policy on small sets."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from experiments.pipeline import __main__ as pipeline
from experiments.pipeline.__main__ import main
from experiments.pipeline.notes import NOTES
from experiments.pipeline.steps import STAGES, Step
from study.system import locks
from study.system.files import read_json, sha256, write_json
from tests import commands
from tests.conftest import ROOT, run_alone
from tests.experiments.small_sets import write_sets

SMALL = (
    *("policy=smollm2-135m-instruct", "judge=sim-fair", "datasets=gsm8k,hotpotqa,squad2"),
    *("trainer.steps=2", "trainer.prompts_per_step=2", "trainer.group_size=2"),
    *("trainer.micro_batch=2", "trainer.max_completion_length=4", "trainer.eval_steps=0"),
    *("trainer.keep_steps=false", "trainer.beta=0", "tracking=none", "study=small"),
    "trainer.vllm.mode=none",
    *("evaluate.max_tokens=4", "evaluate.limit=4"),
)
FOLDERS = {"policy.path": "little", "runs_dir": "runs", "task.path": "rows", "data.root": "sets"}


class Place:
    """A folder with a policy, sets, and everything that a pipeline makes."""

    def __init__(self, folder: Path, little: Path) -> None:
        self.folder, self.study = folder, folder / "runs" / "small"
        shutil.copytree(little, folder / "little")
        config = read_json(little / "config.json") | {"max_position_embeddings": 2048}
        write_json(folder / "little" / "config.json", config)
        write_sets(folder / "sets")

    def words(self, *more: str) -> list[str]:
        """The usual words, and ``more`` in the place of those with the same key."""
        usual = [*SMALL, *(f"{key}={self.folder / name}" for key, name in FOLDERS.items())]
        keys = {word.partition("=")[0] for word in more}
        return [*(word for word in usual if word.partition("=")[0] not in keys), *more]

    def start(self, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-m", "experiments.pipeline", *self.words(*more)]
        return subprocess.Popen(command, cwd=ROOT, text=True, stdout=-1, stderr=-2)

    def run(self, capfd: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
        """The exit code of a pipeline in this process, and what it and its commands print."""
        code = main(self.words(*more))
        captured = capfd.readouterr()
        return code, captured.out + captured.err

    @property
    def cell(self) -> Path:
        (config,) = self.study.glob("*/config.yaml")
        return config.parent

    @property
    def results(self) -> list[dict[str, Any]]:
        """What the evaluation of the cell says of each set."""
        path = self.study / "results" / "pipeline" / f"{self.cell.name}.json"
        return read_json(path)["datasets"]

    def files(self) -> dict[Path, tuple[int, int]]:
        """Every file with its size and its time of change."""
        stats = {path: path.stat() for path in self.folder.rglob("*") if path.is_file()}
        return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}

    def outcome(self) -> tuple[object, ...]:
        """What does not depend on when and how often it was made."""
        rollouts = [
            [{**row, "time_ms": 0} for row in pq.read_table(path).to_pylist()]
            for path in sorted((self.cell / "rollouts").glob("*.parquet"))
        ]
        metrics = [entry["metrics"] for entry in self.results]
        weights = sha256(self.cell / "policy" / "adapter_model.safetensors")
        return sha256(self.folder / "rows" / "rows.arrow"), rollouts, weights, metrics


def stated(text: str) -> dict[str, str]:
    """Stage -> what was said of it, by the first line on it."""
    said: dict[str, str] = {}
    for line in text.splitlines():
        stage, colon, what = line.partition(":")
        if colon and stage.split(" ")[0] in STAGES:
            said.setdefault(stage.split(" ")[0], what.strip())
    return said


def planned(place: Place, capsys, *more: str) -> dict[str, str]:
    """Stage -> what a plan says of it."""
    assert main(place.words("plan=true", *more)) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line.split()[0]: line.partition(" ")[2].strip() for line in lines if line[0] != " "}


def call_forked(step: Step) -> int:
    """In the place of `pipeline.call`, which starts each command as a Python of its own."""
    variables = os.environ | dict(step.variables or {})
    with commands.start(*step.words, stdin=subprocess.DEVNULL, env=variables) as child:
        return child.wait(commands.LIMIT_S)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, little) -> Place:
    place = Place(tmp_path_factory.mktemp("pipeline"), little)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline, "call", call_forked)
        assert main(place.words()) == 0
    return place


@pytest.mark.slow
def test_every_stage_leaves_what_it_is_for(finished):
    steps = ["prepare", "train", f"evaluate {finished.cell.name}", "report"]
    assert list(read_json(finished.study / NOTES)["steps"]) == steps
    assert (finished.cell / "DONE").exists()
    first, second = (finished.cell / "metrics.jsonl").read_text().splitlines()
    adapter = load_file(finished.cell / "policy" / "adapter_model.safetensors")
    trained = sum(weight.size for weight in adapter.values())
    assert json.loads(first)["metrics"]["policy/trainable_parameters"] == trained
    assert "policy/trainable_parameters" not in json.loads(second)["metrics"]
    assert (finished.study / "report" / "bias_report.html").exists()
    # the one article of squad2 went to train: none of its rows may be evaluated
    assert {entry["dataset"] for entry in finished.results} == {"gsm8k", "hotpotqa"}
    assert all(entry["n_trained_on"] for entry in finished.results)


@pytest.mark.slow
def test_a_second_run_does_nothing_and_says_so(finished, capfd):
    before = finished.files()
    code, text = finished.run(capfd)
    assert code == 0 and finished.files() == before
    said = stated(text)
    assert list(said) == list(STAGES)
    assert all(what.startswith("done, ") for what in said.values())
    said = planned(finished, capfd)
    assert list(said) == list(STAGES) and finished.files() == before
    assert {what.split()[0] for what in said.values()} == {"done"}


@pytest.mark.slow
def test_a_finished_pipeline_loads_no_torch(finished):
    said = run_alone(
        "import sys; from experiments.pipeline.__main__ import main;"
        f"code = main({finished.words()});"
        "print([name for name in ('torch', 'mlflow', 'transformers') if name in sys.modules], code)"
    )
    assert said.splitlines()[-1] == "[] 0", said


@pytest.mark.slow
def test_a_plan_says_what_a_change_would_make_run(finished, capsys):
    source = finished.folder / "sets" / "gsm8k" / "test.jsonl"
    text = source.read_text()
    assert {said.split()[0] for said in planned(finished, capsys).values()} == {"done"}
    try:
        source.write_text(text + text.splitlines()[0].replace("pears", "plums") + "\n")
        said = planned(finished, capsys)
    finally:
        source.write_text(text)
    assert said["download"].startswith("done")
    assert said["prepare"].startswith("would run") and str(source) in said["prepare"]
    assert all(said[stage].startswith("would run") for stage in ("train", "evaluate", "report"))
    # the time of change alone makes nothing run
    assert {said.split()[0] for said in planned(finished, capsys).values()} == {"done"}
    said = planned(finished, capsys, "seed=0,1", "skip=evaluate", "evaluate.seed=3")
    assert said["prepare"].startswith("done") and said["train"].startswith("would run")
    assert said["evaluate"].startswith("skipped")
    said = planned(finished, capsys, "stages=evaluate", "evaluate.seed=3")
    assert said["evaluate"].startswith("would run") and said["report"].startswith("skipped")


@pytest.mark.slow
def test_what_is_lost_or_damaged_is_made_again_and_nothing_else(finished, capfd, monkeypatch):
    monkeypatch.setattr(pipeline, "call", call_forked)
    before = finished.outcome()
    weights = finished.cell / "policy" / "adapter_model.safetensors"
    (records,) = (finished.cell / "rollouts").iterdir()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    (finished.study / "report" / "bias_report.html").unlink()
    written = records.stat().st_mtime_ns
    code, text = finished.run(capfd)
    assert code == 0, text
    said = stated(text)
    assert said["train"].endswith("is not what was written") and said["report"].endswith("is gone")
    assert [said[stage][:4] for stage in ("download", "prepare", "evaluate")] == ["done"] * 3
    assert records.stat().st_mtime_ns == written  # from the last checkpoint
    assert finished.outcome() == before


@pytest.mark.long
@pytest.mark.slow
def test_damaged_records_are_set_aside_and_trained_anew(finished, capfd):
    before = finished.outcome()
    (records,) = (finished.cell / "rollouts").iterdir()
    records.write_bytes(b"PAR1" + bytes(40) + b"PAR1")
    shutil.rmtree(finished.folder / "rows")
    code, text = finished.run(capfd)
    assert code == 0, text
    (aside,) = (finished.study / "replaced").iterdir()
    assert aside.name == f"{finished.cell.name}-1" and str(aside) in text
    assert finished.outcome() == before


@pytest.mark.long
@pytest.mark.slow
def test_a_pipeline_that_is_killed_in_every_stage_comes_to_the_same_end(
    finished, tmp_path, little, capfd
):
    """By kill -9, as each stage's command begins."""
    place = Place(tmp_path, little)
    for command in ("experiments.data", "experiments.sweep", "experiments.evaluate", "report"):
        child = place.start()
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("python -m") and command in line:
                break
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        notes = read_json(place.study / NOTES)["steps"]
        assert [name for name, note in notes.items() if note["leaves"] is None] == [list(notes)[-1]]
    code, text = place.run(capfd)
    assert code == 0, text
    assert stated(text)["evaluate"].startswith("done")
    assert place.outcome() == finished.outcome()


@pytest.mark.slow
def test_another_study_does_not_replace_rows_that_were_prepared_otherwise(finished, capfd):
    before = sha256(finished.folder / "rows" / "manifest.json")
    code, text = finished.run(capfd, "study=other", "data.seed=7")
    assert code == 2 and "task.path=ANOTHER_FOLDER" in text and "data.seed=7" in text
    assert sha256(finished.folder / "rows" / "manifest.json") == before


@pytest.mark.slow
def test_a_stage_that_fails_ends_the_pipeline_with_its_code(finished, capfd):
    code, text = finished.run(capfd, "evaluate.method=sc", "evaluate.samples=1")
    assert code == 2 and "The stage evaluate failed" in text
    assert "samples=8" in text and "rerun the command" in text
    assert stated(text)["train"].startswith("done")


def refused(place: Place, capsys, *words: str) -> str:
    """What one paragraph says to these words, and that nothing was written."""
    before = place.files()
    assert main(place.words(*words)) == 2
    captured = capsys.readouterr()
    assert place.files() == before and not captured.out
    assert "Traceback" not in captured.err and captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def fresh(tmp_path, little) -> Place:
    return Place(tmp_path, little)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stages=trian"], "Did you mean train?"),
        (["skip=download,evaluation"], "Did you mean evaluate?"),
        (["skip=download,prepare,train,evaluate,report"], "Leave one in"),
        (["device=cuda:7"], "This machine has cpu"),
        (["device=gpu"], "cuda:N"),
        (["data.domains.chemistry=1"], "chemistry"),
        (["data.sede=1"], "sede"),
        (["trainer.stpes=1"], "stpes"),
        (["wibble=1"], "wibble"),
        (["task=instruct-mini", "task.path=null"], "draws no rows of data="),
        (["policy.path=/not/there/either"], "config.json"),
        (["study=a/b"], "a plain name"),
        (["evaluate.limti=4"], "Did you mean limit=?"),
        (["evaluate.limit=0"], "1 or more"),
        (["evaluate.run=elsewhere"], "run= is given twice"),
        (["task.path=a,b"], "several folders"),
    ],
)
def test_bad_input_is_said_before_anything_is_written(fresh, capsys, monkeypatch, words, said):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert said in refused(fresh, capsys, *words)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1, "steps": 3}', '{"format": 9, "steps": {}}']
)
def test_half_written_notes_are_refused(fresh, capsys, text):
    fresh.study.mkdir(parents=True)
    (fresh.study / NOTES).write_text(text)
    assert f"{NOTES} is damaged" in refused(fresh, capsys)


def test_a_study_that_is_a_file_is_refused(fresh, capsys):
    fresh.study.parent.mkdir()
    fresh.study.touch()
    assert "cannot be written" in refused(fresh, capsys)


def test_two_pipelines_of_one_study_do_not_meet(fresh, capsys):
    fresh.study.mkdir(parents=True)
    with locks.take(fresh.study / ".pipeline.lock") or pytest.fail("it is held"):
        assert "Another process runs a pipeline" in refused(fresh, capsys)


def test_a_task_that_draws_no_prepared_rows_needs_no_data(tmp_path, capsys):
    words = ["policy=tiny", "task=instruct-mini", "judge=sim-fair", f"runs_dir={tmp_path}"]
    assert main([*words, "plan=true"]) == 0
    text = capsys.readouterr().out
    assert text.count("skipped") == 3 and text.count("would run") == 2
    assert not list(tmp_path.iterdir())


def test_a_policy_that_needs_a_gpu_is_refused_before_any_stage_and_planned_all_the_same(
    fresh, capsys, gpus_here
):
    gpus_here(0)
    words = "trainer.vllm.mode=colocate"
    assert "this process may use no GPU" in refused(fresh, capsys, words)
    assert not fresh.study.exists()
    assert planned(fresh, capsys, words)["train"].startswith("would run")
