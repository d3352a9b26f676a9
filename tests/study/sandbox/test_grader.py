"""The pair of sandboxes: how it ends a task that goes wrong, and what is left for the next one."""

import pytest

from study.sandbox import grader, tiers
from study.sandbox.calls import Limits, Outcome
from study.sandbox.grader import Pair, Task
from study.sandbox.tiers import Tier

QUICK = Limits(cpu_s=1, wall_s=3.0, memory_mb=256, reply_bytes=1 << 20)
SOUND = Task((("def f(x): return 2 * x",),), "assert f(2) == 4", "f", limits=QUICK)


@pytest.fixture
def pair():
    both = Pair(tiers.find())
    yield both
    both.close()


def task(program, tests):
    return Task(((program,),), tests, "f", limits=QUICK)


def test_tests_that_do_not_end_end_the_candidate_too(pair, monkeypatch):
    monkeypatch.setattr(grader, "TESTER", QUICK)
    result = pair.call(task("def f(x): return x", "f(1)\nwhile True:\n    pass"))
    assert result.outcome is Outcome.TIMEOUT and result.detail.startswith("in the tests")
    assert not pair.dirty
    assert pair.call(SOUND).value is True


def test_a_value_that_floods_the_tests_is_the_candidates_fault(pair):
    """Each of two values may cross; both together may not go back."""
    result = pair.call(task("def f(x): return '\\\\' * 200_000", "assert f(f(1) + f(1)) == 2"))
    assert result.outcome is Outcome.OVERFLOW and result.detail.startswith("in the tests")
    assert not pair.dirty
    assert pair.call(SOUND).value is True


def test_a_value_that_fills_the_memory_of_the_tests_is_the_candidates_fault(pair, monkeypatch):
    monkeypatch.setattr(grader, "TESTER", QUICK)
    result = pair.call(task("def f(x): return 10 ** 9", "assert [0] * f(1) == []"))
    assert (result.outcome, result.detail) == (Outcome.MEMORY, "in the tests")
    assert pair.call(SOUND).value is True


def test_a_file_that_is_left_throws_the_pair_away():
    if fault := tiers.try_tier(Tier.BWRAP):
        pytest.skip(f"nothing can be written without namespaces, and: {fault}")
    both = Pair(Tier.BWRAP)
    try:
        program = "def f(x):\n    open('left', 'w').close()\n    return 2 * x"
        assert both.call(task(program, "assert f(2) == 4")).value is True
        assert both.dirty
    finally:
        both.close()
