"""What a policy answered: the completion without its thinking. Stripped here and nowhere else."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def answer_of(completion: str) -> str | None:
    """The text after the last closed thinking block.

    Returns:
        The answer, or None where thinking was opened and never closed: a truncated thinker has
        not answered, and its thoughts are not an answer.
    """
    tail = completion.rsplit(CLOSE, 1)[-1]
    if OPEN in tail:
        return None
    return tail.strip()
