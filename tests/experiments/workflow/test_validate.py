"""What is refused before a token is spent, by code and line; and what is not."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.workflow import static
from experiments.workflow.bound import maybe_unbound
from experiments.workflow.broker import Ending
from experiments.workflow.find import find
from experiments.workflow.program import OUTCOMES, Diagnostic, Refused, outcome_of
from tests.experiments.workflow.theatre import HEAD, program

FIRST = HEAD.count("\n") + 1
"""The line of the first statement of __call__ in `program`."""
AFLOW = """\
from typing import Literal
import workspace.MATH.workflows.template.operator as operator
import workspace.MATH.workflows.round_7.prompt as prompt_custom
from scripts.async_llm import create_llm_instance
from scripts.evaluator import DatasetType


class Workflow:
    def __init__(self, name: str, llm_config, dataset: DatasetType) -> None:
        self.name = name
        self.dataset = dataset
        self.llm = create_llm_instance(llm_config)
        self.custom = operator.Custom(self.llm)
        self.programmer = operator.Programmer(self.llm)
        self.sc_ensemble = operator.ScEnsemble(self.llm)

    async def __call__(self, problem: str):
        \"\"\"Solutions by two ways, and a vote.\"\"\"
        solutions = []
        for _ in range(3):
            solution = await self.custom(input=problem, instruction=prompt_custom.SOLVE)
            solutions.append(solution['response'])
        code = await self.programmer(problem=problem, analysis=solutions[0])
        if code['output']:
            solutions.append(code['output'])
        best = await self.sc_ensemble(solutions=solutions, problem=problem)
        return best['response'], self.llm.get_usage_summary()["total_cost"]
"""
METAGPT = """\
from typing import Literal
import metagpt.ext.aflow.scripts.optimized.HumanEval.workflows.template.operator as operator
import metagpt.ext.aflow.scripts.optimized.HumanEval.workflows.round_1.prompt as prompt_custom
from metagpt.provider.llm_provider_registry import create_llm_instance
from metagpt.utils.cost_manager import CostManager

DatasetType = Literal["HumanEval", "MBPP", "GSM8K", "MATH", "HotpotQA", "DROP"]


class Workflow:
    def __init__(self, name: str, llm_config, dataset: DatasetType) -> None:
        self.name = name
        self.dataset = dataset
        self.llm = create_llm_instance(llm_config)
        self.llm.cost_manager = CostManager()
        self.custom_code_generate = operator.CustomCodeGenerate(self.llm)
        self.test = operator.Test(self.llm)

    async def __call__(self, problem: str, entry_point: str):
        solution = await self.custom_code_generate(problem, entry_point, instruction="")
        code = solution['response']
        tested = await self.test(problem=problem, solution=code, entry_point=entry_point)
        if not tested['result']:
            solution = await self.custom_code_generate(problem, entry_point, tested['solution'])
        return solution['response'], self.llm.cost_manager.total_cost
"""
SEED = """\
class Workflow:
    def __init__(self, name: str, llm_config, dataset):
        self.name = name
        self.dataset = dataset
        self.llm = create_llm_instance(llm_config)
        self.answer_generate = operator.AnswerGenerate(self.llm)

    async def __call__(self, problem: str):
        solution = await self.answer_generate(input=problem)
        return solution['answer'], 0.0
"""
ATTEMPTS = """\
answer = ''
for attempt in range(2):
    draft = await self.custom(input=problem if attempt == 0 else refined, instruction='go')
    review = await self.review(problem=problem, solution=draft['response'])
    answer = draft['response']
    if review['review_result']:
        break
    refined = review['feedback']
