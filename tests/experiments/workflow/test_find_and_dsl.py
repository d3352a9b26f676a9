"""Where the program is in a completion, and what the short form means."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.workflow import dsl
from experiments.workflow.broker import Ending
from experiments.workflow.find import find
from experiments.workflow.program import Refused, outcome_of
from tests.experiments.workflow.theatre import SUM, Answering, program

PYTHON = program("return problem, 0")
LINE = "[AnswerGenerate, Programmer] -> ScEnsemble -> Review ? Revise : done"


def refused(text, form=None):
    with pytest.raises(Refused) as error:
        find(text, form)
    diagnostic = error.value.diagnostic
    return outcome_of([diagnostic]), diagnostic.code


@pytest.mark.parametrize(
    ("completion", "source", "offset"),
    [
        (PYTHON, PYTHON, 0),
        (f"import json\n{PYTHON}", f"import json\n{PYTHON}", 0),
        (f"Here is a program:\n\n{PYTHON}", PYTHON, 2),
        (f"Sure\n{PYTHON}", PYTHON, 1),
        (f"# mine\nTURNS = 3\n\n{PYTHON}", f"# mine\nTURNS = 3\n\n{PYTHON}", 0),
        (f"Here:\n```python\n{PYTHON}```\nIt is good.", PYTHON, 2),
        (f"<think>\nclass Workflow: no\n</think>\n```\n{PYTHON}```", PYTHON, 4),
        (f"```python\nprint(1)\n```\n\n```py\n{PYTHON}```", PYTHON, 5),
        (f"~~~\n{PYTHON}~~~", PYTHON, 1),
        (f"```python\n{PYTHON}", PYTHON, 1),
    ],
)
def test_the_class_is_found(completion, source, offset):
    read = find(completion)
    read = dataclasses.replace(read, source=read.source.rstrip())
    assert (read.source, read.form, read.offset) == (source.rstrip(), "python", offset)


@pytest.mark.parametrize("mark", ["<think>", "</think>", "<thought>x</thought>"])
@pytest.mark.parametrize("form", ["{}", "So:\n```python\n{}```\nDone."])
def test_marks_of_thinking_in_a_text_of_the_program_are_none(mark, form):
    text = program(f"return '{mark}', 0")
    assert find(form.format(text)).source.rstrip() == text.rstrip()
    thought = f"<think>I could return '{mark}'</think>\n"
    assert find(thought + form.format(PYTHON)).source.rstrip() == PYTHON.rstrip()


def test_fences_and_drafts_in_a_text_are_none_and_twelve_operators_are_legal():
    text = program('x = """\n```python\nprint(1)\n```\n"""\nreturn x, 0')
    assert find(text).source.rstrip() == text.rstrip()
    assert refused(f"<think>\n{PYTHON}")[1] == "no_program"
    assert refused(f"<think>\n```python\n{PYTHON}```\n")[1] == "no_program"
    fenced = "class Workflow:\n    text = (\n```\nno Python\n```\n"
    assert refused(fenced)[1] == "no_program"
    assert find("Custom -> (Review -> Revise) * 5 -> Format").form == "dsl"


@pytest.mark.parametrize(
    "text", [LINE, f"\n{LINE}\n", f"```\n{LINE}\n```", f"I say:\n```dsl\n{LINE}\n```"]
)
def test_a_dsl_line_is_found(text):
    read = find(text)
    assert (read.source, read.form) == (LINE, "dsl")
    assert read.operators == ("AnswerGenerate", "Programmer", "ScEnsemble", "Review", "Revise")


@pytest.mark.parametrize(
    "text",
    [
        "", "  \n", "I cannot do that.", "def f():\n    pass\n", "<think>class Workflow",
        f"```python\n{PYTHON}```\n```python\n{PYTHON}```",
        f"```\n{LINE}\n```\n```python\n{PYTHON}```", "```python\nprint(1)\n```",
        f"{PYTHON}\n{PYTHON}", f"Use this: {LINE} as I said", "Programmer's 1. 11. 1.",
        "Programmer -> Custom -> Revise *", "Custom -> 12", "12", "Custom ->", "-> Custom",
        "[Custom", "Custom -> Review ? Revise", "(Custom) * 6", "(Custom) * 0", "Custom * 3",
        "done",
    ],
)  # fmt: skip
def test_what_is_no_program_is_a_syntax_error(text):
    outcome, code = refused(text)
    assert outcome is Ending.SYNTAX_ERROR and code in ("no_program", "syntax")


@pytest.mark.parametrize("text", [LINE, PYTHON])
def test_the_other_form_is_refused_where_one_is_asked_for(text):
    form = "python" if text is LINE else "dsl"
    assert refused(text, form)[0] is Ending.SYNTAX_ERROR


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[Custom, Custom]", "operator_arguments"),
        ("[Custom, Custom] -> Format", "operator_arguments"),
        ("Review -> Revise", "operator_arguments"),
        ("[Review, Custom] -> ScEnsemble", "operator_arguments"),
        ("(Format) * 2", "operator_arguments"),
        ("Custom -> Format ? Revise : done", "operator_arguments"),
        ("Custom -> SelfAsk", "unknown_operator"),
        ("custom", "unknown_operator"),
    ],
)
def test_what_parses_and_cannot_work_is_a_contract_error(text, code):
    assert refused(text) == (Ending.CONTRACT_ERROR, code)


@pytest.mark.parametrize(
    "text",
    [
        " -> ".join(["Custom"] * 13), "((Custom) * 5) * 3", " -> ".join(["Custom"] * 10_000),
        "[" * 500 + "Custom" + "]" * 500, "(" * 10_000,
    ],
)  # fmt: skip
def test_what_is_too_large_is_forbidden(text):
    assert refused(text) == (Ending.FORBIDDEN, "size")


@pytest.mark.parametrize("before", ["", "Custom -> ", "Review ? Revise : done -> "])
@pytest.mark.parametrize("close", [")*1", "]"])
def test_brackets_may_be_as_deep_as_the_limit_behind_arrows_too(before, close):
    open_ = before + {")*1": "(", "]": "["}[close]
    assert dsl.parse(open_ * dsl.DEEPEST + "Custom" + close * dsl.DEEPEST)
    with pytest.raises(Refused, match=f"more than {dsl.DEEPEST} brackets"):
        dsl.parse(open_ * (dsl.DEEPEST + 1) + "Custom" + close * (dsl.DEEPEST + 1))


MAKER = st.sampled_from(dsl.MAKERS)
LATER = st.sampled_from(["Custom", "Format", "Review", "Revise", "Programmer", "MdEnsemble"])


@st.composite
def lines(draw):
    """A DSL text that is legal by construction, of at most 12 operators."""
    first = draw(MAKER)
    if draw(st.booleans()):
        first = f"[{first}, {draw(MAKER)}] -> {draw(st.sampled_from(dsl.ENSEMBLES))}"
    elif draw(st.booleans()):
        first = f"({first}) * {draw(st.integers(1, 3))} -> ScEnsemble"
    rest = draw(st.lists(LATER, max_size=3))
    if draw(st.booleans()):
        other = draw(st.sampled_from(["done", "Format", "Custom -> Revise"]))
        rest.append(f"{draw(st.sampled_from(dsl.CHECKS))} ? {draw(LATER)} : {other}")
    return " -> ".join([first, *rest])


@given(text=lines())
def test_what_a_line_compiles_to_is_found_again_and_says_the_same_operators(text):
    read = find(text)
    compiled = find(read.python)
    assert compiled.form == "python" and compiled.source == read.python.rstrip()


@pytest.mark.parametrize(
    ("text", "passing", "failing"),
    [
        (LINE, 4, 5),
        ("Custom", 1, 1),
        ("(AnswerGenerate) * 3 -> ScEnsemble", 4, 4),
        ("Custom -> (Review ? Revise : done) * 2", 2, 5),
        ("Custom -> Review ? Revise -> Format : Custom", 3, 4),
        ("CustomCodeGenerate -> Test ? Revise : done -> Format", 2, 4),
        ("[Custom -> Review ? Revise : done, (Custom) * 2] -> MdEnsemble -> Format", 6, 7),
        ("[[Custom, Custom] -> ScEnsemble, Programmer] -> MdEnsemble", 5, 5),
    ],
)
def test_a_line_runs_as_it_reads(theatre, text, passing, failing):
    report = theatre.validate(text)
    assert report.outcome is Ending.OK, report.diagnostics
    assert not report.diagnostics
    assert (len(report.calls["pass"]), len(report.calls["fail"])) == (passing, failing)
    again = theatre.validate(report.program.python)
    assert again.outcome is Ending.OK and not again.diagnostics
    assert again.calls == report.calls


def test_revise_takes_the_last_feedback_and_custom_the_problem(theatre):
    executor = Answering("<review_result>False</review_result><feedback>too small</feedback>")
    assert theatre.ask("Programmer -> Custom -> Review -> Revise", executor)["outcome"] == "ok"
    prompts = {asked.operator: asked.messages[0]["content"] for asked in executor.questions}
    assert SUM.prompt in prompts["Custom"]
    assert "too small" in prompts["Revise"]
