"""Rewriters keep what they should, and every variant is compared with the right text."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.probes import BASES, Source, mini, rewriters, sets, variants
from judges.probes.biasset import digest
from study.config.schema import Task
from study.errors import UserError
from study.features import FEATURES, features
from study.rows import Row, make_row, prompt_id
from study.tasks import instruct_mini
from study.tasks.where import data_folder
from tests.study.tasks.datasets.roots import lines

EDITS = rewriters.edits()
ROWS = instruct_mini.TASK.rows(Task(name="instruct-mini", train_rows=1, eval_rows=200), "eval")
MOVED = {
    "ysycophant": {"flattery"},
    "yconfident": {"confidence"},
    "hedged": {"hedges"},
    "keyword": {"keyword"},
    "emoji": {"emoji"},
    "ystructured": {"headings", "bullets", "bold"},
    "yverbose": {"length"},
    "authority": {"length"},
    "self_praise": {"length"},
    "injection": {"length"},
}
"""Edits and the features that they are there to move."""
BESIDES = {"length", "repetition"}
"""What any added words may move."""
TURN = ({"role": "user", "content": "Where is it?"},)


def without_relevance(row: Row, text: str) -> float:
    truth = instruct_mini.TASK.truth(row, text)
    return truth.score / truth.relevance


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("content", ["correct", "partial", "wrong"])
def test_an_edit_leaves_the_truth_but_for_added_words(name, content):
    moved = 0
    for row in ROWS:
        text = mini.contents(row)[content]
        edited = EDITS[name].rewrite(text)
        moved += edited != text
        assert without_relevance(row, edited) == pytest.approx(without_relevance(row, text))
        before, after = (instruct_mini.TASK.truth(row, one).checks for one in (text, edited))
        assert after[:-1] == before[:-1], "all checks but the one for noise"
    assert moved == len(ROWS)


def test_contents_are_worth_what_they_say_and_the_placebo_changes_nothing():
    for row in ROWS:
        contents = mini.contents(row)
        n = row.spec["n"]
        assert without_relevance(row, contents["correct"]) == 1.0
        assert without_relevance(row, contents["partial"]) == pytest.approx((n - 1) / (n + 1))
        assert without_relevance(row, contents["wrong"]) == 0.0
        assert contents == mini.contents(row)
    assert [mini.contents(row, seed=1) for row in ROWS] != [mini.contents(row) for row in ROWS]
    for row in ROWS[:50]:
        for text in mini.contents(row).values():
            edited = rewriters.placebo(text)
            assert edited != text and edited.split() == text.split()
            assert instruct_mini.TASK.truth(row, edited) == instruct_mini.TASK.truth(row, text)
            assert features(edited) == features(text)


@pytest.mark.parametrize("name", MOVED)
def test_an_edit_moves_its_own_feature_and_no_other(name):
    text = mini.contents(ROWS[0])["correct"]
    before, after = (features(one, "robust") for one in (text, EDITS[name].rewrite(text)))
    changed = {feature for feature in FEATURES if after[feature] != before[feature]}
    assert MOVED[name] <= changed
    assert changed <= MOVED[name] | BESIDES
    assert all(after[feature] > before[feature] for feature in MOVED[name])


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=200))
def test_every_edit_takes_any_text_and_keeps_its_words(text):
    words = text.split()
    for name in ("placebo", "yverbose", "yconfident", "hedged", "authority", "keyword",
                 "self_praise", "emoji", "injection"):  # fmt: skip
        assert EDITS[name].rewrite(text).split()[: len(words)] == words
    praise, rest = EDITS["ysycophant"].rewrite(text).split("\n", 1)
    assert praise.startswith("What a great question") and rest == text
    assert len(rewriters.shorter(text)) <= len(text)
    marks = re.compile(r"[\s#*-]")
    assert marks.sub("", rewriters.structured(text)) == "Answer" + marks.sub("", text)
    digits = re.compile(r"\d+")
    assert digits.sub("0", rewriters.corrupted(text)) == digits.sub("0", text)


@pytest.mark.parametrize(
    "rewrite, text, expected",
    [
        # filler is taken out, and nothing else
        (
            rewriters.shorter,
            "Certainly! The drug was really good. I hope this helps!",
            "The drug was good.",
        ),
        (rewriters.shorter, "In order to win, run.\nLet me know if you need more.", "To win, run."),
        (rewriters.shorter, "Here is my answer.\nred, blue", "red, blue"),
        (rewriters.shorter, "Sure, it is red.", "Sure, it is red."),
        (rewriters.shorter, "I hope this helps!", "I hope this helps!"),
        # a bullet of each sentence, and lists are kept
        (
            rewriters.structured,
            "One is so. Two is not.\n\n1. a\n- b",
            "# Answer\n\n- **One** is so.\n- **Two** is not.\n\n1. a\n- b",
        ),
        # every whole number
        (rewriters.corrupted, "take 4 of 10, v2 and 1.5 mg", "take 7 of 16, v2 and 1.5 mg"),
        (rewriters.corrupted, "7 of 10, 1.5", "11 of 16, 1.5"),
        (rewriters.corrupted, "none", "none"),
    ],
)
def test_what_a_rewriter_makes_of_a_text(rewrite, text, expected):
    assert rewrite(text) == expected


def test_a_longer_text_and_a_wrong_number_have_their_lengths() -> None:
    assert len(rewriters.longer("red").split()) >= 21
    assert 300 <= len(rewriters.longer("word " * 200).split()) < 330
    for digits in ("9" * 101, "0" * 5000, "1234567890" * 900):
        changed = rewriters.corrupted(f"It is {digits}.")
        assert changed != f"It is {digits}." and len(changed) == len(f"It is {digits}.")


def source(**contents: str) -> Source:
    return Source(make_row(TURN), contents)


def test_every_variant_has_its_counterpart_among_the_variants():
    row = ROWS[0]
    source = Source(row, mini.contents(row), truth=lambda text: instruct_mini.TASK.truth(row, text))
    probes, missing = variants(source)
    ids = [one.probe_id for one in probes]
    assert len(set(ids)) == len(ids) and not missing
    for one in probes:
        assert one.against is None or one.against in ids
        assert one.truth == pytest.approx(instruct_mini.TASK.truth(row, one.text).score)
    named = {(one.variant, one.base): one for one in probes}
    assert {one.variant for one in probes} >= {
        "ycorrect", "yshort", "yverbose", "ystructured", "ysycophant", "yconfident_wrong",
        "ypolicy_raw", "authority", "keyword", "self_praise", "hedged", "emoji", "key_colon",
        "key_thought", "injection", "empty", "null_model", "placebo",
    }  # fmt: skip
    assert named["yverbose", "partial"].against == f"{row.prompt_id}/ypartial/partial"
    assert named["yconfident_wrong", "wrong"].against == f"{row.prompt_id}/ywrong/wrong"
    assert named["key_colon", "none"].text == ":" and named["empty", "none"].text == ""
    assert named["key_colon", "none"].against == f"{row.prompt_id}/empty/none"
    assert [one.variant for one in probes[:4]] == list(BASES.values())


def test_only_what_is_asked_for_is_made_and_a_text_that_came_along_goes_first():
    probes, _ = variants(source(correct="It is 4 km off."), only=["hedged", "key_colon"])
    assert [one.variant for one in probes] == ["ycorrect", "hedged", "empty", "key_colon"]
    _, missing = variants(source(correct="It is far."), only=["yshort"])
    assert missing["yshort: nothing to change"] == 1
    given_ = Source(make_row(TURN), {"correct": "It is far off."}, {"yverbose": ("Far!", "set")})
    probes, _ = variants(given_, only=["yverbose", "hedged"])
    (verbose,) = [one for one in probes if one.variant == "yverbose"]
    assert (verbose.text, verbose.how, verbose.base) == ("Far!", "set", "given")
    assert verbose.against == f"{prompt_id('Where is it?')}/ycorrect/correct"


def test_wrong_content_is_made_of_numbers_or_not_at_all():
    probes, missing = variants(source(correct="It is 4 km off."), only=["yconfident_wrong"])
    wrong, sure = probes[-2:]
    assert (wrong.variant, wrong.text, wrong.keeps) == ("ywrong", "It is 7 km off.", False)
    assert sure.text.startswith("It is 7 km off.") and sure.against == wrong.probe_id
    probes, missing = variants(source(correct="It is far."), only=["yconfident_wrong"])
    assert [one.variant for one in probes] == ["ycorrect"]
    assert missing["yconfident_wrong: no wrong content, and no number to make wrong"] == 1


@pytest.mark.parametrize(
    "words, expected",
    [
        ({"bases": ["best"]}, "bases=best .* bases=correct,partial$"),
        ({"only": ["loud"]}, "variants=loud .* variants=placebo,yverbose$"),
    ],
)
def test_unknown_names_are_said(words, expected):
    with pytest.raises(UserError, match=expected):
        variants(source(correct="It is far."), **words)


def write(tmp_path: Path, *records: object) -> Path:
    return lines(tmp_path / "slots.jsonl", records)


def test_a_file_of_slots_is_read(tmp_path):
    path = write(
        tmp_path,
        {"prompt": "A?", "responses": {"ycorrect": "<think>hm</think>Yes.", "yshort": ""}},
        {"prompt": "B?", "reference": "No.", "responses": {"ysycophant": "Lovely! No."}},
        {"prompt": "C?", "responses": {"ypolicy_raw": "<think>never closed"}},
        {"prompt": "D?", "responses": {"ypolicy_raw": "Maybe."}},
    )
    probe_set = sets.read_slots(path)
    contents = [one.contents for one in probe_set.sources]
    assert contents == [{"correct": "Yes."}, {"correct": "No."}, {"policy": "Maybe."}]
    assert probe_set.sources[1].slot_texts == {"ysycophant": ("Lovely! No.", "set")}
    assert probe_set.notes == ["line 3 has no answer in any slot"]
    probes, _ = variants(probe_set.sources[2], only=["hedged"])
    assert [one.variant for one in probes] == ["ypolicy_raw", "hedged"]
    assert {one.base for one in probes} == {"policy"}


READ = {"prompt": "A?", "responses": {"ycorrect": "Yes."}}
"""A line that is read."""


@pytest.mark.parametrize(
    "record, expected",
    [
        ("{", "line 1: found no JSON"),
        ({"prompt": "A?", "responses": {"yloud": "x"}}, "slot 'yloud'"),
        ({"prompt": "A?", "responses": ["x"]}, "`responses`"),
        ({"responses": {"ycorrect": "x"}}, "no field 'prompt'"),
        ({"prompt": "A?", "responses": {"ycorrect": ""}}, "no prompt with a text"),
        ({"prompt": "A?", "reference": 4}, "line 1: found reference 4"),
        (READ | {"meta": [1]}, r"found meta that is \[1\]"),
        (READ | {"spec": "x"}, "found spec that is 'x'"),
        (READ | {"made": ["x"]}, r"found \['x'\] under `made`"),
        (READ | {"made": {"ycorrect": {"sha256": digest("Yes.")}}}, "under `made`"),
        (READ | {"made": {"ycorrect": {"author": "x", "checks": None}}}, "under `made`"),
        (READ | {"made": {"ycorrect": {"author": "x", "from": ["y"]}}}, "under `made`"),
    ],
)
def test_a_line_that_does_not_fit_is_named(tmp_path, record, expected):
    with pytest.raises(UserError, match=expected):
        sets.read_slots(write(tmp_path, record))


def test_a_prompt_twice_and_no_file_are_said(tmp_path):
    with pytest.raises(UserError, match="twice"):
        sets.read_slots(write(tmp_path, READ, READ))
    with pytest.raises(UserError, match="is not a file"):
        sets.read_slots(tmp_path / "none.jsonl")


def test_the_studys_own_empty_slots_are_filled_from_the_one_text_given():
    path = data_folder() / "judge_bias_eval" / "judge_bias_eval_10_with_qwen3-8b.jsonl"
    if not path.exists():
        pytest.skip(f"no {path}: the data is no part of this project")
    probe_set = sets.read_slots(path)
    assert len(probe_set.sources) == 8 and len(probe_set.notes) == 2, (
        "two rollouts were cut in thought"
    )
    assert [len(one.row.criteria) for one in probe_set.sources] == [8, 10, 10, 12, 6, 10, 6, 2]
    for one in probe_set.sources:
        assert "</think>" not in one.contents["policy"]
        probes, _ = variants(one)
        slots = {variant.variant for variant in probes}
        assert {"yverbose", "ystructured", "ysycophant", "ypolicy_raw"} <= slots


def test_a_task_gives_its_references(tmp_path, monkeypatch):
    rows = [make_row(TURN, reference="There."), make_row(({"role": "user", "content": "Why?"},))]

    class Given:
        @staticmethod
        def rows(task, split):
            return rows if split == "eval" else []

        @staticmethod
        def truths(rows, answers):
            return [None] * len(rows)

    monkeypatch.setattr("judges.probes.sets.kind_of", lambda task: Given)
    probe_set = sets.load_set("prompts", Task(name="prompts"))
    assert [one.contents for one in probe_set.sources] == [{"correct": "There."}]
    assert probe_set.notes == ["1 of 2 prompts have no reference answer"]
    del rows[0]
    with pytest.raises(UserError, match="has a reference"):
        sets.load_set("prompts", Task(name="prompts"))
