"""The ten operators: what is declared, and what each makes of any reply."""

import importlib
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.workflow import operators, operators_command
from experiments.workflow.broker import COMPUTE
from experiments.workflow.executor import Answer
from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.base import field_of, place_of
from experiments.workflow.operators.review import read_verdict
from experiments.workflow.problem import Problem
from tests.conftest import ROOT
from tests.experiments.workflow.theatre import SUM, Answering

CODE = Problem("c", "code", "Write double(x).", "double", ("assert double(2) == 4",))
ARGUMENTS = {
    "input": "What is 6 times 7?", "instruction": "Answer.", "problem": "What is 6 times 7?",
    "entry_point": "double", "analysis": "None", "solution": "41",
    "solutions": ["one 41", "one 42", "one 43"], "feedback": "wrong", "test_loop": 3, "mode": None,
}  # fmt: skip
GOOD = {
    "AnswerGenerate": "<thought>six</thought><answer>42</answer>",
    "CustomCodeGenerate": "```python\ndef double(x):\n    return 2 * x\n```",
    "ScEnsemble": "<solution_letter>A</solution_letter>",
    "MdEnsemble": "B",
    "Programmer": "```python\ndef solve():\n    return 6 * 7\n```",
    "Test": "```python\ndef double(x):\n    return 2 * x\n```",
    "Review": "<review_result>True</review_result><feedback>fine</feedback>",
}
REPLIES = {
    "no tags": "I think it is 42.", "wrong letter": "Solution Z", "False": "False",
    "nested tags": "<answer><answer>42</answer></answer>"
    "<review_result><review_result>False</review_result></review_result>",
    "less than": "<answer>if a < b: 42</answer>", "open tag": "<answer>42",
    "thinking only": "<think>hmm", "empty": "", "blank": " \n", "surrogate": "\ud800",
}  # fmt: skip


def arguments(name):
    return {argument.name: ARGUMENTS[argument.name] for argument in OPERATORS[name].arguments}


def check_declared(name, result):
    assert list(result) == list(OPERATORS[name].returns)
    for key, kind in OPERATORS[name].returns.items():
        assert type(result[key]).__name__ == kind, key
    assert result["ok"] == (not result["error"])


def test_there_are_ten_in_the_published_order_as_in_the_docs_and_prompts_ask_for_all():
    assert list(OPERATORS) == operators.ORDER
    assert len(OPERATORS) == 10
    text = (ROOT / "docs" / "workflows.md").read_text(encoding="utf-8")
    assert operators_command.markdown() in text
    for operator in OPERATORS.values():
        for argument in operator.arguments:
            shown = f"{{{argument.name}}}" in operator.prompt
            assert shown or argument.name in ("test_loop", "mode", "entry_point"), operator.name


def called(theatre, name, reply):
    """The result of a call on a problem of its domain, which is as declared, and the broker."""
    problem = CODE if "code" in OPERATORS[name].domains[:1] else SUM
    result, broker = theatre.call(name, arguments(name), reply, problem=problem)
    check_declared(name, result)
    return result, broker


@pytest.mark.parametrize("name", operators.ORDER)
def test_a_good_reply_is_read(theatre, name):
    result, _ = called(theatre, name, GOOD.get(name, "42"))
    assert result["ok"], result["error"]


@pytest.mark.parametrize("name", operators.ORDER)
def test_every_declared_key_is_there_whatever_the_reply(theatre, name):
    for kind, reply in REPLIES.items():
        result, broker = called(theatre, name, reply)
        assert broker.model_calls <= OPERATORS[name].max_model_calls, kind
        if not reply.strip() and broker.model_calls:
            assert not result["ok"] or name == "Test", kind


def test_an_answer_is_asked_for_again_and_a_tie_that_cannot_be_read_is_the_first(theatre):
    result, broker = theatre.call("AnswerGenerate", {"input": "?"}, "42", "<answer>43</answer>")
    assert (result["answer"], result["ok"], broker.model_calls) == ("43", True, 2)
    result, _ = theatre.call("AnswerGenerate", {"input": "?"}, "It is 42.")
    assert (result["answer"], result["ok"]) == ("It is 42.", False)
    call = {"solutions": ["it is 41", "it is 42"], "problem": "?"}
    result, _ = theatre.call("ScEnsemble", call, "none of them", problem=SUM)
    assert (result["response"], result["ok"]) == ("it is 41", False)


