"""A headless Chromium for tests that look at a page: what it shows, what it runs, what it asks for.

    with chromium() as browser:
        page = browser.open(path, width=390)
        assert page.ask("document.title") == "Answers"
        page.screenshot(tmp_path / "page.png")
        assert page.errors == []

It speaks the DevTools protocol over two pipes, so no port is opened. `missing` says why there is no
browser here; the fixture ``browser`` of ``tests/conftest.py`` skips a test for that reason.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.waiting import GENEROUS_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--mute-audio", "--hide-scrollbars", "--remote-debugging-pipe"),
    *("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--force-color-profile=srgb"),
)
_START = (
    "import os, sys\n"
    "os.dup2(int(sys.argv[1]), 3)\n"
    "os.dup2(int(sys.argv[2]), 4)\n"
    "os.execvp(sys.argv[3], sys.argv[3:])\n"
)
"""Gives the browser its pipes, which it looks for under the numbers 3 and 4."""


def missing() -> str:
    """Why no browser can be started; empty where one can."""
    return "" if _program() else f"no browser is installed: none of {', '.join(NAMES)}"


def _program() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextlib.contextmanager
def chromium() -> Generator[Browser]:
    """A browser with a fresh profile, which ends with the block."""
    program = _program()
    assert program is not None, missing()
    # numbers above 4, so that neither is overwritten when the other is given its own
    pipes = [_moved(end) for _ in range(2) for end in os.pipe()]
    theirs_in, ours_out, ours_in, theirs_out = pipes
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [program, *SWITCHES, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), *words],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        browser = Browser(ours_in, ours_out)
        try:
            yield browser
        finally:
            with contextlib.suppress(OSError, Gone):
                browser.call("Browser.close")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):  # a session of its own: none but its
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(ours_in)
            os.close(ours_out)


def _moved(handle: int) -> int:
    high = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(handle)
    return high


class Gone(Exception):
    """The browser has ended, or says nothing."""


class Refused(Exception):
    """The browser could not do what it was asked for."""


@dataclass
class Browser:
    """One browser; its pages are opened one after the other."""

    reads: int
    writes: int
    events: list[dict[str, Any]] = field(default_factory=list)
    _number: int = 0
    _left: bytes = b""

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """The result of a method of the DevTools protocol; events that come meanwhile are kept."""
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session:
            asked["sessionId"] = session
        data = json.dumps(asked).encode() + b"\0"
        while data:
            data = data[os.write(self.writes, data) :]
        deadline = time.monotonic() + GENEROUS_S
        while True:
            said = self._next(deadline)
            if said.get("id") != self._number:
                self.events.append(said)
            elif "error" in said:
                raise Refused(f"{method}: {said['error']['message']}")
            else:
                return said["result"]

    def wait_for(self, event: str, session: str) -> dict[str, Any]:
        """What came with the next event of this name, of those that were not waited for yet."""
        deadline = time.monotonic() + GENEROUS_S
        while True:
            for said in self.events:
                if said.get("method") == event and said.get("sessionId") == session:
                    self.events.remove(said)
                    return said["params"]
            self.events.append(self._next(deadline))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self.reads], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self.reads, 1 << 20) if ready else b""
            if not data:
                raise Gone("the browser has ended" if ready else "the browser does not answer")
            self._left += data
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def open(
        self, place: Path | str, width: int = 1440, height: int = 900, dark: bool = False
    ) -> Page:
        """A file, or an address, as it is when it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, target, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        url = place.absolute().as_uri() if isinstance(place, Path) else place
        page.go(url)
        return page


@dataclass
class Page:
    """One page that is open."""

    browser: Browser
    target: str
    session: str

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A method of the DevTools protocol, of this page."""
        return self.browser.call(method, self.session, **params)

    def go(self, url: str) -> None:
        """Load an address, and wait until it has loaded; other anchors of a page load nothing."""
        known = self.call("Page.navigate", url=url)
        if "loaderId" in known:
            self.browser.wait_for("Page.loadEventFired", self.session)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression. Raises Refused: it threw something."""
        said = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in said:
            raise Refused(json.dumps(said["exceptionDetails"])[:2000])
        return said["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, by the name that JavaScript has for it."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        """Put a text where the cursor is."""
        self.call("Input.insertText", text=text)

    def resize(self, width: int, height: int = 900) -> None:
        """Be as wide and as high as a screen."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def screenshot(self, path: Path, whole: bool = False) -> Path:
        """Save what is seen as a PNG, or all of the page."""
        said = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(said["data"]))
        return path

    @property
    def errors(self) -> list[str]:
        """What went wrong so far: exceptions, and whatever the browser logged as an error, such as
        what the page's policy forbade."""
        said = []
        for event in self._events():
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                said.append(json.dumps(params["exceptionDetails"])[:500])
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                said.append(params["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
                said.append(json.dumps(params["args"])[:500])
        return said

    @property
    def asked_for(self) -> list[str]:
        """The addresses that the page asked for so far, itself among them."""
        return [
            event["params"]["request"]["url"]
            for event in self._events()
            if event["method"] == "Network.requestWillBeSent"
        ]

    def _events(self) -> list[dict[str, Any]]:
        self.ask("0")  # what was on its way has come
        return [event for event in self.browser.events if event.get("sessionId") == self.session]

    def close(self) -> None:
        """Close the page."""
        self.browser.call("Target.closeTarget", targetId=self.target)
