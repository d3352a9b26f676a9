"""The newest answers on which judge and rule part."""

import os
from pathlib import Path
from typing import Any

import pytest

from experiments.monitor import __main__ as monitor
from experiments.monitor import disagreements
from experiments.monitor.disagreements import LONGEST, Disagreements
from study.cell.folder import CellFolder
from study.cell.records import ROLLOUT, VERDICT, part_name, rollout_id, write_part
from study.errors import UserError


def write(
    folder: CellFolder,
    step: int,
    answers: list[tuple[str, float | None, float | None]],
    **said: Any,
) -> None:
    """Record a step of (domain, judge's score, truth), at a time that goes with the step."""
    rollouts, verdicts = [], []
    for row, (domain, score, truth) in enumerate(answers):
        name = rollout_id(step, row)
        place = {"rollout_id": name, "step": step, "group": row, "member": 0}
        texts = {"prompt": f"prompt {row}", "answer": f"answer {row}", "domain": domain or None}
        rollouts.append({**place, **texts, "judge_score": score, "truth": truth} | said)
        for role in ("shadow", "acting"):
            reply = {"text": f"{role} reply {row}", "reasoning": ""} | said
            told = {"rollout_id": name, "step": step, "role": role, "judge": f"{role} judge"}
            verdicts.append(told | {"outcome": "scored", "score": score} | reply)
    for kind, rows, columns in (("rollouts", rollouts, ROLLOUT), ("verdicts", verdicts, VERDICT)):
        named = [{key: value for key, value in row.items() if key in ALL[kind]} for row in rows]
        path = folder / kind / part_name(step)
        write_part(path, named, columns)
        os.utime(path, (1_700_000_000 + step, 1_700_000_000 + step))


ALL = {"rollouts": {*ROLLOUT, "domain", "dataset", "item"}, "verdicts": set(VERDICT)}


def found(folder: Path, limit: int = 100, domain: str = "") -> list[tuple[int, str]]:
    chosen = Disagreements(folder.study_dir, domain).find(limit)
    return [(each.step, each.answer) for each in chosen]


def test_only_answers_on_which_they_part_newest_first(folder):
    sides = [("qa", 0.9, 1.0), ("qa", 0.5, 0.0), ("qa", 0.4, 1.0), ("qa", None, 1.0)]
    write(folder, 1, [*sides, ("qa", 0.9, None)])
    write(folder, 2, [("qa", 1.0, 0.0)])
    assert found(folder) == [(2, "answer 0"), (1, "answer 2"), (1, "answer 1")]
    assert found(folder, limit=2) == [(2, "answer 0"), (1, "answer 2")]
    search = Disagreements(folder.study_dir)
    search.find(100)
    assert search.answers == 4  # those that both have told of


def test_a_score_that_was_rounded_over_the_threshold_is_no_disagreement(folder):
    write(folder, 1, [("qa", 0.5, 0.4999), ("qa", 0.4, 0.6)])
    assert found(folder) == [(1, "answer 1")]


def test_the_words_are_those_of_the_acting_judge(folder):
    write(folder, 1, [("qa", 1.0, 0.0)], reasoning="because")
    (each,) = Disagreements(folder.study_dir).find(1)
    assert (each.judge, each.words) == ("acting judge", "because\nacting reply 0")
    assert (each.domain, each.judge_score, each.truth) == ("qa", 1.0, 0.0)
    told = each.text()
    assert "judge yes, rule no" in told and "acting reply 0" in told and "prompt 0" in told


def test_one_domain_alone_and_one_that_is_not_there(folder):
    write(folder, 1, [("qa", 1.0, 0.0), ("math", 1.0, 0.0)])
    assert found(folder, domain="math") == [(1, "answer 1")]
    with pytest.raises(UserError, match=r"domain=code is not.*Legal are math, qa"):
        found(folder, domain="code")


def test_a_domain_without_disagreements_is_no_error(folder):
    write(folder, 1, [("qa", 1.0, 1.0)])
    assert found(folder, domain="qa") == []


def test_rows_without_domains(folder):
    write(folder, 1, [("", 1.0, 0.0)])
    assert found(folder) == [(1, "answer 0")]
    with pytest.raises(UserError, match="name no domain: leave domain= out"):
        found(folder, domain="qa")


def test_what_others_wrote_is_harmless_and_short(folder):
    hostile = "\x1b]0;owned\x07\x1b[2J\u202e\x9b" + 9 * LONGEST * "x"
    write(folder, 1, [("qa", 1.0, 0.0)], prompt=hostile, answer=hostile, text=hostile)
    (each,) = Disagreements(folder.study_dir).find(1)
    told = each.text()
    assert not any(ord(sign) < 32 and sign != "\n" for sign in told)
    assert not {"\x9b", "\u202e"} & set(told)
    assert len(told) < 4 * LONGEST


def test_damaged_and_missing_parts_are_said_and_the_rest_is_shown(folder, capsys):
    write(folder, 1, [("qa", 1.0, 0.0)])
    write(folder, 2, [("qa", 1.0, 0.0)])
    write(folder, 3, [("qa", 1.0, 0.0)])
    (folder / "rollouts" / part_name(3)).write_bytes(b"PAR1")
    (folder / "verdicts" / part_name(2)).unlink()
    search = Disagreements(folder.study_dir)
    assert [each.step for each in search.find(10)] == [2, 1]
    assert len(search.problems) == 2 and all("left out" in line for line in search.problems)
    words = [f"study={folder.study_dir.name}", f"runs_dir={folder.study_dir.parent}"]
    assert monitor.main([*words, "show=disagreements"]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines() == search.problems and "2 disagreements" in printed.out


def test_only_the_newest_steps_are_looked_at(folder, monkeypatch):
    monkeypatch.setattr(disagreements, "MOST_PARTS", 2)
    for step in (1, 2, 3):
        write(folder, step, [("qa", 1.0, 0.0)])
    assert found(folder) == [(3, "answer 0"), (2, "answer 0")]
