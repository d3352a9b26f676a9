"""What an audit draws, what it keeps, and what of a person's answers counts."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.cell import audit
from study.cell.audit import (
    FEWEST,
    FEWEST_ROWS,
    STRETCHES,
    Audit,
    Drawn,
    Frame,
    Question,
    answered_groups,
    draw,
    drawn_of,
    stretches,
)
from study.config.correction import Correction
from study.config.schema import ByAudit, Study, Trainer
from study.errors import UserError
from study.rewards.corrections.checks import check_audit, check_correction
from study.system.files import Damaged


def frame_of(cell="a-s0", seed=0, steps=20, groups=8):
    step_P = np.repeat(np.arange(1, steps + 1), groups)
    return Frame(cell, seed, steps, step_P, np.tile(np.arange(groups), steps))


@given(st.integers(1, 400))
def test_the_first_and_last_stretch_are_the_tenths_of_a_shift(steps):
    from analysis.records.runs import tenths

    place_T = stretches(steps)
    assert (np.diff(place_T) >= 0).all()
    first, last = tenths(np.arange(steps))
    if steps > 1:
        assert np.flatnonzero(place_T == 0).tolist() == first.tolist()
        assert np.flatnonzero(place_T == STRETCHES - 1).tolist() == last.tolist()
    else:
        assert place_T.tolist() == [0]
    if steps >= 40:
        lengths = np.bincount(place_T)[1:-1]
        assert lengths.max() - lengths.min() <= 1


@given(st.floats(0.001, 1), st.floats(0.001, 1), st.integers(0, 99))
def test_a_larger_share_takes_more_of_the_same_order(one, other, seed):
    small, large = sorted([one, other])
    frame = frame_of()
    few, sizes = draw([frame], small, seed)
    many, _ = draw([frame], large, seed)
    assert {*few} <= {*many}
    for stretch, size in sizes[frame.cell].items():
        count = sum(each.stretch == stretch for each in many)
        assert count == min(size, max(FEWEST, int(np.ceil(round(large * size, 9)))))
    extended, _ = draw([frame], large, seed, few)
    assert extended[: len(few)] == few
    assert {*extended} == {*many}


def test_every_group_is_drawn_as_often():
    frame = frame_of(steps=10, groups=6)
    counts = np.zeros((11, 6))
    for seed in range(600):
        for each in draw([frame], 0.34, seed)[0]:
            counts[each.step, each.group] += 1
    # 3 of 6 groups of a step, 600 times: 300 each, SD sqrt(600 / 4) = 12.2; five of them around
    assert abs(counts[1:] - 300).max() < 61


def test_every_prefix_takes_about_the_same_share_of_each_stretch():
    drawn, sizes = draw([frame_of(steps=40), frame_of("b-s0", steps=40)], 0.5, 3)
    for length in (40, 80, 160):
        counts = np.zeros((2, STRETCHES))
        for each in drawn[:length]:
            counts[int(each.cell == "b-s0"), each.stretch] += 1
        shares = counts / np.array([list(sizes[cell].values()) for cell in ("a-s0", "b-s0")])
        assert shares.max() - shares.min() < 0.07


def test_arms_of_a_seed_are_audited_on_the_same_prompts_and_seeds_on_others():
    drawn, _ = draw([frame_of("a-s0"), frame_of("b-s0"), frame_of("a-s1", seed=1)], 0.1, 0)
    places = {
        cell: {(each.step, each.group) for each in drawn if each.cell == cell}
        for cell in ("a-s0", "b-s0", "a-s1")
    }
    assert places["a-s0"] == places["b-s0"] != places["a-s1"]


def test_held_out_rows_are_the_same_in_every_run_and_evaluation():
    name = audit.held_out("a-s0")
    step_P, group_P = np.repeat([0, 30], 40), np.tile(np.arange(40), 2)
    frames = [Frame(audit.held_out(f"a-s{n}"), n, 30, step_P, group_P) for n in range(2)]
    drawn, sizes = draw(frames, 0.05, 0)
    assert audit.run_of(name) == "a-s0"
    assert sizes[name] == {0: 40, 1: 40}
    rows = {
        (each.cell, each.step): {
            other.group for other in drawn if other[:2] == (each.cell, each.step)
        }
        for each in drawn
    }
    assert len(rows) == 4
    assert len({frozenset(groups) for groups in rows.values()}) == 1
    assert len(rows[name, 0]) == FEWEST_ROWS


GROUPS = (Drawn("a-s0", 1, 0, 0), Drawn("a-s0", 2, 1, 0), Drawn("b-s0", 1, 0, 0))


def audit_of(**settings):
    return Audit(
        **{"reference": ("person",), "reference_ids": (), "share": 0.05, "seed": 3, "rules": False}
        | {"groups": GROUPS, "sizes": {"a-s0": {0: 9}, "b-s0": {0: 9}}}
        | {"steps": {"a-s0": 9, "b-s0": 9}}
        | settings
    )


def test_what_was_drawn_is_kept(tmp_path):
    assert audit.load(tmp_path) is None
    audit.save(audit_of(), tmp_path)
    assert audit.load(tmp_path) == audit_of()
    groups = audit.folder_of(tmp_path) / "groups.csv"
    groups.write_text("cell,step\na,1\n")
    with pytest.raises(Damaged, match="has no group, stretch"):
        audit.load(tmp_path)
    groups.unlink()
    with pytest.raises(Damaged, match="is not there"):
        audit.load(tmp_path)
    (audit.folder_of(tmp_path) / "audit.json").write_text('{"share": 1}')
    with pytest.raises(Damaged, match="says nothing of an audit"):
        audit.load(tmp_path)


def test_only_the_groups_before_the_first_that_is_not_whole_count():
    questions = [("x", 0), ("y", 0), ("u", 1), ("v", 1), ("p", 2), ("q", 2), ("x", 2)]
    answers = {"x": 1.0, "y": None, "u": 0.5, "p": 1.0, "q": 0.0}
    assert answered_groups(audit_of(), questions, answers) == {("a-s0", 1, 0)}
    answers["v"] = 0.0
    assert len(answered_groups(audit_of(), questions, answers)) == 3
    assert not answered_groups(audit_of(), questions, {})


def test_a_question_says_nothing_of_its_run():
    names = {
        audit.question_of(audit_of(seed=seed), prompt, text)
        for seed in (0, 1)
        for prompt in ("p1", "p2")
        for text in ("yes", "no", "")
    }
    assert len(names) == 12
    assert all(len(name) == 16 and int(name, 16) >= 0 for name in names)


def test_questions_go_to_a_spreadsheet_and_come_back(tmp_path):
    audit.save(audit_of(), tmp_path)
    texts = ["=HYPERLINK(1)", 'two\nlines, "quoted"', "\u00fc \u4e2d", ""]
    asked = [Question(f"n{k}", k // 2, "prompt", text) for k, text in enumerate(texts)]
    path = audit.save_questions(tmp_path, asked)
    assert audit.load_questions(tmp_path) == [("n0", 0), ("n1", 0), ("n2", 1), ("n3", 1)]
    text = path.read_text()
    assert "'=HYPERLINK(1)" in text
    filled = tmp_path / "filled.csv"
    lines = text.replace("prompt,'=HYPERLINK(1),", "prompt,'=HYPERLINK(1),0.25")
    filled.write_text("\ufeff" + lines)  # as spreadsheets save it
    assert audit.read_answers(filled, {"n0", "n1", "n2", "n3"}) == {
        "n0": 0.25,
        **dict.fromkeys(("n1", "n2", "n3")),
    }


@pytest.mark.parametrize(
    "text, message",
    [
        ("answer,score\nn0,1\nn0,0\n", "line 3 .* answers n0 again"),
        ("answer,score\nn9,1\n", "line 2 .* is about n9, which nobody asked"),
        ("answer,score\nn0,1.5\n", "line 2 .* has the score 1.5. Scores are from 0 to 1"),
        ("answer,score\nn0,-0.1\n", "score -0.1"),
        ("answer,score\nn0,nan\n", "score nan"),
        ("answer,score\nn0,good\n", "score good"),
        ("answer\nn0\n", "its first line has no score"),
        ("answer,score\nn0,1,2\n", "a line has 3 entries, and the first 2"),
        ("", "it is empty"),
    ],
)
def test_answers_that_cannot_be_are_refused(tmp_path, text, message):
    path = tmp_path / "answers.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        audit.read_answers(path, {"n0"})


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        audit.read_answers(tmp_path / "none.csv")


@given(st.dictionaries(st.text("abc", min_size=1), st.none() | st.floats(0, 1)))
def test_answers_come_back_as_they_were_saved(tmp_path_factory, answers):
    folder = tmp_path_factory.mktemp("answers")
    audit.save(audit_of(), folder)
    audit.save_answers(folder, answers)
    assert audit.load_answers(folder) == answers


def test_what_is_asked_while_a_run_is_trained_is_what_is_drawn_of_it_afterwards():
    config = Study(
        seed=3,
        trainer=Trainer(steps=30, prompts_per_step=4),
        truth=ByAudit(audit=["any"], share=0.3, seed=7),
    )
    step_P, group_P = np.repeat(np.arange(1, 31), 4), np.tile(np.arange(4), 30)
    frame = Frame("cell", 3, 30, step_P, group_P)
    afterwards, _ = draw([frame], 0.3, 7)
    drawn = drawn_of(config)
    assert drawn == {(each.step, each.group) for each in afterwards}
    # .3 of the 12 groups of a tenth, rounded up
    assert len(drawn) == 10 * 4
    larger, _ = draw([frame], 0.6, 7)
    assert drawn < {(each.step, each.group) for each in larger}
    other = dataclasses.replace(config.truth, seed=8)
    assert drawn_of(dataclasses.replace(config, truth=other)) != drawn
    assert not drawn_of(dataclasses.replace(config, truth=ByAudit()))


@pytest.mark.parametrize(
    ("config", "has_rule", "why"),
    [
        (Study(truth=ByAudit(["a", "a"])), False, "names a twice"),
        (Study(truth=ByAudit(["b", "a"]), shadow=["a"]), False, "names a twice"),
        (Study(truth=ByAudit(["a"])), True, "would be asked nothing"),
        (Study(truth=ByAudit(share=0.5)), False, "names no judge"),
    ],
)
def test_judges_that_would_be_asked_nothing_or_twice_are_refused(config, has_rule, why):
    with pytest.raises(UserError, match=why):
        check_audit(config, has_rule)
    check_audit(Study(truth=ByAudit(["a"]), shadow=["b"]), has_rule=False)
    check_audit(Study(), has_rule=True)


def test_an_alarm_needs_a_truth_of_some_kind():
    config = Study(correction=Correction(stop=True))
    with pytest.raises(UserError, match=r"truth\.audit=\[qwen3-32b\]"):
        check_correction(config, has_truth=False)
    check_correction(dataclasses.replace(config, truth=ByAudit(["a"])), has_truth=False)
