"""Logs of others' runs of programs, made by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.workflow.__main__ import main
from analysis.workflow.log import COLLAPSED, HEALED, PERSISTED, SOUND, describe_run, read
from tests.analysis.conftest import write_lines


def write(path: Path, fallbacks: Callable[[int], bool], updates: Callable[[int], bool]) -> Path:
    """Twenty steps of one group of two; the reward is 1 of the first and 0 of the second in odd
    steps, equal in even ones."""
    rows: list[dict[str, Any]] = [
        {"run": "a", "step": step, "prompt": 1, "member": member, "update": updates(step)}
        | {"fallback": fallbacks(step), "dsl": f"Custom {step % 2}", "ops": 1}
        | {"reward": float(step % 2 and member == 1)}
        for step in range(1, 21)
        for member in (1, 2)
    ]
    return write_lines(path, rows)


def often(step: int) -> bool:
    return step % 3 == 0


def test_a_collapse_that_heals_without_an_update(tmp_path: Path):
    (run,) = read(write(tmp_path / "log.jsonl", lambda step: often(step - 1), often)).values()
    assert (run.updates, run.rollouts, run.steps) == (6, 40, 20)
    assert (run.groups, run.tied) == (20, 10)
    assert (run.after_update.value, run.after_none.value, run.two_after.value) == (1, 0, 0)
    assert (run.collapse, run.healing) == (COLLAPSED, HEALED)


def test_a_collapse_that_stays(tmp_path: Path):
    """Once updated, the programs are defaults but in every third step."""
    (run,) = read(write(tmp_path / "log.jsonl", lambda step: not often(step), often)).values()
    assert (run.after_update.value, run.two_after.value) == (1, 1)
    assert run.after_none.value == pytest.approx(7 / 13)
    assert (run.collapse, run.healing) == (COLLAPSED, PERSISTED)
    assert any("did not heal" in sentence for sentence in describe_run(run))


def test_no_collapse_needs_no_healing(tmp_path: Path):
    (run,) = read(write(tmp_path / "log.jsonl", lambda step: step % 2 == 0, often)).values()
    assert (run.collapse, run.healing) == (SOUND, "")
    assert not any("collapse" in sentence for sentence in describe_run(run))


def test_steps_that_are_missing_do_not_follow_each_other(tmp_path: Path):
    path = write(tmp_path / "log.jsonl", often, often)
    lines = map(json.loads, path.read_text().splitlines())
    (run,) = read(write_lines(path, [line for line in lines if line["step"] != 10])).values()
    assert run.after_update.n + run.after_none.n == 17


@pytest.mark.parametrize(
    "change, said",
    [
        ({"fallback": "maybe"}, "column fallback holds 'maybe'"),
        ({"step": None}, "column step holds a blank cell"),
        ({"member": 2}, "repeats run"),
        ({"update": True}, "more than one update"),
        ({"reward": "a lot"}, "column reward"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, capsys, change: dict[str, Any], said: str):
    path = write(tmp_path / "log.jsonl", often, often)
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | change), *rest]))
    assert main([f"log={path}"]) == 2
    told_user = capsys.readouterr().err
    assert said in told_user and "Traceback" not in told_user


def test_a_table_of_something_else_is_refused(tmp_path: Path, capsys):
    assert main([f"log={write_lines(tmp_path / 'log.jsonl', [{'item': 1}])}"]) == 2
    assert "no column run" in capsys.readouterr().err
