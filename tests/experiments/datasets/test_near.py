"""Near-duplicates against every pair compared, and splits against what they promise."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.data import near, split
from experiments.data.near import question

WORDS = [f"w{number}" for number in range(400)]


def jaccard(one: str, other: str) -> float:
    """Words and word pairs, counted without the module under test."""
    sides = []
    for text in (one, other):
        words = text.split()
        sides.append(set(words) | {f"{a} {b}" for a, b in itertools.pairwise(words)})
    return len(sides[0] & sides[1]) / len(sides[0] | sides[1])


def some_rows(seed: int) -> list[str]:
    """Texts of which many are edits of one another."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(8, 40))) for _ in range(60)]
    for text in list(texts):
        words = text.split()
        for _ in range(draw.randint(0, 3)):
            words[draw.randrange(len(words))] = draw.choice(WORDS)
            texts.append(" ".join(words))
    return texts


@pytest.mark.parametrize("seed", range(3))
def test_every_pair_at_the_threshold_is_seen_and_no_other(seed):
    texts = some_rows(seed)
    wanted = {
        (place, other)
        for place in range(len(texts))
        for other in range(place)
        if jaccard(texts[place], texts[other]) >= near.THRESHOLD
    }
    rows = [question(text, ["same"], None) for text in texts]
    assert len(wanted) > 10 and set(near.pairs(rows)) == wanted
    half = len(rows) // 2
    across = {place - half for place, other in wanted if place >= half > other}
    found = dict(near.crossing({"test": rows[:half], "train": rows[half:]}))
    assert {place for _, place in found} == across
    assert all((place + half, other) in wanted for (_, place), (_, other) in found.items())


def test_case_and_marks_make_no_difference_and_near_repeats_are_one_group():
    one = question("How many  clips did Ada sell?", ["3"], None)
    other = question("how many clips, did Ada sell", ["3"], None)
    assert list(near.pairs([one, other])) == [(1, 0)]
    texts = [TEXT, f"{TEXT} now", "Something else that nobody asked before", TEXT.lower()]
    rows = [question(text, ["5"], None) for text in texts]
    assert split.joined(["a", "b", "c", "d"], rows) == ["a", "a", "c", "a"]
    assert split.joined(["a", "a", "c", "d"], rows) == ["a", "a", "c", "d"]


TEXT = "Ada has 3 boxes with many clips and sells a few of them. How many are left"


@pytest.mark.parametrize(
    ("one", "other", "leaks"),
    [
        ((TEXT, ["5"], None), (TEXT, ["5"], None), True),
        ((TEXT, ["5"], None), (TEXT, ["6"], None), True),
        ((TEXT, ["5"], None), (TEXT.replace("3", "4"), ["6"], None), False),
        ((TEXT, [], None), (TEXT.replace("3", "4"), [], None), True),
        ((TEXT, ["a", "B"], "x"), (TEXT, ["b"], "y"), True),
        ((TEXT, ["a"], "x"), (TEXT, ["b"], "y"), False),
        ((TEXT, [], "x"), (TEXT, [], "y"), False),
        ((TEXT, [], "x"), (TEXT, [], " X"), True),
    ],
)
def test_templates_with_other_answers_give_nothing_away(one, other, leaks):
    assert bool(list(near.pairs([question(*one), question(*other)]))) == leaks


def test_a_row_of_a_later_side_repeats_one_of_any_earlier_side_and_counts_once():
    one, far = question(TEXT, ["5"], None), question("What else did nobody ask of him", ["5"], None)
    sides = {"test": [far, one], "validation": [one, far, far], "train": [far]}
    assert list(near.crossing(sides | {"validation": []})) == [(("train", 0), ("test", 0))]
    assert dict(near.crossing(sides)) == {
        ("validation", 0): ("test", 1),
        ("validation", 1): ("test", 0),
        ("validation", 2): ("test", 0),
        ("train", 0): ("test", 0),
    }
    assert not list(near.crossing({"test": [one, one], "train": []}))


def test_copies_of_single_rows_of_a_template_are_all_seen():
    """200 held-out rows of one template, and a copy of each with one word more."""
    template = " ".join(WORDS[:40])
    for passages in (False, True):
        rows = [
            (f"{template} {number}", [str(number)], f"passage {number}" if passages else None)
            for number in range(200)
        ]
        held = [question(*row) for row in rows]
        copies = [question(f"{text} please", *rest) for text, *rest in rows]
        assert dict(near.crossing({"test": held, "train": copies})) == {
            ("train", number): ("test", number) for number in range(200)
        }


SMALL = st.builds(
    question, st.sampled_from("ab"), st.lists(st.sampled_from("xy")), st.sampled_from([None, *"pq"])
)


@given(SMALL, SMALL)
def test_what_gives_a_question_away_is_a_mark_of_both(one, other):
    assert near.leaks(one, other) == bool(near.marks(one) & near.marks(other))


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=300), st.integers(0, 9))
def test_a_cut_keeps_groups_whole_and_its_size(groups, seed):
    chosen = split.cut(groups, [5, 1], seed)
    sizes = Counter(groups)
    rows = sum(sizes[group] for group in chosen)
    wanted = (len(groups) + 3) // 6
    assert rows <= wanted
    if max(sizes.values()) == 1:
        assert rows == wanted
    shuffled = random.Random(seed).sample(groups, len(groups))
    assert split.cut(shuffled, [5, 1], seed) == chosen


@pytest.mark.parametrize(
    ("rows", "train", "test"),
    [(7473, 6227, 1246), (7500, 6250, 1250), (164, 137, 27), (427, 356, 71)],
)
def test_single_rows_are_cut_as_the_source_counts_them(rows, train, test):
    chosen = split.cut([f"row {number}" for number in range(rows)], [5, 1], 0)
    assert (rows - len(chosen), len(chosen)) == (train, test)


def test_validation_follows_the_group_and_many_equal_questions_take_time_in_proportion():
    groups = [f"g{number % 500}" for number in range(2000)]
    aside = split.validation(groups, 0.1, 0)
    assert 25 <= len(aside) <= 80
    assert split.validation(groups[:100], 0.1, 0) == aside & set(groups[:100])
    assert split.validation(groups, 0.1, 1) != aside and not split.validation(groups, 0.0, 0)
    # Each is compared with a few of the others, not with all.
    rows = [question(TEXT, ["5"], None)] * 3000
    assert len(list(near.pairs(rows))) <= near.BUCKET * len(rows)
