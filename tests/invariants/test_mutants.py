"""Planted faults: where they can stand, which tests reach them, what a trial says."""

import ast
import subprocess
import threading
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from tests.commands import LIMIT_S
from tests.mutants import __main__ as command
from tests.mutants.blocks import MARKS, block_of, marked, table
from tests.mutants.campaign import Campaign
from tests.mutants.faults import KINDS, PACKAGES, all_faults, drawn, faults_of, planted
from tests.mutants.tiers import LIST, left_out
from tests.mutants.trial import Warm, trees
from tests.waiting import alive, wait_for

TEXT = '''"""A limit: 3."""

from typing import Final

MOST: Final = 3


def limit(value, other=False):
    """Whether 4 is too much."""
    label = f"{value + 1}"
    if value > MOST:
        return pow(value, 2)
    while other:
        value -= 1.5
        break
    return label


def child(value):
    return max(value, "7") == value
'''
FAULTS = {
    (5, "constant", "3", "4"),
    (8, "constant", "False", "True"),
    (11, "boundary", "value > MOST", "(value >= MOST)"),
    (11, "comparison", "value > MOST", "(value <= MOST)"),
    (12, "returned_none", "return pow(value, 2)", "return None"),
    (12, "swapped", "pow(value, 2)", "pow(2, value)"),
    (12, "constant", "2", "3"),
    (14, "dropped", "value -= 1.5", "pass"),
    (14, "constant", "1.5", "3.0"),
    (15, "dropped", "break", "pass"),
    (16, "returned_none", "return label", "return None"),
    (20, "returned_none", 'return max(value, "7") == value', "return None"),
    (20, "comparison", 'max(value, "7") == value', "(max(value, '7') != value)"),
}
TESTS = """
import subprocess, sys
import pytest
from study.lib import limit

@pytest.fixture(scope="module")
def in_a_child():
    words = [sys.executable, "-c", "from study.lib import child; print(child('8'))"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout

def test_much():
    assert limit(9) == 81

def test_little():
    assert limit(1, other=True) == "2"

def test_child(in_a_child):
    assert in_a_child == "True\\n"
"""
PRESET = "name: fair\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one file to plant faults in, and three tests of it."""
    root = tmp_path / "root"
    for package in PACKAGES:
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").touch()
    (root / "tests").mkdir()
    (root / "study" / "lib.py").write_text(TEXT)
    (root / "tests" / "test_lib.py").write_text(TESTS)
    (root / "conf").mkdir()
    (root / "conf" / "fair.yaml").write_text(PRESET)
    (root / "study" / "presets").symlink_to("../conf")
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def test_faults_stand_where_they_can_and_several_at_once():
    faults = faults_of("study/lib.py", TEXT)
    assert {(each.line, each.kind, each.before, each.after) for each in faults} == FAULTS
    assert {each.line for each in faults if not each.deferred} == {5, 8}
    assert len({each.name for each in faults}) == len(faults)
    first, last = (
        next(each for each in faults_of("study/lib.py", TEXT) if each.line == line)
        for line in (5, 16)
    )
    assert planted(TEXT, [first, last]) == planted(planted(TEXT, [last]), [first])


@pytest.mark.parametrize("fault", faults_of("study/lib.py", TEXT), ids=lambda fault: fault.name)
def test_a_planted_fault_is_one_edit_that_compiles(fault):
    text = planted(TEXT, [fault])
    compile(text, fault.path, "exec")
    assert text == TEXT[: fault.begin] + fault.after + TEXT[fault.end :]


def test_a_draw_has_as_many_of_each_kind(tree):
    faults = [fault for number in range(5) for fault in faults_of(f"study/{number}.py", TEXT)]
    chosen = drawn(faults, 3 * len(KINDS), seed=4)
    assert Counter(fault.kind for fault in chosen) == dict.fromkeys(KINDS, 3)
    assert len({fault.name for fault in chosen}) == len(chosen)
    assert chosen == drawn(faults, 3 * len(KINDS), seed=4) != drawn(faults, 3 * len(KINDS), seed=5)


@pytest.mark.parametrize(
    "text", ["draw.random() < 0.5", "time.time() - a > B", "x <= FLAT * y", "abs(x) < 1e-9"]
)
def test_no_boundary_is_moved_that_only_chance_or_rounding_meets(text):
    kinds = {each.kind for each in faults_of("study/a.py", f"def f():\n    return {text}\n")}
    assert "comparison" in kinds and "boundary" not in kinds


def test_a_share_is_weighted_by_the_places_of_each_kind():
    """Of 90 places .5 are caught and of 10 all: .55, and s.e. .9 * sqrt(.25 / 3)."""
    outcomes = {"boundary": ["caught", "survived"] * 2, "dropped": ["caught", "timed_out"]}
    rows = [{"kind": k, "standard": o} for k, several in outcomes.items() for o in several]
    places = {"boundary": 90, "dropped": 10, "swapped": 900}
    assert command.weighted(rows, "standard", places) == "0.550 [0.041, 1.000]"


