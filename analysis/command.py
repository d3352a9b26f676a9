"""The command line that the analyses of one study share: ``study=NAME key=value ...``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.errors import UserError


def study_command(
    arguments: Sequence[str], legal: Sequence[str], usage: str
) -> tuple[dict[str, str], Path]:
    """What was given, and the absolute folder of its study.

    Args:
        legal: keys beside ``study`` and ``runs_dir``.
        usage: what to type, told with every error.

    Raises:
        UserError: an unknown key, no study named, or no such folder.
    """
    given = dict(word.partition("=")[::2] for word in arguments)
    unknown = sorted(given.keys() - {"study", "runs_dir", *legal})
    if unknown or not given.get("study"):
        raise UserError(f"{unknown[0] if unknown else 'study='} is wrong. Type: {usage}")
    folder = (Path(given.get("runs_dir", "runs")) / given["study"]).absolute()
    if not folder.is_dir():
        raise UserError(f"There is no study folder {folder}. Type: {usage}")
    return given, folder
