"""Held-out rows, scored by rule every few steps: the curve by which arms can be compared.

Each row is answered once and greedily, so that nothing random is used up and a run trains the same
with evaluations and without. A cell keeps what was answered in ``evaluations``, and the adapters
that answered in ``kept``, both by step; steps that are trained again are evaluated again.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import TrainerCallback

from experiments.evaluation.metrics import columns
from experiments.policies.tiny import whole_folder
from experiments.scorer import Scorer
from experiments.trainer import checkpoints
from experiments.trainer.generate import Sampling, by_transformers, generate, merged
from experiments.trainer.rollouts import rows_at_once
from study.endings import INFRASTRUCTURE
from study.errors import UserError
from study.files import write_text
from study.records import HELD_OUT, OVERALL, Recorder
from study.rows import Row, Truth
from study.tasks import task_module

EVALUATIONS, KEPT = "evaluations", "kept"
"""Folders of a cell: a JSONL of the items of each evaluated step, and a policy of each."""
AT_ONCE = 64
"""Rows that are answered together, where memory has room for so many."""


class HeldOut(TrainerCallback):
    """Evaluates before the first step, every ``trainer.eval_steps``, and after the last.

    Args:
        trainer: the cell's `grpo.RecordingTrainer`.
        recorder: of the cell; its folder is where evaluations are kept.
        on_line: called with the metrics line of step 0, which no training step writes.
    """

    def __init__(
        self,
        trainer: Any,
        scorer: Scorer,
        recorder: Recorder,
        on_line: Callable[[dict[str, Any]], None],
    ) -> None:
        self.trainer, self.scorer, self.recorder = trainer, scorer, recorder
        self.on_line, self.folder, self.config = on_line, recorder.folder, scorer.config
        self.task = task_module(self.config.task.name)
        self.rows: Sequence[Row] = self.task.rows(self.config.task, "eval")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        clear(self.folder, state.global_step)
        if state.global_step == 0 and all(line["step"] for line in self.recorder.metrics()):
            self.on_line(self.recorder.write_line(0, self.evaluate(0)))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, record = state.global_step, self.scorer.pending
        last = step == self.config.trainer.steps or control.should_training_stop
        if step % self.config.trainer.eval_steps == 0 or last:
            assert record is not None, "the step's own metrics are written after its end"
            record.metrics |= self.evaluate(step)

    def evaluate(self, step: int) -> dict[str, float]:
        """Answer, score and write down all held-out rows, and keep the policy if that is asked for.
        Returns the metrics ``eval/...``.
        Raises UserError: no rule can tell of any row."""
        began = time.perf_counter()
        self.scorer.heart.phase("evaluating")
        if self.config.trainer.keep_steps:
            self._keep(step)
        world = self.scorer.world
        ids = greedy(self.trainer, [list(world.shown(row, learning=False)) for row in self.rows])
        assert self.scorer.decode is not None, "the trainer has been made"
        texts = self.scorer.decode(ids)
        ends = set(self.trainer.eos_token_ids)
        with self.scorer.heart.waiting("evaluating"):
            items = self._items(texts)
        for item, tokens in zip(items, ids, strict=True):
            item["stop"] = "stop" if tokens[-1] in ends else "length"
        lines = "".join(json.dumps({"step": step, **item}) + "\n" for item in items)
        write_text(_items_file(self.folder, step), lines)
        return summary(items) | {"system/eval_s": time.perf_counter() - began}

    def _items(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """What the rules say of each row's answer, as JSON; ``correct`` is null where they could
        not tell."""
        executed = self.scorer.world.play(self.rows, texts)
        told_of = self._told([each.answer for each in executed])
        items = []
        for row, text, each, told in zip(self.rows, texts, executed, told_of, strict=True):
            if each.played is not None and each.played.outcome in INFRASTRUCTURE:
                told = _missing(each.played.outcome)
            place = {
                "id": row.item or row.prompt_id,
                "dataset": row.dataset or self.config.task.name,
                "domain": row.domain,
                "sample": 0,
            }
            ran = {}
            if each.played is not None:
                ran = {"answer": each.answer, "outcome": each.played.outcome}
            items.append(place | told | {"completion": text} | ran)
        return items

    def _told(self, answers: Sequence[str | None]) -> list[dict[str, Any]]:
        if hasattr(self.task, "scores"):
            return [
                _missing("the grader failed")
                if told is None
                else columns(told) | {"values": told.values}
                for told in self.task.scores(self.rows, answers)
            ]
        truths = self.task.truths(self.rows, answers)
        if all(truth is None for truth in truths):
            raise UserError(
                f"trainer.eval_steps={self.config.trainer.eval_steps} scores held-out rows by rule,"
                f" and task={self.config.task.name} has none. Type trainer.eval_steps=0"
            )
        return [
            {"correct": truth.right, "score": truth.score, "outcome": "scored"}
            if isinstance(truth, Truth)
            else _missing(truth.reason if truth else "no rule can tell")
            for truth in truths
        ]

    def _keep(self, step: int) -> None:
        """The policy as it is, as a folder that can be loaded, under its name in one rename."""
        folder = self.folder / KEPT / f"step-{step}"
        if checkpoints.fault(folder):
            checkpoints.remove(folder)
            folder.parent.mkdir(exist_ok=True)
            with whole_folder(folder) as part:
                self.trainer.save_model(str(part))
                checkpoints.seal(part, self.folder.name)


def _missing(why: str) -> dict[str, Any]:
    return {"correct": None, "score": None, "outcome": "missing", "detail": why}


def clear(folder: Path, step: int) -> None:
    """Take away what a cell holds of evaluations after ``step``, and what a kill left half-kept."""
    for path in (*(folder / EVALUATIONS).glob("step-*"), *(folder / KEPT).glob("step-*")):
        number = path.stem.removeprefix("step-")
        if number.isdecimal() and int(number) > step:
            checkpoints.remove(path)
    for path in (folder / KEPT).glob(".step-*"):
        checkpoints.remove(path)


def _items_file(folder: Path, step: int) -> Path:
    return folder / EVALUATIONS / f"step-{step:06d}.jsonl"


def summary(items: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Metrics of an evaluation: of each set its accuracy, mean score and other values, and how many
    of its rows are missing; of each domain and over all, the mean accuracy of their sets."""
    by_set: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for item in items:
        by_set[item["dataset"]].append(item)
    metrics: dict[str, float] = {}
    by_domain: dict[str, list[float]] = defaultdict(list)
    for name, members in sorted(by_set.items()):
        known = [item for item in members if item["correct"] is not None]
        metrics[f"eval/{name}/n"] = float(len(members))
        metrics[f"eval/{name}/missing"] = float(len(members) - len(known))
        if not known:
            continue
        accuracy = fmean(item["correct"] for item in known)
        metrics[f"eval/{name}/accuracy"] = accuracy
        metrics[f"eval/{name}/score"] = fmean(item["score"] for item in known)
        for value in sorted({value for item in known for value in item.get("values", {})}):
            numbers = [item["values"][value] for item in known if value in item["values"]]
            metrics[f"eval/{name}/{value}"] = fmean(numbers)
        by_domain[members[0]["domain"]].append(accuracy)
    means = {domain: fmean(values) for domain, values in by_domain.items() if domain}
    metrics |= {f"{HELD_OUT}{domain}": mean for domain, mean in sorted(means.items())}
    of_sets = [value for values in by_domain.values() for value in values]
    for name, averaged in zip(OVERALL, (of_sets, list(means.values())), strict=True):
        if averaged:
            metrics[f"{HELD_OUT}{name}"] = fmean(averaged)
    return metrics


