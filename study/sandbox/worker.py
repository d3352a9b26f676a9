"""One sandbox process with a warm interpreter in it, driven over a pair of pipes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from study.sandbox.calls import Call, Limits, Result, read_reply
from study.sandbox.inside.frames import Frame
from study.sandbox.inside.literal import dumps

GRACE_S = 10.0
"""What a reply may take beyond the wall limit that the zygote itself enforces."""
REPLY_ROOM = 8
"""Bytes of the reply per byte of the answer at most: JSON escapes, twice."""


class Broken(Exception):
    """The sandbox itself failed: it did not start, died, or did not answer in time."""


class Worker:
    """Starts ``argv`` with ``environment`` alone and asks it one thing at a time, by one thread."""

    def __init__(self, argv: Sequence[str], environment: dict[str, str]) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self.dirty = False
        self.converses = False
        try:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env=environment,
                cwd="/",
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self.errors.close()
            raise Broken(f"{argv[0]} cannot be started: {error}") from error

    def call(self, call: Call) -> Result:
        """Make one call and say how it ended; `dirty` then says whether to throw this away.
        Raises Broken: no verdict on the code; this worker is dead.
        Raises NotLiteral: an argument is not a literal."""
        nonce = secrets.token_hex(8)
        request = {
            "source": call.source,
            "function": call.function,
            "args": dumps(list(call.args)),
            "nonce": nonce,
            "limits": vars(call.limits),
        }
        reply = self.ask(request, call.limits)
        try:
            return read_reply(reply, nonce, call.limits)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Broken(self._why(str(error))) from error

    def ask(self, request: Mapping[str, object] | None, limits: Limits) -> Frame:
        """Send one request and return the reply to it; None is the empty line that ends a
        conversation. Raises Broken: no reply in time, or none that can be read."""
        until = time.monotonic() + limits.wall_s + GRACE_S
        line = b"" if request is None else json.dumps(request).encode()
        self.converses |= request is not None and "role" in request
        try:
            self._send(line + b"\n", until)
            reply = self.read(self._receive(4096 + REPLY_ROOM * limits.reply_bytes, until))
            if self.converses and reply["end"] != "line":
                self.converses = False
                if request is not None:
                    self._send(b"\n", until)
            return reply
        except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
            ended = isinstance(error, BrokenPipeError)  # before it had read the whole request
            raise Broken(self._why("it ended" if ended else str(error))) from error

    def read(self, line: bytes | bytearray) -> Frame:
        """The reply that stands in a line; `dirty` then says whether to throw this away.
        Raises ValueError, AttributeError, RecursionError: there is none."""
        reply = json.loads(line)
        self.dirty |= bool(reply.get("dirty"))
        return reply

    def _send(self, data: bytes, until: float) -> None:
        assert self.process.stdin is not None
        handle = self.process.stdin.fileno()
        view = memoryview(data)
        while view:
            # PIPE_BUF bytes fit wherever a pipe is writable at all, so this never blocks
            if not select.select([], [handle], [], max(0.0, until - time.monotonic()))[1]:
                raise Broken("it takes no request")
            view = view[os.write(handle, view[: select.PIPE_BUF]) :]

    def _receive(self, most: int, until: float) -> bytearray:
        """One line of at most so many bytes."""
        assert self.process.stdout is not None
        handle, data = self.process.stdout.fileno(), bytearray()
        while not data.endswith(b"\n"):
            if not select.select([handle], [], [], max(0.0, until - time.monotonic()))[0]:
                raise Broken("no reply in time")
            chunk = os.read(handle, 1 << 16)
            if not chunk:
                raise Broken(self._why("it ended"))
            data += chunk
            if len(data) > most:
                raise Broken(f"a reply of more than {most} bytes")
        return data

    def _why(self, text: str) -> str:
        self.errors.seek(0)
        message = self.errors.read(2000).decode("utf-8", "replace").strip()
        return f"{text}: {message.splitlines()[-1]}" if message else text

    def close(self) -> None:
        """Kill the process with all that is in it, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            if file is not None:
                file.close()
