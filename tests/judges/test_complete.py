"""Plain chat requests take the way of a judge's: limits, retries, and replies without the key."""

import json
from typing import Any

import pytest

from judges.endpoint.complete import chat_body, complete_all
from judges.fault_injection.server import choice, completion, whole
from judges.faults import FaultServer
from study.config.schema import Endpoint, Sampling
from study.errors import UserError
from study.verdict import Outcome

SECRET = "Canary/Key+77.of-no-known-form"


def endpoint(url: str, **change: Any) -> Endpoint:
    settings: dict[str, Any] = {"deadline_s": 5.0, "attempts": 2, "backoff_s": 0.01, **change}
    return Endpoint(url=url, model="m", **settings)


def bodies(target: Endpoint, count: int) -> list[dict[str, Any]]:
    turns = [[{"role": "user", "content": f"question {n}"}] for n in range(count)]
    return [chat_body(target, Sampling(max_tokens=9, seed=None), turn) for turn in turns]


async def answer(body: bytes) -> bytes:
    """Says the question again, and fails at question 3 for good."""
    question = json.loads(body)["messages"][0]["content"]
    if question == "question 3":
        return whole(b"{}", 500)
    return whole(completion(choice(f"{question}, {SECRET}")))


def test_replies_keep_their_order_and_a_failure_is_missing(monkeypatch) -> None:
    monkeypatch.setenv("CANARY_KEY", SECRET)
    ended: dict[int, Any] = {}
    with FaultServer(good=answer) as server:
        target = endpoint(server.url("mix_0"), api_key_env="CANARY_KEY")
        fetched = complete_all(target, bodies(target, 6), ended.__setitem__)
        assert f"bearer {SECRET.lower()}".encode() in b"".join(server.headers).lower()
    texts = [one.replies[0].text if one.replies else None for one in fetched]
    assert texts == [None if n == 3 else f"question {n}, ***" for n in range(6)]
    assert (fetched[3].outcome, fetched[3].attempts) == (Outcome.transport, 2)
    assert [ended[place] for place in range(6)] == fetched


def test_the_body_is_what_the_endpoint_is_sent() -> None:
    target = endpoint("http://host/v1", dialect="vllm", extra_body={"min_p": 0.1})
    messages = [{"role": "user", "content": "hello"}]
    sampling = Sampling(temperature=0.5, max_tokens=9, seed=4, thinking=False)
    assert chat_body(target, sampling, messages) == {
        "model": "m", "messages": messages, "temperature": 0.5, "top_p": 1.0, "max_tokens": 9,
        "seed": 4, "chat_template_kwargs": {"enable_thinking": False}, "min_p": 0.1,
    }  # fmt: skip


@pytest.mark.parametrize("fault", ["key_401", "model_404", "bill_402"])
def test_an_endpoint_that_refuses_everything_is_asked_once(fault: str, faults: Any) -> None:
    before = faults.calls[fault]
    target = endpoint(faults.url(fault))
    with pytest.raises(UserError, match="does not answer for model=m"):
        complete_all(target, bodies(target, 5))
    assert faults.calls[fault] - before == 1


def test_nobody_there_no_key_and_nothing_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    target = endpoint("http://127.0.0.1:1/v1")
    with pytest.raises(UserError, match="does not answer for model=m"):
        complete_all(target, bodies(target, 2))
    assert complete_all(target, []) == []
    monkeypatch.delenv("CANARY_KEY", raising=False)
    with pytest.raises(UserError, match="export CANARY_KEY="):
        complete_all(endpoint("http://host/v1", api_key_env="CANARY_KEY"), bodies(target, 1))
    with pytest.raises(UserError, match=r"judge\.endpoint\.url='host:80'"):
        complete_all(endpoint("host:80"), bodies(target, 1))
