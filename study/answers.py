"""What a policy answered: the completion without its thinking. Stripped here and nowhere else."""

from __future__ import annotations

from study.thinking import split


def answer_of(completion: str) -> str | None:
    """The text after the last closed thinking block, whatever marks the model has for it.

    Returns:
        The answer, or None where thinking was opened and never closed: a truncated thinker has
        not answered, and its thoughts are not an answer.
    """
    found = split(completion)
    if not found.closed:
        return None
    return "".join(completion[start:end] for start, end in found.last).strip()
