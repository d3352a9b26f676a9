"""Ends training where the alarm of a run says so."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from experiments.trainer import ranks
from experiments.trainer.alarm import Alarm
from experiments.trainer.scorer import Scorer


class EarlyStop(TrainerCallback):
    """Asks the alarm after each step; what it says in the first process holds in every one."""

    def __init__(self, alarm: Alarm | None, scorer: Scorer | None) -> None:
        self.alarm, self.scorer = alarm, scorer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Add the step to the alarm; on all ranks, stop and save once it has rung."""
        stops = False
        if self.alarm is not None and self.scorer is not None and self.scorer.pending is not None:
            self.alarm.add(self.scorer.pending.rollouts)
            stops = self.alarm.step is not None
        if ranks.shared(stops):
            control.should_training_stop = control.should_save = True
