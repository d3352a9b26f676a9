"""A judge that quotes an answer as it was shown says no verdict, whatever the answer holds."""

import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from judges.grading import GRADINGS
from judges.grading.delimiters import delimit, undelimit
from judges.grading.spelling import BLANKS, MARKS, SPACE, bare
from judges.grading.vocabulary import LONGEST, VOCABULARIES
from study.verdict import Outcome, Reply, Request

WORDS = (
    *("met", "not_met", "not met", "Not-Met", "not_\u00a0met", "PRESENT", "NOT_PRESENT"),
    *("pre\u017fent", "true", "False", "fal\u017fe", "yes", "ye\u017f", "no", "100", "a", "tie"),
)
"""A verdict's words, some spelled with a long s, which is an s in any case."""
ZERO_WIDTHS = "\u00ad\u180e\u200b\u200c\u200d\u2060\ufeff"
LOOK_ALIKES = "\u201c\u201d\u2018\u2019\uff1a\uff11\u0661\uff3b\uff3d\u2026\u00b7\u2022"
STARTS = (
    "{1: ",
    '{"1": "',
    "1: ",
    "2. ",
    "[[",
    '["',
    "criterion 1 = ",
    "criterion1: ",
    "{1: met\u00a0",
    "1) yes",
)
PIECES = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(STARTS),
    st.sampled_from([*"[]{}()<>#/|\\=-_12", *MARKS, *ZERO_WIDTHS, *LOOK_ALIKES]),
    st.sampled_from([*BLANKS, *"\n\n\n   "]),
    st.text(max_size=3),
)
ANSWERS = st.lists(PIECES, max_size=14).map("".join)
BEFORE = st.sampled_from(["", "Fine.\n", "The answer says: ", "I quote:\n> ", "> "])
BEHIND = st.sampled_from(["", "\n", " (so it says)", "\nI cannot judge this.", "\n\nNo verdict."])
RUBRICS = [GRADINGS["rubric_batch"]({"vocabulary": word}) for word in VOCABULARIES]
OTHERS = [GRADINGS[name]({}) for name in ("likert", "binary", "verif")]
GROUPS = [GRADINGS[name]({}) for name in ("pairwise", "listwise")]


def test_blanks_are_those_of_unicode_and_of_patterns():
    blanks = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    assert sorted(BLANKS) == blanks
    assert [char for char in map(chr, range(sys.maxunicode + 1)) if re.match(r"\s", char)] == blanks
    assert [char for char in BLANKS if not re.match(SPACE, char)] == ["\n"]
    assert bare(f"{BLANKS}{MARKS} not met {MARKS}{BLANKS}") == "not met"


@given(ANSWERS, BEFORE, BEHIND)
@example("Fine.\n{1: met\u00a0\n", "", "I cannot judge this.")
@example("2)*True:\u3000", "", "")
@example("Criterion1) met", "", "")
@example('["a]", "met"]', "", "")
@example('[{"a": "]"}, "met"]', "", "")
def test_a_reply_that_quotes_an_answer_is_unparsed(answer, before, behind):
    shown = delimit("answer", answer)
    assert undelimit("answer", f"{before}\n{shown}{behind}") == answer
    reply = Reply(before + shown.split("\n", 1)[1].rsplit("\n", 1)[0] + behind)
    for rubric in RUBRICS:
        for criteria in ((0,), (1,), (0, 1), (0, 1, 2)):
            parsed = rubric.parse(reply, Request(criteria=criteria))
            assert parsed.outcome in (Outcome.unparsed, Outcome.empty)
            assert set(parsed.labels) == {"unknown"}
    for grading in OTHERS:
        assert grading.parse(reply).outcome in (Outcome.unparsed, Outcome.empty)
    for grading in GROUPS:
        parsed = grading.parse(reply, Request(members=(0, 1)))
        assert parsed.outcome in (Outcome.unparsed, Outcome.empty)


@pytest.mark.parametrize(
    ("answer", "quote"),
    [
        # wrapped in another way
        *[(text, ("met ", "met\n")) for text in ("1: met with distinction", "1. not met by far")],
        *[(f"1{sign}\nmet", ("\n", " ")) for sign in (".", ")", " =", ":")],
        ("2: yes, and more", ("yes, ", "yes,\n")),
        # in brackets
        *[
            (text, (text, f"[{text}]"))
            for text in ("[[100]", "[100]]", "[100]", "x [[1]", "[ tie ]")
        ],
        *[(text, ("[", "[[")) for text in ("[A > B]]", "[1]]")],
        # as a list, or as a text in one
        *[
            (text, (text, f"[{text}]"))
            for text in ('"met", "not_met"', "true, false", "true, false]", ' "yes" ,\n"no"')
        ],
        *[(word, (word, f'["{word}"]')) for word in ('met", "not_met', 'yes", "no')],
        *[(word, (word, f'["{word}", "quoted"]')) for word in WORDS],
        *[(word, (word, f'["{word}"]')) for word in WORDS],
    ],
)
def test_a_quote_in_another_form_is_unparsed(answer: str, quote: tuple[str, str]) -> None:
    shown = delimit("answer", answer)
    assert undelimit("answer", shown) == answer
    _, *lines, _ = shown.split("\n")
    plain, changed = (part.replace(answer, "\n".join(lines)) for part in quote)
    reply = Reply("\n".join(lines).replace(plain, changed))
    for grading in [*RUBRICS, *OTHERS, *GROUPS]:
        for criteria in ((0,), (0, 1)):
            parsed = grading.parse(reply, Request(criteria=criteria, members=(0, 1)))
            assert (parsed.outcome, {*parsed.labels} - {"unknown"}) == (Outcome.unparsed, set())


def test_what_a_cut_leaves_of_a_word_is_no_verdict() -> None:
    shown = delimit("answer", "x1: met\n" * (LONGEST // 4))
    for grading in RUBRICS:
        for cut in range(8):
            parsed = grading.parse(Reply(shown + "." * cut), Request(criteria=(0,)))
            assert parsed.outcome is Outcome.unparsed
