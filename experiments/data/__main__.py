"""Rows to train on and to test on: prepared once, verified later, described before anybody does.

    python -m experiments.data download data=official
    python -m experiments.data prepare data=official datasets=gsm8k,math out=data/official
    python -m experiments.data verify data=official
    python -m experiments.data register path=mine.jsonl
    python -m experiments.data draw data=plan-c steps=100 prompts_per_step=4 seed=0 out=drawn.jsonl
    python -m experiments.data biasset n=250 seed=0 out=bias.jsonl
    python -m experiments.data biasset out=bias.jsonl fill=ypolicy_raw run=runs/STUDY/CELL
    python -m experiments.data biasset out=bias.jsonl fill=variants rewriter=qwen3-32b
    python -m experiments.data describe task=verinstruct-verif
    python -m experiments.data prepare task=verinstruct-verif out=verinstruct.jsonl
    python -m experiments.data verify path=verinstruct.jsonl

With data=, the rows are those of verifiable sets, such as GSM8K, and out= is a folder: rows.arrow,
test/ and a manifest with hashes of sources and rows, counts by set and split, licences, and what
was left out because it would leak. With task=, they are those of a file of prompts, and out= is a
file in the plain short form. register makes such a folder of {problem, answer, type}. draw writes
the rows that a run of task=mixed draws from such a folder, step by step, and info.json beside them.
biasset draws the prompts that probe judges for biases and fills their slots: docs/probes.md.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.data import prompt_files
from experiments.data.bias_set import bias_set
from experiments.data.bias_set_options import BiasSetOptions
from experiments.data.download import completed, download
from experiments.data.draw import draw
from experiments.data.parts import part, registered_parts, stem_of
from experiments.data.prepare import prepare
from experiments.data.verify import changed_sources, verify
from study.cli import check_place, command, option, overrides, preset, word
from study.config import bounds
from study.config.bounds import MOST_SEED, Choice, Number
from study.config.compose import load_presets
from study.config.schema import MANY, Task
from study.errors import UserError
from study.system.files import sha256
from study.tasks import prompts
from study.tasks.datasets.preset import DOWNLOADED, Data, load_data
from study.tasks.datasets.sets import SETS
from study.tasks.datasets.table import read_manifest
from study.tasks.where import task_path

BY_TASK = ("prepare", "describe")
BY_DATA = ("download", "prepare", "verify", "register", "draw")
DRAWN = ("draw",)
BIAS = ("biasset",)


@dataclass(frozen=True)
class Options(BiasSetOptions):
    """Options of `experiments.data`: what to do, to which rows, and where they go."""

    what: str = word(
        "download sets, prepare or verify rows, register your own file, draw rows as a run does,"
        " describe a task's rows, or make the set that probes judges for biases",
        *("download", "prepare", "verify", "register", "draw", "describe", "biasset"),
    )
    data: str = preset("data", default="", only=BY_DATA)
    task: str = preset("task", default="", only=BY_TASK)
    datasets: list[str] = option(
        "sets, in place of the preset's",
        [],
        Choice(tuple(SETS)),
        only=("download", "prepare", "verify", "draw"),
    )
    out: Path | None = option(
        "folder of the rows, default data/PRESET; with task=, draw or biasset a JSONL file",
        only=(*BY_DATA, *BIAS),
    )
    path: Path | None = option(
        "prepared file or folder, the rows to register, or a bias set to go on with",
        only=("verify", "register", "draw", *BIAS),
    )
    steps: int = option("steps of the run", legal=Number(1, high=MANY), required=True, only=DRAWN)
    prompts_per_step: int = option(
        "prompts of a step", legal=Number(1, high=MANY), required=True, only=DRAWN
    )
    seed: int = option(
        "seed of the run, or of the draw", 0, Number(0, high=MOST_SEED), only=(*DRAWN, *BIAS)
    )
    overrides: list[str] = overrides("data.", "task.", "judge.", only=(*BY_DATA, "describe", *BIAS))

    def check(self) -> None:
        """Refuse what does not go together."""
        if self.task and self.data:
            raise UserError("task= and data= name different kinds of rows. Give only one.")
        if self.task and self.datasets:
            raise UserError("datasets= has no meaning with task=, only with data=. Leave it out.")
        if self.what == "describe" and not self.task:
            raise UserError("experiments.data describe needs task= (preset of the task).")
        if self.what == "prepare" and not (self.task or self.data):
            raise UserError(
                "experiments.data prepare needs data= (preset of verifiable sets) or task= (preset"
                " of the task)."
            )
        if self.what == "prepare" and self.task and not self.out:
            raise UserError("experiments.data prepare needs out= (JSONL file of the rows).")
        if self.what == "verify" and not (self.path or self.data or self.out):
            raise UserError("experiments.data verify needs path= (prepared file) or data=.")
        if self.what == "register" and not self.path:
            raise UserError("experiments.data register needs path= (JSONL file of your rows).")
        if self.what == "draw" and not ((self.path or self.data) and self.out):
            raise UserError(
                "experiments.data draw needs out= (JSONL file), and data= (preset that was prepared"
                " in data/PRESET) or path= (prepared folder)."
            )
        if self.what == "biasset":
            self.check_bias_set(self.path, self.out)
        if self.what in (*DRAWN, *BIAS) and self.out:
            check_place("out", self.out)
        if self.what == "draw" and self.typed("task.path="):
            raise UserError(
                "task.path= has no meaning with draw. Give the prepared folder as path=."
            )
        prefix = "task." if self.task else ("data.", "task.") if self.what == "draw" else "data."
        prefix = "judge." if self.what == "biasset" else prefix
        for typed in self.overrides:
            if not typed.lstrip("+~").startswith(prefix):
                raise UserError(f"{typed} has no meaning here. Settings start with {prefix}.")

    def sets(self, default: str = "official") -> Data:
        """The preset of verifiable sets, with what was typed over it."""
        return load_data(self.data or default, self.typed("data."), self.datasets)

    def loaded_task(self) -> Task:
        """The preset of a task, with what was typed over it."""
        return load_presets("sim-fair", self.task or "mixed", self.typed("task."))[1]

    def typed(self, beginning: str) -> list[str]:
        """The settings that were typed and begin so."""
        return [text for text in self.overrides if text.lstrip("+~").startswith(beginning)]


Printed = Mapping[str, object]
"""What a command prints: a manifest, or counts."""


def _download(options: Options) -> Printed:
    return download(options.sets(), options.out or DOWNLOADED)


def _prepare(options: Options) -> Printed:
    if options.task:
        return prompt_files.prepare(options.loaded_task(), options.out or Path())
    data = options.sets()
    parts = [part(name, completed(name, data)) for name in data.datasets]
    return prepare(parts, data, _folder(options, data.name), _command(options, data))


def _verify(options: Options) -> Printed:
    path = options.path or _folder(options, options.data)
    if options.path and not path.is_dir():
        return prompt_files.verify(path)
    root = options.sets().root
    return verify(path, Path(root).expanduser() if root else None, options.datasets)


def _register(options: Options) -> Printed:
    path = options.path or Path()
    data = options.sets("plan-c")
    if not data.cut:
        legal = "two numbers such as [5,1]: registered rows are one file, which is cut"
        bounds.refuse("data.cut", "[]", legal)
    out = _folder(options, stem_of(path))
    return prepare(registered_parts(path), data, out, _command(options, data))


def _draw(options: Options) -> Printed:
    folder = options.path or Path("data") / options.data
    if options.path is None and not folder.exists():
        print(f"data={options.data} is prepared in {folder} first", file=sys.stderr)
        _prepare(replace(options, what="prepare", out=folder, datasets=[]))
    elif typed := options.typed("data."):
        _check_prepared(folder, typed, options.sets().root)
    task = replace(options.loaded_task(), path=str(folder))
    if options.datasets:
        task = replace(task, options={**task.options, "datasets": options.datasets})
    assert options.out is not None, "it was asked for"
    return draw(task, options.steps, options.prompts_per_step, options.seed, options.out)


def _check_prepared(folder: Path, typed: list[str], root: str | None) -> None:
    """Raises UserError: a prepared folder was made with other settings, or from other files."""
    manifest = read_manifest(folder)
    words = shlex.split(manifest.get("command", ""))
    wrong = [text for text in typed if text not in words and not _is_root(text)]
    wrong += changed_sources(manifest, Path(root).expanduser()) if root else []
    if wrong:
        raise UserError(
            f"{folder} is already prepared, with other settings: {'; '.join(wrong)}. Leave the"
            " data. settings out, or prepare another folder and type path=FOLDER."
        )


def _command(options: Options, data: Data) -> str:
    """What makes such a folder again, but for ``out=`` and the place of the official files."""
    words = [options.what, *([f"path={options.path}"] if options.path else []), f"data={data.name}"]
    words += [f"datasets={','.join(options.datasets)}"] if options.datasets else []
    words += ["data.root=DIR" if _is_root(text) else text for text in options.typed("data.")]
    return f"python -m experiments.data {shlex.join(words)}"


def _is_root(text: str) -> bool:
    return text.lstrip("+").startswith("data.root=")


def _describe(options: Options) -> Printed:
    task = options.loaded_task()
    described = prompt_files.description(task, prompts.load(task))
    return {**described, "sha256": sha256(task_path(task))}


def _folder(options: Options, name: str) -> Path:
    return options.out or Path("data") / name


def _bias_set(options: Options) -> Printed:
    assert options.out is not None, "it was asked for"
    return bias_set(options, options.path, options.out, options.seed, options.overrides)


COMMANDS: dict[str, Callable[[Options], Printed]] = {
    "download": _download,
    "prepare": _prepare,
    "verify": _verify,
    "register": _register,
    "draw": _draw,
    "describe": _describe,
    "biasset": _bias_set,
}


@command("experiments.data prepare data=official out=data/official", __doc__, Options)
def main(options: Options) -> int:
    """Print the manifest. Exit codes: 0, or 2 for a user's error."""
    print(json.dumps(COMMANDS[options.what](options), indent=1, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
