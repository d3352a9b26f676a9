"""Under which judge the model that is evaluated was trained, as far as its files tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from experiments.evaluation.options import Options
from study.errors import UserError
from study.files import read_json

if TYPE_CHECKING:
    from study.schema import Judge

NOTE = "judgedrift.json"
"""What a merged folder was made from, written into it."""

Trained = dict[str, str]
"""{place, judge, judge_model, task} of a training."""


def training_of(cell: Path) -> Trained | None:
    """What a cell was trained under, None where ``cell`` is not a cell."""
    try:
        data = yaml.safe_load((cell / "config.yaml").read_text(encoding="utf-8"))
        judge = data["judge"]
        model = judge["endpoint"].get("model") or ""
        named = {"judge": judge["name"], "judge_model": model, "task": data["task"]["name"]}
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        return None
    return {"place": str(cell), **named}


def trained_under(options: Options) -> Trained | None:
    """The training of a run, of an adapter inside its run, or of a merged folder.

    None where the files do not tell, as for an endpoint or a file of responses.

    Raises:
        UserError: ``run=`` is not a cell.
    """
    if run := options.run:
        training = training_of(run)
        if training is None:
            raise UserError(f"run={run} is not a cell: its config.yaml cannot be read.")
        return training
    for folder_given in filter(None, (options.adapter, options.model)):
        folder = Path(folder_given).resolve()
        for cell in (folder.parent, folder.parent.parent):
            if training := training_of(cell):
                return training
        if noted := read_json(folder / NOTE).get("training"):
            return noted
    return None


def differs(judge: Judge, trained: Trained, options: Options) -> bool:
    """Whether the judge differs from that of the training.

    Raises:
        UserError: it is the same, and same_judge=true is not given.
    """
    model = trained["judge_model"]
    if trained["judge"] != judge.name and (not model or model != judge.endpoint.model):
        return True
    if not options.same_judge:
        raise UserError(
            f"{trained['place']} was trained by judge={trained['judge']}, and judge={judge.name} is"
            " the same model: what it taught is what it likes. Give a held-out gold judge different"
            " from the training judge, or same_judge=true, which the result then says."
        )
    return False
