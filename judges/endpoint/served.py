"""Whether the model that answered is the one that was asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DATED = re.compile(
    r"(.+)-(?:20\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"  # gpt-4o-2024-08-06
    r"|20\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"  # claude-x-20241022
    r"|(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"  # gpt-4-0613
    r"|[23]\d(?:0[1-9]|1[0-2]))",  # mistral-large-2411
    re.ASCII,
)


def is_requested_model(requested: str, served: str, aliases: Sequence[str] = ()) -> bool:
    """Whether ``served``, the ``model`` of a reply, names the ``requested`` model.

    It does where it is the same name, in any case; one of ``aliases`` (``endpoint.served_as``); the
    requested name with a date, to which hosted endpoints resolve an undated or ``-latest`` one; or
    either with the owner or folder before it left out (``openai/gpt-4o``, ``/models/gpt-4o``). A
    reply that names no model is believed."""
    if not requested or not served or served in aliases:
        return True
    wanted, answered = (name.casefold().removesuffix(":latest") for name in (requested, served))
    if _same(wanted, answered):
        return True
    undated = wanted.removesuffix("-latest")
    dated = _DATED.fullmatch(answered)
    return _same(undated, answered if dated is None else dated[1])


def _same(first: str, second: str) -> bool:
    """Whether the names are the same, one of them perhaps with an owner or a folder before."""
    longer, shorter = sorted((first, second), key=len, reverse=True)
    return longer == shorter or (bool(shorter) and longer.endswith(f"/{shorter.lstrip('/')}"))
