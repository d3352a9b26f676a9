"""Every fault of an endpoint, plain and streamed, through a whole session: what it becomes."""

import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from experiments.trainer.step_metrics import judge_metrics
from judges.ask.replies import Store
from judges.ask.session import Session
from judges.faults import FaultServer
from judges.grading import GRADINGS
from study.rows import make_row
from study.verdict import Outcome, Verdict, mean_score
from tests.judges.asking import DEADLINE_S, IDLE_S, TRIES, OneWord, a_judge
from tests.waiting import GENEROUS_S, wait_for

ROW = make_row(({"role": "user", "content": "Write."},))
AT_ONCE = 10
"""More sessions that start together would keep each other waiting for longer than `IDLE_S`."""


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def one_word() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(GRADINGS, OneWord.name, OneWord)
        yield


End = tuple[Outcome, int]
"""What becomes of a verdict, and after how many calls."""
BOTH: dict[End, str] = {
    (Outcome.transport, TRIES): "close no_http rst server_500 gateway_502 overloaded_529 "
    "timeout_408 broken_gzip brotli",
    (Outcome.transport, 1): "busy_503_long invalid_422 redirect status_204",
    (Outcome.timeout, TRIES): "hang hang_head drip_head",
    (Outcome.rate_limited, TRIES): "limit_429 limit_429_zero limit_429_nonsense",
    (Outcome.rate_limited, 1): "limit_429_long limit_429_date",
    (Outcome.endpoint_down, 1): "quota_429 key_401 bill_402 forbidden_403 model_404",
    (Outcome.too_long, 1): "context_400 too_large_413",
    (Outcome.refused, 1): "inspection_400",
}
"""Faults below the answer: the same whether it would have been streamed."""
PLAIN: dict[End, str] = {
    (Outcome.transport, TRIES): "html_200 events_for_plain short_body rst_body cut_json cut_gzip "
    "non_utf8 utf16 not_object deep error_200 error_200_flat no_choices choices_empty choices_two "
    "choice_no_message finish_null finish_strange content_number",
    (Outcome.transport, 1): "huge bomb",
    (Outcome.timeout, TRIES): "hang_body",
    (Outcome.timeout, 1): "drip",  # always something new: only the deadline ends it
    (Outcome.unparsed, 2): "unparsed",
    (Outcome.empty, 2): "empty null_reasoning null_reasoning_content",
    (Outcome.truncated, 2): "truncated",
    (Outcome.refused, 1): "filtered refusal_field",
}
STREAM: dict[End, str] = {
    (Outcome.transport, TRIES): "s_html s_json s_rst s_cut_chunk s_non_utf8 s_malformed "
    "s_error_object s_error_event s_two_choices s_nothing s_no_finish s_done_no_finish "
    "s_after_finish s_http_500 s_lost_in_usage",
    (Outcome.transport, 1): "s_huge s_bomb",
    (Outcome.timeout, TRIES): "s_stall s_drip s_comments s_empty_deltas",
    (Outcome.timeout, 1): "s_slow_words",
    (Outcome.rate_limited, TRIES): "s_limit_429",
    (Outcome.endpoint_down, 1): "s_key_401",
    (Outcome.unparsed, 2): "s_unparsed",
    (Outcome.empty, 2): "s_empty s_reasoning_only s_reasoning_content_only",
    (Outcome.truncated, 2): "s_length",
    (Outcome.refused, 1): "s_filtered s_inspection",
}
FLAT = [
    (stream, name, *end)
    for stream, tables in ((False, (BOTH, PLAIN)), (True, (BOTH, STREAM)))
    for table in tables
    for end, names in table.items()
    for name in names.split()
]


def test_the_matrix_has_the_size_that_is_promised() -> None:
    for stream in (False, True):
        assert len({name for streamed, name, *_ in FLAT if streamed is stream}) >= 50


def left_behind() -> tuple[int, int]:
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


Ended = dict[tuple[bool, str], tuple[Verdict, int, int, bool]]


