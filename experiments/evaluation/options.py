"""The options of the command that evaluates on held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from study.bounds import Choice, Number
from study.cli import option, overrides, preset, word

GRADED = ("rubric", "healthbench")
"""Evaluations in which a judge grades."""


@dataclass(frozen=True)
class Options:
    what: str = word("the evaluation", "ifeval", *GRADED)
    responses: Path | None = option("JSONL of answers; in place of it they are generated")
    run: Path | None = option("folder of the run whose policy answers, runs/STUDY/CELL")
    model: str | None = option("model folder that answers, or a model's name at the endpoint")
    adapter: Path | None = option("folder of an adapter that answers")
    endpoint: str | None = option("URL of an endpoint that answers")
    out: Path = option("JSON file of the result", required=True)
    allow_missing: bool = option("score although responses are missing", False)
    seed: int = option("seed of the answers and of the intervals", 0, Number(low=0))
    track: bool = option("write the result to the MLflow run of run=", True)
    root: str | None = option("folder of the IFEval data", key="data.root", only=("ifeval",))
    task: str | None = option("preset of the task; healthbench has its own", only=GRADED)
    judge: str = preset("judge", only=GRADED)
    samples: int = option("answers to each prompt", 1, Number(low=1), only=GRADED)
    split: str | None = option("rows to grade", legal=Choice(("eval", "train", "all")), only=GRADED)
    same_judge: bool = option("let the judge that trained the run grade it", False, only=GRADED)
    runs_dir: Path = option("folder of the verdict store", Path("runs"), only=GRADED)
    responses_out: Path | None = option("JSONL for the generated answers; beside out= otherwise")
    limit: int | None = option("how many prompts, from the first on", legal=Number(low=1))
    temperature: float = option("sampling temperature of the answers", 0.0, Number(low=0, high=5))
    top_p: float = option(
        "share of the likeliest tokens that is sampled from", 1.0, Number(low=1e-6, high=1)
    )
    max_tokens: int = option("longest answer, in tokens", 1280, Number(low=1))
    thinking: bool | None = option("switch the thinking of the chat template on or off")
    checkpoint: int | None = option("step of the run's checkpoint", legal=Number(low=0))
    batch: int = option("prompts that are answered at once", 8, Number(low=1))
    dtype: str | None = option("number format of the model's weights")
    chat_template: Path | None = option("file of a chat template in place of the model's own")
    api_key_env: str | None = option("variable that holds the endpoint's key")
    concurrency: int = option("requests that are sent at once", 16, Number(low=1))
    timeout_s: float = option("seconds per request", 600.0, Number(low=1, high=86_400))
    overrides: list[str] = overrides("judge.", "task.", only=GRADED)
    given: frozenset[str] = frozenset()
    """Options that were typed."""
