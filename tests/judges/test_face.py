"""What ``judges`` offers, and that importing it loads nothing that is slow."""

from pathlib import Path

import pytest

import judges
from study.config.schema import Judge, Simulated
from study.rows import Truth, make_row
from tests.conftest import run_alone


def test_importing_the_package_loads_nothing_and_another_name_is_an_error() -> None:
    wanted = "[m for m in sys.modules if m[:6] in ('aiohtt', 'pyarro', 'judges')]"
    assert run_alone(f"import sys, judges; print({wanted})") == "['judges']\n"
    with pytest.raises(AttributeError, match="'judges' has no attribute 'Referee'"):
        _ = judges.Referee  # type: ignore[attr-defined]


def test_the_face_is_enough_to_judge(tmp_path: Path) -> None:
    assert set(judges.__all__) <= set(dir(judges))
    row = make_row(({"role": "user", "content": "Say it."},))
    judge = Judge(name="sim", simulated=Simulated())
    with (
        judges.Store(tmp_path / "replies.db") as store,
        judges.Session(judge, store, lambda prompt, answer: Truth(len(answer) / 4)) as session,
    ):
        votes_N = session.ask_many([(row, "ab"), (row, "abc")], 2)
    assert [[vote.score for vote in votes] for votes in votes_N] == [[0.5], [0.75]]
    assert judge.grading.name in judges.GRADINGS
