"""The steps of a pipeline: our own commands, what each reads, and what it leaves."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.pipeline.notes import Outcome, Step
from experiments.tracking.runs import release
from study.cell.cells import Cell
from study.cell.folder import CellFolder, study_cells
from study.cell.records import CALLS, KINDS, METRICS
from study.errors import UserError
from study.system.files import read_json
from study.tasks.datasets import sets
from study.tasks.datasets.preset import Data
from study.tasks.datasets.table import MANIFEST, ROWS, read_manifest

STAGES = ("download", "prepare", "train", "evaluate", "report")
REPORT = ("report/bias_report.html", "report/summary.json")
POLICY = "policy"
ROOT = "data.root=DIR"
"""How a manifest notes that the files came from a folder of the user's."""
REPLACED = "replaced"
"""Folder for what was made before from other rows, or was damaged."""


@dataclass(frozen=True)
class Plan:
    """What a pipeline is about."""

    cells: list[Cell]
    data: Data
    typed_data: tuple[str, ...]
    """``data.KEY=VALUE`` and ``datasets=`` as they were typed."""
    sweep: tuple[str, ...]
    """Words of the sweep."""
    evaluation: tuple[str, ...]
    """Words of the evaluation beside those that say of what."""
    device: str
    variables: dict[str, str]
    """Environment of a command that computes on ``device``."""
    stages: tuple[str, ...]
    """The stages that are to be done."""

    @property
    def study_dir(self) -> Path:
        """The folder of the study that is trained."""
        return self.cells[0].folder.study_dir

    @property
    def folder(self) -> Path | None:
        """The prepared folder that the cells draw from; None where their task draws from none.
        Raises UserError: there are several."""
        paths = {str(cell.config.task.path) for cell in self.cells if _draws(cell)}
        if len(paths) > 1:
            raise UserError(
                f"The cells draw from several folders ({', '.join(sorted(paths))}), but a pipeline"
                " prepares one. Type one task.path=, and run a pipeline for each of the others."
            )
        return Path(paths.pop()).expanduser() if paths else None


def _draws(cell: Cell) -> bool:
    return cell.config.task.name == "mixed"


def steps_of(plan: Plan, stage: str) -> list[Step] | str:
    """The steps of a stage by what is there now, or why it is left out.
    Raises UserError: settings that do not go together, or files of data.root that are not there."""
    if stage not in plan.stages:
        return "it is not in stages="
    folder, task = plan.folder, plan.cells[0].config.task.name
    if stage in ("download", "prepare") and folder is None:
        return f"task={task} draws no rows of data="
    if stage == "download":
        return [_download(plan)]
    if stage == "prepare":
        return [_prepare(plan, folder)]
    if stage == "train":
        return [_train(plan, folder)]
    if stage == "report":
        return [_report(plan)]
    names_datasets = any(word.startswith("datasets=") for word in plan.evaluation)
    if folder is None and not names_datasets:
        return f"task={task} has no verifiable sets; name some with evaluate.datasets="
    return [
        _evaluate(plan, cell, "" if names_datasets else _tested(plan, folder))
        for cell in plan.cells
    ]


def _tested(plan: Plan, folder: Path | None) -> str:
    """The sets to evaluate: those with a test row in the prepared folder, all while there is none.
    Of the others every row is one to train on."""
    names = plan.data.datasets
    if folder is not None and (folder / MANIFEST).exists():
        counts = read_manifest(folder)["counts"]
        names = [name for name in counts if counts[name].get("test")]
    return ",".join(names)


def command_line(words: Sequence[str]) -> str:
    """What to type for a step."""
    return f"python -m {shlex.join(words)}"


def _sources(data: Data) -> list[Path]:
    """The official files of all sets. Raises UserError: a set has none."""
    return [
        path for name in data.datasets for path in sets.located(name, data.folder(name)).values()
    ]


def _download(plan: Plan) -> Step:
    """Without anything to do where ``data.root`` has the files."""
    data = plan.data
    words = ["experiments.data", "download", f"data={data.name}", *plan.typed_data]
    if data.root is not None:
        _sources(data)  # refused now, and not after what follows
        idle = f"data.root={data.root} has the files"
        return Step("download", "download", (), {}, list, list, idle=idle)
    settings = {"datasets": sorted(data.datasets)}
    return Step("download", "download", tuple(words), settings, list, lambda: _sources(plan.data))


def _prepare(plan: Plan, folder: Path | None) -> Step:
    assert folder is not None
    data = plan.data
    words = ["experiments.data", "prepare", f"data={data.name}", *plan.typed_data]
    settings = dataclasses.asdict(data)
    del settings["root"]  # its files count, and not where they lie

    def again(outcome: Outcome) -> None:
        if folder.absolute() / MANIFEST in outcome.damaged:
            shutil.rmtree(folder, ignore_errors=True)  # prepare replaces what has a manifest alone

    return Step(
        *("prepare", "prepare", (*words, f"out={folder}")),
        {**settings, "out": str(folder.absolute())},
        lambda: _sources(data),
        lambda: [folder / MANIFEST, folder / ROWS, *(folder / "test").iterdir()],
        again,
    )


