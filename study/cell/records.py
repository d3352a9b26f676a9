"""The records of a run: its completions and verdicts as one Parquet file (a part) per step.

`study.cell.parts` reads them, and `study.cell.merged` makes one file of the parts of a run that has
ended. A part is written to a temporary name and renamed, so a reader never sees half of one, and
its pages carry checksums. Metrics go to ``metrics.jsonl`` with the time at which the step was first
recorded: a step that is redone after a crash keeps its time, so that logging it twice stores it
once.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

import xxhash

from study.cell.signature import (
    METRICS,
    SIGNED,
    Hashed,
    cell_id,
    is_altered,
    other_origin,
    training_of,
)
from study.system.files import (
    Damaged,
    append_line,
    say,
    sync_files,
    write_bytes,
    write_text,
)
from study.system.tables import table

if TYPE_CHECKING:  # takes longer to load than a help may take, and most commands only read metrics
    import pyarrow as pa

KINDS = ("rollouts", "verdicts")
"""The folders of parts in a cell."""
CALLS = "calls"
"""The folder of parts with operator calls, in a cell whose completions are programs."""
MISSING = "missing"
"""The folder, with `KINDS` in it, of steps that stopped their run because too many verdicts were
missing. Nothing was learned from them, so they are not part of the run, but their cost counts."""

_COLUMNS = table(__file__)
_KINDS = ("rollout", "verdict", "optional", "call")
ROLLOUT, VERDICT, OPTIONAL, CALL = (_COLUMNS[name] for name in _KINDS)
PLACE = ("rollout_id", "step", "prompt_id", "group", "member")
"""Rollout columns that say which rollout it is."""
ORIGIN = ("dataset", "domain", "item")
"""Optional rollout columns that say where its row is from, as `study.rows.Row` names them."""
REPLAYED = {
    **{name: ROLLOUT[name] for name in (*PLACE, "judge_score", "reward", "advantage")},
    **dict.fromkeys(("original_score", "original_reward", "original_advantage"), "float64"),
}
"""Columns of a rollout that another judge or failure policy has scored again."""
NEVER_MISSING = ("step", "group", "member", "sample_index", "call")
"""Whole numbers that every row has; others may be missing, and are read as NaN then."""
FORMER = {
    **{f"system/{name}": f"time/{name}" for name in ("step_s", "judge_s", "world_s", "reward_s")},
    **{f"system/{name}": f"time/{name}" for name in ("truth_s", "rules_s", "eval_s")},
    "system/shared_prefix": "trainer/shared_prefix",
}
"""Name of a metric in older studies -> its name now, under which it is read."""
COMPONENT = "component/"
"""Prefix of the extra rollout columns that hold the parts of a composed reward."""
CORRECTED = f"{COMPONENT}corrected"
"""Rollout column with the score that `study.rewards.corrections` made of the judges'."""
FEATURE = "feature/"
"""Prefix of those that hold what was measured of an executed program."""
EVALUATIONS = "evaluations"
"""The folder of held-out answers in a cell: a JSONL for each evaluated step, and with
``trainer.eval_samples`` also parts of `KINDS` and `CALLS`, in which a group is a row and member 0
the greedy answer."""
EVAL_COST = ("cost/eval_calls", "cost/eval_usd")
"""Metrics: requests that an evaluation sent to judges and executor, and US dollars paid for them.
"""
HELD_OUT, OVERALL = "eval/averages/", ("by_dataset", "by_domain")
"""How metrics of held-out accuracy begin; a domain's name follows, or one of `OVERALL`."""
DRAWN = "eval/frozen/"
"""How metrics begin that are means over an evaluation's parts."""


Rows = Sequence[Mapping[str, object]]
"""Rows by the names of their columns."""


class CallRow(TypedDict):
    """A row of the tables of operator calls."""

    call: int
    """Its place among the calls of the rollout."""
    operator: str
    ok: bool
    error: str
    model_calls: int
    tokens_in: int | None
    tokens_out: int | None
    attempts: int
    cost_usd: float | None
    keys: list[str]
    rollout_id: NotRequired[str]
    step: NotRequired[int]


