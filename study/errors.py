"""`UserError`: a mistake that the user can fix, printed as one paragraph; the command exits 2."""

from __future__ import annotations

from study.screen import visible
from study.typed import typed


class UserError(Exception):
    """Something the user can put right.

    The message is one paragraph: what was given, what is legal, what to type. It may quote an
    endpoint or a file, so what a terminal would obey is spelled out in it. Commands in it are named
    as they are typed here.
    """

    def __str__(self) -> str:
        return typed(visible(super().__str__()))
