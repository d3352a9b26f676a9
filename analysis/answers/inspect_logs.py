"""Writes the answers of a study as ``.eval`` logs by Inspect's own writer, for ``inspect view``.

A log holds the answers of one run, in the order of its steps; a run of more than `SAMPLES` has
several, so that no more are in memory at a time. An answer is a sample, each judge a scorer, and so
is the truth. The judge that trained the run has the score that it was trained on, over its votes.
Where a judge's score is missing, the sample has none of it: its metadata say why.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from analysis.answers.files import new_folder
from analysis.answers.reading import Answers, Source
from analysis.records.frames import NUMBERS
from study import tasks
from study.cell.cells import load_cell
from study.cell.folder import CellFolder
from study.errors import UserError
from study.features import FEATURES, measured
from study.system.files import Damaged

SAMPLES = 1000
"""Answers in one log."""
TRUTH = "truth (rules)"
"""Name of the scorer that stands for the rules; no judge can have it."""
PLAIN = {"trust_content": False}
"""Has the viewer show what policies and judges wrote as text: no markup, links or pictures."""
POLICY = "policy"
"""Name of a policy that has none."""
DIGITS = 6
"""Significant ones of a score: more do not fit the viewer's columns."""
_ROLLOUTS = (
    *("rollout_id", "step", "prompt_id", "group", "member", "prompt", "completion", "answer"),
    *("stop", "tokens", "reward", "advantage", "truth", "truth_missing", "judge_score", "dataset"),
    *("domain", "item", "outcome", *NUMBERS),
)
_VERDICTS = (
    *("rollout_id", "role", "judge", "sample_index", "outcome", "labels", "score", "reason"),
    *("text", "reasoning"),
)
_USAGE = ("tokens_in", "tokens_cached", "tokens_out")
_METADATA = ("step", "prompt_id", "group", "member", "tokens", "reward", "advantage")
_ORIGIN = ("dataset", "domain", "item")
"""Metadata that tasks without data sets do not have."""


def write_inspect(answers: Answers, out: Path) -> int:
    """Write a folder of logs; returns how many answers they hold.
    Raises UserError: Inspect is not installed."""
    try:
        from inspect_ai.log import write_eval_log
    except ImportError as error:
        raise UserError(
            "format=inspect needs the package inspect-ai, which is not installed. Type: pip"
            " install -e '.[inspect]', or format=csv, format=parquet or format=hf."
        ) from error
    count = 0
    with new_folder(out) as folder:
        for source in answers.sources:
            samples = _samples(answers, source)
            for number in itertools.count():
                some = list(itertools.islice(samples, SAMPLES))
                if not some:
                    break
                log, name = _log(answers, source, some, number)
                write_eval_log(log, str(folder / name), format="eval")
                count += len(some)
    return count


def _samples(answers: Answers, source: Source) -> Iterator[Any]:
    """The answers of a run as Inspect's samples."""
    target_of = _targets(answers, source)
    for _, rollouts, verdicts in answers.judged(source, _ROLLOUTS, (*_VERDICTS, *_USAGE)):
        votes: dict[str, list[dict[str, Any]]] = {}
        for vote in verdicts.to_pylist() if verdicts is not None else ():
            votes.setdefault(vote["rollout_id"], []).append(vote)
        rows = rollouts.to_pylist()
        behaviour = measured([row["answer"] for row in rows], answers.keyword)
        for row, features in zip(rows, behaviour, strict=True):
            row_votes = None if verdicts is None else votes.get(row["rollout_id"], [])
            yield _sample(source, row, row_votes, features, target_of(row["prompt_id"]))


def _targets(answers: Answers, source: Source) -> Callable[[str], str]:
    """Prompt id -> what the task says of a right answer: its reference, else the criteria of its
    row, one to a line; empty where the rows of the task cannot be had here, a problem of
    ``answers``."""
    try:
        task = load_cell(CellFolder(answers.folder / source.cell)).config.task
        row_of = tasks.kind_of(task).lookup(task)
    except (Damaged, UserError, OSError) as error:
        answers.problems.append(f"{source.cell}: its samples have no target ({error})")
        return lambda prompt: ""

    def target(prompt: str) -> str:
        row = row_of(prompt)
        if row is None:
            return ""
        return row.reference or "\n".join(item.text for item in (*row.criteria, *row.rules))

    return target


def _sample(
    source: Source,
    row: Mapping[str, Any],
    votes: Sequence[dict[str, Any]] | None,
    behaviour: np.ndarray,
    target: str,
) -> Any:
    """One answer; ``votes`` is None where the verdicts of its step cannot be read."""
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelOutput
    from inspect_ai.scorer import Score

    scores, missing = {}, {}
    if votes is None:
        missing["verdicts"] = "could not be read"
        if row["judge_score"] is not None:
            scores[source.judge] = Score(value=_short(row["judge_score"]), answer=row["answer"])
    for name, of_judge in _by_judge(votes or ()).items():
        scored = [vote["score"] for vote in of_judge if vote["score"] is not None]
        verdicts = [{key: vote.get(key) for key in _VERDICTS[1:]} for vote in of_judge]
        if scored:
            explanation = "\n\n".join(
                filter(None, (vote["reason"] or vote["text"] for vote in verdicts))
            )
            trained = row["judge_score"] if of_judge[0]["role"] == "acting" else None
            value = _short(sum(scored) / len(scored) if trained is None else trained)
            metadata = {"verdicts": verdicts}
            scores[name] = Score(
                value=value,
                answer=row["answer"],
                explanation=explanation or None,
                metadata=metadata,
            )
        else:
            missing[name] = verdicts
    if row["truth"] is not None:
        scores[TRUTH] = Score(
            value=_short(row["truth"]),
            answer=row["answer"],
            explanation="Truth: the score of the task's rules, 0 to 1.",
        )
    else:
        missing[TRUTH] = row.get("truth_missing") or "no rule can tell"
    prompt, completion = row["prompt"] or "", row["completion"] or ""
    numbers = {name: row[name] for name in row if name.startswith(NUMBERS)}
    measures = dict(zip(FEATURES, map(float, behaviour), strict=True))
    metadata = {
        **{name: row.get(name) for name in _METADATA},
        **{name: row[name] for name in _ORIGIN if row.get(name) is not None},
        "behaviour": {name: value for name, value in measures.items() if math.isfinite(value)},
        **({"program": row["outcome"]} if row.get("outcome") else {}),
        **({"recorded": numbers} if numbers else {}),
        **({"missing": missing} if missing else {}),
    }
    reply = ChatMessageAssistant(content=completion, model=source.policy)
    return EvalSample(
        id=row["rollout_id"],
        epoch=1,
        input=prompt,
        target=target,
        model_usage=_usage(source, row, votes or ()),
        messages=[ChatMessageUser(content=prompt), reply],
        output=ModelOutput.from_content(source.policy, completion),
        scores=scores,
        metadata=metadata,
    )


