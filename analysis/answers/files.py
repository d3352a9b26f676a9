"""Writes the answers of a study as CSV, as Parquet, or as a folder that Hugging Face's `datasets`
reads; a few thousand rows are in memory at a time.

They are one long table, a row for each verdict on each answer. An answer that no judge was asked
about has one row, without a verdict.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from analysis.answers.reading import Answers, Source
from analysis.records.frames import NUMBERS
from study.cell.records import OPTIONAL, ROLLOUT, VERDICT, arrow_type
from study.errors import UserError
from study.features import FEATURES, measured
from study.progress import each
from study.screen import CONTROLS, FORMULA, visible
from study.system.files import sync_files, write_text, writing

WHOSE = ("study", "cell", "arm", "run_judge", "seed", "set")
"""First columns: the run, the judge that it was trained under, and which of `reading.SETS`."""
ANSWER = {
    **{name: name for name in ("rollout_id", "step", "prompt_id", "group", "member")},
    **{name: name for name in ("dataset", "domain", "item", "prompt", "completion", "answer")},
    **{name: name for name in ("tokens", "stop", "logprob_sum", "reward", "advantage", "truth")},
    **{"truth_missing": "truth_missing", "judge_score": "judge_score", "program": "outcome"},
}
"""Columns of the answer, and what the records call them. Next to them stand `study.features`."""
JUDGED = {
    **{name: name for name in ("judge", "role", "judge_id", "revision", "grading")},
    **{"grading_version": "grading_version", "vote": "sample_index", "outcome": "outcome"},
    **{"score": "score", "labels": "labels", "reason": "reason", "reply": "text"},
    **{name: name for name in ("reasoning", "finish_reason", "attempts", "latency_s")},
    **{f"judge_{name}": name for name in ("tokens_in", "tokens_cached", "tokens_out")},
    **{name: name for name in ("cost_usd", "from_cache", "served_model")},
}
"""Columns of the verdict, and what the records call them."""
GAP = "gap"


def schema_of(answers: Answers) -> pa.Schema:
    """The columns of the table, in order."""
    first = [(name, "int64" if name == "seed" else "string") for name in WHOSE]
    own = [(name, {**ROLLOUT, **OPTIONAL}[column]) for name, column in ANSWER.items()]
    behaviour = [(name, "float64") for name in FEATURES]
    numbers = [(name, "float64") for name in answers.numbers()]
    judged = [(name, VERDICT[column]) for name, column in JUDGED.items()]
    judged.insert(1 + list(JUDGED).index("score"), (GAP, "float64"))
    columns = [*first, *own, *behaviour, *numbers, *judged]
    return pa.schema([(name, arrow_type(kind)) for name, kind in columns])


def tables(
    answers: Answers, schema: pa.Schema, steps: Collection[int] | None = None
) -> Iterator[pa.Table]:
    """The rows, step by step, with the columns of ``schema``: some or all of `schema_of`."""
    names, verdict_names = answer_names(schema.names), schema.names
    if GAP in schema.names:
        names, verdict_names = [*names, "truth"], [*verdict_names, "score"]
    columns = ["rollout_id", *(JUDGED[name] for name in verdict_names if name in JUDGED)]
    for source in each(answers.sources, "answers of runs", len(answers.sources)):
        for _, rollouts, verdicts in answers.judged(source, recorded(names), columns, steps):
            yield _joined(answers, source, rollouts, verdicts, schema)


def answer_names(names: Iterable[str]) -> list[str]:
    """Those of the columns that say something of the answer itself."""
    return [name for name in names if name in (*ANSWER, *FEATURES) or name.startswith(NUMBERS)]


def recorded(names: Iterable[str]) -> list[str]:
    """Columns of the recorded rollouts that it takes for these columns of the answer."""
    columns = ["answer" if name in FEATURES else ANSWER.get(name, name) for name in names]
    return list(dict.fromkeys(["rollout_id", *columns]))


def answer_columns(
    answers: Answers, source: Source, rollouts: pa.Table, names: Iterable[str]
) -> dict[str, pa.ChunkedArray | pa.Array]:
    """Columns of the run and of the answer, those of ``names``: one entry for each rollout."""
    names = list(names)
    run = (source.cell, source.arm, source.judge, source.seed, source.set)
    whose = zip(WHOSE, (answers.folder.name, *run), strict=True)
    columns = {name: pa.array([value] * len(rollouts)) for name, value in whose if name in names}
    if any(name in FEATURES for name in names):
        behaviour = measured(rollouts["answer"].to_pylist(), answers.keyword)
        columns |= {
            name: pa.array(behaviour[:, k], pa.float64(), from_pandas=True)
            for k, name in enumerate(FEATURES)
            if name in names
        }
    own = [name for name in answer_names(names) if name not in FEATURES]
    return columns | {name: _column(rollouts, ANSWER.get(name, name)) for name in own}


def difference(judged: Any, truth: Any) -> Any:
    """Score minus truth, null where either is."""
    return pc.call_function("subtract", [each.cast(pa.float64()) for each in (judged, truth)])


def _joined(
    answers: Answers,
    source: Source,
    rollouts: pa.Table,
    verdicts: pa.Table | None,
    schema: pa.Schema,
) -> pa.Table:
    """The rows of one step."""
    if verdicts is None:
        verdicts = pa.table({"rollout_id": pa.array([], pa.string())})
    votes: dict[str, list[int]] = {}
    for place, name in enumerate(verdicts["rollout_id"].to_pylist()):
        votes.setdefault(name, []).append(place)
    pairs = [
        (place, vote)
        for place, name in enumerate(rollouts["rollout_id"].to_pylist())
        for vote in votes.get(name, [None])
    ]
    places = pa.array([place for place, _ in pairs], pa.int64())
    at_vote = pa.array([vote for _, vote in pairs], pa.int64())
    names = [*schema.names, *(("truth", "score") if GAP in schema.names else ())]
    left = answer_columns(answers, source, rollouts, names)
    right = {name: _column(verdicts, column) for name, column in JUDGED.items() if name in names}
    columns = {name: _taken(values, places) for name, values in left.items()}
    columns |= {name: _taken(values, at_vote) for name, values in right.items()}
    if GAP in names:
        columns[GAP] = difference(columns["score"], columns["truth"])
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    return table[name] if name in table.column_names else pa.nulls(table.num_rows)


def _taken(values: pa.ChunkedArray | pa.Array, places: pa.Array) -> pa.ChunkedArray | pa.Array:
    """The values at these places; none at a place that is missing."""
    return values.take(places) if len(values) else pa.nulls(len(places), values.type)


pc: Any = pyarrow.compute
"""Its functions are made as it is loaded, so nothing static knows of them."""
ROWS, BYTES = 8192, 64 << 20
"""A row group is full once it has so many rows, or so many bytes."""
SHARD = 512 << 20
"""A shard of a data set's folder is full once so many bytes, uncompressed, went into it."""
SPLITS = {"train": False, "held_out": True}
"""Splits of the data set, and whether they hold the answers to held-out rows."""
_CONTROLS = "[" + "".join(f"\\x{{{code:x}}}" for code in CONTROLS) + "]"
_FORMULA = f"^[{re.escape(''.join(FORMULA))}]"


