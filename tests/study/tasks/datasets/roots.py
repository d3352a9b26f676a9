"""A data folder of all sets in their official forms, in our own words."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

THINGS = (
    "apples boats candles drums eggs forks gloves hats islands jars kites lamps mirrors nails"
    " olives pencils quilts ropes shells towels"
).split()
NAMES = (
    "Ada Bo Cleo Dan Eva Finn Gus Hana Ivo June Kai Lena Max Nora Otto Pia Rui Sara Tom Uma".split()
)


def gsm8k(split: str, rows: int = 20) -> list[dict[str, Any]]:
    """Problems of which no two share many words."""
    start = 0 if split == "train" else 7
    return [
        {
            "question": f"{NAMES[row]} packs {row + 3} {THINGS[(row + start) % 20]} in a"
            f" {split} box while {NAMES[(row * 7 + start) % 20]} finds {start + 2} more"
            f" {THINGS[(row * 3 + 1) % 20]}. How many are there?",
            "answer": f"There are {row + 3} and {start + 2}.\n#### {row + 5 + start}",
        }
        for row in range(rows)
    ]


def math(split: str, rows: int = 20) -> list[dict[str, Any]]:
    return [
        {
            "problem": f"In the {split} garden of {NAMES[row]}, what is"
            f" $\\frac{{{row}}}{{{row + 2}}}$ of the {THINGS[row]}?",
            "level": "Level 1",
            "type": "Algebra",
            "solution": f"It is \\boxed{{\\frac{{{row}}}{{{row + 2}}}}}.",
        }
        for row in range(rows)
    ]


def squad2(split: str, articles: int = 6) -> dict[str, Any]:
    data = []
    for article in range(articles):
        thing = THINGS[article + (0 if split == "train" else 10)]
        paragraphs = []
        for paragraph in range(2):
            name = NAMES[2 * article + paragraph]
            qas = [
                {
                    "question": f"Who made the {split} {thing} of part {paragraph}?",
                    "id": f"{split}-{article}-{paragraph}-a",
                    "answers": [{"text": name, "answer_start": 0}] * 2,
                    "is_impossible": False,
                },
                {
                    "question": f"Where was {thing} sold after the {split} {paragraph} fair?",
                    "id": f"{split}-{article}-{paragraph}-b",
                    "answers": [],
                    "plausible_answers": [{"text": name, "answer_start": 0}],
                    "is_impossible": True,
                },
            ]
            context = f"{name} made the {thing} of part {paragraph} for the {split}."
            paragraphs.append({"context": context, "qas": qas})
        data.append({"title": f"{split}_{thing}", "paragraphs": paragraphs})
    return {"version": "v2.0", "data": data}


def hotpotqa(split: str, rows: int = 20) -> list[dict[str, Any]]:
    return [
        {
            "_id": f"{split}{row:04}",
            "question": f"Did {NAMES[row]} or the {split} {THINGS[row]} come in {1900 + row}?",
            "answer": ("yes", "no", THINGS[row])[row % 3],
            "type": "comparison",
            "level": "hard",
            "supporting_facts": [[f"{split} {NAMES[row]}", 0], [f"{split} {THINGS[row]}", 1]],
            "context": [
                [f"{split} {NAMES[row]}", [f"{NAMES[row]} came.", " Twice."]],
                [f"{split} {THINGS[row]}", ["They came.", " Later."]],
            ],
        }
        for row in range(rows)
    ]


def humaneval(rows: int = 12) -> list[dict[str, Any]]:
    return [
        {
            "task_id": f"HumanEval/{row}",
            "prompt": f"def count_{THINGS[row]}(box):\n    ''' Count {THINGS[row]} in a box. '''\n",
            "entry_point": f"count_{THINGS[row]}",
            "canonical_solution": f"    return len(box) + {row}\n",
            "test": f"\ndef check(candidate):\n    assert candidate([]) == {row}\n",
        }
        for row in range(rows)
    ]


def mbpp() -> list[dict[str, Any]]:
    """Tasks of all four splits, some in the sanitised half."""
    return [
        {
            "text": f"Write a function to weigh {THINGS[place]} for {NAMES[place]}.",
            "code": f"def weigh_{THINGS[place]}(n):\r\n    return n * {place}",
            "task_id": task,
            "test_setup_code": "",
            "test_list": [f"assert weigh_{THINGS[place]}(2) == {2 * place}"],
            "challenge_test_list": [],
        }
        for place, task in enumerate((1, 2, 3, 11, 12, 14, 16, 511, 554, 555, 601, 602, 603, 800))
    ]


def mmlu(rows: int = 8) -> list[dict[str, Any]]:
    return [
        {
            "question": f"Which of these do {THINGS[row]} need most?",
            "subject": "things",
            "choices": ["air", "light", NAMES[row], "time"],
            "answer": row % 4,
        }
        for row in range(rows)
    ]


def commonsenseqa(rows: int = 8) -> list[dict[str, Any]]:
    labels = [
        {"label": label, "text": f"{label} {THINGS[place]}"} for place, label in enumerate("ABCDE")
    ]
    return [
        {
            "id": f"c{row:03}",
            "question": {"stem": f"Where does {NAMES[row]} keep {THINGS[row]}?", "choices": labels},
            "answerKey": "ABCDE"[row % 5],
        }
        for row in range(rows)
    ]


def lines(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows as JSON lines, a text as it is, packed where the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def whole(path: Path, value: Any) -> Path:
    """Write one JSON value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def make(root: Path) -> Path:
    """Write every set in its official form; some files packed."""
    for split in ("train", "test"):
        lines(root / "gsm8k" / f"{split}.jsonl", gsm8k(split))
        lines(root / "math" / f"{split}.jsonl.gz", math(split))
    lines(
        root / "math" / "math500.jsonl",
        [
            {**row, "answer": "1/2", "unique_id": f"test/{n}.json"}
            for n, row in enumerate(math("five hundred"))
        ],
    )
    for split in ("train", "dev"):
        whole(root / "squad2" / f"{split}-v2.0.json", squad2(split))
    whole(root / "hotpotqa" / "hotpot_train_v1.1.json", hotpotqa("train"))
    whole(root / "hotpotqa" / "hotpot_dev_distractor_v1.json", hotpotqa("dev"))
    lines(root / "humaneval" / "HumanEval.jsonl.gz", humaneval())
    lines(root / "mbpp" / "mbpp.jsonl", mbpp())
    lines(root / "mmlu" / "test.jsonl", mmlu())
    lines(root / "commonsenseqa" / "dev_rand_split.jsonl", commonsenseqa())
    return root
