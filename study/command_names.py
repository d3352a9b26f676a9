"""How messages name commands: as ``python -m MODULE``, or by the names that the user types."""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Mapping
from contextlib import contextmanager

_MODULE = re.compile(r"\bpython -m ([a-z_]+(?:\.[a-z_]+)+)")
_NAMES: dict[str, str] = {}
"""Module -> what is typed in place of ``python -m MODULE``."""


@contextmanager
def typed_by(names: Mapping[str, str]) -> Generator[None]:
    """Within the block, the commands of these modules are typed by these names."""
    before = dict(_NAMES)
    _NAMES.update(names)
    try:
        yield
    finally:
        _NAMES.clear()
        _NAMES.update(before)


def study_words(name: str, runs_dir: str = "runs") -> str:
    """The words that name a study to a command; ``runs_dir`` as it is typed to find the study."""
    words = [f"study={name}", f"runs_dir={runs_dir}"]
    return shlex.join(words[: 1 if runs_dir == "runs" else 2])


def typed(text: str) -> str:
    """A text with its commands as the user types them here."""
    return _MODULE.sub(lambda match: _NAMES.get(match[1], match[0]), text)
