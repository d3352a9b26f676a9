"""A simulated judge behind a real socket, and what a wrong command line is told."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from experiments.config import Grading, Judge, Task
from experiments.errors import UserError
from experiments.tasks import TASKS
from judges import serve
from judges.bias import DEFAULT_REFERENCE
from judges.features import features
from judges.grading import GRADINGS
from judges.simulated import simulated_app

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments, **kwargs):
    return subprocess.Popen(
        [sys.executable, "-m", "judges.serve", *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        **kwargs,
    )


@pytest.fixture(scope="module")
def address():
    """The base URL of sim-verbose with an unmistakable dose, on a port of its own choice."""
    dose = "judge.simulated.doses.length=0.05"
    process = command("judge=sim-verbose", "port=0", dose)
    assert process.stdout and process.stderr
    line = process.stdout.readline()
    found = re.search(r"sim-verbose answers at (http://127\.0\.0\.1:\d+/v1)", line)
    if found is None:
        process.kill()
        pytest.fail(f"no address in {line!r}: {process.communicate()}")
    yield found[1]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def fetch(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def test_it_judges_over_the_wire_as_its_preset_says(address):
    assert [model["id"] for model in fetch(f"{address}/models")["data"]] == ["sim-verbose"]
    task = Task(name="instruct-mini", train_rows=2048, eval_rows=256)
    row = TASKS["instruct-mini"].rows(task, "train")[0]
    grading = GRADINGS["likert"]({})
    scores = []
    for answer in ("yes", "yes and so on for seven words"):
        body = {"model": "sim-verbose", "messages": grading.messages(row, answer)}
        reply = fetch(f"{address}/chat/completions", body)
        text = reply["choices"][0]["message"]["content"]
        scores.append(float(text.strip("[]")) / 100)
        truth = TASKS["instruct-mini"].truth(row, answer).score
        mean, sd = DEFAULT_REFERENCE["length"]
        bias = 0.05 * (features(answer)["length"] - mean) / sd
        assert scores[-1] == pytest.approx(min(max(truth + bias, 0), 1), abs=1e-7)


def test_an_unknown_prompt_is_a_404_over_the_wire(address):
    with pytest.raises(urllib.error.HTTPError) as problem:
        fetch(f"{address}/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    with problem.value as response:
        assert response.code == 404 and json.load(response)["error"]["code"] == "unknown_prompt"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "sim-fair"),
        (["judge=sim-nice"], "sim-fair"),
        (["judge=../judge/sim-fair"], "sim-fair"),
        (["judge=sim-fair", "task=nothing"], "instruct-mini"),
        (["judge=sim-fair", "port=http"], "port=http"),
        (["judge=sim-fair", "prot=1"], "'prot=1'"),
        (["judge=sim-fair", "--verbose"], "--verbose"),
        (["judge=sim-fair", "judge.simulated.nose_sd=1"], "nose_sd"),
        (["judge=sim-fair", "+judge.simulated.doses.lenght=1"], "'lenght'"),
        (["judge=sim-fair", "judge.simulated=null"], "sim-fair is not simulated"),
        (["judge=sim-fair", "host=203.0.113.1"], "203.0.113.1"),
    ],
)
def test_a_wrong_command_line_gets_one_paragraph_and_exit_code_2(capsys, arguments, named):
    assert serve.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and named in printed.err and printed.err.count("\n") == 1


def test_the_process_too_exits_2_without_a_traceback():
    process = command("judge=sim-nice")
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and out == ""
    assert "sim-verbose" in errors and "Traceback" not in errors


def test_a_real_preset_says_how_to_start_it(tmp_path, monkeypatch):
    (tmp_path / "judge").mkdir()
    (tmp_path / "task").symlink_to(ROOT / "conf" / "task")
    (tmp_path / "judge" / "real.yaml").write_text(
        "defaults: [base, _self_]\nname: real\nendpoint:\n  url: http://127.0.0.1:9/v1\n"
        "  start_command: serve-it --now\n"
    )
    monkeypatch.setattr(serve, "CONF", tmp_path)
    with pytest.raises(UserError, match=re.escape("Start it with: serve-it --now")):
        serve.serve(serve.read_command(["judge=real"]))


def test_a_taken_port_says_what_to_type(capsys, address):
    port = address.split(":")[2].removesuffix("/v1")
    assert serve.main(["judge=sim-fair", f"port={port}"]) == 2
    assert "port=0" in capsys.readouterr().err


PRESETS = sorted(path.stem for path in (ROOT / "conf" / "judge").glob("sim-*.yaml"))


@pytest.mark.parametrize("name", PRESETS)
def test_every_simulated_preset_can_be_served(name):
    judge, task = serve.load(serve.read_command([f"judge={name}"]))
    assert isinstance(judge, Judge) and judge.simulated is not None
    assert (judge.name, judge.endpoint.model, judge.grading) == (name, name, Grading("likert", {}))
    assert (judge.family, judge.size, task.name) == ("simulated", "rule", "instruct-mini")
    simulated_app(judge, lambda prompt, answer: None)


def test_the_presets_that_the_study_promises():
    promised = "fair verbose structured flattery confident keyword lenient strict noisy flaky"
    assert {f"sim-{kind}" for kind in promised.split()} <= set(PRESETS)
    fair, _ = serve.load(serve.read_command(["judge=sim-fair"]))
    assert fair.simulated is not None and not any(fair.simulated.doses.values())
