"""What a client makes of the answers of an endpoint, what it asks again, and which reply counts.

How each fault ends is in `tests.faults.test_fault_matrix`.
"""

import asyncio
import json
import socket
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from judges.ask.reading import settle
from judges.endpoint.client import MANY_REFUSALS, Channel, EndpointRefused, Fetched
from judges.endpoint.dialects import REMINDER, changed_body, judge_body
from judges.endpoint.replicas import open_wire
from judges.fault_injection.server import ANSWERS, error, events, whole
from judges.fault_injection.server import GOOD as BODY
from judges.fault_injection.server import GOOD_STREAM as CHUNKS
from study.verdict import Outcome, Reply
from tests.judges.asking import APPLICATION, MESSAGES, TRIES, a_judge, ask_judge, asking

WORDS = [
    (400, {"code": "context_length_exceeded", "message": "too much"}, Outcome.too_long),
    (400, "This model's maximum context length is 4096 tokens. However, you", Outcome.too_long),
    (400, "Range of input length should be [1, 30720]", Outcome.too_long),
    (400, "The decoder prompt (length 9000) exceeds the model's context", Outcome.too_long),
    (400, {"code": "DataInspectionFailed", "message": "Output data may"}, Outcome.refused),
    (400, {"type": "content_policy_violation", "message": "no"}, Outcome.refused),
    (400, {"code": "invalid_api_key", "message": "no"}, "the key is refused"),
    (401, "who are you", "the key is refused"),
    (400, {"code": "model_not_found", "message": "x"}, "unknown model"),
    (404, "The model `qwen` does not exist.", "unknown model"),
    (400, "Arrearage: your account is overdue", "no credit"),
    (429, {"code": "insufficient_quota", "message": "You exceeded"}, "no credit"),
    (404, "no such page", "not found"),
    (403, "no", "forbidden"),
    (400, "temperature must be positive", Outcome.transport),
    # A server that sends the question back must not have its words taken for its own.
    (400, {"message": "bad", "input": "content_filter context_length_exceeded"}, Outcome.transport),
]


@pytest.mark.parametrize(("status", "body", "meant"), WORDS)
def test_an_error_is_told_by_its_body(status, body, meant, faults, grading, monkeypatch) -> None:
    error = body if isinstance(body, dict) else {"message": body}
    monkeypatch.setitem(ANSWERS, "worded", whole(json.dumps({"error": error}).encode(), status))
    before = faults.calls["worded"]
    got, channel = ask_judge(a_judge(faults.url("worded")), grading)
    assert faults.calls["worded"] - before == channel.calls == 1  # all of them are final
    if not isinstance(meant, Outcome):
        assert got.outcome is Outcome.endpoint_down
        assert channel.refusal.why == meant
    elif meant is Outcome.refused:
        assert settle(grading.parse, got.replies)[1].outcome is meant
    else:
        assert got.outcome is meant


def test_after_a_refused_key_nothing_more_is_sent(faults: Any, grading: Any) -> None:
    results, channel = ask_judge(
        a_judge(faults.url("key_401"), max_concurrency=1), grading, count=5
    )
    assert {result.outcome for result in results} == {Outcome.endpoint_down}
    assert channel.calls == 1
    assert [result.attempts for result in results] == [1, 0, 0, 0, 0]
    results, channel = ask_judge(a_judge(faults.url("forbidden_403"), max_concurrency=1), grading,
                                count=3)  # fmt: skip
    assert channel.calls == 3  # one question may be forbidden and another not


def test_what_an_endpoint_sends_can_be_written_and_is_short(faults, grading, monkeypatch) -> None:
    secret = "plain-looking-key-" + "k" * 20
    padded = "x" * 290 + secret  # a cut before it is blotted out would leave the half of it
    answers = {
        "kind": whole(BODY).replace(b"application/json", b"text/\xff" + secret.encode()),
        "encoding": whole(BODY, content_encoding=padded),
        "text": whole(padded.encode()),
        "message": error(500, "\ud800" + padded),
        "code": whole(json.dumps({"error": {"code": padded, "message": ""}}).encode(), 500),
        "finish": whole(BODY.replace(b'"stop"', json.dumps(padded * 50).encode())),
        "line": events(padded.encode() + b"\n\n"),
    }
    for name, answer in answers.items():
        monkeypatch.setitem(ANSWERS, name, answer)
        for stream in (False, True):
            judge = a_judge(faults.url(name), stream=stream, attempts=1)
            got, _ = ask_judge(judge, grading, key=secret)
            if got.outcome is None:
                assert (name, stream) == ("kind", False)
                continue
            got.reason.encode()
            assert len(got.reason) < 400
            assert "kkkk" not in got.reason, name
            assert "plain-looking-k" not in got.reason, name


