"""Every setting of a study: its name, type, default and bounds, as frozen dataclasses.

``conf/*`` holds values. Beside a field stand what it may hold (`study.config.bounds`) and what it
is for (`study.config.marks`): whether it is part of a cell's hash or of a judge's identity, and
whether MLflow shows it. Hydra checks YAML against mutable twins (`schema`); `freeze` makes the
frozen config.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import types
import typing
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from study.config import bounds
from study.config.correction import Correction as Correction
from study.config.endpoints import MANY
from study.config.endpoints import Endpoint as Endpoint
from study.config.endpoints import Price as Price
from study.config.endpoints import Sampling as Sampling
from study.config.endpoints import Serve as Serve
from study.config.judge import Grading as Grading
from study.config.judge import Judge as Judge
from study.config.judge import Scorer as Scorer
from study.config.marks import dataclass_of, field_types, mlflow_param, run_time
from study.config.programs import Embedder as Embedder
from study.config.programs import Executor as Executor
from study.config.programs import Workflow as Workflow
from study.config.reward import Overlong as Overlong
from study.config.reward import Repetition as Repetition
from study.config.reward import Reward as Reward
from study.config.reward import Scaffold as Scaffold
from study.config.simulated import Failure as Failure
from study.config.simulated import Simulated as Simulated
from study.config.slurm import Slurm
from study.config.vllm import Vllm
from study.system.secrets import refuse_variable

Options = TypeVar("Options")


@dataclass(frozen=True)
class Lora:
    """The low-rank adapter that is trained in place of all weights."""

    r: int = bounds.number(16, low=1, high=65_536, unit="rank")
    """Rank of the adapter."""
    alpha: int = bounds.number(32, low=1, high=MANY, unit="factor")
    """Scale of the adapter: its update counts alpha / r."""
    dropout: float = bounds.number(0.0, low=0, below=1, unit="share")
    """Share of the adapter's inputs that are dropped in an update."""
    target_modules: str = "all-linear"
    """Layers that get an adapter, as peft names them."""


@dataclass(frozen=True)
class Warmup:
    """Supervised steps that teach a policy its task, or the form of its answers, before RL; the
    tiny policy knows nothing without them."""

    steps: int = bounds.number(0, low=0, high=MANY, unit="steps")
    """Supervised steps before RL; 0 is none."""
    batch: int = bounds.number(64, low=1, high=MANY, unit="examples")
    """Examples of a supervised step."""
    learning_rate: float = bounds.number(3e-3, low=0, unit="step size")
    """Learning rate of the supervised steps."""
    seed: int = bounds.seed(0)
    """Seed of the order of the examples."""


@dataclass(frozen=True)
class Policy:
    """The model that is trained, and how it is loaded and warmed up."""

    name: str = bounds.name("", empty=True)
    """Its name in tables; that of its preset."""
    family: str = ""
    """Model family, by which studies are grouped."""
    size: str = ""
    """Number of parameters, such as 8B."""
    path: str = ""
    """Hugging Face folder or hub id; ``tiny`` builds a small policy and teaches it the task."""
    chat_template: str | None = None
    """A template in place of the model's own: a name in experiments/policies/templates, or a
    .jinja file."""
    dtype: str = bounds.choice("float32", "float32", "bfloat16", "float16", "float64")
    """Number format of the weights in training."""
    lora: Lora | None = None
    warmup: Warmup | None = None
    architecture: dict[str, int] = field(default_factory=dict, metadata=bounds.COUNTS)
    """Only for ``tiny``: hidden_size, layers, heads, intermediate_size."""


@dataclass(frozen=True)
class Task:
    """Where rows come from, and how many are trained on and held out."""

    name: str = ""
    """Kind of the task; presets: judgedrift presets task."""
    path: str | None = None
    """JSONL or Parquet of prompts, for tasks that read a file."""
    train_rows: int = bounds.number(2048, low=1, high=1000 * MANY, unit="rows")
    """Rows to train on."""
    eval_rows: int = bounds.number(256, low=0, high=1000 * MANY, unit="rows")
    """Held-out rows."""
    seed: int = bounds.seed(0)
    """Seed by which rows are made and held out; arms must share it."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of that task; see docs/extending.md."""


