"""Sessions whose verdicts are on record: ``python -m tests.judges.recorded`` prints what they give.

One line per verdict in ``recorded_verdicts.json``: what it says, and a digest of its whole row. The
file was written before sessions became asynchronous, and no change may move a line of it; only the
digests follow a grading whose version is raised.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from judges.ask.replies import Store, canonical
from judges.ask.session import Session
from judges.grading.delimiters import without_delimited
from study.config.schema import Endpoint, Failure, Grading, Judge, Price, Sampling, Simulated
from study.rows import Criterion, Row, Truth, make_row

FILE = Path(__file__).with_name("recorded_verdicts.json")
GROUP = 4
REMINDER = "Your last reply could not be read."


def rows() -> list[Row]:
    """Five prompts with a reference and two to five criteria."""
    return [
        make_row(
            ({"role": "user", "content": f"Write {number} words about the sea."},),
            tuple(
                Criterion(f"Says thing {place} of {number}.", float(place))
                for place in range(1, 3 + number % 4)
            ),
            reference=f"the sea {number}",
        )
        for number in range(5)
    ]


def items() -> list[tuple[Row, str]]:
    """A group of answers to each prompt, some of them equal."""
    return [
        (row, f"The sea is {'wide ' * (member % 3)}and {number}.")
        for number, row in enumerate(rows())
        for member in range(GROUP)
    ]


def truth(prompt: str, answer: str) -> Truth | None:
    """What the simulated judges know: half a point per ``wide``."""
    return Truth(min(1.0, 0.1 + answer.count("wide") / 2))


async def endpoint(scope: Any, receive: Any, send: Any) -> None:
    """Answers each request by a hash of it, and now and then not, in part, or unreadably."""
    from starlette.responses import JSONResponse

    body = json.loads((await receive())["body"])
    content = body["messages"][-1]["content"]
    dice = hashlib.sha256(json.dumps([content.split(REMINDER)[0], body.get("seed")]).encode())
    die = dice.digest()
    text, finish = _reply_text(content, body, die), "stop"
    if die[0] % 16 == 0:
        await JSONResponse({"error": {"message": "out of order"}}, 500)(scope, receive, send)
        return
    if die[0] % 16 in (1, 2) and REMINDER not in content:
        text = "I would rather not say."
    if die[0] % 16 == 3 and body["max_tokens"] < 512:
        text, finish = text[:3], "length"
    usage = {"prompt_tokens": len(content), "completion_tokens": len(text)}
    choice = {"index": 0, "message": {"content": text}, "finish_reason": finish}
    if body.get("logprobs"):
        top = [{"token": "Yes", "logprob": -0.1 - die[1] / 99}, {"token": "No", "logprob": -2.4}]
        choice["logprobs"] = {"content": [{**top[text == "No"], "top_logprobs": top}]}
    reply = {"model": "m", "choices": [choice], "usage": usage}
    await JSONResponse(reply)(scope, receive, send)


def _reply_text(content: str, body: dict[str, Any], die: bytes) -> str:
    """A verdict in the form that the request asks for."""
    instructions = without_delimited(content)
    if body.get("logprobs"):
        return "Yes" if die[1] % 2 else "No"
    if '"1"' in instructions:
        block = content.split("Rubric:")[1]
        numbers = [int(line.split(".")[0]) for line in block.splitlines() if line[:1].isdigit()]
        # the last of several criteria is left out now and then, and asked for by itself
        labelled_numbers = numbers[:-1] if len(numbers) > 1 and die[2] % 3 == 0 else numbers
        return json.dumps(
            {str(n): "met" if die[2 + n] % 2 else "not_met" for n in labelled_numbers}
        )
    if "[[tie]]" in instructions:
        return ("[[A]]", "[[B]]", "[[tie]]")[die[1] % 3]
    if "[[best > ... > worst]]" in instructions:
        names = "ABCD" if "Answer D:" in content else "ABC"
        return f"[[{' > '.join(sorted(names, key=lambda name: die[ord(name) % 32]))}]]"
    if "[[score]]" in instructions:
        return f"[[{die[1] % 101}]]"
    return f"[[{die[1] % 2}]]" if "[[1]]" in instructions else "[[Yes]]"


def judges() -> dict[str, Judge]:
    """Each grading before a real endpoint, and simulated judges that fail and are unsure."""
    gradings: dict[str, dict[str, Any]] = {
        **{"likert": {}, "soft_choice": {}, "rubric_batch": {}, "rubric_chunk": {"k": 2}},
        **{"rubric_item": {"partial": "renormalise"}, "verif": {}, "binary": {}},
        **{"pairwise": {"against": "next"}, "listwise": {}},
    }
    real = {
        name: Judge(
            name=f"real-{name}",
            endpoint=Endpoint("asgi://real", "m", attempts=2, backoff_s=0.001, max_concurrency=4),
            grading=Grading(name, options),
            sampling=Sampling(max_tokens=256, votes=1 + (name in ("likert", "pairwise")), seed=3),
            price=Price(input=1.0, output=10.0),
        )
        for name, options in gradings.items()
    }
    biased = Simulated(noise_sd=0.2, seed=5, failure=Failure(rate=0.2, kinds=["unparsed", "empty"]))
    simulated = {
        f"simulated-{name}": Judge(
            name=f"sim-{name}",
            grading=Grading(name),
            simulated=biased,
            sampling=Sampling(votes=2, temperature=1.0),
        )
        for name in ("likert", "rubric_batch", "pairwise", "listwise")
    }
    return real | simulated


def give(name: str, store: Store) -> tuple[int, int, list[str]]:
    """The calls and hits of one judge's session, and one line per verdict."""
    judge = judges()[name]
    with mock.patch("judges.ask.session._simulated", _app):
        session = Session(judge, store, truth)
    with session:
        votes_N = session.ask_many(items(), GROUP)
        lines = [_line(verdict.as_row()) for votes in votes_N for verdict in votes]
        return session.calls, session.hits, lines


def _app(judge: Judge, oracle: Any, calls_before: int) -> Any:
    from judges.simulated.app import simulated_app

    return endpoint if judge.simulated is None else simulated_app(judge, oracle, calls_before)


def _line(row: dict[str, Any]) -> str:
    """Key, outcome and score of a verdict, and a digest of all but its time."""
    rest = {name: value for name, value in row.items() if name != "latency_s"}
    digest = hashlib.sha256(canonical(rest)).hexdigest()[:12]
    return f"{row['key'][:12]} {row['outcome']} {row['score']} {digest}"


def twice(name: str) -> dict[str, Any]:
    """A judge asked twice: at first nothing is stored, then every reply that came."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "replies.db") as store:
        calls, hits, lines = give(name, store)
        later_calls, later_hits, later_lines = give(name, store)
    return {
        "calls": [calls, later_calls],
        "hits": [hits, later_hits],
        "verdicts": lines,
        "later verdicts": hashlib.sha256(canonical(later_lines)).hexdigest(),
    }


if __name__ == "__main__":
    json.dump({name: twice(name) for name in judges()}, sys.stdout, indent=1)
