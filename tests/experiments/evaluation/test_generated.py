"""Answers of an endpoint: methods as each other's baselines, and an evaluation that goes on."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

from experiments.evaluate import main
from experiments.evaluation import chosen
from study.tasks.datasets.sets import reported
from tests.experiments.evaluation.answering import ROOT, entry, prompt_of, serving, solver
from tests.waiting import GENEROUS_S, wait_for


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
