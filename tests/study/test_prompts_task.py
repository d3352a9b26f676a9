"""The task that reads any JSONL or Parquet file of prompts."""

import gzip
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.config.schema import Task
from study.errors import UserError
from study.rows import Criterion, Truth, prompt_id
from study.tasks import prompts as subject
from study.tasks.where import FILES, data_folder
from tests.study.tasks.datasets.roots import lines

HEALTHBENCH = data_folder() / FILES["healthbench"]
TURNS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Name a colour"},
]
RUBRICS = [{"criterion": "names one", "points": 2}, {"text": "is rude", "points": -1.5}]
CRITERIA = (Criterion("names one", 2.0), Criterion("is rude", -1.5))
MATH_VERIFY = {"verifier": "rule", "function": "math_verify", "parameters": {"answer": "2"}}
"""Tags of a rule function that there is not."""


def jsonl(folder: Path, *records: Any, name: str = "p.jsonl") -> Path:
    return lines(folder / name, records)


def all_rows(path: Path, **options: Any) -> list[Any]:
    return list(subject.load(Task(path=str(path), options=options)).rows)


def test_text_prompt_is_one_user_turn(tmp_path: Path):
    (row,) = all_rows(jsonl(tmp_path, {"prompt": "Name a colour"}))
    assert row.messages == ({"role": "user", "content": "Name a colour"},)
    assert row.prompt_id == prompt_id("Name a colour")
    assert row.criteria == () and row.spec == {}
    assert subject.TASK.truth(row, "red") is None


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz", "p.parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str):
    records = [
        {"prompt": TURNS, "rubrics": [{"criterion": "a", "points": 1.0}], "split": "train"},
        {"prompt": TURNS[2:], "rubrics": [{"criterion": "b", "points": -2.0}], "split": "test"},
    ]
    if name == "p.parquet":
        pq.write_table(pa.Table.from_pylist(records), tmp_path / name)
    else:
        jsonl(tmp_path, *records, name=name)
    rows = all_rows(tmp_path / name)
    assert [row.messages for row in rows] == [tuple(TURNS), tuple(TURNS[2:])]
    assert [row.criteria for row in rows] == [(Criterion("a", 1.0),), (Criterion("b", -2.0),)]
    assert [row.split for row in rows] == ["train", "eval"]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "x", "rubrics": RUBRICS},
        {"prompt": "x", "reward_model": {"ground_truth": "", "rubrics": RUBRICS}},
        {"prompt": "x", "reward_model": {}, "extra_info": {"reward_model": {"rubrics": RUBRICS}}},
        {
            "prompt": np.array([{"role": "user", "content": "x"}]),
            "reward_model": {"rubrics": np.array(RUBRICS)},
            "extra_info": {"index": 3},
        },
    ],
)
def test_rubrics_are_found_in_every_form(record: dict[str, Any]):
    row = subject.parse(record, "here")
    assert row.prompt_text() == "x"
    assert row.criteria == CRITERIA


def test_rubric_without_points_counts_once():
    row = subject.parse({"prompt": "x", "rubrics": [{"text": "a"}]}, "here")
    assert row.criteria == (Criterion("a", 1.0),)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"question": "x", "id": 1}, "no field 'prompt' (it has question, id)"),
        ({"prompt": None}, "no field 'prompt'"),
        ({"prompt": 3}, "a prompt that is 3"),
        ({"prompt": []}, "a prompt that is []"),
        ({"prompt": " "}, "a prompt that ends with"),
        ({"prompt": TURNS[:2]}, "a prompt that ends with"),
        ({"prompt": [{"role": "bot", "content": "x"}]}, "roles are system, developer, user"),
        ({"prompt": ["x"]}, "the turn 'x'"),
        ({"prompt": [{"role": "user"}]}, "content is None"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "content is [{'type'"),
        ({"prompt": "x", "rubrics": "be nice"}, "rubrics that are 'be nice'"),
        ({"prompt": "x", "rubrics": ["be nice"]}, "the rubric 'be nice'"),
        ({"prompt": "x", "rubrics": [{"criterion": " "}]}, "the rubric {'criterion': ' '}"),
        ({"prompt": "x", "rubrics": [{"text": "a", "points": "2"}]}, "worth '2' points"),
        ({"prompt": "x", "rubrics": [{"text": "a", "points": True}]}, "worth True points"),
        ({"prompt": "x", "rubrics": [{"text": "a", "points": float("nan")}]}, "worth nan"),
        ({"prompt": "x", "split": "dev2"}, "legal are train, eval".capitalize()),
        ({"prompt": "How many?", "reference": 3}, "found the reference 3"),
        ({"prompt": "x", "rubrics": [{"criterion": "a", "tags": MATH_VERIFY}]}, "word_count_range"),
        ("{not json", "no JSON"),
        ("[1, 2]", "found [1, 2]"),
    ],
)
def test_bad_rows_name_file_and_line(tmp_path: Path, record: Any, message: str):
    path = jsonl(tmp_path, {"prompt": "fine"}, "", record)
    with pytest.raises(UserError) as caught:
        all_rows(path)
    assert f"{path}, line 3: " in str(caught.value)
    assert message in str(caught.value)