def test_marks_say_which_blocks_were_entered(monkeypatch):
    entered: dict[int, int] = {}
    import_of_marks = f"from _reach import {MARKS}"
    lines = ast.unparse(marked(TEXT, 10))
    assert lines.count(import_of_marks) == 1
    names: dict[str, object] = {MARKS: entered}
    exec(lines.replace(import_of_marks, ""), names)
    assert entered == {}
    assert names["limit"](9) == 81  # ty: ignore[call-non-callable]
    assert entered == {10: 1, 11: 1}
    entered.clear()
    assert names["limit"](1, other=True) == "2"  # ty: ignore[call-non-callable]
    assert entered == {10: 1, 12: 1}


def test_a_fault_stands_in_its_innermost_block(tree):
    numbers = table(tree)
    first = numbers["study/lib.py"]
    blocks = {fault.line: block_of(fault, TEXT, first) for fault in all_faults(tree)}
    inside = {11: 0, 12: 1, 14: 2, 15: 2, 16: 0, 20: 3}
    assert blocks == {5: None, 8: None} | {line: first + block for line, block in inside.items()}
    assert numbers[""] == first + 4


def test_dear_tests_are_left_out_while_others_reach_their_blocks():
    blocks = {
        "dear": np.array([1, 2]),
        "dearest": np.array([2, 3]),
        "cheap": np.array([1, 2]),
        "second": np.array([1, 2]),
        "third": np.array([2]),
        "by a fixture": np.array([1, 5]),
    }
    seconds = {"dear": 2.0, "dearest": 9.0, "by a fixture": 0.1}
    # nobody else reaches 3 and 5; with two others 1 and 2 are reached by enough without "dear"
    assert left_out(blocks, seconds, {}, others=2) == {"dear"}
    assert left_out(blocks, seconds, {}, others=4) == set()
    fixture = {"f": (10.0, ["by a fixture"])}
    assert left_out(blocks, {}, fixture, others=2) == set()
    assert left_out(blocks | {"sixth": np.array([5])}, {}, fixture, others=2) == {"by a fixture"}


def test_each_name_that_is_left_to_long_is_a_test():
    for path, names in groupby(LIST.read_text().splitlines(), lambda name: name.split("::")[0]):
        functions = {
            node.name
            for node in ast.walk(ast.parse((LIST.parents[1] / path).read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert {name.split("::")[1].partition("[")[0] for name in names} <= functions


def test_what_a_run_of_chosen_tests_says(tree):
    fault = next(each for each in all_faults(tree) if each.after == "pow(2, value)")
    tests = [f"tests/test_lib.py::test_{name}" for name in ("little", "much")]
    with trees(tree, 1) as (copy,):
        assert (copy.folder / "study" / "presets" / "fair.yaml").read_text() == PRESET
        copy.libraries = ()  # its three tests need none
        with copy.with_faults([fault]):
            assert copy.run(tests, limit_s=300.0).failed == (tests[1],)
            (tree / "study" / "lib.py").write_text("raise ValueError")  # somebody works meanwhile
        assert (copy.folder / "study" / "lib.py").read_text() == TEXT


def test_a_fault_that_no_test_can_be_collected_with_is_caught(tree):
    with trees(tree, 1) as (copy,):
        copy.libraries = ()
        (copy.folder / "study" / "lib.py").write_text("raise ValueError")
        run = copy.run(["tests/test_lib.py::test_much"], limit_s=300.0)
    assert run.failed == ("collection",)


@pytest.mark.long
def test_a_campaign_finds_what_the_tests_catch(tree, tmp_path):
    """All faults of a file against three tests, one of which reaches its code in a child."""
    faults = all_faults(tree)
    with trees(tree, 2) as copies:
        command.record(copies[0], tmp_path / "record", workers=2, long=True)
        campaign = Campaign(tree, tmp_path / "record", copies, budget_s=5.0)
        trials = command.tried(campaign, faults, controls=1)
        by_line = {fault.line: sorted(campaign.reaching(fault)[0]) for fault in faults}
    little, much, child = (f"tests/test_lib.py::test_{n}" for n in ("little", "much", "child"))
    assert by_line[12] == [much]
    assert by_line[14] == by_line[15] == [little]
    assert by_line[20] == [child]
    outcomes = {(fault.line, fault.kind): trials[fault.name][1].outcome for fault in faults}
    assert {place for place, outcome in outcomes.items() if outcome == "survived"} == {
        (5, "constant"),  # 9 and 1 are on the same sides of 3 and of 4
        (8, "constant"),
        (11, "boundary"),
        (14, "constant"),
        (14, "dropped"),
    }
    assert [place for place, outcome in outcomes.items() if outcome == "timed_out"] == [
        (15, "dropped")  # a loop without an end
    ]


def test_a_run_that_never_ends_is_killed_with_whoever_asked_for_it(tmp_path) -> None:
    (tmp_path / "test_loop.py").write_text(
        "import os, pathlib\n\ndef test_loop():\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "    while True:\n        pass\n"
    )
    warm = Warm([])
    words = ["test_loop.py", "-p", "no:cacheprovider"]
    request = {"words": words, "folder": str(tmp_path), "environment": {}}
    waits = threading.Thread(
        target=warm.run,
        args=(request | {"log": str(tmp_path / "log")}, LIMIT_S),
        daemon=True,
    )
    waits.start()
    wait_for(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text())
    warm._process.stdin.close()  # as where whoever asked has died
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())), "the run is killed")
    waits.join()
    warm._process.wait()
    warm._process.stdout.close()