def _usage(source: Source, row: Mapping[str, Any], votes: Sequence[Mapping[str, Any]]) -> Any:
    """Tokens by model: those of the completion, and of the requests to each judge."""
    from inspect_ai.model import ModelUsage

    counts: dict[str, list[int]] = {source.policy or POLICY: [0, 0, row["tokens"] or 0]}
    for vote in votes:
        of_judge = counts.setdefault(vote["judge"], [0, 0, 0])
        for place, name in enumerate(_USAGE):
            of_judge[place] += vote.get(name) or 0
    return {
        model: ModelUsage(
            input_tokens=read,
            input_tokens_cache_read=cached,
            output_tokens=written,
            total_tokens=read + written,
        )
        for model, (read, cached, written) in counts.items()
        if read or written
    }


def _total(samples: Sequence[Any]) -> Any:
    """The tokens of all samples by model."""
    total: dict[str, Any] = {}
    for sample in samples:
        for model, usage in sample.model_usage.items():
            total[model] = usage + total[model] if model in total else usage
    return total


def _short(score: float) -> float:
    return float(f"{score:.{DIGITS}g}")


def _by_judge(votes: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The votes of each judge, by the name that its scorer has."""
    named: dict[str, list[dict[str, Any]]] = {}
    for vote in votes:
        role = "" if vote["role"] == "acting" else f" ({vote['role']})"
        named.setdefault(f"{vote['judge']}{role}", []).append(vote)
    return named


def _log(answers: Answers, source: Source, samples: Sequence[Any], number: int) -> tuple[Any, str]:
    """A log and its file name, of the form that Inspect gives them."""
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalPlan,
        EvalResults,
        EvalSpec,
        EvalStats,
    )

    steps = [sample.metadata["step"] for sample in samples]
    when = datetime.fromtimestamp((source.folder / "rollouts").stat().st_mtime, UTC)
    created = when.replace(microsecond=0).isoformat()
    about = {
        "study": answers.folder.name,
        "cell": source.cell,
        "arm": source.arm,
        "judge": source.judge,
        "seed": source.seed,
        "rows": source.set,
        "steps": [min(steps), max(steps)],
    }
    key = f"{source.cell}/{source.set}/{number}"
    digest = hashlib.blake2b(key.encode(), digest_size=11).hexdigest()
    task = f"{source.arm}, {source.set}" if source.held_out else source.arm
    spec = EvalSpec(
        created=created,
        task=task,
        task_args={"seed": source.seed, "steps": f"{min(steps)} to {max(steps)}"},
        task_id=digest,
        run_id=digest,
        eval_id=digest,
        dataset=EvalDataset(
            name=source.task or answers.folder.name,
            samples=len(samples),
            sample_ids=[sample.id for sample in samples],
        ),
        model=source.policy or POLICY,
        config=EvalConfig(),
        viewer=PLAIN,
        metadata=about,
    )
    log = EvalLog(
        status="success" if source.state == "done" else "cancelled",
        eval=spec,
        plan=EvalPlan(),
        results=EvalResults(
            total_samples=len(samples), completed_samples=len(samples), scores=_means(samples)
        ),
        stats=EvalStats(
            started_at=(when - _duration(answers, source)).isoformat(),
            completed_at=when.isoformat(),
            model_usage=_total(samples),
        ),
        samples=list(samples),
    )
    plain = re.sub(r"[^A-Za-z0-9]+", "-", f"{source.cell}-{source.set}-{min(steps)}").strip("-")
    return log, f"{created.replace(':', '-')}_{plain}_{digest}.eval"


def _duration(answers: Answers, source: Source) -> timedelta:
    """How long the run took, as far as its state says."""
    (seconds,) = answers.runs.loc[answers.runs["cell"] == source.cell, "seconds"]
    return timedelta(seconds=float(seconds) if math.isfinite(seconds) else 0.0)


def _means(samples: Sequence[Any]) -> list[Any]:
    """The mean of each scorer over the samples that it scored."""
    from inspect_ai.log import EvalMetric, EvalScore

    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, score in sample.scores.items():
            values.setdefault(name, []).append(score.value)
    return [
        EvalScore(
            name=name,
            scorer=name,
            metrics={
                "mean": EvalMetric(name="mean", value=sum(scores) / len(scores)),
                "scored": EvalMetric(name="scored", value=len(scores)),
            },
        )
        for name, scores in values.items()
    ]
