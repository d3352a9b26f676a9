"""A stand-in for ``vllm serve``: reads its arguments, answers as vLLM does, judges everything 0.8.

``FAKE_VLLM`` in the environment chooses how it misbehaves: ``die``, ``hang``, ``other``, ``mute``
or ``stubborn`` (it ignores SIGTERM, and so does a child of its own).
"""

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODE = os.environ.get("FAKE_VLLM", "")
SHOWN = (
    "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_NO_USAGE_STATS",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    options, _ = parser.parse_known_args()
    print({name: os.environ.get(name) for name in SHOWN}, flush=True)
    if MODE == "die":
        sys.exit("OutOfMemoryError: too little of sk-test-abcdefghijklmnop1234 on this card")
    if MODE == "hang":
        print("still loading weights", flush=True)
        time.sleep(600)
    if MODE == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            time.sleep(600)
    name = "another-model" if MODE == "other" else options.served_model_name

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            key = os.environ.get("VLLM_API_KEY")
            if self.path == "/health":
                self.reply(200, {})
            elif key and self.headers["authorization"] != f"Bearer {key}":
                self.reply(401, {"error": {"message": "Unauthorized"}})
            else:
                self.reply(200, {"object": "list", "data": [{"id": name, "object": "model"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            text = "I had rather not say." if MODE == "mute" else "[[80]]"
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 100, "completion_tokens": 4}
            self.reply(200, {"object": "chat.completion", "choices": [choice], "usage": usage})

        def log_message(self, *_: Any) -> None:
            pass

    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


main()
