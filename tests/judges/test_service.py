"""A served judge as a service: who finds it, who owns it, and replicas that come and go."""

import dataclasses
import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

from judges.ask.identity import judge_id
from judges.ask.session import Session
from judges.check import HARMLESS, probe
from judges.endpoint.replicas import MOVED
from judges.serving import book, keeper, server, service
from judges.serving.book import Holder, Service, service_of
from judges.serving.keeper import Keeper
from judges.serving.server import Server
from judges.serving.service import use
from study.config.schema import Serve
from study.errors import UserError
from study.system.gpus import Lease
from study.verdict import Outcome
from tests.judges.services import A, B, driver, judge, keeping, text_of
from tests.waiting import GENEROUS_S, wait_for

# --- found from another node ---------------------------------------------------------------------


def test_a_cell_of_another_node_finds_it_asks_it_and_is_counted(runs):
    model = judge(replicas=2)
    with keeping(model, runs, A) as running:
        with use(model, runs, starts=False, place=B) as reached:
            urls = [each.url for each in running.service.read().replicas]
            assert [reached.endpoint.url, *reached.endpoint.replicas] == urls
            assert not any("127.0.0.1" in url for url in urls)
            assert probe(reached).outcome is Outcome.scored
            assert [user.host for user in running.service.users()] == ["node-b"]
        assert list(running.service.users()) == []
        assert server.served_models(model, urls[0]) is None  # without the key: 401
    assert running.service.read() is None and server.served_models(model, urls[0]) is None


def test_where_a_judge_is_served_is_not_what_it_is_nor_is_its_prompt_a_service():
    alone = dataclasses.replace(judge(), serve=Serve(model="org/Tiny"))
    assert judge_id(judge()) == judge_id(alone)
    assert judge_id(judge()) == judge_id(judge(bind=""))
    model, host = judge(), B
    strict = dataclasses.replace(model, name="tiny-strict")
    assert book.name_of(strict, A) == book.name_of(model, host)
    for settings in ({"max_num_seqs": 4}, {"replicas": 2}, {"dtype": "half"}, {"revision": "a1"}):
        other = dataclasses.replace(model, serve=dataclasses.replace(model.serve, **settings))
        assert book.name_of(other, A) != book.name_of(model, A)
    for settings in ({"bind": "elsewhere"}, {"start_timeout_s": 3.0}, {"auto": False}):
        other = dataclasses.replace(model, serve=dataclasses.replace(model.serve, **settings))
        assert book.name_of(other, A) == book.name_of(model, A)


def test_the_key_is_in_its_file_and_in_no_other_and_in_no_list_of_processes(runs):
    model = judge()
    with keeping(model, runs) as running, use(model, runs, starts=False) as reached:
        key = running.service.key_path.read_text().strip()
        assert len(key) >= 43 and stat.S_IMODE(running.service.key_path.stat().st_mode) == 0o600
        texts = [path.read_text() for path in runs.rglob("*") if path.is_file()]
        assert sum(key in text for text in texts) == 1
        assert key not in repr(reached)
        pid = running.service.read().replicas[0].pid
        arguments = Path(f"/proc/{pid}/cmdline").read_text()
        assert "org/Tiny" in arguments and key not in arguments
    assert not running.service.key_path.exists()


def test_a_key_that_somebody_brings_takes_the_place_of_one_made(runs, monkeypatch):
    monkeypatch.setenv("TINY_KEY", "a-key-of-ours")
    model = judge()
    endpoint = dataclasses.replace(model.endpoint, api_key_env="TINY_KEY")
    brought = dataclasses.replace(model, endpoint=endpoint)
    with keeping(brought, runs) as running, use(brought, runs, starts=False, place=B) as reached:
        assert not running.service.key_path.exists()
        assert probe(reached).outcome is Outcome.scored
        assert server.served_models(model, reached.endpoint.url) is None


# --- users and owners ----------------------------------------------------------------------------


