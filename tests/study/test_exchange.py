"""Records at a URL: sent whole, fetched whole, run by one machine at a time."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from study.cell import exchange, lease, places
from study.cell.exchange import MANIFEST, fetch, key_of, pull, push
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.cell.places import StorageError, local, url_of
from study.errors import UserError
from study.system.clock import boot
from study.system.storage import DiskError
from tests.conftest import ROOT, S3_KEYS
from tests.study import elsewhere
from tests.waiting import GENEROUS_S, wait_for


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path) -> str:
    """URL of a folder of studies without a server."""
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    return f"file://{tmp_path}/far" if request.param == "file" else "memory://far/runs"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Lets this process be one machine or another: each has a scratch folder of its own."""
    monkeypatch.setattr(lease, "SETTLES_S", 0.01)

    def be(name: str) -> None:
        monkeypatch.setenv(places.VARIABLE, str(tmp_path / name))

    be("one")
    return be


@pytest.fixture
def folder(url, machine) -> Path:
    """A cell of a URL as a sweep leaves it, and where machine one has it."""
    folder = local(url) / "study" / "a-s0"
    elsewhere.lay(folder)
    return folder


def manifest_of(folder: Path) -> dict[str, object]:
    """What is on record of a cell, whatever the time and the machine."""
    rows = {
        kind: {part.step: read_part(part).to_pylist() for part in CellFolder(folder).parts(kind)}
        for kind in ("rollouts", "verdicts")
    }
    lines = [(line["step"], line["metrics"]) for line in CellFolder(folder).lines()]
    return {**rows, "metrics": lines, "done": CellFolder(folder).is_done()}


def test_a_folder_says_which_url_it_is_the_copy_of(machine, tmp_path):
    for place in ("s3://bucket/runs", "file:///data/runs", "memory://x/y", "gs://b"):
        assert url_of(local(place)) == place
        assert url_of(local(f"{place}/") / "study" / "cell") == f"{place}/study/cell"
    assert url_of(tmp_path) == "" and local("runs") == Path("runs")
    assert places.shown(tmp_path) == str(tmp_path)


@pytest.mark.parametrize("place", ["s3://", "s3://b/../c", "s3://b/*", "s3://b//c", "s3://b/a b"])
def test_an_address_that_names_no_folder_is_refused(machine, place):
    with pytest.raises(UserError, match="does not name a remote folder"):
        local(place)


@pytest.mark.parametrize(
    "place",
    [
        "s3://AKIATESTTESTTESTTEST:very-secret-words@bucket/runs",
        "s3://bucket/runs?aws_secret_access_key=very-secret-words",
        "https://bucket/runs?X-Amz-Signature=0123456789abcdef0123",
    ],
)
def test_an_address_with_a_key_is_refused_and_not_shown(machine, place):
    with pytest.raises(UserError) as caught:
        local(place)
    assert "secret-words" not in str(caught.value) and "0123456789" not in str(caught.value)
    assert "AWS_PROFILE" in str(caught.value)


def test_another_machine_reads_what_was_sent(url, machine, folder):
    elsewhere.body(folder, 5)
    (folder.parent / "study.json").write_text('{"study": "study"}')
    push(folder.parent)
    mine = manifest_of(folder)
    assert mine["done"]
    machine("two")
    copy = local(url) / "study"
    fetch(copy)
    assert manifest_of(copy / "a-s0") == mine
    assert (copy / "study.json").read_text() == '{"study": "study"}'
    assert not (copy / "a-s0" / "checkpoints").exists() and exchange.studies(local(url)) == [
        "study"
    ]
    stamps = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file()}
    fetch(copy)
    assert stamps == {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file()}
    with lease.held(CellFolder(copy / "a-s0")):
        push(copy / "a-s0", ended=True)  # nothing is new
    machine("one")
    fetch(folder.parent)
    assert manifest_of(folder) == mine


def test_what_went_on_elsewhere_replaces_what_is_here(url, machine, folder):
    with lease.held(CellFolder(folder)):
        (folder / "rollouts").mkdir()
        (folder / "rollouts" / "step-000009.parquet").write_bytes(b"of a step that was redone")
        push(folder)
    (folder / "rollouts" / "step-000010.parquet").write_bytes(b"never sent")
    machine("two")
    again = local(url) / "study" / "a-s0"
    CellFolder(again).find()
    assert (again / "rollouts" / "step-000009.parquet").exists()
    (again / "rollouts" / "step-000009.parquet").unlink()
    elsewhere.body(again, 3)
    machine("one")
    assert pull(folder, whole=True) and manifest_of(folder) == manifest_of(again)
    assert not (folder / "rollouts" / "step-000010.parquet").exists()


