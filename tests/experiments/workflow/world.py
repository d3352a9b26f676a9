"""The planted world that tests share: the task, and the executor of its preset."""

from __future__ import annotations

from study.compose import CONF
from study.files import read_yaml
from study.schema import Executor, Task, freeze

TASK = Task(name="workflow-mini", eval_rows=1_000_000)
_PRESET = read_yaml(CONF / "executor" / "sim.yaml")
SIM: Executor = freeze(Executor, {k: v for k, v in _PRESET.items() if k != "defaults"})