return answer, 0
"""

CUSTOM = "r = await self.custom(input=problem, instruction='a')\n"
REVIEW = "r = await self.review(problem=problem, solution='s')\n"


def errors(report):
    return [(item.code, item.line) for item in report.diagnostics if item.level == "error"]


@pytest.mark.parametrize(
    ("text", "prompts"),
    [(AFLOW, {"SOLVE": "x"}), (METAGPT, {}), (SEED, {}), (f"```python\n{SEED}```", {})],
)
def test_published_programs_pass(theatre, text, prompts):
    report = theatre.validate(text, prompts=prompts)
    assert report.outcome is Ending.OK and not report.diagnostics


def test_the_account_has_three_names_and_a_maybe_unbound_one_is_valid(theatre):
    ways = ("get_usage_summary()['total_cost']", "usage_tracker.get_summary()['total_cost']")
    for way in (*ways, "cost_manager.total_cost"):
        assert theatre.validate(program(f"return 'x', self.llm.{way}")).outcome is Ending.OK
    report = theatre.validate(program(ATTEMPTS))
    assert report.outcome is Ending.OK
    (item,) = report.diagnostics
    assert (item.code, item.level, item.line) == ("maybe_unbound", "warning", FIRST + 2)
    assert report.calls["fail"] == ["Custom", "Review"] * 2


ARGUMENTS = ("operator_arguments", 0)
BODIES = {
    # what the ancestor's programs died of
    "AttributeError": ("r = await self.test(problem)\nreturn 'x', 0", "unknown_attribute", 0),
    "NameError": ("return solutoin, 0", "dry_run", 0),
    "TypeError": (f"{CUSTOM}return r + 'x', 0", "dry_run", 1),
    "UnboundLocalError": (
        f"{REVIEW}if 'needs work' in r['feedback']:\n    revised = 'x'\nreturn revised, 0",
        "dry_run",
        3,
    ),
    "SyntaxError": ("return (problem, 0", "syntax", 0),
    "KeyError": ("d = {}\nreturn d['answer'], 0", "dry_run", 1),
    "key of a result": (f"{CUSTOM}return r['answer'], 0", "unknown_key", 1),
    "input": ("x = input()\nreturn x, 0", "name", 0),
    # the rows of the table
    "import os": ("import os\nreturn 'x', 0", "import", 0),
    "from os": ("from os import path\nreturn 'x', 0", "import", 0),
    "asyncio member": (
        "import asyncio\nawait asyncio.create_subprocess_shell('x')\nreturn 'x', 0",
        "import",
        1,
    ),
    "from asyncio": ("from asyncio import open_connection\nreturn 'x', 0", "import", 0),
    "stdlib operator": ("import operator\nreturn 'x', 0", "import", 0),
    "eval": ("return eval('1'), 0", "name", 0),
    "getattr": ("return getattr(self, 'x'), 0", "name", 0),
    "dunder": ("return str(self.__class__), 0", "name", 0),
    "dunder name": ("return __builtins__, 0", "name", 0),
    "patched operator": ("operator.Custom = None\nreturn 'x', 0", "name", 0),
    "patched call": ("operator.Custom.go = None\nreturn 'x', 0", "name", 0),
    "unknown operator": ("a = operator.SelfAsk(self.llm)\nreturn 'x', 0", "unknown_operator", 0),
    "no client": ("a = operator.ScEnsemble()\nreturn 'x', 0", *ARGUMENTS),
    "missing argument": ("await self.custom(input=problem)\nreturn 'x', 0", *ARGUMENTS),
    "unknown argument": (CUSTOM.replace("'a'", "'a', mode=1") + "return 'x', 0", *ARGUMENTS),
    "too many": ("await self.answer_generate(problem, 'a')\nreturn 'x', 0", *ARGUMENTS),
    "prompt": (
        "r = await self.custom(problem, prompt_custom.SOLVE)\nreturn r['response'], 0",
        "unknown_prompt",
        0,
    ),
    "attribute of an operator": ("x = self.custom.llm\nreturn 'x', 0", "unknown_attribute", 0),
    "unawaited": ("self.custom(input=problem, instruction='a')\nreturn 'x', 0", "not_awaited", 0),
    "unawaited result": (
        CUSTOM.replace("await ", "") + "return r['response'], 0",
        "not_awaited",
        0,
    ),
    "unawaited return": ("return self.custom(input=problem, instruction='a'), 0", "not_awaited", 0),
    "a key gathered": (
        "import asyncio\n"
        "a, b = await asyncio.gather(self.custom(problem, 'a'), self.answer_generate(problem))\n"
        "return a['response'] + b['response'], 0",
        "unknown_key",
        2,
    ),
    "a key in a list": (
        "import asyncio\n"
        "rs = await asyncio.gather(*[self.answer_generate(problem) for _ in '12'])\n"
        "texts = [r['response'] for r in rs]\nreturn texts[0], 0",
        "unknown_key",
        2,
    ),
    "no pair": ("return 'x'", "return", 0),
    "one in a tuple": ("return ('x',)", "return", 0),
    "three": ("return 'x', 0, 1", "return", 0),
    "None": ("return None, 0", "return", FIRST and -1),
    "a text as cost": ("return 'x', 'free'", "return", -1),
    "nothing": ("x = 1", "return", -1),
    "no end": ("while True:\n    pass", "dry_run", None),
    "no end of calls": (
        f"while True:\n    {REVIEW}    if r['review_result']:\n        break\nreturn 'x', 0",
        "dry_run",
        None,
    ),
    "await outside": (f"def f():\n    {CUSTOM}return 'x', 0", "syntax", None),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_wrong_has_a_code_and_a_line(theatre, name):
    body, code, line = BODIES[name]
    report = theatre.validate(program(body))
    outcome = next(outcome for outcome, codes in OUTCOMES.items() if code in codes)
    assert report.outcome is outcome, report.diagnostics
    found = [at for found, at in errors(report) if found == code]
    assert found, report.diagnostics
    if line is not None:
        assert found[0] == FIRST + line
    lines = [item.line for item in report.diagnostics]
    assert lines == sorted(lines)


CLASSES = {
    "no_class": "class Flow:\n    pass\n",
    "no_call": "class Workflow:\n    def __init__(self, name, llm_config, dataset): pass\n",
    "not_async": SEED.replace("async def", "def").replace("await ", ""),
    "signature": SEED.replace("problem: str)", "problem: str, entry_point, test)"),
    "signature of another name": SEED.replace("problem: str)", "question)").replace(
        "input=problem", "input=question"
    ),
    "signature of no problem": SEED.replace("(self, problem: str)", "(self)").replace(
        "input=problem", "input=''"
    ),
    "signature of one": SEED.replace("name: str, llm_config, dataset", "llm_config"),
    "signature of four": SEED.replace("llm_config, dataset", "llm_config, dataset, extra"),
}


@pytest.mark.parametrize("code", CLASSES)
def test_a_class_that_breaks_the_contract_is_refused(theatre, code):
    report = theatre.validate(CLASSES[code])
    assert report.outcome is Ending.CONTRACT_ERROR
    assert code.partition(" ")[0] in [found for found, _ in errors(report)]
    assert report.calls is None


@pytest.mark.parametrize(
    "text",
    [
        SEED.replace("problem: str)", "problem: str, entry_point)"),
        SEED.replace("problem: str)", "problem, entry_point='', test=None)"),
        SEED.replace("problem: str)", "problem, *, entry_point)"),
        SEED.replace("problem: str)", "problem, **others)"),
        SEED.replace("problem: str)", "entry_point, problem)"),
        SEED.replace("name: str, llm_config, dataset", "name, *dataset, llm_config=None"),
    ],
)
def test_other_signatures_that_can_be_bound_are_legal(theatre, text):
    assert theatre.validate(text).outcome is Ending.OK


@pytest.mark.parametrize(
    "body, line, times",
    [
        ("return float('needs work' + (await self.custom(problem, 'a'))['response']), 0", 0, 3),
        ("return [][0], 0", 0, 2),
        ("return str(1 / 0), 0", 0, 2),
        ("assert False", 0, 2),
        ("raise SystemExit", 0, 2),
        ("x = 'a' * 10**10\nreturn x[0], 0", 0, 2),
        # this fails on empty texts alone
        (f"{CUSTOM}return {{r['response'][0]: 'x'}}[r['response'][0]], 0", 1, 1),
    ],
)
def test_what_may_be_right_in_life_is_a_warning(theatre, body, line, times):
    report = theatre.validate(program(body))
    assert report.outcome is Ending.OK
    found = [(item.code, item.line) for item in report.diagnostics]
    assert found == [("fragile", FIRST + line)] * times


@pytest.mark.parametrize(
    "body",
    [
        "import asyncio\njobs = [self.custom(problem, str(n)) for n in range(3)]\n"
        "rs = await asyncio.gather(*jobs)\nreturn rs[0]['response'], 0",
        "import asyncio\njobs = []\nfor n in '12':\n    jobs.append(self.custom(problem, n))\n"
        "for r in await asyncio.gather(*jobs):\n    last = r\nreturn last['response'], 0",
        "c = self.custom(problem, 'a')\nr = await c\nreturn r['response'], 0",
        "from asyncio import gather, wait_for\nr = await wait_for(self.custom(problem, 'a'), 5)\n"
        "return r['response'], 0",
        "r = await operator.Custom(self.llm)(problem, instruction='a')\nreturn r['response'], 0",
        "r = await self.custom(problem, 'a')\nr['note'] = 'x'\nreturn r['note'], 0",
        "r = await self.custom(problem, 'a')\nreturn r.get('answer') or r['response'], 0",
        "input = problem + '!'\nr = await self.custom(input=input, instruction='a')\n"
        "return r['response'], 0",
        "import re, json, math, string, collections, itertools, functools, statistics\n"
        "from fractions import Fraction\nfrom decimal import Decimal\nimport random\n"
        "return str(random.random()), 0",
        "r = await self.sc_ensemble(['a', 1, None], problem)\nreturn r['response'], 0",
        "self.count = 1\nself.count += 1\nreturn self.count, 0",
        "return 42, 0.0",
    ],
)
def test_what_works_is_not_refused(theatre, body):
    report = theatre.validate(program(body))
    assert report.outcome is Ending.OK, report.diagnostics


def test_the_gravest_outcome_wins(theatre):
    report = theatre.validate(program("import os\nself.revised(1)\nreturn eval('1')"))
    assert report.outcome is Ending.FORBIDDEN
    assert {"import", "name", "unknown_attribute"} <= {code for code, _ in errors(report)}
    assert report.calls is None


@pytest.mark.parametrize(
    "text",
    [
        program("return 'x', 0") + "# " + "x" * 17_000,
        program("x = [" + "1," * 2500 + "]\nreturn 'x', 0"),
    ],
)
def test_what_is_too_large_is_forbidden(theatre, text):
    report = theatre.validate(text)
    assert report.outcome is Ending.FORBIDDEN and errors(report)[0][0] == "size"


@pytest.mark.parametrize(
    "text",
    [
        "class Workflow" + "(" * 9000,
        "class Workflow:\n    x = " + "-" * 9000 + "1\n",
        "class Workflow:\n    x = " + "+".join("1" * 1 for _ in range(900)) + "\n",
        "class Workflow:\n    x = '\0'\n",
        "class Workflow:\n    x = '\ud800'\n",
        "import " + "a" * 15_000,
        "class Workflow:\n" + "".join("  " * n + f"class A{n}:\n" for n in range(1, 90)),
    ],
)
def test_what_a_parser_chokes_on_is_a_verdict(theatre, text):
    verdicts = (Ending.SYNTAX_ERROR, Ending.CONTRACT_ERROR, Ending.FORBIDDEN)
    assert theatre.validate(text).outcome in verdicts


@given(st.lists(st.sampled_from(list(OUTCOMES[Ending.CONTRACT_ERROR] + ("import", "fragile")))))
def test_an_outcome_is_that_of_the_gravest_error(codes):
    outcome = outcome_of([Diagnostic(1, code, "") for code in codes])
    if "import" in codes:
        assert outcome is Ending.FORBIDDEN
    elif set(codes) <= {"fragile"}:
        assert outcome is Ending.OK
    else:
        assert outcome is Ending.CONTRACT_ERROR


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("if a:\n    x = 1\nreturn x", ["x"]),
        ("if a:\n    x = 1\nelse:\n    x = 2\nreturn x", []),
        ("if a:\n    x = 1\nelse:\n    return 0\nreturn x", []),
        ("for i in a:\n    x = i\nreturn x, i", ["x", "i"]),
        ("while True:\n    x = 1\n    if a:\n        break\nreturn x", []),
        ("try:\n    x = 1\nexcept ValueError:\n    pass\nreturn x", ["x"]),
        ("try:\n    x = 1\nexcept ValueError:\n    raise\nreturn x", []),
        ("try:\n    x = 1\nfinally:\n    y = 2\nreturn x, y", []),
        ("with a as x:\n    y = x\nreturn x, y", []),
        ("return [x for x in a], {y: z for y, z in a}", []),
        ("x += 1\nreturn x", ["x"]),
        ("global x\nreturn x", []),
        ("x = 1\ndel x\nreturn x", ["x"]),
        ("for i in a:\n    x = 1\nelse:\n    x = 2\nreturn x", []),
        ("match a:\n    case 1:\n        x = 1\n    case _:\n        x = 2\nreturn x", []),
        ("match a:\n    case 1:\n        x = 1\nreturn x", ["x"]),
        ("import json as x\nreturn x, print", []),
        ("def g():\n    return x\nx = 1\nreturn g()", []),
    ],
)
def test_paths_are_followed(body, names):
    source = "def f(a):\n" + "\n".join(f"    {line}" for line in body.split("\n"))
    compile(source, "f", "exec")
    assert [name for _, name in maybe_unbound(ast.parse(source).body[0])] == names


@given(st.text(alphabet="class Workflow:\n\t()[]{}'\"\\=.,x1 -#@*", max_size=200))
def test_any_text_has_a_verdict(text):
    try:
        found = find(text)
    except Refused as refused:
        assert refused.diagnostic.line >= 1
        return
    tree, diagnostics = static.read(found)
    assert tree is not None or diagnostics


def test_every_code_of_the_docs_is_one_of_ours():
    text = Path(__file__).parents[3].joinpath("docs", "workflows.md").read_text(encoding="utf-8")
    for codes in OUTCOMES.values():
        for code in codes:
            assert f"`{code}`" in text, code