@torch.no_grad()
def greedy(trainer: Any, prompts: Sequence[Any]) -> list[list[int]]:
    """The most probable completion of each prompt, token by token, as token ids.

    No random number is drawn, and the policy is afterwards as it was.
    """
    prompt_ids = trainer._tokenize_prompts(list(prompts))[0]
    length = trainer.max_completion_length
    order = sorted(range(len(prompt_ids)), key=lambda index: len(prompt_ids[index]))
    completions: dict[int, list[int]] = {}
    model = trainer.accelerator.unwrap_model(trainer.model)
    with merged(model) as policy, trainer.accelerator.autocast():
        longest = max(map(len, prompt_ids), default=0) + length
        at_once = min(AT_ONCE, rows_at_once(policy, longest))
        for start in range(0, len(order), at_once):
            indexes = order[start : start + at_once]
            asked = [prompt_ids[index] for index in indexes]
            sampling = Sampling(length, tuple(sorted(trainer.eos_token_ids)), greedy=True)
            if trainer.rollout_func is not None:  # the way that draws a step's completions
                unused = torch.zeros(len(asked), length).numpy()
                answered = generate(policy, asked, range(len(asked)), sampling, unused)
            else:
                padding = trainer._tokenizer.pad_token_id
                answered = by_transformers(policy, asked, sampling, padding)
            completions |= dict(zip(indexes, answered, strict=True))
    return [completions[index] for index in range(len(prompt_ids))]
