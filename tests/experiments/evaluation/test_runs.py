"""Evaluations of a run's own policy, and answers that are generated for rows."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
import yaml

from experiments.data.__main__ import main as prepare
from experiments.evaluate import main
from experiments.evaluation import baselines, chosen, datasets
from experiments.evaluation.options import Options
from experiments.tracking.store import load_mlflow
from study.cell.folder import CellFolder
from study.cell.records import write_part
from study.tasks.datasets.sets import reported
from study.tasks.datasets.table import open_table
from tests.experiments.evaluation.answering import ROOT, entry, items, prompt_of, serving, solver
from tests.waiting import GENEROUS_S, wait_for


@pytest.fixture
def cell(runs, tmp_path, little):
    """A tracked run that was trained on row 3 of gsm8k and on rows that no set has."""
    folder = runs / "study" / "cell"
    (folder / "rollouts").mkdir(parents=True)
    base = tmp_path / "base"
    shutil.copytree(little, base)
    config = json.loads((base / "config.json").read_text()) | {"max_position_embeddings": 2048}
    (base / "config.json").write_text(json.dumps(config))
    shutil.copytree(base, folder / "policy")
    config = {
        "judge": {"name": "sim-fair", "endpoint": {"model": ""}},
        "task": {"name": "prompts"},
        "policy": {"path": str(base), "dtype": "float32"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "status.json").write_text(json.dumps({"step": 40}))
    rows = [
        {"step": 1, "prompt": "another", "item": "gsm8k:test:3"},
        {"step": 1, "prompt": "another", "item": None},
    ]
    kinds = {"step": "int32", "prompt": "string", "item": "string"}
    write_part(folder / "rollouts" / "step-000001.parquet", rows, kinds)
    return folder


def test_a_run_is_not_scored_on_what_it_was_trained_on(evaluate, cell):
    words = [f"run={cell}", "datasets=gsm8k,hotpotqa", "max_tokens=4", "limit=6", "track=false"]
    code, result = evaluate(None, *words)
    assert code == 0
    evaluated = entry(result, "gsm8k")
    assert (evaluated["n_trained_on"], evaluated["n"]) == (1, 6)
    ids = [line["id"] for line in items(evaluated)]
    assert ids == [f"gsm8k:test:{n}" for n in (0, 1, 2, 4, 5, 6)]
    assert entry(result, "hotpotqa")["n_trained_on"] == 0
    place = cell.parent / "results" / "evaluation" / "cell-step-40_results.json"
    assert json.loads(place.read_text()) == result
    untrained = evaluated["baselines"]["untrained"]
    assert untrained["accuracy"] is None and "checkpoint=0" in untrained["command"]
    assert main(shlex.split(untrained["command"])[3:]) == 0
    _, again = evaluate(None, *words)
    before = entry(again, "gsm8k")["baselines"]["untrained"]
    assert before["n"] == 6 and before["accuracy"] is not None
    made = json.loads(Path(before["file"]).read_text())
    assert made["model"].startswith("base@") and result["model"] != made["model"]


def test_a_studys_result_is_not_lost_to_a_smaller_or_another_one(evaluate, cell):
    words = [f"run={cell}", "max_tokens=2", "track=false"]
    folder = cell.parent / "results" / "evaluation"
    place = folder / "cell-step-40_results.json"
    _, whole = evaluate(None, *words, "datasets=gsm8k", "limit=4")
    evaluate(None, *words, "datasets=gsm8k", "limit=2", out="small.json")
    assert json.loads(place.read_text()) == whole and len(list(folder.iterdir())) == 1
    _, other = evaluate(None, *words, "datasets=hotpotqa", out="other.json")
    assert json.loads(place.read_text()) == other
    (aside,) = set(folder.iterdir()) - {place}
    assert json.loads(aside.read_text()) == whole
    evaluate(None, *words, "datasets=hotpotqa", out="other.json")
    assert len(list(folder.iterdir())) == 2  # the same again is no other


def test_the_untrained_model_of_a_runs_adapter_is_asked_as_the_runs(cell, root, tmp_path):
    """So that it leaves out the same rows."""
    adapter = cell / "checkpoint-3"
    adapter.mkdir()
    words = ["datasets", f"adapter={adapter}", f"data.root={root}", f"out={tmp_path / 'o.json'}"]
    options = main.read([*words, "limit=5"])
    model, changed = datasets._untrained(options, "base@1 + checkpoint-3")
    assert model.startswith("base@")
    read = main.read(shlex.split(baselines.typed(options, "untrained", changed))[3:])
    assert (read.run, read.checkpoint, read.adapter) == (CellFolder(cell), 0, None)
    assert read.limit == 5


def test_a_tracked_runs_numbers_are_metrics_of_its_model(evaluate, cell, runs):
    uri = f"sqlite:///{runs / 'mlflow.db'}"
    client = load_mlflow().MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("study")
    run_id = client.create_run(experiment).info.run_id
    tracked = {"uri": uri, "experiment_id": experiment, "run_id": run_id}
    (cell / "mlflow.json").write_text(json.dumps(tracked))
    words = [f"run={cell}", "datasets=hotpotqa", "max_tokens=4", "method=sc", "samples=2"]
    code, result = evaluate(None, *words)
    (model,) = client.search_logged_models([experiment])
    metrics = {each.key: each.value for each in client.get_logged_model(model.model_id).metrics}
    evaluated = entry(result, "hotpotqa")
    assert code == 0 and model.name == "cell-step-40"
    assert metrics["eval/datasets/hotpotqa-dev/maj_at_2"] == evaluated["metrics"]["maj@2"]
    assert metrics["eval/datasets/averages/weighted"] == result["averages"]["weighted"]
    place = cell.parent / "results" / "evaluation" / "cell-step-40-sc_results.json"
    assert json.loads(place.read_text())["datasets"] == result["datasets"]


def test_a_row_of_another_set_with_the_same_problem_was_trained_on(root):
    """As the rows of MATH-500 are rows of MATH under other ids."""
    (root / "math500").mkdir()
    shutil.copy(root / "math" / "test.jsonl", root / "math500" / "test.jsonl")
    seen = chosen.TrainedRows(frozenset(), frozenset({reported("math", root)[1].prompt}), None, ())
    assert [seen.holds(item) for item in reported("math500", root)] == [False, True, False]


def test_rows_that_a_run_may_yet_draw_are_not_scored(evaluate, cell, root, tmp_path):
    """plan-c cuts the test file where there is no other: its train rows are no held-out rows."""
    folder = tmp_path / "prepared"
    words = ["prepare", "data=plan-c", "datasets=gsm8k,commonsenseqa", f"data.root={root}"]
    assert prepare([*words, f"out={folder}"]) == 0
    table = open_table(folder)
    train = {item.id for name in ("gsm8k", "commonsenseqa") for item in table.rows("train", name)}
    assert 10 < len(train) < 25
    config = yaml.safe_load((cell / "config.yaml").read_text())
    for chosen_sets in ([], ["gsm8k"]):
        options = {"datasets": chosen_sets}
        config["task"] = {"name": "mixed", "path": str(folder), "options": options}
        (cell / "config.yaml").write_text(yaml.safe_dump(config))
        shutil.rmtree(cell / "rollouts", ignore_errors=True)
        words = [f"run={cell}", "max_tokens=2", "track=false", "datasets=gsm8k,commonsenseqa"]
        _, result = evaluate(None, *words, out=f"{len(chosen_sets)}.json")
        trained = {name for name in train if not chosen_sets or name.startswith("gsm8k")}
        for evaluated, size in zip(result["datasets"], (20, 5), strict=True):
            scored = {line["id"] for line in items(evaluated)}
            assert not scored & trained
            assert evaluated["n_trained_on"] == size - len(scored)
            assert len(scored | {n for n in trained if n.startswith(evaluated["dataset"])}) == size


def test_what_a_run_may_yet_draw_is_not_known_without_its_folder(evaluate, cell, capsys):
    config = yaml.safe_load((cell / "config.yaml").read_text())
    config["task"] = {"name": "mixed", "path": "moved/away", "options": {}}
    (cell / "config.yaml").write_text(yaml.safe_dump(config))
    words = [f"run={cell}", "max_tokens=2", "track=false", "datasets=gsm8k", "limit=4"]
    _, result = evaluate(None, *words)
    evaluated = entry(result, "gsm8k")
    assert evaluated["n_trained_on"] is None
    assert [line["id"] for line in items(evaluated)] == [f"gsm8k:test:{n}" for n in (0, 1, 2, 4)]
    assert "known from its records only" in " ".join(capsys.readouterr().err.split())


def test_a_run_is_not_graded_by_the_judge_that_trained_it(evaluate, cell, tmp_path, capsys):
    words = [f"run={cell}", "datasets=hotpotqa", "max_tokens=4", "track=false", "judge=sim-fair"]
    words += [f"runs_dir={tmp_path / 'verdicts'}"]
    assert evaluate(None, *words)[0] == 2
    assert "same_judge=true" in capsys.readouterr().err
    code, result = evaluate(None, *words, "same_judge=true")
    assert code == 0 and result["same_judge"] is True


def test_a_command_that_is_printed_can_be_typed(tmp_path):
    """Whatever was typed, the words of a baseline's command are read without complaint."""
    typed = ["datasets", "run=runs/a/b", "datasets=gsm8k,mbpp", "limit=5", "select=facility"]
    typed += ["data.root=some where", "thinking=false", f"out={tmp_path / 'o.json'}"]
    typed += ["temperature=1"]
    options = main.read([*typed, "judge=sim-fair", "judge.sampling.votes=1", "samples=4"])
    assert isinstance(options, Options)
    for words in ({"method": "sc"}, {"method": "cot"}, {"checkpoint": 0}):
        read = main.read(shlex.split(baselines.typed(options, "other", words))[3:])
        assert read.out == tmp_path / "o-other.json"
        assert (read.limit, read.select, read.datasets) == (5, "facility", ["gsm8k", "mbpp"])
        assert (read.root, read.thinking, read.judge) == ("some where", False, "")
        assert (read.method, read.checkpoint) == (words.get("method"), words.get("checkpoint"))


