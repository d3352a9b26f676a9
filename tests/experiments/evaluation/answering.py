"""Parts of a result, and an endpoint whose answers are known."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from study.tasks.datasets.sets import reported
from tests.experiments.small_sets import GSM8K, SETS
from tests.web_server import Handler
from tests.web_server import serving as served

ROOT = Path(__file__).resolve().parents[3]
CODE = ("humaneval", "mbpp")
PLAIN = tuple(name for name in SETS if name not in CODE)


def entry(result, name):
    (evaluated,) = (each for each in result["datasets"] if each["dataset"] == name)
    return evaluated


def items(evaluated):
    return [json.loads(line) for line in Path(evaluated["items"]).read_text().splitlines()]


def prompt_of(body):
    """What a request begins with."""
    return body["messages"][0]["content"]


@contextmanager
def serving(reply, end="stop"):
    """(address, requests so far) of a chat endpoint that answers ``reply(body)``: a text, a text
    and how it ended, an error with its code, or None where the request is refused."""
    seen: list[dict[str, Any]] = []

    class Server(Handler):
        def do_GET(self):
            self.send({"object": "list", "data": [{"id": "m", "object": "model"}]})

        def do_POST(self):
            body = json.loads(self.body())
            seen.append(body)
            told = reply(body)
            if told is None:
                return self.send({"error": "refused"}, status=400)
            if isinstance(told, dict):
                return self.send({"error": told}, status=told["code"])
            text, finish = (told, end) if isinstance(told, str) else told
            message = {"role": "assistant", "content": text}
            choice = {"message": message, "finish_reason": finish, "index": 0}
            usage = {"prompt_tokens": 1, "completion_tokens": len(text.split())}
            self.send({"choices": [choice], "usage": usage})

        def send(self, value, status=200):
            self.answer(json.dumps(value).encode(), status)

    with served(Server) as address:
        yield f"{address}/v1", seen


def solver(root):
    """Answers every row, the reasoned ones right and the direct ones wrong on every second row."""
    gold = {item.prompt: n for n, item in enumerate(reported("gsm8k", root))}

    def reply(body):
        prompt = prompt_of(body)
        bare = max((text for text in gold if prompt.startswith(text)), key=len)
        n = gold[bare]
        answer, seed = GSM8K[n][1], body.get("seed", 0)
        if prompt == bare:
            return f"#### {answer if n % 2 else 0}"
        # of eight samples three go wrong, each in its own way
        answer = seed + 900 if n == 0 or seed % 8 in (1, 4, 6) else answer
        return f"step by step by step by step\n#### {answer}"

    return reply
