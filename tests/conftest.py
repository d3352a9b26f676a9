"""Shared pieces: the command line as a user calls it, a small finished study, a page as read."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from study.cell.merged import split
from study.sandbox import tiers
from study.sandbox.pool import Pool
from study.system import gpus, locks, stopping
from study.system.machine import kernel_variables
from tests import chromium, commands, composing, timing
from tests.sweeps import Sweeps
from tests.waiting import wait_for

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell that runs this in the background ignores Ctrl-C for every process that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)
# hundreds of processes would compile every file anew
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["JUDGEDRIFT_PROGRESS"] = "off"  # a line every 15 s would be of a slow machine alone
os.environ["COLUMNS"] = "160"  # tables as in a pipe, whatever the terminal of this run has
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and numpy: two processes, two cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # a thread that waits for one leaves its core
os.environ |= kernel_variables()  # as cells have it
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # TRL's own trainers, an oracle here, send it
# a slow machine is no failure; the standard tier tries the same examples in every run
settings.register_profile("standard", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("long", deadline=None)
settings.load_profile("standard")
ROOT = commands.ROOT
LONG = frozenset(Path(__file__).with_name("long.txt").read_text(encoding="utf-8").splitlines())
"""Dear tests whose code others reach."""
MEMORY = Path("/dev/shm")
"""A file system in memory: records are synced to disk at each step, which takes 7 ms on a disk."""
ROOM = 4 << 30
"""Bytes; what all tests together leave takes a tenth."""
SMALL_STUDY = ("debug=tiny", "judge=sim-fair,sim-flaky", "seed=3,4", "shadow=[sim-verbose]")
"""What `small_study` is made by; under these seeds the flaky judge fails somewhere."""
UMASK = os.umask(0o022)
os.umask(UMASK)
QUICKSTART_CELLS = tuple(itertools.product(("sim-fair", "sim-verbose", "sim-flattery"), range(3)))
"""Judges and seeds of the quickstart."""
RECORDS_ONLY = ("debug=tiny", "sweep.report=false", "tracking=none")
"""A tiny study of which a test reads the records alone."""
S3_KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTTESTTESTTEST",
    "AWS_SECRET_ACCESS_KEY": "very-secret-words",
}
SLOWLY = "judge.endpoint.requests_per_min=240"
"""Leaves time to stop a cell between two steps: with this a tiny one takes about two seconds."""


def came_of(*raised: BaseException) -> BaseException:
    """The last of the errors, each of which came up while the one before it was handled."""
    for earlier, later in itertools.pairwise(raised):
        later.__context__ = earlier
    return raised[-1]


def pytest_configure(config: pytest.Config) -> None:
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    timing.pytest_configure(config)
    settings.load_profile("standard" if "not long" in config.option.markexpr else "long")
    commands.share_imports()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Each worker first imports a share of the test files, whose asserts pytest rewrites: so the
    files of a fresh clone are rewritten by one worker each, and not by all."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    folders = [Path(argument.partition("::")[0]) for argument in session.config.args]
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("test_*.py"))
    for file in files[number::count]:
        # what cannot be imported is named where it is collected
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_unconfigure() -> None:
    commands.close()


def pytest_itemcollected(item: pytest.Item) -> None:
    """The tests of ``long.txt`` are ``long``: `tests.mutants.tiers` chose them."""
    if item.nodeid in LONG:
        item.add_marker(pytest.mark.long)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first and those that are alone last: workers end at about one time."""
    slow, alone = (
        {item.path for item in items if item.get_closest_marker(name)} for name in ("slow", "alone")
    )
    items.sort(key=lambda item: (item.path in alone, item.path not in slow))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that is marked ``alone`` runs while no other worker of pytest-xdist runs one.

    Whoever waits to be alone holds the gate, so that nobody begins a test before it.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    base = Path(item.config.getoption("basetemp")).parent
    alone = item.get_closest_marker("alone") is not None
    with (base / "running.lock").open("w") as running:
        with locks.held(base / "gate.lock"):
            fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def _presets_are_read_once() -> Iterator[None]:
    with composing.remembered():
        yield


@pytest.fixture(autouse=True)
def _the_umask_is_given_back() -> Iterator[None]:
    """Commands make files private for the rest of their process, in which other tests run."""
    yield
    left = os.umask(UMASK)
    assert left == UMASK, f"the test left the umask {left:04o}"


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command may run here: it takes no signals, and the umask that it sets is given back."""
    monkeypatch.setattr(stopping, "take_signals", lambda: None)
    yield
    os.umask(UMASK)


@pytest.fixture(scope="module", autouse=True)
def _only_new_garbage() -> None:
    """Garbage is looked for among what the tests of a file make, not among all that was imported.

    A worker that has imported torch and MLflow has a million objects: 0.8 s for each look.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of GPUs are between the processes of this test alone."""
    monkeypatch.setattr(gpus, "HOST", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def gpus_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let NVIDIA's tool list so many GPUs, in this process and those that it starts."""
    tool = tmp_path / "nvidia" / "nvidia-smi"
    tool.parent.mkdir()

    def has(count: int) -> None:
        tool.write_text(
            "#!/bin/sh\n"
            f"for n in $(seq 0 {count - 1}); do case $1 in\n"
            '*uuid) echo "GPU-0000-$n";;\n'
            "*) echo 'NVIDIA H200, 143771';;\n"
            "esac; done\n"
        )
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    return has


