"""Held-out rows, scored every few steps: the curve by which arms can be compared.

Each row is answered greedily and scored by rule. With ``trainer.eval_samples`` further answers are
drawn, and the judges score all of them: the frozen evaluation. A run trains the same with
evaluations and without. A cell keeps what was answered in ``evaluations``, and the adapters that
answered in ``kept``, both by step; steps that are trained again are evaluated again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import TrainerCallback

from experiments.policies import checkpoints
from experiments.policies.tiny import whole_folder
from experiments.trainer.rollouts import greedy, sampled
from experiments.trainer.scorer import Scorer
from experiments.trainer.world import Executed
from judges.ask.budget import usd_of, usd_of_calls
from judges.ask.session import Session
from study.cell.parts import verdicts_by
from study.cell.records import DRAWN, EVAL_COST, EVALUATIONS, HELD_OUT, OVERALL, Line, Recorder
from study.cell.signature import cell_id
from study.errors import UserError
from study.programs.endings import INFRASTRUCTURE
from study.rows import Row, Truth
from study.tasks import kind_of
from study.tasks.kind import GradedTask
from study.truth.score import columns

KEPT = "kept"
"""Folder of a cell: a policy of each evaluated step."""


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
        on_line: Callable[[Line], None],
    ) -> None:
        self.trainer, self.scorer, self.recorder = trainer, scorer, recorder
        self.on_line, self.folder, self.config = on_line, recorder.folder, scorer.config
        self.task = kind_of(self.config.task)
        self.rows: Sequence[Row] = self.task.rows(self.config.task, "eval")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remove later steps of a resumed run, and evaluate a new run's initial policy."""
        clear(self.folder, state.global_step)
        if state.global_step == 0 and all(line["step"] for line in self.recorder.lines()):
            if self.scorer.budget is not None:
                self.scorer.budget.check()
            self.on_line(self.recorder.write_line(0, self.evaluate(0)))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check that the budget has room for the evaluation. Raises as `Budget.check`."""
        if self.scorer.budget is not None and self._evaluated(state.global_step + 1):
            self.scorer.budget.check(evaluates=True)

    def _evaluated(self, step: int) -> bool:
        trainer = self.config.trainer
        return step % trainer.eval_steps == 0 or step == trainer.steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate at an evaluated step, and at the last one, into the step's metrics."""
        step, record = state.global_step, self.scorer.pending
        if self._evaluated(step) or control.should_training_stop:
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
        world, heart = self.scorer.world, self.scorer.heart
        prompts = [list(world.prompt_for(row, learning=False)) for row in self.rows]
        ids, size = greedy(self.trainer, prompts), 1 + self.config.trainer.eval_samples
        ids_N = ids
        if size > 1:
            names = [f"{row.prompt_id} {k}" for row in self.rows for k in range(size - 1)]
            samples = sampled(self.trainer, [s for s in prompts for _ in range(size - 1)], names)
            ids_N = []
            for row, first in enumerate(ids):
                ids_N += [first, *samples[row * (size - 1) :][: size - 1]]
        assert self.scorer.decode is not None, "the trainer has been made"
        rows_N = [row for row in self.rows for _ in range(size)]
        texts_N, before = self.scorer.decode(ids_N), world.calls
        measured: dict[str, float] = {}
        with heart.waiting("evaluating"):
            executed_N = world.play(rows_N, texts_N)
            played = world.calls - before
            items = self._items(texts_N[::size], executed_N[::size])
            if size > 1:
                measured = self._frozen(step, rows_N, texts_N, ids_N, executed_N, played)
            elif not world.answers_early:
                calls = [call for each in executed_N for call in each.calls]
                measured = self._add_cost(played, usd_of_calls(calls))
        for item, tokens in zip(items, ids, strict=True):
            item["stop"] = self._end(tokens)
        self.recorder.write_items(step, items)
        measured["time/eval_s"] = time.perf_counter() - began
        return summary(items) | measured

    def _frozen(
        self,
        step: int,
        rows_N: Sequence[Row],
        texts_N: Sequence[str],
        ids_N: Sequence[list[int]],
        executed_N: Sequence[Executed],
        played: int,
    ) -> dict[str, float]:
        """Let the judges score every answer, and record it as a rollout of its row's group, the
        greedy one first; ``played`` requests made the answers. Returns metrics."""
        size, tokens_N = 1 + self.config.trainer.eval_samples, [len(tokens) for tokens in ids_N]
        with self._judges() as judges:
            before = sum(judge.calls for judge in judges)
            record = self.scorer.look(step, rows_N, texts_N, tokens_N, executed_N, size, judges)
            calls = played + sum(judge.calls for judge in judges) - before
        for rollout, tokens in zip(record.rollouts, ids_N, strict=True):
            rollout["stop"] = self._end(tokens)
        self.recorder.write_evaluation(step, record.rollouts, record.verdicts, record.calls)
        usd = usd_of(record.verdicts) + usd_of_calls(record.calls or ())
        means = {}
        for name, column in (("truth", "truth"), ("judge", "judge_score")):
            if scores := [row[column] for row in record.rollouts if row[column] is not None]:
                means[f"{DRAWN}{name}"] = fmean(scores)
        return means | self._add_cost(calls, usd)

    @contextmanager
    def _judges(self) -> Generator[list[Session]]:
        """The acting judge and the shadow judges, to be asked beside the training: one whose
        verdicts depend on how many came before is asked as it is now, and left as it is."""
        scorer = self.scorer
        with ExitStack() as stack:
            judges = []
            for session in (scorer.acting, *scorer.shadows):
                if session.drifts:
                    name = session.judge.name
                    of_step = scorer.pending.verdicts if scorer.pending is not None else ()
                    calls_before = verdicts_by(self.folder / "verdicts", name)
                    calls_before += sum(row["judge"] == name for row in of_step)
                    session = Session(session.judge, None, scorer.oracle, calls_before=calls_before)
                    stack.enter_context(session)
                else:
                    stack.enter_context(session.batch())
                judges.append(session)
            yield judges

    def _add_cost(self, calls: int, usd: float) -> dict[str, float]:
        if self.scorer.budget is not None:
            self.scorer.budget.add_evaluation(calls, usd)
        return dict(zip(EVAL_COST, (float(calls), usd), strict=True))

    def _end(self, tokens: list[int]) -> str:
        return "stop" if tokens[-1] in self.trainer.eos_token_ids else "length"

    def _items(self, texts: Sequence[str], executed: Sequence[Executed]) -> list[dict[str, Any]]:
        """What the rules say of each row's answer, as JSON; ``correct`` is null where they could
        not tell. ``executed`` is what each of the texts came to."""
        results = self._rule_results([each.answer for each in executed])
        items = []
        for row, text, each, by_rule in zip(self.rows, texts, executed, results, strict=True):
            played = each.played
            is_lost = played is not None and played.outcome in INFRASTRUCTURE
            result = _missing(played.outcome) if played is not None and is_lost else by_rule
            place = {
                "id": row.item or row.prompt_id,
                "dataset": row.dataset or self.config.task.name,
                "domain": row.domain,
                "sample": 0,
            }
            outcome = {}
            if each.played is not None:
                outcome = {"answer": each.answer, "outcome": each.played.outcome}
            items.append(place | result | {"completion": text} | outcome)
        return items

    def _rule_results(self, answers: Sequence[str | None]) -> list[dict[str, Any]]:
        """What the rules say of each row's answer; the oracle remembers it for the judges."""
        if isinstance(self.task, GradedTask):
            scores = self.task.scores(self.rows, answers)
            if self.config.trainer.eval_samples:
                truths = self.task.truths_of(self.rows, answers, scores)
                self.scorer.oracle.remember(self.rows, answers, truths)
            return [
                _missing("the grader failed")
                if score is None
                else columns(score) | {"values": score.values}
                for score in scores
            ]
        truths = self.scorer.oracle.truths(self.rows, answers)
        if all(truth is None for truth in truths) and not self.config.trainer.eval_samples:
            raise UserError(
                f"trainer.eval_steps={self.config.trainer.eval_steps} scores held-out rows by"
                f" rule, but task={self.config.task.name} has no rule. Type trainer.eval_steps=0"
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
                checkpoints.seal(part, cell_id(self.folder))


def _missing(why: str) -> dict[str, Any]:
    return {"correct": None, "score": None, "outcome": "missing", "detail": why}


def clear(folder: Path, step: int) -> None:
    """Take away what a cell holds of evaluations after ``step``, and what a kill left half-kept."""
    evaluations = folder / EVALUATIONS
    for path in (
        *(path for pattern in ("step-*", "*/step-*") for path in evaluations.glob(pattern)),
        *(folder / KEPT).glob("step-*"),
    ):
        number = path.stem.removeprefix("step-")
        if number.isdecimal() and int(number) > step:
            checkpoints.remove(path)
    for path in (folder / KEPT).glob(".step-*"):
        checkpoints.remove(path)


def summary(items: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Metrics of an evaluation: of each set its accuracy, mean score and other values, and how many
    of its rows are missing; of each domain and over all, the mean accuracy of their sets."""
    by_set: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for item in items:
        by_set[item["dataset"]].append(item)
    metrics: dict[str, float] = {}
    by_domain: dict[str, list[float]] = defaultdict(list)
    for name, members in sorted(by_set.items()):
        scored = [item for item in members if item["correct"] is not None]
        metrics[f"eval/{name}/n"] = float(len(members))
        metrics[f"eval/{name}/missing"] = float(len(members) - len(scored))
        if not scored:
            continue
        accuracy = fmean(item["correct"] for item in scored)
        metrics[f"eval/{name}/accuracy"] = accuracy
        metrics[f"eval/{name}/score"] = fmean(item["score"] for item in scored)
        for value in sorted({value for item in scored for value in item.get("values", {})}):
            numbers = [item["values"][value] for item in scored if value in item["values"]]
            metrics[f"eval/{name}/{value}"] = fmean(numbers)
        by_domain[members[0]["domain"]].append(accuracy)
    means = {domain: fmean(values) for domain, values in by_domain.items() if domain}
    metrics |= {f"{HELD_OUT}{domain}": mean for domain, mean in sorted(means.items())}
    of_sets = [value for values in by_domain.values() for value in values]
    for name, averaged in zip(OVERALL, (of_sets, list(means.values())), strict=True):
        if averaged:
            metrics[f"{HELD_OUT}{name}"] = fmean(averaged)
    return metrics
