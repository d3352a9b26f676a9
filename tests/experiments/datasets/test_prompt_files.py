"""Prepared rows come back the same, and what was changed or leaks is said."""

import json

import pytest

from experiments.data import __main__ as data
from experiments.data import prompt_files
from study.config.schema import Task
from study.errors import UserError
from study.rows import make_row
from study.tasks import prompts
from tests.study.tasks.datasets.roots import lines

RUBRIC = [
    {"criterion": "Is kind.", "points": 3, "tags": {"axis": "tone"}},
    {"criterion": "Is rude.", "points": -2},
    {
        "criterion": "Is short.",
        "tags": {"verifier": "rule", "function": "word_count_range"}
        | {"parameters": {"max_count": 9}},
    },
]
TURNS = [
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Naïve words."},
]
VERIF = {
    "prompt": "Write.",
    "checkers": ["[llm] Style: a", "[rule] Word: b", "[llm] Style: c"],
    "functions": ["", "def check_following(i, r):\n    return True", ""],
}


def content(rows):
    """Rows without the ids of their rules, which name places in a file."""
    rules_of = [[(r.category, r.text, r.source, r.points) for r in row.rules] for row in rows]
    return [
        (row.prompt_id, row.messages, row.criteria, rules, row.split)
        for row, rules in zip(rows, rules_of, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "options", "records"),
    [
        ("verinstruct", {}, [{"prompt": TURNS, "rubrics": RUBRIC}, {"prompt": "x", "rubrics": []}]),
        ("verinstruct-verif", {"form": "verif"}, [VERIF]),
    ],
)
def test_prepared_rows_are_the_rows(tmp_path, name, options, records):
    task = Task(name=name, path=str(lines(tmp_path / "raw.jsonl", records)), options=options)
    manifest = prompt_files.prepare(task, tmp_path / "rows.jsonl")
    again = Task(name=name, path=str(tmp_path / "rows.jsonl"), options=options)
    assert content(prompts.load(again).rows) == content(prompts.load(task).rows)
    assert manifest["rows"]["distinct"] == len(records)
    assert prompt_files.verify(tmp_path / "rows.jsonl") == manifest


def test_a_changed_file_is_not_what_was_prepared(tmp_path):
    task = Task(name="verinstruct", path=str(lines(tmp_path / "raw.jsonl", [{"prompt": "a"}])))
    prompt_files.prepare(task, tmp_path / "rows.jsonl")
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"prompt": "b"}\n')
    with pytest.raises(UserError, match="it was changed later"):
        prompt_files.verify(tmp_path / "rows.jsonl")
    (tmp_path / "rows.manifest.json").unlink()
    with pytest.raises(UserError, match="is not a prepared file"):
        prompt_files.verify(tmp_path / "rows.jsonl")


def row(text, split):
    return make_row(({"role": "user", "content": text},), split=split)


def test_leakage_counts_repeats_and_shared_passages():
    long = " ".join(f"word{n}" for n in range(20))
    rows = [
        row("Name two fruits.", "train"),
        row("name two  FRUITS", "eval"),
        row(f"One: {long}", "train"),
        row(f"Two: {long}", "eval"),
        row("Nothing of the kind.", "eval"),
    ]
    found = prompt_files.leakage(rows)
    assert found["near_duplicates"] == 2
    assert found["eval_in_train"] == 1 and found["eval_overlapping"] == 1
    assert found["examples"] == [rows[1].prompt_id, rows[3].prompt_id]


def test_twelve_shared_words_are_no_overlap():
    shared = " ".join(f"word{n}" for n in range(12))
    found = prompt_files.leakage([row(f"{shared} here", "train"), row(f"{shared} there", "eval")])
    assert found["eval_overlapping"] == 0


def test_the_command_line(tmp_path, capsys):
    raw = lines(tmp_path / "raw.jsonl", [{"prompt": "a", "rubrics": RUBRIC}, {"prompt": "a"}])
    words = ["task=prompts", f"task.path={raw}"]
    assert data.main(["describe", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["criteria"] == {"n": 2, "negative": 1} | {"least_points": -2.0, "most_points": 3.0}
    assert found["rows"]["merged"] == 1
    assert found["rules"]["categories"] == {"word_count_range": 1}
    assert data.main(["prepare", *words, f"out={tmp_path / 'rows.jsonl'}"]) == 0
    capsys.readouterr()
    assert data.main(["verify", f"path={tmp_path / 'rows.jsonl'}"]) == 0


def test_the_source_is_never_overwritten(tmp_path):
    raw = lines(tmp_path / "raw.jsonl", [{"prompt": "a"}])
    with pytest.raises(UserError, match="another file than"):
        prompt_files.prepare(Task(name="prompts", path=str(raw)), raw)
