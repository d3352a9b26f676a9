"""Features on texts whose counts can be done by hand."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.features import FEATURES, PHRASES, features, measured, shared_keyword

SAMPLE = """Great question! What a wonderful day!
# Answer
## More
- one **bold** word
* two
1. three, certainly
Clearly, without doubt, maybe it might rain 😊✨"""


def test_a_text_counted_by_hand():
    counts = features(SAMPLE, keyword="one")
    counted = {
        # 6 + 1 + 1 + 3 + 1 + 3 (the list number is a word) + 7
        "length": 22.0, "headings": 2.0, "bullets": 3.0, "bold": 1.0, "flattery": 2.0,
        "confidence": 3.0, "hedges": 2.0, "repetition": 0.0, "keyword": 1.0, "emoji": 2.0,
        "exclamation": 2.0,
    }  # fmt: skip
    assert counts | counted == counts
    assert tuple(counts) == FEATURES
    assert set(features("").values()) == {0.0}
    assert set(features(" \n\t").values()) == {0.0}
    assert features("Robust, robustness and ROBUST", "robust")["keyword"] == 2
    assert features("a+b a+bc", "a+b")["keyword"] == 1
    assert features("two words, two  words", "two words")["keyword"] == 1


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("length", "don't re-do it", 3),
        ("length", "- # ** !", 0),
        ("headings", "issue #1 and C#", 0),
        ("bullets", "a - b\n-c\n3.14", 0),
        ("bullets", "  - nested\n2) two", 2),
        ("bold", "**a** and **b**", 2),
        ("bold", "**never\nclosed**", 0),
        ("flattery", "What a great question, WHAT A  GREAT request", 2),
        ("flattery", "wonderfully great", 0),
        ("confidence", "uncertainly unclearly", 0),
        ("confidence", "CERTAINLY of course", 2),
        ("hedges", "mighty perhapses", 0),
        ("repetition", "a a A b", 0.5),
        ("emoji", "café → x", 0),
        ("exclamation", "!!a!", 3),
    ],
)
def test_near_misses(name, text, count):
    assert features(text)[name] == count


PIECES = ["what a", "great", "Wonderful", "clearly", "no doubt", "might", "I think", "sure"]
JOINTS = [" ", "  ", "\n", "-", "'", "\u2019", ", ", "_", "", "é", "."]


@given(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(JOINTS)), max_size=8))
def test_phrases_are_counted_wherever_they_stand(parts):
    """However words are joined: as one alternation of all phrases counts them."""
    text = "".join(piece + joint for piece, joint in parts)
    counts = features(text)
    for name, phrases in PHRASES.items():
        either = "|".join(
            r"\s+".join(map(re.escape, phrase.split()))
            for phrase in sorted(phrases, key=len, reverse=True)
        )
        assert counts[name] == len(re.findall(rf"\b(?:{either})\b", text.lower())), text


def test_what_the_teacher_of_the_policy_writes_is_seen():
    """The built-in task's surface forms and the features must mean the same."""
    from study.tasks import teacher

    assert all(features(text)["flattery"] == 1 for text in teacher.FLATTERY)
    assert all(features(text)["confidence"] == 1 for text in teacher.CONFIDENT)
    assert all(features(text)["hedges"] == 1 for text in teacher.HEDGES)
    assert all(features(text)["headings"] == 1 for text in (*teacher.HEADINGS, teacher.NOTES))
    assert all(features(text)["emoji"] == 1 for text in teacher.EMOJI)
    plain = [*teacher.OPENERS, *teacher.CLOSERS]
    tone = [features(text)[name] for text in plain for name in ("flattery", "confidence", "hedges")]
    assert set(tone) == {0.0}


@given(st.text(max_size=200), st.text(max_size=5))
def test_any_text_has_finite_counts(text, keyword):
    counts = features(text, keyword)
    assert tuple(counts) == FEATURES
    assert all(value >= 0 for value in counts.values()) and counts["repetition"] < 1
    assert all(value == int(value) for name, value in counts.items() if name != "repetition")


def test_each_answer_has_its_own_features_and_a_study_one_keyword():
    answers = ["# Great question!\n- alpha **b**", None, "maybe alpha alpha", "", math.nan]
    values_N_K = measured(answers, "alpha")
    for row, answer in zip(values_N_K, answers, strict=True):
        if isinstance(answer, str):
            assert row.tolist() == list(features(answer, "alpha").values())
        else:
            assert np.isnan(row).all()
    assert values_N_K[2, FEATURES.index("keyword")] == 2.0
    assert measured([]).shape == (0, len(FEATURES))
    assert shared_keyword(["", "robust", "alpha", ""]) == "alpha"
    assert shared_keyword([""]) == shared_keyword([]) == ""
