"""Vectors as an endpoint writes them: what is read, what is none, and that nothing is lost."""

import base64
import json
import struct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from judges.endpoint.chat_completions import BadCompletion, ErrorBody
from judges.endpoint.embeddings import LONGEST, embedding_body, read_vector, vector_of
from study.config.schema import Endpoint
from study.verdict import Reply


def written(vector: object, **more: object) -> bytes:
    """An answer with one vector."""
    return json.dumps({"data": [{"index": 0, "embedding": vector}], "model": "m"} | more).encode()


@given(st.lists(st.floats(width=32, min_value=-1e9, max_value=1e9), min_size=1).filter(any))
def test_a_vector_comes_back_as_it_was_written(numbers) -> None:
    assume(sum(number * number for number in numbers))  # else too small to have a length
    reply = read_vector(written(numbers, usage={"prompt_tokens": 7}))
    assert list(vector_of(reply)) == numbers
    assert (reply.model, reply.tokens_in) == ("m", 7)


def test_its_bytes_are_the_same_on_every_machine() -> None:
    packed = base64.b64encode(struct.pack("<2f", 1.5, -2.0)).decode()
    assert read_vector(written([1.5, -2])).text == packed
    assert list(vector_of(Reply(packed))) == [1.5, -2.0]
    with pytest.raises(ValueError):
        vector_of(Reply("no base64!"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        written([]),
        written("AAAA"),
        written([1.0, "2"]),
        written([True]),
        written([0, 0.0]),
        written([None]),
        written([[1.0]]),
        written([1e39]),
        written([1] * (LONGEST + 1)),
        b'{"data": [{"embedding": [NaN]}]}',
        b'{"data": [{"embedding": [1]}, {"embedding": [1]}]}',
        b'{"data": [{"embedding": [1], "embedding": [2]}]}',
        b'{"data": {}}',
        b'{"data": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_vector_is_none(body) -> None:
    with pytest.raises(BadCompletion):
        read_vector(body)


def test_an_error_with_status_200_is_an_error() -> None:
    with pytest.raises(ErrorBody):
        read_vector(b'{"error": {"message": "too long", "code": 400}}')


def test_the_request_is_that_of_the_protocol() -> None:
    endpoint = Endpoint(model="bge", extra_body={"dimensions": 256})
    assert embedding_body(endpoint, "a") == {
        "model": "bge",
        "input": "a",
        "encoding_format": "float",
        "dimensions": 256,
    }
