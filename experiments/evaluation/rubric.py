"""Held-out rows graded by a judge: any rubric set, and HealthBench as its authors grade it.

A sample without a verdict is missing: it is left out, counted with its reason, and the bounds say
what the mean would be were all of them as bad, or as good, as they can be.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from experiments.evaluation.collect import collect
from experiments.evaluation.options import Options
from experiments.evaluation.results import track, write_result
from experiments.policies.load import NOTE, Trained, training_of, training_of_run
from judges.ask.identity import build_grading
from judges.ask.replies import open_store
from judges.ask.session import Session
from judges.grading.base import check_rows
from study.answers import answer_of
from study.cell.folder import CellFolder
from study.config.compose import load_presets
from study.errors import UserError
from study.rows import Row, RuleTruth
from study.system.files import read_json, write_text
from study.tasks import kind_of, oracle, prompts
from study.truth.rubric import rubric_score
from study.verdict import Outcome, Verdict, mean_score

if TYPE_CHECKING:
    from study.config.schema import Judge, Task


RESAMPLES = 1000
FEW = 12
"""A tag with more values than these names single criteria, and no kind of them."""


@dataclass(frozen=True)
class Graded:
    """One answer of one row and the votes on it; ``score`` is their mean, None without any."""

    row: Row
    answer: str | None
    votes: tuple[Verdict, ...]

    @property
    def score(self) -> float | None:
        """The mean score of the votes; None without any."""
        return mean_score(self.votes)


class Summary(TypedDict):
    """What graded answers come to; see `summary`."""

    score: float
    interval: list[float]
    """95 %, by the bootstrap over prompts."""
    bootstrap_sd: float
    bounds: list[float]
    """The score were all that is missing as bad, and as good, as it can be."""
    unit: str
    n_prompts: int
    n_samples: int
    n_unscored: int
    n_unscored_prompts: int
    n_empty: int
    n_truncated_thinking: int
    unscored: dict[str, int]
    """By outcome."""
    always_met: float
    never_met: float
    criteria: dict[str, dict[str, float | None]]


def summary(graded: Sequence[Graded], clip: bool, seed: int, signed: bool) -> Summary:
    """Mean over samples, then over prompts, with its bootstrap, its bounds and two constants.

    Raises UserError where no sample has a score.

    Args:
        graded: every sample of every prompt.
        clip: whether the mean is clipped to [0, 1], as HealthBench does.
        seed: of the bootstrap over prompts.
        signed: whether a sample may score below 0.
    """
    by_row: dict[str, list[Graded]] = defaultdict(list)
    for sample in graded:
        by_row[sample.row.prompt_id].append(sample)
    means = []
    for samples in by_row.values():
        if scores := [sample.score for sample in samples if sample.score is not None]:
            means.append(sum(scores) / len(scores))
    unscored = Counter(
        str(vote.outcome)
        for sample in graded
        for vote in sample.votes
        if vote.outcome is not Outcome.scored
    )
    if not means:
        why = next((vote.reason for sample in graded for vote in sample.votes), "nothing was asked")
        raise UserError(
            "The judge scored no answer, so there is no result. Reasons:"
            f" {dict(unscored)}; the first one: {why}"
        )
    draw = random.Random(seed)
    boots = sorted(
        _clipped(sum(draw.choices(means, k=len(means))) / len(means), clip)
        for _ in range(RESAMPLES)
    )
    centre = sum(boots) / len(boots)
    rows = [samples[0].row for samples in by_row.values()]
    always_met, never_met = (
        _clipped(
            sum(_score(row, [label] * len(row.criteria), signed) for row in rows) / len(rows), clip
        )
        for label in ("met", "not_met")
    )
    return {
        "score": _clipped(sum(means) / len(means), clip),
        "interval": [boots[int(0.025 * RESAMPLES)], boots[int(0.975 * RESAMPLES) - 1]],
        "bootstrap_sd": (sum((x - centre) ** 2 for x in boots) / len(boots)) ** 0.5,
        "bounds": [_clipped(_bound(by_row, end, signed), clip) for end in ("worst", "best")],
        "unit": "prompt",
        "n_prompts": len(means),
        "n_samples": len(graded),
        "n_unscored": sum(sample.score is None for sample in graded),
        "n_unscored_prompts": len(by_row) - len(means),
        "n_empty": sum(sample.answer == "" for sample in graded),
        "n_truncated_thinking": sum(sample.answer is None for sample in graded),
        "unscored": dict(unscored),
        "always_met": always_met,
        "never_met": never_met,
        "criteria": _shares(graded),
    }


def _clipped(value: float, clip: bool) -> float:
    return min(max(value, 0.0), 1.0) if clip else value


def _score(row: Row, labels: Sequence[str], signed: bool) -> float:
    score = rubric_score(row.criteria, labels) or 0.0
    return score if signed else max(score, 0.0)


def _bound(by_row: Mapping[str, Sequence[Graded]], end: str, signed: bool) -> float:
    """The mean were every unscored sample at this end of what its row allows."""
    bad, means = end == "worst", []
    for samples in by_row.values():
        row = samples[0].row
        labels = ["met" if (item.points < 0) == bad else "not_met" for item in row.criteria]
        extreme = _score(row, labels, signed)
        scores = [extreme if sample.score is None else sample.score for sample in samples]
        means.append(sum(scores) / len(scores))
    return sum(means) / len(means)


def _shares(graded: Sequence[Graded]) -> dict[str, dict[str, float | None]]:
    """Kind of criterion -> n, met share of the known labels, unknown share.

    Kinds are all, positive, negative, and ``tag=value`` of the tags that have few values. A
    grading that labels no criteria gives none.
    """
    labelled = [
        (item, label)
        for sample in graded
        for vote in sample.votes
        if len(vote.labels) == len(sample.row.criteria)
        for item, label in zip(sample.row.criteria, vote.labels, strict=True)
    ]
    values: dict[str, set[str]] = defaultdict(set)
    for item, _ in labelled:
        for tag, value in item.tags.items():
            values[tag].add(str(value))
    kinds = sorted(tag for tag, among in values.items() if len(among) <= FEW)
    labels_of: dict[str, list[str]] = defaultdict(list)
    for item, label in labelled:
        sign = "negative" if item.points < 0 else "positive"
        tagged = [f"{tag}={item.tags[tag]}" for tag in kinds if tag in item.tags]
        for name in ("all", sign, *tagged):
            labels_of[name].append(label)
    shares: dict[str, dict[str, float | None]] = {}
    for name, labels in sorted(labels_of.items()):
        certain = len(labels) - labels.count("unknown")
        shares[name] = {
            "n": len(labels),
            "met": labels.count("met") / certain if certain else None,
            "unknown": 1 - certain / len(labels),
        }
    return shares


SPLITS = {"eval": ("eval",), "train": ("train",), "all": ("train", "eval")}
OFFICIAL = {
    "judge.grading.name": "judge.grading.name=rubric_item",
    "judge.grading.options.points": "++judge.grading.options.points=shown",
    "judge.grading.options.reason": "++judge.grading.options.reason=before",
    "judge.grading.options.vocabulary": "++judge.grading.options.vocabulary=bool",
    "judge.grading.options.clip": "++judge.grading.options.clip=none",
    "judge.sampling.temperature": "judge.sampling.temperature=0.0",
}
"""HealthBench's own way: a call per criterion, explained first, points shown, scores unclipped."""
ROOM = 2048
"""Tokens that the official grading gives a reply at least."""


