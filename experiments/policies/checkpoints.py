"""Checkpoints that vouch for themselves, and the final policy, which is taken from the last one.

A checkpoint counts only with its manifest: the name, size and sha256 of every file, written after
those files are on disk. One that does not match is skipped for the one before it, and the steps
since are trained again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from study.cell.folder import CellFolder
from study.cell.signature import ANOTHER
from study.errors import UserError
from study.system.files import sha256, write_json

COMPLETE = "COMPLETE"
"""The manifest, written last."""
KEEP = 2
"""Checkpoints that stay: the last one, and the one before in case the last is damaged."""
FOR_TRAINING = (
    *("optimizer", "scheduler", "scaler", "rng_state", "trainer_state", "entropy_ctrl"),
    "order.json",
    *("pytorch_model_fsdp", "global_step", "latest", "zero_to_fp32"),  # of FSDP, of DeepSpeed
)
"""How the files begin that only a resumed training needs; the others are the policy."""

Files = dict[str, dict[str, Any]]
"""Name in the folder -> {"size", "sha256"}."""


def path_of(cell: CellFolder, step: int) -> Path:
    """Where the checkpoint of ``step`` lies."""
    return cell.checkpoints / f"checkpoint-{step}"


def seal(checkpoint: Path, cell_id: str, training: str = "") -> None:
    """Bring every file of ``checkpoint`` to disk, then write the manifest.

    Args:
        checkpoint: its folder, with all of its files.
        cell_id: hash of the config that made it.
        training: `study.cell.signature.training_of` the cell, if it is one.
    """
    manifest = checkpoint / COMPLETE
    paths = sorted(p for p in checkpoint.rglob("*") if p.is_file() and p != manifest)
    files = {str(path.relative_to(checkpoint)): _noted(path) for path in paths}
    for folder in {path.parent for path in paths} | {checkpoint, checkpoint.parent}:
        sync(folder)
    write_json(manifest, {"cell": cell_id, "training": training, "files": files})
    sync(checkpoint)


def _noted(path: Path) -> dict[str, Any]:
    """Size and sha256 of a file that is on disk when this returns."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": file.tell(), "sha256": digest}


