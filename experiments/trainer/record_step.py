"""Keeps what a step was, before there is a checkpoint of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from experiments.policies import checkpoints
from experiments.trainer import ranks
from experiments.trainer.domains import domain_metrics
from experiments.trainer.metrics import TRL_METRICS, step_metrics
from experiments.trainer.scorer import Scorer
from experiments.trainer.usage import Usage
from study.cell import exchange
from study.cell.folder import CellFolder
from study.cell.records import Recorder


class RecordStep(TrainerCallback):
    """Records each step before its checkpoint: no checkpoint is ahead of the records.

    An older checkpoint goes when the new one is sealed, never before. Only the process that has a
    scorer does this; the others wait until they have written their parts.
    """

    def __init__(
        self,
        scorer: Scorer | None,
        recorder: Recorder | None,
        on_line: Any,
        cell_id: str,
        mix: Mapping[str, float],
        trainable: int,
    ) -> None:
        self.scorer = scorer
        self.trainable = trainable
        """Parameters that are trained; the metrics of the first step say it."""
        self.recorder = recorder
        self.on_line = on_line
        self.cell_id = cell_id
        self.mix = mix
        """Domain -> nominal share of the rows; empty where they have no domain."""
        self.usage = Usage()
        self.has_begun = False
        """Whether a step has begun: until then a resumed run only reads its checkpoint."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note that this process has begun a step."""
        self.has_begun = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Show the phase ``saving`` in the heartbeat."""
        if self.scorer is not None:
            self.scorer.heart.phase("saving")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Write the step's rollouts, verdicts and metrics, once per step."""
        record = self.scorer.pending if self.scorer is not None else None
        if self.scorer is None or self.recorder is None:
            return
        if record is None or record.step != state.global_step:
            return  # the closing log of a run repeats nothing that a step has not said
        simulated = self.scorer.config.judge.simulated
        trainer = self.scorer.config.trainer
        metrics = step_metrics(record, simulated.keyword if simulated else "") | {
            TRL_METRICS[name]: float(value)
            for name, value in (logs or {}).items()
            if name in TRL_METRICS and value is not None
        }
        metrics |= domain_metrics(
            record.rollouts, trainer.group_size, trainer.scale_rewards, self.mix
        )
        metrics |= self.usage.metrics()
        if record.step == 1:
            metrics["policy/trainable_parameters"] = float(self.trainable)
        parts = (record.rollouts, record.verdicts)
        line = self.recorder.write_step(record.step, *parts, metrics, record.calls)
        self.scorer.pending = None
        self.on_line(line)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Sync the records, then seal the checkpoint, so that it never goes beyond them."""
        ranks.wait()
        if self.recorder is None:
            return
        self.recorder.sync()
        folder = Path(args.output_dir)
        path = checkpoints.path_of(folder, state.global_step)
        checkpoints.seal(path, self.cell_id, CellFolder(self.recorder.folder).training)
        checkpoints.rotate(folder)
        exchange.push(self.recorder.folder)
