"""From the cells of a study at full size to those of its rehearsal.

A cell of the rehearsal has the same arms, prompts, gradings, reward and trainer. It has fewer
prompts a step and steps, a policy that stands for the real one, and judges at the rehearsal's
endpoint, in names that say so and under a revision of their own: no reply of theirs can be taken
for one of the real judge. The limits on what is asked at once shrink with the rollouts of a step,
and the times by one factor, so that a step waits as long as at full size over that factor.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.policies.tiny import build_missing
from experiments.rehearsal.filler import TOKENS_AT_ONCE, build_policy
from experiments.sweep import cells_of
from study.cell.cells import Cell, make_cell
from study.config.endpoints import REHEARSED
from study.config.schema import ByAudit, Model, Study
from study.errors import UserError
from study.system.files import read_json, write_json
from study.tasks import kind_of

NAME = "simulated-"
"""What the name of a rehearsed judge begins with."""
STUDY = "rehearsal-"
MINI: Mapping[str, tuple[str, ...]] = {
    "verinstruct": ("task=instruct-mini", "reward.rules=ignore"),
    "verinstruct-verif": ("task=instruct-mini", "reward.rules=ignore"),
    "healthbench": ("task=instruct-mini",),
    "researchqa": ("task=instruct-mini",),
    "prompts": ("task=instruct-mini",),
    "mixed": ("task=mixed-mini",),
}
"""Task whose rows may be missing -> settings of the generated one of its kind."""
PROGRAMS = (
    "task=workflow-mini",
    "workflow.form=dsl",
    "workflow.prompt=problem",
    "workflow.buffer.shots=0",
)
"""The programs that the tiny policy learns to write, in a world that a table answers for."""
TAUGHT = ("policy=tiny", "policy.warmup.steps=300", "policy.warmup.learning_rate=0.002")
PROGRAM_TOKENS = 24
HELD_OUT = 4
"""Held-out rows of a rehearsal."""
DEADLINE_S, IDLE_S = 60.0, 15.0
"""Least time-outs: what this machine itself takes is not divided."""


@dataclass(frozen=True)
class Full:
    """A study at full size."""

    experiment: str
    settings: tuple[str, ...]
    """As they were typed."""
    cells: Sequence[Cell]
    notes: tuple[str, ...]
    """Where its rows are not those of the experiment, and why."""

    @property
    def config(self) -> Study:
        """Of its first cell: what cells of a study have in common."""
        return self.cells[0].config

    @property
    def rollouts_a_step(self) -> int:
        """Of one cell."""
        trainer = self.config.trainer
        return trainer.prompts_per_step * trainer.group_size


@dataclass(frozen=True)
class Scale:
    """How much of a study is rehearsed, and how fast."""

    prompts: tuple[int, ...]
    """Prompts a step of each size."""
    steps: int
    seeds: int
    factor: float


def full_study(experiment: str, settings: Sequence[str]) -> Full:
    """The study of ``experiment`` with the settings of a sweep; where rows are not on this machine,
    with those of the generated task of that kind.
    Raises UserError: it cannot be composed, or rows are missing and there is no such task."""
    words = (f"experiment={experiment}", *settings)
    cells = cells_of(words)
    config = cells[0].config
    if config.world == "workflow":
        return Full(
            experiment,
            tuple(settings),
            cells_of(_replaced(words, PROGRAMS)),
            (
                "programs of the short form for the rows of task=workflow-mini: the tiny policy"
                " writes no others, and the simulated executor answers no others",
            ),
        )
    try:
        kind_of(config.task).rows(config.task, "train")
    except UserError as missing:
        if config.task.name not in MINI:
            raise
        mini = MINI[config.task.name]
        why = f"the rows of task={config.task.name} are not here: rehearsed with {' '.join(mini)}"
        try:
            return Full(experiment, tuple(settings), cells_of(_replaced(words, mini)), (why,))
        except UserError as error:
            raise missing from error
    return Full(experiment, tuple(settings), cells, ())


def _replaced(words: Sequence[str], ours: Sequence[str]) -> list[str]:
    """``words`` without those whose key is one of ours, and ours."""
    keys = {word.partition("=")[0] for word in ours}
    return [word for word in words if word.lstrip("+~").partition("=")[0] not in keys] + [*ours]


def check_scale(full: Full, scale: Scale) -> None:
    """Raises UserError: the sizes are not three or more, not smaller than the study, or not apart;
    or there is nobody to rehearse."""
    trainer = full.config.trainer
    prompts = scale.prompts
    if len(prompts) < 3 or sorted(set(prompts)) != list(prompts):
        raise UserError(
            f"prompts={','.join(map(str, prompts))} must be three different numbers or more, the"
            " smallest first: the line through them is what full size is read from. Type for"
            " example prompts=1,2,4."
        )
    if prompts[-1] > trainer.prompts_per_step:
        raise UserError(
            f"prompts={','.join(map(str, prompts))} has more prompts a step than"
            f" experiment={full.experiment} itself, which has {trainer.prompts_per_step}. Type"
            f" smaller ones, for example prompts=1,2,{min(4, trainer.prompts_per_step)}."
        )
    if scale.steps > trainer.steps:
        raise UserError(
            f"steps={scale.steps} is more than the {trainer.steps} of"
            f" experiment={full.experiment}. Type steps={min(2, trainer.steps)}."
        )
    if not endpoint_models(full.cells[0]):
        raise UserError(
            f"experiment={full.experiment} asks {full.config.judge.name}, which is computed here:"
            " there is no endpoint to rehearse. Run the study itself, with trainer.steps=2, or type"
            " judge=NAME of a judge that is a model, for example judge=qwen3-32b."
        )


def endpoint_models(cell: Cell) -> list[Model]:
    """The judges and the executor of a cell that are models at an endpoint."""
    config = cell.config
    models: list[Model] = [config.judge, *config.shadows]
    if config.world == "workflow":
        models.append(config.executor)
    return [model for model in models if not _is_computed(model)]


def _is_computed(model: Model) -> bool:
    return model.simulated is not None or getattr(model, "scorer", None) is not None


def build_rehearsal_policy(full: Full, folder: Path) -> Path:
    """The policy of the rehearsal in ``folder``; it is made once. Raises UserError: as
    `experiments.policies.tiny.build_missing`."""
    folder.mkdir(parents=True, exist_ok=True)
    if full.config.world != "workflow":
        most = max(cell.config.trainer.max_completion_length for cell in full.cells)
        return build_policy(folder / "filler", max(1, most // TOKENS_AT_ONCE))
    cell = cells_of(
        _replaced(
            [f"experiment={full.experiment}", *full.settings],
            [*PROGRAMS, *TAUGHT],
        )
    )[0]
    return build_missing(cell.config.policy, cell.config.task, folder)


def rehearsed_cells(
    full: Full,
    scale: Scale,
    prompts: int,
    runs_dir: Path,
    policy: Path,
    url: Callable[[Model], str],
) -> list[Cell]:
    """The cells of one size of the rehearsal, in ``runs_dir``.

    Args:
        policy: folder of the model that is trained.
        url: where a model answers.
    """
    seeds = sorted({cell.config.seed for cell in full.cells})[: scale.seeds]
    share = prompts / full.config.trainer.prompts_per_step
    chosen = [cell for cell in full.cells if cell.config.seed in seeds]
    return [_rehearsed(cell, full, scale, prompts, share, runs_dir, policy, url) for cell in chosen]


def _rehearsed(
    cell: Cell,
    full: Full,
    scale: Scale,
    prompts: int,
    share: float,
    runs_dir: Path,
    policy: Path,
    url: Callable[[Model], str],
) -> Cell:
    data: dict[str, Any] = copy.deepcopy(dict(cell.data))
    config = cell.config
    is_program = config.world == "workflow"
    length = config.trainer.max_completion_length
    data |= {
        "study": f"{STUDY}{full.experiment}",
        "runs_dir": str(runs_dir),
        "plan": False,
        "device": "cpu",
    }
    data["policy"] |= {
        "name": "tiny" if is_program else "filler",
        "family": "rehearsal",
        "size": "tiny",
        "path": str(policy),
        "chat_template": None,
        "dtype": "float32",
        "warmup": None,
        "architecture": {},
    }
    data["task"]["eval_rows"] = min(config.task.eval_rows, HELD_OUT)
    data["trainer"] |= {
        "steps": scale.steps,
        "prompts_per_step": prompts,
        "micro_batch": config.trainer.group_size,
        "max_completion_length": (
            PROGRAM_TOKENS if is_program else max(1, length // TOKENS_AT_ONCE)
        ),
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "eval_steps": min(config.trainer.eval_steps, scale.steps),
    }
    data["trainer"]["vllm"]["mode"] = "none"
    data["tracking"] |= {"uri": f"sqlite:///{runs_dir / 'mlflow.db'}", "artifacts": None}
    data["store"] = {"dir": "", "beside": []}
    data["sweep"] |= {
        "accelerate": "",
        "gpus_per_cell": 0.0,
        "notify": "",
        "notify_env": None,
    }
    data["truth"] = dataclasses.asdict(ByAudit())  # a rule knows the truth of rehearsed rows
    models: list[tuple[dict[str, Any], Model]] = [(data["judge"], config.judge)]
    data["shadow_judges"] = [dataclasses.asdict(judge) for judge in config.shadows]
    models += list(zip(data["shadow_judges"], config.shadows, strict=True))
    if is_program:
        models.append((data["executor"], config.executor))
    for settings, model in models:
        if not _is_computed(model):
            _at_endpoint(settings, model, url(model), share, scale.factor)
    return make_cell(data)


def _at_endpoint(
    settings: dict[str, Any], model: Model, url: str, share: float, factor: float
) -> None:
    """Let a model be asked at the endpoint of the rehearsal, in a name that says so."""
    endpoint = model.endpoint
    settings["name"] = f"{NAME}{model.name}"
    settings["revision"] = REHEARSED
    settings["serve"] = settings["serve"] | {"auto": False}
    settings["endpoint"] |= {
        "url": url,
        "replicas": [],
        "start_command": "",
        "max_concurrency": max(1, round(endpoint.max_concurrency * share)),
        "deadline_s": max(DEADLINE_S, endpoint.deadline_s / factor),
        "idle_timeout_s": max(IDLE_S, endpoint.idle_timeout_s / factor),
        "backoff_s": endpoint.backoff_s / factor,
    }
    for limit in ("requests_per_min", "tokens_per_min"):
        value = getattr(endpoint, limit)
        settings["endpoint"][limit] = None if value is None else value * share * factor


SETTINGS = "settings.json"


def settle(folder: Path, full: Full, scale: Scale) -> None:
    """Note in ``folder`` what is rehearsed there.
    Raises UserError: it holds another rehearsal."""
    noted = {
        "rehearsal": REHEARSED,
        "experiment": full.experiment,
        "settings": list(full.settings),
        **dataclasses.asdict(scale),
        "prompts": list(scale.prompts),
    }
    before = read_json(folder / SETTINGS) or noted
    changes = [
        f"{key} was {before.get(key)}, not {noted[key]}"
        for key in noted
        if before.get(key) != noted[key]
    ]
    if changes:
        raise UserError(
            f"{folder} holds another rehearsal: {'; '.join(changes)}. Type the same settings to go"
            " on with it, or runs_dir=ANOTHER_FOLDER for a new one."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SETTINGS, noted)
