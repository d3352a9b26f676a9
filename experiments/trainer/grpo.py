"""GRPO by TRL's trainer; our subclass records what TRL computes and then forgets, and is faster.

TRL's loss, optimiser and loop stay TRL's. With ``trainer.fast`` log-probabilities come from one
sequence in which each prompt stands once (`fast`), and completions from `generate`; where a model
cannot take that, or the first step's check finds a difference, TRL's own way is taken.

One generation per optimiser step: P prompts x G rollouts are generated together, split into
micro-batches, and make one update. So each step's rollouts are on-policy, and every step is a
place where a checkpoint can stand (TRL cannot resume between a generation and its update).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import pad

from experiments.policies.load import lora_config
from experiments.preflight import check_batch
from experiments.scorer import Scorer, StepRecord
from experiments.trainer import checkpoints, fast, rollouts
from experiments.trainer.prompts import Scaffolder, prompt_dataset
from study.errors import UserError
from study.features import FEATURES, measured
from study.records import COMPONENT, Recorder
from study.rows import Row
from study.scaffold import Shown
from study.schema import Study

TRL_METRICS = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "frac_reward_zero_std": "reward/frac_zero_std",
    "completions/mean_length": "policy/length_tokens",
    "completions/clipped_ratio": "policy/truncated_frac",
    "entropy": "policy/entropy",
    "kl": "policy/kl",
    "grad_norm": "policy/grad_norm",
    "loss": "policy/loss",
    "learning_rate": "policy/learning_rate",
    "step_time": "system/step_s",
}
"""TRL's name -> ours; a metric that TRL reports as None has no scored sample and is left out."""


def grpo_config(config: Study, output_dir: Path) -> GRPOConfig:
    """TRL's arguments for one cell.

    Raises:
        UserError: the micro-batch does not divide the P * G rollouts of a step.
    """
    trainer = config.trainer
    rollouts = trainer.prompts_per_step * trainer.group_size
    check_batch(trainer)
    return GRPOConfig(
        output_dir=str(output_dir),
        max_steps=trainer.steps,
        per_device_train_batch_size=trainer.micro_batch,
        gradient_accumulation_steps=rollouts // trainer.micro_batch,
        generation_batch_size=rollouts,
        num_generations=trainer.group_size,
        num_iterations=1,
        max_completion_length=trainer.max_completion_length,
        temperature=trainer.temperature,
        top_p=trainer.top_p,
        top_k=trainer.top_k,
        learning_rate=trainer.learning_rate,
        lr_scheduler_type=trainer.lr_scheduler,
        weight_decay=trainer.weight_decay,
        max_grad_norm=trainer.max_grad_norm,
        beta=trainer.beta,
        epsilon=trainer.epsilon,
        loss_type=trainer.loss_type,
        scale_rewards=trainer.scale_rewards,
        gradient_checkpointing=trainer.gradient_checkpointing,
        bf16=config.policy.dtype == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        seed=config.seed,
        logging_steps=1,
        save_steps=trainer.save_steps,
        disable_tqdm=True,
        report_to="none",
        log_completions=False,
        dataloader_pin_memory=False,
    )


log = logging.getLogger(__name__)


