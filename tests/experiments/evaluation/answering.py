"""Parts of a result, and an endpoint whose answers are known."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from study.tasks.datasets.sets import reported
from tests.experiments.small_sets import (
    GSM8K,
    SETS,
)

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
    """(address, requests so far) of a chat endpoint that answers ``reply(body)``."""
    seen: list[dict[str, Any]] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send({"object": "list", "data": [{"id": "m", "object": "model"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(body)
            message = {"role": "assistant", "content": reply(body)}
            choice = {"message": message, "finish_reason": end, "index": 0}
            usage = {"prompt_tokens": 1, "completion_tokens": len(message["content"].split())}
            self.send({"choices": [choice], "usage": usage})

        def send(self, value):
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
        server.shutdown()


def solver(root):
    """Answers every row, the reasoned ones right and the direct ones wrong on every second row."""
    gold = {item.prompt: n for n, item in enumerate(reported("gsm8k", root))}

    def reply(body):
        prompt = prompt_of(body)
        bare = max((text for text in gold if prompt.startswith(text)), key=len)
        n = gold[bare]
        answer = GSM8K[n][1]
        if prompt == bare:
            return f"#### {answer if n % 2 else 0}"
        # of eight samples three go wrong, each in its own way
        wrong = n == 0 or body.get("seed", 0) % 8 in (1, 4, 6)
        answer = body.get("seed", 0) + 900 if wrong else answer
        return f"step by step by step by step\n#### {answer}"

    return reply
