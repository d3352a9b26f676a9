"""Length penalties: terms of their own, added to a reward that is there, and logged apart."""

from __future__ import annotations

from study.schema import Overlong, Repetition


def overlong(settings: Overlong, tokens: int, max_tokens: int) -> float:
    """factor * min(0, (max - buffer - tokens) / buffer), at least -factor; 0 without a buffer.

    Args:
        tokens: length of the completion, thinking included.
        max_tokens: ``trainer.max_completion_length``.

    Source: DAPO's soft overlong punishment, arXiv 2503.14476.
    """
    if settings.buffer == 0:
        return 0.0
    over = min(0.0, (max_tokens - settings.buffer - tokens) / settings.buffer)
    return settings.factor * max(over, -1.0)


def repetition(settings: Repetition, answer: str) -> float:
    """-weight * share of the answer's word n-grams that had come before in it."""
    if settings.weight == 0.0:
        return 0.0
    words = answer.lower().split()
    size = settings.ngram
    grams = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return -settings.weight * (1.0 - len(set(grams)) / len(grams)) if grams else 0.0
