"""What a cell asks of its judges, and what finished cells took, which says what others will take.

What is asked is completions, calls and tokens, before the store saves any. A finished cell is read
from its records: what its judges were asked and what became of it, over what is expected of it, and
how long its steps and evaluations were. Cells of the same study come first, then the newest of the
runs folder. Nothing here imports torch: a plan answers before a model could be loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import socket
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from judges.ask.identity import build_grading
from judges.endpoint.dialects import dialect_of
from judges.grading.base import GroupGrading
from study.cell import cells
from study.cell.audit import drawn_of
from study.cell.cells import Cell
from study.cell.folder import CellFolder
from study.cell.records import EVALUATIONS, Line
from study.config.schema import Judge, Model, Study, Task, freeze
from study.errors import UserError
from study.rewards.checks import for_judge
from study.screen import plural
from study.system.files import Damaged
from study.tasks import kind_of, sample

if TYPE_CHECKING:
    from study.rows import Row


CHARACTERS_PER_TOKEN = 4
ANSWER_SHARE = 0.4
"""Of ``trainer.max_completion_length`` that an answer is assumed to use."""
SAMPLE = 128
"""Rows that stand for all of a task."""
REPLY_TOKENS = {
    "likert": 3.4,
    "soft_choice": 1.0,
    "verif": 3.0,
    "binary": 3.0,
    "pairwise": 3.0,
    "listwise": 20.0,
}
"""A bare verdict, as simulated judges give it, by grading; a rubric has a label for each criterion:
``LABEL_TOKENS`` of a real judge, ``SIMULATED_LABEL_TOKENS`` of a simulated one, whose tokens are
four characters each."""
LABEL_TOKENS = 6.0
SIMULATED_LABEL_TOKENS = 3.8
SPOKEN_TOKENS = 30.0
"""What a real judge says besides, where nothing forces a bare verdict."""
THINKING_SHARE = 0.5
"""Of ``sampling.max_tokens`` that a judge which thinks is assumed to use."""


@dataclass(frozen=True)
class Asks:
    """What one judge of a cell is asked in all, of its steps or of its evaluations."""

    judge: Judge
    folder: str
    """Where in the cell its verdicts are: nowhere deeper, or in `EVALUATIONS`."""
    calls: float
    tokens_in: float
    tokens_out: float
    longest_in: float
    """Tokens in where every answer is as long as it may be."""
    longest_out: float
    """Tokens out where every reply is."""


def expected(cell: Cell) -> dict[str, int]:
    """Completions, judge calls and tokens of a whole cell, before the store saves any.

    completions = T * P * G and the answers of frozen evaluations; calls = completions * votes *
    requests per verdict, summed over the acting and the shadow judges.
    """
    every = asks(cell.config)
    return {
        "completions": sum(count for count, _ in answers(cell.config).values()),
        "calls": round(sum(each.calls for each in every)),
        "tokens_in": round(sum(each.tokens_in for each in every)),
        "tokens_out": round(sum(each.tokens_out for each in every)),
    }


def answers(config: Study) -> dict[str, tuple[int, int]]:
    """Answers that are judged and the size of their groups: of the steps, and of frozen evaluations
    under `EVALUATIONS`, which repeat each other more than those of steps do."""
    trainer = config.trainer
    of_steps = trainer.steps * trainer.prompts_per_step * trainer.group_size
    judged = {"": (of_steps, trainer.group_size)}
    if trainer.eval_samples and trainer.eval_steps:
        size = 1 + trainer.eval_samples
        held_out = _held_out(_json(config.task))
        judged[EVALUATIONS] = (size * held_out * evaluations(config), size)
    return judged


def evaluations(config: Study) -> int:
    """Evaluations of held-out rows: before the first step, every so many, and after the last."""
    trainer = config.trainer
    return 1 + -(-trainer.steps // trainer.eval_steps) if trainer.eval_steps else 0


def asks(config: Study) -> list[Asks]:
    """What the acting judge is asked, and each shadow judge; one that audits, of drawn groups."""
    task, rules = _json(config.task), config.reward.rules
    longest = config.trainer.max_completion_length
    usual = round(ANSWER_SHARE * longest)
    every = []
    judged = answers(config)
    audited = {"": (len(drawn_of(config)) * config.trainer.group_size, config.trainer.group_size)}
    of_judges = [(judge, judged) for judge in (config.judge, *config.shadows)]
    for judge, counts in (*of_judges, *((judge, audited) for judge in config.auditors)):
        data, votes = _json(judge), judge.sampling.votes
        for folder, (count, size) in counts.items():
            calls, *tokens = _per_verdict(data, task, rules, size, usual)
            _, longest_in, _ = _per_verdict(data, task, rules, size, longest)
            cap = max(calls * judge.sampling.max_tokens, tokens[1])
            amounts = (calls, *tokens, longest_in, cap)
            every.append(Asks(judge, folder, *(count * votes * each for each in amounts)))
    return every


def _json(part: Judge | Task) -> str:
    return json.dumps(dataclasses.asdict(part), sort_keys=True)


@functools.cache
def _per_verdict(
    judge_json: str, task_json: str, rules: str, group_size: int, answer_tokens: int
) -> tuple[float, float, float]:
    """Requests, tokens in and tokens out of one verdict on one answer, the mean over the rows."""
    judge: Judge = freeze(Judge, json.loads(judge_json))
    rows = _sample(task_json)
    grading = build_grading(judge)
    answer = ("word " * answer_tokens)[: CHARACTERS_PER_TOKEN * answer_tokens]
    group = [f"{answer} {member}" for member in range(group_size)]
    shared_by = group_size if isinstance(grading, GroupGrading) else 1
    calls = tokens_in = tokens_out = 0.0
    for row in (for_judge(row, rules) for row in rows):
        if isinstance(grading, GroupGrading):
            asks = grading.group_requests(row, group)
        else:
            asks = grading.requests(row, answer)
        calls += len(asks) / shared_by
        for ask in asks:
            text = "\n".join(turn["content"] for turn in ask.messages)
            tokens_in += math.ceil(len(text) / CHARACTERS_PER_TOKEN) / shared_by
            tokens_out += _reply(judge, ask.criteria) / shared_by
    return calls / len(rows), tokens_in / len(rows), tokens_out / len(rows)


def _reply(judge: Judge, criteria: Sequence[int]) -> float:
    """Tokens of one reply."""
    label = SIMULATED_LABEL_TOKENS if judge.computed else LABEL_TOKENS
    bare = REPLY_TOKENS.get(judge.grading.name, label * max(1, len(criteria)))
    if judge.computed or judge.grading.name == "soft_choice":
        return bare
    return min(float(judge.sampling.max_tokens), bare + SPOKEN_TOKENS + thought(judge))


def thought(model: Model) -> float:
    """Tokens that a model thinks before a reply."""
    thinks = model.sampling.thinking or dialect_of(model).thinking == "always"
    return THINKING_SHARE * model.sampling.max_tokens if thinks else 0.0


@functools.cache
def _held_out(task_json: str) -> int:
    """Held-out rows of a task."""
    task: Task = freeze(Task, json.loads(task_json))
    return len(kind_of(task).rows(task, "eval"))


@functools.cache
def _sample(task_json: str) -> list[Row]:
    task: Task = freeze(Task, json.loads(task_json))
    return sample(kind_of(task).rows(task, "train"), SAMPLE)


MOST, ENOUGH = 48, 9
"""Finished cells that are looked at, and those of one kind whose records are read."""
APART = 0.1
"""Of one cell, and of cells that agree, so much is still doubtful either way."""
EVALUATED = "time/eval_s"
"""Seconds of a step's evaluation, which is over when the step is recorded."""
_COLUMNS = ["judge", "from_cache", "attempts", "tokens_in", "tokens_cached", "tokens_out"]


