"""What `make setup` calls in which order, and what uv is told of pip's settings."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from requirements import bytecode, installers, uv_pip
from tests.conftest import ROOT

STUB = """#!/bin/sh
echo "$PIP_REQUIRE_VIRTUALENV $*" >> calls
case "$*" in {fails}) exit 1;; esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what `make setup` reads."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    return tmp_path


def make_setup(
    clone: Path, fails: str = "nothing"
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """`make setup` with a Python that only writes down what it is asked.

    Args:
        fails: what it fails at, a pattern of the shell over the words that follow `python`.
    """
    for stub in (clone / "stub", clone / ".venv" / "bin" / "python"):
        stub.write_text(STUB.format(fails=fails))
        stub.chmod(0o700)
    (clone / "calls").write_text("")
    outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(
        ["make", "setup", "PYTHON=./stub"], cwd=clone, capture_output=True, text=True, env=outside
    )
    return done, (clone / "calls").read_text().splitlines()


def test_make_installs_into_its_own_environment_alone(clone):
    """Where .venv leads to some other Python, pip is told to refuse; the pins come with hashes."""
    done, calls = make_setup(clone)
    assert done.returncode == 0, done.stderr
    assert all(call.startswith("1 ") for call in calls)
    installed = [call[2:] for call in calls if "install" in call]
    assert installed[0] == "requirements/installers.py"
    for words in ("--no-deps --require-hashes -r constraints.txt", "--require-build-hashes"):
        assert words in installed[1]
    assert re.fullmatch(r"-m pip install -q torch==\S+", installed[2])
    assert "--no-index" in installed[3] and installed[3].endswith("-e .[dev]")
    assert len(installed) == 4 and not (clone / ".venv" / ".begun").exists()
    assert make_setup(clone)[1] == [], "a second time does something"


@pytest.mark.parametrize("kept", [False, True], ids=["python keeps nothing", "python keeps it"])
def test_imports_are_compiled_where_python_would_not_keep_them(tmp_path, kept):
    for name in ("requirements", "study", "library"):
        (tmp_path / name).mkdir()
    script = shutil.copy(bytecode.__file__, tmp_path / "requirements")
    (tmp_path / "study" / "use.py").write_text("def late():\n    from library import late, missing")
    (tmp_path / "library" / "__init__.py").write_text(
        "import importlib\n"
        "def __getattr__(name):\n    return importlib.import_module(f'library.{name}')\n"
    )
    (tmp_path / "library" / "late.py").write_text("")
    (tmp_path / "library" / "unused.py").write_text("")
    switch = {"PYTHONDONTWRITEBYTECODE": "" if kept else "1", "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, script], check=True, env=os.environ | switch)
    compiled = {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert compiled == (set() if kept else {"__init__", "late"})


def test_another_python_is_said_and_nothing_is_installed(clone):
    done, calls = make_setup(clone, fails="*")
    assert done.returncode != 0
    assert "is not Python 3.11 or 3.12. Type: make setup PYTHON=python3.11" in done.stderr
    assert not any("install" in call or "venv" in call for call in calls)


def test_an_environment_is_made_anew_where_uv_was_interrupted_and_else_kept(clone):
    anew = "1 -m venv --clear .venv"
    done, calls = make_setup(clone, fails="*torch==*")
    assert done.returncode != 0 and anew not in calls
    done, calls = make_setup(clone, fails="*constraints.txt*")
    assert done.returncode != 0 and anew not in calls and not any("torch" in c for c in calls)
    done, calls = make_setup(clone)
    assert done.returncode == 0 and anew in calls
    assert not (clone / ".venv" / ".begun").exists()


def test_what_is_not_pinned_is_said_with_what_to_type(clone):
    done, _ = make_setup(clone, fails="*dev*")
    assert done.returncode != 0 and not (clone / ".venv" / ".installed").exists()
    assert "does not pin, type: make lock" in done.stderr


def test_settings_of_pip_are_ranked_and_hashes_are_of_the_index():
    listing = (
        ":env:.index-url='https://c/simple'\n"
        "global.index-url='https://a/simple'\n"
        "install.index-url='https://b/simple'\n"
        "global.cert='/a=b.pem'\n"
        "list.format='json'\n"
    )
    assert uv_pip.read_settings(listing) == {"index-url": "https://c/simple", "cert": "/a=b.pem"}
    options = options_of(["compile"], {})
    assert "https://main/simple" in options and "wheels" not in options and "one" not in options


SETTINGS = {
    "index-url": "https://main/simple",
    "extra-index-url": "https://one/simple\nhttps://two/simple",
    "find-links": "/wheels",
    "trusted-host": "main",
    "cert": "/ca.pem",
    "proxy": "http://proxy:3128",
}


def options_of(words: list[str], environment: dict[str, str], **settings: str) -> str:
    return " ".join(uv_pip.uv_options(words, SETTINGS | settings, environment))


def test_uv_takes_what_pip_would_take():
    options = options_of(["install"], {})
    for words in (
        "--default-index https://main/simple",
        "--index https://one/simple --index https://two/simple",
        "--find-links /wheels",
        "--allow-insecure-host main",
        f"--python {sys.executable}",
    ):
        assert words in options
    assert "--no-index" not in options
    assert options_of(["install"], {}, **{"no-index": "1"}).endswith("--no-index")
    installed = options_of(["install", "--no-index"], {}, **{"no-index": "1"})
    assert not any(word in installed for word in ("--no-index", "simple", "wheels"))
    assert "https://main/simple" not in options_of(["install"], {"UV_DEFAULT_INDEX": "https://x"})


def test_uv_keeps_of_its_settings_only_where_files_come_from():
    outside = {
        "PATH": "/bin", "VIRTUAL_ENV": "/other", "UV_PYTHON": "3.13", "UV_SYSTEM_PYTHON": "1",
        "UV_NO_BINARY": "1", "UV_EXCLUDE_NEWER": "2020-01-01", "UV_CONFIG_FILE": "/uv.toml",
        "UV_CACHE_DIR": "/cache", "UV_OFFLINE": "1",
    }  # fmt: skip
    kept = uv_pip.uv_environment(SETTINGS, outside)
    assert kept == {
        "PATH": "/bin", "UV_CACHE_DIR": "/cache", "UV_OFFLINE": "1", "SSL_CERT_FILE": "/ca.pem",
        "ALL_PROXY": "http://proxy:3128",
    }  # fmt: skip
    assert uv_pip.uv_environment(SETTINGS, {"SSL_CERT_FILE": "/b"})["SSL_CERT_FILE"] == "/b"


def test_a_python_of_the_system_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert uv_pip.main(["install", "-r", "constraints.txt"]) == 2
    assert "is no virtual environment" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "cached", "runs"),
    [
        ("install --require-hashes -r x", True, ["offline"]),
        ("install --require-hashes -r x", False, ["offline", "online"]),
        ("install -r x", True, ["online"]),
    ],
)
def test_what_has_a_hash_is_taken_from_the_cache_first(monkeypatch, words, cached, runs):
    seen = []

    def run(command, **_):
        if "config" in command:
            return subprocess.CompletedProcess(command, 0, "")
        seen.append("offline" if "--offline" in command else "online")
        return subprocess.CompletedProcess(command, int(not cached))

    monkeypatch.setattr(uv_pip.subprocess, "run", run)
    monkeypatch.setattr(uv_pip.os, "execve", lambda path, command, env: run(command))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    assert uv_pip.main(words.split()) == (0 if runs == ["offline"] else None)
    assert seen == runs


class Pip:
    """In place of pip: its cache, which may hold the files; its index may be out of reach."""

    def __init__(self, cache: str, online: bool = True, kept: bool = False) -> None:
        self.cache, self.online, self.kept, self.calls = cache, online, kept, []

    def run(self, command: list[str], **_) -> subprocess.CompletedProcess[str]:
        words = [word for word in command[4:] if word != "-q"]
        self.calls.append(words[0])
        assert words[0] == "cache" or set(installers.PINNED) <= set(words)
        if words[0] == "cache":
            return subprocess.CompletedProcess(command, int(not self.cache), self.cache)
        if words[0] == "download":
            self.kept = self.online
            assert str(Path(self.cache) / "judgedrift-installers") in words
        fine = self.kept if "--no-index" in words else self.online
        return subprocess.CompletedProcess(command, int(not fine))


@pytest.mark.parametrize(
    ("pip", "code", "calls"),
    [
        (Pip("/cache", kept=True, online=False), 0, "cache install"),
        (Pip("/cache"), 0, "cache install download install"),
        (Pip("/cache", online=False), 1, "cache install download install"),
        (Pip(""), 0, "cache install"),
    ],
    ids=["kept", "fetched", "offline", "no cache"],
)
def test_installers_are_kept_for_the_next_environment(monkeypatch, pip, code, calls):
    monkeypatch.setattr(installers.subprocess, "run", pip.run)
    assert installers.main() == code
    assert " ".join(pip.calls) == calls