def test_a_lease_of_another_host_lapses_and_the_last_one_ends_the_service(runs):
    model = judge()
    served = service_of(model, runs, A)
    served.prepare()
    stale = Service(served.folder, B).add_user()
    with keeping(model, runs, A, while_used=True) as running:
        assert [user.host for user in served.users()] == ["node-b"]
        book_file = served.folder / book.BOOK
        for _ in range(2):  # its keeper looks again and again
            written_ns = book_file.stat().st_mtime_ns
            wait_for(lambda written_ns=written_ns: book_file.stat().st_mtime_ns > written_ns)
        assert served.read().state == "ready"  # its sign of life is fresh, whoever gave it
        old = book.folder_clock(served.folder) - book.EXPIRY_S - 1
        os.utime(stale, (old, old))
        assert list(served.users()) == []
        wait_for(lambda: running.endings)
    assert running.endings == ["no process uses it"] and not stale.exists()


def test_a_sign_of_life_that_is_damaged_counts_while_it_is_fresh(runs):
    served = service_of(judge(), runs, A)
    served.prepare()
    for text in ("{", "", '{"pid": "x"}'):
        sign = served.users_dir / "node-b-7-0a1b.json"
        sign.write_text(text)
        served.remove_lapsed_users()
        assert [user.host for user in served.users()] == ["node-b-7-0a1b"]
        old = book.folder_clock(served.folder) - book.EXPIRY_S - 1
        os.utime(sign, (old, old))
        assert list(served.users()) == []
        served.remove_lapsed_users()
        assert not sign.exists()


def test_who_stands_still_for_long_is_a_user_again(runs):
    model = judge()
    with keeping(model, runs) as running, use(model, runs, starts=False, place=B):
        (sign,) = running.service.users_dir.glob("*.json")
        sign.unlink()
        wait_for(lambda: list(running.service.users()))


def test_drivers_that_start_at_once_share_one_service_that_ends_with_the_last(runs):
    model = judge()
    served = service_of(model, runs)
    with driver(model, runs) as first, driver(model, runs) as second:
        lines = {first.stdout.readline(), second.stdout.readline()}
        assert len(lines) == 1 and lines.pop().endswith(" 0.8\n")
        owner = served.read().owner
        assert len(list(served.users())) == 2
        first.communicate("\n", timeout=GENEROUS_S)
        second.kill()  # says no goodbye
        second.communicate()
        wait_for(lambda: served.read() is None)
        wait_for(lambda: not server.alive(owner))
    assert not served.key_path.exists() and list(served.users_dir.iterdir()) == []


def test_an_owner_that_is_killed_takes_its_servers_along_and_is_replaced(runs):
    model = judge()
    with use(model, runs, starts=True) as reached:
        served = service_of(model, runs)
        before = served.read()
        os.kill(before.owner.pid, signal.SIGKILL)
        wait_for(lambda: served.read() not in (None, before) and served.read().state == "ready")
        after = served.read()
        assert after.owner.pid != before.owner.pid
        # who asked before goes on: the same address, the same key
        assert [each.url for each in after.replicas] == [each.url for each in before.replicas]
        assert probe(reached).outcome is Outcome.scored
        assert server.start_time(before.replicas[0].pid) is None
    wait_for(lambda: served.read() is None)


def test_servers_that_a_killed_owner_left_are_ended_before_new_ones_start(runs, monkeypatch):
    monkeypatch.setattr(book, "ORPHANS_END_S", 0.2)
    monkeypatch.setattr(server.stop, "__defaults__", (0.5,))
    monkeypatch.setenv("FAKE_VLLM", "stubborn")
    model = judge()
    served = service_of(model, runs)
    with keeping(model, runs):
        book_then = served.read()
    port = server.port_of(book_then.replicas[0].url)
    left = server.launch(model, "0.0.0.0", port, 0, served.folder / "left.log", Lease({}, []))
    server.wait_ready(model, [left])
    owner = dataclasses.replace(book_then.owner, pid=2**22 + 1)
    replica = dataclasses.replace(book_then.replicas[0], pid=left.pid, started=left.started)
    served.write(dataclasses.replace(book_then, owner=owner, replicas=[replica]))
    monkeypatch.delenv("FAKE_VLLM")
    with keeping(model, runs):
        assert not server.alive(left) and server._group_members(left.pid) == []
        assert served.read().replicas[0].url == replica.url


