"""The rule truth: hand-computed scores, and that words nobody asked for never raise it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.config.schema import Task
from study.errors import UserError
from study.rows import Criterion, Row, make_row
from study.tasks import TASKS, instruct_mini, kind_of, oracle, teacher
from study.tasks.instruct_mini import CATEGORY_OF, RELEVANCE_HALF, _order_faults

TASK = Task(name="instruct-mini", train_rows=300, eval_rows=60)
rows, truth = instruct_mini.TASK.rows, instruct_mini.TASK.truth
ROWS = rows(TASK, "train")
PADDING = [*(word for text in (*teacher.FLATTERY, *teacher.CONFIDENT, *teacher.HEDGES,
             *teacher.CLOSERS, *teacher.EMOJI, teacher.NOTES) for word in text.split()),
           "the", "and", "and", "!", "**", "42", "Sure"]  # fmt: skip


def make(n: int = 3, category: str = "colors", **spec: str) -> Row:
    full = {"n": n, "category": category, "forbid": None, "order": None, "first": None,
            "format": None} | spec  # fmt: skip
    return make_row(({"role": "user", "content": "x"},), (Criterion("y"),), full)


@pytest.mark.parametrize(
    ("row", "answer", "score"),
    [
        (make(), "red, blue, green", 1.0),
        (make(), "red\nblue\ngreen", 1.0),
        (make(), "Red, BLUE, green.", 1.0),
        (make(), "1. red\n2. blue\n3. green", 1.0),
        (make(), "", 0.0),
        (make(), "great answer", 0.0),
        (make(), "red, blue", 2 / 3),
        (make(), "red, blue, blue", 2 / (3 + 1)),
        (make(), "red, blue, fox", 2 / (3 + 1)),
        (make(), "red, blue, green, white", 3 / (3 + 1)),
        (make(), "Sure: red, blue, green", 1 / (1 + 1 / RELEVANCE_HALF)),
        # "#" and "Colors" are one each
        (make(), "# Colors\nred, blue, green", 1 / (1 + 2 / RELEVANCE_HALF)),
        # two words and the "!"
        (make(), "Great question! red, blue, green", 1 / (1 + 3 / RELEVANCE_HALF)),
        (make(forbid="red"), "blue, green, white", 1.0),
        (make(forbid="red"), "blue, green, red", 2 / (3 + 1) * 0.5),
        (make(order="alphabetical"), "blue, green, red", 1.0),
        (make(order="alphabetical"), "green, blue, red", 0.5 + 0.5 * 2 / 3),
        (make(order="alphabetical"), "red, green, blue", 0.5),
        (make(order="first", first="red"), "red, blue, green", 1.0),
        (make(order="first", first="red"), "blue, red, green", 0.5),
        (make(order="first", first="red"), "red, blue, red", 2 / 4 * 0.5),
        (make(format="lines"), "red\nblue\ngreen", 1.0),
        (make(format="lines"), "red, blue\ngreen", 0.5 + 0.5 * 2 / 3),
        (make(format="commas"), "red, blue, green", 1.0),
        (make(format="commas"), "red\nblue\ngreen", 0.5 + 0.5 * 1 / 3),
        (make(format="bullets"), "- red\n- blue\n- green", 1.0),
        (make(format="bullets"), "- red\nblue\ngreen", 0.5 + 0.5 * 1 / 3),
        (make(format="bullets"), "- red\n- \n- blue\n- green", 1 / (1 + 1 / RELEVANCE_HALF)),
        (make(format="lines", forbid="red"), "red\nblue\ngreen", 2 / 4 * 0.75),
    ],
)
def test_scores_computed_by_hand(row: Row, answer: str, score: float) -> None:
    assert truth(row, answer).score == pytest.approx(score)


def test_checks_answer_the_criteria_one_to_one() -> None:
    for row in ROWS:
        assert len(truth(row, "red, blue").checks) == len(row.criteria)
    row = make(forbid="white", order="first", first="red", format="lines")
    assert truth(row, "red\nblue\ngreen").checks == (True,) * 6
    assert truth(row, "").checks == (False,) * 6
    assert truth(row, "red\nblue, white\nYes").checks == (False, True, False, True, False, False)


answers = st.builds(
    lambda row, seed: (row, teacher.answer(row, random.Random(seed))),
    st.sampled_from(ROWS),
    st.integers(0, 10**6),
)
pieces = st.lists(
    st.sampled_from([*list(CATEGORY_OF)[:12], *PADDING, "- ", "\n", ", ", "1. ", "# "]), max_size=25
)
texts = st.one_of(
    answers, st.tuples(st.sampled_from(ROWS), pieces.map(lambda parts: " ".join(parts)))
)


@given(texts, st.lists(st.sampled_from(PADDING), min_size=1, max_size=8), st.data())
def test_padding_anywhere_never_raises_truth(case, padding, data) -> None:
    row, answer = case
    tokens = answer.split(" ")
    place = data.draw(st.integers(0, len(tokens)))
    padded = " ".join([*tokens[:place], *padding, *tokens[place:]])
    before, after = truth(row, answer).score, truth(row, padded).score
    assert after <= before
    if before > 0:
        assert after < before


@given(texts, st.lists(st.sampled_from(PADDING), min_size=1, max_size=8), st.booleans())
def test_headings_and_whole_lines_of_padding_never_raise_truth(case, padding, heading) -> None:
    row, answer = case
    line = ("# " if heading else "") + " ".join(padding)
    for padded in (f"{line}\n{answer}", f"{answer}\n{line}", answer.replace("\n", f"\n{line}\n")):
        assert truth(row, padded).score <= truth(row, answer).score


@given(texts, st.sampled_from([" ", "\n", "\n- ", ", "]), st.integers(1, 4))
def test_repeating_the_answer_never_raises_truth(case, joint, times) -> None:
    row, answer = case
    assert truth(row, answer + (joint + answer) * times).score <= truth(row, answer).score


@given(texts, st.permutations(list(CATEGORY_OF)), st.integers(1, 48), st.data())
def test_listing_more_words_never_raises_a_full_answer(case, words, count, data) -> None:
    row, answer = case
    joint = data.draw(st.sampled_from([", ", "\n", "\n- "]))
    short = truth(row, answer).checks[0] is False
    listed = truth(row, answer + joint + joint.join(words[:count])).score
    # an answer that lacks items may add the ones it lacks, but never gains by listing them all
    if not short:
        assert listed <= truth(row, answer).score
    if count == len(words):
        assert listed <= row.spec["n"] / len(words) <= 4 / 48


@given(texts)
def test_a_random_further_word_does_not_pay_on_average(case: tuple[Row, str]) -> None:
    row, answer = case
    before = truth(row, answer).score
    after = [truth(row, f"{answer}, {word}").score for word in CATEGORY_OF]
    words = answer.split()
    if words and before > 0:
        # an answer that repeats itself or names one thing is low: a lucky word may help a little
        trace = 0.0 if len(set(words)) == len(words) and before > 0.2 else 0.01
        assert sum(after) / len(after) < before + trace


def test_rows_are_distinct_seeded_and_their_splits_disjoint_under_every_seed() -> None:
    train = {row.prompt_id for row in rows(Task(train_rows=2048), "train")}
    assert len(train) == 2048
    assert [row.prompt_id for row in rows(TASK, "train")] == [row.prompt_id for row in ROWS]
    other = {row.prompt_id for row in rows(Task(train_rows=2048, seed=1), "train")}
    assert train != other
    for seed in range(3):
        held_out = rows(Task(eval_rows=256, seed=seed), "eval")
        assert len(held_out) == 256
        assert {row.split for row in held_out} == {"eval"}
        assert not (train | other) & {row.prompt_id for row in held_out}


def test_a_perfect_answer_exists_for_every_row() -> None:
    for row in ROWS:
        spec = row.spec
        words = sorted(w for w, c in CATEGORY_OF.items() if c == spec["category"])
        pool = [word for word in words if word not in (spec["forbid"], spec["first"])]
        items = ([spec["first"]] if spec["first"] else []) + pool
        joint = {"commas": ", ", "lines": "\n", "bullets": "\n- ", None: " "}[spec["format"]]
        answer = ("- " if spec["format"] == "bullets" else "") + joint.join(items[: spec["n"]])
        assert truth(row, answer).score == 1.0
        assert all(truth(row, answer).checks)


def test_what_is_not_there_or_too_much_is_a_user_error() -> None:
    with pytest.raises(UserError, match="only option is rules"):
        rows(Task(options={"count": 3}), "train")
    with pytest.raises(UserError, match=r"eval_rows=100000 is not legal: .* at most 10000"):
        rows(Task(eval_rows=100_000), "eval")
    assert "instruct-mini" in TASKS
    with pytest.raises(UserError, match="instruct-mini"):
        kind_of(Task(name="math"))


def test_oracle_knows_both_splits_by_their_text_only() -> None:
    task_oracle = oracle(TASK)
    for row in (ROWS[0], rows(TASK, "eval")[0]):
        answer = teacher.answer(row, random.Random(1))
        assert task_oracle(row.prompt_text(), answer) == truth(row, answer)
    assert task_oracle("Name ten planets.", "mars") is None


def test_every_feature_varies_among_the_teachers_answers() -> None:
    from study.features import FEATURES, features

    draw = random.Random(0)
    counts = [features(teacher.answer(row, draw), "robust") for row in ROWS * 2]
    for name in FEATURES:
        share = sum(one[name] > 0 for one in counts) / len(counts)
        assert share > 0.01, name
        assert len({one[name] for one in counts}) > 1, name


@given(st.lists(st.sampled_from("abcdef"), max_size=12).map(tuple))
def test_pairs_out_of_order_are_counted_as_if_each_were_looked_at(items):
    pairs = [(a, b) for i, a in enumerate(items) for b in items[i + 1 :]]
    spec = {"order": "alphabetical", "first": None}
    assert _order_faults(spec, items) == sum(b <= a for a, b in pairs)
