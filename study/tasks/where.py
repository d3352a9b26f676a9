"""Finds the file of a task: ``task.path``, or the prepared file in the data folder."""

from __future__ import annotations

import os
from pathlib import Path

from study.config.schema import Task
from study.errors import UserError
from study.system.installed import IS_CHECKOUT, ROOT

VARIABLE = "JUDGEDRIFT_DATA"
FILES = {
    "verinstruct": "verinstruct/verinstruct_val.parquet",
    "verinstruct-verif": "verinstruct/verinstruct_verif_val.parquet",
    "healthbench": "healthbench/healthbench_val.parquet",
}
"""Task -> its file below the data folder."""


def data_folder() -> Path:
    """The folder that ``JUDGEDRIFT_DATA`` names, else ``../shared/data`` beside the checkout, or
    ``data`` in the working directory where there is none."""
    if folder := os.environ.get(VARIABLE):
        return Path(folder).expanduser()
    return ROOT.parent / "shared" / "data" if IS_CHECKOUT else Path.cwd() / "data"


def task_path(task: Task) -> Path:
    """The file of a task that reads one.
    Raises UserError: ``task.path`` is not set, and the data folder has no file for the task."""
    if task.path not in (None, "", "???"):
        return Path(str(task.path)).expanduser()
    if task.name in FILES and (path := data_folder() / FILES[task.name]).is_file():
        return path
    also = f" or set {VARIABLE} to a folder with {FILES[task.name]}" if task.name in FILES else ""
    raise UserError(
        f"task={task.name} reads its prompts from a file, but task.path is not set. Type for"
        f" example task.path=prompts.jsonl (.jsonl, .jsonl.gz or .parquet){also}. `python -m"
        " experiments.data` prepares such files and describes their form."
    )
