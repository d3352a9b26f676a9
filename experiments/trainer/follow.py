"""A cell's processes beside its first one: they generate and learn, and record nothing."""

from __future__ import annotations

from experiments.policies.load import cache_of, load_policy
from experiments.trainer.processes import leave_with_launcher
from study.cell import cells
from study.cell.folder import CellFolder
from study.tasks import kind_of


def follow(folder: CellFolder, threads: int) -> int:
    """Train with the first process, from the checkpoint that it chose; the exit code 0.

    What goes wrong is raised: the launcher then ends the others.
    """
    if folder.is_done():
        return 0
    import torch
    from transformers import set_seed
    from transformers.utils.logging import disable_progress_bar

    from experiments.trainer.grpo import make_trainer
    from experiments.trainer.ranks import leave, shared

    leave_with_launcher()
    cell = cells.load_cell(folder)
    config = cell.config
    torch.set_num_threads(threads)
    disable_progress_bar()
    checkpoint, step = shared(None)
    if step < config.trainer.steps:
        rows = kind_of(config.task).rows(config.task, "train")
        model, tokenizer = load_policy(config.policy, config.task, cache_of(cell))
        set_seed(config.seed)
        checkpoints = cell.folder / "checkpoints"
        make_trainer(config, model, tokenizer, rows, None, None, checkpoints).learn(checkpoint)
    leave()
    return 0
