"""The simulated executor reads what the operators really ask."""

from pathlib import Path

import pytest

from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.answer_generate import AGAIN
from experiments.workflow.planted import small_programs
from judges.simulated.operators import PROMPTS, operator_of, solutions
from tests.experiments.workflow.world import SIM, rates_table

SHOWN = "Answer: 42"
VALUES = {
    "instruction": "",
    "feedback": "It is wrong.",
    "entry_point": "f",
    "wrong": "a test failed",
    "form": "",
    "analysis": SHOWN,
    "solution": SHOWN,
    "solutions": f"A:\n{SHOWN}\n\nB:\nAnswer: 43",
    **dict.fromkeys(("problem", "input"), f"What is 6 * 7?\n\nSolution so far:\n{SHOWN}"),
}


def test_every_operator_has_a_phrase_and_rates_that_the_docs_have():
    assert SIM.simulated is not None
    assert PROMPTS.keys() == OPERATORS.keys() == SIM.simulated.operators.keys()
    page = (Path(__file__).parents[3] / "docs/workflows.md").read_text(encoding="utf-8")
    assert rates_table() in page
    assert f"tries {len(small_programs())} small programs" in page


@pytest.mark.parametrize("name", PROMPTS)
def test_a_phrase_stands_in_the_prompt_of_its_operator_and_in_no_other(name):
    having = [
        other for other, operator in OPERATORS.items() if PROMPTS[name]["phrase"] in operator.prompt
    ]
    assert having == [name]


@pytest.mark.parametrize("name", PROMPTS)
def test_the_solutions_of_a_real_prompt_are_found(name):
    operator = OPERATORS[name]
    if PROMPTS[name]["role"] in ("corrects", "checks", "chooses") or name == "Programmer":
        text = operator.fill_prompt(**VALUES | {"problem": "What is 6 * 7?"})
    else:
        text = operator.fill_prompt(**VALUES)
    hint = "\n".join(operator.hints.values())
    wanted = [SHOWN, "Answer: 43"] if PROMPTS[name]["role"] == "chooses" else [SHOWN]
    for asked in (text, f"{hint}\n\n{text}"):
        assert operator_of(asked) == name
        assert solutions(name, asked) == wanted


def test_a_first_call_is_shown_no_solution():
    problem = {**VALUES, **dict.fromkeys(("problem", "input"), "What is 6 * 7?")}
    for name in ("Custom", "AnswerGenerate", "CustomCodeGenerate"):
        assert solutions(name, OPERATORS[name].fill_prompt(**problem)) == []
    text = OPERATORS["Programmer"].fill_prompt(**problem | {"analysis": "None"})
    assert solutions("Programmer", text) == []
    again = AGAIN.format(asked=OPERATORS["AnswerGenerate"].fill_prompt(**VALUES), reply="forty-two")
    assert solutions("AnswerGenerate", again) == [SHOWN]