def test_custom_keeps_instruction_and_input_apart_and_format_its_text(theatre):
    result, _ = theatre.call("Custom", {"input": "{instruction}", "instruction": "{input}"}, "x")
    assert OPERATORS["Custom"].fill_prompt(input="b{instruction}", instruction="a{input}") == (
        "a{input}\n\n---\n\nb{instruction}"
    )
    assert result["response"] == "x"
    result, _ = theatre.call("Format", {"problem": "?", "solution": "so 42", "mode": None}, "42")
    assert result["solution"] == result["response"] == "42"


def test_generated_code_is_kept_whole(theatre):
    code = (
        "import math\nLIMIT: int = 3\nLIMIT += 1\n\n\nasync def go():\n    pass\n\n\n"
        "def double(x):\n    return 2 * x\n\n\nprint(double(2))"
    )
    call, reply = arguments("CustomCodeGenerate"), f"Here:\n```python\n{code}\n```"
    result, _ = theatre.call("CustomCodeGenerate", call, reply, problem=CODE)
    assert result["response"] == code and result["ok"]


@pytest.mark.parametrize(
    ("solutions", "domain", "chosen"),
    [
        (["x is 42", "it is 41", "so 42.0"], "math", "x is 42"),
        ([r"\boxed{\frac12}", "0.5", "3"], "math", r"\boxed{\frac12}"),
        (["Paris", "The answer is Lyon", "paris."], "qa", "Paris"),
        (["only 1"], "math", "only 1"),
        (["", "7"], "math", "7"),
        (["def f(): 1", "def f(): 2", "```\ndef f(): 1\n```"], "code", "def f(): 1"),
    ],
)
def test_votes_are_counted_by_program(theatre, solutions, domain, chosen):
    call = {"solutions": solutions, "problem": ""}
    result, broker = theatre.call("ScEnsemble", call, "Z", problem=Problem("v", domain, "?"))
    assert (result["response"], broker.model_calls) == (chosen, 0)
    assert result["ok"]


@pytest.mark.parametrize(
    "reply",
    [
        "Solution B", "B", "(b)", "B.", "<solution_letter>B</solution_letter>",
        "The best is option B, clearly",
    ],
)  # fmt: skip
def test_a_tie_is_for_the_model_in_any_spelling(theatre, reply):
    call = {"solutions": ["it is 41", "it is 42"], "problem": "?"}
    result, broker = theatre.call("ScEnsemble", call, reply, problem=SUM)
    assert result["ok"] and broker.model_calls == 1
    assert result["response"] in call["solutions"]


def test_no_solution_at_all_is_no_exception(theatre):
    for name in ("ScEnsemble", "MdEnsemble"):
        for solutions in ([], ["", " "]):
            result, broker = theatre.call(name, {"solutions": solutions, "problem": "?"}, "A")
            check_declared(name, result)
            assert not result["ok"] and broker.model_calls == 0


def test_md_ensemble_maps_letters_back_through_each_order(theatre):
    """The executor names the letter of the good solution wherever the order has put it."""
    letters = []

    async def reply(question):
        text = question.messages[0]["content"]
        letters.append(text[text.index("the good one") - 3])
        return Answer(letters[-1])

    call = {"solutions": ["bad", "the good one", "bad"], "problem": "?"}
    result, _ = theatre.call("MdEnsemble", call, Answering(reply), problem=SUM)
    assert result["solution"] == "the good one" and len(letters) == 5
    assert len(set(letters)) > 1


def test_programmer_runs_solve_and_returns_its_value(theatre):
    reply = "```\nfrom fractions import Fraction\ndef solve():\n    return Fraction(1, 3)\n```"
    result, broker = theatre.call("Programmer", arguments("Programmer"), reply)
    assert (result["output"], result["ok"], broker.model_calls) == ("1/3", True, 1)
    assert "Fraction(1, 3)" in result["code"]