@dataclass(frozen=True)
class Usage:
    """What one judge was asked in a finished cell, over what was expected: of steps, or of
    evaluations."""

    calls: float
    tokens_in: float
    tokens_out: float
    cached: float
    """Share of its tokens in that the endpoint had cached."""
    cell: CellFolder
    """The folder of that cell."""


@dataclass(frozen=True)
class Pace:
    """Seconds of a finished cell: of one step, of one evaluation, and of all the rest."""

    step_s: float
    eval_s: float
    rest_s: float
    cell: CellFolder
    """The folder of that cell."""

    def seconds(self, config: Study) -> float:
        """Seconds that a cell of this config takes at this pace."""
        steps = config.trainer.steps * self.step_s
        return self.rest_s + steps + evaluations(config) * self.eval_s


@dataclass(frozen=True)
class Span:
    """A number with the lowest and the highest that finished cells let expect."""

    value: float
    low: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.value + other.value, self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Span:
        return Span(self.value * factor, self.low * factor, self.high * factor)


NOTHING = Span(0.0, 0.0, 0.0)


def span(values: Sequence[float]) -> Span:
    """Mean, lowest and highest; of values that agree, `APART` around the mean."""
    mean = statistics.fmean(values)
    low, high = min(*values, mean * (1 - APART)), max(*values, mean * (1 + APART))
    return Span(mean, low, high)