def test_parquet_row_without_prompt_is_named(tmp_path: Path):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"prompt": ["a", "b", None]}), path)
    with pytest.raises(UserError, match="row 3: found no field 'prompt'"):
        all_rows(path)
    pq.write_table(pa.table({"question": ["a"], "answer": ["b"]}), path)
    with pytest.raises(UserError, match=re.escape("(it has question, answer)")):
        all_rows(path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("p.jsonl", b"\n\n", "holds no rows"),
        ("p.jsonl", b"\xff\xfe{}", "cannot be read as UTF-8 JSONL"),
        ("p.jsonl.gz", b"not gzip", "cannot be read as UTF-8 JSONL"),
        ("p.jsonl.gz", gzip.compress(b'{"prompt": "x"}', mtime=0)[:-9], "read as UTF-8 JSONL"),
        ("p.parquet", b"PAR1 not really", "cannot be read as Parquet"),
        ("p.csv", b"prompt\nx\n", "does not end in .jsonl, .jsonl.gz, .parquet"),
    ],
)
def test_unreadable_files_are_user_errors(tmp_path: Path, name: str, data: bytes, message: str):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        all_rows(tmp_path / name)
    assert message in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize("path", [None, "", "???"])
def test_no_path_says_what_to_type(path: str | None):
    with pytest.raises(UserError, match=r"Type for example task\.path=prompts\.jsonl"):
        subject.TASK.rows(Task(path=path), "train")


def test_missing_file_says_where_it_looked(tmp_path: Path):
    with pytest.raises(UserError, match=re.escape(f"looked in {Path.cwd()}")):
        subject.TASK.rows(Task(path=str(tmp_path / "none.jsonl")), "train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_chars": 3}, "one of eval_share, form, group_key, max_prompt_chars"),
        ({"max_prompt_chars": 0}, "it must be a number 1 or more"),
        ({"max_prompt_chars": "10"}, "it must be a whole number"),
        ({"eval_share": 1.0}, "it must be a number 0 or more and below 1"),
    ],
)
def test_bad_options_are_user_errors(tmp_path: Path, options: dict[str, Any], message: str):
    with pytest.raises(UserError, match=re.escape(message)):
        all_rows(jsonl(tmp_path, {"prompt": "x"}), **options)


def test_duplicates_are_merged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = jsonl(
        tmp_path,
        {"prompt": "x", "rubrics": RUBRICS[:1], "split": "train"},
        {"prompt": "y", "split": "train"},
        {"prompt": [{"role": "user", "content": "x"}], "rubrics": RUBRICS},
        {"prompt": "far too long", "split": "train"},
        {"prompt": "x", "rubrics": RUBRICS, "split": "eval"},
    )
    with caplog.at_level(logging.WARNING):
        loaded = subject.load(Task(path=str(path), options={"max_prompt_chars": 11}))
        subject.load(Task(path=str(path), options={"max_prompt_chars": 11}))
    assert (loaded.read, loaded.merged, loaded.dropped) == (5, 2, 1)
    assert [row.prompt_text() for row in loaded.rows] == ["x", "y"]
    assert loaded.rows[0].criteria == CRITERIA
    assert loaded.rows[0].split == "eval"  # never train on a prompt that is evaluated
    assert len(caplog.messages) == 1
    assert "5 rows, 2 distinct prompts; 2 repeated ones merged, 1 longer" in caplog.messages[0]


