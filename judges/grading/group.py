"""What the gradings of a whole group share: how its answers are named and shown."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from judges.grading.delimiters import delimit


def letters(place: int) -> str:
    """The name of the place-th shown answer: A to Z, then AA, AB, as the columns of a sheet."""
    name = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def kind(place: int) -> str:
    """The kind of delimiters around the place-th shown answer."""
    return f"answer{letters(place).lower()}"


def shown(answers: Sequence[str]) -> str:
    """The answers, each behind its name and between its own delimiter lines."""
    return "\n\n".join(
        f"Answer {letters(place)}:\n{delimit(kind(place), answer)}"
        for place, answer in enumerate(answers)
    )


def shuffled(prompt: str, answers: Sequence[str]) -> tuple[int, ...]:
    """An order that the texts decide alone: whoever comes first in the group gains nothing."""

    def address(member: int) -> tuple[bytes, int]:
        content = f"{prompt}\0{answers[member]}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(content, digest_size=16, person=b"judge-shuffle").digest(), member

    return tuple(sorted(range(len(answers)), key=address))
