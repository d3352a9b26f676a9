"""An endpoint in this process: it answers as a test says, and keeps what it was asked."""

import asyncio
import json
from collections.abc import Callable
from typing import Any


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