def test_a_reader_sees_the_cell_as_it_was_until_the_manifest_is_there(
    url, machine, folder, monkeypatch
):
    (folder / "metrics.jsonl").write_text('{"step": 1, "metrics": {}}\n')
    push(folder)
    (folder / "metrics.jsonl").write_text('{"step": 1, "metrics": {}}\n{"step": 2}\n')

    def dropped(fs, path, data):
        raise ConnectionResetError("the other side hung up")

    with monkeypatch.context() as patch:
        patch.setattr(exchange, "put", dropped)
        with pytest.raises(StorageError, match="does not answer, or the connection broke off"):
            push(folder)
    machine("two")
    copy = local(url) / "study" / "a-s0"
    CellFolder(copy).find()
    assert len((copy / "metrics.jsonl").read_text().splitlines()) == 1
    machine("one")
    push(folder)
    machine("two")
    assert pull(copy) and len((copy / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_disk_that_is_full_here_is_not_blamed_on_the_store(url, machine, folder, monkeypatch):
    machine("two")
    copy = local(url) / "study" / "a-s0"
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "write_bytes", full)
        with pytest.raises(DiskError, match="cannot be written"):
            CellFolder(copy).find()
    CellFolder(copy).find()
    assert (copy / "config.yaml").read_text() == "seed: 0\n"


def full(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_damaged_there_is_said(url, machine, folder):
    fs, root = places.opened(url_of(folder))
    (name,) = (path for path in fs.ls(root, detail=False) if "config" in path)
    machine("two")
    copy = local(url) / "study" / "a-s0"
    fs.pipe_file(name, b"something else")
    with pytest.raises(StorageError, match=r"a-s0 is damaged: config\.yaml is missing, though its"):
        CellFolder(copy).find()
    assert not (copy / "config.yaml").exists()
    for bad in (b"{", b"[]", b'{"format": 2}', _manifest("../x"), _manifest("/etc/x")):
        fs.pipe_file(f"{root}/{MANIFEST}", bad)
        with pytest.raises(StorageError, match="manifest of a cell"):
            CellFolder(copy).find()


def test_what_stands_beside_the_cells_is_fetched_until_it_is_whole(url, machine):
    study = local(url) / "study"
    study.mkdir(parents=True)
    (study / "study.json").write_text("{}")
    push(study)
    fs, root = places.opened(url_of(study))
    (name,) = (path for path in fs.ls(root, detail=False) if "study." in path)
    sound = fs.cat_file(name)
    fs.pipe_file(name, b"something else")
    machine("two")
    fetch(local(url) / "study")
    assert not (local(url) / "study" / "study.json").exists()
    fs.pipe_file(name, sound)
    fetch(local(url) / "study")
    assert (local(url) / "study" / "study.json").read_text() == "{}"


def _manifest(name: str) -> bytes:
    files = {name: {"size": 0, "sha256": "0" * 64}}
    return json.dumps({"format": 1, "version": "0" * 32, "files": files}).encode()


def test_names_that_a_store_would_take_for_a_pattern(url, machine):
    study = local(url) / "study"
    (study / "report").mkdir(parents=True)
    (study / "report" / "a [b]*?.txt").write_text("x")
    push(study)
    machine("two")
    fetch(local(url) / "study")
    assert (local(url) / "study" / "report" / "a [b]*?.txt").read_text() == "x"
    assert key_of("DONE", "a" * 64) == "DONE." + "a" * 16


def leased(**changes: object) -> bytes:
    here = {"host": socket.gethostname(), "pid": os.getpid(), "boot": boot(), "token": "t"}
    return json.dumps(here | {"expires": time.time() + 3600} | changes).encode()


def test_a_cell_is_run_by_one_machine(url, machine, folder):
    CellFolder(folder).set_status(state="running", step=0)
    fs, root = places.opened(url_of(folder))
    path = f"{root}/{exchange.LEASE}"
    with lease.held(CellFolder(folder)):
        machine("two")
        copy = local(url) / "study" / "a-s0"
        with pytest.raises(lease.Taken, match=f"is being run by process {os.getpid()} on "):
            elsewhere.body(copy, 2)
        machine("one")
    assert not fs.exists(path)
    fs.pipe_file(path, leased(host="far-away"))
    fetch(folder.parent)
    assert CellFolder(folder).state() == "running"
    with pytest.raises(lease.Taken, match="on far-away"), lease.held(CellFolder(folder)):
        pass
    for ended in (leased(expires=time.time() - 1), leased(pid=2**22 + 1), b"{", b"[]"):
        fs.pipe_file(path, ended)
        fetch(folder.parent)
        assert CellFolder(folder).state() == "killed"
        with lease.held(CellFolder(folder)):
            assert json.loads(fs.cat_file(path))["pid"] == os.getpid()
        assert not fs.exists(path)


@pytest.mark.parametrize("error", [TypeError(), NotImplementedError(), OSError(errno.ENOSYS, "")])
def test_a_store_that_cannot_create_only_is_looked_at_again(
    url, machine, monkeypatch, folder, error
):
    fs, root = places.opened(url_of(folder))
    real, put = type(fs).pipe_file, exchange.put

    def plain(self, path, value, mode="overwrite"):
        if mode == "create":
            raise error
        real(self, path, value)

    def first(fs, path, data):
        put(fs, path, data)
        put(fs, path, leased(host="far-away"))  # by who wrote just after

    with monkeypatch.context() as patch:
        patch.setattr(type(fs), "pipe_file", plain)
        patch.setattr(exchange, "put", first)
        with pytest.raises(lease.Taken, match="on far-away"), lease.held(CellFolder(folder)):
            pass
    assert json.loads(fs.cat_file(f"{root}/{exchange.LEASE}"))["host"] == "far-away"


def test_of_two_who_find_no_lease_the_first_has_it(s3, machine, monkeypatch):
    """Both have looked before either writes."""
    folder = local(s3) / "study" / "a-s0"
    fs, root = places.opened(url_of(folder))
    path = f"{root}/{exchange.LEASE}"
    real = lease.Lease._read

    def looks(self):
        record = real(self)
        if record is None:
            fs.pipe_file(path, leased(host="far-away"))
        return record

    monkeypatch.setattr(lease.Lease, "_read", looks)
    with pytest.raises(lease.Taken, match="on far-away"), lease.held(CellFolder(folder)):
        pass
    assert json.loads(fs.cat_file(path))["host"] == "far-away"


def test_a_run_that_lost_its_lease_sends_nothing_more(folder, monkeypatch):
    monkeypatch.setattr(lease, "LASTS_S", 0.2)
    fs, root = places.opened(url_of(folder))
    with lease.held(CellFolder(folder)):
        path = f"{root}/{exchange.LEASE}"
        first = json.loads(fs.cat_file(path))["expires"]
        wait_for(lambda: json.loads(fs.cat_file(path))["expires"] > first)

        def taken() -> bool:
            """Written again until the thread that renews the lease has seen it."""
            exchange.put(fs, path, leased(host="far-away"))
            return all(thread.name != "lease" for thread in threading.enumerate())

        wait_for(taken)
        before = fs.cat_file(f"{root}/{MANIFEST}")
        (folder / "metrics.jsonl").write_text("{}\n")
        with pytest.raises(lease.Taken, match="on far-away"):
            push(folder)
        assert fs.cat_file(f"{root}/{MANIFEST}") == before
    assert json.loads(fs.cat_file(f"{root}/{exchange.LEASE}"))["host"] == "far-away"


def run(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.study.elsewhere", str(folder), *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=GENEROUS_S)


@pytest.mark.parametrize(
    "seam",
    [
        pytest.param(("pipe", 2), id="a file"),
        pytest.param(("pipe_file", 3), marks=pytest.mark.long, id="a manifest"),
        pytest.param(("rm", 2), marks=pytest.mark.long, id="what is old"),
    ],
)
def test_a_worker_that_is_killed_is_gone_on_with_elsewhere(s3, machine, tmp_path, seam):
    """Between two uploads: the records are those of a run that nobody stopped."""
    whole = tmp_path / "here" / "study" / "a-s0"
    elsewhere.lay(whole)
    elsewhere.body(whole, 6)
    folder = local(s3) / "study" / "a-s0"
    elsewhere.lay(folder)
    done = run(folder, 6, *seam)
    assert done.returncode == -signal.SIGKILL, done.stderr
    machine("two")
    fetch(local(s3) / "study")
    copy = local(s3) / "study" / "a-s0"
    partial = manifest_of(copy)
    assert partial["metrics"] == manifest_of(whole)["metrics"][: len(partial["metrics"])]
    elsewhere.body(copy, 6)
    assert manifest_of(copy) == manifest_of(whole)
    fs, root = places.opened(s3)
    manifest = json.loads(fs.cat_file(f"{root}/study/a-s0/{MANIFEST}"))
    there = {path.rpartition("a-s0/")[2] for path in fs.find(f"{root}/study/a-s0")}
    assert there == {MANIFEST, *(key_of(n, e["sha256"]) for n, e in manifest["files"].items())}


def test_what_is_wrong_with_a_store_is_one_paragraph(s3, s3_server, machine, monkeypatch):
    from s3fs import S3FileSystem

    folder = local("s3://no-such-bucket/runs")
    for wrong in (lambda: exchange.check(folder), lambda: fetch(folder / "study")):
        with pytest.raises(StorageError, match="there is no bucket no-such-bucket that you may"):
            wrong()
    fetch(local(s3) / "study")  # no study yet
    assert exchange.studies(local(s3)) == []
    exchange.check(local(s3))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    S3FileSystem.clear_instance_cache()
    with pytest.raises(StorageError, match="cannot be read or written with the keys") as caught:
        exchange.check(local(s3))
    for name, value in S3_KEYS.items():
        monkeypatch.setenv(name, value)
    port = urlsplit(s3_server).port
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{1 if port != 1 else 2}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    S3FileSystem.clear_instance_cache()
    with pytest.raises(StorageError, match="does not answer") as caught:
        exchange.check(local(s3))
    assert "\n" not in str(caught.value) and "secret-words" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nosuch://a/b", "begins with nosuch://, which no installed package can read"),
        ("dropbox://a/b", r"package that reads dropbox:// is not installed .*\.\[remote\]"),
    ],
)
def test_a_scheme_that_cannot_be_read(machine, place, message):
    with pytest.raises(StorageError, match=message):
        exchange.check(local(place))
