"""vLLM as a process, and who stops a server that is shared."""

import dataclasses
import os
import re
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from judges.serve import main
from judges.serving import server, vllm_command
from judges.serving.book import Book, Service, loopback_service, services
from judges.serving.lease import lease, leases
from judges.serving.service import end_service
from study.config.schema import Judge
from study.errors import UserError
from study.system.files import Damaged, read_json, write_json
from tests.conftest import free_port, python
from tests.judges.services import B
from tests.judges.services import served as judge
from tests.waiting import GENEROUS_S, wait_for


@pytest.fixture
def fake(tmp_path, monkeypatch, vllm) -> Path:
    """A ``vllm`` on the PATH; gives the runs folder to use."""
    monkeypatch.setattr(server, "POLL_S", 0.05)
    for name in ("CUDA_VISIBLE_DEVICES", "VLLM_CPU_OMP_THREADS_BIND", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "runs"


@contextmanager
def started(one: Judge, runs_dir: Path) -> Generator[list[server.Server]]:
    """Servers of a judge from a port that was free, which end with the block."""
    servers = server.start(one, "127.0.0.1", server.port_of(one.endpoint.url), runs_dir)
    try:
        yield servers
    finally:
        server.stop(servers)


# --- one process -------------------------------------------------------------------------------


def test_a_server_starts_answers_and_leaves_nothing_behind(fake):
    [one] = servers = server.start(judge(), "127.0.0.1", free_port(), fake)
    assert server.wait_ready(judge(), servers) < 30
    assert server.served_models(judge(), one.url) == ["tiny"] and server.alive(one)
    assert os.getpgid(one.pid) == one.pid != os.getpgid(0)
    log = Path(one.log).read_text()
    assert log.startswith("$ vllm serve org/Tiny --served-model-name tiny --host 127.0.0.1 --port")
    assert "'VLLM_NO_USAGE_STATS': '1'" in log
    server.stop(servers)
    assert not server.alive(one) and not Path(f"/proc/{one.pid}").exists()
    assert server.served_models(judge(), one.url) is None
    server.stop(servers)  # again does nothing


def test_replicas_run_on_ports_in_a_row(fake):
    two = judge(base := free_port(2), replicas=2)
    with started(two, fake) as servers:
        server.wait_ready(two, servers)
        urls = [f"http://127.0.0.1:{base + offset}/v1" for offset in (0, 1)]
        assert [each.url for each in servers] == urls
        assert "'CUDA_VISIBLE_DEVICES': '1'" in Path(servers[1].log).read_text()


def test_a_key_opens_our_own_server(fake, monkeypatch):
    monkeypatch.setenv("TINY_KEY", "a-key")
    plain = judge(free_port())
    endpoint = dataclasses.replace(plain.endpoint, api_key_env="TINY_KEY")
    kept = dataclasses.replace(plain, endpoint=endpoint)
    with started(kept, fake) as servers:
        server.wait_ready(kept, servers)
        assert server.served_models(plain, servers[0].url) is None  # without the key: 401


@pytest.mark.parametrize(
    ("mode", "timeout", "message"),
    [
        ("die", 30.0, r"(?s)ended with exit code 1 .*OutOfMemoryError: too little of \*\*\* on"),
        ("hang", 0.5, r"(?s)did not answer at .* within 0\.5 s.*The end of .*\.log:"),
        ("other", 30.0, r"serves another-model, but the judge needs .*'tiny'"),
    ],
)
def test_a_server_that_is_of_no_use_says_why(fake, monkeypatch, mode, timeout, message):
    monkeypatch.setenv("FAKE_VLLM", mode)
    one = judge(free_port())
    with started(one, fake) as servers, pytest.raises(UserError, match=message):
        server.wait_ready(one, servers, timeout)
    assert not server.alive(servers[0])


def test_a_server_that_will_not_end_is_killed_with_its_children(fake, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", "stubborn")
    [one] = servers = server.start(judge(), "127.0.0.1", free_port(), fake)
    server.wait_ready(judge(), servers)
    assert len(server._group_members(one.pid)) == 2
    server.stop(servers, patience_s=0.3)
    assert server._group_members(one.pid) == []


def test_a_taken_port_is_named_before_anything_starts(fake):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port}"):
            server.start(judge(), "127.0.0.1", port, fake)
    assert not (fake / "servers").exists()


def test_a_free_port_has_its_replicas_behind_it(monkeypatch):
    real = socket.create_server
    taken = []

    def busy(address, **kwargs):
        if address[1] and len(taken) < 3:  # behind the first three ports somebody listens
            taken.append(address[1] - 1)
            raise OSError("taken")
        return real(address, **kwargs)

    monkeypatch.setattr(socket, "create_server", busy)
    first = server.free_row("127.0.0.1", 3)
    assert len(taken) == 3 and first not in taken
    with real(("127.0.0.1", first)), real(("127.0.0.1", first + 1)), real(("127.0.0.1", first + 2)):
        pass


def test_one_that_cannot_be_started_takes_the_others_along(fake, monkeypatch):
    spawned = []
    real = subprocess.Popen

    def limited(*arguments, **kwargs):
        if spawned:
            raise OSError("no more processes")
        spawned.append(real(*arguments, **kwargs))
        return spawned[0]

    monkeypatch.setattr(subprocess, "Popen", limited)
    with pytest.raises(OSError, match="no more"):
        server.start(judge(replicas=2), "127.0.0.1", free_port(2), fake)
    assert spawned[0].poll() is not None


def test_addresses_and_processes_are_told_apart():
    assert server.address("0.0.0.0", 80) == "http://127.0.0.1:80/v1"
    assert server.address("::1", 80) == "http://[::1]:80/v1"
    server.stop([server.Server(os.getpid(), "1", "http://127.0.0.1:1/v1", "")])
    assert server.alive(server.Server(os.getpid(), str(server.start_time(os.getpid())), "", ""))


# --- one server, many users --------------------------------------------------------------------

USER = """
import sys, time
from pathlib import Path
from study.config.schema import Endpoint, Judge, Serve
from judges.serving import server
from judges.serving.lease import lease
server.POLL_S = 0.05
one = Judge(
    name="tiny",
    endpoint=Endpoint(url=f"http://127.0.0.1:{sys.argv[1]}/v1", model="tiny"),
    serve=Serve(model="org/Tiny", start_timeout_s=900.0),
)
with lease(one, Path(sys.argv[2])) as urls:
    print(urls[0], flush=True)
    sys.stdin.readline()
"""


def user(port: int, runs_dir: Path) -> subprocess.Popen[str]:
    return python(USER, port, runs_dir, stdin=subprocess.PIPE)


def left_by_a_killed_user(port: int, runs_dir: Path) -> int:
    """The process of a server whose user was killed."""
    starter = user(port, runs_dir)
    assert starter.stdout and starter.stdout.readline()
    starter.kill()
    starter.communicate()
    return pid_of(runs_dir)


def book(runs_dir: Path) -> Book | None:
    """The book of the only service of a runs folder; None where nothing is served."""
    found = services(runs_dir)
    return found[0].read() if found else None


def users_of(runs_dir: Path) -> list[int]:
    """The processes of the living users of each service of a runs folder."""
    return [user.pid for service in services(runs_dir) for user in service.users()]


def pid_of(runs_dir: Path) -> int:
    served = book(runs_dir)
    assert served is not None
    return served.replicas[0].pid


def running(pid: int) -> bool:
    return server.start_time(pid) is not None


def test_the_last_user_stops_the_server(fake):
    one = judge(free_port())
    with lease(one, fake) as urls:
        assert urls == [one.endpoint.url] and server.served_models(one, urls[0]) == ["tiny"]
        pid = pid_of(fake)
        with lease(one, fake):
            assert pid_of(fake) == pid and users_of(fake) == [os.getpid()] * 2
        assert running(pid) and users_of(fake) == [os.getpid()]
    assert not running(pid) and book(fake) is None


def test_processes_that_start_at_once_share_one_server(fake):
    port = free_port()
    users = [user(port, fake) for _ in range(3)]
    try:
        lines = [one.stdout.readline() for one in users if one.stdout]
        assert lines == [f"http://127.0.0.1:{port}/v1\n"] * 3
        pid = pid_of(fake)
        assert sorted(users_of(fake)) == sorted(one.pid for one in users)
        for left, one in enumerate(users[:2]):
            one.communicate("\n", timeout=GENEROUS_S)
            assert one.returncode == 0 and running(pid), left
        users[2].communicate("\n", timeout=GENEROUS_S)
        assert users[2].returncode == 0 and not running(pid) and book(fake) is None
    finally:
        for one in users:
            one.kill()
            one.communicate()


def test_a_user_that_was_killed_counts_no_more(fake):
    port = free_port()
    pid = left_by_a_killed_user(port, fake)
    assert running(pid)  # nobody was left to stop it
    with lease(judge(port), fake):
        assert pid_of(fake) == pid and users_of(fake) == [os.getpid()]
    assert not running(pid) and book(fake) is None


def test_what_a_killed_user_left_can_be_swept_up(fake, capsys):
    port = free_port()
    asks = ["judge=qwen3-4b", f"port={port}", "stop=true", f"runs_dir={fake}"]
    with lease(judge(port), fake):
        assert main(asks) == 2
        assert f"in use by process {os.getpid()}" in capsys.readouterr().err
    assert main(asks) == 0
    assert capsys.readouterr().out == "no server was left behind\n"
    pid = left_by_a_killed_user(port, fake)
    assert main(asks) == 0
    assert f"; stopped process {pid}; its book is cleared\n" in capsys.readouterr().out
    assert not running(pid) and book(fake) is None


def test_a_shared_server_is_listed_and_swept_by_its_name_on_its_host_alone(fake, capsys):
    port = free_port()
    served = loopback_service(port, fake)
    asks = [f"runs_dir={fake}", "stop=true", f"service={served.name}"]
    with lease(judge(port), fake):
        assert main([f"runs_dir={fake}", "status=true"]) == 0
        listed = " ".join(capsys.readouterr().out.split())
        assert served.name in listed and "1 of 1 well" in listed and "ready" in listed
        assert main(asks) == 2 and f"in use by process {os.getpid()}" in capsys.readouterr().err
    pid = left_by_a_killed_user(port, fake)
    elsewhere = Service(served.folder, B)
    left = elsewhere.read()
    assert left is not None and elsewhere.owned(left) and not served.owned(left)
    for sign in served.users_dir.iterdir():  # another host knows a user by its sign alone
        os.utime(sign, (0, 0))
    with pytest.raises(UserError, match=f"on the loopback of {socket.gethostname()}"):
        end_service(elsewhere)
    assert running(pid) and main(asks) == 0
    assert f"; stopped process {pid}; " in capsys.readouterr().out and not running(pid)


def test_a_user_of_before_the_last_boot_counts_no_more(fake):
    port = free_port()
    served = loopback_service(port, fake)
    pid = left_by_a_killed_user(port, fake)
    (sign,) = served.users_dir.iterdir()
    write_json(sign, read_json(sign) | {"pid": os.getpid(), "started": f"{'0' * 32}-1"})
    assert users_of(fake) == []
    with lease(judge(port, max_num_seqs=4), fake):
        assert pid_of(fake) != pid and not running(pid)
    assert list(served.users_dir.iterdir()) == []


@pytest.mark.parametrize("is_used", [True, False])
def test_a_server_in_a_file_of_an_older_release_is_shared(fake, is_used):
    port = free_port()
    one = judge(port)
    [left] = servers = server.start(one, "127.0.0.1", port, fake, attached=False)
    server.wait_ready(one, servers)
    me = {"pid": os.getpid(), "started": server.start_time(os.getpid())}
    written = {"pid": left.pid, "started": left.started, "url": left.url, "log": left.log}
    command = [vllm_command.arguments(one, "127.0.0.1", port)]
    users = [me] if is_used else []
    older = fake / "servers" / f"{socket.gethostname()}-{port}.json"
    write_json(older, {"command": command, "servers": [written], "users": users})
    with lease(one, fake):
        assert pid_of(fake) == left.pid and not older.exists()
        assert users_of(fake) == [os.getpid()] * (1 + is_used)
    assert running(left.pid) is is_used  # its older user goes on
    server.stop(servers)


def test_what_an_older_release_left_can_be_swept_up(fake, capsys):
    port = free_port()
    older = fake / "servers" / f"{socket.gethostname()}-{port}.json"
    written = {"pid": 2**22 + 1, "started": "x", "url": f"http://127.0.0.1:{port}/v1", "log": ""}
    write_json(older, {"command": [], "servers": [written], "users": []})
    assert main(["judge=qwen3-4b", f"port={port}", "stop=true", f"runs_dir={fake}"]) == 0
    assert "its book is cleared" in capsys.readouterr().out and not older.exists()
    older.write_text("{")
    with pytest.raises(Damaged, match="json is damaged"), lease(judge(port), fake):
        pass


def test_a_sweep_leases_each_server_once_and_only_those_it_should_start(fake):
    first = judge(free_port(), auto=True)
    strict = dataclasses.replace(first, name="tiny-strict")  # another prompt, the same server
    second, other = judge(free_port(), auto=True), judge(free_port())
    with leases([first, strict, first, second, other], fake):
        assert server.served_models(first, first.endpoint.url) == ["tiny"]
        assert server.served_models(second, second.endpoint.url) == ["tiny"]
        assert server.served_models(other, other.endpoint.url) is None
        assert [len(list(each.users())) for each in services(fake)] == [1, 1]
    assert server.served_models(first, first.endpoint.url) is None
    assert book(fake) is None


def test_a_server_that_died_is_started_anew(fake):
    one = judge(free_port())
    with lease(one, fake):
        before = pid_of(fake)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: not running(before))
        with lease(one, fake):
            assert pid_of(fake) != before
            assert server.served_models(one, one.endpoint.url) == ["tiny"]
    assert book(fake) is None


