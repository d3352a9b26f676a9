"""A session gives one verdict per draw, in order, from the store where it can, and never raises; a
key gets into no verdict, no store and no message of it."""

import base64
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from judges.ask.identity import judge_id
from judges.ask.replies import Store
from judges.ask.session import Session
from judges.endpoint.failures import EndpointRefused
from judges.fault_injection.server import ANSWERS, GOOD, events, whole
from judges.faults import FaultServer
from study.cell.records import VERDICT, write_part
from study.config.schema import Endpoint, Failure, Grading, Judge, Price, Sampling, Simulated
from study.errors import UserError
from study.rows import Row, Truth
from study.verdict import Outcome, Parsed
from tests.judges.sessions import ROWS, ask_once, http
from tests.waiting import GENEROUS_S, wait_for

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def oracle(prompt: str, answer: str) -> Truth | None:
    """Truth is a quarter per word of the answer; prompts of other tasks are unknown."""
    prompts = {row.prompt_text() for row in ROWS}
    return Truth(min(1.0, len(answer.split()) / 4)) if prompt in prompts else None


FAIR = Judge(
    name="sim-fair",
    endpoint=Endpoint(deadline_s=2.0, idle_timeout_s=1.0, backoff_s=0.01),
    simulated=Simulated(),
)
ITEMS: list[tuple[Row, str]] = [(ROWS[n % 4], "w " * (n % 5)) for n in range(10)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_simulated_judge_in_this_process(stream: bool, store: Store) -> None:
    judge = replace(FAIR, endpoint=replace(FAIR.endpoint, stream=stream))
    with Session(judge, store, oracle) as session:
        session.check()
        assert session.calls == 0  # the preflight asks for no verdict
        verdicts = session.ask_many(ITEMS)
        assert session.ask_many([]) == []
    scores = [[verdict.score for verdict in draws] for draws in verdicts]
    assert scores == [[(n % 5) / 4] for n in range(10)]
    first = verdicts[1][0]
    assert first.outcome is Outcome.scored
    assert (first.judge, first.grading, first.attempts) == ("sim-fair", "likert", 1)
    assert first.judge_id == session.judge_id
    assert first.cost_usd == 0.0
    assert not first.from_cache
    assert first.tokens_in is not None and first.tokens_in > 0
    assert first.key and store.get(first.key) is not None


def test_stored_replies_are_not_asked_for_again(store: Store) -> None:
    with Session(FAIR, store, oracle) as session:
        fresh = session.ask_many(ITEMS)
        # Four prompts and five lengths over ten items: all differ, so all were asked.
        assert (session.calls, session.hits, store.count()) == (10, 0, 10)
    with Session(FAIR, store, oracle) as session:
        again = session.ask_many([*ITEMS[::-1], (ROWS[0], "new one")])
        assert (session.calls, session.hits) == (1, 10)
    for old, new in zip(fresh, again[-2::-1], strict=True):
        assert new[0].from_cache
        assert replace(new[0], from_cache=False, latency_s=0) == replace(old[0], latency_s=0)
    assert not again[-1][0].from_cache


def test_the_same_question_in_flight_is_asked_once(faults: Any, one_word: Any) -> None:
    judge = http(faults.url("slow_0.1"), Price(input=1.0), max_concurrency=64)
    with Session(judge, None) as session:
        verdicts = session.ask_many([(ROWS[0], "a")] * 5 + [(ROWS[0], "b")])
        assert (session.calls, session.hits) == (2, 4)
        assert [draws[0].from_cache for draws in verdicts] == [False, True, True, True, True, False]
        assert [draws[0].cost_usd for draws in verdicts][:2] == [100 / 1e6, 0.0]
        # Without a store a later call asks again.
        assert not session.ask_many([(ROWS[0], "a")])[0][0].from_cache
        assert session.calls == 3


def test_threads_share_a_flight(faults: Any, one_word: Any, store: Store) -> None:
    before = faults.calls["slow_0.2"]
    with Session(http(faults.url("slow_0.2")), store) as session, ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda _: session.ask_many([(ROWS[0], "x")]), range(4)))
    assert [draws[0].score for (draws,) in verdicts] == [1.0] * 4
    assert faults.calls["slow_0.2"] - before == 1
    assert session.hits == 3


def test_votes_are_draws_of_their_own(faults: Any, one_word: Any, store: Store) -> None:
    judge = http(faults.url("good"))
    with Session(replace(judge, sampling=Sampling(votes=3, seed=5)), store) as session:
        (draws,) = session.ask_many([(ROWS[0], "x")])
        assert [verdict.sample_index for verdict in draws] == [0, 1, 2]
        assert len({verdict.key for verdict in draws}) == 3
        assert session.calls == 3
    assert sorted(body["seed"] for body in faults.bodies["good"][-3:]) == [5, 6, 7]
    with Session(replace(judge, sampling=Sampling(votes=4, seed=5)), store) as session:
        (draws,) = session.ask_many([(ROWS[0], "x")])
        assert [verdict.from_cache for verdict in draws] == [True, True, True, False]
        assert [verdict.sample_index for verdict in draws] == [0, 1, 2, 3]


