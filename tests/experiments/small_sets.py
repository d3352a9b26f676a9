"""Small sets in official form, with right and wrong answers to every row, in words of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.study.tasks.datasets.roots import lines

GSM8K = [
    ("Ann has 3 pears and buys 4. How many?", "7"),
    ("Half of 9?", "4.5"),
    ("2 times 8?", "16"),
]
GSM8K += [(f"What is {n} plus 100?", str(n + 100)) for n in range(17)]
MATH = [("Add.", r"\frac{1}{2}"), ("Root of 4?", "2"), ("Solve x+1=4.", "3")]
PASSAGE = "The mill stands on the hill. It was built by Mara Voss in 1802."
SQUAD = [
    ("Who built the mill?", ["Mara Voss"]),
    ("Where does the mill stand?", ["on the hill", "the hill"]),
    ("When did the mill burn?", []),
    ("Who owns the mill?", []),
]
HOTPOT = [("Is a cat an animal?", "yes"), ("Is a stone one?", "no"), ("Who sang?", "Mara Voss")]
HOTPOT += [("Is water wet?", "yes")]
HUMANEVAL = [("double", "y = x\n    return y * 2", "4", "2"), ("negate", "return -x", "-2", "2")]
MBPP = [(3, "three", "3"), (11, "four", "4"), (12, "five", "5")]
MBPP += [(511, "six", "6"), (601, "ten", "10")]
CHOICES = [(n, "ABBBA"[n]) for n in range(5)]
SETS = ("gsm8k", "math", "squad2", "hotpotqa", "humaneval", "mbpp", "commonsenseqa")
TEST = {"gsm8k": "test", "math": "test", "humaneval": "test"}
"""Official split of the reported rows, where it is not dev."""


def write_sets(root: Path) -> Path:
    """A data folder with every set of `SETS`."""
    questions = [
        {
            "id": f"q{n}", "question": question, "is_impossible": not golds,
            "answers": [{"text": gold, "answer_start": 0} for gold in golds],
        }
        for n, (question, golds) in enumerate(SQUAD)
    ]  # fmt: skip
    article = {"title": "Mill", "paragraphs": [{"context": PASSAGE, "qas": questions}]}
    files: dict[str, list[dict[str, Any]]] = {
        "gsm8k/test.jsonl": [{"question": q, "answer": f"So.\n#### {a}"} for q, a in GSM8K],
        "math/test.jsonl": [
            {"problem": q, "solution": f"It is $\\boxed{{{a}}}$.", "level": "Level 1", "type": "A"}
            for q, a in MATH
        ],
        "squad2/dev-v2.0.json": [{"version": "v2.0", "data": [article]}],
        "hotpotqa/dev_simplified.jsonl": [
            {"question": q, "answer": a, "type": "bridge"} for q, a in HOTPOT
        ],
        "humaneval/HumanEval.jsonl": [
            {
                "task_id": f"HumanEval/{n}", "entry_point": name,
                "prompt": f'def {name}(x):\n    """Do it."""\n',
                "canonical_solution": f"    {body}\n",
                "test": f"def check(candidate):\n    assert candidate({given}) == {wanted}\n",
            }
            for n, (name, body, wanted, given) in enumerate(HUMANEVAL)
        ],
        "mbpp/mbpp.jsonl": [
            {
                "task_id": task, "text": f"Write a function that returns {value}.",
                "code": f"def {name}():\n    return {value}", "test_setup_code": "",
                "test_list": [f"assert {name}() == {value}"], "challenge_test_list": [],
            }
            for task, name, value in MBPP
        ],
        "commonsenseqa/dev.jsonl": [
            {
                "id": f"c{n}", "question": f"Which letter is number {n}?", "answer": gold,
                "choices": {"label": ["A", "B"], "text": [f"first {n}", f"second {n}"]},
            }
            for n, gold in CHOICES
        ],
    }  # fmt: skip
    for name, rows in files.items():
        lines(root / name, rows)
    return root


RIGHT: dict[str, list[str]] = {
    "gsm8k": [answer for _, answer in GSM8K],
    "math": [f"\\boxed{{{answer}}}" for _, answer in MATH],
    "squad2": [golds[0] if golds else "" for _, golds in SQUAD],
    "hotpotqa": [answer for _, answer in HOTPOT],
    "humaneval": [f"    {body}\n" for _, body, _, _ in HUMANEVAL],
    "mbpp": [f"def {name}():\n    return {value}" for _, name, value in MBPP],
    "commonsenseqa": [gold for _, gold in CHOICES],
}
"""Set -> a right answer to each row, by its index in the official file."""
WRONG = {
    "gsm8k": "0", "math": r"\boxed{77}", "squad2": "a river", "hotpotqa": "a river",
    "humaneval": "    return None\n", "mbpp": "nothing = 1", "commonsenseqa": "neither",
}  # fmt: skip
"""Set -> an answer that is wrong on every row."""


def prediction(dataset: str, row: int | str, text: Any, **more: Any) -> dict[str, Any]:
    """A line of a file of predictions."""
    return {"dataset": dataset, "id": row, "prediction": text, **more}


def right(dataset: str, wrong: int = 0) -> list[dict[str, Any]]:
    """Right predictions to every row of a set, the first ``wrong`` of them wrong."""
    return [
        prediction(dataset, row, WRONG[dataset] if row < wrong else text)
        for row, text in enumerate(RIGHT[dataset])
    ]
