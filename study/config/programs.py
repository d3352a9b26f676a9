"""Settings of policies that write programs: who executes them, what they are shown, what counts.

They are part of the schema (`study.config.schema`), under ``executor`` and ``workflow``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from study.config import bounds
from study.config.endpoints import MANY, Endpoint, Price, Sampling, Serve, Served
from study.config.marks import mlflow_param, run_time
from study.config.simulated_executor import SimulatedExecutor


@dataclass(frozen=True)
class Executor(Served):
    """The model that the operators of programs call."""

    role = "executor"
    simulated: SimulatedExecutor | None = mlflow_param(None)
    max_failed_frac: float = mlflow_param(run_time(bounds.share(0.5)))
    """Stop the run when executor or sandbox failed, and not the program, in more than this share of
    a step's rollouts."""

    @property
    def computed(self) -> bool:
        """Whether this project computes what it says; see `study.config.schema.Judge`."""
        return self.simulated is not None


@dataclass(frozen=True)
class Limits:
    """Limits on the operator calls of one program."""

    operator_calls: int = bounds.number(12, low=1, high=1000, unit="calls")
    """Most operator calls of one program."""
    model_calls: int = bounds.number(40, low=1, high=MANY, unit="calls")
    """Most requests to the executor by one program."""
    tokens: int = bounds.number(200_000, low=1, high=1000 * MANY, unit="tokens")
    """Tokens of prompts and replies together."""
    own_s: float = bounds.number(2.0, low=0.01, high=3600, unit="seconds")
    """Seconds of its own computing."""


@dataclass(frozen=True)
class Embedder:
    """The model whose vectors say how alike two problems are, at ``/embeddings`` of its endpoint;
    words say it where ``endpoint.model`` is empty. What it costs is not counted."""

    role = "workflow.buffer.embedder"
    name: str = bounds.name("", empty=True)
    """Its name in messages."""
    revision: str = ""
    """Version of its weights; a new one is a new model, and is asked anew."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    sampling, price, serve = Sampling(), Price(), Serve()
    simulated = None
    computed = False


@dataclass(frozen=True)
class Buffer:
    """Successful programs, as examples for later prompts."""

    shots: int = bounds.number(0, low=0, high=20, unit="examples")
    """Examples in a prompt; 0 keeps no buffer."""
    mode: str = bounds.choice("cosine", "cosine", "mmr", "facility")
    """Choice of examples: the nearest (cosine), near and different (mmr), or covering
    (facility)."""
    verified: bool = True
    """Keep only what the rule calls right; false keeps what the judge calls right, so that its
    errors become examples."""
    embedder: Embedder = field(default_factory=Embedder)


@dataclass(frozen=True)
class Workflow:
    """How programs are asked for, executed and measured, where ``world=workflow``."""

    form: str = bounds.choice("python", "python", "dsl")
    """Language of the programs: Python, or a short form for small policies (dsl)."""
    prompt: str = bounds.choice("layered", "layered", "problem")
    """layered: role, contract, operators, rules, domain, examples and problem; problem: that
    alone, for a policy that was taught the form."""
    operators: list[str] = field(default_factory=list, metadata=bounds.NAMES)
    """Operators that a layered prompt offers; empty for all."""
    cap: int = bounds.number(4096, low=1, high=MANY, unit="tokens")
    """Most tokens of a layered prompt."""
    blocks: str = ""
    """Folder of newer blocks of a layered prompt, as `experiments.workflow optimise` writes it. It
    must not change while a study uses it."""
    shows_problem: bool = True
    """Whether the policy's prompt holds the problem; false is a treatment: one program for all."""
    buffer: Buffer = field(default_factory=Buffer)
    instructions: bool = False
    """Whether layer 2 puts words for operator and domain before each operator's prompt."""
    repair: bool = False
    """Whether the executor repairs programs that are not valid. Repairs are recorded; the reward
    stays that of the program as it was written."""
    fallback: str = bounds.choice("none", "none", "credit")
    """credit runs a default program in place of one that is not valid, and rewards it in full: a
    published fault, as a treatment."""
    tests: str = bounds.choice("public", "public", "hidden")
    """Tests that the operator Test sees; hidden, the grader's tests, is a treatment."""
    priced: bool = True
    """Whether tokens count against a program's efficiency; false is a model without a price."""
    full_tokens: int = bounds.number(8000, low=1, high=1000 * MANY, unit="tokens")
    """Operator tokens at which a program's efficiency is 0."""
    limits: Limits = field(default_factory=Limits)
