"""Shared by the tests of judges: a grading that reads one word, the fault server, a false vLLM."""

import gc
import inspect
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from judges.ask.replies import Store
from judges.faults import FaultServer
from judges.serving import book, keeper, server, service
from study.config.schema import Judge, Serve
from study.errors import UserError
from tests.judges.asking import OneWord
from tests.judges.sessions import Endpointed
from tests.waiting import on_own_clock


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on a clock of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    on_own_clock(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="module")
def faults() -> Iterator[Any]:
    with FaultServer() as server:
        yield server


@pytest.fixture
def one_word(monkeypatch: pytest.MonkeyPatch) -> type[OneWord]:
    """The class itself, known to the project as ``grading.name=one-word``."""
    from judges.grading import GRADINGS

    monkeypatch.setitem(GRADINGS, OneWord.name, OneWord)
    return OneWord


@pytest.fixture
def grading(one_word: Any) -> Any:
    return one_word({})


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Endpointed:
    """What sessions of this test ask, whatever their judge's address is."""
    server = Endpointed()
    monkeypatch.setattr("judges.ask.session._simulated", lambda *_: server)
    return server


@pytest.fixture
def vllm(tmp_path, monkeypatch) -> Path:
    """A stand-in for ``vllm`` on the PATH; gives its file."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    text = Path(__file__).with_name("fake_vllm.py").read_text(encoding="utf-8")
    program.write_text(f"#!{sys.executable}\n{text}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


@pytest.fixture
def runs(tmp_path, monkeypatch, vllm) -> Path:
    """A runs folder, with a ``vllm`` on the PATH, where nothing is waited for long."""
    try:
        server.reached_by(Judge(serve=Serve(bind="0.0.0.0")))
    except UserError:
        pytest.skip("this machine has no address beyond loopback")
    for module, name, seconds in (
        (server, "POLL_S", 0.05),
        (service, "POLL_S", 0.05),
        (service, "ABSENT_S", 0.3),
        (keeper, "LOOK_S", 0.05),
        (keeper, "HEALTH_S", 0.2),
        (book, "BEAT_S", 0.2),
    ):
        monkeypatch.setattr(module, name, seconds)
    for name in ("CUDA_VISIBLE_DEVICES", "VLLM_CPU_OMP_THREADS_BIND"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "runs"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "replies.db") as opened:
        yield opened


@pytest.fixture
def nothing_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    gc.collect()  # an unclosed socket or loop warns here, and warnings are errors
    assert threading.active_count() <= before + 1  # the fault server's
