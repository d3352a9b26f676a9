"""The options of the command that evaluates on held-out prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from study.cell.folder import CellFolder
from study.cli import option, overrides, preset, word
from study.config.bounds import Choice, Number
from study.config.compose import preset_names
from study.errors import UserError
from study.tasks.datasets.sets import SETS

GRADED = ("rubric", "healthbench")
"""Evaluations in which a judge grades."""
VERIFIED = ("datasets",)
"""Evaluations by rule truth, beside which a judge may grade."""
JUDGED = (*GRADED, *VERIFIED)
PLAYED = ("workflow",)
"""Evaluations of policies that write programs, which are executed."""
METHODS = ("direct", "cot", "sc")
BASELINES = (
    *("untrained", "direct", "chain_of_thought", "self_consistency", "templates"),
    *("fixed_best", "aflow", "random", "oracle_best_of_k"),
)
"""What a policy of programs is compared with."""


@dataclass(frozen=True)
class Options:
    """Options of `experiments.evaluate`: the evaluation, who answers, and the judge."""

    what: str = word("the evaluation", "ifeval", *JUDGED, *PLAYED)
    responses: Path | None = option(
        "JSONL of answers; in place of it they are generated", only=("ifeval", *GRADED)
    )
    predictions: Path | None = option(
        "JSONL of answers; in place of it they are generated", only=VERIFIED
    )
    run: CellFolder | None = option("folder of the run whose policy answers, runs/STUDY/CELL")
    model: str | None = option("model folder that answers, or a model's name at the endpoint")
    adapter: Path | None = option("folder of an adapter that answers")
    endpoint: str | None = option("URL of an endpoint that answers")
    out: Path = option("JSON file of the result", required=True)
    allow_missing: bool = option("score although responses are missing", False)
    seed: int = option("seed of the answers and of the intervals", 0, Number(low=0))
    track: bool = option("write the result to the MLflow run of run=", True)
    root: str | None = option("folder of the data", key="data.root", only=("ifeval", *VERIFIED))
    datasets: list[str] = option(
        "sets to evaluate; left out, those of the predictions, or the six of the study",
        [],
        Choice(tuple(SETS)),
        only=VERIFIED,
    )
    method: str | None = option(
        "the set's prompt as it is (direct), with a request to reason first (cot), or the vote of"
        " several such answers (sc)",
        legal=Choice(METHODS),
        only=VERIFIED,
    )
    select: str | None = option(
        "which rows limit= takes; left out, the first",
        legal=Choice(("facility", "random")),
        only=VERIFIED,
    )
    sandbox: str = option(
        "isolation of programs; unsafe runs them without any",
        "auto",
        Choice(("auto", "unsafe")),
        only=VERIFIED,
    )
    task: str | None = option("preset of the task; healthbench has its own", only=GRADED)
    judge: str = preset("judge", "", only=JUDGED)
    samples: int = option(
        "answers to each prompt, and the K of oracle_best_of_k, 4 there",
        1,
        Number(low=1),
        only=(*JUDGED, *PLAYED),
    )
    split: str | None = option(
        "rows to grade", legal=Choice(("eval", "train", "all")), only=(*GRADED, *PLAYED)
    )
    baselines: list[str] = option(
        "baselines to compare the policy with", ["all"], Choice(("all", *BASELINES)), only=PLAYED
    )
    executor: str = option(
        f"preset of another executor than the run's: {', '.join(preset_names('executor'))}",
        "",
        only=PLAYED,
    )
    same_judge: bool = option("let the judge that trained the run grade it", False, only=JUDGED)
    runs_dir: Path = option("folder of the verdict store", Path("runs"), only=JUDGED)
    responses_out: Path | None = option("JSONL for the generated answers; left out, next to out=")
    limit: int | None = option("number of prompts, from the first", legal=Number(low=1))
    temperature: float = option("sampling temperature of the answers", 0.0, Number(low=0, high=5))
    top_p: float = option(
        "probability mass of the likeliest tokens to sample from", 1.0, Number(low=1e-6, high=1)
    )
    top_k: int = option("number of likeliest tokens to sample from; 0 takes all", 0, Number(low=0))
    max_tokens: int = option("longest answer, in tokens", 1280, Number(low=1))
    thinking: bool | None = option("switch the thinking of the chat template on or off")
    checkpoint: int | None = option("step of the run's checkpoint", legal=Number(low=0))
    engine: str = option(
        "what computes the answers on this machine; vllm is faster and wants a GPU",
        "transformers",
        Choice(("transformers", "vllm")),
    )
    tensor_parallel: int = option(
        "GPUs that share one copy of the model, with engine=vllm", 1, Number(low=1, high=1024)
    )
    gpu_memory: float = option(
        "share of each GPU for weights and cache, with engine=vllm", 0.9, Number(above=0, high=1)
    )
    batch: int = option("prompts answered at once", 8, Number(low=1))
    dtype: str | None = option("number format of the model's weights")
    chat_template: Path | None = option("file of a chat template in place of the model's own")
    api_key_env: str | None = option("variable that holds the endpoint's key")
    concurrency: int = option("requests sent at once", 16, Number(low=1))
    timeout_s: float = option(
        "seconds per response, retries included", 600.0, Number(low=1, high=86_400)
    )
    overrides: list[str] = overrides("judge.", "task.", "executor.", only=(*JUDGED, *PLAYED))
    given: frozenset[str] = frozenset()
    """Options that were typed."""

    @property
    def step(self) -> int:
        """The step of ``run`` whose policy answers: of its checkpoint, or the last one."""
        if self.checkpoint is not None or self.run is None:
            return self.checkpoint or 0
        return self.run.status().get("step", 0)

    def check(self) -> None:
        """Refuse options that do not go together.
        Raises UserError: a grading without a judge, settings of what is not there, or a choice of
            rows without their number."""
        if self.what in GRADED and not self.judge:
            names = ", ".join(preset_names("judge"))
            raise UserError(
                f"experiments.evaluate {self.what} needs judge= (preset of the judge: {names})."
            )
        group = "executor." if self.what in PLAYED else ("judge.", "task.")
        for text in self.overrides:
            if not text.lstrip("+~").startswith(group):
                raise UserError(f"{text} has no meaning with {self.what}. Leave it out.")
        if self.what in PLAYED:
            self._check_played()
        if self.what not in VERIFIED:
            return
        if task := [word for word in self.overrides if word.lstrip("+~").startswith("task.")]:
            raise UserError(f"{task[0]} has no meaning with {self.what}: it has no task.")
        if self.overrides and not self.judge:
            raise UserError(f"{self.overrides[0]} has no meaning without judge=NAME.")
        if self.select and self.limit is None:
            raise UserError(
                f"select={self.select} chooses among rows and needs limit=N. Type for example"
                " limit=100"
            )

    def _check_played(self) -> None:
        if self.run is None:
            raise UserError(
                f"experiments.evaluate {self.what} needs run= (folder of a run of world=workflow)."
            )
        if self.overrides and not self.executor:
            raise UserError(f"{self.overrides[0]} has no meaning without executor=NAME.")
        for name in ("responses_out", "allow_missing"):
            if name in self.given:
                raise UserError(f"{name}= has no meaning with {self.what}. Leave it out.")