def sync(folder: Path) -> None:
    """Bring the names in ``folder`` to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """What the manifest says: ``cell`` and ``files``.

    Raises:
        ValueError: there is none, or it cannot be one; the message says which.
    """
    if not (checkpoint / COMPLETE).is_file():
        raise ValueError("it was not written completely")
    try:
        manifest = json.loads((checkpoint / COMPLETE).read_bytes())
        files, _ = manifest["files"], manifest["cell"]
        for name, noted in files.items():
            noted["size"], noted["sha256"]
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{COMPLETE} cannot be read ({type(error).__name__})") from None
    if not files:
        raise ValueError(f"{COMPLETE} names no file")
    return manifest


def difference(folder: Path, files: Files) -> str:
    """The first way in which ``folder`` differs from ``files``; empty where it does not."""
    for name, noted in files.items():
        path = folder / name
        try:
            if not path.is_file():  # a pipe, for one, would be read without end
                return f"{name} is missing"
            size = path.stat().st_size
            if size != noted["size"]:
                return f"{name} has {size} bytes where {noted['size']} were written"
            digest = sha256(path)
        except (OSError, ValueError) as error:
            return f"{name} cannot be read ({getattr(error, 'strerror', None) or error})"
        if digest != noted["sha256"]:
            return f"{name} was altered"
    return ""


def foreign(cell: CellFolder, policy: Path, whole: bool = True) -> str:
    """Why a policy or checkpoint is not that of a cell, or, if the ``whole`` of it is to be read,
    not as it was written; empty where it is, or says nothing, as those of older versions."""
    if not (policy / COMPLETE).exists():
        is_ours = policy.is_dir() and cell.training
        return f"has no {COMPLETE}, which names its cell" if is_ours else ""
    try:
        manifest = read_manifest(policy)
        # kept policies were sealed by the name of their cell
        ours = manifest["cell"] in (cell.id, cell.name)
        if not ours and re.fullmatch(r"[0-9a-f]{10}", cell.id):
            return f"was trained in the cell {manifest['cell']}"
        own, training = cell.training, manifest.get("training")
        if own and training and own != training:
            return f"is of {ANOTHER}"
        return difference(policy, manifest["files"]) if whole else ""
    except (OSError, ValueError) as error:
        return str(error)


def fault(checkpoint: Path) -> str:
    """Why ``checkpoint`` cannot be resumed from; empty where it can."""
    if checkpoint.is_symlink() or not checkpoint.is_dir():
        return "it is not a separate folder"
    try:
        return difference(checkpoint, read_manifest(checkpoint)["files"])
    except (OSError, ValueError) as error:
        return str(error)


def numbered(cell: CellFolder) -> list[tuple[int, Path]]:
    """Step and place of everything that is named as a checkpoint, newest first."""
    checkpoints = []
    for path in cell.checkpoints.glob("checkpoint-*"):
        if name := re.fullmatch(r"checkpoint-([1-9][0-9]{0,8})", path.name):
            checkpoints.append((int(name[1]), path))
    return sorted(checkpoints, reverse=True)


def newest(cell: CellFolder) -> tuple[Path | None, int]:
    """The newest sound checkpoint and its step, (None, 0) without one; says what it skips."""
    for step, path in numbered(cell):
        why = fault(path)
        if not why:
            return path, step
        print(f"{path.name} is skipped: {why}", flush=True)
    return None, 0


def resume(cell: CellFolder, cell_id: str, steps: int) -> tuple[Path | None, int]:
    """Where a cell goes on: `newest`, with what lies after it cleared away.

    Args:
        cell: its folder.
        cell_id: hash of the cell's config.
        steps: of the whole run.

    Raises:
        UserError: the checkpoint is of another config or of a longer run, or the folder is not a
        checkpoint.
    """
    folder = cell.checkpoints
    if folder.exists() and not folder.is_dir():
        raise UserError(
            f"{folder} should be a folder, but is a file. Move it away and rerun the command: the"
            " cell then starts at its first step."
        )
    checkpoint, step = newest(cell)
    if checkpoint is not None and (step > steps or read_manifest(checkpoint)["cell"] != cell_id):
        raise UserError(
            f"{checkpoint} was made with a different config from "
            f"{cell / 'config.yaml'} (trainer.steps={steps}). A run resumed from it would"
            " mix both. Restore the old values, or run the changed config as a new cell with"
            f" python -m experiments.sweep. To start this cell again, delete {folder}."
        )
    for later, path in numbered(cell):
        if later > step:
            remove(path)
    return checkpoint, step


def rotate(cell: CellFolder) -> None:
    """Keep the newest `KEEP` checkpoints; called when the newest has its manifest."""
    for _, path in numbered(cell)[KEEP:]:
        remove(path)


def remove(path: Path) -> None:
    """Delete a folder, or a file or link that stands in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def save_policy(cell: CellFolder, step: int) -> None:
    """Make the cell's policy the model of its checkpoint of ``step``, under its name in one rename.

    A policy that is there already, whole, is left alone.
    """
    checkpoint, policy = path_of(cell, step), cell / "policy"
    manifest = read_manifest(checkpoint)
    files: Files = {
        name: noted
        for name, noted in manifest["files"].items()
        if not name.startswith(FOR_TRAINING)
    }
    if not difference(policy, files) and (policy / COMPLETE).is_file():
        return
    fresh = policy.with_name(f".{policy.name}.new")
    remove(fresh)
    for name in files:
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkpoint / name, fresh / name)
        _noted(fresh / name)
    origin = {name: manifest.get(name, "") for name in ("cell", "training")}
    write_json(fresh / COMPLETE, origin | {"files": files})
    sync(fresh)
    remove(policy)
    fresh.rename(policy)
    sync(policy.parent)