def test_who_asks_already_follows_a_service_that_moves(runs):
    model = judge()
    with use(model, runs, starts=True) as reached, Session(reached, None) as session:
        ask = partial(session.ask_many, [(HARMLESS, "Paris.")])
        assert ask()[0][0].outcome is Outcome.scored
        served = service_of(model, runs)
        before = served.read()
        os.kill(before.owner.pid, signal.SIGKILL)
        wait_for(lambda: not server.alive(before.owner))
        wait_for(lambda: server.start_time(before.replicas[0].pid) is None)
        with socket.create_server(("0.0.0.0", server.port_of(reached.endpoint.url))):
            wait_for(lambda: served.read() not in (None, before) and served.read().state == "ready")
            assert served.read().replicas[0].url != reached.endpoint.url
            wait_for(lambda: MOVED[(reached.endpoint.url,)] == (served.read().replicas[0].url,))
            assert ask()[0][0].outcome is Outcome.scored
    wait_for(lambda: served.read() is None)


def test_an_owner_of_another_host_is_replaced_when_its_sign_of_life_has_lapsed(runs):
    model = judge()
    served = service_of(model, runs, A)
    with keeping(model, runs, A):
        old = served.read()
    served.write(dataclasses.replace(old, owner=dataclasses.replace(old.owner, kernel="kernel-c")))
    with pytest.raises(keeper.Taken, match=r"process .* on node-a"):
        Keeper(model, runs, service=served).keep()
    past = book.folder_clock(served.folder) - book.EXPIRY_S - 1
    os.utime(served.folder / book.BOOK, (past, past))
    with keeping(model, runs, A):
        assert served.read().owner.kernel == "kernel-a"


def test_an_owner_that_was_replaced_stops_its_servers_and_touches_nothing(runs):
    model = judge()
    served = service_of(model, runs)
    with keeping(model, runs) as running:
        mine = served.read()
        other = dataclasses.replace(mine, owner=Holder(1, "x", "node-c", "kernel-c"))
        served.write(other)
        wait_for(lambda: running.endings)
    assert running.endings == ["another owner took its place"]
    assert served.read() == other and served.key_path.exists()
    assert server.start_time(mine.replicas[0].pid) is None


# --- replicas that come and go -------------------------------------------------------------------


def test_clients_go_on_with_the_others_and_a_dead_replica_is_started_again_a_few_times(
    runs, monkeypatch
):
    monkeypatch.setattr(keeper, "RESTARTS", 1)
    model = judge(replicas=2)
    with keeping(model, runs) as running, use(model, runs, starts=False) as reached:

        def second() -> Server:
            return running.service.read().replicas[1]

        first_pid = second().pid
        os.kill(first_pid, signal.SIGKILL)
        assert [probe(reached).outcome for _ in range(4)] == [Outcome.scored] * 4
        wait_for(lambda: second().pid != first_pid and second().state == "ready")
        assert second().url == reached.endpoint.replicas[0] and second().restarts == 1
        assert server.healthy(reached, second().url)
        os.kill(second().pid, signal.SIGKILL)
        wait_for(lambda: second().state == "lost")
        with use(model, runs, starts=False, place=B) as later:
            assert [later.endpoint.url, *later.endpoint.replicas] == [reached.endpoint.url]
            assert probe(later).outcome is Outcome.scored
        for _ in range(2):
            pid = running.service.read().replicas[0].pid
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: f'"pid": {pid}' not in text_of(running.service))
        wait_for(lambda: running.endings)
    assert (
        "No replica of tiny-" in running.endings[0] and "vllm serve org/Tiny" in running.endings[0]
    )