def test_changed_file_is_read_again(tmp_path: Path):
    path = jsonl(tmp_path, {"prompt": "x"})
    assert len(all_rows(path)) == 1
    jsonl(tmp_path, {"prompt": "x"}, {"prompt": "y"})
    assert len(all_rows(path)) == 2


def test_split_by_hash_is_a_partition_of_the_expected_size(tmp_path: Path):
    path = jsonl(tmp_path, *({"prompt": f"prompt {n}"} for n in range(2000)))
    task = Task(path=str(path), options={"eval_share": 0.2}, train_rows=9999, eval_rows=9999)
    train, held_out = (
        {row.prompt_id for row in subject.TASK.rows(task, split)} for split in ("train", "eval")
    )
    assert not train & held_out
    assert len(train) + len(held_out) == 2000
    assert abs(len(held_out) - 400) < 4 * (2000 * 0.2 * 0.8) ** 0.5
    small = jsonl(tmp_path, *({"prompt": f"prompt {n}"} for n in range(50)), name="s.jsonl")
    part = subject.TASK.rows(Task(path=str(small), options=task.options), "train")
    assert {row.prompt_id for row in part} <= train  # other rows do not move a prompt


def test_limits_take_a_seeded_sample_in_file_order(tmp_path: Path):
    path = jsonl(tmp_path, *({"prompt": f"{n:03d}", "split": "train"} for n in range(100)))

    def taken(seed: int, limit: int) -> list[str]:
        task = Task(path=str(path), train_rows=limit, seed=seed)
        return [row.prompt_text() for row in subject.TASK.rows(task, "train")]

    assert taken(0, 10) == sorted(taken(0, 10)) and len(taken(0, 10)) == 10
    assert set(taken(0, 10)) < set(taken(0, 20))
    assert taken(0, 10) != taken(1, 10)
    assert len(taken(0, 200)) == 100
    assert subject.TASK.rows(Task(path=str(path)), "eval") == []


def test_nothing_to_train_on_is_said(tmp_path: Path):
    path = jsonl(tmp_path, {"prompt": "x", "split": "test"})
    with pytest.raises(UserError, match="no prompt to train on"):
        subject.TASK.rows(Task(path=str(path)), "train")
    assert len(subject.TASK.rows(Task(path=str(path)), "eval")) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(subject.ROLES), st.text(st.characters(exclude_categories=["Cs"])))
    ),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip),
)
def test_chat_turns_arrive_unchanged(before: list[tuple[str, str]], last: str):
    turns = [{"role": role, "content": text} for role, text in [*before, ("user", last)]]
    row = subject.parse(json.loads(json.dumps({"prompt": turns, "split": "eval"})), "here")
    assert list(row.messages) == turns
    assert row.prompt_id == prompt_id(row.prompt_text())


@pytest.mark.skipif(not HEALTHBENCH.exists(), reason="no shared data: healthbench")
def test_healthbench_has_the_documented_counts():
    rows = all_rows(HEALTHBENCH)
    points = [item.points for row in rows for item in row.criteria]
    assert (len(rows), len(points), sum(value < 0 for value in points)) == (500, 5965, 1859)
    assert (min(points), max(points)) == (-10.0, 10.0)
    assert any(len(row.messages) > 1 for row in rows)


def test_a_reference_is_what_is_right(tmp_path):
    path = jsonl(
        tmp_path,
        {"prompt": "Which city?", "reference": "Rome"},
        {"prompt": "Which sign?", "reference": "+"},
        {"prompt": "Why?"},
        {"prompt": "Why?", "reference": "so"},
    )
    task = Task(name="prompts", path=str(path), options={"eval_share": 0.0})
    city, sign, why = subject.TASK.rows(task, "train")
    assert [row.reference for row in (city, sign, why)] == ["Rome", "+", "so"]
    right = ["Rome", " rome.", "The answer is Rome.", "ROME"]
    assert all(subject.TASK.truth(city, text) == Truth(1.0, (True,)) for text in right)
    wrong = ["Paris", "", "Rome or Paris", "Rome" * 50_000]
    assert all(subject.TASK.truth(city, text) == Truth(0.0, (False,)) for text in wrong)
    assert subject.TASK.truths([sign, sign, sign], ["+", "-", None]) == [
        Truth(1.0, (True,)),
        *[Truth(0.0, (False,))] * 2,
    ]
    assert subject.TASK.truths([replace(why, reference=None)], ["so"]) == [None]
