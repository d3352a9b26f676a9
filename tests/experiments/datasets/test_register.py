"""Rows of one's own become a prepared folder; what does not fit the form is refused."""

import json

import pytest

from experiments.data import __main__ as data
from study.tasks.datasets.table import SPLITS, open_table
from tests.study.tasks.datasets import roots

MATH = {"problem": "What is 2 + 3 for Ada?", "answer": "5", "type": "math"}
CODE = {
    "problem": "Write double(n).",
    "answer": "def double(n):\n    return 2 * n",
    "type": "code",
    "tests": "assert double(2) == 4",
}
QA = {"problem": "Who made it?", "answer": "Bo", "type": "qa", "context": "Bo made it.", "id": "q1"}


def rows(kind: dict, number: int) -> list[dict]:
    """Rows of one kind with problems of their own."""
    made = []
    for row in range(number):
        problem = f"{kind['problem']} {roots.NAMES[row]} asks about {roots.THINGS[row]} {row}"
        made.append(kind | {"problem": problem} | ({"id": f"q{row}"} if "id" in kind else {}))
    return made


def run(capsys, *words) -> dict:
    assert data.main([str(word) for word in words]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_of_one_type_keep_the_name_of_the_file(tmp_path, capsys):
    path = roots.lines(tmp_path / "rows.jsonl", rows(MATH, 18))
    manifest = run(capsys, "register", f"path={path}", f"out={tmp_path / 'rows'}")
    assert manifest["counts"] == {"rows": {"test": 3, "train": 15, "validation": 0}}
    item = open_table(tmp_path / "rows").by_id("rows:train:4")
    assert item.prompt == rows(MATH, 5)[4]["problem"] and item.answers == ("5",)
    assert item.domain == "math"
    assert run(capsys, "verify", f"path={tmp_path / 'rows'}") == manifest
    (tmp_path / "rows" / "test" / "rows_test.jsonl").unlink()
    assert data.main(["verify", f"path={tmp_path / 'rows'}"]) == 2
    said = capsys.readouterr().err
    assert "rows_test.jsonl is missing" in said
    assert f"experiments.data register path={path} data=plan-c out=" in said


def test_rows_that_are_not_cut_are_refused(tmp_path, capsys):
    path = roots.lines(tmp_path / "rows.jsonl", rows(MATH, 18))
    assert data.main(["register", f"path={path}", "data=official", f"out={tmp_path / 'rows'}"]) == 2
    legal = "data.cut=[] is not legal: it must be two numbers such as [5,1]"
    assert legal in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_types_are_sets_of_their_own_and_keep_the_row_of_the_file(tmp_path, capsys):
    groups = zip(rows(MATH, 12), rows(CODE, 12), rows(QA, 12), strict=True)
    path = roots.lines(tmp_path / "mine.jsonl.gz", [row for group in groups for row in group])
    words = [f"path={path}", f"out={tmp_path / 'rows'}", "data=official", "data.cut=[1,1]"]
    manifest = run(capsys, "register", *words)
    assert set(manifest["counts"]) == {"mine-code", "mine-math", "mine-qa"}
    table = open_table(tmp_path / "rows")
    left_out = [sum(entry["left_out"].values()) for entry in manifest["datasets"].values()]
    assert len(table) == 36 - sum(left_out)
    code = table.by_id("mine-code:train:1")
    assert code is None or (code.entry_point, code.tests) == ("double", CODE["tests"])
    qa = next(row for split in SPLITS for row in table.rows(split, "mine-qa"))
    assert qa.prompt.startswith("Bo made it.\n\nWho made it?") and table.by_id(qa.alias) == qa


def test_a_number_may_stand_without_quotes_and_repeats_are_merged(tmp_path, capsys):
    some = rows(MATH, 12)
    again = some[3] | {"problem": f"  {some[3]['problem'].upper()}", "answer": 5}
    path = roots.lines(tmp_path / "mine.jsonl", [*some, again])
    manifest = run(capsys, "register", f"path={path}", f"out={tmp_path / 'rows'}")
    assert manifest["datasets"]["mine"]["left_out"] == {"merged": 1}
    assert manifest["datasets"]["mine"]["rows"]["read"] == 13


def test_programs_without_tests_are_counted(tmp_path, capsys):
    bare = [{key: row[key] for key in row if key != "tests"} for row in rows(CODE, 11)]
    path = roots.lines(tmp_path / "mine.jsonl", [*bare, *rows(CODE, 12)[11:], bare[3]])
    manifest = run(capsys, "register", f"path={path}", f"out={tmp_path / 'rows'}")
    assert manifest["datasets"]["mine"]["without_tests"] == 11


ANOTHER = "line 2: found the problem of line 1 with another answer"
WRONG = {
    "no answer": ([MATH | {"answer": " "}], "line 1: found a gold without an answer"),
    "no type": ([{"problem": "x", "answer": "y"}], "line 1: found no field 'type'"),
    "another type": ([MATH, MATH | {"type": "poem"}], "line 2: found type 'poem'"),
    "no problem": ([MATH | {"problem": 3}], "line 1: found problem that is 3"),
    "two answers": ([MATH, MATH | {"answer": "6"}], ANOTHER),
    "two programs": ([CODE, CODE | {"answer": CODE["answer"].replace("2 *", "2  *")}], ANOTHER),
    "other tests": ([CODE, CODE | {"tests": "assert double(3) == 6"}], ANOTHER),
    "an id again": ([QA, QA | {"problem": "Other?"}], "line 2: found the id q1 of line 1 again"),
    "a number again": ([QA | {"id": 7}, QA | {"id": 7, "problem": "Other?"}], "the id 7 of line 1"),
    "tests of nothing": (
        [CODE | {"tests": "assert 1"}],
        "line 1: found tests that call no function",
    ),
    "no rows": ([], "holds no rows"),
    "too few rows of each type": (
        [MATH, QA, CODE],
        "Rows are split 5 to 1 into training and test, so a set needs at least 3 different ones",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_row_that_is_not_of_the_form_is_refused(case, tmp_path, capsys):
    given, said = WRONG[case]
    path = roots.lines(tmp_path / "mine.jsonl", given)
    assert data.main(["register", f"path={path}", f"out={tmp_path / 'rows'}"]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_three_rows_of_a_type_are_enough(tmp_path):
    path = roots.lines(tmp_path / "mine.jsonl", rows(MATH, 3))
    assert data.main(["register", f"path={path}", f"out={tmp_path / 'rows'}"]) == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gsm8k.jsonl", "the name of the file=gsm8k is not legal"),
        ("plan-c.jsonl", "the name of the file=plan-c is not legal"),
        ("raw.jsonl", "the name of the file=raw is not legal"),
        ("my rows.jsonl", "it must be a plain name"),
        ("rows.csv", "is not a file that ends in .jsonl or .jsonl.gz"),
    ],
)
def test_a_file_that_cannot_name_a_set_is_refused(name, said, tmp_path, capsys):
    path = roots.lines(tmp_path / name, rows(MATH, 12))
    assert data.main(["register", f"path={path}", f"out={tmp_path / 'rows'}"]) == 2
    assert said in capsys.readouterr().err