def test_methods_are_each_others_baselines(evaluate, root, capsys):
    with serving(solver(root)) as (url, seen):
        words = ["datasets=gsm8k", f"endpoint={url}", "model=m"]
        code, direct = evaluate(None, *words, out="direct.json")
        assert code == 0 and entry(direct, "gsm8k")["metrics"]["accuracy"] == 0.5
        said = capsys.readouterr().out
        baselines = entry(direct, "gsm8k")["baselines"]
        missing = {name for name, each in baselines.items() if each["accuracy"] is None}
        assert missing == {
            *("untrained", "chain_of_thought", "self_consistency", "oracle_best_of_k")
        }
        assert baselines["direct"]["accuracy"] == 0.5
        for label in ("chain_of_thought", "self_consistency"):
            command = baselines[label]["command"]
            assert command in said
            assert main(shlex.split(command)[3:]) == 0
        assert len(set(map(prompt_of, seen))) == 40
        code, again = evaluate(None, *words, out="direct.json")
    others = entry(again, "gsm8k")["baselines"]
    assert others["direct"]["accuracy"] == 0.5
    assert others["chain_of_thought"]["accuracy"] == 19 / 20
    best = others["oracle_best_of_k"]
    assert best.keys() == {"accuracy", "k", "n", "ci95", "file"}
    assert (best["accuracy"], best["k"], best["n"]) == (19 / 20, 8, 20)
    # one reasoned answer already takes more tokens than a direct one
    assert others["self_consistency"]["votes"] == 1
    voted = json.loads(Path(others["self_consistency"]["file"]).read_text())
    evaluated = entry(voted, "gsm8k")
    assert (voted["method"], voted["generation"]["temperature"]) == ("sc", 0.7)
    assert evaluated["n_samples"] == 160
    assert evaluated["metrics"]["maj@8"] == 19 / 20 > evaluated["metrics"]["accuracy"]
    assert evaluated["baselines"]["self_consistency"]["votes"] == 8
    assert others["constant"]["accuracy"] == 1 / 20
    assert others["untrained"] == {"accuracy": None, "command": None}