@dataclass(frozen=True)
class Trainer:
    """GRPO by TRL; names follow TRL's where one exists."""

    steps: int = bounds.number(40, low=1, high=MANY, unit="steps")
    """Updates of the policy; one draws prompts_per_step x group_size completions."""
    prompts_per_step: int = bounds.number(8, low=1, high=MANY, unit="prompts")
    """Prompts of one step."""
    group_size: int = bounds.number(8, low=2, high=MANY, unit="completions per prompt")
    """Completions of one prompt, whose rewards are compared with one another."""
    micro_batch: int = bounds.number(64, low=1, high=MANY, unit="completions")
    """Rollouts per forward and backward pass; prompts_per_step x group_size divides by it."""
    max_completion_length: int = bounds.number(32, low=1, high=MANY, unit="tokens")
    """Most tokens of a completion, thinking included."""
    temperature: float = bounds.number(1.0, low=0.001, high=100, unit="temperature")
    """Temperature at which the policy's completions are drawn."""
    top_p: float = bounds.number(1.0, above=0, high=1, unit="share of probability")
    """Share of the probability that the policy's tokens are drawn from."""
    top_k: int = bounds.number(0, low=0, high=MANY, unit="tokens")
    """Most probable tokens that one is drawn from; 0 takes all."""
    learning_rate: float = bounds.number(1e-3, low=0, unit="step size")
    """Step size of the optimiser, AdamW."""
    beta: float = bounds.number(0.0, low=0, unit="reward per nat")
    """Weight of the KL penalty that holds the policy near its start; 0 is none."""
    epsilon: float = bounds.number(0.2, above=0, unit="share")
    """Largest change of a token's probability ratio that is rewarded (PPO's clip)."""
    loss_type: str = bounds.choice(
        "dapo", "dapo", "grpo", "bnpo", "dr_grpo", "cispo", "luspo", "sapo", "vespo"
    )
    """How token losses become one loss, by TRL's names."""
    scale_rewards: str = bounds.choice("group", "group", "batch", "none")
    """What a group's centred rewards are divided by: its standard deviation (group), that of the
    batch, or 1 (none)."""
    max_grad_norm: float = bounds.number(1.0, low=0, unit="norm")
    """Gradient norm beyond which an update is scaled down; 0 never."""
    weight_decay: float = bounds.number(0.0, low=0, unit="share per step size")
    """Weight decay of AdamW."""
    lr_scheduler: str = bounds.choice(
        "constant",
        *("constant", "linear", "cosine", "cosine_with_restarts", "polynomial"),
        *("constant_with_warmup", "inverse_sqrt"),
    )
    """Course of the learning rate over the steps, by transformers' names."""
    save_steps: int = run_time(bounds.number(1, low=1, high=MANY, unit="steps"))
    """Steps between checkpoints, from which a killed run resumes."""
    eval_steps: int = bounds.number(0, low=0, high=MANY, unit="steps")
    """Steps between evaluations of ``task.eval_rows`` held-out rows by rule, also before the first
    step and after the last; 0 is never."""
    eval_samples: int = bounds.number(0, low=0, high=MANY, unit="answers per row")
    """Sampled answers to each held-out row in frozen evaluation, from the same random numbers at
    every step and in every arm. All judges of the cell score them and the greedy answer, and they
    are recorded as rollouts are."""
    reference: float = run_time(bounds.number(0.5, low=0, high=1, unit="share"))
    """Share of a step's groups whose log-probabilities under the initial policy are recorded at
    beta = 0; costs their forward pass and, without LoRA, a copy of the weights. At beta > 0 TRL
    computes those of all groups."""
    keep_steps: bool = run_time(False)
    """Whether the policy of each evaluated step is kept in the cell's ``kept``, without
    optimiser."""
    gradient_checkpointing: bool = False
    """Whether activations are computed twice to save memory."""
    fast: bool = True
    """Whether each prompt is computed once per group, in generation and update, unlike in TRL."""
    vllm: Vllm = field(default_factory=Vllm)


@dataclass(frozen=True)
class Tracking:
    """What MLflow gets, where it keeps it, and how often."""

    enabled: bool = True
    """Whether MLflow gets anything; the records are written anyway."""
    uri: str | None = None
    """MLflow's store; null: MLFLOW_TRACKING_URI if it is set, else sqlite under the runs folder."""
    artifacts: str | None = None
    """URL for the files of a new experiment, such as s3://bucket/mlflow; null: MLflow's own place,
    or under the runs folder."""
    flush_steps: int = bounds.number(10, low=1, high=MANY, unit="steps")
    """Steps between writes to MLflow."""


