"""From bytes to a ``Reply``: a chat completion, whole or as server-sent events.

Strict on purpose. Exactly one choice, a finish reason that the server itself gave, UTF-8, and
nothing filled in: a reply that broke off half-way must not pass for a short one. An endpoint can
send anything: a count that cannot be one is unknown, characters that no file can hold are replaced,
keys are blotted out, and a stored reply out of bounds counts as missing.
"""

from __future__ import annotations

import dataclasses
import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict, cast

from study.screen import one_line, writable
from study.system.known_keys import blot_key
from study.system.secrets import BLOT, MARKS, PATTERNS
from study.verdict import Candidate, Reply, TokenLogprob

FINISHED = ("stop", "length", "content_filter")
"""Finish reasons of an answer that ended; any other one is a server that gave up."""
FILTERED = "content_filter"
SPEAKERS = (None, "", "assistant", "model")
"""Roles of the one who answers; a turn of any other was sent back, quoted verdicts and all."""
MOST_CONTAINERS = 20_000
"""Objects and lists of a reply: log-probs of 400 tokens with 20 alternatives have fewer. What fits
the limit on bytes could hold fifty times as many, and stall the process that makes them."""
MOST_MODELS = 4
EXCERPT = 4_000
MOST_TOKENS = 10_000_000
"""More than any context holds; the sum over a verdict's requests still fits 64 bits."""
MOST_ATTEMPTS = 1_000_000
LONGEST_S = 1e8
NAME_CHARACTERS = 200
LEAST_LOGPROB = -9999.0
"""What OpenAI writes for a probability of zero."""
SHORTEST_KEY = 8
"""Servers without keys are given words such as EMPTY or none, which replies may contain."""

_RANDOM = re.compile(r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}")
_DATED = re.compile(
    r"(.+)-(?:20\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"  # gpt-4o-2024-08-06
    r"|20\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"  # claude-x-20241022
    r"|(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"  # gpt-4-0613
    r"|[23]\d(?:0[1-9]|1[0-2]))",  # mistral-large-2411
    re.ASCII,
)


class Stored(TypedDict):
    """A value of the store: how one question was answered. That of a failure is only told to those
    who wait for the same."""

    replies: list[dict[str, Any]]
    """Each a `Reply`, oldest first; one or more, but for a failure."""
    attempts: int
    latency_s: float
    outcome: NotRequired[str]
    """Of a failure, as are the next two."""
    reason: NotRequired[str]
    served: NotRequired[str]


class BadCompletion(Exception):
    """The bytes are not a chat completion; the message says in one line why."""


class ErrorBody(Exception):
    """The server sent an error in the body of a success; ``body`` is its JSON text."""

    def __init__(self, body: bytes) -> None:
        super().__init__("the server sent an error in a reply that began well")
        self.body = body


def read_plain(body: bytes) -> Reply:
    """The reply in the body of a plain answer.
    Raises BadCompletion: not a whole chat completion with one finished choice.
    Raises ErrorBody: an error object with status 200."""
    completion = json_object(body)
    choice = _choice(completion, body)
    if choice is None:
        raise BadCompletion("`choices` is empty")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise BadCompletion("the choice has no `message`")
    finish = choice.get("finish_reason")
    texts = _texts(message)
    return _reply(texts, finish, _listed(choice), completion.get("usage"), named_models(completion))


