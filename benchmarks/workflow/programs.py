"""Workflow programs a second, and what one takes: programs.py

A program of three operator calls whose executor answers at once: alone, and 32 in flight; then the
static pass and the whole validation of a program of 60 lines. Answers are checked before anything
is timed. Memory is what the processes have for themselves (PSS), this one included.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.memory import in_mib
from experiments.workflow import static
from experiments.workflow.broker import Broker, Workshop
from experiments.workflow.executor import Script
from experiments.workflow.find import find
from experiments.workflow.play import play
from experiments.workflow.problem import STAND_IN
from experiments.workflow.validate import validate
from study.sandbox.conversation import Stage

IN_FLIGHT, ALONE, MANY = 32, 60, 640
HEAD = """\
import workspace.GSM8K.workflows.template.operator as operator
from scripts.async_llm import create_llm_instance


class Workflow:
    def __init__(self, name, llm_config, dataset):
        self.llm = create_llm_instance(llm_config)
        self.custom = operator.Custom(self.llm)
        self.review = operator.Review(self.llm)

    async def __call__(self, problem):
        first = await self.custom(input=problem, instruction="Solve.")
        answer = first["response"]
        review = await self.review(problem=problem, solution=answer)
"""
STEP = """\
        if not review["review_result"]:
            answer = answer + review["feedback"]
"""
TAIL = """\
        last = await self.custom(input=answer, instruction="Shorter.")
        return last["response"], self.llm.get_usage_summary()["total_cost"]
"""
SHORT = HEAD + TAIL
LONG = HEAD + STEP * ((60 - (HEAD + TAIL).count("\n")) // 2) + TAIL
LINE = {"text": "True", "tokens_in": 1, "tokens_out": 1}


def memory_mib() -> float | None:
    """Memory of this process and of all below it; None where the kernel does not tell it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            )
        except (OSError, ValueError):
            continue
    mine = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in mine} - mine:
        mine |= more
    kb = 0
    for number in mine:
        try:
            for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kb += int(line.split()[1])
        except OSError:
            if number == os.getpid():
                return None
    return kb / 1024


def median_ms(work: Callable[[], object], times: int = 200) -> float:
    """Median processor time."""
    seconds = []
    for _ in range(times):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return 1000 * statistics.median(seconds)


async def measure() -> None:
    """Print every number."""
    program, script = find(SHORT), Script([LINE])
    with Stage(IN_FLIGHT) as stage, Workshop(stage.tier) as workshop:

        async def one() -> float:
            broker = Broker(STAND_IN, script, workshop)
            begun = time.perf_counter()
            played = await play(program, STAND_IN, stage, broker.call, broker.spent)
            assert played.answer == "True" and len(broker.traces) == 3, played
            return time.perf_counter() - begun

        await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
        alone = [await one() for _ in range(ALONE)]
        print(f"alone: median {1000 * statistics.median(alone):.1f} ms (limit 25)")
        begun, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(one() for _ in range(MANY)))
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
        print(f"{IN_FLIGHT} in flight: {MANY / seconds:.0f} programs a second (limit 80)")
        print(f"broker: {1000 * cpu / MANY / 3:.2f} ms of CPU a call (limit 1)")
        print(f"memory with {IN_FLIGHT} sandboxes: {in_mib(memory_mib())} (limit 1,536)")
        long = find(LONG)
        lines = LONG.count("\n")
        print(
            f"static pass of {lines} lines: {median_ms(lambda: static.read(long)):.2f} ms (limit 3)"
        )
        seconds_each = [(await validate(LONG, stage)).seconds for _ in range(ALONE)]
        print(f"with dry run: median {1000 * statistics.median(seconds_each):.1f} ms (limit 30)")


if __name__ == "__main__":
    asyncio.run(measure())
