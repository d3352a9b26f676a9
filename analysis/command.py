"""The command line that the analyses of one study share: ``study=NAME key=value ...``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.external.tables import plain
from study.errors import UserError
from study.files import write_text

OUTPUTS = ("out", "figure")
"""Keys that name a file to be written."""


def study_command(
    arguments: Sequence[str], legal: Sequence[str], usage: str
) -> tuple[dict[str, str], Path]:
    """What was given, and the absolute folder of its study.

    Args:
        legal: keys beside ``study`` and ``runs_dir``.
        usage: what to type, told with every error.

    Raises:
        UserError: an unknown key, no study named, no such folder, or a file that is asked for where
            none can be written: said before the work is done.
    """
    given = dict(word.partition("=")[::2] for word in arguments)
    keys = ("study", "runs_dir", *legal)
    wrong = next((f"{key or '='} is wrong" for key in given if key not in keys), "")
    if not wrong and not given.get("study"):
        wrong = "study= is wrong: no study was named"
    if wrong:
        raise UserError(f"{wrong}. Legal are {', '.join(keys)}. Type: {usage}")
    runs_dir = Path(given.get("runs_dir", "runs"))
    folder = (runs_dir / given["study"]).absolute()
    if not folder.is_dir():
        raise UserError(f"There is no study folder {folder}. {_instead(given, folder)}: {usage}")
    for key in OUTPUTS:
        if given.get(key):
            _check_place(key, Path(given[key]))
    return given, folder


def write_json(path: str, found: Any) -> None:
    """What an analysis found, as JSON that any reader takes: a missing number is null.

    Raises:
        UserError: it cannot be written there.
    """
    text = json.dumps(plain(found), indent=1, allow_nan=False) + "\n"
    try:
        write_text(Path(path), text)
    except OSError as error:
        raise UserError(f"out={path} cannot be written: {error}") from error


def _check_place(key: str, path: Path) -> None:
    folder = path.absolute().parent
    wrong = ""
    if path.is_dir():
        wrong = f"cannot be written: it is a folder. Name a file in it: {key}={path / 'NAME'}"
    elif not folder.is_dir():
        wrong = f"cannot be written: there is no folder {folder}. Type: mkdir -p {folder}"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        wrong = "cannot be written: there is no permission. Name another file"
    if wrong:
        raise UserError(f"{key}={path} {wrong}")


def _instead(given: dict[str, str], folder: Path) -> str:
    """What to type instead of a study that is not there, up to the usage."""
    path = Path(given["study"])
    if path.is_dir() and path.name:
        return (
            f"{path} is a path, and study is a name in runs_dir: study={path.name} "
            f"runs_dir={path.parent}. Type"
        )
    found = sorted(one.parent.name for one in folder.parent.glob("*/study.json"))
    return f"{folder.parent} holds {', '.join(found) or 'no study'}. Type"
