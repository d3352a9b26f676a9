"""`UserError`: a mistake that the user can fix, printed as one paragraph; the command exits 2. Also
what an error came of."""

from __future__ import annotations

from collections.abc import Iterator

from study.command_names import typed
from study.screen import visible


class UserError(Exception):
    """Something the user can put right.

    The message is one paragraph: what was given, what is legal, what to type. It may quote an
    endpoint or a file, so what a terminal would obey is spelled out in it. Commands in it are named
    as they are typed here.
    """

    def __str__(self) -> str:
        return typed(visible(super().__str__()))


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from, at most 20."""
    link: BaseException | None = error
    for _ in range(20):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__
