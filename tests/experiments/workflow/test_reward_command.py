"""``python -m experiments.workflow reward``: what it writes, and what it refuses."""

import math

import pytest

from study.programs.rewards import FORMULAS


def row(group, member, outcome="ok", correct=1.0, **changed):
    whole = {"group": group, "member": member, "outcome": outcome, "correct": correct}
    shares = {"efficiency": 0.5, "simplicity": 0.5, "format": 1.0, "repetition": 0.0}
    return whole | shares | changed


@pytest.fixture
def rewarded(commands):
    """(rows, more words) -> the result of the command."""
    return lambda rows, *words: commands.result(
        "reward", f"rows={commands.rows('r.jsonl', rows)}", *words
    )


def test_a_masked_group(rewarded):
    """Four of six rewards count; where one is left, the group is dropped."""
    correct = [1, 0, None, 1, 0, None]
    rows = [row("a", member, correct=value) for member, value in enumerate(correct)]
    rows += [row(7, 0)] + [row(7, member, "operator_error") for member in range(1, 6)]
    result = rewarded(rows, "reward=rule-binary")
    assert result["groups"] == [
        {"group": "a", "n": 6, "scored": 4, "dropped": False},
        {"group": 7, "n": 6, "scored": 1, "dropped": True},
    ]
    assert [line["reward"] for line in result["rows"]] == [*correct, 1, *[None] * 5]
    push = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    expected = [push, -push, 0, push, -push, 0, *[0] * 6]
    assert [line["advantage"] for line in result["rows"]] == pytest.approx(expected)
    assert result["effective_share"] == {"correct": 1.0}


def test_rows_keep_their_order_and_their_components_add_up(rewarded):
    outcomes = ["ok", "timeout", "ok", "ok", "sandbox_error", "ok"]
    correct = [1, 1, 0, True, 1, None]
    rows = [
        row(member % 2, member, outcome, value, efficiency=member / 10, repetition=member / 10)
        for member, (outcome, value) in enumerate(zip(outcomes, correct, strict=True))
    ]
    for name in FORMULAS:
        result = rewarded(rows, f"reward={name}")
        places = [(line["group"], line["member"]) for line in result["rows"]]
        assert places == [(member % 2, member) for member in range(6)]
        for line in result["rows"]:
            if line["reward"] is None:
                assert line["components"] is None and line["advantage"] == 0
            else:
                assert sum(line["components"].values()) == pytest.approx(line["reward"])
        assert result["rows"][1]["reward"] == (-3.25 if name == "seed-additive" else 0)
        assert sum(result["effective_share"].values()) == pytest.approx(1)
    assert result["rows"][4]["reward"] is result["rows"][5]["reward"] is None


def test_a_source_of_ones_own(rewarded):
    rows = [row(0, 0, judge=1, rule=0), row(0, 1, judge=None, rule=1), row(0, 2, judge=0, rule=0)]

    def rewards(*words):
        return [line["reward"] for line in rewarded(rows, *words)["rows"]]

    assert rewards("reward=agreement") == [None, None, 0]
    assert rewards("reward=judge-binary") == [1, None, 0]
    assert rewards("reward=workflow-gated", "source=rule") == [0.05, 1, 0.05]
    assert rewards("reward=workflow-gated", "source=judge-first") == pytest.approx([0.9, 0.9, 0.05])


def test_what_a_program_that_failed_lacks_is_not_asked_for(rewarded):
    rows = [{"group": 0, "member": 0, "outcome": "syntax_error", "correct": None}]
    assert rewarded(rows, "reward=workflow-gated")["rows"][0]["reward"] == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"outcome": "fine"}, "outcome is one of ok, syntax_error"),
        ({"outcome": ["ok"]}, "outcome is one of ok"),
        ({"correct": 2}, "correct is a number from 0 to 1, or null"),
        ({"correct": "yes"}, "correct is a finite number, or null"),
        ({"correct": float("nan")}, "correct is a finite number, or null"),
        ({"format": -0.1}, "format is a number from 0 to 1"),
        ({"efficiency": None}, "efficiency is unknown of a program that ran"),
        ({"group": None}, "group is a text or a whole number"),
        ({"member": 1.5}, "member is a text or a whole number"),
        ({"member": 0}, "member 0 of group 0 again"),
    ],
)
def test_a_row_that_does_not_fit(commands, changed, said):
    path = commands.rows("r.jsonl", [row(0, 0), row(0, 1) | changed])
    paragraph = commands.refused("reward", f"rows={path}", "reward=workflow-gated")
    assert f"{path}, line 2" in paragraph and said in paragraph.lower()


def test_files_and_words_that_do_not_fit(commands):
    path = commands.rows("r.jsonl", [row(0, 0)])
    empty = commands.rows("empty.jsonl", [])
    (commands.folder / "broken.jsonl").write_text('{"group": 1')
    assert "does not exist" in commands.refused("reward", "rows=gone.jsonl", "reward=agreement")
    assert "holds no rows" in commands.refused("reward", f"rows={empty}", "reward=agreement")
    broken = f"rows={commands.folder / 'broken.jsonl'}"
    assert "line 1: found no JSON" in commands.refused("reward", broken, "reward=agreement")
    assert "workflow-gated" in commands.refused("reward", f"rows={path}", "reward=gated")
    assert "needs reward=" in commands.refused("reward", f"rows={path}")
    assert "needs a command" in commands.refused(f"rows={path}")
    without = {key: value for key, value in row(0, 0).items() if key != "correct"}
    path = commands.rows("r.jsonl", [without])
    assert "no correct" in commands.refused("reward", f"rows={path}", "reward=agreement")
    paragraph = commands.refused("reward", f"rows={path}", "reward=agreement", "source=rule")
    assert "no judge or rule" in paragraph
