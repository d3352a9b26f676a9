"""A mixture holds its shares in every prefix, caps repeats, and says which weights do not fit."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.config.schema import freeze
from study.config.simulated import DOMAINS
from study.errors import UserError
from study.tasks.mixture import DOMAINS as WEIGHTS
from study.tasks.mixture import Mixture, Options, Pool, weights

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


def test_a_run_that_is_too_long_is_told_what_would_do():
    mixture = Mixture([Pool("mbpp", "code", 10)], Options(max_repeats=2), seed=0)
    mixture.check(20)
    with pytest.raises(UserError, match=r"draws 41 rows.* make 20\..*max_repeats=5"):
        mixture.check(41)
    Mixture([Pool("mbpp", "code", 10)], Options(max_repeats=None), seed=0).check(10**9)


def test_the_order_of_a_set_depends_on_seed_and_name_alone():
    def order(pools, seed, name="mbpp"):
        places = drawn(Mixture(pools, Options(), seed), 200)
        return [place.row for place in places if place.dataset == name][:25]

    assert order(SIX, 3) == order(SIX[3:], 3) == order(list(reversed(SIX)), 3)
    assert order(SIX, 3) != order(SIX, 4)


def test_a_position_is_the_same_whoever_asks_first():
    far = Mixture(SIX, Options(), seed=2)
    assert far.at(9000) == drawn(Mixture(SIX, Options(), seed=2), 9001)[9000]


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


def test_weights_that_are_not_given_are_those_of_the_folder():
    domains, sets = weights(SIX, Options(), {"math": 1, "qa": 2, "code": 7})
    assert domains == {"math": 1, "qa": 2, "code": 7} and set(sets.values()) == {1.0}


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


def test_every_domain_has_a_weight() -> None:
    assert tuple(WEIGHTS) == DOMAINS
