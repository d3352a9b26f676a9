"""Held-out rows graded by a judge: any rubric set, and HealthBench as its authors grade it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.evaluation.collect import collect
from experiments.evaluation.options import Options
from experiments.evaluation.results import track, write_result
from experiments.evaluation.summary import Graded, summary
from experiments.policies.load import NOTE, Trained, training_of
from judges.ask.identity import build_grading
from judges.ask.replies import open_store
from judges.ask.session import Session
from judges.grading.base import check_rows
from study.answers import answer_of
from study.config.compose import load_presets
from study.errors import UserError
from study.rows import Row, RuleTruth
from study.system.files import read_json, write_text
from study.tasks import kind_of, oracle, prompts

if TYPE_CHECKING:
    from study.config.schema import Judge, Task

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
    if run := options.run:
        training = training_of(run)
        if training is None:
            raise UserError(f"run={run} is not a cell: its config.yaml cannot be read.")
        return training
    for place in filter(None, (options.adapter, options.model)):
        folder = Path(place).resolve()
        for cell in (folder.parent, folder.parent.parent):
            if training := training_of(cell):
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
            f"{trained['place']} was trained by judge={trained['judge']}, and judge={judge.name} is"
            " the same model: what it taught is what it likes. Give a held-out gold judge different"
            " from the training judge, or same_judge=true, which the result then says."
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
            " give task.path a file that has."
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