@dataclass(frozen=True)
class Ray:
    """Where the Ray cluster of a sweep is."""

    address: str = ""
    """HOST:PORT of the cluster, or auto for the one that runs here; empty starts one here."""


@dataclass(frozen=True)
class Sweep:
    """How, where and how many at once the cells of a sweep run."""

    engine: str = bounds.choice("local", "local", "ray", "shard", "slurm")
    """Engine that runs the cells; see `experiments.launch.run`."""
    shard: str = ""
    """Share of the cells that ``engine=shard`` runs here, such as 1/2."""
    workers: int = bounds.number(0, low=0, high=1024, unit="cells")
    """Cells at once; 0 takes as many as this process's CPUs, GPUs and memory allow."""
    threads: int = bounds.number(0, low=0, high=1024, unit="threads")
    """Torch threads per cell; 0 takes its CPUs."""
    cpus_per_cell: int = bounds.number(0, low=0, high=1024, unit="CPUs")
    """CPUs per cell; 0 takes one and a share of the remaining ones."""
    gpus_per_cell: float = bounds.number(0.0, low=0, high=64, unit="GPUs")
    """GPUs per cell; 0 takes one, if any and ``device`` is not cpu; .5 lets two cells share one."""
    memory_per_cell_gb: float = bounds.number(0.0, low=0, high=100_000, unit="GB")
    """Main memory per cell, in GB; on CPUs, 0 takes the estimate of `experiments.plan.memory`."""
    retries: int = bounds.number(3, low=0, high=100, unit="restarts")
    """Restarts of a cell whose job or node was lost."""
    ray: Ray = field(default_factory=Ray)
    slurm: Slurm = field(default_factory=Slurm)
    accelerate: str = ""
    """Config file of `accelerate`, whose processes train each cell."""
    report: bool = True
    """Whether the sweep ends with the report."""
    looks: list[int] = field(default_factory=list)
    """Numbers of seeds, growing, at which the study's results are looked at; see
    docs/statistics.md. They are declared before a run is done; empty is one look."""
    notify: str = ""
    """Program, with plain words and local paths, to run when the sweep ends and on alarms; see
    docs/monitor.md."""
    notify_env: str | None = None
    """Environment variable with such a command, if the command contains a key."""


@dataclass(frozen=True)
class VerdictStore:
    """Where judges' replies are kept: in one file per node, on its own disk."""

    dir: str = ""
    """Absolute folder of ``verdicts.db`` on a local disk of each node, where ~ and $NAME are
    expanded; empty takes ``runs_dir``."""
    beside: list[str] = field(default_factory=list)
    """Absolute paths of merged stores, whose replies are copied instead of requested."""


@dataclass(frozen=True)
class Cost:
    """Limits on what one cell may spend on verdicts, shadow judges included; null is no limit."""

    max_usd: float | None = bounds.number(None, above=0, unit="US dollars")
    """Most that the verdicts of one cell may cost; it needs judge.price."""
    max_calls: int | None = bounds.number(None, above=0, unit="requests")
    """Most requests for the verdicts of one cell."""


@dataclass(frozen=True)
class ByAudit:
    """Truth of a drawn share of the groups, where no rule knows it; docs/audits.md."""

    audit: list[str] = field(default_factory=list, metadata=bounds.NAMES)
    """Judge presets that are asked about the drawn groups, and about no others, while a run is
    trained. Their mean score is the truth there; it is in no reward."""
    share: float = bounds.number(0.05, above=0, high=1, unit="share of the groups")
    """Share of the groups of each tenth of the steps that is drawn, two at least."""
    seed: int = bounds.seed(0)
    """Seed of the draw, which is made before the first step."""


