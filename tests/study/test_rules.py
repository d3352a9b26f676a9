"""The audit of rule functions: counts by hand, the command line, and the study's own rows."""

import json
from contextlib import contextmanager

import pytest

from experiments import rules
from experiments.rules import audit, main
from study.errors import UserError
from study.sandbox.pool import Pool
from study.tasks.rules import RuleRunner, infeasible, read_rows, rule_row
from study.tasks.verif import FUNCTION
from study.tasks.where import FILES, data_folder
from tests.study.tasks.datasets.roots import lines

DATA = data_folder() / FILES["verinstruct-verif"]
DEF = "def check_following(instruction, response):\n    "
SHORT = DEF + "return len(response.split()) < 3"
KIND = DEF + "import re\n    return re.search('please', response)"
BROKEN = DEF + "return undefined"


def record(*pairs, prompt="Write."):
    checkers, functions = [list(column) for column in zip(*pairs, strict=True)]
    labels = {"checkers": checkers, "functions": functions}
    return {"prompt": prompt, "reward_model": {"ground_truth": json.dumps(labels)}}


RECORDS = [
    record(("[rule] Word: at most two words", SHORT), ("[llm] Style: kind", "")),
    record(("[rule] Keyword: please", KIND), ("[rule] Word: at most two", SHORT)),
    record(("[llm] Style: warm", "")),
    record(("[rule] Odd: broken", BROKEN)),
]
ROWS = [rule_row(one, index, "here") for index, one in enumerate(RECORDS)]


def test_counts_by_hand_and_an_empty_answer_is_asked_about_once(pool):
    """Three rows have rules: passes 1/1, 1/2 (a match object is a yes), 0/1."""
    counts = audit(ROWS, "please", pool)
    assert (counts["n_rules"], counts["n_pass"], counts["n_error"]) == (4, 3, 1)
    assert (counts["n_rows"], counts["n_rows_with_rules"], counts["rows_perfect"]) == (4, 3, 2)
    assert counts["mean_row_score"] == pytest.approx((1 + 1 + 0) / 3)
    assert counts["per_category"]["Word"] == {"n": 2, "pass": 2}
    assert counts["vacuous"] == ["0:0", "1:1"]
    assert list(counts["errors"]) == ["3:0"] and "undefined" in counts["errors"]["3:0"]
    runner = RuleRunner(pool)
    runner.check(ROWS[:1], ["a"])
    before = pool.outcomes.total()
    runner.check(ROWS[:1] * 5, ["a b c"] * 5)
    assert pool.outcomes.total() - before == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Word: Each word in the response must have at least 15 characters.", "only an empty"),
        ("Word: every word has a minimum of 40 characters", "only an empty"),
        ("Word: Each word must be at least 4 characters long.", None),
        ("Digit: Write between 300 and 200 words.", "a range from 300 to 200"),
        ("Digit: Write between 200 and 300 words.", None),
        ("Keyword: Say please.", None),
    ],
)
def test_infeasible_constraints_are_flagged_from_their_words(text, expected):
    why = infeasible(text)
    assert why == expected or (expected and why and expected in why)


def test_the_command_line(tmp_path, capsys, pool):
    file, out = lines(tmp_path / "rows.jsonl", RECORDS), tmp_path / "out" / "audit.json"
    assert main(["audit", f"file={file}", "response=please", f"out={out}"]) == 0
    assert "3 of 4 rules passed, 1 errors" in capsys.readouterr().out
    assert json.loads(out.read_text())["rows_perfect"] == 2


@pytest.mark.parametrize("sandbox", ["auto", "unsafe"])
def test_rules_run_unsafe_only_where_that_is_typed(sandbox, tmp_path, monkeypatch):
    settings = []

    @contextmanager
    def opened(workers, *, unsafe):
        settings.append(unsafe)
        with Pool(workers) as sandboxes:
            yield sandboxes

    monkeypatch.setattr(rules, "Pool", opened)
    file, out = lines(tmp_path / "rows.jsonl", RECORDS), tmp_path / "audit.json"
    main(["audit", f"file={file}", "response=please", f"out={out}", f"sandbox={sandbox}"])
    assert settings == [sandbox == "unsafe"]


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"prompt": "x"}, "found no labels"),
        (RECORDS[0] | {"prompt": 3}, "its prompt is not legal"),
        ({"prompt": "x", "reward_model": {"ground_truth": "{"}}, "not JSON"),
    ],
)
def test_bad_rows_name_file_and_row(tmp_path, broken, expected):
    path = lines(tmp_path / "rows.jsonl", [RECORDS[0], broken])
    with pytest.raises(UserError, match="row 1: ") as caught:
        read_rows(path)
    assert expected in str(caught.value)


def test_a_file_without_rules_is_said(tmp_path):
    path = lines(tmp_path / "rows.jsonl", [RECORDS[2]])
    with pytest.raises(UserError, match="none has a checker tagged"):
        read_rows(path)


@pytest.mark.long
def test_the_study_s_own_rules_on_an_empty_answer(pool):
    """About half of them pass it, and a quarter of the rows are perfect: what vacuous means."""
    if not DATA.is_file():
        pytest.skip("VerInstruct's rows are not here")
    report = audit(read_rows(DATA), "", pool)
    assert (report["n_rules"], report["n_rows_with_rules"], report["n_error"]) == (399, 214, 0)
    assert report["n_pass"] == len(report["vacuous"]) == 198
    assert report["rows_perfect"] == 53 and len(report["infeasible"]) == 47
    categories = {name: counts["n"] for name, counts in report["per_category"].items()}
    assert categories == {
        "Digit": 110, "Keyword": 104, "Sentence": 54, "Word": 52, "Punctuation": 47,
        "Paragraph": 32,
    }  # fmt: skip
    assert FUNCTION == "check_following"