class Stream:
    """Server-sent events, fed as bytes cut anywhere.

    ``done`` is set by ``[DONE]`` and ``finished`` by a finish reason; only the second makes the
    answer count.
    """

    def __init__(self) -> None:
        self.done = False
        self._finish: Any = None
        self._begun = False
        self._returned = False
        """Whether the last byte was a CR, which ends a line with or without a LF."""
        self._tail: list[bytes] = []
        """The begin of a line that has no end yet, in pieces."""
        self._data: list[bytes] = []
        self._event = b""
        self._texts: list[tuple[str, str, str]] = []
        self._tokens: list[object] = []
        self._usage: Any = None
        self._models: list[str] = []
        self._ids: set[str] = set()
        """Of the chunks with text. Some servers give each of them an id of its own."""
        self._id_came_again = False

    @property
    def finished(self) -> bool:
        """Whether the server has said why the answer ended."""
        return self._finish is not None

    def feed(self, data: bytes) -> bool:
        """Take some bytes; True if they brought content (a comment or an empty delta is none).
        Raises BadCompletion: an event that is not a chunk of one chat completion.
        Raises ErrorBody: an error event."""
        if self._returned and data.startswith(b"\n"):
            data = data[1:]  # of a CR LF that came in two pieces
        self._returned = data.endswith(b"\r") or (self._returned and not data)
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *lines = data.split(b"\n")
        self._tail.append(first)
        progress = False
        for line in lines:
            whole, self._tail = b"".join(self._tail), [line]
            progress |= self._line(whole)
        return progress

    def end(self, silent: bool = False) -> Reply:
        """The reply, once the bytes have ended, or no more are waited for: ``silent``, which leaves
        out an event that is not whole.
        Raises BadCompletion: the server never said that the answer was finished.
        Raises ErrorBody: the last event is an error."""
        if not silent and (self._data or any(self._tail)):
            self.feed(b"\n\n")  # the last event may lack its blank line
        if not self.finished:
            raise BadCompletion("the stream ended without a finish reason")
        texts = ["".join(parts) for parts in zip(("", "", ""), *self._texts, strict=True)]
        return _reply(texts, self._finish, self._tokens, self._usage, self._models)

    def _line(self, line: bytes) -> bool:
        if self.done:
            return False  # whatever comes now is not the answer's
        if not line:
            data, self._data = b"\n".join(self._data), []
            event, self._event = self._event, b""
            return bool(data) and self._chunk(data, event)
        if not self._begun:
            self._begun, line = True, line.removeprefix(BOM_UTF8)
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.strip()
        elif name not in (b"", b"id", b"retry"):
            # A browser would pass over it, and over the words that it may have brought.
            raise BadCompletion(f"a line of the stream is not a field: {excerpt(line)}")
        return False

    def _chunk(self, data: bytes, event: bytes) -> bool:
        if data.strip() == b"[DONE]":
            self.done = True
            return True
        if event == b"error":
            raise ErrorBody(data)
        chunk = json_object(data)
        self._usage = chunk.get("usage") or self._usage
        self._models += [name for name in named_models(chunk) if name not in self._models]
        if len(self._models) > MOST_MODELS:
            raise BadCompletion(f"the chunks name more than {MOST_MODELS} models")
        choice = _choice(chunk, data)
        if choice is None:
            return False
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            raise BadCompletion("a chunk has no `delta`")
        texts = _texts(delta)
        finish = choice.get("finish_reason")
        if self.finished and any(texts):
            raise BadCompletion("the stream went on after its finish reason")
        if any(texts):
            self._texts.append(texts)
            self._identify(chunk.get("id"))
        self._tokens += _listed(choice)
        if finish and self._finish and finish != self._finish:
            raise BadCompletion("the stream gives two finish reasons")
        self._finish = finish or self._finish
        return any(texts) or bool(finish)

    def _identify(self, name: Any) -> None:
        """Raises BadCompletion: an id has come more than once, and so another answer's is one."""
        if isinstance(name, str) and name:
            self._id_came_again |= name in self._ids
            self._ids.add(name)
        if self._id_came_again and len(self._ids) > 1:
            raise BadCompletion("the stream mixes chunks of two answers")


def json_object(data: bytes) -> Mapping[str, object]:
    try:
        if _brackets(data) > MOST_CONTAINERS < _brackets(_STRING.sub(b"", data)):
            raise BadCompletion(f"the reply holds more than {MOST_CONTAINERS} objects and lists")
        # Decoded here: json would also take UTF-16 and lone surrogates in bytes.
        completion = _DECODER.decode(data.removeprefix(BOM_UTF8).decode())
    except UnicodeDecodeError:
        raise BadCompletion("the reply is not UTF-8") from None
    except (ValueError, RecursionError):
        raise BadCompletion(f"the reply is not JSON: {excerpt(data)}") from None
    if not isinstance(completion, dict):
        raise BadCompletion(f"the reply is not a JSON object: {excerpt(data)}")
    return completion