def test_a_parser_that_learned_reads_what_is_stored(faults, one_word, store, monkeypatch) -> None:
    judge = http(faults.url("unparsed"))
    first, _ = ask_once(judge, store)
    assert first.score is None
    monkeypatch.setattr(one_word, "version", "2")
    monkeypatch.setattr(
        one_word,
        "parse",
        lambda self, reply, request: Parsed(Outcome.scored, score=float(len(reply.text))),
    )
    verdict, calls = ask_once(judge, store)
    assert calls == 0
    assert (verdict.score, verdict.grading_version) == (float(len("who knows")), "2")
    assert verdict.key == first.key


def test_the_first_writer_wins_over_our_own_reply(faults: Any, one_word: Any, store: Store) -> None:
    judge = http(faults.url("slow_0.2"), Price(input=1.0))
    key = ask_once(judge)[0].key
    other = {"text": "not_met", "model": "org/m", "tokens_in": 1, "tokens_out": 1}
    with Session(judge, store) as session:
        theirs = {"replies": [other], "attempts": 2, "latency_s": 9.0}
        timer = threading.Timer(0.05, store.put, (key, theirs))
        timer.start()
        ((verdict,),) = session.ask_many([(ROWS[0], "x")])
        timer.join()
    assert (verdict.score, verdict.text, verdict.from_cache) == (0.0, "not_met", True)
    assert verdict.cost_usd == 100 / 1e6  # our call was made and paid for


def test_cost_follows_the_price_and_the_usage(faults: Any, one_word: Any, store: Store) -> None:
    price = Price(input=2.0, cached=0.5, output=8.0)
    once = pytest.approx((60 * 2.0 + 40 * 0.5 + 3 * 8.0) / 1e6)
    assert ask_once(http(faults.url("good"), price), store)[0].cost_usd == once
    assert ask_once(http(faults.url("good"), price), store)[0].cost_usd == 0.0
    twice, _ = ask_once(http(faults.url("truncated"), price))
    assert (twice.attempts, twice.tokens_out) == (2, 6) and twice.cost_usd / 2 == once
    assert ask_once(http(faults.url("good")))[0].cost_usd is None


def test_closing_aborts_what_is_in_flight(faults: Any, one_word: Any, store: Store) -> None:
    session = Session(http(faults.url("hang"), deadline_s=3600, idle_timeout_s=3600), store)
    before = faults.calls["hang"]
    verdicts: list[Any] = []
    items = [(ROWS[0], "x"), (ROWS[1], "y")]
    thread = threading.Thread(target=lambda: verdicts.extend(session.ask_many(items)))
    thread.start()
    wait_for(lambda: faults.calls["hang"] == before + 2)
    session.close()
    thread.join(GENEROUS_S)
    assert not thread.is_alive()
    assert [draws[0].outcome for draws in verdicts] == [Outcome.aborted] * 2
    assert store.count() == 0
    session.close()  # twice is fine
    with pytest.raises(RuntimeError, match="closed"):
        session.ask_many([(ROWS[2], "z")])


def test_a_planted_hang_ends_at_the_deadline() -> None:
    judge = replace(
        FAIR,
        endpoint=replace(FAIR.endpoint, deadline_s=0.6, idle_timeout_s=0.4),
        simulated=Simulated(failure=Failure(rate=1.0, kinds=["hang"])),
    )
    with Session(judge, None, oracle) as session:
        verdicts = session.ask_many(ITEMS)
    assert {draws[0].outcome for draws in verdicts} == {Outcome.timeout}
    assert {draws[0].reason for draws in verdicts} == {"no reply within 0.6 s"}


@pytest.mark.parametrize(
    ("path", "endpoint", "message"),
    [
        ("good", {}, ()),
        ("model_404", {}, ()),  # no list of models is no fault
        ("hang", {"deadline_s": 0.2, "idle_timeout_s": 5.0}, ("no reply within 0.2 s",)),
        ("html_200", {}, ("does not answer (its list of models",)),
        ("good", {"model": "x"}, ("judge.endpoint.model='x'", "it serves m, other.")),
        ("good", {"api_key_env": "NO_KEY"}, ("export NO_KEY=",)),
        ("good", {"api_key_env": "BLANK_KEY"}, ("export BLANK_KEY=",)),
        ("key_401", {"api_key_env": "CANARY_KEY"}, ("variable CANARY_KEY", "HTTP 401")),
        (
            "",
            {"url": "http://127.0.0.1:1/v1", "start_command": "vllm serve m"},
            ("http://127.0.0.1:1/v1 does not answer", "`vllm serve m`"),
        ),
    ],
)
def test_the_preflight_says_what_is_wrong_and_what_to_type(
    path, endpoint, message, faults, one_word, monkeypatch
) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    monkeypatch.setenv("BLANK_KEY", " \n")
    monkeypatch.setenv("CANARY_KEY", "very-secret-value\n")
    judge = http(faults.url(path))
    judge = replace(judge, endpoint=replace(judge.endpoint, **endpoint))
    with Session(judge, None) as session:
        if not message:
            session.check()
            return
        with pytest.raises(UserError) as caught:
            session.check()
    assert all(words in str(caught.value) for words in message)
    assert "very-secret" not in str(caught.value)
    if path == "key_401":
        assert any(b"Bearer very-secret-value\r\n" in head for head in faults.headers)