@dataclass(frozen=True)
class Rows:
    """What is evaluated, and what stands beside it in the same data."""

    selected: tuple[Row, ...]
    unruled: int
    """Rows of the split without criteria, which no rubric can grade."""
    prompt_ids: Mapping[str, str]
    """Text of every prompt of the task, chosen or not -> its id."""


def evaluate_rubric(options: Options) -> None:
    """Held-out rows of any task with criteria, under any judge and its own grading.

    HealthBench is graded item by item; its mean over rows is clipped to [0, 1], samples are not.
    """
    name, target = options.what, options.out
    official = name == "healthbench"
    if not (task_name := options.task or ("healthbench" if official else "")):
        raise UserError(
            f"The evaluation {name} needs a task. Type for example: python -m experiments.evaluate"
            f" {name} task=healthbench judge=qwen3-32b run=runs/STUDY/CELL out=FILE.json"
        )
    judge, task = _compose(options.judge, task_name, options.overrides, official)
    trained = trained_under(options)
    same = None if trained is None else not differs(judge, trained, options)
    split = options.split or "eval"
    if official and options.split is None and (trained or {}).get("task") != task.name:
        split = "all"  # nobody was trained on any of it, as far as is known
    rows = held_out(task, split, options)
    check_rows(build_grading(judge), rows.selected)
    turns = {row.prompt_text(): row.messages for row in rows.selected}
    answers = collect(options, turns, rows.prompt_ids, judge.name)
    # no rule can tell of prompts from a file, which may have none to train on
    truth = (lambda *_: None) if kind_of(task) is prompts.TASK else oracle(task)
    texts = answers.texts
    to_grade = [
        (row, answer_of(text)) for row in rows.selected for text in texts.get(row.prompt_id, ())
    ]
    graded = grade(judge, truth, to_grade, options.runs_dir)
    criteria = [
        [row.prompt_id, *((c.text, c.points) for c in row.criteria)] for row in rows.selected
    ]
    digest = hashlib.blake2b(json.dumps(criteria).encode(), digest_size=8).hexdigest()
    signed = judge.grading.options.get("clip") == "none"
    generation = {} if answers.settings is None else {"generation": answers.settings}
    result: dict[str, Any] = {
        "evaluation": name,
        "model": answers.model,
        "judge": {"name": judge.name, "model": judge.endpoint.model, "revision": judge.revision},
        "grading": {"name": judge.grading.name, **judge.grading.options},
        "same_judge": same,
        "task": {"name": task.name, "split": split, "rows": len(rows.selected)},
        "dataset": {"name": f"{task.name}-{split}", "digest": digest},
        "n_without_criteria": rows.unruled,
        "n_rules_not_run": sum(len(row.rules) for row in rows.selected),
        "n_missing": len(rows.selected) - len({sample.row.prompt_id for sample in graded}),
        "n_failed_generation": answers.failed,
        "n_beside": answers.beside,
        "responses": answers.files,
        **generation,
        **summary(graded, official, options.seed, signed),
    }
    result["samples"] = str(_write_samples(target, graded, result))
    write_result(target, result)
    _show(result, target)
    track(options, name, _numbers(result), result)