class Origin(TypedDict, total=False):
    """What a line of metrics says of itself; one of an older version says less."""

    cell: str
    training: str
    evaluated: str
    """Digest of the evaluation's answers."""
    digest: str
    """Of the line."""


class Line(Origin):
    """A step in ``metrics.jsonl``."""

    step: int
    time_ms: int
    """When it was first recorded, since 1970."""
    metrics: dict[str, float | None]


def rollout_id(step: int, row: int) -> str:
    """Name of a rollout inside its cell; the same in ``rollouts/`` and ``verdicts/``."""
    return f"{step:06d}-{row:04d}"


def read_metrics(folder: Path) -> tuple[list[Line], list[str]]:
    """The steps in a cell's ``metrics.jsonl``, and a sentence on each line that is not a step.

    A step that stands there twice is returned once, as it was written last. Of a line that a crash
    cut, nothing is read; the lines after it are.
    """
    path = folder / METRICS
    if not path.is_symlink() and not path.exists():
        return [], []
    try:
        # as bytes: where one line is not UTF-8, the others still are
        lines = path.read_bytes().split(b"\n") if path.is_file() else None
        problem = "is not a regular file"
    except OSError as error:
        lines, problem = None, f"cannot be read ({error.strerror or error})"
    if lines is None:
        return [], [f"{where(path)}: it {problem}; its steps are left out"]
    steps: dict[int, Line] = {}
    problems = []
    signed = False  # what comes behind a signed line is signed
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if is_altered(line):
            problems.append(f"{where(path)} line {number} was altered and is left out")
        elif (content := step_line(line)) is None:
            problems.append(f"{where(path)} line {number} is not a step and is left out")
        elif origin := other_origin(folder, content):
            problems.append(f"{where(path)} line {number} is of {origin} and is left out")
        elif "digest" not in content and (signed or "training" in content):
            problems.append(f"{where(path)} line {number} is unsigned and is left out")
        else:
            steps[content["step"]] = content
            signed |= "digest" in content
    return list(steps.values()), problems


def _line_text(line: Line) -> str:
    """A step as it stands in ``metrics.jsonl``, its digest last; one that was read of a line
    without a digest gets none."""
    text = json.dumps({name: value for name, value in line.items() if name != "digest"})
    if "digest" not in line:
        return text
    digest = xxhash.xxh3_64_hexdigest(text.encode())
    return f'{text[:-1]}{SIGNED.decode()}{digest}"}}'


