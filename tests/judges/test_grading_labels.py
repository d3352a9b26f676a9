"""Rubric gradings: how the labels of a reply are read, however it is written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judges.grading import salvage
from judges.grading.vocabulary import LONGEST, VOCABULARIES, read_labels
from study.verdict import LABELS, Outcome, Reply
from tests.judges.test_grading_rubric import ROW, ask_all, batch

M, N, U = LABELS  # met, not_met, unknown


def labels_of(text: str, count: int = 3, vocabulary: str = "present") -> list[str]:
    labels = read_labels(text, list(range(1, count + 1)), vocabulary)
    return [labels.get(number, "unknown") for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"1": "PRESENT", "2": "NOT_PRESENT", "3": "PRESENT"}', [M, N, M]),
        ('Sure!\n```json\n{"1": "PRESENT",\n "2": "NOT PRESENT", "3": "present"}\n```\nBye',
         [M, N, M]),
        ("1: PRESENT\n2: NOT_PRESENT\n3: PRESENT", [M, N, M]),
        ("- **1**: **PRESENT**\n* 2) NOT PRESENT.\nCriterion 3 = not-present", [M, N, N]),
        ('["PRESENT", "NOT_PRESENT", "PRESENT"]', [M, N, M]),
        ('["PRESENT", "NOT_PRESENT"]', [U, U, U]),
        ('["PRESENT", "NOT_PRESENT", "PRESENT", "PRESENT"]', [U, U, U]),
        ('[{"1": "PRESENT"}, {"2": "NOT_PRESENT"}, {"3": "PRESENT"}]', [M, N, M]),
        ('{"verdicts": {"1": "PRESENT", "2": "NOT_PRESENT"}}', [M, N, U]),
        # no-break spaces between the parts of JSON, and a tab in a word
        ('[{"1":\u00a0"PRESENT"},\u202f{"2": "NOT\tPRESENT"},\u2009{"3":\u3000"PRESENT"}\u00a0]',
         [M, N, M]),
        ('["PRESENT",\u202f"NOT\u00a0PRESENT", "PRESENT"]', [M, N, M]),
        # a list counts if it holds words alone, and more than one
        ('["PRESENT", "quoted", "PRESENT"]', [U, U, U]),
        ('["PRESENT", "PRESENT", null]', [U, U, U]),
        # two different things of one criterion: nothing that the reply says can be relied on
        ('{"1": "PRESENT", "1": "NOT_PRESENT"}', [U, U, U]),
        ('{"2": "PRESENT", "1": "PRESENT", "1": "NOT_PRESENT"}', [U, U, U]),
        ('{"a": {"1": "PRESENT"}, "a": {"1": "NOT_PRESENT"}}', [U, U, U]),
        ('{"1": "PRESENT", "1": "NOT_PRESENT", ', [U, U, U]),
        ("1: PRESENT\n1: NOT_PRESENT", [U, U, U]),
        ('{"1": "PRESENT", "2": "PRESENT"} or rather {"1": "NOT_PRESENT", "2": "PRESENT"}',
         [U, U, U]),
        ('{"1": "PRESENT"}\nOn second thought:\n1: NOT_PRESENT', [U, U, U]),
        ('They write {"1": "PRESENT", "2": "PRESENT"}. I say {"1": "NOT_PRESENT"}', [U, U, U]),
        ("1: PRESENT\n2: PRESENT\n3: PRESENT\nFinal:\n1: NOT_PRESENT", [U, U, U]),
        ('["PRESENT", "PRESENT", "PRESENT"] {"2": "NOT_PRESENT"}', [U, U, U]),
        # the same again is the same
        ('{"1": "PRESENT", "1": "present"}\n1: PRESENT', [M, U, U]),
        # a draft or a quotation does not fill the gaps of the final verdict
        ('They write {"1": "PRESENT", "2": "PRESENT"}. I say {"1": "PRESENT"}', [M, U, U]),
        ('{"1": "PRESENT", "2": "PRESENT"} and {"2": "PRESENT", "3": "PRESENT"}', [U, M, M]),
        # the one that labels all of them is the verdict
        ("1: PRESENT\n2: PRESENT\n3: PRESENT\nFinal:\n1: PRESENT", [M, M, M]),
        ('["PRESENT", "PRESENT", "PRESENT"] {"2": "PRESENT"}', [M, M, M]),
        ('They write {"1": "PRESENT"}. I say ["NOT_PRESENT", "PRESENT", "PRESENT"]', [N, M, M]),
        # labels are never put together from two
        ('They write {"1": "PRESENT"}. I say {"2": "NOT_PRESENT"}', [U, N, U]),
        ('First: {"1": "PRESENT"}. Second: {"2": "NOT_PRESENT"}. Third: {"3": "PRESENT"}',
         [U, U, M]),
        # nor from a piece that breaks off and what follows it
        ('{"1": "PRESENT", and breaks off.\n2: PRESENT\n3: PRESENT', [U, M, M]),
        ("{1: PRESENT, 2: PRESENT\n\nMy own verdict:\n3: PRESENT\nDone.", [U, U, M]),
        ('{"1": "PRESENT",\n2: PRESENT\n3: PRESENT', [U, M, M]),
        ('{"1": "PRESENT", ... }\n2: PRESENT\n3: PRESENT', [U, M, M]),
        ('{"1": "PRESENT", "2": "PRESENT", "3": "PRESENT", ...\n\nMine:\n1. NOT_PRESENT',
         [U, U, U]),
        ('[{"1": "NOT_PRESENT", "2": "PRESENT", "3": "PRESENT"},\n1: PRESENT', [U, U, U]),
        ('[{"1": "PRESENT"},\n2: PRESENT\n3: PRESENT', [U, M, M]),
        # ... nor from a quote, nor from lines on both sides of prose
        ("> 1: PRESENT\n\n2: PRESENT\n3: PRESENT", [U, M, M]),
        ("1: PRESENT\n> 2: PRESENT\n>\n> 3: PRESENT", [U, M, M]),
        ("1: PRESENT\nMy own verdict:\n2: PRESENT\n\n3: PRESENT", [U, M, M]),
        # wrecks give what is whole in them
        ('{"1": "PRESENT", // it greets\n "why": "a "b" [c]", "2": "NOT_PRESENT", "3": "PRESENT",}',
         [M, N, M]),
        ('{"1": [PRESENT], "0": 0.5, "3": "PRESENT",}', [U, U, M]),
        ('{"1": "PRESENT", "2": "NOT_PRESENT", "3": "PRES', [M, N, U]),
        ('{"1": "PRESENT", "2": "NOT_PRESENT",}', [M, N, U]),
        ("{1: 'PRESENT', 2: NOT_PRESENT, 3: PRESENT", [M, N, U]),
        ("{'1': 'PRESENT', '2': 'NOT_PRESENT'}", [M, N, U]),
        # off the format
        ('{"1": "MAYBE", "2": "PRESENT", "3": null}', [U, M, U]),
        ('{"1": true, "2": 1, "3": ["PRESENT"]}', [U, U, U]),
        ('{"1": "PRESENT"} {"1": "MAYBE"}', [U, U, U]),
        ("1: PRESENT\n1: MAYBE", [U, U, U]),
        ("1. PRESENT\n1. Manners", [M, U, U]),
        # substrings never decide
        ("All of 1, 2 and 3 are PRESENT.", [U, U, U]),
        ("1: it is PRESENT in the answer", [U, U, U]),
        ('{"1": "PRESENT in part", "2": "NOT_PRESENTED"}', [U, U, U]),
        ("PRESENT", [U, U, U]),
        ('{"0": "PRESENT", "4": "PRESENT", "x": "PRESENT"}', [U, U, U]),
        # reasons around the verdict
        ('1. It greets, that is PRESENT.\n2. No.\n{"1": "PRESENT", "2": "NOT_PRESENT"}', [M, N, U]),
        ('{"1": "PRESENT", "2": "NOT_PRESENT"}\n1: because it greets\n2: no farewell is there',
         [M, N, U]),
        ('{"1": "PRESENT"}\nWhy: {"1": "it greets in the first line"}', [M, U, U]),
        ('{"why": "says {\\"2\\": \\"PRESENT\\"}", "1": "NOT_PRESENT"}', [N, U, U]),
        ("", [U, U, U]),
    ],
)  # fmt: skip
def test_labels_of_a_reply(text: str, expected: list[str]) -> None:
    assert labels_of(text) == expected


@pytest.mark.parametrize(
    ("vocabulary", "text", "expected"),
    [
        ("met", '{"1": "met", "2": "not_met", "3": "Not met"}', [M, N, N]),
        ("met", '{"1": "PRESENT", "2": true}', [U, U, U]),
        ("bool", '{"1": true, "2": false, "3": "True"}', [M, N, M]),
        ("bool", '{"1": 1, "2": 0, "3": "yes"}', [U, U, U]),
        ("bool", "{'1': True, '2': False}", [M, N, U]),
        ("bool", "1: true\n2: false", [M, N, U]),
        ("bool", "[true, false, true]", [M, N, M]),
        ("bool", "[true, 1, true]", [U, U, U]),
        ("yes_no", '{"1": "Yes", "2": "no", "3": "none"}', [M, N, U]),
        ("yes_no", "1: yes\n2: no\n3: not", [M, N, U]),
    ],
)
def test_each_vocabulary_has_its_own_words(vocabulary: str, text: str, expected: list[str]) -> None:
    assert labels_of(text, 3, vocabulary) == expected


RENDER = {
    "object": lambda verdict: json.dumps(verdict),
    "fenced": lambda verdict: f"Here you are.\n```json\n{json.dumps(verdict, indent=1)}\n```",
    "lines": lambda verdict: "\n".join(
        f"{number}: {word}" for number, word in sorted(verdict.items())
    ),
}


@given(
    st.sampled_from(sorted(RENDER)),
    st.sampled_from(["met", "present", "yes_no"]),
    st.dictionaries(st.integers(1, 12), st.booleans(), min_size=1),
    st.lists(
        st.text(st.characters(exclude_categories=["N"], exclude_characters="{"), max_size=30),
        max_size=2,
    ),
)  # fmt: skip
def test_any_verdict_is_read_back_whatever_its_order_and_the_prose(style, vocabulary, met, prose):
    yes, no = VOCABULARIES[vocabulary]
    verdict = {number: yes if truth else no for number, truth in met.items()}
    text = "\n".join([*prose[:1], RENDER[style](verdict), *prose[1:]])
    expected = [(M if met[number] else N) if number in met else U for number in range(1, 13)]
    assert labels_of(text, 12, vocabulary) == expected


def test_what_follows_a_lone_brace_may_be_cut_at_its_end():
    """A brace opens an object: its last word, with nothing behind it, may be half a word."""
    assert labels_of("{\n1: no", 2, "yes_no") == [U, U]
    assert labels_of("{\n1: no\n2: yes", 2, "yes_no") == [N, U]
    assert labels_of("{\n1: no\n2: yes\n", 2, "yes_no") == [N, M]


@given(
    st.dictionaries(st.integers(1, 6), st.booleans(), min_size=1),
    st.dictionaries(st.integers(1, 6), st.booleans(), min_size=1),
    st.sampled_from(sorted(RENDER)),
    st.sampled_from(sorted(RENDER)),
)
def test_a_forged_verdict_that_the_judge_quotes_decides_nothing_it_was_asked(
    forged: dict[int, bool], own: dict[int, bool], forging: str, style: str
) -> None:
    """Every label is the judge's own; there is none where the two differ, unless the judge's own
    verdict alone is about all criteria."""
    words = ("NOT_PRESENT", "PRESENT")
    shown = RENDER[forging]({number: words[truth] for number, truth in forged.items()})
    verdict = RENDER[style]({number: words[truth] for number, truth in own.items()})
    labels = labels_of(f"The response says:\n{shown}\nThat is no concern of mine.\n{verdict}", 6)
    differs = any(forged.get(number, truth) != truth for number, truth in own.items())
    if differs and (len(forged) == 6 or len(own) < 6):
        assert labels == [U] * 6
    elif len(forged) < 6:
        assert labels == [{True: M, False: N}.get(own.get(number), U) for number in range(1, 7)]


@pytest.mark.parametrize(
    "text",
    [
        '{"1": "PRESENT", "2": "PRESENT", "3": "PRESENT", "1": "NOT_PRESENT"}',
        '["PRESENT", "PRESENT", "PRESENT"]\n["PRESENT", "PRESENT", "NOT_PRESENT"]',
    ],
)
def test_a_reply_that_disagrees_with_itself_is_unparsed_and_says_so(text: str) -> None:
    grading = batch(partial="renormalise")
    parsed = grading.parse(Reply(text), ask_all(ROW))
    assert (parsed.outcome, parsed.labels) == (Outcome.unparsed, (U, U, U))
    assert parsed.reason.startswith("different verdicts in one reply: criterion ")
    # the client asks for all again
    assert grading.follow_up(ROW, "hi", ask_all(ROW), parsed) is None
    assert grading.combine(ROW, [(ask_all(ROW), parsed)]).outcome is Outcome.unparsed


@given(st.text(max_size=200) | st.text("{}[]\"':,123 PRESNT_\n", max_size=300))
def test_no_text_breaks_the_reading(text: str) -> None:
    grading = batch()
    for shown in (text, "{" + text, '{"1": ' + text, text + '{"1": "PRESENT"}'):
        parsed = grading.parse(Reply(shown), ask_all(ROW))
        assert parsed == grading.parse(Reply(shown), ask_all(ROW))
        assert parsed.outcome is not Outcome.scored or U not in parsed.labels
        number, _ = grading.count(Reply(shown))
        assert 0 <= number <= 999


@pytest.mark.parametrize(
    "nasty", ["[" * 50_000, '{"a":' * 20_000, '{"1":' * 20_000, "1: " * 30_000]
)
@pytest.mark.timeout(120)
def test_nasty_replies_end_soon(nasty: str) -> None:
    assert labels_of(nasty + '\n{"1": "PRESENT"}')[1:] == [U, U]
    assert labels_of(nasty + "x" * LONGEST + '{"2": "PRESENT"}') == [U, M, U]


def test_a_verdict_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read, values = [], salvage.values

    def counted(text: str) -> object:
        read.append(text)
        return values(text)

    monkeypatch.setattr(salvage, "values", counted)
    text = '{"1": "PRESENT", "2": "NOT_PRESENT", "3": "PRESENT"}'
    assert batch().parse(Reply(text), ask_all(ROW)).labels == (M, N, M)
    assert read == [text]
