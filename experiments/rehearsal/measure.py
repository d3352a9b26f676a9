"""What a rehearsed size took: verdicts, tokens, dollars, bytes, files, memory, and what broke."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import analysis
from experiments.launch.run import REPORT
from experiments.rehearsal.endpoint import address, read_log
from experiments.rehearsal.scale import NAME
from experiments.studies.sizes import size
from judges.ask import stored
from judges.ask.replies import FILE
from study.cell.cells import Cell, judges_of
from study.cell.records import CALLS, EVALUATIONS
from study.system.files import Damaged, read_json, write_json

LOG, MEMORY, REPORT_TIME = "requests.jsonl", "memory.json", "report.json"
LOOK_S = 0.5
TEXTS = {"rollouts": ("prompt", "completion", "answer"), "verdicts": ("text", "reasoning")}
WORKING = (".cache",)
"""Folders of a size that a study at full size has no part in."""
DATABASE = ".db"
LOGS = (f"{DATABASE}-wal", f"{DATABASE}-shm")
"""Ends of names of SQLite's working files, which come and go with whoever reads."""


@dataclass
class Use:
    """What one model was asked, and what became of it."""

    verdicts: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    """Requests of the verdicts on record, or of the operators of programs."""
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    """By outcome, as the endpoint noted them."""
    seconds: list[float] = field(default_factory=list)
    """Of each request that was answered or waited for, at full size."""
    request_tokens: list[tuple[int, int]] = field(default_factory=list)
    """In and out, of the same."""


@dataclass(frozen=True)
class Measured:
    """One size of a rehearsal."""

    rollouts_a_step: int
    cells: int
    rollouts: int
    """On record, of all cells."""
    expected: int
    """Rollouts of cells that are done to their end."""
    uses: Mapping[str, Use]
    """By `experiments.rehearsal.endpoint.address` of the real model."""
    disk: int
    """Bytes of the runs folder."""
    text: int
    """Bytes of the texts on record, before they are compressed."""
    verdicts: int
    """Of these rollouts, on record, of all judges."""
    verdict_bytes: int
    """Bytes of the records that hold them."""
    replies: int
    """In the store."""
    reply_bytes: int
    """Bytes of the store."""
    files: int
    memory: int
    """Bytes of the largest process of a cell."""
    report_s: float | None
    """CPU seconds to write the report; None where it was not written."""
    broken: tuple[str, ...]
    """What did not go as it should, a sentence each."""


class MemoryWatch:
    """Looks at the processes of cells while they run, in a thread; a context manager. The largest
    is kept in a file, so that a rehearsal that was killed goes on with it."""

    def __init__(self, todo: Sequence[Cell], file: Path) -> None:
        self._todo, self._file = todo, file
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        most = int(read_json(self._file).get("bytes", 0))
        while not self._ended.wait(LOOK_S):
            for cell in self._todo:
                status = cell.folder.status([]) if not cell.folder.is_done() else {}
                if status.get("state") == "running" and "pid" in status:
                    most = max(most, peak_of(status["pid"]))
            write_json(self._file, {"bytes": most}, durable=False)