def _brackets(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[")


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object in which no name is given two values: which of them counts nobody could say."""
    values = dict(pairs)
    for name, value in pairs if len(values) < len(pairs) else ():
        if values[name] != value:
            raise BadCompletion(f"the reply gives {one_line(name, 40)!r} twice, and differently")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_once)
"""Made once: to make one takes longer than to read a chunk of a stream."""


def _choice(completion: Mapping[str, object], body: bytes) -> Mapping[str, object] | None:
    """The one choice; None where the list is empty, as in a chunk that brings only the usage."""
    choices = completion.get("choices")
    if completion.get("error") or (choices is None and {"code", "message"} <= completion.keys()):
        raise ErrorBody(body)
    if not isinstance(choices, list):
        raise BadCompletion("the reply has no `choices`")
    if not choices:
        return None
    if len(choices) > 1 or not isinstance(choices[0], dict) or choices[0].get("index", 0) != 0:
        raise BadCompletion("the reply has more than the one choice asked for")
    return choices[0]


def _texts(message: Mapping[str, object]) -> tuple[str, str, str]:
    """What a message or a part of it says: content, reasoning, refusal."""

    def text(name: str) -> str:
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise BadCompletion(f"`{name}` is not text")
        return value or ""

    if message.get("role") not in SPEAKERS:
        role = one_line(repr(message["role"]), 40)
        raise BadCompletion(f"the role is {role}, who does not answer")
    return text("content"), text("reasoning") or text("reasoning_content"), text("refusal")


def _listed(choice: Mapping[str, object]) -> list[object]:
    """The log-probs of a choice, or of a chunk of it, as they came."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) else []


def named_models(completion: Mapping[str, object]) -> list[str]:
    """The model that a completion names; empty where it names none."""
    name = completion.get("model")
    if name is None or name == "":
        return []
    return [writable(name)] if isinstance(name, str) else ["(no text)"]


def _reply(
    texts: Sequence[str], finish: Any, tokens: list[object], usage: Any, models: Sequence[str]
) -> Reply:
    if finish not in FINISHED:
        raise BadCompletion(f"the finish reason is {finish!r:.200}")
    text, reasoning, refusal = map(writable, texts)
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    return Reply(
        text=text or refusal,
        reasoning=reasoning,
        finish_reason=FILTERED if refusal else finish,
        logprobs=logprobs(tokens) or None,
        tokens_in=count(usage.get("prompt_tokens")),
        tokens_cached=count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        tokens_out=count(usage.get("completion_tokens")),
        model=" and ".join(models),
    )


def excerpt(data: bytes) -> str:
    """The begin of ``data`` as one line of text, for a message. It is longer than a message, as
    `failures.shorten_message` makes one of it: cut here, half a key might be left that no one knows
    again."""
    return one_line(data[:EXCERPT].decode("utf-8", "replace"), EXCERPT) or "nothing"


def count(value: Any) -> int | None:
    """A number of tokens; None for anything else."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def logprobs(listed: object) -> list[TokenLogprob] | None:
    """Tokens with their log-probs and alternatives; None if one of them is not a log-prob, since
    the rest would pass for the whole distribution."""
    if not isinstance(listed, list):
        return None
    try:
        return [_with_alternatives(entry) for entry in listed]
    except ValueError:
        return None


def _with_alternatives(entry: Any) -> TokenLogprob:
    token = _token(entry)
    if isinstance(top_logprobs := entry.get("top_logprobs"), list):
        return {**token, "top_logprobs": [*map(_token, top_logprobs)]}
    return {**token}


def _token(entry: Any) -> Candidate:
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


def check_value(value: Any) -> Stored:
    """The same value, which the store may keep.
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
    return cast("Stored", value)


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


def is_requested_model(requested: str, served: str, aliases: Sequence[str] = ()) -> bool:
    """Whether ``served``, the ``model`` of a reply, names the ``requested`` model.

    It does where it is the same name, in any case; one of ``aliases`` (``endpoint.served_as``); the
    requested name with a date, to which hosted endpoints resolve an undated or ``-latest`` one; or
    either with the owner or folder before it left out (``openai/gpt-4o``, ``/models/gpt-4o``). A
    reply that names no model is believed."""
    if not requested or not served or served in aliases:
        return True
    wanted, answered = (name.casefold().removesuffix(":latest") for name in (requested, served))
    if _same(wanted, answered):
        return True
    undated = wanted.removesuffix("-latest")
    dated = _DATED.fullmatch(answered)
    return _same(undated, answered if dated is None else dated[1])


def _same(first: str, second: str) -> bool:
    """Whether the names are the same, one of them perhaps with an owner or a folder before."""
    longer, shorter = sorted((first, second), key=len, reverse=True)
    return longer == shorter or (bool(shorter) and longer.endswith(f"/{shorter.lstrip('/')}"))