class Rates:
    """The finished cells that lie beside a study, read where they are asked for."""

    def __init__(self, study_dir: Path) -> None:
        self._study_dir = study_dir
        self._usages: dict[Any, list[Usage]] = {}
        self._paces: dict[Any, list[Pace]] = {}

    def usage(self, config: Study, each: Asks) -> list[Usage]:
        """Of this judge, or else of others with its grading, for answers like those of ``config``;
        empty where no such cell has finished."""
        key = (_answers(config), each.judge.name, repr(_request_traits(each.judge)), each.folder)
        if key not in self._usages:
            self._usages[key] = list(self._find_usages(config, each))
        return self._usages[key]

    def _find_usages(self, config: Study, each: Asks) -> Iterator[Usage]:
        judge = each.judge
        like = [
            (cell, other.name)
            for cell in self._cells
            if _answers(cell.config) == _answers(config)
            for other in (cell.config.judge, *cell.config.shadow_judges)
            if _request_traits(other) == _request_traits(judge)
        ]
        same = [(cell, name) for cell, name in like if name == judge.name]
        for cell, name in (same or like)[:ENOUGH]:
            usages = _usages(cell.folder)
            usage = usages.get((name, each.folder), usages.get((name, "")))
            if usage is not None:
                yield usage

    def paces(self, config: Study) -> list[Pace]:
        """Of cells whose steps are as large, on this host if there are any, else on others."""
        key = _steps(config)
        if key not in self._paces:
            like = [cell for cell in self._cells if _steps(cell.config) == key]
            here = [cell for cell in like if _host(cell.folder) == socket.gethostname()]
            measured = [_pace(cell.folder) for cell in (here or like)[:ENOUGH]]
            self._paces[key] = [pace for pace in measured if pace is not None]
        return self._paces[key]

    @functools.cached_property
    def _cells(self) -> list[Cell]:
        finished = []
        for folder in newest(self._study_dir):
            if "stopped_at" in folder.status([]):
                continue  # of fewer steps than its config says
            try:
                finished.append(cells.load_cell(folder))
            except UserError:
                continue  # of another version, or damaged
        return finished


def describe_cells(folders: Iterable[CellFolder]) -> str:
    """How many cells of which studies, in words."""
    studies = Counter(folder.study_dir.name for folder in sorted(set(folders)))
    return ", ".join(
        f"{plural(count, 'finished cell')} of {study}" for study, count in studies.items()
    )


def newest(study_dir: Path) -> list[CellFolder]:
    """Finished cells, those of the study first, then the ones that ended last."""
    ended = []
    for marker in study_dir.parent.glob("*/*/DONE"):
        try:
            when = os.stat(marker).st_mtime
        except OSError:
            continue
        ended.append((marker.parent.parent != study_dir, -when, marker.parent))
    return [CellFolder(folder) for _, _, folder in sorted(ended)[:MOST]]


