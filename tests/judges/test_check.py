"""One screen that says whether a judge can be used, and its exit code."""

import dataclasses
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from judges import check
from judges.ask.identity import build_grading
from judges.endpoint.dialects import DIALECTS
from judges.serving import server
from study.config.compose import preset_names
from study.config.schema import Endpoint, Grading, Judge, Price
from study.verdict import Outcome
from tests.conftest import ROOT, free_port
from tests.study.test_verdict import verdict
from tests.waiting import wait_for

FAKE = Path(__file__).with_name("fake_vllm.py")


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[..., str]]:
    """Start servers that judge everything 0.8 at 100 tokens in and 4 out, one for each mode; gives
    their address."""
    processes = []

    @functools.cache
    def start(mode: str = "") -> str:
        port = str(free_port())
        words = ["serve", "x", "--served-model-name", "m", "--host", "127.0.0.1", "--port", port]
        processes.append(
            subprocess.Popen(
                [sys.executable, str(FAKE), *words],
                env=os.environ | {"FAKE_VLLM": mode},
                stdout=subprocess.DEVNULL,
            )
        )
        url = f"http://127.0.0.1:{port}/v1"
        wait_for(lambda: server.served_models(Judge(), url) is not None)
        return url

    yield start
    for process in processes:
        process.kill()
        process.wait()


def at(url: str, *more: str) -> list[str]:
    settings = (f"url={url}", "model=m", "attempts=1")
    return ["judge=openai-compatible", *(f"judge.endpoint.{each}" for each in settings), *more]


def lines(printed: str) -> dict[str, str]:
    """The screen, label -> text."""
    return {line.split()[0]: line[10:] for line in printed.splitlines()}


def test_a_simulated_judge_is_checked_in_this_process(capsys):
    assert check.main(["judge=sim-fair"]) == 0
    screen = lines(capsys.readouterr().out)
    assert list(screen) == [
        *("judge", "endpoint", "model", "dialect", "grading", "marks"),
        *("verdict", "latency", "tokens", "cost"),
    ]
    assert screen["judge"] == "sim-fair, simulated, rule"
    assert screen["verdict"].startswith("scored ") and screen["dialect"].startswith("simulated: ")
    assert screen["cost"] == "$0.0000 per 1,000 verdicts like this one"


@pytest.mark.parametrize("kind", ["unparsed", "refused", "truncated", "empty", "http_500"])
def test_a_verdict_that_was_not_scored_is_exit_code_1(capsys, kind):
    failing = f"judge.simulated.failure={{rate:1,kinds:[{kind}]}}"
    quick = ["judge.endpoint.attempts=1", "judge.endpoint.deadline_s=5"]
    assert check.main(["judge=sim-fair", failing, *quick]) == 1
    outcome = "transport" if kind == "http_500" else kind
    assert re.fullmatch(rf"{outcome}: .+", lines(capsys.readouterr().out)["verdict"])


@pytest.mark.parametrize(
    ("text", "grading", "settings"),
    [
        ("It is [[1]].", "pairwise", ["judge.grading.name=likert", "judge.grading.name=verif"]),
        ("Score: 8/10", "likert", ["judge.grading.options.form='Score: {score}/10'"]),
        ("[[80]]", "binary", ["judge.grading.name=likert"]),
        ("[[tie]]", "likert", ["judge.grading.name=pairwise"]),
        ("no idea", "likert", ["judge.grading.options.prompt=mine.txt"]),
        ("no idea", "binary", ["judge.grading.options.structured=true"]),
    ],
)
def test_a_reply_that_cannot_be_read_is_shown_with_the_form_and_what_to_add(
    text: str, grading: str, settings: list[str]
) -> None:
    """The surest first: a grading that reads this very reply, a form that the endpoint forces."""
    endpoint = Endpoint(dialect="vllm" if settings[0].endswith("true") else "openai")
    judge = Judge(endpoint=endpoint, grading=Grading(grading))
    rows = dict(check.screen(judge, verdict(outcome=Outcome.unparsed, text=text)))
    assert rows["reply"] == text and rows["expects"] == build_grading(judge).reply_form
    assert all(each in rows["try"] for each in settings)
    assert list(rows).index("try") == list(rows).index("verdict") + 3


