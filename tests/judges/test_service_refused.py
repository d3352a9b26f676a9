"""What is said where a service cannot be had, and the command that lists and stops them."""

import dataclasses
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from judges import serve
from judges.serving import book, server, service
from judges.serving import key as key_file
from judges.serving.book import service_of
from judges.serving.keeper import Keeper
from judges.serving.lease import leases
from judges.serving.service import use
from study.config.schema import Judge
from study.errors import UserError
from study.system.files import Damaged, read_json, write_json
from tests.conftest import free_port
from tests.judges.services import judge, keeping
from tests.waiting import wait_for

# --- what is wrong is said -----------------------------------------------------------------------


def refused(model: Judge, runs: Path, starts: bool = False) -> str:
    with pytest.raises(UserError) as error, use(model, runs, starts):
        pass
    assert "\n\n" not in str(error.value)
    return str(error.value)


def test_nobody_serves(runs):
    assert "judge=tiny is not served" in refused(judge(), runs)
    assert "bind=0.0.0.0 detached=true" in refused(judge(bind="elsewhere"), runs, starts=True)


def test_a_book_that_is_damaged_or_newer(runs, capsys):
    model = judge()
    served = service_of(model, runs)
    with keeping(model, runs):
        whole = read_json(served.folder / book.BOOK)
    half = json.dumps(whole)[:80]
    bad: list[Any] = [
        whole | {"replicas": [{"url": "file:///etc/passwd"}]},
        whole | {"owner": None},
        whole | {"version": "one"},
        whole | {"surprise": 1},
        {key: value for key, value in whole.items() if key != "state"},
    ]
    bad[0]["replicas"] = [whole["replicas"][0] | {"url": "file:///etc/passwd"}]
    for text in (half, "", "[]", *map(json.dumps, bad)):
        (served.folder / book.BOOK).write_text(text)
        assert "service.json is damaged" in refused(model, runs)
        with pytest.raises(Damaged):
            Keeper(model, runs, service=served).keep()
    assert serve.main([f"runs_dir={runs}", "status=true"]) == 0
    assert "is damaged" in " ".join(capsys.readouterr().out.split())
    write_json(served.folder / book.BOOK, whole | {"version": 3, "more": 1})
    assert "is of version 3" in refused(model, runs)


def test_a_keeper_mends_its_own_book(runs):
    with keeping(judge(), runs) as running:
        whole = running.service.read()
        (running.service.folder / book.BOOK).write_text('{"version": 1,')
        wait_for(lambda: (running.service.folder / book.BOOK).read_text().endswith("}\n"))
        assert running.service.read() == whole


def test_a_key_that_cannot_be_read_or_not_be_kept_private(runs, monkeypatch):
    model = judge()
    with keeping(model, runs) as running:
        key = running.service.key_path
        text = key.read_text()
        key.unlink()
        assert "should hold the API key" in refused(model, runs)
        key.mkdir()
        assert "judge.endpoint.api_key_env=JUDGE_KEY" in refused(model, runs)
        key.rmdir()
        key.write_text(text)
    key.write_text(text)
    key.chmod(0o644)
    with keeping(model, runs):  # somebody may have read it
        assert key.read_text() != text and stat.S_IMODE(key.stat().st_mode) == 0o600
    real = os.open
    monkeypatch.setattr(key_file.os, "open", lambda path, flags, *_: real(path, flags, 0o644))
    with pytest.raises(UserError, match="lets other accounts read it"):
        Keeper(model, runs).keep()
    assert not key.exists()


def test_clocks_that_are_apart(runs, monkeypatch):
    real = time.time
    for hours, message in ((1, "3600 s ahead of"), (-1, "3600 s behind")):
        monkeypatch.setattr(book.time, "time", lambda hours=hours: real() + 3600 * hours)
        assert message in refused(judge(), runs, starts=True)
        with pytest.raises(UserError, match="NTP"):
            Keeper(judge(), runs).keep()
    assert not list(runs.rglob("service.json"))


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ("nowhere.invalid", "is not an address of a host"),
        ("n" * 64, "is not an address of a host"),
        ("203.0.113.9", "A server cannot listen on 203.0.113.9"),
        ("127.0.0.2", "which other nodes do not reach"),
    ],
)
def test_an_address_that_others_cannot_reach(runs, bind, message):
    with pytest.raises(UserError, match=message):
        Keeper(judge(bind=bind), runs).keep()
    assert not list(runs.rglob("service.json")) and not list(runs.rglob("key"))


def test_a_server_that_cannot_start_tells_the_driver_and_leaves_nothing(runs, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", "die")
    message = refused(judge(), runs, starts=True)
    assert message.startswith("vLLM ended with exit code 1") and "OutOfMemoryError" in message
    assert "too little of *** on this card" in message
    assert not list(runs.rglob("service.json")) and not list(runs.rglob("key"))


def test_a_cell_is_told_of_a_server_on_the_loopback_of_another_host(runs):
    model = judge(bind="")
    port = server.port_of(model.endpoint.url)
    with leases([model], runs, starts=False) as reached:
        assert reached(model) == model
    write_json(runs / "servers" / f"node-z-{port}" / book.BOOK, {})
    with (
        pytest.raises(UserError, match=r"on the loopback of node-z.*serve\.bind=0\.0\.0\.0"),
        leases([model], runs, starts=False),
    ):
        pass


# --- the command ---------------------------------------------------------------------------------


def test_a_detached_service_is_listed_used_and_stopped(runs, capsys):
    words = ["judge=qwen3-4b", f"runs_dir={runs}", "judge.serve.bind=0.0.0.0"]
    words.append(f"port={free_port()}")
    assert serve.main([*words, "detached=true"]) == 0
    out = capsys.readouterr().out
    assert "a probe was scored 0.800" in out and "judge.serve.bind=elsewhere" in out
    name = out.strip().rpartition("service=")[2].split()[0]
    (served,) = book.services(runs)
    owner = served.read().owner
    assert served.name == name and server.alive(owner)
    assert serve.main([*words, "detached=true"]) == 2
    assert f"{name} is already served" in capsys.readouterr().err
    sign = served.add_user()
    assert serve.main([f"runs_dir={runs}", "status=true"]) == 0
    shown = capsys.readouterr().out
    assert name in shown and "1 of 1 well" in " ".join(shown.split())
    assert serve.main([*words, "stop=true"]) == 2
    assert f"in use by process {os.getpid()}" in capsys.readouterr().err
    sign.unlink()
    assert serve.main([f"runs_dir={runs}", "stop=true", f"service={name}"]) == 0
    assert f"{name} has stopped" in capsys.readouterr().out
    wait_for(lambda: not server.alive(owner))
    assert serve.main([f"runs_dir={runs}", "status=true"]) == 0
    assert "There is no service" in capsys.readouterr().out


def test_a_service_whose_owner_is_gone_can_be_cleared(runs, capsys):
    model = judge()
    served = service_of(model, runs)
    with keeping(model, runs):
        left = served.read()
    served.write(dataclasses.replace(left, owner=dataclasses.replace(left.owner, pid=2**22 + 1)))
    assert "its owner is gone" in service.service_rows(runs)[0]["state"]
    assert serve.main([f"runs_dir={runs}", "stop=true", f"service={served.name}"]) == 0
    assert "its book is cleared" in capsys.readouterr().out and served.read() is None


def test_beyond_loopback_there_is_always_a_key(capsys):
    assert serve.main(["judge=qwen3-32b", "print_only=true", "host=0.0.0.0"]) == 0
    assert "VLLM_API_KEY=${VLLM_API_KEY:?}" in capsys.readouterr().out
