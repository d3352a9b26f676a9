"""A trained adapter merged into its base model, as a Hugging Face folder that vLLM serves.

    python -m experiments.merge run=runs/STUDY/CELL out=FOLDER [checkpoint=STEP]

The folder has config, weights (safetensors), tokenizer, the chat template of the training and the
base model's generation config. It is written whole or not at all.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.policies.load import (
    NOTE,
    adapted,
    read_model,
    same_model,
    trained_policy,
    training_of,
)
from experiments.policies.tiny import whole_folder
from study.cell.folder import CellFolder
from study.cli import command, option
from study.config.bounds import Number
from study.errors import UserError
from study.system.files import read_json, write_json


def merge(
    cell: CellFolder, out: Path, checkpoint: int | None = None, base: str | None = None
) -> Path:
    """Merge the policy of a cell and write it to ``out``; returns ``out``.

    Raises UserError where there is no such run, checkpoint or base model, or ``out`` is not empty.

    Args:
        checkpoint: the step of a checkpoint; None takes the policy as the run ended.
        base: folder of the base model, if it has moved since the run.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out={out} is not an empty folder; nothing written. Give a new one.")
    policy, folder = trained_policy(cell, checkpoint)
    trained_on = read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    if trained_on is None and not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} holds neither an adapter nor a model to merge. Give another run="
        )
    source = base or (str(trained_on) if trained_on else str(folder))
    if trained_on and not same_model(str(trained_on), base or policy["path"]):
        wrong = f"model={base}" if base else f"the run's config names {policy['path']}"
        raise UserError(
            f"{folder} was trained on the base model {trained_on}, and {wrong}. Give"
            " model=FOLDER of a copy of that base model."
        )
    remedy = f"Its tokenizer is read from {folder}. Type model=FOLDER if the base model has moved."
    model, tokenizer = read_model(source, policy["dtype"], remedy, str(folder))
    if trained_on:
        model = adapted(model, folder, source).merge_and_unload()
    note = {"run": cell.name, "folder": folder.name, "base": source, "training": training_of(cell)}
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(out) as part:
        part.chmod(0o755)  # a server may run as somebody else
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        write_json(part / NOTE, note)
    return out


@dataclass(frozen=True)
class Options:
    """Options of `experiments.merge`: the run, the checkpoint, and the new folder."""

    run: CellFolder = option("folder of the run, runs/STUDY/CELL", required=True)
    out: Path = option("new folder for the merged model", required=True)
    checkpoint: int | None = option(
        "step of a checkpoint; left out, the final policy",
        legal=Number(low=0),
    )
    model: str | None = option("folder of the base model, if it has moved since the run")


@command("experiments.merge run=runs/quickstart/CELL out=merged", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 merged, 2 for a user's error."""
    out = merge(options.run, options.out, options.checkpoint, options.model)
    print(f"{out}: serve it with `vllm serve {out}`, or evaluate it with model={out}")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