@pytest.mark.parametrize("stream", [False, True])
def test_another_models_reply_is_asked_for_once_more_and_is_no_score(
    stream: bool, faults: Any, grading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(name: str) -> bytes:
        marked = (CHUNKS if stream else BODY).replace(b'"model": "m"', name.encode())
        return events(marked) if stream else whole(marked)

    for number, name in enumerate(('"model": "m-mini"', '"model": 3', '"model": "n"')):
        fault = f"other{number}"
        monkeypatch.setitem(ANSWERS, fault, answer(name))
        before = faults.calls[fault]
        got, _ = ask_judge(a_judge(faults.url(fault), stream=stream), grading)
        assert (got.outcome, got.replies) == (Outcome.wrong_model, ())
        assert faults.calls[fault] - before == got.attempts == 2
        assert "'m' was asked for" in got.reason
        assert got.served and got.served in got.reason
        allowed = a_judge(faults.url(fault), stream=stream, served_as=[got.served])
        assert ask_judge(allowed, grading)[0].replies[0].model == got.served
        once = a_judge(faults.url(f"{fault}:{1:0{number + 1}}"), stream=stream)
        if not stream:  # a router that erred once
            got, _ = ask_judge(once, grading)
            assert (got.outcome, got.attempts, got.replies[0].model) == (None, 2, "m")
    for name in ('"model": ""', '"model": null', '"x": 1', '"model": "M"', '"model": "org/m"'):
        monkeypatch.setitem(ANSWERS, "same", answer(name))
        got, _ = ask_judge(a_judge(faults.url("same"), stream=stream), grading)
        assert (got.outcome, got.attempts) == (None, 1)


def test_when_a_refusal_is_of_everything(faults: Any, grading: Any) -> None:
    def channel(fault: str, count: int = 1, **endpoint: Any) -> Channel:
        return ask_judge(a_judge(faults.url(fault), **endpoint), grading, count=count)[1]

    assert channel("good").refused is None
    assert channel("server_500").refused is None
    mixed = channel("forbidden_403:1", 3, max_concurrency=1)
    assert (mixed.refused, mixed.answers) == (None, 2)
    mixed.refusal, mixed.refusals = EndpointRefused(403, "forbidden", "no"), 1
    assert mixed.refused is None  # one question may be forbidden and another not
    mixed.refusals = MANY_REFUSALS
    assert mixed.refused is not None
    mixed.answered()
    assert mixed.refused is None
    # A key that is refused by mistake, with others in flight: their replies lift the bar.
    flapping = channel("key_401:1", 4, max_concurrency=4)
    assert flapping.refused is None
    assert flapping.answers == 3


def test_a_re_ask_says_what_it_changed(faults: Any, grading: Any) -> None:
    got, _ = ask_judge(a_judge(faults.url("unparsed:01")), grading)
    assert [reply.asked for reply in got.replies] == ["", "with a format reminder"]
    parsed = settle(grading.parse, got.replies)[1]
    assert (parsed.score, parsed.reason) == (1.0, "asked again with a format reminder")
    got, _ = ask_judge(a_judge(faults.url("truncated")), grading)
    reason = "cut by the token limit; asked again with 2 times the tokens"
    assert settle(grading.parse, got.replies)[1].reason == reason


def test_an_error_that_echoes_the_key_is_redacted(faults: Any, grading: Any) -> None:
    got, _ = ask_judge(a_judge(faults.url("key_401")), grading, key="plain-looking-key")
    assert "Incorrect API key provided" in str(got)
    assert "sk-test-canary" not in str(got)
    sent = [head for head in faults.headers if b"/key_401/" in head][-1]
    assert b"Bearer plain-looking-key" in sent


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_port_is_endpoint_down(stream: bool, grading: Any) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        got, channel = ask_judge(a_judge(f"http://127.0.0.1:{port}/v1", stream=stream), grading)
    assert got.outcome is Outcome.endpoint_down
    assert channel.calls == TRIES


def test_a_name_without_address_is_endpoint_down(grading: Any) -> None:
    got, _ = ask_judge(a_judge("http://no-such-host.invalid/v1", attempts=1), grading)
    assert got.outcome is Outcome.endpoint_down


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        *((False, name) for name in ("close:1", "rst:1", "server_500:2", "limit_429:1")),
        *((False, name) for name in ("short_body:1", "cut_json:2", "choices_empty:1", "hang:1")),
        *((True, name) for name in ("s_no_finish:1", "s_error_object:2", "s_rst:1", "s_stall:1")),
    ],
)
def test_a_passing_fault_costs_attempts_only(stream, fault, faults, grading) -> None:
    got, _ = ask_judge(a_judge(faults.url(fault), stream=stream), grading)
    assert got.outcome is None
    assert got.attempts == int(fault.partition(":")[2]) + 1
    assert settle(grading.parse, got.replies)[1].score == 1.0


GOOD = ["good", "good_gzip", "good_deflate"]
GOOD_STREAM = [
    *("s_good", "s_good_crlf", "s_fragments", "s_lingers", "s_good_lost_after_finish"),
    *("s_good_no_last_newline", "s_stays_open", "s_stays_awake"),
]


