"""The task that reads any file of prompts: rubrics, splits, VerIF labels, and rows of no use."""

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
from study.rows import Criterion, Rule, Truth, prompt_id
from study.tasks import instruct_mini, prompts, where
from study.tasks import prompts as subject
from study.tasks.prompts import Options
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


def test_a_text_prompt_is_one_user_turn_and_a_rubric_without_points_counts_once(tmp_path: Path):
    (row,) = all_rows(jsonl(tmp_path, {"prompt": "Name a colour"}))
    assert row.messages == ({"role": "user", "content": "Name a colour"},)
    assert row.prompt_id == prompt_id("Name a colour")
    assert row.criteria == () and row.spec == {}
    assert subject.TASK.truth(row, "red") is None
    row = subject.parse({"prompt": "x", "rubrics": [{"text": "a"}]}, "here")
    assert row.criteria == (Criterion("a", 1.0),)


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


def test_what_is_not_there_says_where_it_looked_and_what_to_type(tmp_path: Path, monkeypatch):
    with pytest.raises(UserError, match=re.escape(f"looked in {Path.cwd()}")):
        subject.TASK.rows(Task(path=str(tmp_path / "none.jsonl")), "train")
    monkeypatch.setenv(where.VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=re.escape("task.path is not set")) as caught:
        prompts.TASK.rows(Task(name="healthbench"), "train")
    assert f"{where.VARIABLE} to a folder with healthbench/" in str(caught.value)


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


LABELS = {
    "checkers": ["[llm] Style: Be kind.", "[rule]  Word: At most 9 words."],
    "functions": ["import llm", "def check_following(i, r):\n    return len(r.split()) < 10"],
}
VERIF = Options(form="verif")


def record(labels):
    return {"prompt": "x", "reward_model": {"style": "rm", "ground_truth": labels}}


def test_labels_become_criteria_and_rules():
    row = prompts.parse(record(json.dumps(LABELS)), "here", VERIF, 7)
    assert row.criteria == (Criterion("Style: Be kind."),)
    assert row.rules == (Rule("7:1", "Word", "Word: At most 9 words.", LABELS["functions"][1]),)
    assert prompts.parse({"prompt": "x", **LABELS}, "here", VERIF, 7) == row


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("{not json", "labels that are not JSON"),
        ("[]", "no labels"),
        (None, "no labels"),
        (json.dumps({"checkers": ["[llm] a"]}), "functions that are not a list of text"),
        (json.dumps({"checkers": ["[llm] a"], "functions": []}), "1 checkers and 0 functions"),
        (json.dumps({"checkers": ["a: b"], "functions": ["x"]}), "without the tag"),
        (json.dumps({"checkers": ["[human] a"], "functions": ["x"]}), "without the tag"),
    ],
)
def test_bad_labels_name_file_and_row(labels, message):
    with pytest.raises(UserError, match=r"^rows\.parquet, row 3: ") as caught:
        prompts.parse(record(labels), "rows.parquet, row 3", VERIF)
    assert message in str(caught.value)


@pytest.mark.parametrize("as_list", [False, True])
def test_a_word_count_in_the_tags_is_a_rule(as_list):
    tags = {"verifier": "rule", "function": "word_count_range", "parameters": {"max_count": 3}}
    if as_list:
        tags = ["verifier:llm", "hard"]
    record = {"prompt": "x", "rubrics": [{"criterion": "Short.", "points": 2, "tags": tags}]}
    row = prompts.parse(record, "here", number=7)
    if as_list:
        assert row.criteria == (Criterion("Short.", 2.0, {"verifier": "llm", "hard": True}),)
        return
    assert row.criteria == ()
    (rule,) = row.rules
    assert (rule.id, rule.text, rule.points) == ("7:0", "Short.", 2.0)
    namespace = {}
    exec(rule.source, namespace)
    check = namespace["check_following"]
    assert check("", "one two three") and not check("", "one two three four")


