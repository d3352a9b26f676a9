"""Layer 2 changes nothing unless it is on, and then only by what it is asked with."""

import pytest

from experiments.workflow.instructions import _TABLE, PARAMETERS, instruction
from experiments.workflow.operators import OPERATORS

HINTS = {"math": "Compute.", "qa": "Quote."}


def test_it_is_off_unless_asked_for():
    silent = instruction("Programmer", HINTS, "math", "gpt-oss-120b")
    assert silent.text == "" and silent.parameters == {} and silent.sha == ""


def test_operator_domain_and_executor_add_up():
    whole = instruction("Programmer", HINTS, "math", "gpt-oss-120b", on=True)
    assert whole.text.startswith("Compute.\nKeep your reasoning short")
    assert whole.parameters == {"temperature": 0.0, "max_tokens": 4096}
    assert instruction("Custom", {}, "math", "another", on=True).sha == ""
    assert instruction("Custom", HINTS, "qa", "another", on=True).text == "Quote."


@pytest.mark.parametrize("change", ["operator", "domain", "executor"])
def test_its_hash_follows_what_it_is_asked_with(change):
    asked = {"operator": "Programmer", "domain": "math", "executor": "gpt-oss-120b"}
    other = asked | {change: {"operator": "Custom", "domain": "qa", "executor": "x"}[change]}
    assert instruction(hints=HINTS, on=True, **asked) == instruction(hints=HINTS, on=True, **asked)
    shas = {instruction(hints=HINTS, on=True, **words).sha for words in (asked, other)}
    assert len(shas) == 2


def test_the_table_overrides_what_a_request_has():
    entries = [*_TABLE["operators"].values(), *_TABLE["executors"].values()]
    for entry in entries:
        assert set(entry) <= {"text", "parameters"}
        assert set(entry.get("parameters", {})) <= set(PARAMETERS)
    assert set(_TABLE["operators"]) <= set(OPERATORS)
