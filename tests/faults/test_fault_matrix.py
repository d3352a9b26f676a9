"""Every fault of an endpoint, plain and streamed, through a whole session: what it becomes."""

import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from experiments.scorer import judge_metrics
from judges.faults import FaultServer
from judges.grading import GRADINGS
from judges.grading.base import NOTHING, OneRequest
from judges.session import Session
from judges.store import Store
from study.rows import Row, make_row
from study.schema import Endpoint, Grading, Judge, Sampling
from study.verdict import Outcome, Parsed, Reply, Request, Verdict, mean_score
from tests.waiting import GENEROUS_S, wait_for

DEADLINE_S = 6.0
IDLE_S = 1.5
"""Longer than a busy machine lets an answer wait that is there at once."""
TRIES = 2
ROW = make_row(({"role": "user", "content": "Write."},))


class Word(OneRequest):
    """A grading that reads one of two words."""

    name, version, prompt_sha = "matrix-word", "1", "0" * 16

    _template = ""

    def messages(self, row: Row, answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": answer}]

    def parse(self, reply: Reply, request: Request = NOTHING) -> Parsed:
        if reply.finish_reason == "length":
            return Parsed(Outcome.truncated, reason="cut")
        if not reply.text:
            return Parsed(Outcome.empty, reason="only thinking" if reply.reasoning else "nothing")
        if reply.text not in ("met", "not_met"):
            return Parsed(Outcome.unparsed, reason="off the format")
        return Parsed(Outcome.scored, (reply.text,), float(reply.text == "met"))


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture(autouse=True)
def word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRADINGS, Word.name, Word)


def judge(url: str, stream: bool, **endpoint: Any) -> Judge:
    settings: dict[str, Any] = {
        "url": url, "model": "m", "stream": stream, "deadline_s": DEADLINE_S,
        "idle_timeout_s": IDLE_S, "attempts": TRIES, "backoff_s": 0.01, "max_reply_bytes": 200_000,
    }  # fmt: skip
    return Judge(
        name="j",
        endpoint=Endpoint(**{**settings, **endpoint}),
        grading=Grading(Word.name),
        sampling=Sampling(max_tokens=8),
    )


WIRE = Outcome.transport
BOTH: dict[str, tuple[Outcome, int]] = {
    "close": (WIRE, TRIES),
    "no_http": (WIRE, TRIES),
    "rst": (WIRE, TRIES),
    "hang": (Outcome.timeout, TRIES),
    "hang_head": (Outcome.timeout, TRIES),
    "drip_head": (Outcome.timeout, TRIES),
    "server_500": (WIRE, TRIES),
    "gateway_502": (WIRE, TRIES),
    "busy_503_long": (WIRE, 1),
    "overloaded_529": (WIRE, TRIES),
    "timeout_408": (WIRE, TRIES),
    "limit_429": (Outcome.rate_limited, TRIES),
    "limit_429_zero": (Outcome.rate_limited, TRIES),
    "limit_429_nonsense": (Outcome.rate_limited, TRIES),
    "limit_429_long": (Outcome.rate_limited, 1),
    "limit_429_date": (Outcome.rate_limited, 1),
    "quota_429": (Outcome.endpoint_down, 1),
    "key_401": (Outcome.endpoint_down, 1),
    "bill_402": (Outcome.endpoint_down, 1),
    "forbidden_403": (Outcome.endpoint_down, 1),
    "model_404": (Outcome.endpoint_down, 1),
    "context_400": (Outcome.too_long, 1),
    "inspection_400": (Outcome.refused, 1),
    "too_large_413": (Outcome.too_long, 1),
    "invalid_422": (WIRE, 1),
    "redirect": (WIRE, 1),
    "status_204": (WIRE, 1),
    "broken_gzip": (WIRE, TRIES),
    "brotli": (WIRE, TRIES),
}
"""Faults below the answer: the same whether it would have been streamed."""
PAIRS: dict[tuple[str, str], tuple[Outcome, int]] = {
    ("html_200", "s_html"): (WIRE, TRIES),
    ("events_for_plain", "s_json"): (WIRE, TRIES),
    ("short_body", "s_rst"): (WIRE, TRIES),
    ("cut_json", "s_cut_chunk"): (WIRE, TRIES),
    ("non_utf8", "s_non_utf8"): (WIRE, TRIES),
    ("not_object", "s_malformed"): (WIRE, TRIES),
    ("error_200", "s_error_object"): (WIRE, TRIES),
    ("error_200_flat", "s_error_event"): (WIRE, TRIES),
    ("choices_two", "s_two_choices"): (WIRE, TRIES),
    ("choices_empty", "s_nothing"): (WIRE, TRIES),
    ("finish_null", "s_no_finish"): (WIRE, TRIES),
    ("finish_strange", "s_done_no_finish"): (WIRE, TRIES),
    ("content_number", "s_after_finish"): (WIRE, TRIES),
    ("huge", "s_huge"): (WIRE, 1),
    ("bomb", "s_bomb"): (WIRE, 1),
    ("hang_body", "s_stall"): (Outcome.timeout, TRIES),
    ("drip", "s_slow_words"): (Outcome.timeout, 1),
    ("drip", "s_comments"): (Outcome.timeout, TRIES),
    ("unparsed", "s_unparsed"): (Outcome.unparsed, 2),
    ("empty", "s_empty"): (Outcome.empty, 2),
    ("null_reasoning", "s_reasoning_only"): (Outcome.empty, 2),
    ("null_reasoning_content", "s_reasoning_content_only"): (Outcome.empty, 2),
    ("truncated", "s_length"): (Outcome.truncated, 2),
    ("filtered", "s_filtered"): (Outcome.refused, 1),
}
"""Broken answers, plain and streamed."""
FLAT = [
    *((stream, name, *end) for name, end in BOTH.items() for stream in (False, True)),
    *(
        (stream, pair[stream], *end)
        for pair, end in PAIRS.items()
        for stream in (False, True)
        if pair != ("drip", "s_comments") or stream
    ),
]