def test_what_is_all_in_the_store_needs_no_server(store: Store, faults, one_word) -> None:
    items = [(row, "x") for row in ROWS]
    with Session(http(faults.url("good")), store) as session:
        session.check()
        before = session.ask_many(items)
        assert session.calls == len(items)
    gone = http("http://127.0.0.1:1/v1")
    with Session(gone, store) as session:
        session.check()
        after = session.ask_many(items)
        assert session.calls == 0
        with pytest.raises(UserError, match=":1/v1 does not answer"):
            session.ask_many([*items, (ROWS[0], "y"), (ROWS[1], "y")])
        assert session.calls == 0
    scores = [[verdict.score for verdict in draws] for draws in before]
    assert [[verdict.score for verdict in draws] for draws in after] == scores
    assert all(verdict.from_cache for draws in after for verdict in draws)


def test_a_count_of_tokens_beyond_64_bits_bricks_nothing(tmp_path, one_word, store) -> None:
    body = json.loads(GOOD)
    body["usage"]["prompt_tokens"] = 2**63

    async def good(_: bytes) -> bytes:
        return whole(json.dumps(body).encode())

    with FaultServer(good=good) as server:
        judge = http(server.url("mix_0"), Price(input=1.0))
        verdict, _ = ask_once(judge, store)
        assert (verdict.score, verdict.tokens_in, verdict.cost_usd) == (1.0, None, None)
        # What an earlier version stored of it is asked for again, once.
        store._connection().execute(
            "UPDATE replies SET value = replace(value, '\"tokens_in\":null', ?)",
            (f'"tokens_in":{2**63}',),
        )
        assert store.get(verdict.key) is None
        for wanted in (1, 0):
            verdict, calls = ask_once(judge, store)
            assert (verdict.score, calls) == (1.0, wanted)
    row = verdict.as_row() | {"rollout_id": "x", "step": 1, "role": "acting"}
    write_part(tmp_path / "step-000001.parquet", [row], VERDICT)


def test_the_served_model_is_on_record_and_a_stored_reply_of_another_is_asked_for_anew(
    faults: Any, one_word: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, "other", ANSWERS["good"].replace(b'"model": "m"', b'"model": "n"'))
    alias = http(faults.url("other"), served_as=["n"])
    plain, good = http(faults.url("other")), http(faults.url("good"))
    for judge, wanted in (
        (alias, (Outcome.scored, "n", False, 1)),
        (plain, (Outcome.wrong_model, "n", False, 2)),
        (alias, (Outcome.scored, "n", True, 0)),  # the alias did not lose what was stored
        (good, (Outcome.scored, "m", False, 1)),
        (good, (Outcome.scored, "m", True, 0)),
    ):
        verdict, calls = ask_once(judge, store)
        assert (verdict.outcome, verdict.served_model, verdict.from_cache, calls) == wanted
    assert judge_id(good) == judge_id(alias)


@pytest.mark.parametrize(
    ("judge", "word"),
    [
        (replace(FAIR, simulated=None), "judge.endpoint.url"),
        (replace(FAIR, endpoint=replace(FAIR.endpoint, url="host:80")), "judge.endpoint.url"),
        (replace(FAIR, endpoint=replace(FAIR.endpoint, max_concurrency=0)), "max_concurrency"),
        (replace(FAIR, endpoint=replace(FAIR.endpoint, deadline_s=0)), "deadline_s"),
        (replace(FAIR, sampling=Sampling(votes=0)), "votes"),
        (replace(FAIR, grading=Grading("nope")), "judge.grading.name"),
        (replace(FAIR, endpoint=Endpoint(url="http://me:pass@host/v1")), "api_key_env"),
        (replace(FAIR, endpoint=Endpoint(api_key_env="sk-test-0123456789abcdef")), "api_key_env"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(judge: Judge, word: str) -> None:
    with pytest.raises(UserError, match=word):
        Session(judge, None, oracle)


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
        assert "(to check it, type: python -m judges.check judge=real)" in message
    for fault in ("good", "server_500", "hang", "forbidden_403:1"):
        with Session(http(faults.url(fault), max_concurrency=1), None) as session:
            session.ask_many([(ROWS[0], "x"), (ROWS[1], "y")])
            session.stop_if_refused()
