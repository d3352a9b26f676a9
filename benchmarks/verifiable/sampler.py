"""What a mixture costs a step, beside a list in which small sets are repeated and all is shuffled.

    python -m benchmarks.verifiable.sampler [steps=500] [prompts=64]

Six sets of the source's sizes at 4:3:3 and 50:50. First, how far each is from its share on the way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from benchmarks.race import read_sizes, seconds
from study.tasks.mixture import Mixture, Options, Pool

SETS = {
    "gsm8k": ("math", 6227, 0.2),
    "hotpotqa": ("qa", 74_000, 0.15),
    "humaneval": ("code", 137, 0.15),
    "math": ("math", 6250, 0.2),
    "mbpp": ("code", 356, 0.15),
    "squad2": ("qa", 73_000, 0.15),
}
"""Set -> domain, rows, share."""
LIST = 160_000


def repeated() -> list[tuple[str, int]]:
    """The source's training file as a list of (set, row)."""
    rows = [
        (name, n % size)
        for name, (_, size, share) in SETS.items()
        for n in range(round(share * LIST))
    ]
    random.Random(0).shuffle(rows)
    return rows


def apart(names: Sequence[str], every: int) -> float:
    """How many rows the worst set is from its share, at the end of any step."""
    counts: Counter[str] = Counter()
    worst = 0.0
    for drawn, name in enumerate(names, start=1):
        counts[name] += 1
        if drawn % every == 0:
            worst = max(worst, *(abs(counts[n] - SETS[n][2] * drawn) for n in SETS))
    return worst


def main() -> None:
    sizes = read_sizes(steps=500, prompts=64)
    steps, prompts = sizes["steps"], sizes["prompts"]
    length = steps * prompts
    pools = [Pool(name, domain, rows) for name, (domain, rows, _) in SETS.items()]
    mixture = Mixture(pools, Options(max_repeats=None), seed=0)

    def draw(step: int) -> None:
        for position in range(step * prompts, (step + 1) * prompts):
            mixture.at(position)

    times = sorted(seconds(lambda step=step: draw(step)) for step in range(steps))
    list_s = seconds(repeated)
    ours = apart([mixture.at(position).dataset for position in range(length)], prompts)
    theirs = apart([name for name, _ in repeated()[:length]], prompts)
    print(f"off its share on the way: at most {ours:.2f} rows, from the list {theirs:.0f}")
    print(
        f"a step of {prompts}: {1e3 * times[steps // 2]:.3f} ms (median), {1e3 * times[-1]:.3f} ms"
        f" (longest); the list takes {1e3 * list_s:.0f} ms, as long as"
        f" {list_s / times[steps // 2]:.0f} steps"
    )


if __name__ == "__main__":
    main()