@dataclass(frozen=True)
class Study:
    """The whole composed config of one job."""

    study: str = run_time(bounds.name("study", reserved=("probes", "servers", "mlartifacts")))
    """Name of the study, and of its folder in runs_dir."""
    arm: str = run_time(bounds.name("", empty=True))
    """The arm's display name in tables and figures; changes nothing."""
    factors: list[str] = run_time(field(default_factory=lambda: ["judge", "seed"]))
    """Keys in which the arms may differ; any other difference is refused."""
    runs_dir: str = run_time("runs")
    """Folder that holds the studies, or an s3:// URL."""
    plan: bool = run_time(False)
    """Whether to print what would run and cost, and write nothing."""
    device: str = run_time("")
    """Device of training, cpu or cuda:N; empty takes what there is. It moves no judge's server."""
    seed: int = mlflow_param(bounds.seed(0))
    """Seed of a run: fixes row order and sampling."""
    sandbox: str = run_time(bounds.choice("auto", "auto", "unsafe"))
    """Isolation of rule functions: auto refuses without any; unsafe runs them and records it."""
    shadow: list[str] = run_time(field(default_factory=list, metadata=bounds.NAMES))
    """Judge presets that score every rollout without any effect on training."""
    world: str = mlflow_param(bounds.choice("direct", "direct", "workflow"))
    """How a completion becomes an answer: as it is, or, with ``workflow``, as a program that an
    executor runs."""
    allow_same_model: bool = mlflow_param(False)
    """Whether one model may execute programs and judge their answers."""
    judge: Judge = field(default_factory=Judge)
    executor: Executor = field(default_factory=Executor)
    workflow: Workflow = mlflow_param(field(default_factory=Workflow))
    policy: Policy = mlflow_param(field(default_factory=Policy))
    task: Task = mlflow_param(field(default_factory=Task))
    reward: Reward = mlflow_param(field(default_factory=Reward))
    correction: Correction = mlflow_param(field(default_factory=Correction))
    truth: ByAudit = mlflow_param(field(default_factory=ByAudit))
    scaffold: Scaffold = mlflow_param(field(default_factory=Scaffold))
    trainer: Trainer = mlflow_param(field(default_factory=Trainer))
    tracking: Tracking = run_time(field(default_factory=Tracking))
    store: VerdictStore = run_time(field(default_factory=VerdictStore))
    cost: Cost = run_time(field(default_factory=Cost))
    sweep: Sweep = run_time(field(default_factory=Sweep))
    shadow_judges: list[Judge] = field(default_factory=list)
    """Filled by the sweep from ``shadow`` and ``truth.audit``; not for YAML."""

    @property
    def shadows(self) -> list[Judge]:
        """The judges of ``shadow``, which score every rollout."""
        return [each for each in self.shadow_judges if each.name not in self.truth.audit]

    @property
    def auditors(self) -> list[Judge]:
        """The judges of ``truth.audit``, which score drawn groups."""
        return [each for each in self.shadow_judges if each.name in self.truth.audit]


Model = Judge | Executor | Embedder
"""What is asked at an endpoint."""
GROUPS: dict[str, type] = {
    "judge": Judge,
    "executor": Executor,
    "policy": Policy,
    "task": Task,
    "reward": Reward,
    "scaffold": Scaffold,
    "trainer": Trainer,
    "tracking": Tracking,
}


@functools.cache
def schema(cls: type) -> type:
    """The mutable twin of a frozen dataclass, nested ones too (OmegaConf makes frozen read-only).

    One twin per class: OmegaConf takes two of the same name for different types.
    """
    specs = []
    for item in dataclasses.fields(typing.cast(Any, cls)):
        factory: Any = item.default_factory
        factory = schema(factory) if dataclasses.is_dataclass(factory) else factory
        spec = field(default=item.default, default_factory=factory)
        specs.append((item.name, _twin(field_types(cls)[item.name]), spec))
    twin = dataclasses.make_dataclass(cls.__name__, specs)
    # Launchers pickle the schemas into other processes; found by name there, not rebuilt by value
    twin.__module__, twin.__qualname__ = __name__, f"{cls.__name__}Schema"
    globals()[twin.__qualname__] = twin
    return twin