def peak_of(pid: int) -> int:
    """Bytes that a process had in memory at most; 0 where it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    match = re.search(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def measured(todo: Sequence[Cell], real: Sequence[Cell], runs_dir: Path) -> Measured:
    """What the cells of one size took.

    Args:
        todo: the cells of the size.
        real: those of the study at full size, whose models they name.
    """
    trainer = todo[0].config.trainer
    names = {f"{NAME}{each.name}": address(each) for each in judges_of(real)}
    executor = address(real[0].config.executor)
    uses: dict[str, Use] = defaultdict(Use)
    broken: list[str] = []
    damaged: list[Damaged] = []
    rollouts = text = verdicts = verdict_bytes = 0
    for cell in todo:
        recorded = 0
        for kind in ("rollouts", f"{EVALUATIONS}/rollouts"):
            for _, table in cell.folder.records(kind, lost=damaged):
                recorded += table.num_rows * (kind == "rollouts")
                text += _text(table, TEXTS["rollouts"])
        rollouts += recorded
        wanted = trainer.steps * trainer.prompts_per_step * trainer.group_size
        if recorded != wanted:
            broken.append(f"{cell.name} has {recorded} of {wanted} rollouts on record")
        verdict_bytes += size(cell.folder / "verdicts")
        for kind in ("verdicts", f"{EVALUATIONS}/verdicts"):
            for _, table in cell.folder.records(kind, lost=damaged):
                text += _text(table, TEXTS["verdicts"])
                verdicts += table.num_rows * (kind == "verdicts")
                _add(uses, table, names)
        for _, table in cell.folder.records(CALLS, lost=damaged):
            _add_calls(uses[executor], table)
        if (state := cell.folder.state()) != "done":
            broken.append(f"{cell.name} is {state}: {cell.folder.status([]).get('error', '')}")
    for line in read_log(runs_dir / LOG):
        use = uses[line["model"]]
        use.requests[line["outcome"]] += 1
        if line["outcome"] != "rate_limited":
            use.seconds.append(line["seconds"])
            use.request_tokens.append((line["tokens_in"], line["tokens_out"]))
    broken += [str(each) for each in damaged]
    report_s = read_json(runs_dir / REPORT_TIME).get("seconds")
    if report_s is None and todo[0].config.sweep.report:
        broken.append("the report was not written")
    disk, files = _disk(runs_dir)
    store = runs_dir / FILE
    return Measured(
        rollouts_a_step=trainer.prompts_per_step * trainer.group_size,
        cells=len(todo),
        rollouts=rollouts,
        expected=len(todo) * trainer.steps * trainer.prompts_per_step * trainer.group_size,
        uses=dict(uses),
        disk=disk,
        text=text,
        verdicts=verdicts,
        verdict_bytes=verdict_bytes,
        replies=stored.count(store) if store.exists() else 0,
        reply_bytes=_bytes(store),
        files=files,
        memory=int(read_json(runs_dir / MEMORY).get("bytes", 0)),
        report_s=report_s,
        broken=tuple(broken),
    )


def _add(uses: dict[str, Use], table: Any, names: Mapping[str, str]) -> None:
    columns = ("judge", "outcome", "attempts", "tokens_in", "tokens_out", "cost_usd")
    for judge, outcome, attempts, tokens_in, tokens_out, usd in zip(
        *(table[name].to_pylist() for name in columns), strict=True
    ):
        if judge not in names:
            continue
        use = uses[names[judge]]
        use.verdicts += 1
        if outcome != "scored":
            use.missing[outcome] += 1
        use.attempts += attempts or 0
        use.tokens_in += tokens_in or 0
        use.tokens_out += tokens_out or 0
        use.usd += usd or 0.0


def _add_calls(use: Use, table: Any) -> None:
    """Add the calls of operators in steps; those of evaluations are not in proportion to steps."""
    columns = ("attempts", "tokens_in", "tokens_out", "cost_usd")
    for attempts, tokens_in, tokens_out, usd in zip(
        *(table[name].to_pylist() for name in columns), strict=True
    ):
        use.attempts += attempts or 0
        use.tokens_in += tokens_in or 0
        use.tokens_out += tokens_out or 0
        use.usd += usd or 0.0


def _text(table: Any, columns: Sequence[str]) -> int:
    present = [name for name in columns if name in table.column_names]
    texts = chain.from_iterable(table[name].to_pylist() for name in present)
    return sum(len(text.encode()) for text in texts if text)


def time_report(todo: Sequence[Cell], file: Path) -> None:
    """Write the report of a study that is done once more, what is imported and composed once being
    there, and note its seconds of CPU in ``file``; once for all."""
    done = all(cell.folder.is_done() for cell in todo)
    study_dir = todo[0].folder.study_dir
    if file.exists() or not done or not (study_dir / REPORT).exists():
        return
    began = time.process_time()
    analysis.write_report(study_dir)
    write_json(file, {"seconds": time.process_time() - began})


def _disk(runs_dir: Path) -> tuple[int, int]:
    """Bytes and number of files of a runs folder."""
    skipped = {*WORKING, LOG, MEMORY, REPORT_TIME}
    kept = [path for path in runs_dir.iterdir() if path.name not in skipped]
    kept = [path for path in kept if not path.name.endswith(LOGS)]
    files = sum(
        sum(len(names) for _, _, names in os.walk(path)) if path.is_dir() else 1 for path in kept
    )
    return sum(map(_bytes, kept)), files


def _bytes(path: Path) -> int:
    """What a file or a folder takes; a database with the rows that are still in its log, so that
    it does not matter who has read it."""
    if path.suffix != DATABASE or not path.is_file():
        return size(path)
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        return pages * page_bytes
