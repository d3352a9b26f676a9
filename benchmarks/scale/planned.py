"""The full study on 8 x H200 and on a Slurm cluster: wall time, GPU-hours, calls, tokens, bytes.

    python -m benchmarks.scale.planned

Three judges x three seeds x 200 steps of 32 prompts x 8 rollouts on rows of VerInstruct's size. All
of it is arithmetic over ``rates.toml``, which says where each number is from; nothing is measured.

    generation = longest answer * seconds of a decode step           (of a step's 256 rows at once)
    update     = tokens * 2 * weights * (4 + reference) / (peak * share)
    tokens     = prompts * (prompt + group * answer)                 (each prompt is computed once)
    judge      = fresh / prefill + out / decode, shared by the cells that ask it
    step       = max(generation, judge) + update
The 4 passes of an update are forward, backward of activations (2) and recomputation; with LoRA
weights take no gradient. Judges are asked while others still generate: only what is longer counts.
"""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.judges.prefix import SETS, tokens

JUDGES, SEEDS, STEPS, PROMPTS, GROUP = 3, 3, 200, 32, 8
CELLS = JUDGES * SEEDS
ROLLOUTS = CELLS * STEPS * PROMPTS * GROUP
CASES = ("pessimistic", "expected", "optimistic")
REFERENCE = 0.5
"""Of the groups of a step, as `trainer.reference`."""
MEMORY_GB = 141
TEXTS = 2
"""Of an answer in the records: completion and answer."""
RATES: dict[str, Any] = tomllib.loads(
    (Path(__file__).with_name("rates.toml")).read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Judge:
    """Tokens of one judge in the whole study, and how fast one GPU takes them."""

    name: str
    calls: int
    tokens_in: float
    fresh: float
    """Of ``tokens_in``, without the prefixes that its server has seen."""
    tokens_out: float
    seconds: float
    """Of one GPU, for all of it."""


@dataclass(frozen=True)
class Place:
    """Where the cells run: at once in all, and GPUs, those of the judges included."""

    name: str
    at_once: int
    gpus: int


PLACES = (
    Place("8 x H200, three of them for judges", 5, 8),
    Place("Slurm, a job of one GPU for each cell and judge", CELLS, CELLS + JUDGES),
)


def value(name: str, case: int) -> float:
    return RATES[name]["values"][case]


@functools.cache
def group_tokens() -> tuple[float, float]:
    """Prompt tokens of one judge for one group, and those of them that are fresh."""
    return tokens("rubric_batch", "cacheable", SETS["VerInstruct"])


def judges(case: int) -> list[Judge]:
    """What each judge reads and says. Decoding reads the active weights and the cache of as many
    rows as memory holds, at most 256, once for a token of each."""
    full, fresh = group_tokens()
    groups = ROLLOUTS / JUDGES / GROUP
    laid = []
    for name, model in RATES["judges"].items():
        out = value("verdict", case) + (value("thinking", case) if model["thinks"] else 0.0)
        read = groups * fresh
        tokens_out = groups * GROUP * out
        prefill = value("peak", case) * 1e3 * value("prefill_share", case) / (2 * model["active"])
        cached_gb = model["cache_kb"] * (full / GROUP + out) / 1e6
        held = model["weights"] * model["bytes"]
        rows = min(256.0, (0.9 * MEMORY_GB - held) / cached_gb)
        step_gb = held + rows * cached_gb
        decode = rows * value("memory", case) * 1e3 * value("decode_share", case) / step_gb
        seconds = read / prefill + tokens_out / decode
        calls = round(groups * GROUP)
        laid.append(Judge(name, calls, groups * full, read, tokens_out, seconds))
    return laid


def step_seconds(case: int) -> tuple[float, float]:
    """Generation and update of one step of one cell, on one GPU."""
    (policy,) = RATES["policy"].values()
    read = PROMPTS * (value("prompt", case) + GROUP * value("answer", case))
    operations = read * 2 * policy["weights"] * (4 + REFERENCE) * 1e9
    update = operations / (value("peak", case) * 1e12 * value("update_share", case))
    return value("longest_answer", case) * value("decode_step", case), update


def study(place: Place, case: int) -> tuple[float, float]:
    """Wall hours and GPU-hours. Cells run in rounds; a judge serves those of a round that ask it,
    as evenly as can be."""
    generation, update = step_seconds(case)
    slowest = max(judge.seconds for judge in judges(case)) / SEEDS / STEPS
    rounds = math.ceil(CELLS / place.at_once)
    sharing = math.ceil(place.at_once / JUDGES)
    step = max(generation, sharing * slowest) + update
    hours = (rounds * STEPS * step + value("start", case)) / 3600
    return hours, hours * place.gpus


def bytes_of(case: int, row_bytes: float) -> float:
    """Of the records: ``row_bytes`` of a rollout with its verdict, as measured where texts are
    short, and the texts, compressed."""
    characters = 4 * (TEXTS * value("answer", case) + value("prompt", case) / GROUP)
    judge_characters = 4 * sum(judge.tokens_out for judge in judges(case)) / ROLLOUTS
    texts = (characters + judge_characters) / value("compression", case)
    return ROLLOUTS * (row_bytes + texts)


def main() -> None:
    for case, name in enumerate(CASES):
        generation, update = step_seconds(case)
        print(f"{name}: a step is {generation:.1f} s of generation and {update:.1f} s of update")
        for judge in judges(case):
            print(
                f"  {judge.name}: {judge.calls:,} calls, {judge.tokens_in / 1e6:.0f} M tokens in,"
                f" {judge.fresh / 1e6:.0f} M fresh, {judge.tokens_out / 1e6:.0f} M out,"
                f" {judge.seconds / 3600:.1f} GPU-hours"
            )
        for place in PLACES:
            hours, gpu_hours = study(place, case)
            print(f"  {place.name}: {hours:.1f} h, {gpu_hours:.0f} GPU-hours")


if __name__ == "__main__":
    main()
