"""From bytes to a ``Reply``: the chat-completions envelope, whole or as server-sent events.

Strict on purpose. Exactly one choice, a finish reason that the server itself gave, UTF-8, and
nothing filled in: a reply that broke off half-way must not pass for a short one.
"""

from __future__ import annotations

import json
from typing import Any

from judges.verdict import Reply

FINISHED = ("stop", "length", "content_filter")
"""Finish reasons of an answer that ended; any other one is a server that gave up."""
FILTERED = "content_filter"


class BadEnvelope(Exception):
    """The bytes are no chat completion; the message says in one line why not."""


class ErrorBody(Exception):
    """The server sent an error in the body of a success; ``body`` is its JSON text."""

    def __init__(self, body: bytes) -> None:
        super().__init__("the server sent an error in a reply that began well")
        self.body = body


def read_plain(body: bytes) -> Reply:
    """The reply in the body of a plain answer.

    Raises:
        BadEnvelope: not a whole chat completion with one finished choice.
        ErrorBody: an error object with status 200.
    """
    envelope = _object(body)
    choice = _choice(envelope, body)
    if choice is None:
        raise BadEnvelope("`choices` is empty")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise BadEnvelope("the choice has no `message`")
    return _reply(
        text=_text(message, "content"),
        reasoning=_text(message, "reasoning") or _text(message, "reasoning_content"),
        refusal=_text(message, "refusal"),
        finish=choice.get("finish_reason"),
        logprobs=_logprobs(choice),
        usage=envelope.get("usage"),
        model=envelope.get("model"),
    )


class Stream:
    """Server-sent events, fed as bytes cut anywhere.

    ``done`` is set by ``[DONE]`` and ``finished`` by a finish reason; only the second makes the
    answer count.
    """

    def __init__(self) -> None:
        self.done = False
        self._finish: Any = None
        self._tail = b""
        self._data: list[bytes] = []
        self._event = b""
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._refusals: list[str] = []
        self._logprobs: list[dict[str, Any]] | None = None
        self._usage: Any = None
        self._model: Any = None

    @property
    def finished(self) -> bool:
        """Whether the server has said why the answer ended."""
        return self._finish is not None

    def feed(self, data: bytes) -> bool:
        """Take some bytes; True if they brought content (a comment or an empty delta is none).

        Raises:
            BadEnvelope: an event that is no chunk of one chat completion.
            ErrorBody: an error event.
        """
        *lines, self._tail = (self._tail + data).split(b"\n")
        progress = False
        for line in lines:
            progress |= self._line(line.removesuffix(b"\r"))
        return progress

    def end(self) -> Reply:
        """The reply, once the bytes have ended.

        Raises:
            BadEnvelope: the server never said that the answer was finished.
            ErrorBody: the last event is an error.
        """
        if self._tail or self._data:
            self.feed(b"\n\n")  # the last event may lack its blank line
        if not self.finished:
            raise BadEnvelope("the stream ended without a finish reason")
        return _reply(
            text="".join(self._texts),
            reasoning="".join(self._thoughts),
            refusal="".join(self._refusals),
            finish=self._finish,
            logprobs=self._logprobs,
            usage=self._usage,
            model=self._model,
        )

    def _line(self, line: bytes) -> bool:
        if not line:
            data, self._data = b"\n".join(self._data), []
            event, self._event = self._event, b""
            return bool(data) and not self.done and self._chunk(data, event)
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.strip()
        return False

    def _chunk(self, data: bytes, event: bytes) -> bool:
        if data == b"[DONE]":
            self.done = True
            return True
        if event == b"error":
            raise ErrorBody(data)
        chunk = _object(data)
        self._usage = chunk.get("usage") or self._usage
        self._model = self._model or chunk.get("model")
        choice = _choice(chunk, data)
        if choice is None:
            return False
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            raise BadEnvelope("a chunk has no `delta`")
        text = _text(delta, "content")
        thought = _text(delta, "reasoning") or _text(delta, "reasoning_content")
        refusal = _text(delta, "refusal")
        finish = choice.get("finish_reason")
        if self.finished and (text or thought or refusal):
            raise BadEnvelope("the stream went on after its finish reason")
        self._texts.append(text)
        self._thoughts.append(thought)
        self._refusals.append(refusal)
        if logprobs := _logprobs(choice):
            self._logprobs = (self._logprobs or []) + logprobs
        self._finish = finish or self._finish
        return bool(text or thought or refusal or finish)


def _object(data: bytes) -> dict[str, Any]:
    try:
        # Decoded here: json would also take UTF-16 and lone surrogates in bytes.
        found = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadEnvelope("the reply is not UTF-8") from None
    except (ValueError, RecursionError):
        raise BadEnvelope(f"the reply is not JSON: {excerpt(data)}") from None
    if not isinstance(found, dict):
        raise BadEnvelope(f"the reply is no JSON object: {excerpt(data)}")
    return found


def _choice(envelope: dict[str, Any], body: bytes) -> dict[str, Any] | None:
    """The one choice; None where the list is empty, as in a chunk that brings only the usage."""
    choices = envelope.get("choices")
    if envelope.get("error") or (choices is None and {"code", "message"} <= envelope.keys()):
        raise ErrorBody(body)
    if not isinstance(choices, list):
        raise BadEnvelope("the reply has no `choices`")
    if not choices:
        return None
    if len(choices) > 1 or not isinstance(choices[0], dict) or choices[0].get("index", 0) != 0:
        raise BadEnvelope("the reply has more than the one choice asked for")
    return choices[0]


def _text(message: dict[str, Any], name: str) -> str:
    value = message.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadEnvelope(f"`{name}` is no text")
    return value


def _logprobs(choice: dict[str, Any]) -> list[dict[str, Any]] | None:
    found = choice.get("logprobs")
    content = found.get("content") if isinstance(found, dict) else None
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        return None
    return content


def _reply(
    *,
    text: str,
    reasoning: str,
    refusal: str,
    finish: Any,
    logprobs: list[dict[str, Any]] | None,
    usage: Any,
    model: Any,
) -> Reply:
    if finish not in FINISHED:
        raise BadEnvelope(f"the finish reason is {finish!r}")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    return Reply(
        text=_writable(text or refusal),
        reasoning=_writable(reasoning),
        finish_reason=FILTERED if refusal else finish,
        logprobs=logprobs,
        tokens_in=_count(usage, "prompt_tokens"),
        tokens_cached=_count(details, "cached_tokens") if isinstance(details, dict) else None,
        tokens_out=_count(usage, "completion_tokens"),
        model=_writable(model) if isinstance(model, str) else "",
    )


def _count(usage: dict[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if type(value) is int and value >= 0 else None


def _writable(text: str) -> str:
    """JSON may escape half a surrogate pair, which no file can hold: U+FFFD stands for it."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def excerpt(data: bytes, limit: int = 160) -> str:
    """The begin of ``data`` as one line of text, for a message."""
    text = " ".join(data[: 4 * limit].decode("utf-8", "replace").split())
    return text[:limit] or "nothing"
