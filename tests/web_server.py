"""Web servers of a test: on a free port, in a thread, silent."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers with whole bodies; stderr is for the test's own words."""

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        """What was sent with the request."""
        return self.rfile.read(int(self.headers["content-length"]))

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(handler: type[Handler], **state: Any) -> Generator[str]:
    """The address of a server whose handlers find ``state`` at their ``server``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        vars(server).update(state)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
