"""The ways in which an attempt can fail, and what an endpoint's error means.

The words of an error's body count more than its status: a refusal, a question that is too long, a
wrong key and an unknown model may all come as 400.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from dataclasses import dataclass

from judges.endpoint.chat_completions import FILTERED, excerpt
from judges.endpoint.transport import Answer
from study.errors import UserError
from study.screen import one_line
from study.system.secrets import redact
from study.verdict import Outcome, Reply

AGAIN = {408, 409, 425, 429}
"""Statuses besides 5xx that are tried again."""
OVERRUN = {429, 503, 529}
"""Statuses of an endpoint that is asked too much at once."""
ERROR_BYTES = 65_536
SEARCHED_CHARACTERS = 2_000
"""Characters of an error's message that are searched for a cause."""
SHOWN_CHARACTERS = 300
"""Characters of it that are shown."""

_REFUSED = re.compile(
    r"data_?inspection_?failed|inappropriate_?content|content_filter|content_policy_violation"
    r"|ResponsibleAIPolicy|input was flagged",
    re.I,
)
_TOO_LONG = re.compile(
    r"context_length_exceeded|string_above_max_length|maximum (context|model) length"
    r"|maximum input length|range of input length|(prompt|input|request) is too long"
    r"|exceeds? the (model's )?(maximum |available )?context",
    re.I,
)
FINAL = {
    "no credit": re.compile(r"insufficient_quota|arrearage|insufficient_balance", re.I),
    "the key is refused": re.compile(r"(invalid|incorrect)[ _]?api[ _]?key", re.I),
    "unknown model": re.compile(
        r"model[ _]?not[ _]?(found|exist)|unknown model|model\b.{0,120} does not exist", re.I
    ),
}
"""What an error says -> why no later verdict will fare better."""
_BY_STATUS = {401: "the key is refused", 402: "no credit", 403: "forbidden", 404: "not found"}


class EndpointRefused(UserError):
    """The endpoint refuses the key, the account or the model: ``status`` and ``message`` of its
    answer, ``why`` in a few words, and a ``paragraph`` on what to do, which is empty inside the
    client."""

    def __init__(self, status: int, why: str, message: str, paragraph: str = "") -> None:
        super().__init__(paragraph or f"{why}: HTTP {status}: {message}")
        self.status, self.why, self.message = status, why, message

    def saying(self, paragraph: str) -> EndpointRefused:
        """The same refusal, with what to do."""
        return EndpointRefused(self.status, self.why, self.message, paragraph)


@dataclass(eq=False)
class Fault(Exception):
    """One attempt failed."""

    outcome: Outcome
    reason: str
    again: bool = True
    """Whether another attempt may fare better."""
    wait_s: float = 0.0
    """How long the endpoint asks to wait before it."""
    overrun: bool = False
    """Whether the endpoint is asked too much at once."""
    served: str = ""
    """The model that answered, where it was another than the one asked for."""

    def __str__(self) -> str:
        return self.reason


def read_error(answer: Answer, body: bytes, key: str) -> Reply:
    """What an error means: moderation is a reply; everything else is raised."""
    status = answer.status
    words, shown = _message(body[:ERROR_BYTES])
    shown = shorten_message(shown, key)
    message = f"HTTP {status}: {shown}"
    mine = status < 500 and status != 429  # 4xx, and an error in the body of a success
    if mine and _REFUSED.search(words):
        return Reply(text="", finish_reason=FILTERED)
    if mine and (status == 413 or _TOO_LONG.search(words)):
        raise Fault(Outcome.too_long, message, again=False)
    if status < 500:
        reasons = (why for why, pattern in FINAL.items() if pattern.search(words))
        why = next(reasons, _BY_STATUS.get(status, ""))
        if why:
            raise EndpointRefused(status, why, shown)
    overrun = status in OVERRUN
    if status == 429:
        raise Fault(Outcome.rate_limited, message, wait_s=_retry_after(answer), overrun=True)
    if status in AGAIN or status >= 500 or status == 200:
        raise Fault(Outcome.transport, message, wait_s=_retry_after(answer), overrun=overrun)
    raise Fault(Outcome.transport, message, again=False)


def shorten_message(text: str, key: str) -> str:
    """An endpoint's message as one short line; the key is taken out before it is cut."""
    return one_line(redact(text, [key]), SHOWN_CHARACTERS)


def _message(body: bytes) -> tuple[str, str]:
    """The code, type and message of an error's body, and the message as a line for people.

    Other fields are not read: some servers send the question back with the error.
    """
    text = body.decode("utf-8", "replace")
    try:
        content = json.loads(text)
        inner = content.get("error", content)
        if not isinstance(inner, dict):
            inner = {"message": inner}
        codes = [str(inner[key]) for key in ("code", "type") if inner.get(key) is not None]
        text = str(inner.get("message", "" if codes else inner))[:SEARCHED_CHARACTERS]
    except (ValueError, AttributeError, RecursionError):
        codes, text = [], text[:SEARCHED_CHARACTERS]
    shown = text if text else " ".join(codes)
    return " ".join([*codes, text]), excerpt(shown.encode("utf-8", "replace"))


def _retry_after(answer: Answer) -> float:
    """Seconds to wait by ``retry-after``, given in seconds or as a date; else 0."""
    value = answer.headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, IndexError, OverflowError):
            return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
