"""What a step was: its metrics, its domains, the machine's use; kept before there is a checkpoint.

Metrics ``domain/<name>/...`` say how judge and rule saw the domain's rollouts, and four shares of
the mixture: as weighted, as drawn, as it reached the policy, and as it would have under the rule
alone. A value that a step cannot give is absent, never 0.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from analysis.ledger.transmission import dead_groups, yes_no
from analysis.statistics.estimate import known_mean
from experiments.policies import checkpoints
from experiments.trainer import ranks
from experiments.trainer.alarm import Alarm
from experiments.trainer.audit import audit_metrics
from experiments.trainer.scorer import Scorer, StepRecord
from study.cell.folder import CellFolder
from study.cell.records import COMPONENT, Recorder
from study.features import FEATURES, measured
from study.rewards.advantages import advantages
from study.system.files import first_line
from study.tasks.mix import realised, shares


def domain_metrics(
    rollouts: Sequence[Mapping[str, Any]], group_size: int, scale: str, nominal: Mapping[str, float]
) -> dict[str, float]:
    """Metrics of every domain that is in the mixture or among the rollouts.

    Args:
        rollouts: P * ``group_size`` records in group order.
        group_size: G.
        scale: ``trainer.scale_rewards``, for the advantages that truths would have made.
        nominal: domain -> share; empty where that is not known.
    """
    domains_N = [row.get("domain") or "" for row in rollouts]
    domains_P = domains_N[::group_size]
    if not (present := {*nominal, *domains_P} - {""}):
        return {}
    names = ("truth", "judge_score", "reward", "advantage", "tokens")
    values = {
        name: np.array([row[name] for row in rollouts], dtype=float).reshape(-1, group_size)
        for name in names
    }
    mixes = {
        "nominal_share": nominal,
        "realised_share": realised(domains_N),
        "effective_share": shares(values["advantage"], domains_N),
        "rule_effective_share": shares(advantages(values["truth"], scale), domains_N),
    }
    metrics: dict[str, float] = {}
    for domain in sorted(present):
        here = np.array(domains_P) == domain
        measures = _of_domain({name: matrix[here] for name, matrix in values.items()})
        for name, mix in mixes.items():
            nothing = 0.0 if mix and np.isfinite(sum(mix.values())) else np.nan
            measures[name] = mix.get(domain, nothing)
        metrics |= {
            f"domain/{domain}/{name}": value
            for name, value in measures.items()
            if np.isfinite(value)
        }
    return metrics


def _of_domain(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """What the rollouts of one domain say, each matrix (P, G); NaN where they say nothing."""
    truth, judge, reward = values["truth"], values["judge_score"], values["reward"]
    rates = yes_no(judge, truth)
    return {
        "n": float(truth.size),
        "truth": known_mean(truth),
        "judge": known_mean(judge),
        "gap": known_mean(judge - truth),
        "tpr": rates["tpr"],
        "fpr": rates["fpr"],
        "unscored_frac": float(np.isnan(judge).mean()) if judge.size else np.nan,
        "frac_zero_std": known_mean(dead_groups(reward)),
        "reward": known_mean(reward),
        "tokens": known_mean(values["tokens"]),
    }


TRL_METRICS = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "frac_reward_zero_std": "reward/frac_zero_std",
    "completions/mean_length": "policy/length_tokens",
    "completions/clipped_ratio": "policy/truncated_frac",
    "entropy": "policy/entropy",
    "kl": "policy/kl",
    "sampling/importance_sampling_ratio/mean": "policy/vllm_ratio",
    "sampling/sampling_logp_difference/mean": "policy/vllm_logp_difference",
    "grad_norm": "policy/grad_norm",
    "loss": "policy/loss",
    "learning_rate": "policy/learning_rate",
    "step_time": "time/step_s",
}
"""TRL's name -> ours; a metric that TRL reports as None has no scored sample and is left out."""