def test_programmer_is_told_what_failed_and_gives_up_after_three(theatre):
    call = arguments("Programmer")
    wrong, right = (f"```\ndef solve():\n    return {value}\n```" for value in ("1 / 0", "5"))
    result, broker = theatre.call("Programmer", call, wrong, right)
    assert (result["output"], broker.model_calls) == ("5", 2)
    result, broker = theatre.call("Programmer", call, wrong)
    assert (result["output"], result["ok"], broker.model_calls) == ("", False, 3)
    assert "ZeroDivisionError" in result["error"]


@pytest.mark.parametrize(
    "body",
    ["while True: pass", "import socket; return socket.socket()", "open('/x', 'w')", "input()"],
)
def test_programmer_code_is_isolated(theatre, monkeypatch, body):
    monkeypatch.setattr("experiments.workflow.broker.COMPUTE", replace(COMPUTE, cpu_s=1))
    reply = f"```\ndef solve():\n    {body}\n```"
    result, _ = theatre.call("Programmer", arguments("Programmer"), reply)
    assert not result["ok"] and result["output"] == ""


def test_test_runs_the_public_tests_and_takes_a_correction(theatre):
    call = arguments("Test") | {"solution": "def double(x): return x"}
    right = "def double(x):\n    return 2 * x"
    result, broker = theatre.call("Test", call | {"solution": right}, "never", problem=CODE)
    assert (result["result"], broker.model_calls) == (True, 0)
    result, broker = theatre.call("Test", call, f"```\n{right}\n```", problem=CODE)
    assert (result["result"], result["solution"], broker.model_calls) == (True, right, 1)
    result, broker = theatre.call("Test", call, "no idea", problem=CODE)
    assert (result["result"], broker.model_calls) == (False, 3)


def test_test_asks_nobody_without_public_tests_and_cannot_be_forged(theatre):
    call = arguments("Test") | {"solution": "def decode(x): return x", "entry_point": "decode"}
    result, broker = theatre.call("Test", call, "x", problem=Problem("c", "code", "?", "decode"))
    assert (result["result"], result["ok"], broker.model_calls) == (False, False, 0)
    cheat = "class E:\n    def __eq__(self, other): return True\ndef double(x): return E()"
    call = arguments("Test") | {"solution": cheat, "test_loop": 0}
    result, _ = theatre.call("Test", call, "x", problem=CODE)
    assert result["result"] is False


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        ("<review_result>False</review_result>", False), ("False", False),
        ("false, since 6*7 is 42", False), ("**True**", True),
        ("<review_result> true </review_result><feedback>ok</feedback>", True), ("Truely no", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_review_is_a_bool(reply, result):
    assert read_verdict(reply) is result


def test_revise_asks_for_code_only_where_the_answer_is_code(theatre):
    assert "python" not in OPERATORS["Revise"].prompt
    reply = "So it is\n```python\ndef double(x): pass\n```"
    result, _ = theatre.call("Revise", arguments("Revise"), reply, problem=CODE)
    assert result["solution"] == "def double(x): pass"


@given(st.text(alphabet="<>/answer x\n", max_size=60))
def test_a_field_is_a_part_of_the_reply_without_its_tags(text):
    value = field_of("answer", text)
    assert value is None or "<answer>" not in value


@given(st.text(max_size=30), st.integers(1, 26))
def test_a_letter_is_one_of_the_shown(reply, n):
    place = place_of(reply, n)
    assert place is None or 0 <= place < n


def test_an_eleventh_operator_is_one_file(tmp_path, monkeypatch):
    """The child's stand-in, the broker and the table are made from the one declaration."""
    (tmp_path / "shout.py").write_text(
        "from experiments.workflow.operators.base import Argument, Operator\n"
        "async def play(arguments, desk, operator):\n"
        "    return {'response': (await desk.ask(operator.fill_prompt(**arguments))).upper()}\n"
        "OPERATOR = Operator('Shout', 'Says it loudly.', (Argument('input'),), {'response': 'str'},"
        " 'Say: {input}', play)\n"
    )
    monkeypatch.setattr(operators, "__path__", [*operators.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "experiments.workflow.operators.shout", raising=False)
    importlib.invalidate_caches()
    declared = operators.declared()
    monkeypatch.delitem(sys.modules, "experiments.workflow.operators.shout", raising=False)
    assert [*declared][-1] == "Shout" and len(declared) == 11
    assert declared["Shout"].returns == {"response": "str", "ok": "bool", "error": "str"}