class RecordingTrainer(GRPOTrainer):
    """GRPOTrainer that fills the scorer's step record with advantages and log-probabilities.

    Args:
        scaffold: what each rollout of a step is shown before it answers; None shows nothing.
        fast_path: whether to share prefixes where the model can take it.
    """

    def __init__(
        self,
        scorer: Scorer,
        scaffold: Scaffolder | None = None,
        fast_path: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(reward_funcs=scorer, **kwargs)
        self._scorer = scorer
        base = self.accelerator.unwrap_model(self.model)
        if isinstance(self.model, PeftModel):
            self.model.create_or_update_model_card = _no_card
            base = base.get_base_model()
        base.register_forward_hook(lambda *_: scorer.heart.beat())
        self._checked: set[bool] = set()
        """Whether the paths were compared with gradients (True) and without (False)."""
        self.shares_prefixes = fast_path and self._install()
        self._scaffold = scaffold
        self._shown: list[Shown] | None = None
        self._prompt_ids: list[str] = []
        self._row_logprobs: torch.Tensor | None = None
        self.record_step: RecordStep | None = None

    def _install(self) -> bool:
        """Teach policy and reference the packed forward, and take over the rollouts."""
        policy = self.accelerator.unwrap_model(self.model)
        models = [policy.get_base_model() if isinstance(policy, PeftModel) else policy]
        models += [self.ref_model] if self.ref_model is not None else []
        reason = None
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            reason = "its weights are spread over processes"
        if self._entropy_bonus_enabled or self.aux_loss_enabled:
            reason = "its loss has a term beside TRL's policy loss"
        for model in models:
            reason = reason or fast.unsupported(model)
        if reason is None:
            reason = rollouts.unsupported(models[0], self.generation_config)
        if reason is not None:
            return self._slow(f"the policy is trained by TRL's own forward: {reason}.")
        for model in models:
            fast.install(model, self.temperature)
        self._layer_weights = fast.layer_weights(models[0])
        self.rollout_func = rollouts.Rollouts(self.args.seed, self._ended)
        return True

    def _slow(self, why: str) -> bool:
        log.warning("trainer.fast=true, but %s Steps take longer; the loss is the same.", why)
        return False

    def learn(self, checkpoint: Path | None) -> None:
        """Train to the last step, from ``checkpoint`` where there is one.

        Raises:
            UserError: the checkpoint is whole, and yet cannot be loaded.
        """
        try:
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except Exception as error:
            if checkpoint is None or (self.record_step is not None and self.record_step.begun):
                raise
            raise UserError(
                f"{checkpoint} is as it was written, but cannot be loaded "
                f"({type(error).__name__}: {' '.join(str(error).split())[:300]}). Use the torch, "
                "transformers and peft that the cell's environment.json names, or delete this "
                "folder and run the same command again: the cell then goes on from the "
                "checkpoint before it, or from its first step."
            ) from error

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """A card per checkpoint says nothing that the cell's own files do not."""

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        if self._shown is not None and self._scaffold is not None and self._scaffold.keep:
            prompts = [list(shown.messages) for shown in self._shown]
        return super()._tokenize_prompts(prompts)

    def scaffolded_prompt_ids(self) -> list[list[int]] | None:
        """Token ids of what each rollout of this step is shown; None where nothing is."""
        if self._shown is None:
            return None
        return super()._tokenize_prompts([list(shown.messages) for shown in self._shown])[0]

    def _generate_single_turn(
        self,
        prompt_ids: Any,
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if (scaffolded := self.scaffolded_prompt_ids()) is not None:
            # every rollout has a prompt of its own, so none may be drawn for a whole group
            prompt_ids, num_generations = scaffolded, 1
        return super()._generate_single_turn(
            prompt_ids, images, multimodal_fields, num_generations, *args, **kwargs
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # never in evaluation: what a policy can do is asked of it without help
        if self._scaffold is not None and self.accelerator.unwrap_model(self.model).training:
            self._shown = self._scaffold(inputs, self.state.global_step + 1)
        self._prompt_ids = [example["prompt_id"] for example in inputs]
        self._scorer.heart.phase("generating")
        try:
            output = super()._generate_and_score_completions(inputs)
            self._record(output)
        finally:
            self._shown = None
            self._scorer.drop()
        return output

    def _ended(self, ids_of: dict[int, list[int]]) -> None:
        self._scorer.submit({row: (self._prompt_ids[row], ids) for row, ids in ids_of.items()})

    def _record(self, output: dict[str, Any]) -> None:
        """Advantages and ends of the step's rollouts, and what the scaffold showed of the prompt;
        the log-probabilities follow with the update."""
        record = self._scorer.pending
        assert record is not None, "the reward function was not called"
        lengths = output["completion_mask"].sum(1).tolist()
        for row, advantage, ids, length in zip(
            record.rollouts,
            output["advantages"].tolist(),
            output["completion_ids"],
            lengths,
            strict=True,
        ):
            row["advantage"] = advantage
            last = ids[max(length - 1, 0)].item()
            row["stop"] = "stop" if last in self.eos_token_ids else "length"
            row["logprob_sum"] = None
        # TRL shuffles and splits every tensor of this dict alike, so the index finds its way back
        output["row_index"] = torch.arange(len(lengths), device=output["advantages"].device)
        if self._shown is not None:
            for row, shown, logprob in zip(
                record.rollouts, self._shown, self._scaffolded_logprobs(output), strict=True
            ):
                row["scaffold_items"] = list(shown.items)
                row[f"{COMPONENT}scaffold_ratio"] = shown.ratio
                row[f"{COMPONENT}scaffold_logprob"] = logprob

    def _scaffolded_logprobs(self, output: dict[str, Any]) -> list[float]:
        """log pi(completion | scaffolded prompt) of each rollout, summed over its tokens."""
        assert self._shown is not None
        ids = [torch.tensor(prompt) for prompt in self.scaffolded_prompt_ids() or []]
        device = output["completion_ids"].device
        ones = [torch.ones_like(prompt) for prompt in ids]
        prompt_ids = pad(ids, self._tokenizer.pad_token_id, padding_side="left").to(device)
        prompt_mask = pad(ones, 0, padding_side="left").to(device)
        completion_ids, mask = output["completion_ids"], output["completion_mask"]
        with torch.no_grad():
            logprobs_N_L = self._logprobs_and_entropies(
                self.model,
                torch.cat([prompt_ids, completion_ids], dim=1),
                torch.cat([prompt_mask, mask], dim=1),
                completion_ids.size(1),
                batch_size=self.args.per_device_train_batch_size,
            )[0]
        return (logprobs_N_L * mask).sum(1).tolist()

    def _prepare_inputs(  # ty: ignore[lost-keyword-for-regular-parameter]
        self, generation_batch: Any
    ) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        buffered: Any = self._buffered_inputs
        if self.shares_prefixes and buffered is not before:
            self._buffered_inputs = batches = fast.whole_groups(buffered)
            inputs = batches[self._step % len(batches)]
        return inputs

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        logprobs_and_entropies = self._logprobs_and_entropies(*args, **kwargs)
        self._row_logprobs = logprobs_and_entropies[0].detach()
        return logprobs_and_entropies

    def _logprobs_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """What TRL's method of a longer name returns: (logprobs, entropies, None), (N, L) each."""
        trl = super()._get_per_token_logps_and_entropies
        args = (input_ids, attention_mask, logits_to_keep)
        if self.shares_prefixes and torch.is_grad_enabled() not in self._checked:
            self._checked.add(torch.is_grad_enabled())
            self.shares_prefixes = self._agrees(*args)
        if not self.shares_prefixes:
            return trl(model, *args, batch_size=batch_size, **kwargs)
        size = max(batch_size or len(input_ids), self.num_generations or 1)
        parts = []
        for start in range(0, len(input_ids), size):
            rows = slice(start, start + size)
            with self.accelerator.autocast():
                part = fast.logprobs(
                    model,
                    input_ids[rows],
                    attention_mask[rows],
                    logits_to_keep,
                    self._layer_weights,
                )
            parts.append(part)
        return (*(torch.cat(values) for values in zip(*parts, strict=True)), None)

    def _agrees(self, *args: Any) -> bool:
        """Whether both paths give the same on two rows, up to what TRL's varies by with padding."""
        policy = self.accelerator.unwrap_model(self.model)
        trl = super()._get_per_token_logps_and_entropies

        def ours(model: Any, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
            with self.accelerator.autocast():
                return fast.logprobs(model, ids, mask, keep, self._layer_weights)[0]

        try:
            apart, allowed = fast.difference(policy, *args, ours, lambda *asked: trl(*asked)[0])
        except (RuntimeError, TypeError, ValueError) as error:
            words = " ".join(str(error).split())[:200]
            return self._slow(f"the packed forward failed ({type(error).__name__}: {words}).")
        if apart <= max(1e-4, 2 * allowed):
            return True
        return self._slow(
            f"the packed forward differs from TRL's by {apart:.1e}, where TRL's differs from itself"
            f" by {allowed:.1e} under more padding: TRL's own is taken from here on."
        )

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        self._scorer.heart.beat()
        record = self._scorer.pending
        assert record is not None and self._row_logprobs is not None
        record.metrics["system/shared_prefix"] = float(self.shares_prefixes)
        sums = (self._row_logprobs * inputs["completion_mask"]).sum(1).tolist()
        refs = inputs.get("ref_per_token_logps")  # TRL has them where beta > 0
        starts = [None] * len(sums)
        if refs is not None:
            starts = (refs * inputs["completion_mask"]).sum(1).tolist()
        for index, value, start in zip(inputs["row_index"].tolist(), sums, starts, strict=True):
            row = record.rollouts[index]
            row["logprob_sum"] = value
            if start is not None:
                row[f"{COMPONENT}reference_logprob"] = start
            if (shown := row.get(f"{COMPONENT}scaffold_logprob")) is not None:
                row[f"{COMPONENT}scaffold_gap"] = shown - value
        return loss


def _no_card(output_dir: str) -> None:
    """In place of peft's card for each checkpoint, which costs more than writing the adapter."""


class RecordStep(TrainerCallback):
    """Records each step before its checkpoint: no checkpoint is ahead of the records.

    An older checkpoint goes when the new one is sealed, never before.
    """

    def __init__(self, scorer: Scorer, recorder: Recorder, on_line: Any, cell_id: str) -> None:
        self.scorer = scorer
        self.recorder = recorder
        self.on_line = on_line
        self.cell_id = cell_id
        self.begun = False
        """Whether a step has begun: until then a resumed run only reads its checkpoint."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begun = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.scorer.heart.phase("saving")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        record = self.scorer.pending
        if record is None or record.step != state.global_step:
            return  # the closing log of a run repeats nothing that a step has not said
        simulated = self.scorer.config.judge.simulated
        metrics = step_metrics(record, simulated.keyword if simulated else "") | {
            TRL_METRICS[name]: float(value)
            for name, value in (logs or {}).items()
            if name in TRL_METRICS and value is not None
        }
        line = self.recorder.write_step(record.step, record.rollouts, record.verdicts, metrics)
        self.scorer.pending = None
        self.on_line(line)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.recorder.sync()
        folder = Path(args.output_dir)
        checkpoints.seal(checkpoints.path_of(folder, state.global_step), self.cell_id)
        checkpoints.rotate(folder)


def step_metrics(record: StepRecord, keyword: str) -> dict[str, float]:
    """Means over the step's rollouts: truth, judge score, their gap, and the behaviour vector.

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
    for name in ("ratio", "gap"):
        values = [row[key] for row in rows if (key := f"{COMPONENT}scaffold_{name}") in row]
        if values:
            metrics[f"scaffold/{name}"] = sum(values) / len(values)
    shown = [len(row["scaffold_items"]) for row in rows if "scaffold_items" in row]
    if shown:
        metrics["scaffold/shown"] = sum(shown) / len(shown)
    metrics["policy/unanswered_frac"] = sum(row["answer"] is None for row in rows) / len(rows)
    values_N_K = measured([row["answer"] for row in rows if row["answer"] is not None], keyword)
    for name, column in zip(FEATURES, values_N_K.T.tolist(), strict=True):
        if column and (keyword or name != "keyword"):
            metrics[f"policy/{name}"] = sum(column) / len(column)
    return metrics


def make_trainer(
    config: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    scorer: Scorer,
    recorder: Recorder,
    output_dir: Path,
    on_line: Any,
    cell_id: str = "",
) -> RecordingTrainer:
    """The trainer of one cell, ready for `RecordingTrainer.learn`.

    Args:
        output_dir: where the checkpoints go.
        on_line: called with the metrics line of each step once it is recorded.
        cell_id: hash of the config, noted in each checkpoint.
    """
    row_of = scorer.oracle.row_of
    trainer = RecordingTrainer(
        scorer,
        scaffold=None if config.scaffold.name == "none" else Scaffolder(config, row_of),
        fast_path=config.trainer.fast,
        model=model,
        args=grpo_config(config, output_dir),
        train_dataset=prompt_dataset(rows),
        processing_class=tokenizer,
        peft_config=lora_config(config.policy),
    )
    scorer.decode = lambda ids: tokenizer.batch_decode(ids, skip_special_tokens=True)
    trainer.remove_callback(PrinterCallback)
    # TRL warns of each rollout without a reward; here that is a recorded outcome, not a slip
    logging.getLogger("trl.trainer.grpo_trainer").setLevel(logging.ERROR)
    trainer.record_step = RecordStep(scorer, recorder, on_line, cell_id)
    trainer.add_callback(trainer.record_step)
    return trainer