def step_metrics(record: StepRecord, keyword: str) -> dict[str, float]:
    """Means over the step's rollouts: truth, judge score, their gap, and the behaviour vector.
    Where no rule knows a truth, the gap is that of the audited groups.

    Args:
        keyword: what the behaviour ``keyword`` counts; that of the acting judge, if it has one.
    """
    metrics = dict(record.metrics)
    rows = record.rollouts
    pairs = [
        (row["judge_score"], row["truth"])
        for row in rows
        if row["judge_score"] is not None and row["truth"] is not None
    ]
    for name, values in (
        ("truth/mean", [row["truth"] for row in rows if row["truth"] is not None]),
        ("judge/mean", [row["judge_score"] for row in rows if row["judge_score"] is not None]),
        ("bias/judge_minus_truth", [score - truth for score, truth in pairs]),
    ):
        if values:
            metrics[name] = sum(values) / len(values)
    if not pairs:
        metrics |= audit_metrics(rows, record.verdicts)
    for name in ("ratio", "gap"):
        values = [row[key] for row in rows if (key := f"{COMPONENT}scaffold_{name}") in row]
        if values:
            metrics[f"scaffold/{name}"] = sum(values) / len(values)
    n_items = [len(row["scaffold_items"]) for row in rows if "scaffold_items" in row]
    if n_items:
        metrics["scaffold/shown"] = sum(n_items) / len(n_items)
    metrics["policy/unanswered_frac"] = sum(row["answer"] is None for row in rows) / len(rows)
    values_N_K = measured([row["answer"] for row in rows if row["answer"] is not None], keyword)
    for name, column in zip(FEATURES, values_N_K.T.tolist(), strict=True):
        if column and (keyword or name != "keyword"):
            metrics[f"policy/{name}"] = sum(column) / len(column)
    return metrics


MEGA = 2**20
SYSTEM = "system/"


class Usage:
    """Processor time since it was last asked, and memory as it is; the names are MLflow's own where
    they mean the same. What cannot be told on this machine is left out."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._at, self._worked = time.perf_counter(), time.process_time()
        self._told_of_gpus = True

    def metrics(self) -> dict[str, float]:
        """``process_cpu_percentage`` is 100 for each core that was busy all the time."""
        at, worked = time.perf_counter(), time.process_time()
        busy = (worked - self._worked) / max(at - self._at, 1e-6)
        self._at, self._worked = at, worked
        usage = {"process_cpu_percentage": 100 * busy}
        with contextlib.suppress(OSError, ValueError, IndexError):
            pages = int((self._proc / "self" / "statm").read_text().split()[1])
            usage["process_memory_megabytes"] = pages * os.sysconf("SC_PAGE_SIZE") / MEGA
        with contextlib.suppress(OSError, ValueError, IndexError, KeyError, ZeroDivisionError):
            lines = (self._proc / "meminfo").read_text().splitlines()
            kib = {
                name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)
            }
            used = 1 - kib["MemAvailable"] / kib["MemTotal"]
            usage["system_memory_usage_percentage"] = 100 * used
        return {SYSTEM + name: value for name, value in (usage | self._gpus()).items()}

    def _gpus(self) -> dict[str, float]:
        """Of the one that this process computes on: to ask for another's memory makes a context
        there, which takes some of it."""
        usage: dict[str, float] = {}
        if not torch.cuda.is_initialized():
            return usage
        number = torch.cuda.current_device()
        free, whole = torch.cuda.mem_get_info(number)
        usage[f"gpu_{number}_memory_usage_megabytes"] = (whole - free) / MEGA
        if self._told_of_gpus:
            try:
                busy = torch.cuda.utilization(number)
            except Exception as error:  # each of NVIDIA's own; none may end a training
                self._told_of_gpus = False
                print(f"The use of the GPU is not recorded: {first_line(error)}", flush=True)
            else:
                usage[f"gpu_{number}_utilization_percentage"] = float(busy)
        return usage


@dataclass(eq=False)
class RecordStep(TrainerCallback):
    """Records each step before its checkpoint: no checkpoint is ahead of the records.

    An older checkpoint goes when the new one is sealed, never before. Only the process that has a
    scorer does this; the others wait until they have written their parts.
    """

    scorer: Scorer | None
    recorder: Recorder | None
    folder: CellFolder
    on_line: Any
    cell_id: str
    mix: Mapping[str, float]
    """Domain -> nominal share of the rows; empty where they have no domain."""
    trainable: int
    """Parameters that are trained; the metrics of the first step say it."""
    usage: Usage = field(default_factory=Usage)
    has_begun: bool = False
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
        with self.scorer.heart.spent.within("recording"):
            line = self.recorder.write_step(record.step, *parts, metrics, record.calls)
        self.scorer.pending = None
        self.on_line(line)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Sync the records, then seal the checkpoint, so that it never goes beyond them."""
        ranks.wait()
        if self.recorder is None:
            return
        self.recorder.sync()
        path = checkpoints.path_of(self.folder, state.global_step)
        checkpoints.seal(path, self.cell_id, self.folder.training)
        checkpoints.rotate(self.folder)
        self.folder.push()


@dataclass(eq=False)
class EarlyStop(TrainerCallback):
    """Asks the alarm after each step; what it says in the first process holds in every one."""

    alarm: Alarm | None
    scorer: Scorer | None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        stops = False
        if self.alarm is not None and self.scorer is not None and self.scorer.pending is not None:
            self.alarm.add(self.scorer.pending.rollouts, self.scorer.pending.verdicts)
            stops = self.alarm.step is not None
        if ranks.shared(stops):
            control.should_training_stop = control.should_save = True
