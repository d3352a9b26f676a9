"""The folder of a cell: what it was made for, how it stands, and what it has on record.

    folder = CellFolder(Path("runs/quickstart/sim-fair-s0-0a1b2c3d4e"))
    folder.state()                          # new, running, done, failed or killed
    folder.status()["step"]
    for part, rows in folder.records("verdicts", ["judge", "score"]):
        ...

It stands for its path wherever one is taken: ``folder / "log.txt"``. Where its study lies at a
URL, it is the copy on this machine, which `CellFolder.refresh` brings up to date.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast

from study.cell import exchange, places, signature
from study.cell.places import LOCK
from study.cell.records import Line, read_metrics
from study.config.identity import digest
from study.system import locks
from study.system.files import Damaged, read_json, read_text, read_yaml, say, write_json
from study.system.machine import has_process

if TYPE_CHECKING:  # takes longer to load than a help may take
    import pyarrow as pa

    from study.cell.parts import Part

State = Literal["new", "running", "done", "failed", "killed"]
STATES: tuple[State, ...] = ("new", "running", "done", "failed", "killed")
SILENT_S = 60.0
"""Seconds for which a cell may be silent."""
_WRITING = threading.Lock()


class Status(TypedDict, total=False):
    """What ``status.json`` says of a cell: how far it is, its signs of life, and how it ended."""

    state: State
    step: int
    steps: int
    stopped_at: int
    """Step at which an alarm ended it."""
    seconds: float
    """Of all its processes together."""
    started: float
    ended: float
    """Seconds since 1970, as `beat`."""
    exit_code: int
    pid: int
    beat: float
    tokens: int
    """Of all completions."""
    host: str
    error: str
    tracking_problem: str
    phase: str
    throttled: str
    """What an endpoint holds back, while it does; else empty."""
    cell: str
    training: str
    spent: dict[str, list[float]]
    """`study.system.spent.Spent.plain` of all its processes together."""


_WORDS = (
    *("state", "host", "error", "tracking_problem", "phase", "throttled", "cell", "training"),
)
_NUMBERS = Status.__annotations__.keys() - {*_WORDS, "spent"}


@dataclass(frozen=True, order=True)
class CellFolder(os.PathLike[str]):
    """Where a cell lives, by the path of its folder."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))  # as a Path may be made of a Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """JUDGE-sSEED-DIGITS."""
        return self.path.name

    @property
    def id(self) -> str:
        """The digits of the config that it was made for; its name if that has none."""
        return signature.cell_id(self.path)

    @property
    def training(self) -> str:
        """Which training of the cell its records are of: `study.cell.signature.training_of`."""
        return signature.training_of(self.path)

    @property
    def study_dir(self) -> Path:
        """The folder of the study."""
        return self.path.parent

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self / "checkpoints"

    def config(self, remedy: str = "") -> dict[str, Any]:
        """The resolved config that was saved here.
        Raises FileNotFoundError: there is none. Raises Damaged: it cannot be read, with what to do
        (``remedy``)."""
        return read_yaml(self / "config.yaml", remedy)

    def status(self, problems: list[str] | None = None) -> Status:
        """Its status; an empty one where it has none. What is damaged is said, or added to
        ``problems``, and made again from the records: the next change of status writes it."""
        path = self / "status.json"
        name = f"{self.name}/{path.name}"
        try:
            content = read_json(path)
            if origin := signature.other_origin(self.path, content):
                raise Damaged(path, f"is of {origin}")
            wrong = sorted(key for key, value in content.items() if not _fits(key, value))
            if not wrong:
                return cast(Status, content)
            why = f"{name} holds {', '.join(f'{key}={content[key]!r:.40}' for key in wrong)}"
        except Damaged as error:
            content, wrong, why = {}, [], f"{name} is damaged: it {error.why}"
        # A cell that has records was running when it last wrote: whether it still is, its lock says
        lines = self.lines()
        step = max((line["step"] for line in lines), default=0)
        again = {"state": "running" if lines else "new", "step": step}
        problem = f"{why}; read from the records instead: step {step}."
        say(problem) if problems is None else problems.append(problem)
        kept = {key: value for key, value in content.items() if key not in wrong}
        return cast(Status, again | kept)

    def set_status(self, **changes: Unpack[Status]) -> None:
        """Merge ``changes`` into the status, for whoever holds the cell. The records can restore
        it, so it is not synced to the disk. Any thread may."""
        with _WRITING:
            status = {**self.status(), **changes, "cell": self.id}
            status.setdefault("training", self._logged_training() or secrets.token_hex(4))
            write_json(self / "status.json", status, durable=False, signed=True)

    def _logged_training(self) -> str:
        return next(filter(None, (line.get("training") for line in self.lines())), "")

    def lock(self, wait_s: float = 0.0) -> IO[str] | None:
        """Hold the cell for the life of the returned file, or None where another process does so
        for longer than ``wait_s``; who asks for a cell's state holds its lock for a moment."""
        self.path.mkdir(parents=True, exist_ok=True)
        return locks.take(self / LOCK, wait_s)

    def is_done(self) -> bool:
        """Whether the cell has come to its end; it stays so, and nothing of it is written again."""
        return (self / "DONE").exists()

    def state(self, status: Status | None = None, by_beat: bool = False) -> State:
        """new, running, done, failed or killed; a cell whose process is gone was killed.

        Args:
            status: of `status`, where it was read already.
            by_beat: for who only looks: a cell that beats runs, and no lock is made or held.
        """
        status = self.status() if status is None else status
        if (state := self.state_of_held(status)) != "killed":
            return state
        if self.runs_elsewhere():
            return "running"
        if by_beat:
            beats = status.get("state") != "killed" and _beats(status)
            return "running" if beats or locks.is_held(self / LOCK) else "killed"
        try:
            lock = self.lock()
        except OSError:  # a folder that may only be read: nobody runs in it
            return "killed"
        if lock is None:
            return "running"
        with lock:
            return self.state_of_held()

    def state_of_held(self, status: Status | None = None) -> State:
        """The state where the caller holds the lock: done, failed, new or killed."""
        if self.is_done():
            return "done"
        state = (self.status() if status is None else status).get("state", "new")
        # DONE comes after the status that says it
        return "killed" if state in ("running", "done") else state

    def runs_elsewhere(self) -> bool:
        """Whether another machine ran it when its study was fetched, and may still do so."""
        return places.runs_elsewhere(self.path)

    def other_config(self, config: Mapping[str, Any]) -> str:
        """Why a saved config is not the one that the folder was made for, or is that of another
        study; empty where it is the cell's."""
        try:
            digits = digest(config)
            judge, seed = config.get("judge", {}).get("name"), config.get("seed")
        except (TypeError, ValueError, AttributeError) as error:
            return f"is not the config of a cell ({type(error).__name__})"
        name = f"{judge}-s{seed}-{digits}"
        if self.name != name and re.fullmatch(r".+-s-?\d+-[0-9a-f]{10}", self.name):
            return f"is the config of the cell {name}"
        try:
            study = read_json(self.study_dir / "study.json").get("study")
        except Damaged:
            return ""
        if study and config.get("study") not in (None, study):
            return f"is of a cell of the study {config['study']!r:.60}, but is saved in {study}"
        return ""

    def other_end(self, status: Status) -> str:
        """What its status says against its DONE; empty where they agree."""
        state, step = status.get("state", "nothing"), status.get("step")
        if not self.is_done():
            return "says done, but the file DONE is missing" if state == "done" else ""
        if state not in ("done", "running"):  # running: it was made again from the records
            return f"says {state}, but the file DONE exists"
        last = status.get("stopped_at", status.get("steps", step))
        return f"says step {step} of {last}, but the file DONE exists" if step != last else ""

    def lines(self, problems: list[str] | None = None) -> list[Line]:
        """The steps in its ``metrics.jsonl``. Lines that are no steps are left out, and a sentence
        on each is added to ``problems``."""
        lines, wrong = read_metrics(self.path)
        if problems is not None:
            problems += wrong
        return lines

    def parts(self, kind: str) -> list[Part]:
        """What it has on record of a kind, such as ``rollouts``, a part for each step."""
        from study.cell.parts import parts

        return parts(self / kind)

    def records(
        self,
        kind: str,
        columns: Sequence[str] | None = None,
        steps: Collection[int] | None = None,
        lost: list[Damaged] | None = None,
    ) -> Iterator[tuple[Part, pa.Table]]:
        """The rows that it has of a kind, in the order of steps: `study.cell.parts.read_all`."""
        from study.cell.parts import read_all

        return read_all(self / kind, columns, steps, lost)

    @property
    def url(self) -> str:
        """Of which URL it is the copy; empty for a folder of this machine alone."""
        return places.url_of(self.path)

    def refresh(self) -> None:
        """Bring it to what another machine has sent, unless it runs here.
        Raises StorageError: that cannot be fetched."""
        if self.url and (lock := self.lock()) is not None:
            with lock:
                exchange.pull(self.path)

    def push(self, ended: bool = False) -> None:
        """Send what changed to its URL, if it has one; ``ended`` is as `exchange.push` says.
        Raises StorageError: it cannot be sent."""
        exchange.push(self.path, ended)

    def push_if_new(self) -> None:
        """Send a cell of which nothing was sent yet, so that other machines find it.
        Raises StorageError: it cannot be sent."""
        if self.url and not exchange.read_note(self.path):
            self.push()

    def find(self) -> None:
        """Fetch a cell that another machine has laid, where it is not here yet.
        Raises StorageError: it cannot be fetched."""
        if not (self / "config.yaml").exists():
            self.refresh()


