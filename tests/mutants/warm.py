"""A process that has imported the libraries of the tests, from which runs of pytest are forked.

``python warm.py LIBRARIES`` reads a `Request` a line, as JSON, forks a run, and answers
``{"pid": ...}`` and, when that has ended, ``{"code": ...}``. It is started as a file and imports
nothing of a tree, so that each run imports the packages and the tests of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn, TypedDict

LIBRARIES = (
    *("numpy", "pandas", "pyarrow.parquet", "pyarrow.dataset", "scipy.stats", "scipy.optimize"),
    *("statsmodels.api", "sklearn", "seaborn", "matplotlib.pyplot", "hydra", "omegaconf", "jinja2"),
    *("torch", "transformers.models.llama.modeling_llama", "peft", "trl.trainer.grpo_trainer"),
    *("datasets", "safetensors.torch", "accelerate", "mlflow", "uvicorn", "starlette.applications"),
    *("aiohttp", "httpx"),
)
"""What takes long to import, and starts no thread."""
LOOK_MS = 50
"""How often it is looked whether a run has ended, or whoever asked for it."""


class Request(TypedDict):
    """One run of pytest."""

    words: list[str]
    """Its arguments."""
    folder: str
    """Where it runs."""
    environment: dict[str, str]
    log: str
    """File that gets what it prints."""


def _run(request: Request) -> NoReturn:
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [request["folder"], *folders, *sys.path]
    sys.dont_write_bytecode = False
    import pytest

    code = 3
    try:
        code = int(pytest.main(request["words"]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Answer until the input ends."""
    del sys.path[0]  # this folder
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    for name in sys.argv[1:]:
        importlib.import_module(name)
    names = {(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()}
    # that of the allocator, which forks with it, is no thread of ours
    assert len(names - {"jemalloc_bg_thd\n"}) == 1, "a process with threads is not forked"
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _run(json.loads(line))
        print(json.dumps({"pid": pid}), file=answers, flush=True)
        status = _ended(pid)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), file=answers, flush=True)


def _ended(pid: int) -> int:
    """How a run ended. It is killed where nobody is left to hear that: a fault may never end."""
    asker = select.poll()
    asker.register(sys.stdin.fileno(), 0)  # a hang-up is told whatever is asked for
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if asker.poll(LOOK_MS):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve()
