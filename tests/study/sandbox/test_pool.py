"""The warm pool: order, verdict on the code apart from faults of the sandbox, and no leaks."""

import json
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from study.sandbox import tiers
from study.sandbox.calls import Call, Limits, Outcome, read_reply, same
from study.sandbox.inside.literal import NotLiteral, dumps, loads
from study.sandbox.pool import Pool

LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def one(pool, source, *args, function="f", **limits):
    return pool.run([Call(source, function, args, Limits(**limits))])[0]


def test_results_keep_the_order_of_calls(pool):
    source = "import time\ndef f(n):\n    time.sleep(0.02 * (n % 3))\n    return n * n"
    results = pool.run(Call(source, "f", (n,)) for n in range(30))
    assert [result.value for result in results] == [n * n for n in range(30)]


@given(LITERALS)
@example(float("inf"))
def test_literals_come_back_by_type_and_value(value):
    again = loads(dumps(value))
    assert again == value and repr(again) == repr(value) and same(again, value)


@pytest.mark.parametrize("value", [object(), float("nan"), [float("nan")], {1: print}, bytearray()])
def test_what_is_no_literal_is_not_sent(pool, value):
    with pytest.raises(NotLiteral):
        pool.submit(Call("def f(x): return 1", "f", (value,)))


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("def f(:", Outcome.UNPARSABLE),
        ("def g(): return 1", Outcome.UNPARSABLE),
        ("def f(): return 1 / 0", Outcome.RAISED),
        ("def f(): return f", Outcome.NOT_LITERAL),
        ("import no_such_module", Outcome.RAISED),
        ("\0", Outcome.UNPARSABLE),
    ],
)
def test_bad_code_has_an_outcome_of_its_own(pool, source, outcome):
    result = one(pool, source)
    assert result.outcome is outcome and result.value is None
    assert "\n" not in result.detail


def test_helpers_and_constants_of_the_module_are_seen(pool):
    source = "import re\nLIMIT = 3\ndef short(x):\n    return len(x) < LIMIT\ndef f(x):\n"
    source += "    return short(x) and bool(re.match('a', x))"
    assert one(pool, source, "ab").value is True


LEAKS = """
import builtins, os, random, re, sys
def f(step):
    if step == 0:
        builtins.leak = re.match = sys.leak = 1
        os.environ['LEAK'] = '1'
        try:
            open('/tmp/leak', 'w').close()
        except OSError:
            pass
        random.seed(5)
        return None
    found = [str(holder) for holder in (builtins, sys) if hasattr(holder, 'leak')]
    found += ['re'] if re.match == 1 else []
    found += ['environ'] if 'LEAK' in os.environ else []
    try:
        found += ['file'] if os.path.exists('/tmp/leak') else []
    except OSError:
        pass
    return found, random.random()
"""


@pytest.mark.parametrize("tier", [tiers.Tier.BWRAP, tiers.Tier.LANDLOCK])
def test_nothing_leaks_from_one_call_to_the_next(tier, monkeypatch):
    if tiers.try_tier(tier):
        pytest.skip(f"no {tier} here")
    monkeypatch.setattr(tiers, "find", lambda unsafe=False: tier)
    with Pool(1) as single:
        first = single.run([Call(LEAKS, "f", (1,))])[0].value
        single.run([Call(LEAKS, "f", (0,))])
        second = single.run([Call(LEAKS, "f", (1,))])[0].value
    assert first == second and first[0] == []


def test_a_check_repeats(pool):
    """Hash seed and random state are fixed: the same call has the same answer."""
    source = "import random\ndef f():\n    return list({'a', 'b', 'c', 'd'}), random.random()"
    first = one(pool, source)
    assert first.outcome is Outcome.RETURNED
    assert [one(pool, source).value for _ in range(4)] == [first.value] * 4


def test_a_dead_sandbox_is_no_verdict_and_the_next_call_works(pool, monkeypatch):
    from study.sandbox import pool as module

    starts = []

    def start(tier):
        worker = tiers.Worker(["/bin/false"], {}) if len(starts) < 2 else real(tier)
        starts.append(worker)
        return worker

    real = module.tiers.start
    monkeypatch.setattr(module.tiers, "start", start)
    with Pool(1) as fresh:
        lost, result = fresh.run([Call("def f(): return 1", "f")] * 2)
    assert lost.outcome is Outcome.SANDBOX and lost.value is None
    assert result.value == 1
    assert fresh.outcomes == {Outcome.SANDBOX: 1, Outcome.RETURNED: 1}


