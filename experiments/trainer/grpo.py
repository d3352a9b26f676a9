"""GRPO by TRL's trainer; our subclass records what TRL computes and then forgets, and is faster.

TRL's loss, optimiser and loop stay TRL's. With ``trainer.fast`` log-probabilities come from one
sequence in which each prompt stands once (`fast`), and completions from `generate`; where a model
cannot take that, or the first step's check finds a difference, TRL's own way is taken.

One generation per optimiser step: P prompts x G rollouts are generated together, split into
micro-batches, and make one update. So each step's rollouts are on-policy, and every step is a
place where a checkpoint can stand (TRL cannot resume between a generation and its update).
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig
from trl.trainer.utils import pad

from experiments.policies.load import lora_config
from experiments.trainer import fast, prefix, processes, ranks, rollouts
from experiments.trainer.alarm import Alarm
from experiments.trainer.generate import lora_layers, without_adapter
from experiments.trainer.held_out import HeldOut
from experiments.trainer.order import InOrder
from experiments.trainer.processes import check_batch, rows_per_pass
from experiments.trainer.prompts import Scaffolder, prompt_dataset, prompt_of
from experiments.trainer.record_step import EarlyStop, RecordStep
from experiments.trainer.scorer import Scorer
from experiments.trainer.vllm import trl_options
from experiments.trainer.world import Messages
from study.cell.folder import CellFolder
from study.cell.heartbeat import Heartbeat
from study.cell.records import COMPONENT, Recorder
from study.config.schema import Study
from study.errors import UserError
from study.rows import Row
from study.tasks import kind_of, nominal_mix, order_of
from study.tasks.scaffold import Shown

log = logging.getLogger(__name__)
SAME_NAMES = (
    *("max_completion_length", "temperature", "top_p", "top_k", "beta", "epsilon", "loss_type"),
    *("learning_rate", "weight_decay", "max_grad_norm", "scale_rewards"),
    *("gradient_checkpointing", "save_steps"),
)
"""Settings of the trainer that TRL calls so, too."""


def grpo_config(config: Study, output_dir: Path) -> GRPOConfig:
    """TRL's arguments for one cell; a step has P * G rollouts, however many processes share them.

    Raises:
        UserError: the micro-batch, or the number of processes, does not divide the P * G rollouts.
    """
    trainer, sharing = config.trainer, processes.count()
    rollouts = trainer.prompts_per_step * trainer.group_size
    check_batch(trainer, sharing)
    rows = rows_per_pass(trainer, sharing)
    return GRPOConfig(
        output_dir=str(output_dir),
        max_steps=trainer.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=rollouts // sharing // rows,
        generation_batch_size=rollouts,
        num_generations=trainer.group_size,
        num_iterations=1,
        lr_scheduler_type=trainer.lr_scheduler,
        **{name: getattr(trainer, name) for name in SAME_NAMES},
        bf16=config.policy.dtype == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        seed=config.seed,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        log_completions=False,
        dataloader_pin_memory=False,
        **trl_options(config),
    )


class RecordingTrainer(InOrder):
    """GRPOTrainer that fills the scorer's step record with advantages and log-probabilities.

    Args:
        scorer: None in every process of a cell but the first.
        scaffold: what each rollout of a step is shown before it answers; None shows nothing.
        fast_path: whether to share prefixes where the model can take it.
        prompt_for: prompt id -> what the policy is shown and trained on, where that is not the row.
        reference: of which share of the groups log-probabilities under the initial policy are
            recorded at beta = 0 too.
    """

    def __init__(
        self,
        scorer: Scorer | None,
        scaffold: Scaffolder | None = None,
        fast_path: bool = True,
        prompt_for: Callable[[str], Messages] | None = None,
        reference: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(reward_funcs=ranks.Gathered(scorer), **kwargs)
        measured = bool(reference) and self.beta == 0 and self._keep_start()
        self._reference_share = reference if measured else 0.0
        self._scorer = scorer
        base = self.accelerator.unwrap_model(self.model)
        if isinstance(self.model, PeftModel):
            # peft writes a card for each checkpoint, which costs more than the adapter
            self.model.create_or_update_model_card = lambda output_dir: None
            base = base.get_base_model()
        self._heart = Heartbeat() if scorer is None else scorer.heart
        self.beat = self._heart.beat
        base.register_forward_hook(lambda *_: self.beat())
        self._checked: set[bool] = set()
        """Whether the paths were compared with gradients (True) and without (False)."""
        self._layouts = prefix.layouts(self.accelerator.device)
        self.shares_prefixes = fast_path and self._install()
        self._scaffold, self._prompt_for = scaffold, prompt_for
        self._scaffolded: list[Shown] | None = None
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
        if reason is None and not self.use_vllm:
            reason = rollouts.unsupported(models[0], self.generation_config)
        if reason is not None:
            return self._slow(f"the policy is trained by TRL's own forward: {reason}.")
        for model in models:
            fast.install(model, self.temperature)
        self._layer_weights = fast.layer_weights(models[0])
        if not self.use_vllm:
            self.rollout_func = rollouts.Rollouts(self.args.seed, self._ended)
        return True

    def _keep_start(self) -> bool:
        """Keep the initial policy where there is no adapter to be switched off; false where its
        weights are spread over processes, and no copy of them is made."""
        policy: Any = self.accelerator.unwrap_model(self.model)
        if isinstance(policy, PeftModel):
            self._adapted = lora_layers(policy)
            return True
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            log.info("No copy of the initial policy is kept: its weights are spread.")
            return False
        self.ref_model = copy.deepcopy(policy).eval().requires_grad_(False)
        return True

    def _slow(self, why: str) -> bool:
        log.warning("trainer.fast=true, but %s Steps take longer; the loss is the same.", why)
        return False

    def learn(self, checkpoint: Path | None) -> None:
        """Train to the last step, from ``checkpoint`` where there is one.

        Raises:
            UserError: the checkpoint is whole, and yet cannot be loaded, or is of another order.
        """
        if checkpoint is not None:
            self.check_order(checkpoint)
        try:
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except Exception as error:
            if checkpoint is None or (self.record_step is not None and self.record_step.has_begun):
                raise
            raise UserError(
                f"{checkpoint} is unaltered, but cannot be loaded ({type(error).__name__}:"
                f" {' '.join(str(error).split())[:300]}). Use the torch, transformers and peft"
                " that the cell's environment.json names, or delete this folder and rerun the"
                " command: the cell then resumes from the checkpoint before it, or from its first"
                " step."
            ) from error

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """A card per checkpoint says nothing that the cell's own files do not."""

    def _send_telemetry(self) -> None:
        """Nobody is told that a cell trains; TRL tells the Hub, which takes .4 s of CPU as well."""

    def _tokenize_prompts(self, prompts: list[Any]) -> Any:
        if self._scaffolded is not None and self._scaffold is not None and self._scaffold.keep:
            prompts = [list(prompt.messages) for prompt in self._scaffolded]
        return super()._tokenize_prompts(prompts)

    def scaffolded_prompt_ids(self) -> list[list[int]] | None:
        """Token ids of what each rollout of this step is shown; None where nothing is."""
        if self._scaffolded is None:
            return None
        return super()._tokenize_prompts([list(prompt.messages) for prompt in self._scaffolded])[0]

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
        if self._prompt_for is not None:  # the prompt that is sampled from is the one trained on
            inputs = [
                example | {"prompt": list(self._prompt_for(example["prompt_id"]))}
                for example in inputs
            ]
        # never in evaluation: what a policy can do is asked of it without help
        if self._scaffold is not None and self.accelerator.unwrap_model(self.model).training:
            scaffolded_N = self._scaffold(gather_object(inputs), self.state.global_step + 1)
            first = self.accelerator.process_index * len(inputs)
            self._scaffolded = scaffolded_N[first : first + len(inputs)]
        self._prompt_ids = [example["prompt_id"] for example in inputs]
        self._heart.phase("generating")
        try:
            output = super()._generate_and_score_completions(inputs)
            self._record(output)
        finally:
            self._scaffolded = None
            if self._scorer is not None:
                self._scorer.drop()
        return output

    def _ended(self, ids_of: dict[int, list[int]]) -> None:
        if self._scorer is not None:  # in the first process a row's index is its place in the step
            self._scorer.submit({row: (self._prompt_ids[row], ids) for row, ids in ids_of.items()})

    def _record(self, output: dict[str, Any]) -> None:
        """Advantages and ends of the step's rollouts, and what the scaffold showed of the prompt;
        the log-probabilities follow with the update."""
        gather = self.accelerator.gather
        lengths_n, device = output["completion_mask"].sum(1), output["advantages"].device
        lasts_n = output["completion_ids"].gather(1, (lengths_n - 1).clamp(min=0)[:, None])[:, 0]
        stopped_n = torch.isin(lasts_n, torch.tensor(self.eos_token_ids, device=device))
        advantages_N, stopped_N = (gather(x).tolist() for x in (output["advantages"], stopped_n))
        # TRL shuffles and splits every tensor of this dict alike, so the index finds its way back
        first = self.accelerator.process_index * len(lengths_n)
        output["row_index"] = torch.arange(first, first + len(lengths_n), device=device)
        scaffolded_N = None
        if self._scaffolded is not None:
            logprobs_n = self._scaffolded_logprobs(output)
            scaffolded_N = gather_object(list(zip(self._scaffolded, logprobs_n, strict=True)))
        starts_N = gather(self._start_logprobs(output)).tolist() if self._reference_share else None
        if self._scorer is None:
            return
        record = self._scorer.pending
        assert record is not None, "the reward function was not called"
        for row, advantage, stopped in zip(record.rollouts, advantages_N, stopped_N, strict=True):
            row.update(advantage=advantage, stop="stop" if stopped else "length", logprob_sum=None)
        if starts_N is not None:
            for row, start in zip(record.rollouts, starts_N, strict=True):
                row[f"{COMPONENT}reference_logprob"] = start if start == start else None
        if scaffolded_N is not None:
            for row, (scaffolded, logprob) in zip(record.rollouts, scaffolded_N, strict=True):
                row["scaffold_items"] = list(scaffolded.items)
                row[f"{COMPONENT}scaffold_ratio"] = scaffolded.ratio
                row[f"{COMPONENT}scaffold_logprob"] = logprob

    def _start_logprobs(self, output: dict[str, Any]) -> torch.Tensor:
        """log p(completion | prompt) under the initial policy of this process's rollouts, (n,),
        summed over their tokens; NaN beyond the step's first groups, as many as are measured.
        Nothing random is used up."""
        of_all, size = output["completion_mask"].sum(1), self.num_generations or 1
        groups = len(of_all) * self.accelerator.num_processes // size
        first = len(of_all) * self.accelerator.process_index
        measured = max(0, math.ceil(self._reference_share * groups) * size - first)
        rows = slice(max(measured, size))  # every process computes, for weights may be spread
        ids = torch.cat([output["prompt_ids"][rows], output["completion_ids"][rows]], dim=1)
        masks = output["prompt_mask"][rows], output["completion_mask"][rows]
        policy = self.accelerator.unwrap_model(self.model)
        copied, training = self.ref_model, policy.training
        if not self.shares_prefixes:  # where prefixes are shared nothing is dropped out
            policy.eval()
        bare = without_adapter(policy, self._adapted) if copied is None else nullcontext()
        try:
            with torch.no_grad(), bare:
                logprobs_n_L = self._logprobs_and_entropies(
                    self.model if copied is None else copied,
                    ids,
                    torch.cat(masks, dim=1),
                    masks[1].shape[1],
                    self.args.per_device_train_batch_size,
                )[0]
        finally:
            if policy.training != training:
                policy.train(training)
        starts_n = torch.full_like(of_all, math.nan, dtype=torch.float32)
        starts_n[rows] = (logprobs_n_L * masks[1]).sum(1).float()
        starts_n[measured:] = math.nan
        return starts_n

    def _scaffolded_logprobs(self, output: dict[str, Any]) -> list[float]:
        """log pi(completion | scaffolded prompt) of each rollout, summed over its tokens."""
        assert self._scaffolded is not None
        ids = [torch.tensor(prompt) for prompt in self.scaffolded_prompt_ids() or []]
        ones = [torch.ones_like(prompt) for prompt in ids]
        completion_ids, mask = output["completion_ids"], output["completion_mask"]
        prompt_ids = pad(ids, self._tokenizer.pad_token_id, padding_side="left").to(mask.device)
        prompt_mask = pad(ones, 0, padding_side="left").to(mask.device)
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
                    self._layouts[0],
                )
            parts.append(part)
        return (*(torch.cat(values) for values in zip(*parts, strict=True)), None)

    def _agrees(self, *args: Any) -> bool:
        """Whether both paths give the same on two rows, up to what TRL's varies by with padding; a
        layout that does not is given up for the next."""
        why = ""
        while self._layouts:
            if not (why := self._difference(*args)):
                return True
            log.info("%s is not taken: %s", self._layouts.pop(0), why)
        return self._slow(why)

    def _difference(self, *args: Any) -> str:
        """How the packed forward differs from TRL's, in words; empty where it does not."""
        policy = self.accelerator.unwrap_model(self.model)
        trl = super()._get_per_token_logps_and_entropies

        def ours(model: Any, *rows: Any) -> torch.Tensor:
            with self.accelerator.autocast():
                return fast.logprobs(model, *rows, self._layer_weights, self._layouts[0])[0]

        try:
            apart, allowed = fast.difference(
                policy, *args, ours, lambda *arguments: trl(*arguments)[0]
            )
        except (RuntimeError, TypeError, ValueError) as error:
            words = " ".join(str(error).split())[:200]
            return f"the packed forward failed ({type(error).__name__}: {words})."
        if apart <= max(1e-4, 2 * allowed):
            return ""
        return (
            f"the packed forward differs from TRL's by {apart:.1e}, where TRL's differs from itself"
            f" by {allowed:.1e} under more padding: TRL's own is taken from here on."
        )

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        self.beat()
        gather, refs = self.accelerator.gather, inputs.get("ref_per_token_logps")
        assert self._row_logprobs is not None
        sums = gather((self._row_logprobs * inputs["completion_mask"]).sum(1)).tolist()
        indices = gather(inputs["row_index"]).tolist()
        starts = [None] * len(sums)
        if refs is not None:  # TRL has them where beta > 0
            starts = gather((refs * inputs["completion_mask"]).sum(1)).tolist()
        if self._scorer is None:
            return loss
        record = self._scorer.pending
        assert record is not None
        record.metrics["trainer/shared_prefix"] = float(self.shares_prefixes)
        for index, value, start in zip(indices, sums, starts, strict=True):
            row = record.rollouts[index]
            row["logprob_sum"] = value
            if start is not None:
                row[f"{COMPONENT}reference_logprob"] = start
            if (shown := row.get(f"{COMPONENT}scaffold_logprob")) is not None:
                row[f"{COMPONENT}scaffold_gap"] = shown - value
        return loss