def step_line(line: bytes) -> Line | None:
    """A line of ``metrics.jsonl`` as the recorder writes it (step, time_ms, metrics, by the names
    that they have now, and unless it is old the cell and its digest), or None."""
    try:
        content = json.loads(line)
        whole = content["step"], content.get("time_ms", 0)
        metrics = content.get("metrics", {})
        numbers = [*whole, *(value for value in metrics.values() if value is not None)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not content.keys() <= Line.__annotations__.keys() or not all(
        type(number) is int and number >= 0 for number in whole
    ):
        return None
    for number in numbers:
        kind = type(number)
        # ints beyond what a float, Parquet or MLflow holds
        if kind is not float and (kind is not int or abs(number) >= 1 << 63):
            return None
    renamed = {FORMER.get(name, name): value for name, value in metrics.items()}
    origin = {name: str(content[name]) for name in Origin.__annotations__ if name in content}
    return Line(step=whole[0], time_ms=whole[1], metrics=renamed, **cast(Origin, origin))


class Recorder:
    """Writes one cell's records. ``after_step`` is the last step that a checkpoint holds; later
    records are of steps that will be redone and are dropped here, all but the time they were first
    made."""

    def __init__(self, folder: Path, after_step: int = 0) -> None:
        self.folder = folder
        self._loose: set[Path] = set()
        self._evaluated: dict[int, str] = {}
        lines, problems = read_metrics(folder)
        self._times = {line["step"]: line["time_ms"] for line in lines}
        self._keep_damaged(problems)
        lines_before = [line for line in lines if line["step"] <= after_step]
        write_text(self._metrics_path, "".join(_line_text(line) + "\n" for line in lines_before))
        for kind in (*KINDS, *([CALLS] if (folder / CALLS).is_dir() else [])):
            inside = folder / kind
            try:
                inside.mkdir(parents=True, exist_ok=True)
            except FileExistsError as error:
                raise Damaged(inside, "is a file and should be a folder") from error
            for path in inside.iterdir():
                unfinished = path.suffix == ".tmp" or path.name.startswith(".step-")
                if unfinished or (step_of(path) or 0) > after_step:
                    try:
                        path.unlink()
                    except (IsADirectoryError, PermissionError) as error:
                        raise Damaged(path, "is a folder and should be a file") from error

    def _keep_damaged(self, problems: list[str]) -> None:
        """Metrics that can be read only in part stay beside those that are kept of them."""
        path = self._metrics_path
        if len(problems) == 1 and path.is_file() and not path.read_bytes().endswith(b"\n"):
            return  # a crash cut the last line; its step is redone
        if problems:
            aside = path.with_name(f"{METRICS}.damaged")
            path.replace(aside)
            for problem in problems:
                say(f"{problem}; the old file is kept as {aside.name}.")

    @property
    def _metrics_path(self) -> Path:
        return self.folder / METRICS

    def lines(self) -> list[Line]:
        """The lines recorded so far."""
        return read_metrics(self.folder)[0]

    def write_step(
        self,
        step: int,
        rollouts: Rows,
        verdicts: Rows,
        metrics: dict[str, float],
        calls: Rows | None = None,
    ) -> Line:
        """Record one step whole, the metrics line last: step, time_ms, metrics. Returns that.
        ``calls`` are those of operators, None where completions are no programs."""
        tables = (rollouts, verdicts, calls)
        for path in _write_parts(self.folder, part_name(step), *tables, durable=False):
            self._loose |= {path, path.parent}
        return self.write_line(step, metrics)

    def write_line(self, step: int, metrics: dict[str, float]) -> Line:
        """Record the metrics of a step: step 0 has no more than that. Returns the line."""
        time_ms = self._times.get(step, int(time.time() * 1000))
        line = Line(step=step, time_ms=time_ms, metrics={**metrics}, cell=cell_id(self.folder))
        if training := training_of(self.folder):
            line["training"] = training
        if evaluated := self._evaluated.get(step):
            line["evaluated"] = evaluated
        append_line(self._metrics_path, _line_text({**line, "digest": ""}))
        self._loose.add(self._metrics_path)
        return line

    def write_items(self, step: int, items: Sequence[Mapping[str, Any]]) -> None:
        """Record what the rules said of each held-out row, before the line of the step."""
        text = "".join(json.dumps({"step": step, **item}) + "\n" for item in items)
        write_text(items_file(self.folder, step), text)
        self._evaluated[step] = xxhash.xxh3_64_hexdigest(text.encode())

    def write_evaluation(
        self,
        step: int,
        rollouts: Rows,
        verdicts: Rows,
        calls: Rows | None = None,
    ) -> None:
        """Record the held-out answers of a step, beside its own: see `EVALUATIONS`."""
        _write_parts(self.folder / EVALUATIONS, part_name(step), rollouts, verdicts, calls)

    def sync(self) -> None:
        """What is recorded outlives a power cut. To be called before a checkpoint is complete:
        steps after the last one are redone anyway, so none of them has to wait for the disk."""
        sync_files(sorted(self._loose))
        self._loose.clear()

    def write_missing(
        self,
        step: int,
        rollouts: Rows,
        verdicts: Rows,
        calls: Rows | None = None,
    ) -> None:
        """Record a step that nothing will be learned from, beside the run: see `MISSING`. Each try
        keeps its own parts, the first under the step's name."""
        folder = self.folder / MISSING
        tries = 1 + len(list((folder / "verdicts").glob(f"step-{step:06d}*.parquet")))
        name = part_name(step) if tries == 1 else f"step-{step:06d}-{tries}.parquet"
        _write_parts(folder, name, rollouts, verdicts, calls)


def _write_parts(
    folder: Path,
    name: str,
    rollouts: Rows,
    verdicts: Rows,
    calls: Rows | None = None,
    durable: bool = True,
) -> list[Path]:
    """Write the parts of one step; returns their paths."""
    paths = [folder / kind / name for kind in KINDS]
    write_part(paths[0], rollouts, ROLLOUT, durable)
    write_part(paths[1], verdicts, VERDICT, durable)
    if calls is not None:
        paths.append(folder / CALLS / name)
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        write_part(paths[-1], calls, CALL, durable)
    return paths


def write_part(path: Path, rows: Rows, columns: dict[str, str], durable: bool = True) -> None:
    """Write one Parquet part under its name in one rename; component and feature columns are
    added."""
    import pyarrow as pa

    extra = sorted({key for row in rows for key in row if key.startswith((COMPONENT, FEATURE))})
    optional = {name: kind for name, kind in OPTIONAL.items() if name not in columns}
    present = [item for item in optional.items() if any(item[0] in row for row in rows)]
    fields = [*columns.items(), *present, *((name, "float64") for name in extra)]
    write_rows(path, pa.Table.from_pylist(rows, schema=schema_of(fields)), durable)


def write_rows(path: Path, rows: pa.Table, durable: bool = True, whole: bool = True) -> None:
    """Write one Parquet part from a table, as `write_part` does.

    Args:
        whole: whether the file that the rows are from was signed, if they are from one.
    """
    import pyarrow.parquet as pq

    out = io.BytesIO()
    hashed = Hashed(out)
    with pq.ParquetWriter(hashed, rows.schema, write_page_checksum=True) as writer:
        writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        hashed.ends_group()
        if (step := step_of(path)) is not None:
            writer.add_key_value_metadata(hashed.signed(path, (step, step), rows.num_rows, whole))
    hashed.finish()
    write_bytes(path, out.getvalue(), durable)


def schema_of(fields: Sequence[tuple[str, Any]]) -> pa.Schema:
    """Names with Arrow types, or with the names of such types."""
    import pyarrow as pa

    return pa.schema(
        [(name, arrow_type(kind) if isinstance(kind, str) else kind) for name, kind in fields]
    )


def items_file(cell: Path, step: int) -> Path:
    """Where the greedy answers to held-out rows of a step are, a line each."""
    return cell / EVALUATIONS / f"step-{step:06d}.jsonl"


def part_name(step: int) -> str:
    """File name of a step's part."""
    return f"step-{step:06d}.parquet"


def step_of(part: Path) -> int | None:
    """The step in the name of a part; None for any other name."""
    match = re.fullmatch(r"step-(\d{6,12})\.parquet", part.name)
    step = int(match[1]) if match else None
    return step if step is not None and part.name == part_name(step) else None


def where(path: Path) -> str:
    """The path from the cell's folder on, as a reader of a message can find it."""
    depth = 3 if path.parent.name in (*KINDS, CALLS) else 2
    depth += path.parts[-depth:][0] in (EVALUATIONS, MISSING)
    return "/".join(path.parts[-depth:])


def frame_types(columns: dict[str, str]) -> dict[str, str]:
    """The pandas types of record columns: a whole number that may be missing is a float."""
    plain = {"string": "str", "bool": "bool", "float64": "float64"}
    plain |= {kind: "object" for kind in columns.values() if kind.startswith("list<")}
    plain |= dict.fromkeys(NEVER_MISSING, "int64")
    return {name: plain.get(name, plain.get(kind, "float64")) for name, kind in columns.items()}


def arrow_type(name: str) -> Any:
    """The Arrow type of a column as `ROLLOUT` and `VERDICT` name it."""
    import pyarrow as pa

    inner = name.removeprefix("list<").removesuffix(">")
    return pa.list_(pa.type_for_alias(inner)) if inner != name else pa.type_for_alias(name)