def _twin(hint: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return schema(typing.cast(type, hint))
    args = typing.get_args(hint)
    if not args:
        return hint
    twins = tuple(_twin(arg) for arg in args)
    if isinstance(hint, types.UnionType):
        return Union[twins]  # noqa: UP007 - built at run time
    return typing.get_origin(hint)[twins]


def freeze(cls: type, data: Any, at: str | None = None) -> Any:
    """Build the frozen dataclass ``cls`` from plain nested dicts, as YAML or JSON give them. ``at``
    is the key of ``data`` in a study, with a dot behind it; None is where a study has ``cls``.
    Raises KeyError: a key that the schema does not have.
    Raises IllegalValue: a value of another type, or one that is not legal for its field."""
    if data is None:
        return None
    if at is None:
        at = next((f"{group}." for group, member in GROUPS.items() if member is cls), "")
    if not isinstance(data, dict):
        bounds.refuse(at.removesuffix(".") or "the config", data, "a table of keys and values")
    hints = field_types(cls)
    if unknown := set(data) - set(hints):
        raise KeyError(f"{cls.__name__} has no {', '.join(sorted(map(str, unknown)))}")
    values = {}
    for item in dataclasses.fields(typing.cast(Any, cls)):
        if item.name in data:
            legal = item.metadata.get("legal")
            hint, value, where = hints[item.name], data[item.name], f"{at}{item.name}"
            values[item.name] = _freeze(hint, value, where, legal, item.default)
    return cls(**values)


def check_at(key: str, value: Any) -> None:
    """Refuse a value of a key of a study, as `freeze` does; texts are left to it, for OmegaConf
    makes one of most things. Raises IllegalValue."""
    kind: Any = Study
    item = None
    for name in key.split("."):
        part = dataclass_of(kind)
        if part is None or name not in field_types(part):
            return
        kind = field_types(part)[name]
        (item,) = (each for each in dataclasses.fields(typing.cast(Any, part)) if each.name == name)
    if item is not None and str not in (kind, *typing.get_args(kind)):
        _freeze(kind, value, key, item.metadata.get("legal"), item.default)


def _freeze(hint: Any, value: Any, where: str, legal: bounds.Legal | None, example: Any) -> Any:
    options = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    origin = typing.get_origin(hint)
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        return _freeze(options[0], value, where, legal, "null" if example is None else example)
    if hint is Any:
        bounds.check_finite(where, value)
        return value
    table = dataclasses.is_dataclass(hint) or origin is dict
    kinds = dict if table else list | tuple if origin is list else object
    if not isinstance(value, kinds):
        wanted = "a table of keys and values" if table else "a list, such as [a,b]"
        bounds.refuse(where, "null" if value is None else value, wanted, example)
    if dataclasses.is_dataclass(hint):
        return freeze(typing.cast(type, hint), value, f"{where}.")
    if origin is list:
        places = enumerate(value)
        return [_freeze(options[0], item, f"{where}.{n}", legal, None) for n, item in places]
    if origin is dict:
        if isinstance(legal, bounds.Name):  # of the keys, which become words and files
            for key in value:
                bounds.check(f"a key of {where}", key, legal)
            legal = None
        return {
            key: _freeze(options[1], item, f"{where}.{key}", legal, None)
            for key, item in value.items()
        }
    value = bounds.check_kind(where, value, hint, example)
    if legal is not None:
        bounds.check(where, value, legal, example)
    return value


def task_options(task: Task, kind: type[Options]) -> Options:
    """``task.options`` as the dataclass that the task's module has for them.
    Raises IllegalValue: a key that it does not have, or as `freeze`."""
    legal = bounds.Choice(tuple(sorted(field_types(kind))))
    for key in task.options:
        bounds.check("a key of task.options", key, legal)
    return freeze(kind, task.options, "task.options.")


@functools.cache
def register() -> None:
    """Give Hydra the schemas: ``base`` in each group, and ``base_study`` for the whole, and
    OmegaConf an ``oc.env`` that asks where its value would stand. Both keep them for the life of
    the process."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("oc.env", _from_environment, replace=True)
    # Hydra copies the whole store whenever it looks into a group, and once more what it takes out
    ConfigStore.__deepcopy__ = lambda self, memo: self  # ty: ignore[missing-attribute]
    store = ConfigStore.instance()
    store.store(name="base_study", node=schema(Study))
    for group, cls in GROUPS.items():
        store.store(group=group, name="base", node=schema(cls))


def _from_environment(name: str, *default: Any, _node_: Any) -> str | None:
    """What ``${oc.env:NAME,default}`` stands for at a node of a config, however it came there.
    Raises UserError: the node is not of a field that the environment may fill."""
    refuse_variable(_node_._get_full_key(None) or "", str(name))
    if name in os.environ:
        return os.environ[name]
    if not default:
        raise KeyError(f"Environment variable '{name}' not found")
    return None if default[0] is None else str(default[0])


schema(Study)  # makes every twin, so that a process that unpickles one finds it here
