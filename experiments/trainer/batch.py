"""How the rollouts of a step are divided over processes and passes."""

from __future__ import annotations

from study.config.schema import Trainer
from study.errors import UserError


def check_batch(trainer: Trainer, processes: int = 1) -> None:
    """Refuse a micro-batch that does not divide the P * G rollouts of a step, processes that cannot
    share them evenly, and a schedule that cannot end at the learning rate."""
    rollouts = trainer.prompts_per_step * trainer.group_size
    step = (
        f"the {rollouts} rollouts of a step (prompts_per_step={trainer.prompts_per_step} x "
        f"group_size={trainer.group_size})"
    )
    if rollouts % trainer.micro_batch:
        raise UserError(
            f"trainer.micro_batch={trainer.micro_batch} does not divide {step}. Type a divisor, "
            f"for example: trainer.micro_batch={trainer.group_size}"
        )
    if rollouts % processes:
        raise UserError(
            f"The {processes} processes of sweep.accelerate do not divide {step}. Type for "
            f"example: trainer.prompts_per_step={processes} trainer.micro_batch="
            f"{trainer.group_size}"
        )
    share = rollouts // processes
    if share % rows_per_pass(trainer, processes):
        raise UserError(
            f"trainer.micro_batch={trainer.micro_batch} does not divide the {share} rollouts that"
            f" each of the {processes} processes takes of {step}. Type a divisor, for example:"
            f" trainer.micro_batch={share}"
        )
    if trainer.lr_scheduler == "polynomial" and trainer.learning_rate <= 1e-7:
        raise UserError(
            f"trainer.learning_rate={trainer.learning_rate} is not above the 1e-7 at which "
            "trainer.lr_scheduler=polynomial ends. Type trainer.lr_scheduler=linear"
        )


def rows_per_pass(trainer: Trainer, processes: int) -> int:
    """Rollouts per forward and backward pass of each process."""
    share = trainer.prompts_per_step * trainer.group_size // processes
    return min(trainer.micro_batch, share)