def trained_under(options: Options) -> Trained | None:
    """The training of a run, of an adapter inside its run, or of a merged folder; None where the
    files do not tell, as for an endpoint or a file of responses. Raises UserError where ``run=`` is
    not a cell."""
    if options.run is not None:
        return training_of_run(options.run)
    for place in filter(None, (options.adapter, options.model)):
        folder = Path(place).resolve()
        for cell in (folder.parent, folder.parent.parent):
            if training := training_of(CellFolder(cell)):
                return training
        if training := read_json(folder / NOTE).get("training"):
            return training
    return None


def differs(judge: Judge, trained: Trained, options: Options) -> bool:
    """Whether the judge differs from that of the training. Raises UserError where it does not and
    same_judge=true is not given."""
    model = trained["judge_model"]
    if trained["judge"] != judge.name and (not model or model != judge.endpoint.model):
        return True
    if not options.same_judge:
        raise UserError(
            f"{trained['place']} was trained by judge={trained['judge']}, but judge={judge.name}"
            " is the same model, and would score what it taught. Give another judge as gold"
            " judge, or type same_judge=true, which the result records."
        )
    return False


def _compose(
    judge_name: str, task_name: str, overrides: Sequence[str], official: bool
) -> tuple[Judge, Task]:
    """Judge and task by name; the official grading is a default that the user's words precede."""
    keys = {word.lstrip("+~").partition("=")[0] for word in overrides}
    usual = [word for key, word in OFFICIAL.items() if key not in keys] if official else []
    judge, task = load_presets(judge_name, task_name, overrides=[*usual, *overrides])
    if official and "judge.sampling.max_tokens" not in keys:
        room = max(judge.sampling.max_tokens, ROOM)
        judge = replace(judge, sampling=replace(judge.sampling, max_tokens=room))
    return judge, task