def _beats(status: Status) -> bool:
    """Whether a cell gave a sign of life, and its process, if it is of this host, is there."""
    here = status.get("host") == socket.gethostname()
    alive = time.time() - status.get("beat", 0.0) <= SILENT_S
    return alive and (not here or has_process(status.get("pid")))


def _fits(key: str, value: Any) -> bool:
    if key == "state":
        return value in STATES
    if key in _NUMBERS:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and 0 <= abs(value) < 1 << 53
    if key == "spent":
        return isinstance(value, dict)
    return isinstance(value, str) if key in _WORDS else True


def study_cells(study_dir: Path) -> list[CellFolder]:
    """The folders of a study that hold a cell, by name; copies of one are left out."""
    return sorted(same_cells(study_dir))


def same_cells(study_dir: Path) -> dict[CellFolder, list[CellFolder]]:
    """Cell -> copies of its folder: folders with the very same config or digits, of longer names. A
    link is the copy of the folder that it leads to, whatever its name."""

    def order(path: Path) -> tuple[bool, bool, int, Path]:
        folder = path.parent
        return folder.is_symlink(), path.is_symlink(), len(folder.name), path

    groups: dict[str, list[CellFolder]] = {}
    for path in sorted(study_dir.glob("*/config.yaml"), key=order):
        folder = CellFolder(path.parent)
        try:
            text = read_text(path)
        except Damaged:
            text = str(path.resolve())  # nobody's copy
        group = groups.get(text) or groups.get(folder.id) or []
        group.append(folder)
        groups[text] = groups[folder.id] = group
    return {group[0]: group[1:] for group in groups.values()}
