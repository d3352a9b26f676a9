"""Runs chosen tests in a copy of the tree, and leaves no process of theirs behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from study.tasks.where import data_folder
from tests.mutants.faults import Fault, planted
from tests.mutants.warm import LIBRARIES, Request

MARK = "JUDGEDRIFT_TRIAL"
"""A variable that every process of a trial inherits, by which those that are left are found."""
LEFT_OUT = ("PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
"""Variables that trials do not inherit; byte code is kept, as hundreds of processes need it."""
HERE = Path(__file__).resolve().parents[2]
"""Holds the plugins of trials, whichever tree they run."""


@dataclass(frozen=True)
class Run:
    """What became of one run of chosen tests."""

    failed: tuple[str, ...]
    """Tests that failed, or "collection" where pytest itself ended with an error."""
    timed_out: bool
    seconds: float


class Warm:
    """A process from which runs of pytest are forked, one after the other; see `warm`."""

    def __init__(self, libraries: Sequence[str]) -> None:
        environment = {key: value for key, value in os.environ.items() if key not in LEFT_OUT}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("warm.py")), *libraries],
            cwd="/",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, request: Request, limit_s: float) -> int | None:
        """The exit code of a run; None where it took longer than ``limit_s`` seconds and was
        killed, with all of its process group."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps(request), file=process.stdin, flush=True)
        pid = json.loads(process.stdout.readline())["pid"]
        ended, _, _ = select.select([process.stdout], [], [], limit_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        code: int = json.loads(process.stdout.readline())["code"]
        return code if ended else None

    def close(self) -> None:
        """End the process."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()


class Tree:
    """A copy of the files that git knows of, in which faults are planted and taken out again."""

    libraries: Sequence[str] = LIBRARIES
    """What is imported before its runs are forked."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder / "tree"
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
        for name in filter(None, listed.decode().split("\0")):
            if (root / name).is_file() or (root / name).is_symlink():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.folder / name, follow_symlinks=False)
        self.temporary = folder / "t"
        self._warm: Warm | None = None
        kept = {key: value for key, value in os.environ.items() if key not in LEFT_OUT}
        self.environment = kept | {
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(HERE)]),
            "JUDGEDRIFT_DATA": str(data_folder()),
            "JUDGEDRIFT_TEST_TIMES": str(folder / "times"),
            "TMPDIR": str(folder),
        }

    def close(self) -> None:
        """End what runs of this tree were forked from."""
        if self._warm is not None:
            self._warm.close()

    @contextlib.contextmanager
    def with_faults(self, faults: Iterable[Fault]) -> Iterator[None]:
        """The tree with these faults while the context is open."""
        by_path: dict[str, list[Fault]] = {}
        for fault in faults:
            by_path.setdefault(fault.path, []).append(fault)
        before = {}
        for path, here in by_path.items():
            file = self.folder / path
            before[file] = file.read_bytes(), file.stat()
            file.write_text(planted(file.read_text(), here))
        try:
            yield
        finally:
            # as the copy had it: who edits the tree meanwhile changes no trial
            for file, (content, stat) in before.items():
                file.write_bytes(content)
                # byte code is kept by time and size of its source: both are as they were
                os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def run(self, tests: Sequence[str], limit_s: float) -> Run:
        """Run tests, node ids of pytest, in their order until one fails; at ``limit_s`` seconds
        what still runs is killed."""
        if not tests:
            return Run((), False, 0.0)
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()
        chosen, outcomes = self.temporary / "chosen.txt", self.temporary / "outcomes.txt"
        chosen.write_text("".join(f"{test}\n" for test in tests))
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        words = [
            "-q",
            "-p",
            "tests.mutants.chosen",
            "-p",
            "no:cacheprovider",
            "--hypothesis-seed=0",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",  # of libraries that `warm` has imported
        ]
        words += ["--tb=no", "-x", f"--basetemp={self.temporary / 'b'}"]
        trial = f"{os.getpid()}-{self.folder}"
        environment = self.environment | {
            "JUDGEDRIFT_CHOSEN": str(chosen),
            "JUDGEDRIFT_OUTCOMES": str(outcomes),
            MARK: trial,
        }
        begin = time.monotonic()
        request = Request(
            words=[*words, *files],
            folder=str(self.folder),
            environment=environment,
            log=str(self.temporary / "log.txt"),
        )
        self._warm = self._warm or Warm(self.libraries)
        try:
            code = self._warm.run(request, limit_s)
        finally:
            kill_marked(trial)
        failed = outcomes.read_text().split("\n")[:-1] if outcomes.exists() else []
        if code not in (0, 5, None) and not failed:  # with -x an error of collection ends with 1
            failed = ["collection"]
        return Run(tuple(dict.fromkeys(failed)), code is None, time.monotonic() - begin)


def kill_marked(trial: str) -> None:
    """Kill every process whose environment says that it belongs to a trial."""
    needle = f"{MARK}={trial}".encode()
    for _ in range(3):  # what was just started by one of them
        marked = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if needle in path.read_bytes().split(b"\0"):
                    marked.append(int(path.parent.name))
        for pid in set(marked) - {os.getpid()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not marked:
            return


@contextlib.contextmanager
def trees(root: Path, count: int) -> Iterator[list[Tree]]:
    """Copies of the tree, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        os.chmod(folder, 0o755)  # some tests run as another user
        places = [Path(folder) / str(number) for number in range(count)]
        for place in places:
            place.mkdir()
        made = [Tree(root, place) for place in places]
        try:
            yield made
        finally:
            for tree in made:
                tree.close()