@pytest.mark.parametrize("fault", GOOD + GOOD_STREAM)
def test_a_good_reply_is_read_whole(fault: str, faults: Any, grading: Any) -> None:
    got, _ = ask_judge(a_judge(faults.url(fault), stream=fault.startswith("s_")), grading)
    (reply,) = got.replies
    assert (reply.text, reply.finish_reason, reply.model, got.attempts) == ("met", "stop", "m", 1)
    if fault not in ("s_good_lost_after_finish", "s_good_no_last_newline", "s_stays_awake"):
        assert (reply.tokens_in, reply.tokens_cached, reply.tokens_out) == (100, 40, 3)


def test_a_lost_re_ask_keeps_the_first_reply(faults: Any, grading: Any, monkeypatch: Any) -> None:
    judge = a_judge(faults.url("unparsed"), attempts=1)
    real = open_wire(judge.endpoint)

    class SecondFails:
        count = 0

        def exchange(self, method: str, path: str, *rest: Any) -> Any:
            self.count += 1
            target = path if self.count == 1 else "/../../server_500/v1" + path
            return real.exchange(method, target, *rest)

        close = real.close

    async def main() -> Fetched:
        wire = SecondFails()
        got = await asking(Channel(judge.endpoint, wire), judge, grading)
        await wire.close()
        return got

    got = asyncio.run(main())
    assert [reply.text for reply in got.replies] == ["who knows"]
    assert got.outcome is Outcome.transport
    assert got.attempts == 2


def test_what_a_re_ask_changes(faults: Any, grading: Any) -> None:
    ask_judge(a_judge(faults.url("truncated:0")), grading)
    (plain,) = faults.bodies["truncated:0"]
    assert plain == {
        "model": "m", "messages": MESSAGES, "temperature": 0.0, "top_p": 1.0, "max_tokens": 8,
        "seed": 7,
    }  # fmt: skip
    ask_judge(a_judge(faults.url("unparsed:1")), grading)
    first, second = faults.bodies["unparsed:1"]
    assert first == plain
    reminded = [{"role": "user", "content": f"grade this\n\n{REMINDER}"}]
    assert second == {**plain, "messages": reminded}
    ask_judge(a_judge(faults.url("truncated:1")), grading)
    assert faults.bodies["truncated:1"] == [plain, {**plain, "max_tokens": 16}]


def test_jitter_does_not_touch_the_global_random_numbers(faults: Any, grading: Any) -> None:
    import random

    state = random.getstate()
    ask_judge(a_judge(faults.url("server_500")), grading)
    assert random.getstate() == state


@pytest.mark.parametrize("stream", [False, True])
def test_a_bomb_stays_small_in_memory(stream: bool, faults: Any, grading: Any) -> None:
    judge = a_judge(faults.url("s_bomb" if stream else "bomb"), stream=stream)
    tracemalloc.start()
    try:
        got, _ = ask_judge(judge, grading)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "unpacks to more than 200000 bytes" in got.reason
    assert peak < 8_000_000  # of 300 MB; the server and its piece of 1 MB are counted too


def test_a_body_of_a_draw_is_changed_where_a_grading_needs_more(one_word: Any) -> None:
    judge = a_judge(APPLICATION)  # 8 tokens
    more, less = (one_word({"body": {"max_tokens_at_least": least}}) for least in (90, 3))
    body = judge_body(judge, more.body(), MESSAGES, 0)
    assert body["max_tokens"] == 90
    assert judge_body(judge, less.body(), MESSAGES, 0)["max_tokens"] == 8
    assert changed_body(judge, body, budget=2)["max_tokens"] == 180
    more = {"max_tokens_field": "max_completion_tokens"}
    judge = a_judge(APPLICATION, extra_body={"top_p": 0.5, "think": False}, **more)
    grading = one_word({"body": {"max_tokens": 1, "logprobs": True}})
    body = judge_body(judge, grading.body(), MESSAGES, 3)
    assert changed_body(judge, body, budget=2) == {
        "model": "m", "messages": MESSAGES, "temperature": 0.0, "top_p": 0.5,
        "max_completion_tokens": 2, "seed": 10, "logprobs": True, "think": False,
    }  # fmt: skip
    unseeded = replace(judge, sampling=replace(judge.sampling, seed=None))
    assert "seed" not in judge_body(unseeded, grading.body(), MESSAGES, 3)


def test_the_first_grade_counts_and_a_bug_in_a_parser_is_none(one_word: Any) -> None:
    grading = one_word({})
    vague, met, not_met = Reply("hm"), Reply("met"), Reply("not_met")
    assert settle(grading.parse, [vague, met, not_met])[0] is met
    assert settle(grading.parse, [vague, Reply("")])[1].outcome is Outcome.empty
    refused = Reply("met", finish_reason="content_filter")
    assert settle(grading.parse, [refused, met])[1].outcome is Outcome.refused
    parsed = settle(one_word({}).parse, [Reply("explode")])[1]
    assert parsed.outcome is Outcome.unparsed
    assert "IndexError" in parsed.reason
