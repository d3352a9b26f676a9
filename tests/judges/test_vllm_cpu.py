"""The launcher of the local judge server, without the server."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.waiting import GENEROUS_S

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


def test_without_vllm_it_says_what_to_type(tmp_path: Path):
    done = launch(tmp_path, "serve")
    assert done.returncode == 2
    assert "make vllm-cpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_vllm_lacks_is_not_hidden(site: Path):
    (site / "torch_like.py").unlink()
    done = launch(site)
    assert done.returncode == 1
    assert "No module named 'torch_like'" in done.stderr