def test_another_choice_of_rows_keeps_the_answers_that_are_there(evaluate, root):
    with serving(solver(root)) as (url, seen):
        words = ["datasets=gsm8k", f"endpoint={url}", "model=m"]
        for more in (["limit=8"], ["limit=4"], ["limit=8", "method=cot"], ["limit=8"]):
            code, result = evaluate(None, *words, *more)
            assert code == 0 and entry(result, "gsm8k")["n"] == int(more[0][6:])
    assert len(seen) == 16 and result["n_beside"] == 8


def test_only_answers_that_are_evaluated_count_as_truncated(evaluate, root):
    with serving(solver(root), end="length") as (url, _):
        words = ["datasets=gsm8k", f"endpoint={url}", "model=m"]
        truncated = [evaluate(None, *words, f"limit={n}")[1]["n_truncated"] for n in (6, 4)]
    assert truncated == [6, 4]


def test_prompts_of_a_method_have_hashes_of_their_own(root):
    item = reported("gsm8k", root)[0]
    assert chosen.prompt_of(item, "direct") == item.prompt == chosen.prompt_of(item, None)
    asked = chosen.prompt_of(item, "cot")
    assert asked.startswith(item.prompt) and "step by step" in asked
    program = reported("mbpp", root)[0]
    assert "block of code" in chosen.prompt_of(program, "sc").removeprefix(program.prompt)


def killed_after(url, root, out, answers):
    """Start the evaluation, kill -9 it once ``answers`` responses are in its file; the file."""
    command = [
        *(sys.executable, "-m", "experiments.evaluate", "datasets", "datasets=gsm8k"),
        *(f"endpoint={url}", "model=m", f"data.root={root}", f"out={out}", "concurrency=1"),
    ]
    file = out.with_suffix(".responses.jsonl")

    def has_answers() -> bool:
        assert child.poll() is None
        return file.exists() and file.read_bytes().count(b"\n") >= answers

    with subprocess.Popen(command, cwd=ROOT, env=os.environ) as child:
        wait_for(has_answers)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    return command, file


def test_a_killed_evaluation_goes_on(root, tmp_path):
    out = tmp_path / "out.json"
    whole, go_on = solver(root), Event()

    def held(body):
        """Five answers, and the others once the first run was killed."""
        assert len(seen) <= 5 or go_on.wait(GENEROUS_S)
        return whole(body)

    with serving(held) as (url, seen):
        command, file = killed_after(url, root, out, 5)
        go_on.set()
        assert not out.exists()
        answered = file.read_bytes().count(b"\n")
        before = len(seen)
        assert main([*command[3:]]) == 0
    assert len(seen) - before == 20 - answered
    assert entry(json.loads(out.read_text()), "gsm8k")["n"] == 20
