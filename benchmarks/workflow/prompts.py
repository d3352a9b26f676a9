"""What an example costs: retrieval from a full buffer, and the prompt of one problem.

    python -m benchmarks.workflow.prompts [words=60] [rounds=200]

Three domains of 100 entries, problems of so many words. CPU time of this process, medians.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.race import read_sizes, seconds
from experiments.workflow.experience import CAP, MODES, Buffer, Entry, Query
from experiments.workflow.problem import Problem
from experiments.workflow.prompt import Prompter
from study.config.simulated import DOMAINS

PROGRAM = """class Workflow:
    def __init__(self, name, llm_config, dataset):
        self.llm = create_llm_instance(llm_config)
        self.custom = operator.Custom(self.llm)

    async def __call__(self, problem):
        result = await self.custom(input=problem, instruction="Think, then answer, {n}.")
        return result["response"], self.llm.get_usage_summary()["total_cost"]
"""


def main() -> None:
    sizes = read_sizes(words=60, rounds=200)
    draw = random.Random(0)
    lexicon = [f"word{number}" for number in range(2000)]

    def text() -> str:
        return " ".join(draw.choices(lexicon, k=sizes["words"]))

    rows = [
        Entry(f"{domain}{n}", domain, text(), PROGRAM.format(n=n), None, 1.0, True, draw.random())
        for domain in DOMAINS
        for n in range(CAP)
    ]
    texts = [text() for _ in range(sizes["rounds"])]
    buffers: list[Buffer] = []
    built = seconds(lambda: buffers.append(Buffer().updated(rows)), time.process_time)
    (buffer,) = buffers
    indexed = seconds(lambda: buffer.retrieve(Query(None, "qa", texts[0])), time.process_time)
    buffer.retrieve(Query(None, "qa", texts[0]), "facility")  # loads its library
    print(
        f"{len(buffer.entries)} entries: built {1e3 * built:.0f} ms, indexed {1e3 * indexed:.0f} ms"
    )

    def median(work: Callable[[str], Any]) -> float:
        times = [seconds(lambda text=text: work(text), time.process_time) for text in texts]
        return 1e3 * statistics.median(times)

    for mode in MODES:
        ms = median(lambda text, mode=mode: buffer.retrieve(Query(None, "qa", text), mode))
        print(f"retrieval by {mode:<10} {ms:.2f} ms")
    prompter = Prompter()
    for name, shown in (("without examples", None), ("with retrieval", buffer)):
        ms = median(lambda text, shown=shown: prompter.prompt(Problem("q", "qa", text), shown))
        print(f"prompt {name:<17} {ms:.2f} ms")


if __name__ == "__main__":
    main()
