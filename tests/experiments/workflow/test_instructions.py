"""Layer 2 is a pure function of operator, domain and executor; a broker has none by itself."""

import dataclasses

import pytest

from experiments.workflow.broker import Broker
from experiments.workflow.instructions import _TABLE, PARAMETERS, instruction, layer2
from experiments.workflow.operators import OPERATORS

HINTS = {"math": "Compute.", "qa": "Quote."}
PROGRAMMER = dataclasses.replace(OPERATORS["Programmer"], hints=HINTS)
BARE = dataclasses.replace(OPERATORS["Custom"], hints={})


def test_it_is_off_unless_a_broker_is_given_it_and_its_table_overrides_a_request():
    (field,) = (field for field in dataclasses.fields(Broker) if field.name == "instruct")
    assert field.default is None
    for entry in (*_TABLE["operators"].values(), *_TABLE["executors"].values()):
        assert set(entry) <= {"text", "parameters"}
        assert set(entry.get("parameters", {})) <= set(PARAMETERS)
    assert set(_TABLE["operators"]) <= set(OPERATORS)


def test_operator_domain_and_executor_add_up():
    whole = instruction(PROGRAMMER, "math", "gpt-oss-120b")
    assert whole.text.startswith("Compute.\nKeep your reasoning short")
    assert whole.parameters == {"temperature": 0.0, "max_tokens": 4096}
    assert instruction(BARE, "math", "another").sha == ""
    hints = dataclasses.replace(BARE, hints={"qa": "Quote."})
    assert instruction(hints, "qa", "another").text == "Quote."


@pytest.mark.parametrize("other", [(BARE, "math", "a"), (PROGRAMMER, "qa", "a"), (BARE, "qa", "b")])
def test_its_hash_follows_what_it_is_asked_with(other):
    asked = (PROGRAMMER, "math", "gpt-oss-120b")
    assert layer2("gpt-oss-120b")(*asked[:2]) == instruction(*asked)
    assert instruction(*asked).sha == instruction(*asked).sha != instruction(*other).sha
