"""Finds damage in the folders of a study: one sentence for each file that is not as it should be.

Of a part only its first and last bytes are looked at, which is fast enough for a plan; damage
inside it is found when it is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import xxhash

from study.cell.cells import Cell, save_config
from study.cell.folder import CellFolder, same_cells
from study.cell.parts import opened, parts, span_of
from study.cell.records import (
    DRAWN,
    EVALUATIONS,
    KINDS,
    METRICS,
    Line,
    items_file,
    step_of,
    where,
)
from study.config.identity import identifying
from study.finding import Finding, note
from study.system.files import Damaged, read_json, read_text

MAGIC = b"PAR1"
FORMS: dict[str, dict[str, type]] = {
    "environment.json": {"git": dict, "packages": dict, "sandbox": str},
    "mlflow.json": {
        **dict.fromkeys(("uri", "experiment_id", "parent_run_id", "run_id"), str),
        "sent": int,
    },
}
"""Files that a run can do without, and the kinds of what they hold."""


def check_records(study_dir: Path, cells: Iterable[Cell | CellFolder]) -> Iterator[Finding]:
    """Note what is wrong in a study: in its folder, and in these cells of it."""
    for sentences in itertools.chain([strangers(study_dir)], map(unsound, cells)):
        yield from (note("records", sentence) for sentence in sentences)


def mend(cell: Cell) -> None:
    """Write a damaged config or status of an existing cell again: the first from the command that
    names the cell, the second from its records."""
    problems: list[str] = []
    cell.folder.status(problems)
    try:
        wrong_config = identifying(cell.folder.config()) != identifying(cell.data)
    except FileNotFoundError:
        wrong_config = cell.folder.path.is_dir()
    except Damaged:
        wrong_config = True
    cell_lock = cell.folder.lock() if problems or wrong_config else None
    if cell_lock is not None:
        with cell_lock:
            if wrong_config:
                save_config(cell)
            if problems:
                cell.folder.set_status()


def strangers(study_dir: Path) -> list[str]:
    """Folders of a study that look like cells and are left out."""
    sentences = [
        f"{copy.name} has the config of {cell.name}: it is a copy and is left out."
        for cell, copies in same_cells(study_dir).items()
        for copy in copies
    ]
    for path in sorted(study_dir.glob("*/")):
        if (path / "config.yaml").exists() or path.name in ("replays", "report"):
            continue
        if any((path / name).exists() for name in (*KINDS, METRICS, "status.json", "DONE")):
            sentences.append(
                f"{path.name} has records but no config.yaml, so it is left out. Rerun the command"
                " that made it to write its config again."
            )
    return sentences


def unsound(cell: Cell | CellFolder) -> list[str]:
    """What in a cell's folder is damaged or not the cell's."""
    folder = cell.folder if isinstance(cell, Cell) else cell
    sentences: list[str] = []
    if not folder.path.is_dir():
        return sentences
    try:
        config = folder.config()
        if isinstance(cell, Cell) and identifying(config) != identifying(cell.data):
            sentences.append(
                f"{where(folder / 'config.yaml')} is not the config of this folder; this command"
                " writes it again."
            )
        elif why := folder.other_config(config):
            sentences.append(f"{where(folder / 'config.yaml')} {why}.")
    except FileNotFoundError:
        pass
    except Damaged as error:
        sentences.append(f"{where(error.path)} is damaged: it {error.why}.")
    if why := folder.other_end(folder.status(sentences)):
        sentences.append(f"{where(folder / 'status.json')} {why}.")
    for name in FORMS:
        try:
            read_form(folder / name)
        except Damaged as error:
            sentences.append(f"{where(error.path)} is damaged: it {error.why}.")
    problems: list[str] = []
    lines = folder.lines(problems)
    sentences += [f"{problem}." for problem in problems]
    for kind in KINDS:
        sentences += _unsound_parts(folder / kind, lines)
        sentences += _unsound_parts(folder / EVALUATIONS / kind, lines)
    sentences += _altered_items(folder, lines)
    made = {line["step"] for line in lines}
    steps = _steps_of(folder / "rollouts")
    last = max(steps, default=0)  # of a run that goes on it may have no line yet
    if more := sorted(step for step in steps - made if step < last or folder.is_done()):
        sentences.append(f"{where(folder / METRICS)} has no line of step {_listed(more)}.")
    return sentences


def _altered_items(folder: CellFolder, lines: Iterable[Line]) -> list[str]:
    """Evaluations whose answers are not those that the line of their step is of."""
    sentences = []
    for line in lines:
        if digest := line.get("evaluated"):
            path = items_file(folder.path, line["step"])
            try:
                altered = xxhash.xxh3_64_hexdigest(read_text(path).encode()) != digest
            except (FileNotFoundError, Damaged):
                altered = True
            if altered:
                sentences.append(f"{where(path)} is not what was written.")
    return sentences


def _unsound_parts(folder: Path, lines: Sequence[Line]) -> list[str]:
    if not folder.is_dir():
        return lost_steps(folder, lines)
    sentences = foreign_parts(folder)
    for path in sorted(folder.iterdir()):
        why = _outside(path) if step_of(path) is not None else ""
        if span_of(path) and (damage := opened(path).damage):
            why = damage.why
        if why:
            sentences.append(f"{where(path)} is damaged: it {why}.")
    return sentences + lost_steps(folder, lines)


def lost_steps(folder: Path, lines: Sequence[Line] | None = None) -> list[str]:
    """A sentence where a kind of records lacks steps: those that a line of metrics is of, that are
    before its last, or that have records of the other kind. The last step of a run that goes on may
    be being written. A kind that another program left empty lacks none.

    Args:
        lines: the cell's metrics, where they were read before.
    """
    held_out = folder.parent.name == EVALUATIONS
    cell = CellFolder(folder.parent.parent if held_out else folder.parent)
    name = f"{cell.name}/{folder.relative_to(cell)}"
    done, there = cell.is_done(), _steps_of(folder)
    on_record = {step for kind in KINDS for step in _steps_of(folder.with_name(kind))}
    last = max(on_record, default=0)
    if done and not held_out:
        last = max(last, int(cell.status([]).get("step", 0)))
    expected = on_record if held_out else set(range(1, last + 1))
    expected = {step for step in expected if done or step < last} | _logged(
        cell.lines() if lines is None else lines, held_out
    )
    if not folder.is_dir():
        return [f"{name} is gone."] if expected else []
    missing = sorted(expected - there) if there or cell.training else []
    return [f"{name} has no part of step {_listed(missing)}."] if missing else []


def _logged(lines: Sequence[Line], held_out: bool) -> set[int]:
    """The steps whose rollouts, or drawn answers to held-out rows, a line of metrics is of."""
    if not held_out:
        return {line["step"] for line in lines if line["step"]}  # step 0 is before the first
    return {
        line["step"] for line in lines if any(name.startswith(DRAWN) for name in line["metrics"])
    }


def _steps_of(folder: Path) -> set[int]:
    """The steps on record; of a merged file that cannot be read, those in its name."""
    steps: set[int] = set()
    for part in parts(folder) if folder.is_dir() else ():
        unread = part.merged is not None and part.group is None
        first, last = (span_of(part.path) if unread else None) or (part.step, part.step)
        steps.update(range(first, last + 1))
    return steps


def read_form(path: Path) -> dict[str, object]:
    """`read_json` of a file in `FORMS`, whose values must be of their kinds.
    Raises Damaged: they are not."""
    content = read_json(path)
    for key, kind in FORMS[path.name].items():
        if key in content and not isinstance(content[key], kind):
            raise Damaged(path, f"holds {key}={content[key]!r:.40}")
    return content


def foreign_parts(folder: Path) -> list[str]:
    """Files among the parts that are not parts, such as copies. A part that was being written when
    its run was killed is not reported."""
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    others = [path for path in names if step_of(path) is None and span_of(path) is None]
    return [
        f"{where(path)} is not part of the records and is left out."
        for path in others
        if not path.name.startswith(".") and path.suffix != ".tmp"
    ]


def _outside(path: Path) -> str:
    try:
        if not path.is_file():
            return "is not a regular file"
        with path.open("rb") as file:
            if not (size := file.seek(0, 2)):
                return "is empty"
            file.seek(0)
            first = file.read(4)
            file.seek(max(0, size - 4))
            whole = size >= 12 and first == MAGIC == file.read(4)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "" if whole else "is not a whole Parquet file"


def _listed(steps: list[int]) -> str:
    first_steps = ", ".join(map(str, steps[:5]))
    return f"{first_steps} and {len(steps) - 5} others" if len(steps) > 5 else first_steps
