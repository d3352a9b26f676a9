"""A real Slurm of one node, started and stopped by a test: Debian's slurmctld, slurmd and munge."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Within the block there is a cluster; yields the environment of who is to use it. The test is
    skipped where the programs are not there, or do not start."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        packages = "slurmctld slurmd slurm-client munge"
        pytest.skip(f"needs {', '.join(missing)}: apt-get install {packages}")
    if os.geteuid():
        pytest.skip("needs root, as whom Slurm's servers run here")
    host = socket.gethostname().partition(".")[0]
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(mode=0o700)
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o400)
    ports = {"ctld_port": free_port(), "d_port": free_port()}
    file = folder / "slurm.conf"
    config = Path(__file__).with_name("slurm.conf").read_text()
    file.write_text(config.format(host=host, folder=folder, **ports))
    munge = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge/socket", *munge],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-N", host],
    ]
    environment = os.environ | {"SLURM_CONF": str(file)}
    ask = ["sinfo", "--noheader", "--format=%T"]
    with ExitStack() as stack:
        for command in commands:
            log = stack.enter_context((folder / f"{command[0]}.out").open("w"))
            child = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
            stack.callback(_stop, child)
            time.sleep(0.5)
        limit = time.monotonic() + 30
        while subprocess.run(ask, capture_output=True, env=environment).stdout.strip() != b"idle":
            if time.monotonic() > limit:
                logs = "\n".join(path.read_text()[-500:] for path in folder.glob("*.out"))
                pytest.skip(f"Slurm does not start on this machine: {logs}")
            time.sleep(0.2)
        yield {"SLURM_CONF": str(file)}


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
