"""Rows, and a judge behind an endpoint in this process, which answers as a test says."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from judges.ask.replies import Store
from judges.ask.session import Session
from study.config.schema import Endpoint, Grading, Judge, Price, Sampling
from study.rows import Criterion, Row, make_row
from study.verdict import Verdict

ROWS = [make_row(({"role": "user", "content": f"Write {number} words."},)) for number in range(4)]

COLOURS = [
    make_row(({"role": "user", "content": f"Say {word}."},), (Criterion("One."), Criterion("Two.")))
    for word in ("red", "blue", "green")
]


def ask_once(
    judge: Judge, store: Store | None = None, item: tuple[Row, str] = (ROWS[0], "x")
) -> tuple[Verdict, int]:
    """The verdict of a session of its own, and the calls that it made."""
    with Session(judge, store) as session:
        ((verdict,),) = session.ask_many([item])
        return verdict, session.calls


def ask_group(
    session: Session, row: Row, answers: Sequence[str], draws: Sequence[int] | None = None
) -> list[Verdict]:
    """The first of the votes on each of the answers, which are one group."""
    votes_G = session.ask_many([(row, answer) for answer in answers], len(answers), draws)
    return [votes[0] for votes in votes_G]


def held(grading: str = "likert", votes: int = 1, **endpoint: Any) -> Judge:
    """A judge that is asked once for each verdict: the application of a test, or an address."""
    settings: dict[str, Any] = {
        **{"url": "asgi://held", "deadline_s": 20.0, "attempts": 1, "backoff_s": 0.001},
        **endpoint,
    }
    return Judge(
        name="real",
        endpoint=Endpoint(model="m", **settings),
        grading=Grading(grading),
        sampling=Sampling(votes=votes),
    )


def http(url: str, price: Price | None = None, **endpoint: Any) -> Judge:
    settings: dict[str, Any] = {
        **{"model": "m", "deadline_s": 1.0, "idle_timeout_s": 0.5, "attempts": 2},
        **{"backoff_s": 0.01},
        **endpoint,
    }
    return Judge(
        name="real",
        revision="r",
        endpoint=Endpoint(url=url, **settings),
        grading=Grading("one-word"),
        price=price or Price(),
    )


def answer(body: dict[str, Any]) -> Any:
    """What an endpoint says where a test does not care."""
    return "[[50]]"


class Endpointed:
    """Answers a body by what ``say`` returns: a text, a text and how it ends, or a status.

    A request waits until ``free`` says so of its content and of all that have come.
    """

    def __init__(
        self,
        say: Callable[[dict[str, Any]], Any] = answer,
        free: Callable[[str, list[str]], bool] = lambda content, texts: True,
    ) -> None:
        self.say, self.free = say, free
        self.bodies: list[dict[str, Any]] = []
        self.news: asyncio.Condition | None = None

    @property
    def texts(self) -> list[str]:
        """The texts of all requests, in the order in which they came."""
        return [text_of(body) for body in self.bodies]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import JSONResponse

        if scope["method"] == "GET":
            models = {"object": "list", "data": [{"id": "m", "object": "model"}]}
            await JSONResponse(models)(scope, receive, send)
            return
        if self.news is None:
            self.news = asyncio.Condition()
        body = json.loads((await receive())["body"])
        async with self.news:
            self.bodies.append(body)
            reply_text = self.say(body)
            self.news.notify_all()
            await self.news.wait_for(lambda: self.free(text_of(body), self.texts))
        if isinstance(reply_text, int):
            await JSONResponse({"error": {"message": "no"}}, reply_text)(scope, receive, send)
            return
        text, finish = reply_text if isinstance(reply_text, tuple) else (reply_text, "stop")
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        choice = {"index": 0, "message": {"content": text}, "finish_reason": finish}
        reply = {"object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
        await JSONResponse(reply)(scope, receive, send)


def text_of(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]
