"""All six sets at full size, prepared, verified and read: python -m benchmarks.verifiable.prepare

    python -m benchmarks.verifiable.prepare [root=build/verifiable] [data=official] [share=1]

262,000 rows in official form and of official sizes are generated where ``root`` has none: words of
a Zipf law, ten paragraphs to a question of HotpotQA. Each command runs in a process of its own; its
peak memory is that of `getrusage`. The peer reads the same files with `json` alone and does
nothing with them, which is what no preparation can do without. Ratios are of CPU seconds.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.memory import in_mib, largest_child_mib

SIZES = {"gsm8k": (7473, 1319), "math": (7500, 5000), "hotpotqa": (90447, 7405)}
ARTICLES, QUESTIONS = (442, 35), (130319, 11873)
READ = """
import json, sys
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        rows = json.load(file) if path.endswith(".json") else [json.loads(line) for line in file]
"""
OPEN = """
import random, sys, time
from benchmarks.memory import in_mib, peak_mib
start = time.perf_counter()
from study.tasks.datasets.table import open_table
table = open_table(sys.argv[1])
opened = time.perf_counter() - start
draw = random.Random(0)
places = [draw.randrange(len(table)) for _ in range(2000)]
start = time.perf_counter()
items = [table.at(place) for place in places]
row = (time.perf_counter() - start) / len(places)
assert all(table.by_id(item.id) == item for item in items[:100])
print(f"open {opened:.2f} s, {row * 1e6:.0f} us a row, memory {in_mib(peak_mib())}")
"""


class Words:
    """Draws texts whose words follow Zipf's law."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        letters = "abcdefghijklmnoprstuvw"
        self.words = ["".join(self.draw.choices(letters, k=2 + n % 8)) for n in range(20_000)]
        self.weights = [1 / (rank + 3) for rank in range(len(self.words))]
        for rank in range(1, len(self.weights)):
            self.weights[rank] += self.weights[rank - 1]

    def text(self, low: int, high: int) -> str:
        count = self.draw.randint(low, high)
        return " ".join(self.draw.choices(self.words, cum_weights=self.weights, k=count))


def generate(root: Path, share: float) -> None:
    """Write every file of the six sets below ``root``, ``share`` of its official size."""
    words = Words(0)

    def size(rows: int) -> int:
        return max(12, int(rows * share))

    def lines(name: str, rows: Iterator[dict[str, Any]]) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with (root / name).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    for place, split in enumerate(("train", "test")):
        count = size(SIZES["gsm8k"][place])
        problems = (words.text(30, 60) for _ in range(count))
        answers = (f"{words.text(40, 80)}\n#### {words.draw.randrange(999)}" for _ in range(count))
        pairs = zip(problems, answers, strict=True)
        lines(f"gsm8k/{split}.jsonl", ({"question": q, "answer": a} for q, a in pairs))
        rows = (
            {
                "problem": words.text(15, 50),
                "level": "Level 3",
                "type": "Algebra",
                "solution": f"{words.text(50, 120)} \\boxed{{{words.draw.randrange(9999)}}}",
            }
            for _ in range(size(SIZES["math"][place]))
        )
        lines(f"math/{split}.jsonl", rows)
    passages = [words.text(60, 120) for _ in range(size(60_000))]
    for place, name in enumerate(("hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json")):
        _hotpotqa(root / "hotpotqa" / name, words, passages, size(SIZES["hotpotqa"][place]))
    for place, split in enumerate(("train", "dev")):
        path = root / "squad2" / f"{split}-v2.0.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(_squad2(words, split, size(ARTICLES[place]), size(QUESTIONS[place])))
        )
    humaneval = (
        {
            "task_id": f"HumanEval/{row}",
            "prompt": f'def task_{row}(x):\n    """ {words.text(20, 60)} """\n',
            "entry_point": f"task_{row}",
            "canonical_solution": "    return x\n",
            "test": f"def check(candidate):\n    assert candidate({row}) == {row}\n",
        }
        for row in range(164)
    )
    lines("humaneval/HumanEval.jsonl", humaneval)
    mbpp = (
        {
            "text": words.text(12, 25),
            "code": f"def solve_{row}(x):\n    return x",
            "task_id": row,
            "test_list": [f"assert solve_{row}({n}) == {n}" for n in range(3)],
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for row in range(1, 975)
    )
    lines("mbpp/mbpp.jsonl", mbpp)


def _hotpotqa(path: Path, words: Words, passages: list[str], count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for row in range(count):
            chosen = words.draw.sample(range(len(passages)), 10)
            title = [f"Title {number}" for number in chosen]
            question = {
                "_id": f"{path.stem}{row}",
                "question": words.text(10, 25),
                "answer": words.text(1, 3),
                "type": "bridge",
                "level": "hard",
                "supporting_facts": [[title[0], 0], [title[5], 1]],
                "context": [[name, [passages[n]]] for name, n in zip(title, chosen, strict=True)],
            }
            file.write(("[" if not row else ", ") + json.dumps(question))
        file.write("]")


def _squad2(words: Words, split: str, articles: int, questions: int) -> dict[str, Any]:
    data = []
    for article in range(articles):
        paragraphs = []
        share = questions // articles + (article < questions % articles)
        for start in range(0, share, 7):
            qas = [
                {
                    "question": words.text(7, 15),
                    "id": f"{split}{article}-{start + n}",
                    "answers": [{"text": words.text(1, 3), "answer_start": 0}] if n % 3 else [],
                    "is_impossible": not n % 3,
                }
                for n in range(min(7, share - start))
            ]
            paragraphs.append({"context": words.text(80, 150), "qas": qas})
        data.append({"title": f"{split} {article}", "paragraphs": paragraphs})
    return {"version": "v2.0", "data": data}


def measured(*command: str) -> tuple[float, float, str]:
    """Seconds on the wall, seconds of CPU, and output of a child."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def main(arguments: list[str]) -> None:
    """Generate what is absent, then prepare, verify, read with json alone, and open, twice."""
    options = {"root": "build/verifiable", "data": "official", "share": "1"}
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in options or not value:
            raise SystemExit(f"{argument}: legal are {', '.join(f'{name}=' for name in options)}")
        options[key] = value
    root, preset = Path(options["root"]), options["data"]
    if not (root / "mbpp" / "mbpp.jsonl").is_file():
        generate(root, float(options["share"]))
    out = root.with_name(f"{root.name}-{preset}")
    files = sorted(str(path) for path in root.rglob("*.json*"))
    megabytes = sum(Path(path).stat().st_size for path in files) / 2**20
    words = (f"data={preset}", f"data.root={root}", f"out={out}")
    for turn in range(2):
        wall, cpu, printed = measured("-m", "experiments.data", "prepare", *words)
        if not turn:
            peak = in_mib(largest_child_mib())
            rows = json.loads(printed)["rows"]["n"]
            print(f"{rows} rows of {megabytes:.0f} MB, preset {preset}, peak {peak}")
        plain = sum(measured("-c", READ, path)[1] for path in files)
        print(
            f"prepare {wall:.1f} s, of CPU {cpu:.1f} s, {cpu / plain:.1f} times json alone;"
            f" verify {measured('-m', 'experiments.data', 'verify', *words)[1]:.1f} s of CPU;"
            f" {measured('-c', OPEN, str(out))[2].strip()}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
