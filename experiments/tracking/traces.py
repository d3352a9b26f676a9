"""A few judge calls of a cell as traces: those that failed first, then what was overrated most."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from typing import Any

from experiments.tracking.contents import bounded, gap, short, sound_rows, step_rows
from experiments.tracking.projection import keys_of
from experiments.tracking.store import trace_to
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.cell.parts import Part

MOST = 4
LOOKED_AT = 100
"""Steps that are looked through for verdicts that failed, from the last one on."""
MADE = "judgedrift.call"
"""Tag of a trace that names its verdict: rollout, judge, and which of several it is."""
TRIES = 3
_REQUEST = ("grading", "grading_version", "prompt_sha", "judge_id", "served_model", "finish_reason")
_REQUEST += (
    "attempts",
    "tokens_in",
    "tokens_cached",
    "tokens_out",
    "cost_usd",
    "from_cache",
    "key",
)
_VERDICT = ("rollout_id", "step", "role", "judge", "outcome", "labels", "score", "reason", "text")
_VERDICT += ("reasoning", "latency_s", "sample_index", *_REQUEST)
_ROLLOUT = ("rollout_id", "prompt", "answer", "completion", "judge_score", "truth")


class Lost(Exception):
    """MLflow took traces and does not have them."""


def send_traces(client: Any, ids: Mapping[str, str], run_id: str, cell: Cell) -> None:
    """Send some of a cell's judge calls as traces of its run: it holds each once afterwards, and
    none of an earlier choice. Raises Lost: MLflow, which only warns of a trace that it loses, does
    not keep them."""
    trace_to(ids["uri"])
    keys = keys_of(cell)
    times = {line["step"]: line["time_ms"] for line in cell.folder.lines()}
    calls = {
        _name(verdict): (verdict, rollout) for verdict, rollout in choose_verdicts(cell.folder)
    }
    for attempt in range(TRIES + 1):
        missing = calls.keys() - _tidy_traces(client, ids["experiment_id"], run_id, calls)
        if not missing:
            return
        if attempt < TRIES:
            with _own_dice():
                for name in filter(missing.__contains__, calls):
                    _send(client, ids, run_id, calls[name], times, keys)
    raise Lost(f"MLflow lost {len(missing)} traces of the judge calls of {cell.name}")


def _tidy_traces(client: Any, experiment_id: str, run_id: str, names: Container[str]) -> set[str]:
    """Which of these calls a run has as traces; others of ours, and doubles, are deleted."""
    stored: set[str] = set()
    surplus = []
    traces = client.search_traces(locations=[experiment_id], run_id=run_id, include_spans=False)
    for trace in traces:
        name = trace.info.tags.get(MADE)
        if name is None:
            continue  # somebody else's
        if name in names and name not in stored:
            stored.add(name)
        else:
            surplus.append(trace.info.trace_id)
    if surplus:
        client.delete_traces(experiment_id, trace_ids=surplus)
    return stored


@contextlib.contextmanager
def _own_dice() -> Generator[None]:
    """Draw at random, whatever the seed of the training. MLflow draws the ids of traces by Python's
    dice: two cells of one seed would give theirs the same ids, and the later one take them over."""
    state = random.getstate()
    random.seed()
    try:
        yield
    finally:
        random.setstate(state)


def _name(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['rollout_id']} {verdict['judge']} {verdict['sample_index']}"


def _send(
    client: Any,
    ids: Mapping[str, str],
    run_id: str,
    call: tuple[Mapping[str, Any], Mapping[str, Any]],
    times: Mapping[int, int],
    keys: Sequence[str],
) -> None:
    verdict, rollout = call
    began = 1_000_000 * times.get(verdict["step"], 0) or None
    latency = verdict["latency_s"]
    span = client.start_trace(
        f"judge {verdict['judge']}",
        span_type="LLM",
        inputs=_inputs(rollout, keys),
        attributes=_settings(verdict, keys),
        tags={
            "judge.name": str(verdict["judge"]),
            "judge.role": str(verdict["role"]),
            "outcome": str(verdict["outcome"]),
            "step": str(verdict["step"]),
            "latency": "not recorded" if latency is None else f"{latency:.3g} s",
            MADE: _name(verdict),
        },
        experiment_id=ids["experiment_id"],
        start_time_ns=began,
        run_id=run_id,
    )
    lasted = int(1e9 * (latency or 0.0))
    client.end_trace(
        span.trace_id,
        outputs=_outputs(verdict, rollout, keys),
        status="OK" if verdict["outcome"] == "scored" else "ERROR",
        end_time_ns=began + lasted if began else None,
    )


def choose_verdicts(folder: CellFolder) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """At most `MOST` verdicts with their rollouts: failures, the latest first, then the acting
    judge's that are furthest above the truth at the last step. What cannot be read is left out,
    which is said."""
    verdict_parts = folder.parts("verdicts")
    failed: list[tuple[Part, str, str, int]] = []
    for part in reversed(verdict_parts[-LOOKED_AT:]):
        names = ("rollout_id", "judge", "outcome", "sample_index")
        for row in sound_rows(part, names):
            if row["outcome"] != "scored" and len(failed) < MOST:
                failed.append((part, row["rollout_id"], row["judge"], row["sample_index"]))
        if len(failed) >= MOST:
            break
    count = 0
    for part, *key in failed:
        rollouts = _rollouts(folder, part.step)
        for row in sound_rows(part, _VERDICT):
            if [row["rollout_id"], row["judge"], row["sample_index"]] == key:
                yield row, rollouts.get(row["rollout_id"], {})
                count += 1
                break
    if count >= MOST or not verdict_parts:
        return
    rollouts = _rollouts(folder, verdict_parts[-1].step)
    scored = [
        row
        for row in sound_rows(verdict_parts[-1], _VERDICT)
        if row["outcome"] == "scored" and row["role"] == "acting" and not row["sample_index"]
    ]
    scored.sort(key=lambda row: -gap(rollouts.get(row["rollout_id"], {})))
    for row in scored[: MOST - count]:
        yield row, rollouts.get(row["rollout_id"], {})


def _rollouts(folder: CellFolder, step: int) -> dict[str, dict[str, Any]]:
    """Rollout id -> row, of one step."""
    return {row["rollout_id"]: row for row in step_rows(folder, "rollouts", step, _ROLLOUT)}


def _settings(verdict: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    settings = {name: verdict[name] for name in _REQUEST if verdict[name] is not None}
    return {
        name: bounded(value, keys, 200) if isinstance(value, str) else value
        for name, value in settings.items()
    }


def _inputs(rollout: Mapping[str, Any], keys: Sequence[str]) -> dict[str, str]:
    answer = rollout.get("answer")
    answer = rollout.get("completion") if answer is None else answer
    return {"prompt": bounded(rollout.get("prompt"), keys), "answer": bounded(answer, keys)}


def _outputs(
    verdict: Mapping[str, Any], rollout: Mapping[str, Any], keys: Sequence[str]
) -> dict[str, Any]:
    outputs = {
        "outcome": verdict["outcome"],
        "score": short(verdict["score"], keys),
        "truth": short(rollout.get("truth"), keys),
        "labels": [bounded(label, keys, 200) for label in (verdict["labels"] or [])[:50]],
        "reason": bounded(verdict["reason"], keys),
        "reply": bounded(verdict["text"], keys),
        "reasoning": bounded(verdict["reasoning"], keys),
    }
    return {name: value for name, value in outputs.items() if value not in (None, "", [])}
