"""Rules of a training step: real functions in a real sandbox, from rows to metrics."""

import pytest

from study.rows import Rule, make_row
from study.tasks.rules import RuleRunner, encode_result, rule_metrics, verdict

SHORT = "def check_following(instruction, response):\n    return len(response.split()) < 3"
BROKEN = "def check_following(instruction, response):\n    return 1 / 0"
ECHO = "def check_following(instruction, response):\n    return instruction in response"


@pytest.fixture(scope="module")
def runner(pool):
    return RuleRunner(pool)


def row(*sources):
    rules = tuple(Rule(f"0:{n}", "Word", "Be short.", code) for n, code in enumerate(sources))
    return make_row(({"role": "user", "content": "Say x."},), rules=rules)


def test_rules_see_prompt_and_answer_and_are_recorded_or_have_no_verdict(runner):
    checked = runner.check([row(SHORT, ECHO), row(SHORT), row()], ["Say x.", "a b c d", "z"])
    assert [[one.passed for one in results] for results in checked] == [[True, True], [False], []]
    assert [[one.vacuous for one in results] for results in checked] == [[True, False], [True], []]
    metrics = rule_metrics(checked, 0.5)
    assert metrics["rule/pass_frac"] == pytest.approx(2 / 3)
    assert metrics["rule/vacuous_pass_frac"] == 0.5
    assert metrics["rule/error_frac"] == 0.0
    assert metrics["time/rules_s"] == 0.5
    ((short, echo),) = runner.check([row(SHORT, ECHO)], ["a b"])
    assert encode_result(short) == "0:0 passed vacuous" and encode_result(echo) == "0:1 failed"
    texts = (encode_result(short), encode_result(echo), "0:0 raised")
    assert [verdict(text) for text in texts] == [True, False, None]
    ((result,),) = runner.check([row(BROKEN)], ["x"])
    assert result.passed is None
    assert encode_result(result) == "0:0 raised"
    assert rule_metrics([[result]], 0.0)["rule/error_frac"] == 1.0
