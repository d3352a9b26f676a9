"""The endpoint of a rehearsal, ask by the client that asks real judges."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.rehearsal import endpoint
from experiments.rehearsal.endpoint import Pace, RehearsalEndpoint, drawn_verdicts, read_log
from experiments.rehearsal.measure import peak_of
from experiments.rehearsal.profiles import NONE, Profile, Spread
from judges.ask.identity import build_grading
from judges.endpoint.complete import Fetched, chat_body, complete_all
from study.config.compose import load_judge
from study.config.schema import Judge
from study.errors import UserError
from study.rows import make_row
from study.verdict import Outcome

QUICK = Profile(
    first_token_s=Spread(1.0, 1.0),
    token_s=Spread(0.01, 0.01),
    spoken_tokens=Spread(20, 20),
    reasoning_tokens=NONE,
)
THINKING = dataclasses.replace(QUICK, reasoning_tokens=Spread(500, 500))
FACTOR = 1000.0
Ask = Callable[..., list[Fetched]]


@pytest.fixture
def ask(tmp_path, monkeypatch) -> Ask:
    """Ask a preset's judge about answers, at an endpoint with a profile; its log is `LOG`."""
    monkeypatch.setenv("DASHSCOPE_API_KEY", "rehearsal-no-key")

    def ask_all(
        name: str, profile: Profile, answers: Sequence[str], share: float = 1.0, **settings: Any
    ) -> list[Fetched]:
        judge = load_judge(name)
        with RehearsalEndpoint(
            [(judge, profile, drawn_verdicts(judge))], Pace(FACTOR, share), tmp_path / "log"
        ) as server:
            there = dataclasses.replace(
                judge.endpoint, url=server.url(judge), backoff_s=0.001, **settings
            )
            asking = dataclasses.replace(judge, endpoint=there)
            return complete_all(there, [body(asking, answer) for answer in answers])

    return ask_all


ROW = make_row(({"role": "user", "content": "Which city?"},), reference="Rome")


def body(judge: Judge, answer: str) -> Any:
    request = build_grading(judge).requests(ROW, answer)[0]
    return chat_body(judge.endpoint, judge.sampling, request.messages)


def lines(folder: Path) -> list[Mapping[str, Any]]:
    return read_log(folder / "log")


def test_a_served_judge_answers_with_its_tokens_and_its_seconds(ask, tmp_path) -> None:
    (fetched,) = ask("qwen3-32b", QUICK, ["Rome"])
    (reply,) = fetched.replies
    assert "[[" in reply.text and not reply.reasoning and reply.finish_reason == "stop"
    (line,) = lines(tmp_path)
    assert line["model"] == "judge/qwen3-32b" and line["outcome"] == "stop"
    assert line["tokens_out"] == reply.tokens_out and 20 < line["tokens_out"] < 30
    assert line["seconds"] == pytest.approx(1.0 + 0.01 * line["tokens_out"])
    assert line["tokens_in"] == reply.tokens_in


def test_a_reasoning_judge_thinks_aloud_at_its_length_and_only_as_a_stream(ask) -> None:
    (fetched,) = ask("qwq-plus", THINKING, ["Rome"])
    (reply,) = fetched.replies
    assert len(reply.reasoning) == pytest.approx(500 * 4, abs=1) and "[[" in reply.text
    assert reply.tokens_out is not None and 520 < reply.tokens_out < 540
    (refused,) = ask("qwq-plus", THINKING, ["Rome"], stream=False)
    assert "only supports streaming" in refused.reason and not refused.replies


def test_a_hosted_judge_wants_a_key(ask) -> None:
    with pytest.raises(UserError, match=r"model=qwq-plus: the key is refused: HTTP 401"):
        ask("qwq-plus", THINKING, ["Rome"], api_key_env=None)


def test_thinking_past_the_limit_on_tokens_cuts_the_reply_off(ask) -> None:
    endless = dataclasses.replace(QUICK, reasoning_tokens=Spread(9000, 9000))
    (fetched,) = ask("qwq-plus", endless, ["Rome"])
    (reply,) = fetched.replies
    assert (reply.finish_reason, reply.tokens_out, reply.text) == ("length", 8192, "")
    assert len(reply.reasoning) == pytest.approx(8192 * 4, abs=1)


def test_a_verdict_is_drawn_by_question_and_judge(ask) -> None:
    answers = [f"city {number}" for number in range(12)]
    first, again = (ask("qwen3-32b", QUICK, answers) for _ in range(2))
    other = ask("qwen3-8b", QUICK, answers)
    texts = [[fetched.replies[0].text for fetched in each] for each in (first, again, other)]
    assert texts[0] == texts[1] and texts[0] != texts[2]
    assert len({text.rpartition("\n")[2] for text in texts[0]}) > 6


def test_what_passes_a_limit_is_sent_back_with_the_wait(ask, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(endpoint, "time", SimpleNamespace(monotonic=lambda: 5.0))  # no time passes
    limited = dataclasses.replace(QUICK, requests_per_min=600)  # 1 a second at a share of a tenth
    first, second = ask("qwen3-32b", limited, ["Rome", "Paris"], share=0.1, attempts=2)
    assert first.outcome is None
    assert (second.outcome, second.attempts) == (Outcome.rate_limited, 2)
    assert [line["outcome"] for line in lines(tmp_path)] == ["stop", *["rate_limited"] * 2]


@pytest.mark.parametrize("kind", ["http_500", "hang"])
def test_a_request_that_fails_has_no_reply(kind, ask, tmp_path) -> None:
    failing = dataclasses.replace(QUICK, failures={kind: 1.0})
    (fetched,) = ask("qwen3-32b", failing, ["Rome"], attempts=2, idle_timeout_s=0.2)
    wanted = Outcome.timeout if kind == "hang" else Outcome.transport
    assert (fetched.outcome, fetched.attempts, fetched.replies) == (wanted, 2, ())
    seconds = {"hang": 60.0, "http_500": 1.0}[kind]  # the preset's idle_timeout_s; the first token
    assert [line["seconds"] for line in lines(tmp_path)] == [seconds] * 2


@pytest.mark.parametrize("kind", ["unparsed", "empty", "refused"])
def test_a_reply_that_fails_is_no_verdict(kind, ask) -> None:
    failing = dataclasses.replace(QUICK, failures={kind: 1.0})
    (fetched,) = ask("qwen3-32b", failing, ["Rome"])
    assert "[[" not in fetched.replies[0].text


def test_a_reply_that_takes_longer_than_a_judge_is_waited_for_never_comes(ask, tmp_path) -> None:
    slow = dataclasses.replace(QUICK, token_s=Spread(3.0, 3.0))  # 60 s and more for 20 tokens
    (fetched,) = ask("qwen3-32b", slow, ["Rome"], attempts=1, idle_timeout_s=0.2)
    assert fetched.outcome is Outcome.timeout
    assert [line["outcome"] for line in lines(tmp_path)] == ["late"]


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path) -> None:
    path = tmp_path / "log"
    path.write_text('{"model": "judge/a", "outcome": "stop"}\n{"model": "ju')
    assert read_log(path) == [{"model": "judge/a", "outcome": "stop"}]
    assert read_log(tmp_path / "none") == []


def test_memory_of_a_process_is_its_peak() -> None:
    assert peak_of(os.getpid()) > 10_000_000
    assert peak_of(2**30) == 0
