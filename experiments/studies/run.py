"""A sweep that is started from a notebook or a script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from analysis.study import Study, read_study
from experiments.sweep import cells_of, takes_one_value
from study.errors import UserError
from study.system.installed import path_for_children

_SIMPLE = re.compile(r"[\w./:@+,-]+")
"""Texts that Hydra reads without quotes; commas sweep over values, as they do in a shell."""


def sweep(*words: str, **settings: object) -> Study | None:
    """Run a sweep as ``judgedrift sweep`` does, in a process of its own whose output is printed
    here; what is done is skipped, and what is unfinished resumes.

    Args:
        words: settings as they are typed, such as ``trainer.steps=20``.
        settings: settings by name, such as ``judge=["sim-fair", "sim-verbose"], seed=[0, 1, 2]``;
            over a list is swept where the setting takes one value.

    Returns: the study, read; None with ``plan=True``, which runs nothing.

    Raises UserError: the sweep cannot be composed, or is refused; what is printed says why.
    Raises KeyboardInterrupt: it was stopped.
    """
    line = [*words, *(f"{key}={typed(key, value)}" for key, value in settings.items())]
    cell, *_ = cells_of(line)
    command = [sys.executable, "-P", "-m", "experiments.sweep", *line]
    last = ""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | path_for_children(),
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
        except KeyboardInterrupt:
            process.terminate()
            raise
    if process.returncode not in (0, 1):
        raise KeyboardInterrupt if process.returncode == 130 else UserError(last)
    return None if cell.config.plan else read_study(cell.folder.study_dir)


def typed(key: str, value: object) -> str:
    """A value as it is typed behind ``key=``. Raises UserError: it takes more than a word."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = ",".join(typed(key, each) for each in value)
        return parts if takes_one_value(key) else f"[{parts}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if not isinstance(value, str | int | float | os.PathLike):
        raise UserError(
            f"{key}={value!r} is no text, number or list. Give the setting as it is typed in a"
            f" shell, such as sweep('{key}.KEY=VALUE')."
        )
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if _SIMPLE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
