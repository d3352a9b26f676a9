"""Where in a text its answer stands: boxes, "the answer is", sentences. All in linear time."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"(?P<box>\\(?:boxed|fbox)\s{0,8})(?P<open>\{)?|\\.|[{}]", re.DOTALL)
_ANSWER = re.compile(r"\banswer(?:\s{1,8}is\b|\s{0,8}:)[\s:*_]{0,8}", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?](?=\s|$|\*|\$)|\n")


def last_box(text: str) -> str | None:
    r"""What stands in the last balanced ``\boxed{...}`` or ``\fbox{...}``, or up to the end of the
    line behind ``\boxed`` without a brace; None where there is none."""
    opened: list[int | None] = []
    begin, end = -1, 0
    for token in _TOKEN.finditer(text):
        if token["box"]:
            if token["open"]:
                opened.append(token.end())
            elif token.end() > begin:
                begin, end = token.end(), -1
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened:
            start = opened.pop()
            if start is not None and start > begin:
                begin, end = start, token.start()
    if begin < 0:
        return None
    return (
        text[begin:end] if end >= 0 else re.split(r"[$\n]", text[begin:], maxsplit=1)[0]
    ).strip()


def after_answer(text: str) -> str | None:
    """What stands behind the last "answer is" or "answer:", or None."""
    places = list(_ANSWER.finditer(text))
    return text[places[-1].end() :].strip() if places else None


def first_sentence(text: str, ends: re.Pattern[str] = _SENTENCE) -> str:
    """The text up to the end of its first sentence or line, which ``ends`` finds."""
    end = ends.search(text)
    return text[: end.start()] if end else text
