"""All that needs a GPU, in one command: `make gpu`, a page and a JSON.

    python -m benchmarks.gpu [part=flex,race-1.5B] [checkpoint=WORD] [minutes=55] [out=FILE]
    python -m benchmarks.gpu device=cpu            # rehearses every part that can be without a GPU

Each part runs by itself, so one that breaks stops no other. A line says passed, failed, or not to
be had here and why. checkpoint= adds IFEval: run=runs/STUDY/CELL, model=FOLDER or adapter=FOLDER,
as `judgedrift evaluate` takes it. Exit codes: 0 nothing failed, 1 a part failed, 2 there is no GPU
or a word is wrong.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.outcome import FAILED, Outcome, run_part
from benchmarks.gpu.parts import PARTS, Part, ifeval
from study.system.machine import cpus, usable_gpus

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "gpu"
OUT = ROOT / "docs" / "gpu.json"
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "vllm", "deepspeed", "flash-attn")
NO_GPU = (
    "There is no GPU here, so nothing was tried and nothing written. On a machine that has one,"
    " type make gpu again; to rehearse what can be without one, type make gpu WORDS=device=cpu"
)


def machine() -> dict[str, Any]:
    """What the page is about: GPUs, Python, packages, and the state of the sources."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    except OSError:
        commit = ""
    gpus = [{"model": gpu.model, "gib": round(gpu.memory / 2**30, 1)} for gpu in usable_gpus()]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {
        "date": today,
        "commit": commit,
        "gpus": gpus,
        "cpus": cpus(),
        "python": platform.python_version(),
        "packages": versions,
    }


def read_words(words: Sequence[str]) -> dict[str, str]:
    """The options of the command. Raises ValueError with what is legal."""
    options = {"part": "", "device": "cuda", "checkpoint": "", "minutes": "55", "out": ""}
    for word in words:
        name, _, value = word.partition("=")
        if name not in options or not value:
            raise ValueError(f"{word}: legal are {', '.join(f'{key}=' for key in options)}")
        options[name] = value
    if options["device"] not in ("cuda", "cpu"):
        raise ValueError(f"device={options['device']}: legal are cuda and cpu")
    if not options["minutes"].isdecimal():
        raise ValueError(f"minutes={options['minutes']}: legal is a whole number")
    if options["checkpoint"] and options["checkpoint"].partition("=")[0] not in (
        *("run", "model", "adapter"),
    ):
        raise ValueError("checkpoint= takes run=CELL_FOLDER, model=FOLDER or adapter=FOLDER")
    return options


def chosen(options: dict[str, str]) -> list[Part]:
    """The parts that are asked for, in the order of the page. Raises ValueError: no such part."""
    parts = [*PARTS]
    if options["checkpoint"]:
        parts.append(ifeval(options["checkpoint"], "4" if options["device"] == "cpu" else "541"))
    names = [name for name in options["part"].split(",") if name] or [part.name for part in parts]
    if unknown := [name for name in names if name not in {part.name for part in parts}]:
        legal = ", ".join(part.name for part in parts)
        raise ValueError(f"part={unknown[0]}: legal are {legal}; ifeval needs checkpoint=")
    return [part for part in parts if part.name in names]


def page(parts: Sequence[Part], gpus: int, cpu: bool, minutes: int) -> list[Outcome]:
    """Try all parts, printing each as it ends."""
    end = time.monotonic() + 60 * minutes
    outcomes = []
    for part in parts:
        outcome = run_part(part, gpus, cpu, LOGS, end - time.monotonic())
        print(outcome.text, flush=True)
        outcomes.append(outcome)
    return outcomes


def main(words: Sequence[str]) -> int:
    """Print the page and write the JSON."""
    try:
        options = read_words(words)
        parts = chosen(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    gpus, cpu = len(usable_gpus()), options["device"] == "cpu"
    if not gpus and not cpu:
        print(NO_GPU, file=sys.stderr)
        return 2
    here = machine()
    title = ", ".join(f"{gpu['model']} {gpu['gib']} GiB" for gpu in here["gpus"]) or "no GPU"
    print(f"{title if not cpu else 'rehearsal on a CPU'}; commit {here['commit'] or 'unknown'}")
    versions = (f"{name} {version or '-'}" for name, version in here["packages"].items())
    print(f"Python {here['python']}, {', '.join(versions)}\n")
    outcomes = page(parts, gpus, cpu, int(options["minutes"]))
    if out := options["out"] or (None if cpu else OUT):
        content = {"command": shlex.join(["make", "gpu", *words]), "machine": here}
        content |= {"device": options["device"], "parts": [each.record for each in outcomes]}
        Path(out).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"\n{out}")
    return int(any(outcome.outcome == FAILED for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