def _answers(config: Study) -> tuple[Any, ...]:
    """On what the length of answers depends, and how often they repeat each other."""
    task, trainer = config.task, config.trainer
    return (
        *(config.policy.path, task.name, task.path, config.world, config.scaffold.name),
        *(config.reward.rules, trainer.max_completion_length, trainer.group_size),
    )


def _request_traits(judge: Judge) -> tuple[Any, ...]:
    """On what a judge's requests and the length of its replies depend."""
    sampling = judge.sampling
    is_sampled = sampling.temperature > 0
    return judge.grading, not judge.computed, sampling.votes, sampling.thinking, is_sampled


def _steps(config: Study) -> tuple[Any, ...]:
    """On what the time of a step depends. Computed judges answer at once, and others each at their
    own pace."""
    judges, trainer = [config.judge, *config.shadow_judges], config.trainer
    return (
        *(config.policy.path, config.task.name, config.task.path, config.world, len(judges)),
        *(judge.name for judge in judges if not judge.computed),
        *(config.scaffold.name, config.executor.name, config.sweep.accelerate),
        *(trainer.prompts_per_step, trainer.group_size, trainer.max_completion_length),
        *(trainer.fast, trainer.vllm.mode, config.device == "cpu", trainer.eval_samples),
    )


def _host(folder: CellFolder) -> str:
    return str(folder.status([]).get("host", ""))


@functools.cache
def _usages(folder: CellFolder) -> dict[tuple[str, str], Usage]:
    """Judge and `Asks.folder` -> what it was asked there in a finished cell; empty where some of
    that cannot be read, since a part of it would look like less."""
    totals: dict[tuple[str, str], Counter[str]] = {}
    damaged: list[Damaged] = []
    for inside in ("", EVALUATIONS):
        for _, table in folder.records(f"{inside}/verdicts".strip("/"), _COLUMNS, lost=damaged):
            if set(_COLUMNS) - set(table.column_names):
                return {}  # of another version
            columns = (table[name].to_pylist() for name in _COLUMNS)
            for judge, stored, *amounts in zip(*columns, strict=True):
                sums = totals.setdefault((str(judge), inside), Counter())
                if not stored:
                    for name, amount in zip(_COLUMNS[2:], amounts, strict=True):
                        sums[name] += amount or 0
    usages = {}
    for each in asks(cells.load_cell(folder).config):
        sums = totals.get((each.judge.name, each.folder))
        if damaged or sums is None or not each.calls:
            continue
        usages[each.judge.name, each.folder] = Usage(
            sums["attempts"] / each.calls,
            sums["tokens_in"] / max(each.tokens_in, 1.0),
            sums["tokens_out"] / max(each.tokens_out, 1.0),
            sums["tokens_cached"] / max(sums["tokens_in"], 1),
            folder,
        )
    return usages


@functools.cache
def _pace(folder: CellFolder) -> Pace | None:
    """How long the steps of a finished cell took; None where its records do not say."""
    lines = sorted(folder.lines(), key=lambda line: line["step"])
    steps = [line for line in lines if line["step"] > 0]
    pauses = [
        seconds
        for before, after in pairwise(steps)
        if (seconds := _time(after) - _time(before) - (after["metrics"].get(EVALUATED) or 0)) > 0
    ]
    pauses = pauses or _values_of(steps, "time/step_s")
    seconds = folder.status([]).get("seconds")
    if not pauses or seconds is None:
        return None
    evals = _values_of(lines, EVALUATED)
    step_s = statistics.median(pauses)
    rest = max(0.0, seconds - len(steps) * step_s - sum(evals))
    return Pace(step_s, statistics.fmean(evals) if evals else 0.0, rest, folder)


def _time(line: Line) -> float:
    """Seconds since 1970 when a step was recorded, with its evaluation."""
    return line["time_ms"] / 1000


def _values_of(lines: Sequence[Line], metric: str) -> list[float]:
    values = [line["metrics"].get(metric) for line in lines]
    return [value for value in values if value is not None]
