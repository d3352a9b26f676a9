"""Runs a module where vLLM draws a policy's completions on a CPU: ``vllm_on_cpu.py MODULE WORDS``.

vLLM's build for CPUs repacks the weights of linear layers and frees the originals, so TRL finds
none to write to (``'Parameter' object has no attribute 'weight_loader'``). `keep_weights` is the
patch that leaves them; it is no part of the product, which trains with vLLM on GPUs alone.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys

from judges.serving.vllm_cpu import set_defaults


def keep_weights() -> None:
    """Let neither oneDNN nor SGLang's kernels take the weights of linear layers."""
    vars(importlib.import_module("vllm._custom_ops"))["_supports_onednn"] = False
    layers = importlib.import_module("vllm.model_executor.layers.utils")
    vars(layers)["check_cpu_sgl_kernel"] = lambda *_, **__: False


if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_CI_ENV"] = "1"  # vLLM's own: nothing is compiled
    # two threads that wait for each other take minutes a step where others use the cores, too
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    set_defaults()
    keep_weights()
    sys.argv[:] = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
