"""Checks and cleans the fields of replies, as they come in and as they are read from disk.

An endpoint can send anything: a count that cannot be one is unknown, characters that no file can
hold are replaced, keys are blotted out, and a stored reply out of bounds counts as missing.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from study.system.known_keys import blot_key
from study.system.secrets import BLOT, MARKS, PATTERNS
from study.verdict import Reply

MOST_TOKENS = 10_000_000
"""More than any context holds; the sum over a verdict's requests still fits 64 bits."""
MOST_ATTEMPTS = 1_000_000
LONGEST_S = 1e8
NAME_CHARACTERS = 200
LINE_CHARACTERS = 1_000
LEAST_LOGPROB = -9999.0
"""What OpenAI writes for a probability of zero."""
SHORTEST_KEY = 8
"""Servers without keys are given words such as EMPTY or none, which replies may contain."""

_RANDOM = re.compile(r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}")


def count(value: Any) -> int | None:
    """A number of tokens; None for anything else."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def writable(text: str) -> str:
    """``text`` as any file and table can hold it: with U+FFFD for lone surrogates and NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", "\ufffd")


def one_line(text: str, limit: int = LINE_CHARACTERS) -> str:
    """``text`` as one line of at most so many characters, for a message or a table."""
    # Cut first: a text without end takes no time.
    short = " ".join(writable(text[: 4 * limit]).split())
    return short if len(short) <= limit else short[: limit - 3] + "..."


def logprobs(listed: Any) -> list[dict[str, Any]] | None:
    """Tokens with their log-probs and alternatives; None if one of them is not a log-prob, since
    the rest would pass for the whole distribution."""
    if not isinstance(listed, list):
        return None
    try:
        return [_token(entry) | _alternatives(entry) for entry in listed]
    except ValueError:
        return None


def _alternatives(entry: dict[str, Any]) -> dict[str, Any]:
    top_logprobs = entry.get("top_logprobs")
    return {"top_logprobs": [*map(_token, top_logprobs)]} if isinstance(top_logprobs, list) else {}


def _token(entry: Any) -> dict[str, Any]:
    value = entry.get("logprob") if isinstance(entry, dict) else None
    # Up to a server's rounding above 0; NaN compares as false.
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= 0.1:
        raise ValueError("not a log-prob")
    if not isinstance(entry.get("token"), str):
        raise ValueError("a log-prob of no token")
    return {"token": writable(entry["token"]), "logprob": float(max(value, LEAST_LOGPROB))}


def clean(reply: Reply, key: str) -> Reply:
    """The reply without the endpoint's key in any field, and with a model's name cut to length."""
    tokens = reply.logprobs or []
    spelt = ["".join(entry["token"] for entry in tokens)]
    spelt += [item["token"] for entry in tokens for item in entry.get("top_logprobs", ())]
    return dataclasses.replace(
        reply,
        text=blot(reply.text, key),
        reasoning=blot(reply.reasoning, key),
        model=one_line(blot(reply.model, key), NAME_CHARACTERS),
        logprobs=reply.logprobs if all(blot(text, key) == text for text in spelt) else None,
    )


def blot(text: str, key: str) -> str:
    """``text`` without the key or anything that can only be another key; words stay."""
    if len(key) >= SHORTEST_KEY:
        text = blot_key(text, key)
    lowered = text.lower()
    for kind, marks in MARKS.items():
        if any(mark in lowered for mark in marks):
            text = PATTERNS[kind].sub(_blotted, text)
    return text


def _blotted(match: re.Match[str]) -> str:
    """``sk-learn-compatible-estimators`` and ``bearer acknowledgements`` are words."""
    text = match[0]
    wordy = text[:3] == "sk-" or text[:6].lower() == "bearer"
    return text if wordy and not _RANDOM.search(text) else BLOT


def check_value(value: Any) -> None:
    """Check a value of the store.
    Raises ValueError: it cannot be used; with the field and what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    replies = value.get("replies")
    if not isinstance(replies, list) or not replies:
        raise ValueError("it holds no `replies`")
    for reply in replies:
        _check_reply(reply)
    attempts, seconds = value.get("attempts"), value.get("latency_s")
    if type(attempts) is not int or not 0 <= attempts <= MOST_ATTEMPTS:
        raise ValueError(f"`attempts` is {one_line(repr(attempts), 40)}")
    if type(seconds) not in (int, float) or not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"`latency_s` is {one_line(repr(seconds), 40)}")


_FIELDS = {item.name for item in dataclasses.fields(Reply)}


def _check_reply(reply: Any) -> None:
    if not isinstance(reply, dict) or not isinstance(reply.get("text"), str):
        raise ValueError("a reply has no `text`")
    if unknown := reply.keys() - _FIELDS:
        raise ValueError(f"a reply has a field {one_line(min(unknown), 40)!r} that is not known")
    for name, value in reply.items():
        if name.startswith("tokens_"):
            if value is not None and count(value) is None:
                raise ValueError(f"`{name}` is {one_line(repr(value), 40)}")
        elif name == "logprobs":
            if value is not None and logprobs(value) is None:
                raise ValueError("`logprobs` are not log-probs")
        elif not isinstance(value, str):
            raise ValueError(f"`{name}` is not text")
        else:
            value.encode()  # UnicodeEncodeError is a ValueError: half a surrogate pair
    if len(reply.get("model", "")) > NAME_CHARACTERS:
        raise ValueError("`model` is too long")