def held_out(task: Task, split: str, options: Options) -> Rows:
    """The rows of a split that a judge can grade by criteria, and what else there is. Raises
    UserError for a split without such a row."""
    kind = kind_of(task)
    if kind is prompts.TASK:  # not by `rows`, which wants rows to train on and may leave some out
        any_row = {"needs": "nothing", "max_prompt_chars": None}
        every = prompts.load(replace(task, options=task.options | any_row)).rows
        in_split = [row for row in prompts.load(task).rows if row.split in SPLITS[split]]
    else:
        every = tuple(row for name in SPLITS["all"] for row in kind.rows(task, name))
        in_split = [row for row in every if row.split in SPLITS[split]]
    rows = [row for row in in_split if row.criteria]
    if not rows:
        raise UserError(
            f"task={task.name} has no row with criteria in its {split} split. Type split=all, or"
            " task.path=FILE with such rows."
        )
    prompt_ids = {row.prompt_text().strip(): row.prompt_id for row in every}
    selected = tuple(rows[: options.limit])
    return Rows(selected, len(in_split) - len(rows), prompt_ids)


def grade(
    judge: Judge,
    truth: Callable[[str, str], RuleTruth],
    pairs: Sequence[tuple[Row, str | None]],
    runs_dir: Path,
) -> list[Graded]:
    """The votes of ``judge`` on every answer to a row, None for one that was cut off while it was
    thinking. ``truth`` is for simulated judges: (prompt text, answer) -> what the rules say."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    with open_store(runs_dir) as store, Session(judge, store, truth) as session:
        session.check()
        votes = session.ask_many([(row, answer or "") for row, answer in pairs])
        session.stop_if_refused()
    return [
        Graded(row, answer, tuple(row_votes))
        for (row, answer), row_votes in zip(pairs, votes, strict=True)
    ]


def _write_samples(target: Path, graded: Sequence[Graded], result: Mapping[str, Any]) -> Path:
    """One line per sample beside the result, under a name that says whose they are."""
    lines, numbers = [], Counter()
    for sample in graded:
        votes = [
            {
                "outcome": str(vote.outcome),
                "score": vote.score,
                "labels": list(vote.labels),
                "reason": vote.reason,
                "key": vote.key,
            }
            for vote in sample.votes
        ]
        prompt = sample.row.prompt_id
        line = {"prompt_id": prompt, "sample": numbers[prompt], "score": sample.score}
        lines.append(json.dumps(line | {"votes": votes}, ensure_ascii=False) + "\n")
        numbers[prompt] += 1
    files = [file["sha256"] for file in result["responses"]]
    origin = json.dumps([*files, result["judge"], result["grading"]])
    name = hashlib.sha256(origin.encode()).hexdigest()[:8]
    path = target.with_name(f"{target.stem}.samples-{name}.jsonl")
    write_text(path, "".join(lines))
    return path


def _numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """What of a result is a metric."""
    names = ("score", "bootstrap_sd", "n_prompts", "n_samples", "n_unscored", "n_missing")
    metrics = {key: float(result[key]) for key in names}
    metrics |= dict(zip(("bound_low", "bound_high"), result["bounds"], strict=True))
    for kind, share in result["criteria"].items():
        if share["met"] is not None:
            metrics[f"met/{kind.replace('=', '/')}"] = share["met"]
    return metrics


def _show(result: Mapping[str, Any], target: Path) -> None:
    low, high = result["interval"]
    print(f"score {result['score']:.4f}  95 % {low:.4f} to {high:.4f}")
    print(
        f"a judge that always says met gives {result['always_met']:.4f}, one that never does"
        f" {result['never_met']:.4f}"
    )
    low, high = result["bounds"]
    print(
        f"{result['n_prompts']} prompts, {result['n_samples']} samples,"
        f" {result['n_unscored']} of them unscored (the score lies between {low:.4f} and"
        f" {high:.4f} whatever they were), {result['n_missing']} prompts without a response."
        f" {target}"
    )