def test_a_reply_that_was_cut_gets_more_room() -> None:
    judge = Judge()
    cut = check.remedies(judge, verdict(outcome=Outcome.truncated, text="[["))
    assert cut[0] == f"judge.sampling.max_tokens={4 * judge.sampling.max_tokens}"
    thinking = verdict(outcome=Outcome.empty, reason="there is only thinking")
    assert "judge.sampling.thinking=false" in check.remedies(judge, thinking)
    assert "try" not in dict(check.screen(judge, scored()))


def test_an_endpoint_by_url_and_model(capsys, serving):
    priced = ["judge.price.input=1", "judge.price.output=10", "judge.price.source=2026-11-21 mine"]
    assert check.main(at(serving(), *priced)) == 0
    screen = lines(capsys.readouterr().out)
    assert screen["verdict"] == "scored 0.800"
    assert screen["model"] == "m is served"
    assert screen["tokens"] == "100 in, 4 out"
    # (100 x $1 + 4 x $10) / 1e6 a verdict
    assert screen["cost"] == "$0.1400 per 1,000 verdicts like this one (price: 2026-11-21 mine)"


@pytest.mark.parametrize("grading", ["binary", "verif", "rubric_item", "pairwise", "listwise"])
def test_the_harmless_question_feeds_every_kind_of_grading(capsys, serving, grading):
    # The server says [[80]] to anything, which these cannot read; but it was asked.
    assert check.main(at(serving(), f"judge.grading.name={grading}")) == 1
    screen = lines(capsys.readouterr().out)
    assert screen["grading"].startswith(f"{grading} version")
    assert screen["verdict"].startswith("unparsed: ") and "no reference" not in screen["verdict"]
    assert not screen["latency"].endswith(" 0 attempts")


def test_a_cost_is_unknown_without_a_price_or_usage(capsys, serving):
    assert check.main(at(serving())) == 0
    unknown = "unknown: set judge.price before you use cost.max_usd"
    assert lines(capsys.readouterr().out)["cost"] == unknown
    judge = Judge(endpoint=Endpoint(model="m"), price=Price(input=1.0))
    assert "did not report its tokens" in check.cost(judge, scored(cost_usd=None))
    assert check.cost(judge, scored(cost_usd=0.002)).startswith("$2.0000 per 1,000")


def test_every_replica_is_checked(capsys, serving):
    first, second = serving(), serving("mute")
    assert check.main(at(first, f"judge.endpoint.replicas=[{second}]")) == 1
    printed = capsys.readouterr().out
    assert re.findall(r"endpoint +(\S+) answers", printed) == [first, second]
    assert re.findall(r"verdict +(\w+)", printed) == ["scored", "unparsed"]


@pytest.mark.parametrize("of_one_replica", [False, True])
def test_another_model_than_the_preset_says_is_an_error(capsys, serving, of_one_replica):
    other = serving("other")
    words = (serving(), f"judge.endpoint.replicas=[{other}]") if of_one_replica else (other,)
    assert check.main(at(*words)) == 2
    errors = capsys.readouterr().err
    assert "judge.endpoint.model='m'" in errors and "another-model" in errors


def test_help_names_the_judges(capsys):
    assert check.main(["--help"]) == 0
    assert "sim-fair" in capsys.readouterr().out


scored = functools.partial(verdict, outcome=Outcome.scored, score=0.5)


def test_the_screen_names_active_parameters_and_context():
    judge = dataclasses.replace(
        Judge(endpoint=Endpoint(model="m")), name="moe", size="120B", active_size="5B", context=9000
    )
    screen = dict(check.screen(judge, scored(labels=("met", "unknown"), tokens_in=3)))
    assert screen["judge"] == "moe, 120B (5B active), context 9,000 tokens"
    assert screen["verdict"] == "scored 0.500 (met, unknown)"
    assert screen["tokens"] == "not reported by the endpoint"


def test_the_documentation_names_every_judge_dialect_and_outcome():
    text = (ROOT / "docs" / "judges.md").read_text(encoding="utf-8")
    presets = [name for name in preset_names("judge") if not name.startswith("sim-")]
    named = [*presets, *DIALECTS, *(outcome.value for outcome in Outcome)]
    assert [name for name in named if f"`{name}`" not in text] == []