def run_alone(program: str) -> str:
    """What a program says that a Python of its own runs, without any error."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def python(program: str, *words: object, **more: Any) -> subprocess.Popen[str]:
    """A Python of its own that runs a program with these words; what it prints can be read."""
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **more)


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of all workers of pytest-xdist in this session."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def cache(together: Path) -> Path:
    """Where all tests keep tiny policies, so that each is warmed up once."""
    folder = together / "policies"
    folder.mkdir(exist_ok=True)
    return folder


def sweep(
    runs_dir: Path, *arguments: str, real: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the sweep's command line against ``runs_dir`` and return what it printed."""
    return commands.run(
        *("experiments.sweep", f"runs_dir={runs_dir}", *arguments),
        real=real,
        env=os.environ | {"COLUMNS": "200"} | environment,
    )


@pytest.fixture(scope="session")
def warmed(cache: Path) -> Callable[[Path], Path]:
    """Make a runs folder whose tiny policies are those of all tests; returns it."""

    def share(runs_dir: Path) -> Path:
        (runs_dir / ".cache").mkdir(parents=True, exist_ok=True)
        if not (runs_dir / ".cache" / "policies").exists():
            (runs_dir / ".cache" / "policies").symlink_to(cache)
        return runs_dir

    return share


def in_parts(study: Path) -> Path:
    """Make parts of what is merged in a study, as older versions left it; returns the study."""
    for path in study.rglob("steps-*.parquet"):
        split(path)
    return study


def free_port(count: int = 1) -> int:
    """The first of ``count`` ports in a row that nobody listens on; above those of Ray's workers,
    below those that outgoing connections are given, which would take one of them meanwhile."""
    while True:
        first = random.SystemRandom().randrange(20_000, 30_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


Trained = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def trained(warmed: Callable[[Path], Path]) -> Iterator[Trained]:
    """`sweep`, for what it leaves: all in one process, which imports what trains only once."""
    sweeps = Sweeps()

    def run(runs_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        if "plan=true" not in arguments:
            warmed(runs_dir)
        return sweeps.run(f"runs_dir={runs_dir}", *arguments)

    yield run
    sweeps.close()


def listens(port: int) -> bool:
    """Whether somebody does, on this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of an S3 server in a process of its own."""
    pytest.importorskip("s3fs", reason="the extra remote")
    pytest.importorskip("moto", reason="moto's server stands in for S3")
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", f"-p{port}"]
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere)
    try:
        wait_for(lambda: listens(port), "the S3 server listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def s3(s3_server, monkeypatch, request) -> str:
    """URL of a folder of studies in a bucket that is there."""
    from s3fs import S3FileSystem

    for name, value in {
        **S3_KEYS,
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()
    bucket = f"b{abs(hash(request.node.name))}"
    S3FileSystem(endpoint_url=s3_server, skip_instance_cache=True).mkdir(bucket)
    return f"s3://{bucket}/runs"


class Page(HTMLParser):
    """What a browser would load, and what a reader would read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.breaks = True
        """Whether what follows is set apart from what is before it."""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.breaks = tag != "abbr"
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_endtag(self, tag):
        self.breaks = tag != "abbr"

    def handle_data(self, data):
        self.text += (" " if self.breaks else "") + data


@pytest.fixture(scope="session")
def small_study(together, trained, tmp_path_factory) -> Path:
    """Two simulated judges x two seeds of two steps, trained for real; the study's folder.

    It is trained once, and each worker has a copy.
    """
    source, whole = together / "small_study", together / "small_study.whole"
    with locks.held(together / "small_study.lock"):
        if not whole.exists():
            done = trained(source, *SMALL_STUDY)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "was not written" not in done.stdout, done.stdout  # report and notebook
            whole.touch()
    runs_dir = tmp_path_factory.mktemp("runs")
    shutil.copytree(source, runs_dir, symlinks=True, dirs_exist_ok=True)
    return runs_dir / "debug"


@pytest.fixture(scope="session")
def quickstart(together, trained) -> Path:
    """The quickstart, trained whole: three judges x three seeds x 40 steps; the study's folder.

    It is trained once for all workers, and nobody writes to it.
    """
    source, whole = together / "quickstart_runs", together / "quickstart_runs.whole"
    with locks.held(together / "quickstart_runs.lock"):
        for judge, seed in () if whole.exists() else QUICKSTART_CELLS:  # a sweep each has its time
            words = ("sweep.threads=1", "sweep.report=false", "tracking=none")
            done = trained(source, f"judge={judge}", f"seed={seed}", *words)
            assert done.returncode == 0, done.stdout + done.stderr
        whole.touch()
    return source / "quickstart"


@pytest.fixture(scope="session")
def isolated() -> None:
    """The test is skipped where nothing isolates."""
    try:
        tiers.find()
    except tiers.SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def pool(isolated: None) -> Iterator[Pool]:
    """Two sandboxes."""
    with Pool(2) as made:
        yield made


@pytest.fixture(scope="session")
def browser() -> Iterator[chromium.Browser]:
    """A headless Chromium of this worker's tests; they are skipped where none is installed."""
    if why := chromium.missing():
        pytest.skip(why)
    with chromium.chromium() as started:
        yield started
