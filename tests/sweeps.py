"""Sweeps one after another in one process, which imports what it needs once: for `trained`.

``python -m tests.sweeps`` reads lists of arguments, pickled, until its input ends, and answers each
with what the sweep returned and printed, or with the exception that came out of it.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from study.system.stopping import end_with_parent
from tests import commands, composing


class Sweeps:
    """The process, as seen by who asks it."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = commands.start("tests.sweeps", **pipes)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One sweep. Raises what it raised; TimeoutError: it hangs."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        pickle.dump(arguments, process.stdin)
        process.stdin.flush()
        if not select.select([process.stdout], [], [], commands.LIMIT_S)[0]:
            raise TimeoutError(f"no end of {arguments}")
        done = pickle.load(process.stdout)
        if isinstance(done, BaseException):
            raise done
        return done

    def close(self) -> None:
        """End the process."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()


def sweep_here(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """A sweep in this process, as one of its own would find it."""
    from hydra.core.global_hydra import GlobalHydra

    from experiments.sweep import main

    GlobalHydra.instance().clear()
    os.environ["COLUMNS"] = "200"
    os.chdir(commands.ROOT)
    sys.argv = ["experiments.sweep", *arguments]
    with (
        composing.remembered(),
        redirect_stdout(StringIO()) as out,
        redirect_stderr(StringIO()) as err,
    ):
        code = main()
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def serve() -> None:
    """Answer until the input ends."""
    end_with_parent()
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what is printed to the descriptor itself is no answer
    with questions, answers:
        while True:
            try:
                arguments = pickle.load(questions)
            except EOFError:
                return
            try:
                done: object = sweep_here(arguments)
            except BaseException as error:
                done = error
            pickle.dump(done, answers)
            answers.flush()


if __name__ == "__main__":
    serve()