@pytest.mark.parametrize(
    ("rubrics", "message"),
    [
        ([], "no criteria"),
        ([{"text": "a"}, {"text": "a "}], "twice"),
        ([{"text": "a", "points": -1}], "no criterion with positive points"),
    ],
)
def test_rows_that_a_rubric_cannot_use_are_named_or_counted(tmp_path, rubrics, message):
    good = {"prompt": "q", "rubrics": [{"text": "a"}], "split": "train"}
    path = lines(tmp_path / "rows.jsonl", [good, {"prompt": "p", "rubrics": rubrics}])
    task = Task(name="verinstruct", path=str(path), options={"needs": "criteria"})
    with pytest.raises(UserError, match=re.escape(f"{path}, line 2: found a row that has")) as got:
        prompts.load(task)
    assert message in str(got.value)
    options = {"needs": "criteria", "on_unfit": "drop"}
    dropping = Task(name="verinstruct", path=str(path), options=options)
    loaded = prompts.load(dropping)
    assert (loaded.read, loaded.unfit, len(loaded.rows)) == (2, 1, 1)


def test_research_rubrics_are_read(tmp_path):
    record = {"query": "Why?", "rubric": [{"rubric_item": "Cites.", "type": "x"}]}
    path = lines(tmp_path / "rows.jsonl", [record])
    (row,) = prompts.load(Task(name="researchqa", path=str(path))).rows
    assert row.prompt_text() == "Why?" and row.criteria == (Criterion("Cites."),)


def test_a_group_stays_on_one_side(tmp_path):
    records = [{"prompt": f"p{n}", "original_id": n // 4} for n in range(200)]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "rows.parquet")
    options = {"group_key": "original_id", "eval_share": 0.5}
    rows = prompts.load(Task(path=str(tmp_path / "rows.parquet"), options=options)).rows
    splits = [row.split for row in rows]
    assert all(len(set(splits[start : start + 4])) == 1 for start in range(0, 200, 4))
    assert {"train", "eval"} == set(splits)
    with pytest.raises(UserError, match="no original_id"):
        prompts.parse({"prompt": "x"}, "here", Options(group_key="original_id"))


def test_built_in_rules_agree_with_the_truth():
    import random

    from study.tasks import teacher

    draw = random.Random(0)
    ruled = instruct_mini.TASK.rows(Task(train_rows=60, options={"rules": True}), "train")
    plain = instruct_mini.TASK.rows(Task(train_rows=60), "train")
    scores = []
    for row, before in zip(ruled, plain, strict=True):
        assert row.prompt_id == before.prompt_id and len(row.rules) in (1, 2)
        answer = teacher.answer(before, draw)
        truth = instruct_mini.TASK.truth(row, answer)
        assert truth.score == instruct_mini.TASK.truth(before, answer).score
        assert len(truth.checks) == len(row.criteria) + len(row.rules)
        for rule, expected in zip(row.rules, truth.checks[len(row.criteria) :], strict=True):
            namespace = {}
            exec(rule.source, namespace)
            assert namespace["check_following"]("", answer) == expected
            scores.append(expected)
    assert set(scores) == {True, False}


@pytest.mark.parametrize(
    ("name", "options", "counts"),
    [
        ("verinstruct", {"needs": "criteria"}, (275, 0, 1596, 0)),
        ("verinstruct-verif", {"form": "verif"}, (274, 0, 1591, 399)),
        ("healthbench", {"needs": "criteria", "on_unfit": "drop"}, (500, 1, 5942, 0)),
    ],
)
def test_the_study_s_own_rows(name, options, counts):
    if not (where.data_folder() / where.FILES[name]).is_file():
        pytest.skip(f"the rows of {name} are not here")
    loaded = prompts.load(Task(name=name, options=options))
    criteria = sum(len(row.criteria) for row in loaded.rows)
    rules = sum(len(row.rules) for row in loaded.rows)
    assert (loaded.read, loaded.unfit, criteria, rules) == counts