def make_trainer(
    config: Study,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    scorer: Scorer | None,
    recorder: Recorder | None,
    folder: CellFolder,
    on_line: Any = None,
    cell_id: str = "",
    alarm: Alarm | None = None,
) -> RecordingTrainer:
    """The trainer of one cell, ready for `RecordingTrainer.learn`.

    Args:
        scorer: None, as the recorder, in every process of a cell but the first.
        folder: of the cell, for its checkpoints.
        on_line: called with the metrics line of each step once it is recorded.
        cell_id: hash of the config, noted in each checkpoint.
        alarm: that may end the run (``correction.stop``); None as the scorer.
    """
    row_of = kind_of(config.task).lookup(config.task) if scorer is None else scorer.oracle.row_of
    prompt_for = None
    if scorer is not None and scorer.world.prompts:
        prompt_for = prompt_of(scorer.world, row_of)
    trainer = RecordingTrainer(
        scorer,
        scaffold=None if config.scaffold.name == "none" else Scaffolder(config, row_of, prompt_for),
        fast_path=config.trainer.fast,
        reference=config.trainer.reference,
        prompt_for=prompt_for,
        model=model,
        args=grpo_config(config, folder.checkpoints),
        train_dataset=prompt_dataset(rows),
        processing_class=tokenizer,
        peft_config=lora_config(config.policy),
    )
    if scorer is not None:
        scorer.decode = lambda ids: tokenizer.batch_decode(ids, skip_special_tokens=True)
    trainer.remove_callback(PrinterCallback)
    # TRL warns of each rollout without a reward; here that is a recorded outcome, not a slip
    logging.getLogger("trl.trainer.grpo_trainer").setLevel(logging.ERROR)
    if (order := order_of(config)) is not None:
        trainer.follow(order)
    if config.correction.stop:
        trainer.add_callback(EarlyStop(alarm, scorer))
    if config.trainer.eval_steps and scorer is not None and recorder is not None:
        trainer.add_callback(HeldOut(trainer, scorer, recorder, on_line))
    mix = nominal_mix(order, rows) if scorer is not None else {}
    # DeepSpeed says how many there are where the weights are cut into parts
    weights = trainer.accelerator.unwrap_model(trainer.model).parameters()
    trained = (weight for weight in weights if weight.requires_grad)
    trainable = sum(getattr(weight, "ds_numel", weight.numel()) for weight in trained)
    trainer.record_step = RecordStep(scorer, recorder, folder, on_line, cell_id, mix, trainable)
    trainer.add_callback(trainer.record_step)
    return trainer