def test_the_matrix_has_the_size_that_is_promised() -> None:
    assert len(BOTH) + len(PAIRS) >= 25
    for stream in (False, True):
        assert len({name for streamed, name, *_ in FLAT if streamed is stream}) >= 25


def left_behind() -> tuple[int, int]:
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


Ended = dict[tuple[bool, str], tuple[Verdict, int, int]]


@pytest.fixture(scope="module")
def ended() -> Ended:
    """The verdict under each fault, the calls of its session, and those that the server counted.

    All are asked for at once, as many end at a limit only."""

    def one(stream: bool, fault: str) -> tuple[Verdict, int, int]:
        with Session(judge(servers[stream].url(fault), stream), None) as session:
            ((verdict,),) = session.verdicts([(ROW, "one")])
            return verdict, session.calls, servers[stream].calls[fault]

    faults = [(stream, fault) for stream, fault, *_ in FLAT]
    with (
        FaultServer() as plain,
        FaultServer() as streamed,
        ThreadPoolExecutor(len(faults)) as threads,
    ):
        servers = {False: plain, True: streamed}
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(GRADINGS, Word.name, Word)
            found = threads.map(one, *zip(*faults, strict=True), timeout=GENEROUS_S)
            return dict(zip(faults, found, strict=True))


@pytest.mark.parametrize(
    ("stream", "fault", "outcome", "calls"),
    FLAT,
    ids=[f"{'sse' if stream else 'plain'}-{name}" for stream, name, *_ in FLAT],
)
def test_a_fault(stream: bool, fault: str, outcome: Outcome, calls: int, ended: Ended) -> None:
    verdict, made, counted = ended[stream, fault]
    assert (verdict.outcome, verdict.score) == (outcome, None), verdict.reason
    assert verdict.reason
    assert verdict.attempts == made == counted == calls
    if outcome is Outcome.timeout:
        limit = f"no reply within {DEADLINE_S:g}" if calls == 1 else f"nothing new for {IDLE_S:g}"
        assert verdict.reason.startswith(f"{limit} s")
    if "reasoning" in fault:
        assert verdict.reason.startswith("only thinking")
        assert verdict.reasoning and not verdict.text


@pytest.mark.parametrize("stream", [False, True])
def test_no_fault_leaks_and_the_failure_table_adds_up(
    stream: bool, server: FaultServer, tmp_path: Path
) -> None:
    names = [name for streamed, name, *_ in FLAT if streamed is stream]

    def twice(name: str) -> tuple[list[Verdict], int]:
        with (
            Store(tmp_path / "replies.db") as store,
            Session(judge(server.url(name), stream), store) as session,
        ):
            found = session.verdicts([(ROW, f"{name} {number}") for number in range(2)])
            return [verdict for draws in found for verdict in draws], session.calls

    server_before, seen_before = left_behind(), server.calls.total()
    Store(tmp_path / "replies.db").close()
    with ThreadPoolExecutor(len(names)) as threads:
        asked = list(threads.map(twice, names, timeout=GENEROUS_S))
    verdicts = [verdict for found, _ in asked for verdict in found]
    made, seen = sum(calls for _, calls in asked), server.calls.total() - seen_before
    assert sum(verdict.attempts for verdict in verdicts) == made == seen
    metrics = judge_metrics(verdicts)
    table = {
        name.removeprefix("judge/unscored/"): round(share * len(verdicts))
        for name, share in metrics.items()
        if name.startswith("judge/unscored/") and share
    }
    assert table == Counter(verdict.outcome.value for verdict in verdicts)
    assert sum(table.values()) == 2 * len(names)
    assert metrics["judge/unscored_frac"] == 1.0
    assert all(mean_score([verdict]) is None for verdict in verdicts)

    def nothing_is_left() -> bool:
        threads, files = left_behind()
        return threads <= server_before[0] and files <= server_before[1]

    # the server closes its own ends in the next moments
    wait_for(nothing_is_left, "as few threads and descriptors as before")


def test_a_mix_is_scored_in_the_end(server: FaultServer) -> None:
    for stream in (False, True):
        url = server.url("mix_0.5")
        # a good answer that comes too late is asked for again
        asked = judge(
            url, stream, attempts=30, deadline_s=60.0, idle_timeout_s=0.6, backoff_s=0.001
        )
        with Session(asked, None) as session:
            found = session.verdicts([(ROW, f"{number}") for number in range(60)])
            assert session.calls == sum(draws[0].attempts for draws in found) > 60
        assert {draws[0].score for draws in found} == {1.0}