@pytest.fixture(scope="module")
def ended(one_word: None) -> Ended:
    """The verdict under each fault, the calls of its session, those that the server counted, and
    whether the endpoint is taken to refuse everything.

    Several are asked for at once, as many end at a limit only."""

    def one(stream: bool, fault: str) -> tuple[Verdict, int, int, bool]:
        with Session(a_judge(servers[stream].url(fault), stream=stream), None) as session:
            ((verdict,),) = session.ask_many([(ROW, "one")])
            refused = session._asker.channel.refused is not None
            return verdict, session.calls, servers[stream].calls[fault], refused

    faults = [*((stream, fault) for stream, fault, *_ in FLAT), (False, "endless_head")]
    with (
        FaultServer() as plain,
        FaultServer() as streamed,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        servers = {False: plain, True: streamed}
        found = threads.map(one, *zip(*faults, strict=True), timeout=GENEROUS_S)
        return dict(zip(faults, found, strict=True))


@pytest.mark.parametrize(
    ("stream", "fault", "outcome", "calls"),
    FLAT,
    ids=[f"{'sse' if stream else 'plain'}-{name}" for stream, name, *_ in FLAT],
)
def test_a_fault(stream: bool, fault: str, outcome: Outcome, calls: int, ended: Ended) -> None:
    verdict, made, counted, refused = ended[stream, fault]
    assert (verdict.outcome, verdict.score) == (outcome, None), verdict.reason
    assert verdict.reason and "\n" not in verdict.reason
    assert refused == (outcome is Outcome.endpoint_down)
    if outcome not in (Outcome.unparsed, Outcome.truncated, Outcome.refused):
        assert verdict.text == ""
    assert verdict.attempts == made == counted == calls
    if outcome is Outcome.timeout:
        limit = f"no reply within {DEADLINE_S:g}" if calls == 1 else f"nothing new for {IDLE_S:g}"
        assert verdict.reason.startswith(f"{limit} s")
    if "reasoning" in fault:
        assert verdict.reason.startswith("only thinking")
        assert "met" in verdict.reasoning  # kept, and not mined for a grade


def test_endless_headers_are_cut(ended: Ended) -> None:
    verdict, *_ = ended[False, "endless_head"]
    assert verdict.outcome in (Outcome.timeout, Outcome.transport)


@pytest.mark.parametrize("stream", [False, True])
def test_no_fault_leaks_and_the_failure_table_adds_up(stream, server, tmp_path) -> None:
    names = [name for streamed, name, *_ in FLAT if streamed is stream]

    def twice(name: str) -> tuple[list[Verdict], int]:
        with (
            Store(tmp_path / "replies.db") as store,
            Session(a_judge(server.url(name), stream=stream), store) as session,
        ):
            found = session.ask_many([(ROW, f"{name} {number}") for number in range(2)])
            return [verdict for draws in found for verdict in draws], session.calls

    server_before, seen_before = left_behind(), server.calls.total()
    Store(tmp_path / "replies.db").close()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        asked = list(threads.map(twice, names, timeout=GENEROUS_S))
    verdicts = [verdict for found, _ in asked for verdict in found]
    made, seen = sum(calls for _, calls in asked), server.calls.total() - seen_before
    assert sum(verdict.attempts for verdict in verdicts) == made == seen
    replied = {Outcome.refused, Outcome.unparsed, Outcome.truncated, Outcome.empty}
    items = [(ROW, f"{name} {number}") for name in names for number in range(2)]
    kept = [pair for pair in zip(items, verdicts, strict=True) if pair[1].outcome in replied]
    with (
        Store(tmp_path / "replies.db") as store,
        Session(a_judge(server.url("close"), stream=stream), store) as session,
    ):
        stored = store.get_many([verdict.key for verdict in verdicts])
        assert stored.keys() == {each.key for _, each in kept}
        again = session.ask_many([item for item, _ in kept])
        assert session.calls == 0
    assert [draws[0].outcome for draws in again] == [each.outcome for _, each in kept]
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
        limits = {"attempts": 30, "deadline_s": 60.0, "idle_timeout_s": 0.6, "backoff_s": 0.001}
        asked = a_judge(url, stream=stream, **limits)
        with Session(asked, None) as session:
            found = session.ask_many([(ROW, f"{number}") for number in range(60)])
            assert session.calls == sum(draws[0].attempts for draws in found) > 60
        assert {draws[0].score for draws in found} == {1.0}
