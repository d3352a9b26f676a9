"""Takes a model's thinking out of its reply, so that no grade is ever read in it."""

from __future__ import annotations

import re

_TAG = re.compile(r"<(/?)think(?:ing)?\s*>", re.IGNORECASE)


def answer_spans(text: str) -> tuple[list[tuple[int, int]], bool]:
    """Where the answer stands in a reply that may hold thinking.

    Returns:
        Half-open (start, end) spans outside of any thinking, and whether the last block of
        thinking was closed (also True where there is none). Everything before a ``</think>``
        that nothing opened is thinking: some chat templates open it in the prompt.
    """
    spans: list[tuple[int, int]] = []
    start, thinking = 0, False
    for tag in _TAG.finditer(text):
        if tag[1]:
            if not thinking:
                spans.clear()
            start, thinking = tag.end(), False
        elif not thinking:
            spans.append((start, tag.start()))
            thinking = True
    if not thinking:
        spans.append((start, len(text)))
    return [span for span in spans if span[0] < span[1]], not thinking


def strip_thinking(text: str) -> tuple[str, str, bool]:
    """Split a reply into what it answers and what it thought.

    Returns:
        The answer (stripped), the thinking without its tags (stripped), and False where thinking
        was opened and never closed; what follows that opening is thinking.
    """
    spans, closed = answer_spans(text)
    answer = "".join(text[start:end] for start, end in spans)
    inside, position = [], 0
    for start, end in [*spans, (len(text), len(text))]:
        inside.append(_TAG.sub("", text[position:start]))
        position = end
    return answer.strip(), "\n".join(part.strip() for part in inside if part.strip()), closed
