"""The answers of a study as one long table: a row for each verdict on each answer.

An answer that no judge was asked about has one row, without a verdict. Two tables are in memory at
a time, of one step each.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from analysis.answers.reading import Answers, Source
from analysis.records.frames import NUMBERS
from study.cell.records import OPTIONAL, ROLLOUT, VERDICT, arrow_type
from study.features import FEATURES, measured

WHOSE = ("study", "cell", "arm", "run_judge", "seed", "set")
"""First columns: the run, the judge that it was trained under, and which of `reading.SETS`."""
ANSWER = {
    **{name: name for name in ("rollout_id", "step", "prompt_id", "group", "member")},
    **{name: name for name in ("dataset", "domain", "item", "prompt", "completion", "answer")},
    **{name: name for name in ("tokens", "stop", "logprob_sum", "reward", "advantage", "truth")},
    **{"truth_missing": "truth_missing", "acting_score": "judge_score", "program": "outcome"},
}
"""Columns of the answer, and what the records call them."""
BEHAVIOUR = "behaviour/"
"""Prefix of the columns with what was measured of the answer."""
JUDGED = {
    **{name: name for name in ("judge", "role", "judge_id", "revision", "grading")},
    **{"grading_version": "grading_version", "vote": "sample_index", "outcome": "outcome"},
    **{"score": "score", "labels": "labels", "reason": "reason", "reply": "text"},
    **{name: name for name in ("reasoning", "finish_reason", "attempts", "latency_s")},
    **{f"judge_{name}": name for name in ("tokens_in", "tokens_cached", "tokens_out")},
    **{name: name for name in ("cost_usd", "from_cache", "served_model")},
}
"""Columns of the verdict, and what the records call them."""
_GAP = "gap"


def schema_of(answers: Answers) -> pa.Schema:
    """The columns of the table, in order."""
    first = [(name, "int64" if name == "seed" else "string") for name in WHOSE]
    own = [(name, {**ROLLOUT, **OPTIONAL}[column]) for name, column in ANSWER.items()]
    behaviour = [(f"{BEHAVIOUR}{name}", "float64") for name in FEATURES]
    numbers = [(name, "float64") for name in answers.numbers()]
    judged = [(name, VERDICT[column]) for name, column in JUDGED.items()]
    judged.insert(1 + list(JUDGED).index("score"), (_GAP, "float64"))
    columns = [*first, *own, *behaviour, *numbers, *judged]
    return pa.schema([(name, arrow_type(kind)) for name, kind in columns])


def tables(answers: Answers, schema: pa.Schema, held_out: bool | None = None) -> Iterator[pa.Table]:
    """The rows, step by step; ``held_out`` limits them to one of `reading.SETS`."""
    numbers = [name for name in schema.names if name.startswith(NUMBERS)]
    columns = [*ANSWER.values(), *numbers]
    for source in answers.sources:
        if held_out is None or source.held_out is held_out:
            verdict_columns = ["rollout_id", *JUDGED.values()]
            for _, rollouts, verdicts in answers.judged(source, columns, verdict_columns):
                yield _joined(answers, source, rollouts, verdicts, schema)


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
    behaviour = measured(rollouts["answer"].to_pylist(), answers.keyword)
    left = {
        **{name: _column(rollouts, column) for name, column in ANSWER.items()},
        **{name: _column(rollouts, name) for name in schema.names if name.startswith(NUMBERS)},
        **{
            f"{BEHAVIOUR}{name}": pa.array(behaviour[:, k], pa.float64(), from_pandas=True)
            for k, name in enumerate(FEATURES)
        },
    }
    right = {name: _column(verdicts, column) for name, column in JUDGED.items()}
    at_vote = pa.array([vote for _, vote in pairs], pa.int64())
    columns = {name: _taken(values, places) for name, values in left.items()}
    columns |= {name: _taken(values, at_vote) for name, values in right.items()}
    run = (source.cell, source.arm, source.judge, source.seed, source.set)
    whose = dict(zip(WHOSE, (answers.folder.name, *run), strict=True))
    columns |= {name: pa.array([value] * len(pairs)) for name, value in whose.items()}
    columns[_GAP] = pc.call_function(
        "subtract", [columns["score"].cast(pa.float64()), columns["truth"].cast(pa.float64())]
    )
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | pa.Array:
    return table[name] if name in table.column_names else pa.nulls(table.num_rows)


def _taken(values: pa.ChunkedArray | pa.Array, places: pa.Array) -> pa.ChunkedArray | pa.Array:
    """The values at these places; none at a place that is missing."""
    return values.take(places) if len(values) else pa.nulls(len(places), values.type)