def test_a_closed_pool_takes_nothing_and_leaves_no_thread(pool):
    before = threading.active_count()
    closed = Pool(2)
    closed.close()
    closed.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        closed.submit(Call("def f(): return 1", "f"))
    assert threading.active_count() == before


DEEPEST = '{"tuple": ['


@pytest.mark.parametrize(
    "text",
    [
        "", "__import__('os')", "lambda: 1", "[1,", "[1 2]", "(1)", "1_0", "NaN",
        "-" * 50_000 + "1", "9" * 4301, "[" + "9" * 100_000 + "]", "[" * 52 + "]" * 52,
        "[" * 100_000, '{"a": ' * 100_000, "{}", '{"tuple": [], "set": []}', '{"tuple": "ab"}',
        '{"object": []}', '{"list": [1]}', '{"set": [[]]}', '{"set": [{"tuple": [[]]}]}',
        '{"dict": [[1]]}', '{"dict": [[[], 1]]}', '{"dict": {"a": 1}}', '{"complex": [1.0]}',
        '{"complex": [1, 1]}', '{"complex": ["1", 1.0]}', '{"complex": [1' + "0" * 400 + ", 1.0]}",
        '{"complex": [1.0, Infinity]}', '{"bytes": [1]}', '{"bytes": "\\u2022"}',
        '{"set": [' + ",".join(str(n * (2**61 - 1)) for n in range(1, 1000)) + "]}",
        '{"dict": [' + ",".join(f"[{n * (2**61 - 1)},0]" for n in range(1, 1000)) + "]}",
    ],
)  # fmt: skip
def test_hostile_text_is_no_literal(text):
    with pytest.raises(ValueError):
        loads(text)


@pytest.mark.parametrize(
    "text",
    [
        DEEPEST * 50 + "]}" * 50,
        '{"set": [' + DEEPEST * 49 + "]}" * 49 + "]}",
        '{"dict": [[' + DEEPEST * 49 + "]}" * 49 + ", 1]]}",
        '{"set": [-Infinity]}',
        '{"set": [{"complex": [1.0, -0.0]}]}',
    ],
)
def test_what_is_read_can_always_be_compared(text):
    """Keys and members are compared by their text, so whatever is read can be written."""
    value = loads(text)
    assert same(value, value)


@pytest.mark.parametrize(
    "claim",
    [
        '{"nonce": "n", "end": "returned", "text": 1}',
        '{"nonce": "n", "end": "returned", "text": "1", "text2": ""}',
        '{"nonce": "n", "end": ["returned"], "text": "1"}',
        '{"nonce": "n", "end": "timeout", "text": "1"}',
        '["nonce"]',
        "9" * 60_000,
        "[" * 60_000,
        '{"nonce": ' * 5_000,
    ],
)
def test_what_is_no_answer_is_forged(claim):
    reply = {"cpu_s": 0.0, "end": "closed", "code": 0, "killed": False, "data": claim}
    assert read_reply(reply, "n", Limits()).outcome is Outcome.FORGED


def test_what_a_candidate_says_of_its_end_is_one_line_that_files_can_hold():
    line = json.dumps({"nonce": "n", "end": "raised", "text": "Boom: a\nb\ud800\u2028c"})
    reply = {"cpu_s": 0.0, "end": "closed", "code": 0, "killed": False, "data": line}
    assert read_reply(reply, "n", Limits()).detail == "Boom: a b? c"


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (1, True, False), (1, 1.0, False), ([1], (1,), False), ([1, True], [1, 1], False),
        ({1: "a"}, {True: "a"}, False), ({1, 2}, {1.0, 2}, False), (0.1 + 0.2, 0.3, True),
        (0.3001, 0.3, False), ([0.1 + 0.2], [0.3], True), ({"a": [0.1 + 0.2]}, {"a": [0.3]}, True),
        (float("inf"), float("inf"), True), (float("-inf"), float("inf"), False),
        (1 + (0.1 + 0.2) * 1j, 1 + 0.3j, True), ([1], [1, 2], False), ("1", b"1", False),
    ],
)  # fmt: skip
def test_values_are_compared_by_type_and_value(value, expected, equal):
    assert same(value, expected) is equal
