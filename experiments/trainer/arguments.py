"""A cell's settings as the arguments of TRL's trainer."""

from __future__ import annotations

from pathlib import Path

import torch
from trl import GRPOConfig

from experiments.trainer import processes
from experiments.trainer.processes import check_batch, rows_per_pass
from experiments.trainer.vllm import trl_options
from study.config.schema import Study


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
        **trl_options(config),
    )