def check_folder(step: Step, before: Sequence[str]) -> None:
    """Refuse to replace a prepared folder that was made with other settings than those of ``step``,
    and of the words by which it was begun ``before``.
    Raises UserError: it would be."""
    folder = Path(step.words[-1].partition("=")[2])
    if not (folder / MANIFEST).exists():
        return
    words_before = set(shlex.split(read_manifest(folder).get("command", ""))[2:])
    words_now = _settings(step.words)
    words_before.discard(ROOT)
    if words_before not in (words_now, _settings(before)):
        theirs, ours = (
            " ".join(sorted(words))
            for words in (words_before - words_now, words_now - words_before)
        )
        raise UserError(
            f"{folder} was prepared with {theirs or 'nothing'} instead of {ours or 'nothing'}, and"
            " is not replaced. Type task.path=ANOTHER_FOLDER, or skip=download,prepare to train"
            " on it as it is."
        )


def _settings(words: Sequence[str]) -> set[str]:
    """The words of a command that prepares rows, but for where they come from and go to."""
    bare = (word.lstrip("+") for word in words)
    return {word for word in bare if not word.startswith(("out=", "data.root="))}


def _train(plan: Plan, folder: Path | None) -> Step:
    words = ["experiments.sweep", *plan.sweep]
    words += [f"device={plan.device}"] if plan.device else []
    words += ["sweep.report=false"] if "report" in plan.stages else []

    def again(outcome: Outcome) -> None:
        for place in study_cells(plan.study_dir):
            hurt = [path for path in outcome.damaged if path.is_relative_to(place.path)]
            lesser = all(path.parts[len(place.path.parts)] in (POLICY, "DONE") for path in hurt)
            if outcome.other_files or not lesser:
                _set_aside(place)
            elif hurt:  # the last checkpoint has the policy
                shutil.rmtree(place / POLICY, ignore_errors=True)
                (place / "DONE").unlink(missing_ok=True)

    def leaves() -> Iterable[Path]:
        for cell in plan.cells:
            yield cell.folder / "DONE"
            yield from _records(cell.folder)
            yield from _policy(cell.folder)

    return Step(
        *("train", "train", tuple(words)),
        {"cells": sorted(cell.name for cell in plan.cells)},
        lambda: [folder / ROWS] if folder else [],
        leaves,
        again,
    )


def _records(place: CellFolder) -> Iterator[Path]:
    yield place / METRICS
    for kind in (*KINDS, CALLS):
        yield from {part.path for part in place.parts(kind)}


def _policy(place: CellFolder) -> list[Path]:
    """The files of a cell's policy. Raises UserError: there is none."""
    paths = [path for path in (place / POLICY).rglob("*") if path.is_file()]
    if not paths:
        raise UserError(
            f"{place / POLICY} is missing: the cell has not finished. Train it first: keep train"
            " in stages=, and out of skip=."
        )
    return paths


def _set_aside(place: CellFolder) -> None:
    """Move a cell away that was trained on other rows, or whose records are damaged, so that it is
    trained anew; its run in MLflow stays, and is no longer the cell's."""
    folder = place.study_dir / REPLACED
    folder.mkdir(exist_ok=True)
    number = 1 + sum(1 for path in folder.iterdir() if path.name.startswith(place.name))
    there = folder / f"{place.name}-{number}"
    release(place, there.name)
    place.path.rename(there)
    print(f"{place.name} is now {there}, so it is trained again.", flush=True)


def _evaluate(plan: Plan, cell: Cell, datasets: str) -> Step:
    """The evaluation of a cell; ``datasets`` is empty where the user named the sets."""
    results = plan.study_dir / "results" / "pipeline"
    out = results / f"{cell.name}.json"
    words = ["experiments.evaluate", "datasets", f"run={cell.folder}"]
    words += [f"datasets={datasets}"] if datasets else []
    words += [f"data.root={plan.data.root}"] if plan.data.root is not None else []
    words += [f"runs_dir={plan.study_dir.parent}", *plan.evaluation]

    def reads() -> Iterable[Path]:
        yield from _policy(cell.folder)
        if datasets:
            yield from _sources(plan.data)

    def leaves() -> Iterable[Path]:
        yield out
        yield from (Path(entry["items"]) for entry in read_json(out).get("datasets", []))
        yield from results.glob(f"{cell.name}.responses*.jsonl")

    def again(outcome: Outcome) -> None:
        changed = outcome.other_files or outcome.other_settings
        answers = [out, *results.glob(f"{cell.name}.responses*.jsonl")]
        for path in answers if changed else outcome.damaged:
            path.unlink(missing_ok=True)

    return Step(
        *("evaluate", f"evaluate {cell.name}", (*words, f"out={out}")),
        {"words": [word for word in words if not word.startswith("data.root=")]},
        *(reads, leaves, again),
        variables=plan.variables,
    )


def _report(plan: Plan) -> Step:
    study_dir = plan.study_dir
    words = ("analysis.report", f"study={study_dir.name}", f"runs_dir={study_dir.parent}")
    return Step(
        *("report", "report", words),
        {},
        lambda: [path for place in _done_cells(study_dir) for path in _records(place)],
        lambda: [study_dir / name for name in REPORT],
    )


def _done_cells(study_dir: Path) -> list[CellFolder]:
    """The cells of the study that have come to their end. Raises UserError: there is none."""
    folders = [folder for folder in study_cells(study_dir) if folder.is_done()]
    if not folders:
        raise UserError(
            f"{study_dir} has no finished cell. Train one first: keep train in stages=, and out of"
            " skip=."
        )
    return folders