def test_a_server_is_well_that_says_so_and_serves_the_model(monkeypatch):
    bodies = {"/health": "", "/models": json.dumps({"data": [{"id": judge().endpoint.model}]})}
    monkeypatch.setattr(server, "get", lambda _, url: bodies.get(f"/{url.rpartition('/')[2]}"))
    assert server.healthy(judge(), "http://here/v1")
    for path in ("/health", "/models"):
        body = bodies.pop(path)
        assert not server.healthy(judge(), "http://here/v1")
        bodies[path] = body


def test_a_replica_that_runs_and_does_not_answer_is_started_again(runs, monkeypatch):
    monkeypatch.setattr(keeper, "SILENT_LOOKS", 2)
    with keeping(judge(), runs) as running:
        pid = running.service.read().replicas[0].pid
        monkeypatch.setattr(server, "healthy", lambda *_: False)
        wait_for(lambda: running.service.read().replicas[0].pid != pid)
        monkeypatch.undo()
        assert running.service.read().replicas[0].restarts == 1


def test_a_port_that_something_else_took_is_replaced_and_a_stranger_is_not_handed_out(
    runs, monkeypatch
):
    with socket.create_server(("0.0.0.0", 0)) as stranger:
        port = stranger.getsockname()[1]
        model = judge(port)
        with keeping(model, runs, port=port) as running, use(model, runs, starts=False) as reached:
            assert server.port_of(reached.endpoint.url) not in (0, port)
            assert probe(reached).outcome is Outcome.scored
            book_now = running.service.read()
    with keeping(judge(max_num_seqs=1), runs) as other:  # it answers, with another key
        url = other.service.read().replicas[0].url
        replica = dataclasses.replace(book_now.replicas[0], url=url)
        running.service.write(dataclasses.replace(book_now, replicas=[replica]))
        running.service.key_path.write_text("an-old-key")
        monkeypatch.setattr(service, "UNREACHED_S", 0.3)
        with (
            pytest.raises(UserError, match="none of its replicas answers"),
            use(model, runs, starts=False),
        ):
            pass


# --- a network of its own ------------------------------------------------------------------------


@pytest.fixture
def node() -> Generator[tuple[list[str], str]]:
    """A network namespace that is joined to this one by a cable: how to run a command there, and
    this host's address on the cable."""
    name, near, far = (f"jd{kind}{os.getpid() % 100_000}" for kind in "nab")
    ours, theirs = "10.253.77.1", "10.253.77.2"
    steps = [
        ["netns", "add", name],
        ["link", "add", near, "type", "veth", "peer", "name", far, "netns", name],
        ["addr", "add", f"{ours}/30", "dev", near],
        ["link", "set", near, "up"],
        ["-n", name, "addr", "add", f"{theirs}/30", "dev", far],
        ["-n", name, "link", "set", far, "up"],
    ]
    try:
        for step in steps:
            try:
                subprocess.run(["ip", *step], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no network namespaces here: {error}")
        yield ["ip", "netns", "exec", name], ours
    finally:
        for step in (["netns", "del", name], ["link", "del", near]):
            with subprocess.Popen(["ip", *step], stderr=subprocess.DEVNULL) as process:
                process.wait()


def test_a_process_in_another_network_reaches_it_where_it_was_told_to_listen(runs, node):
    inside, address = node
    model = judge(bind=address)
    with keeping(model, runs) as running, driver(model, runs, *inside) as cell:
        url = running.service.read().replicas[0].url
        assert url.startswith(f"http://{address}:") and cell.stdout.readline() == f"{url} 0.8\n"
        assert server.get(model, f"http://127.0.0.1:{server.port_of(url)}/health") is None
