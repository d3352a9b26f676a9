"""The last ``[[...]]`` of a reply, for gradings whose verdict is one word of a short menu."""

from __future__ import annotations

import re

from judges.grading import base
from judges.verdict import Parsed, Reply

_BRACKETS = re.compile(r"\[\[([^\[\]]*)\]\]")


def last_bracket(reply: Reply) -> str | Parsed:
    """What stands in the last double brackets, without blanks around it and case; or the result
    where there is nothing to read. A judge that corrects itself does so at the end."""
    text = base.readable(reply)
    if isinstance(text, Parsed):
        return text
    found = _BRACKETS.findall(text)
    return found[-1].strip().casefold() if found else base.unparsed("no [[verdict]]", text)


def choice(reply: Reply, menu: dict[str, float]) -> Parsed | float:
    """The score of the menu's word in the last brackets; an unread reply otherwise."""
    said = last_bracket(reply)
    if isinstance(said, Parsed):
        return said
    if said not in menu:
        legal = ", ".join(f"[[{word}]]" for word in menu)
        return base.unparsed(f"the last verdict is none of {legal}", f"[[{said}]]")
    return menu[said]


def binary_body(structured: bool, words: list[str]) -> dict[str, object]:
    """What the request of such a grading carries: room for a sentence, or a forced choice."""
    if structured:
        return {"structured_outputs": {"choice": [f"[[{word}]]" for word in words]}}
    return {"max_tokens_at_least": 128}
