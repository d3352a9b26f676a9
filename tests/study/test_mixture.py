"""A mixture holds its shares in every prefix, caps repeats, and says which weights do not fit; the
task over a prepared folder reads its rows one by one."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.data import __main__ as data
from study import tasks
from study.config.schema import Policy, Study, Task, Trainer, freeze
from study.config.simulated import DOMAINS
from study.errors import UserError
from study.rows import Missing, Truth
from study.tasks import TASKS, kind, mixed, oracle, order_of
from study.tasks.datasets.table import open_table
from study.tasks.mixture import DOMAINS as WEIGHTS
from study.tasks.mixture import Mixture, Options, Pool, weights
from study.truth import Grader
from study.truth.item import Item
from tests.study.tasks.datasets import roots

SIX = [
    Pool("gsm8k", "math", 6227), Pool("hotpotqa", "qa", 74_000), Pool("humaneval", "code", 137),
    Pool("math", "math", 6250), Pool("mbpp", "code", 356), Pool("squad2", "qa", 73_000),
]  # fmt: skip
DOMAIN = {pool.dataset: pool.domain for pool in SIX}


def drawn(mixture, length):
    return [mixture.at(position) for position in range(length)]


def check_shares(places, mixture):
    """Every prefix: domains within one row of their shares, sets of their shares of a domain."""
    whole = sum(map(Fraction, mixture.domains.values()))
    of_domain, of_set = Counter(), Counter()
    for length, place in enumerate(places, start=1):
        of_domain[DOMAIN[place.dataset]] += 1
        of_set[place.dataset] += 1
        for domain, weight in mixture.domains.items():
            assert abs(of_domain[domain] - length * Fraction(weight) / whole) < 1
            names = [name for name in mixture.sets if DOMAIN[name] == domain]
            inside = sum(Fraction(mixture.sets[name]) for name in names)
            for name in names:
                share = of_domain[domain] * Fraction(mixture.sets[name]) / inside
                assert abs(of_set[name] - share) < 1


def test_four_hundred_rows_as_the_source_mixes_them():
    mixture = Mixture(SIX, Options(), seed=0)
    places = drawn(mixture, 400)
    counts = Counter(place.dataset for place in places)
    wanted = {"gsm8k": 80, "math": 80, "squad2": 60, "hotpotqa": 60, "humaneval": 60, "mbpp": 60}
    assert counts == wanted
    check_shares(places, mixture)
    assert all(place.repeat == 0 for place in places)
    assert len({place[:2] for place in places}) == 400


@settings(max_examples=40)
@given(st.tuples(*[st.floats(0.01, 100)] * 3), st.tuples(*[st.floats(0.01, 100)] * 6))
def test_any_weights_hold_in_every_prefix(domains, sets):
    options = Options(
        domains=dict(zip(("math", "qa", "code"), domains, strict=True)),
        sets=dict(zip(DOMAIN, sets, strict=True)),
        max_repeats=None,
    )
    mixture = Mixture(SIX, options, seed=1)
    check_shares(drawn(mixture, 150), mixture)


def test_no_row_is_drawn_more_often_than_the_cap_and_each_before_any_again():
    pools = [Pool("humaneval", "code", 7), Pool("mbpp", "code", 20), Pool("gsm8k", "math", 90)]
    mixture = Mixture(pools, Options(max_repeats=3), seed=5)
    assert mixture.total == 3 * 117
    places = drawn(mixture, mixture.total)
    counts = Counter(place[:2] for place in places)
    assert set(counts.values()) == {3} and len(counts) == 117
    for pool in pools:
        rows = [place.row for place in places if place.dataset == pool.dataset]
        epochs = [rows[start : start + pool.rows] for start in range(0, len(rows), pool.rows)]
        assert all(sorted(epoch) == list(range(pool.rows)) for epoch in epochs)
        assert epochs[0] != epochs[1]
    with pytest.raises(IndexError):
        mixture.at(mixture.total)


def test_a_set_that_is_used_up_leaves_its_share_to_its_domain_first():
    pools = [Pool("humaneval", "code", 5), Pool("mbpp", "code", 40), Pool("gsm8k", "math", 900)]
    mixture = Mixture(pools, Options(max_repeats=1), seed=0)
    ends = mixture.used_up(200)
    assert list(ends) == ["humaneval", "mbpp"]
    places = drawn(mixture, 200)
    assert places[ends["humaneval"]].dataset == "humaneval"
    assert "humaneval" not in {place.dataset for place in places[ends["humaneval"] + 1 :]}
    until = places[: ends["mbpp"] + 1]
    assert abs(sum(place.dataset != "gsm8k" for place in until) - len(until) * 3 / 7) < 1
    assert {place.dataset for place in places[ends["mbpp"] + 1 :]} == {"gsm8k"}


@pytest.mark.parametrize("length", [10, 30, 547, 1096, 1830, 1840, 5000])
def test_what_is_used_up_is_counted_out_only_where_it_may_be(length):
    """The short cut and the count agree."""
    mixture = Mixture(SIX, Options(), seed=0)
    counts = Counter(place.dataset for place in drawn(mixture, length))
    full = {name for name, limit in mixture.limits.items() if limit and counts[name] >= limit}
    assert set(mixture.used_up(length)) == full


def test_a_run_that_is_too_long_is_told_what_would_do_and_each_position_is_one():
    mixture = Mixture([Pool("mbpp", "code", 10)], Options(max_repeats=2), seed=0)
    mixture.check(20)
    with pytest.raises(UserError, match=r"draws 41 rows.* make 20\..*max_repeats=5"):
        mixture.check(41)
    Mixture([Pool("mbpp", "code", 10)], Options(max_repeats=None), seed=0).check(10**9)
    far = Mixture(SIX, Options(), seed=2)
    assert far.at(9000) == drawn(Mixture(SIX, Options(), seed=2), 9001)[9000]


def test_the_order_of_a_set_depends_on_seed_and_name_alone():
    def order(pools, seed, name="mbpp"):
        places = drawn(Mixture(pools, Options(), seed), 200)
        return [place.row for place in places if place.dataset == name][:25]

    assert order(SIX, 3) == order(SIX[3:], 3) == order(list(reversed(SIX)), 3)
    assert order(SIX, 3) != order(SIX, 4)


def test_temperature_makes_weights_of_the_rows():
    domains, sets = weights(SIX, Options(temperature=2.0))
    assert sets == pytest.approx({pool.dataset: pool.rows**0.5 for pool in SIX})
    assert domains == pytest.approx(
        {
            "math": 6227**0.5 + 6250**0.5,
            "qa": 74_000**0.5 + 73_000**0.5,
            "code": 137**0.5 + 356**0.5,
        }
    )
    as_rows, _ = weights(SIX, Options(temperature=1.0))
    assert as_rows == {"math": 12_477, "qa": 147_000, "code": 493}
    even = Options(temperature=2.0, domains={"math": 1, "qa": 1, "code": 1})
    given_domains, _ = weights(SIX, even)
    assert given_domains == {"math": 1, "qa": 1, "code": 1}
    mixture = Mixture(SIX, Options(temperature=3.7), seed=0)
    check_shares(drawn(mixture, 300), mixture)


def test_weights_that_are_not_given_are_those_of_the_folder_and_each_domain_has_one() -> None:
    domains, sets = weights(SIX, Options(), {"math": 1, "qa": 2, "code": 7})
    assert domains == {"math": 1, "qa": 2, "code": 7} and set(sets.values()) == {1.0}
    assert tuple(WEIGHTS) == DOMAINS


@pytest.mark.parametrize(
    "options, words",
    [
        (Options(domains={"math": 1, "qa": 1}), "and code none"),
        (Options(domains={"math": 1, "qa": 1, "code": 1, "law": 1}), "names law"),
        (Options(sets={"gsm8k": 2}), "and math none, but the sets of math are"),
        (Options(sets={"gsm9k": 2}), "names gsm9k"),
    ],
)
def test_weights_that_do_not_fit_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        weights(SIX, options)


@pytest.mark.parametrize(
    "given_options",
    [
        {"domains": {"math": 0}}, {"sets": {"gsm8k": -1}}, {"domains": {"math": "four"}},
        {"temperature": 0}, {"max_repeats": 0}, {"max_repeats": 1.5},
    ],
)  # fmt: skip
def test_weights_that_are_no_weights_are_refused(given_options):
    with pytest.raises(UserError, match=r"task\.options\."):
        freeze(Options, given_options, "task.options.")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    base = tmp_path_factory.mktemp("mixed")
    roots.make(base / "root")
    for preset in ("official", "plan-c"):
        words = [f"data={preset}", f"data.root={base / 'root'}", f"out={base / preset}"]
        assert data.main(["prepare", *words]) == 0
    return base


@pytest.fixture
def task(prepared):
    return Task(name="mixed", path=str(prepared / "plan-c"), train_rows=1000, eval_rows=12)


def test_rows_stand_in_the_order_of_the_table_and_are_read_when_wanted(task, prepared):
    table = open_table(prepared / "plan-c")
    rows = TASKS["mixed"].rows(task, "train")
    ids = [item.id for name in table.counts["train"] for item in table.rows("train", name)]
    assert len(rows) == len(ids) == sum(table.counts["train"].values())
    assert [row.item for row in rows] == ids
    assert [row.item for row in rows[3:9:2]] == ids[3:9:2] and rows[-1].item == ids[-1]
    with pytest.raises(IndexError):
        rows[len(rows)]
    row = rows[0]
    item = table.by_id(row.item)
    assert row.messages == ({"role": "user", "content": item.prompt},)
    assert (row.dataset, row.domain, row.split) == (item.dataset, item.domain, "train")
    assert row.reference


def test_a_row_is_known_by_its_prompt(task):
    row_of = mixed.TASK.lookup(task)
    assert all(row_of(row.prompt_id) == row for row in mixed.TASK.rows(task, "train"))
    assert all(row_of(row.prompt_id) == row for row in mixed.TASK.rows(task, "eval"))
    assert row_of("0" * 16) is None


def test_an_order_draws_rows_by_their_weights(task):
    order = mixed.TASK.order(task, 3)
    rows = mixed.TASK.rows(task, "train")
    drawn = [rows[index] for index in order.rows(0, 40)]
    assert [row.item for row in drawn] == [order.item(order.mixture.at(n)).id for n in range(40)]
    assert Counter(row.domain for row in drawn) == {"math": 16, "qa": 12, "code": 12}
    sets = Counter(row.dataset for row in drawn)
    assert sets == {"gsm8k": 8, "math": 8, "squad2": 6, "hotpotqa": 6, "humaneval": 6, "mbpp": 6}
    assert (
        mixed.TASK.order(task, 3).rows(17, 5)
        == order.rows(17, 5)
        != mixed.TASK.order(task, 4).rows(17, 5)
    )


def test_the_nominal_mix_is_that_of_the_weights_or_of_the_rows(task):
    rows = mixed.TASK.rows(task, "train")
    assert tasks.nominal_mix(mixed.TASK.order(task, 0), rows) == {
        "math": 0.4,
        "qa": 0.3,
        "code": 0.3,
    }
    weighed = replace(task, options={"domains": {"math": 1, "qa": 1, "code": 2}})
    assert tasks.nominal_mix(mixed.TASK.order(weighed, 0), rows)["code"] == 0.5
    three = [replace(rows[0], domain=domain) for domain in ("qa", "math", "qa", "qa")]
    assert tasks.nominal_mix(None, three) == {"math": 0.25, "qa": 0.75}
    assert tasks.nominal_mix(None, [replace(rows[0], domain="")]) == {}
    assert tasks.nominal_mix(None, rows) == {}  # not in memory


def test_the_order_is_that_of_the_seed_whatever_the_arm(task):
    def ids(**arm):
        config = Study(task=task, trainer=Trainer(steps=5, prompts_per_step=4), **arm)
        return order_of(config).rows(0, 20)

    assert ids(seed=1) == ids(seed=1, policy=Policy(name="another"))
    assert ids(seed=1) != ids(seed=2)
    assert order_of(Study(task=Task(name="instruct-mini"))) is None


def test_fewer_rows_of_a_set_are_the_same_for_every_seed_of_a_run(task):
    few = replace(task, train_rows=3, options={"datasets": ["gsm8k", "math"]})

    def drawn_of(task, seed):
        order = mixed.TASK.order(task, seed)
        return {order.item(order.mixture.at(position)).id for position in range(24)}

    drawn = [drawn_of(few, seed) for seed in (0, 1)]
    assert drawn[0] == drawn[1] and len(drawn[0]) == 6
    assert drawn_of(replace(few, seed=1), 0) != drawn[0]


def test_held_out_rows_are_of_every_domain_and_of_no_train_row(prepared):
    for preset, split in (("official", "validation"), ("plan-c", "test")):
        path = str(prepared / preset)
        task = Task(name="mixed", path=path, train_rows=1000, eval_rows=9)
        table = open_table(path)
        rows = mixed.TASK.rows(task, "eval")
        counts = {row.dataset: len(table.rows(split, row.dataset)) for row in rows}
        assert len(rows) <= 9 and len({row.item for row in rows}) == len(rows)
        assert {row.domain for row in rows} == {"math", "qa", "code"}
        assert {row.item for row in mixed.TASK.rows(task, "train")}.isdisjoint(
            row.item for row in rows
        )
        assert all(row.split == "eval" for row in rows)
        assert counts if preset == "official" else min(counts.values()) > 0
        more = replace(task, eval_rows=12)
        assert [row.item for row in mixed.TASK.rows(more, "eval")][: len(rows)] == [
            row.item for row in rows
        ]


def test_truths_are_one_check_each(task):
    rows = [row for row in mixed.TASK.rows(task, "train") if row.domain != "code"]
    with kind.grading():
        right = mixed.TASK.truths(rows, [row.reference or "" for row in rows])
        wrong = oracle(task).truths(rows, ["no idea"] * len(rows))
    for row, good, bad in zip(rows, right, wrong, strict=True):
        answerable = row.reference != "unanswerable"
        assert good == Truth(1.0, (True,)), row
        assert bad == Truth(0.0, (False,)) or not answerable


def test_a_grader_that_fails_makes_truths_missing(task, monkeypatch):
    monkeypatch.setattr(kind.rules, "score", lambda items, answers, runner: [None] * len(items))
    rows = [mixed.TASK.rows(task, "train")[0], next(iter(code_rows(task)))]
    assert all(isinstance(truth, Missing) for truth in mixed.TASK.truths(rows, ["1", "2"]))


def code_rows(task):
    return (row for row in mixed.TASK.rows(task, "train") if row.domain == "code")


def test_of_code_no_rule_can_tell_without_tests_and_it_is_run_where_drawn(task):
    item = replace(next(code_rows(task)).spec["item"], tests=" ")
    with kind.grading(unsafe=True):
        assert mixed.TASK.truths([mixed.item_row(item, "train")], [item.reference]) == [None]
    assert mixed.TASK.runs_code(task)
    assert not mixed.TASK.runs_code(replace(task, options={"datasets": ["gsm8k"]}))
    assert not TASKS["instruct-mini"].runs_code(Task(name="instruct-mini"))


def test_a_missing_truth_says_why(monkeypatch):
    monkeypatch.setattr("study.truth.mathematics.sys.executable", "/bin/false")
    half = Item("math:train:0", "math", "math", "train", "", "A half?", "", answers=("1/2",))
    with kind.grading() as grader:
        (truth,) = mixed.TASK.truths([mixed.item_row(half, "train")], ["0.5"])
        assert truth == Missing(next(iter(grader.faults))) != Missing("the grader failed")


def test_the_grader_of_a_block_is_ended_with_it():
    before = dict(kind._GRADERS)
    with kind.grading(unsafe=True) as outer:
        assert isinstance(outer, Grader) and outer.unsafe
        with kind.grading() as inner:
            assert inner is not outer
        assert {"": outer} == kind._GRADERS
    assert before == kind._GRADERS


def test_a_folder_that_was_prepared_anew_is_another_state(task, prepared, tmp_path):
    state = mixed.TASK.order(task, 0).state(8, 4)
    assert state == mixed.TASK.order(task, 0).state(8, 4)
    assert (state["position"], len(state["next"])) == (8, 4)
    out = tmp_path / "again"
    words = [f"data.root={prepared / 'root'}", "data.seed=9", f"out={out}"]
    assert data.main(["prepare", "data=plan-c", *words]) == 0
    assert (
        mixed.TASK.order(replace(task, path=str(out)), 0).state(8, 4)["manifest"]
        != state["manifest"]
    )


def test_a_weight_of_zero_in_a_preset_leaves_its_domain_out(task, prepared, tmp_path):
    manifest = json.loads((prepared / "plan-c" / "manifest.json").read_text())
    for path in (prepared / "plan-c").iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "manifest.json").unlink()
    manifest["domains"] = {"math": 1, "qa": 1, "code": 0}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    less = replace(task, path=str(tmp_path))
    assert mixed.TASK.order(less, 0).mixture.domains == {"math": 1, "qa": 1}
    again = mixed.TASK.order(replace(less, options={"domains": {"math": 1, "qa": 1, "code": 2}}), 0)
    assert again.mixture.domains == {"math": 1, "qa": 1, "code": 2}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"path": None}, "task.path is not set"),
        ({"path": "nowhere"}, "nowhere is not a prepared folder"),
        ({"options": {"datasets": ["mmlu"]}}, "names mmlu, and .* has training rows of gsm8k"),
        ({"options": {"weights": {}}}, "a key of task.options=weights is not legal"),
        ({"options": {"domains": {"math": 1}}}, "and code, qa none|and qa, code none"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(task, change, words):
    with pytest.raises(UserError, match=words):
        mixed.TASK.order(replace(task, **change), 0)


def test_a_run_that_is_too_long_is_refused_before_it_starts(task):
    options = {"datasets": ["humaneval"], "max_repeats": 1}
    trainer = Trainer(steps=50, prompts_per_step=2)
    config = Study(task=replace(task, options=options), trainer=trainer)
    with pytest.raises(UserError, match="The run draws 100 rows"):
        order_of(config)