def write_csv(answers: Answers, out: Path) -> int:
    """Write one CSV file; returns how many rows it has. Lists are joined by ``;``, and a text that
    a spreadsheet would take for a formula has an apostrophe before it. What a terminal would obey
    is spelled out."""
    schema = schema_of(answers)
    plain = pa.schema(
        [
            pa.field(field.name, pa.string()) if pa.types.is_list(field.type) else field
            for field in schema
        ]
    )
    rows = 0
    with writing(out) as file, pacsv.CSVWriter(file, plain) as writer:
        for table in _groups(tables(answers, schema)):
            writer.write_table(_plain(table, plain))
            rows += table.num_rows
    return rows


def _plain(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table of texts and numbers that is safe to open in a spreadsheet and in a terminal."""
    columns = []
    for column in table.columns:
        if pa.types.is_list(column.type):
            column = pc.binary_join(column, ";")
        if pa.types.is_string(column.type):
            if pc.any(pc.match_substring_regex(column, _CONTROLS)).as_py():
                texts = (text and text.translate(CONTROLS) for text in column.to_pylist())
                column = pa.array(texts, pa.string())
            formula = pc.match_substring_regex(column, _FORMULA)
            column = pc.if_else(formula, pc.binary_join_element_wise("'", column, ""), column)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def write_parquet(answers: Answers, out: Path) -> int:
    """Write one Parquet file; returns how many rows it has."""
    schema = schema_of(answers)
    rows = 0
    with writing(out) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in _groups(tables(answers, schema)):
            writer.write_table(table)
            rows += table.num_rows
    return rows


def write_hf(answers: Answers, out: Path) -> int:
    """Write a folder that ``datasets.load_dataset`` reads and that can be uploaded to the Hub as
    it is: Parquet shards by split, and a card. Returns how many rows it has."""
    schema = schema_of(answers)
    counts: dict[str, int] = {}
    with new_folder(out) as folder:
        (folder / "data").mkdir()
        for split, held_out in SPLITS.items():
            if any(source.held_out is held_out for source in answers.sources):
                some = _groups(tables(answers.of(held_out=held_out), schema))
                counts[split] = _shards(some, schema, lambda n, s=split: f"{s}-{n:05d}", folder)
        write_text(folder / "README.md", _card(answers, counts))
    return sum(counts.values())


def _shards(
    groups: Iterable[pa.Table], schema: pa.Schema, name: Callable[[int], str], folder: Path
) -> int:
    """Write row groups into one Parquet file after the other; returns how many rows they have."""
    rows, number, size = 0, 0, 0
    writer: pq.ParquetWriter | None = None
    try:
        for table in groups:
            if writer is None or size > SHARD:
                if writer is not None:
                    writer.close()
                path = folder / "data" / f"{name(number)}.parquet"
                writer, number, size = (
                    pq.ParquetWriter(path, schema, compression="zstd"),
                    number + 1,
                    0,
                )
            writer.write_table(table)
            rows += table.num_rows
            size += table.nbytes
    finally:
        if writer is not None:
            writer.close()
    return rows


def _card(answers: Answers, counts: dict[str, int]) -> str:
    """The data set's card; its head tells `datasets` which files are which split."""
    files = [
        line
        for split, rows in counts.items()
        if rows
        for line in (f"  - split: {split}", f"    path: data/{split}-*.parquet")
    ]
    splits = ", ".join(f"{rows:,} rows in `{split}`" for split, rows in counts.items())
    head = ["---", "configs:", "- config_name: default", "  data_files:", *files, "---"]
    text = [
        f"# Answers of the study {answers.folder.name}",
        "",
        f"One row for each verdict of a judge on each answer: {splits}.",
        "An answer without a judge's request has one row without a verdict. A score that could",
        "not be had is null, and `outcome` and `reason` say why. Written by judgedrift.",
    ]
    if answers.problems:
        problem_lines = [visible(problem).replace("`", "'") for problem in answers.problems]
        text += ["", "## What could not be read", "", "```text", *problem_lines, "```"]
    return "\n".join([*head, "", *text, ""])


def _groups(steps: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of many steps."""
    batch: list[pa.Table] = []
    rows = size = 0
    for table in steps:
        batch.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= ROWS or size >= BYTES:
            yield pa.concat_tables(batch)
            batch, rows, size = [], 0, 0
    if batch:
        yield pa.concat_tables(batch)


@contextlib.contextmanager
def new_folder(out: Path) -> Generator[Path]:
    """A folder that is ``out`` when the block ends, and goes away where it fails."""
    unfinished_folder = Path(tempfile.mkdtemp(dir=out.absolute().parent, prefix=f".{out.name}."))
    with contextlib.ExitStack() as unfinished:
        unfinished.callback(shutil.rmtree, unfinished_folder, ignore_errors=True)
        yield unfinished_folder
        os.chmod(unfinished_folder, 0o755)
        with contextlib.suppress(FileNotFoundError):
            out.rmdir()
        unfinished_folder.rename(out)
        unfinished.pop_all()
    sync_files([out.absolute().parent])


def check_new(key: str, out: Path) -> None:
    """Refuse a place where no new folder can be made.
    Raises UserError: something is there, or the folder around it is not."""
    around = out.absolute().parent
    wrong = ""
    if out.is_dir() and any(out.iterdir()):
        wrong = f"it is a folder that holds files. Name a new one, or type: rm -r {out}"
    elif out.exists() and not out.is_dir():
        wrong = "it is a file, but this format writes a folder. Name a new folder"
    elif not around.is_dir():
        wrong = f"there is no folder {around}. Type: mkdir -p {around}"
    elif not os.access(around, os.W_OK):
        wrong = f"{around} is not writable. Name another folder"
    if wrong:
        raise UserError(f"{key}={out} cannot be written: {wrong}.")
