"""What tests of services share: a judge, its keeper in a thread, and a process that uses it."""

import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judges.serving import book, server
from judges.serving.book import Place, Service, service_of
from judges.serving.keeper import Keeper
from study.config.schema import Endpoint, Judge, Serve
from study.errors import UserError
from tests.conftest import ROOT, free_port
from tests.waiting import GENEROUS_S, wait_for

A, B = Place("node-a", "kernel-a"), Place("node-b", "kernel-b")


def served(port: int = 8000, **settings: Any) -> Judge:
    """A judge that is served as ``tiny``; ``settings`` are those of ``serve``."""
    endpoint = Endpoint(url=f"http://127.0.0.1:{port}/v1", model="tiny")
    serve_settings = {"model": "org/Tiny", "start_timeout_s": GENEROUS_S}
    return Judge(name="tiny", endpoint=endpoint, serve=Serve(**serve_settings | settings))


def judge(port: int = 0, **settings: Any) -> Judge:
    """A judge that is served to all nodes."""
    port = port or free_port(settings.get("replicas", 1))
    return served(port, **{"bind": "0.0.0.0", "auto": True} | settings)


@dataclass
class Kept:
    """A service that a thread of this process keeps."""

    service: Service
    endings: list[str]
    """Why it has ended, once it has."""


@contextmanager
def keeping(model: Judge, runs: Path, place: Place | None = None, **how: Any) -> Generator[Kept]:
    """A service that is kept within the block, and is ready."""
    keeper = Keeper(model, runs, service=service_of(model, runs, place), **how)
    ready, endings = threading.Event(), []

    def keep() -> None:
        try:
            endings.append(keeper.keep(lambda *_: ready.set()))
        except UserError as error:
            endings.append(str(error))

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        wait_for(lambda: ready.is_set() or endings)
        assert ready.is_set(), endings
        yield Kept(keeper.service, endings)
    finally:
        keeper.halted.set()
        thread.join()


def text_of(service: Service) -> str:
    """The book of a service as it is written; empty where nobody serves."""
    path = service.folder / book.BOOK
    return path.read_text() if path.exists() else ""


USER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from study.config.schema import Endpoint, Judge, Serve
from judges.serving.service import use
endpoint = Endpoint(url=f"http://127.0.0.1:{sys.argv[2]}/v1", model="tiny")
serve = Serve(model="org/Tiny", start_timeout_s=900.0, bind=sys.argv[4], auto=True)
with use(Judge(name="tiny", endpoint=endpoint, serve=serve), Path(sys.argv[3]), True) as reached:
    from judges.check import probe
    print(reached.endpoint.url, probe(reached).score, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def driver(model: Judge, runs: Path, *before: str) -> Generator[subprocess.Popen[str]]:
    """Another process that uses a service, started by ``before`` where that is given."""
    port, bind = str(server.port_of(model.endpoint.url)), model.serve.bind
    words = [*before, sys.executable, "-c", USER, str(ROOT), port, str(runs), bind]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