def test_a_server_started_by_hand_is_used_and_left_alone(fake):
    one = judge(free_port())
    with started(one, fake) as servers:
        server.wait_ready(one, servers)
        with lease(one, fake):
            assert book(fake) is None
        assert server.alive(servers[0])
        asks_more = dataclasses.replace(one.endpoint, model="tiny-2")
        with (
            pytest.raises(UserError, match="another server serves tiny"),
            lease(dataclasses.replace(one, endpoint=asks_more), fake),
        ):
            pass


def test_other_settings_have_to_wait_for_the_users(fake):
    port = free_port()
    other = judge(port, max_num_seqs=4)
    with (
        lease(judge(port), fake),
        pytest.raises(UserError, match=f"different settings for process {os.getpid()}"),
        lease(other, fake),
    ):
        pass
    with lease(other, fake):
        served = book(fake)
        assert served is not None and served.commands[0][-2:] == ["--max-num-seqs", "4"]


def test_a_lease_that_cannot_start_leaves_nothing(fake, monkeypatch):
    monkeypatch.setenv("FAKE_VLLM", "die")
    with pytest.raises(UserError, match="OutOfMemoryError"), lease(judge(free_port()), fake):
        pass
    assert book(fake) is None


@pytest.mark.parametrize(
    ("url", "replicas", "message"),
    [
        ("https://example.org/v1", 1, "is on another"),
        ("http://127.0.0.1/v1", 1, "is on another"),
        ("http://127.0.0.1:8000/v1", 2, "judge.endpoint.replicas=[http://127.0.0.1:8001/v1]"),
    ],
)
def test_only_a_server_of_this_machine_that_the_client_knows_is_leased(
    tmp_path, url, replicas, message
):
    one = judge(replicas=replicas)
    placed = dataclasses.replace(one, endpoint=dataclasses.replace(one.endpoint, url=url))
    with pytest.raises(UserError, match=re.escape(message)), lease(placed, tmp_path):
        pass
