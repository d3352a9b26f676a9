"""A key gets into no verdict, no store, no message of a session."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from judges.ask.replies import Store
from judges.ask.session import Session
from judges.endpoint.failures import EndpointRefused
from judges.fault_injection.server import ANSWERS, events, whole
from judges.faults import FaultServer
from study.cell.records import VERDICT, write_part
from study.config.schema import Grading
from study.errors import UserError
from study.verdict import Outcome
from tests.judges.sessions import ROWS, http

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"{}", content_encoding="very-secret-value"),
        whole(b"x" * 290 + b"very-secret-value", 500),
        whole(b'{"data": [{"id": "very-secret-value"}, {"id": 7}, {"id": "' + b"x" * 999 + b'"}]}'),
    ],
)
def test_the_preflight_shows_no_key_and_no_endless_name(answer, faults, one_word, monkeypatch):
    monkeypatch.setenv("CANARY_KEY", "very-secret-value")
    monkeypatch.setitem(ANSWERS, "listed", answer)
    judge = http(faults.url("listed"), api_key_env="CANARY_KEY")
    with Session(judge, None) as session, pytest.raises(UserError) as caught:
        session.check()
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 900


def test_a_key_never_gets_into_a_verdict_or_the_store(faults, one_word, store, monkeypatch) -> None:
    secret = "sk-test-canary-0123456789abcdef"  # the one that the server echoes
    monkeypatch.setenv("CANARY_KEY", secret)
    for fault in ("key_401", "good"):
        with Session(http(faults.url(fault), api_key_env="CANARY_KEY"), store) as session:
            ((verdict,),) = session.ask_many([(ROWS[0], fault)])
            assert secret not in json.dumps(verdict.as_row())
            assert secret not in repr(session._asker.channel)
    for path in store.path.parent.iterdir():
        assert secret.encode() not in path.read_bytes()


ECHOED = ("text", "reasoning", "model", "id", "finish", "usage", "name of a field", "log-probs")


FORMS: dict[str, Callable[[str], str]] = {
    "percent signs": lambda key: quote(key, safe=""),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "Basic": lambda key: base64.b64encode(f"me:{key}".encode()).decode(),
    "upper case": str.upper,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_key_echoed_in_another_form_is_nowhere(form, tmp_path, one_word, monkeypatch) -> None:
    """In good replies and in errors, as text and as JSON."""
    secret = "Canary/Key+77.of-no-known-form"
    monkeypatch.setenv("CANARY_KEY", secret)
    written = FORMS[form](secret)
    error = json.dumps({"error": {"message": f"no {written}", "code": "invalid_api_key"}}).encode()
    completion = json.dumps({"model": "m", "choices": [{"index": 0, "finish_reason": "stop",
                       "message": {"content": f"[[70]] by {written}"}}]}).encode()  # fmt: skip
    shown = ""
    for answer in (whole(completion), whole(error, 401), whole(f"bad {written}".encode(), 500)):

        async def answered(body: bytes, answer=answer):
            return answer

        with FaultServer(good=answered) as server, Store(tmp_path / "replies.db") as store:
            judge = http(server.url("mix_0"), api_key_env="CANARY_KEY", attempts=1)
            with Session(replace(judge, grading=Grading("likert")), store) as session:
                ((verdict,),) = session.ask_many([(ROWS[0], form)])
                shown += json.dumps(verdict.as_row())
                try:
                    session.stop_if_refused()
                except EndpointRefused as refused:
                    shown += str(refused)
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert "***" in shown
    for piece in (written, written[:12], written[-12:]):
        assert piece not in shown and piece.encode() not in files


async def echo(body: bytes, where: str, secret: str) -> bytes:
    """A good answer with the key in one place, plain or in a stream that cuts it in two."""
    content = f"[[70]] you are {secret}" if where == "text" else "[[70]]"
    turn: dict[str, Any] = {"role": "assistant", "content": content}
    if where == "reasoning":
        turn["reasoning"] = f"I see {secret}"
    usage: dict[str, Any] = {"prompt_tokens": 5, "completion_tokens": 2}
    if where == "usage":
        usage = {"prompt_tokens": secret, "note": secret}
    choice = {"index": 0, "finish_reason": secret if where == "finish" else "stop"}
    if where == "log-probs":
        halves = [{"token": half, "logprob": -0.1} for half in (secret[:9], secret[9:])]
        choice["logprobs"] = {"content": halves}
    head: dict[str, Any] = {
        "id": secret if where == "id" else "x",
        "model": f"m-{secret}" if where == "model" else "m",
    }
    if where == "name of a field":
        head[secret] = 1
    if b'"stream": true' not in body:
        return whole(json.dumps({**head, "choices": [{**choice, "message": turn}],
                                 "usage": usage}).encode())  # fmt: skip
    parts = []
    for name in ("reasoning", "content"):
        words = turn.get(name, "")
        for piece in (words[: len(words) - 9], words[len(words) - 9 :]):
            delta = {**choice, "delta": {name: piece}, "finish_reason": None}
            parts.append({**head, "choices": [delta]})
    parts.append({**head, "choices": [{**choice, "delta": {}}], "usage": usage})
    data = b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts)
    return events(data + b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_a_key_echoed_in_a_good_reply_is_nowhere(stream, tmp_path, monkeypatch, caplog) -> None:
    secret = "Canary/Key+77.of-no-known-form"
    monkeypatch.setenv("CANARY_KEY", secret)
    rows: list[dict[str, Any]] = []
    for where in ECHOED:

        async def good(body: bytes, where: str = where) -> bytes:
            return await echo(body, where, secret)

        with FaultServer(good=good) as server, Store(tmp_path / "replies.db") as store:
            judge = http(server.url("mix_0"), stream=stream, api_key_env="CANARY_KEY")
            judge = replace(judge, grading=Grading("likert"))
            with Session(judge, store) as session:
                ((verdict,),) = session.ask_many([(ROWS[0], where)])
            assert f"bearer {secret.lower()}".encode() in b"".join(server.headers).lower()
        rows.append(verdict.as_row() | {"rollout_id": "x", "step": 1, "role": "acting"})
        if where in ("finish", "model"):
            assert verdict.score is None
        else:
            assert verdict.score == 0.7, (where, verdict.reason)
    write_part(tmp_path / "step-000001.parquet", rows, VERDICT)
    pq_rows = json.dumps(pq.read_table(tmp_path / "step-000001.parquet").to_pylist())
    for text in (pq_rows, caplog.text, *(f"{path.read_bytes()!r}" for path in tmp_path.iterdir())):
        for piece in (secret, secret.lower(), secret[:9], secret[-9:]):
            assert piece not in text


def test_a_refusal_of_everything_is_one_paragraph(faults, one_word, monkeypatch) -> None:
    monkeypatch.setenv("CANARY_KEY", "very-secret-value")
    for fault in ("key_401", "model_404", "bill_402"):
        with Session(http(faults.url(fault), api_key_env="CANARY_KEY"), None) as session:
            session.stop_if_refused()  # nothing was asked yet
            ((verdict,),) = session.ask_many([(ROWS[0], "x")])
            assert verdict.outcome is Outcome.endpoint_down
            with pytest.raises(EndpointRefused) as caught:
                session.stop_if_refused()
        message = str(caught.value)
        assert isinstance(caught.value, UserError)
        assert "variable CANARY_KEY" in message and "judge.endpoint.model='m'" in message
        assert "very-secret" not in message and "\n" not in message
    for fault in ("good", "server_500", "hang", "forbidden_403:1"):
        with Session(http(faults.url(fault), max_concurrency=1), None) as session:
            session.ask_many([(ROWS[0], "x"), (ROWS[1], "y")])
            session.stop_if_refused()
