"""The vector of a text, by the embeddings protocol: POST /embeddings with one ``input``.

A vector is kept as a reply is, so it goes the way of all replies: one client, one store, the same
limits and failures. Its text is the base64 of its numbers, 4 bytes each, lowest byte first.

    body = embedding_body(endpoint, "How many primes are there below 100?")
    vector = vector_of((await ask(channel, body)).replies[-1])
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from typing import cast

from judges.endpoint.chat_completions import (
    BadCompletion,
    ErrorBody,
    count,
    json_object,
    named_models,
)
from judges.endpoint.dialects import Body
from study.config.schema import Endpoint
from study.verdict import Reply

EMBEDDINGS = "/embeddings"
LONGEST = 65_536
"""Numbers of a vector that are read."""


def embedding_body(endpoint: Endpoint, text: str) -> Body:
    """The request for the vector of a text."""
    body: Body = {"model": endpoint.model, "input": text, "encoding_format": "float"}
    return body | cast("Body", endpoint.extra_body)


def read_vector(body: bytes) -> Reply:
    """The vector in the body of an answer.
    Raises BadCompletion: not one vector of finite numbers with a length above 0.
    Raises ErrorBody: an error object with status 200."""
    answer = json_object(body)
    listed = answer.get("data")
    if answer.get("error") or (listed is None and {"code", "message"} <= answer.keys()):
        raise ErrorBody(body)
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
        raise BadCompletion("the reply does not have the one item of `data` that was asked for")
    numbers = listed[0].get("embedding")
    if not isinstance(numbers, list) or not 0 < len(numbers) <= LONGEST:
        raise BadCompletion(f"`embedding` is not a list of 1 to {LONGEST} numbers")
    if not all(type(number) in (int, float) and abs(number) < 1e30 for number in numbers):
        raise BadCompletion("`embedding` holds what is no finite number")
    vector = array("f", numbers)
    if not math.fsum(number * number for number in vector):
        raise BadCompletion("every number of `embedding` is 0")
    usage = answer.get("usage")
    return Reply(
        text=base64.b64encode(_lowest_first(vector).tobytes()).decode("ascii"),
        tokens_in=count(usage.get("prompt_tokens")) if isinstance(usage, dict) else None,
        tokens_out=0,
        model=" and ".join(named_models(answer)),
    )


def vector_of(reply: Reply) -> array[float]:
    """The numbers of a reply that `read_vector` made. Raises ValueError: it is no such reply."""
    vector = array("f")
    vector.frombytes(base64.b64decode(reply.text, validate=True))
    return _lowest_first(vector)


def _lowest_first(vector: array[float]) -> array[float]:
    """With the bytes of each number in the other order where this machine has the highest first."""
    if sys.byteorder == "big":
        vector.byteswap()
    return vector
