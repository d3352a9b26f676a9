"""How long a step waits for its judge, asked while answers are written and asked after the last.

    python -m benchmarks.trainer.judges [rounds=2] [steps=2] [prompts=2] [group=4] [length=48]

SmolLM2-135M's shape with random weights, with a reference (beta 0.04) and without, under a judge
behind HTTP that sleeps before each reply: log-normal, median 1 s, one reply in twenty 4 s or more,
always the same for the same answer. About one token in 40 ends an answer. Rewards are compared
first. The limit of a step is what its latest reply still takes after generation and reference, if
each answer is asked about when it ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from benchmarks.race import read_sizes
from benchmarks.trainer.peers import TOKENIZER, smollm2
from experiments.trainer.grpo import make_trainer
from experiments.trainer.scorer import Scorer
from judges.ask.session import Session
from judges.fault_injection.server import choice, completion, whole
from judges.faults import FaultServer
from study.cell.folder import CellFolder
from study.cell.records import Recorder
from study.config.schema import Endpoint, Judge, Lora, Policy, Study, Task, Trainer
from study.tasks import TASKS, oracle

TASK = Task(name="instruct-mini")
ENDS = tuple(range(2, 2 + 49152 // 40))
SPREAD = 0.85
"""Standard deviation of the logarithm of a reply's seconds."""


def share(name: str, what: str) -> float:
    """A number in (0, 1) that belongs to an answer."""
    digest = hashlib.blake2b(f"{what} {name}".encode(), digest_size=6).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**48


def reply_seconds(name: str) -> float:
    """How long the judge thinks about an answer."""
    return min(10.0, math.exp(SPREAD * statistics.NormalDist().inv_cdf(share(name, "seconds"))))


def text_of(ids: list[int]) -> str:
    """A text that names a completion."""
    return f"rollout {hashlib.blake2b(str(ids).encode(), digest_size=8).hexdigest()}"


async def judged(body: bytes) -> bytes:
    """What the server replies, and when."""
    named = re.search(r"rollout [0-9a-f]{16}", body.decode())
    assert named is not None
    await asyncio.sleep(reply_seconds(named[0]))
    return whole(completion(choice(f"[[{100 * share(named[0], 'score'):.0f}]]")))


@dataclass
class Step:
    """Seconds of one step."""

    ready: float = 0.0
    """When the last reply is there if each answer is asked about when it ends, by the clock."""
    generated: float = 0.0
    """When generation ended, by the clock."""
    reference: float = 0.0
    waited: float = 0.0

    @property
    def limit(self) -> float:
        return max(0.0, self.ready - self.generated - self.reference)


@dataclass(eq=False, repr=False)
class TimedScorer(Scorer):
    """Notes what each step waits for."""

    __name__ = "reward"
    steps: list[Step] = field(default_factory=lambda: [Step()])
    rewards: list[float | None] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> list[float | None]:
        step = self.steps[-1]
        step.reference = time.perf_counter() - step.generated
        rewards = super().__call__(*args, **kwargs)
        assert self.pending is not None
        step.waited = self.pending.metrics["time/judge_s"]
        self.steps.append(Step())
        self.rewards += rewards
        return rewards


def train(url: str, sizes: dict[str, int], beta: float, ahead: bool) -> tuple[TimedScorer, float]:
    """What a training noted, and its seconds."""
    judge = Judge(name="sleeps", endpoint=Endpoint(url, "m", max_concurrency=256, deadline_s=60.0))
    config = Study(
        policy=Policy(name="smollm2-135m", path="random", lora=Lora(r=8, alpha=16)),
        task=TASK,
        judge=judge,
        trainer=Trainer(
            steps=sizes["steps"],
            prompts_per_step=sizes["prompts"],
            group_size=sizes["group"],
            micro_batch=sizes["group"],
            max_completion_length=sizes["length"],
            beta=beta,
        ),
    )
    rows = TASKS[TASK.name].rows(TASK, "train")
    folder = Path(tempfile.mkdtemp(prefix="race-"))
    set_seed(config.seed)
    with Session(judge, None) as session:
        scorer = TimedScorer(config, oracle(TASK), session)
        recorder = Recorder(folder)
        trainer: Any = make_trainer(
            config,
            smollm2(),
            TOKENIZER,
            rows,
            scorer,
            recorder,
            CellFolder(folder),
            lambda line: None,
        )
        scorer.decode = lambda ids_N: [text_of(ids) for ids in ids_N]
        trainer.eos_token_ids = list(ENDS)
        generate, ended = trainer.rollout_func, trainer.rollout_func.ended

        def noted(ids_of: dict[int, list[int]]) -> None:
            step = scorer.steps[-1]
            slowest = max(reply_seconds(text_of(ids)) for ids in ids_of.values())
            step.ready = max(step.ready, time.perf_counter() + slowest)
            if ahead:
                ended(ids_of)

        def generated(*args: Any) -> Any:
            outcome = generate(*args)
            scorer.steps[-1].generated = time.perf_counter()
            return outcome

        generate.ended, trainer.rollout_func = noted, generated
        began = time.perf_counter()
        trainer.learn(None)
        return scorer, time.perf_counter() - began


def race(url: str, sizes: dict[str, int], beta: float) -> None:
    """Both trainings, in turns."""
    waits, limits, shares, faster = [], [], [], []
    for _ in range(sizes["rounds"]):
        (after, long), (ahead, short) = (train(url, sizes, beta, mode) for mode in (False, True))
        assert None not in after.rewards and after.rewards == ahead.rewards
        afterwards, waited = (
            sum(step.waited for step in scorer.steps[:-1]) for scorer in (after, ahead)
        )
        waits.append(afterwards / sizes["steps"])
        limits.append(sum(step.limit for step in ahead.steps[:-1]) / afterwards)
        shares.append(waited / afterwards)
        faster.append(long / short)
    print(
        f"beta {beta:g}: equal rewards of {len(after.rewards)} rollouts in each of {len(waits)} "
        f"rounds; asked after the last answer, a step waits {statistics.mean(waits):.2f} s"
    )
    for name, values in (
        ("  asked ahead, of that", shares),
        ("  where the limit is", limits),
        ("  whole trainings, times faster", faster),
    ):
        print(f"{name}: mean {statistics.mean(values):.3f}, {min(values):.3f} to {max(values):.3f}")


def main() -> None:
    """With a reference and without."""
    sizes = read_sizes(rounds=2, steps=2, prompts=2, group=4, length=48)
    torch.set_num_threads(1)
    with FaultServer(judged) as server:
        for beta in (0.04, 0.0):
            race(server.url("slow_0"), sizes, beta)


if __name__ == "__main__":
    main()
