"""Code: how an answer becomes a program, that every reference passes, and that no forgery does."""

import ast
import dataclasses
import random

import pytest

from study.sandbox import tiers
from study.sandbox.grader import CANDIDATE
from study.sandbox.pool import Pool
from study.sandbox.tiers import Tier
from study.truth import Grader, score
from study.truth.code import blocks, head_of, programs
from tests.study.truth.forgeries import FORGERIES, QUICK, SLOW, UNENDING
from tests.study.truth.shared import item, official, together

PROMPT = '''import math
from typing import List


def poly(xs: list, x: float):
    """ Evaluates. """
    return sum(coeff * math.pow(x, power) for power, coeff in enumerate(xs))


def f(n: int) -> int:
    """ Twice the number.
    >>> f(2)
    4
    """
'''
CHECK = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate(0) == poly([0], 1)
    assert candidate(-3) == -6, "of " + str(candidate(1))
"""
TWICE = item("humaneval", "code", entry_point="f", code_prompt=PROMPT, tests=CHECK)


@pytest.fixture(scope="module")
def grader():
    slow = dataclasses.replace(CANDIDATE, cpu_s=30, wall_s=120.0)  # as a machine can be
    with Grader(2, limits=slow) as runner:
        yield runner


@pytest.fixture(scope="module")
def quick():
    with Grader(3, limits=QUICK) as runner:
        yield runner


class Landlocked(Grader):
    """A grader where there are no namespaces."""

    tier = Tier.LANDLOCK


@pytest.fixture(scope="module")
def landlocked():
    if fault := tiers.try_tier(Tier.LANDLOCK):
        pytest.skip(f"no Landlock here: {fault}")
    with Landlocked(1, limits=QUICK) as runner:
        yield runner


@pytest.fixture
def patience(monkeypatch):
    """Lets a grader wait for a forgery for as long as it needs: an unending one has half a second,
    and `test_each_end_has_a_word` ends one by its CPU time."""

    def limit(runner, name):
        if name in UNENDING:
            monkeypatch.setattr(runner, "limits", dataclasses.replace(QUICK, wall_s=0.5))

    return limit


def grade(runner, task, answer):
    return score([task], [answer], runner)[0]


@pytest.mark.parametrize(
    "answer",
    [
        "    return 2 * n\n",
        "\treturn 2 * n\n",
        "return 2 * n",
        "\n    return 2 * n\n\n\nprint(f(3))\n",
        "def f(n):\n    return 2 * n\n",
        "def f (n):\n    return 2 * n\n",
        "    def f(n):\n        return 2 * n\n",
        "from __future__ import annotations\ndef f(n: Unknown):\n    return 2 * n\n",
        "f = lambda n: 2 * n",
        "def factorial(n):\n    return n\n\ndef f(n):\n    return 2 * factorial(n)\n",
        "    def factorial(n):\n        return n\n    return 2 * factorial(n)\n",
        "Here it is:\n```python\ndef f(n):\n    return 2 * n\n```\nIt doubles.",
        "```\nreturn 2 * n\n```",
        "Double it\n```\nreturn 2 * n\n```",
        "    return 2 * n\n```\n",
        "return 2 * n\n```\nThat is it.\n```python\nprint(f(2))\n```",
        "def f(n):\n    return 2 * n\n```\nThat is it.",
        "def f(n):\n    return 2 * n\n```python\nprint(f(2))\n```",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\n"
        "class Two:\n    by: int = 2\ndef f(n):\n    return n * Two().by\n",
        "~~~py\ndef f(n):\n    return 2 * n",
        "```python\nprint(f(2))\n```\nand\n```python\ndef f(n):\n    return 2 * n\n```\n"
        "```python\nf(3)  # 6\n```",
        "```python\ndef f(n):\n    return 3\n```\nNo:\n```python\ndef f(n):\n    return 2 * n\n```",
        "def f(n: List) -> int:\n    return int(math.pow(2, 1)) * n if n else 0 * poly([1], 1)\n",
    ],
)
def test_an_answer_is_a_body_a_function_or_a_chat(grader, answer):
    result = grade(grader, TWICE, answer)
    assert (result.correct, result.outcome) == (True, "passed"), result


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("    return n\n", "failed"),
        ("def factorial(n):\n    return 2 * n\n", "failed"),  # the head of the problem is all
        ("def f(n):\n    return itertools.count()\n", "raised"),
        ("def f(n):\n    return 1 / 0\n", "raised"),
        ("def f(n):\n    return object()\n", "not_literal"),
        ("def f(:", "unparsable"),
        ("I do not know.", "unparsable"),
        ("raise ValueError\ndef f(n): return 2 * n", "raised"),
        ("def f(n):\n    raise SystemExit", "exited"),
        ("def f(n):\n    while True: pass", "timeout"),
        ("def f(n):\n    return [0] * 10**10", "memory"),
        ("def f(n):\n    return 'x' * 10**7", "overflow"),
        ("\0", "unparsable"),
        ("return '\ud800' + 1", "unparsable"),
        ('import os\nos.write(3, b\'{"end": "subclass", "text": ""}\\n\')', "forged"),
        ('import os\nos.write(3, b\'{"end": [], "text": {}}\\n\')', "forged"),
        ("import os\nos.write(3, b'[[[[\\n')", "forged"),
        ("x" * 60_000, "too_long"),
    ],
)
def test_each_end_has_a_word(quick, answer, outcome):
    result = grade(quick, TWICE, answer)
    assert (result.correct, result.outcome) == (False, outcome), result
    assert "\n" not in result.detail


def test_only_what_is_returned_counts(quick):
    assert grade(quick, TWICE, "").outcome == "failed"
    assert grade(quick, item("mine", "code", entry_point="f"), "def f(x): 1") is None
    task = item("mbpp", "code", entry_point="sum", tests="assert sum(10, 15) == 6")
    assert grade(quick, task, "def sum(a, b):\n    return 6").correct
    assert not grade(quick, task, "def total(a, b):\n    return 6").correct


def test_blocks_and_heads():
    assert blocks("a\n```py\nx = 1\n```\nb\n~~~\ny\n") == ["x = 1\n", "y\n"]
    assert head_of(TWICE) == PROMPT[: PROMPT.index("def f(")]
    plain = item("mbpp", "code", entry_point="g", tests="assert g() == 1")
    assert programs(plain, "def g(): return 1") == (("def g(): return 1",),)


@pytest.mark.parametrize(
    ("tests", "program", "outcome"),
    [
        # values that cross, by type
        ("assert f((1, 2)) == (1, 2) and type(f((1,))) is tuple", "def f(x): return x", "passed"),
        ("assert f({1: [2.5]}, key={3}) == [{1: [2.5]}, {3}]", "def f(x, key): return [x, key]",
         "passed"),
        ("import math\nassert math.isnan(f(float('nan')))", "def f(x): return x", "passed"),
        ("assert f(float('-inf')) == float('-inf')", "def f(x): return x", "passed"),
        ("assert f(complex('inf+nanj')).real == float('inf')", "def f(x): return x", "passed"),
        ("assert f(b'a', 1j, None, True) == (b'a', 1j, None, True)", "def f(*x): return x",
         "passed"),
        ("assert f(frozenset({1}), range(3), bytearray(b'z')) == (frozenset({1}), range(3), "
         "bytearray(b'z'))", "def f(*x): return x", "passed"),
        ("assert f('\\ud800') == '\\ud800'", "def f(x): return x", "passed"),
        ("assert f(10 ** 5000) == 10 ** 5000 + 1", "def f(x): return x + 1", "passed"),
        ("assert f(-(10 ** 5000)) == 1 - 10 ** 5000", "def f(x): return x + 1", "passed"),
        ("assert f([1, 'a', 2.5], str) == ['a'] and f([1], int) is not f",
         "def f(x, kind): return [part for part in x if isinstance(part, kind)]", "passed"),
        ("assert f(3) is int", "def f(x): return type(x)", "passed"),
        # an instance of a subclass is the value that it holds
        ("assert f('aab') == {'a': 2, 'b': 1} and type(f('')) is dict",
         "import collections\ndef f(x): return collections.Counter(x)", "passed"),
        ("assert f() == (1, 2) and type(f()) is tuple",
         "import collections\nP = collections.namedtuple('P', 'x y')\ndef f(): return P(1, 2)",
         "passed"),
        ("assert f() == 3 and type(f()) is int",
         "class I(int):\n    __eq__ = lambda s, o: True\ndef f(): return I(3)", "passed"),
        ("assert f() == 4", "class I(int):\n    __eq__ = lambda s, o: True\ndef f(): return I(3)",
         "failed"),
        # arguments are copies
        ("x = [3, 1]\nassert f(x) == [1, 3] and x == [3, 1]",
         "def f(x):\n    x.sort()\n    return x", "passed"),
        # objects of the candidate's own classes, made and wired up by the tests
        ("root = Node(1)\nroot.left = Node(2)\nassert f(root) == 2 and root.left.value == 2",
         "class Node:\n    left = None\n    def __init__(self, value): self.value = value\n"
         "def f(node): return 0 if node is None else 1 + f(node.left)", "passed"),
        ("s = Stack()\ns.push(4)\ns[0] = 5\nassert len(s) == 1 and list(s) == [5] and s[0] == 5",
         "class Stack(object):\n    def __init__(self): self.items = []\n"
         "    def push(self, x): self.items.append(x)\n"
         "    def __len__(self): return len(self.items)\n"
         "    def __iter__(self): return iter(self.items)\n"
         "    def __getitem__(self, i): return self.items[i]\n"
         "    def __setitem__(self, i, x): self.items[i] = x\n"
         "def f(): pass", "passed"),
        ("assert list(f()) == [0, 1]", "def f(): yield from range(2)", "passed"),
        # nothing is concluded from an object
        ("assert f()", "def f(): return object()", "not_literal"),
        ("assert not f()", "def f(): return object()", "not_literal"),
        ("assert f() != 3", "def f(): return object()", "not_literal"),
        ("assert 3 == f()", "def f(): return object()", "not_literal"),
        ("assert 3 in f()", "def f(): return object()", "not_literal"),
        ("assert 3 in [f()]", "def f(): return object()", "not_literal"),
        ("assert f() in {3: 3}", "def f(): return object()", "not_literal"),
        ("assert min(f(), 3) == 3", "def f(): return object()", "not_literal"),
        ("assert isinstance(f(), int)", "def f(): return object()", "failed"),
        ("try:\n    assert f() == 3\nexcept BaseException:\n    pass", "def f(): return object()",
         "not_literal"),
        # what the candidate raises, tests may expect; they cannot be ended by it
        ("try:\n    f()\nexcept ValueError:\n    pass\nelse:\n    assert False",
         "def f(): raise ValueError('no')", "passed"),
        ("try:\n    f()\nexcept ValueError:\n    pass", "def f(): raise KeyError('no')", "raised"),
        ("assert list(map(f, [1, 2])) == []", "def f(x): raise StopIteration", "raised"),
        ("try:\n    f()\nexcept AssertionError:\n    pass", "def f(): raise AssertionError",
         "raised"),
        ("assert all(f(x) for x in (1, 2))", "def f(x): raise GeneratorExit", "exited"),
        ("assert hasattr(f, 'cache')", "def f(): pass", "failed"),
        # names: the entry point may be one of Python's, a module is the tests' own
        ("assert f(3) == math.sqrt(9)", "class math:\n    sqrt = lambda x: 4\ndef f(x): return x",
         "passed"),
        ("assert f(3) == g(3)", "def f(x): return x", "unparsable"),
        ("def check():\n    assert f(1) == 1", "def f(x): return 2", "failed"),
        ("def check():\n    assert f(1) == 1", "def f(x): return x", "passed"),
    ],
)  # fmt: skip
def test_what_crosses_between_tests_and_candidate(quick, tests, program, outcome):
    result = grade(quick, item("mbpp", "code", entry_point="f", tests=tests), program)
    assert result.outcome == outcome, result


@pytest.mark.parametrize(
    "tests", ["assert f(lambda: 1) == 1", "assert (", "class A: pass\nassert f(A()) == 1"]
)
def test_what_cannot_be_asked_is_missing_and_not_wrong(quick, tests):
    assert grade(quick, item("mbpp", "code", entry_point="f", tests=tests), "def f(x): 1") is None
    assert any(fault.startswith("ungradable: ") for fault in quick.faults)
    assert grade(quick, TWICE, "return 2 * n").correct


def test_a_dead_sandbox_is_missing_and_forgotten(monkeypatch):
    tiers.find()
    broken = [tiers.Worker(["/bin/false"], {}) for _ in range(4)]
    real = tiers.start
    monkeypatch.setattr(tiers, "start", lambda tier: broken.pop() if broken else real(tier))
    with Grader(1) as runner:
        assert score([TWICE] * 2, ["return 2 * n"] * 2, runner) == [None, None]
        assert sum(runner.faults.values()) == 1
        assert grade(runner, TWICE, "return 2 * n").correct


def test_an_answer_is_graded_once(quick, monkeypatch):
    calls = []
    crew = quick.crew("code", lambda: None)
    real = crew.submit
    monkeypatch.setattr(crew, "submit", lambda call: calls.append(call) or real(call))
    first = score([TWICE] * 3, ["return n * 2", "return n * 2", "return n"], quick)
    again = score([TWICE] * 3, ["return n * 2", "return n * 2", "return n"], quick)
    assert len(calls) == 2 and first == again
    other = dataclasses.replace(TWICE, id="humaneval:test:9", tests="assert f(1) == 1")
    result, of_other = score([TWICE, other], ["return n"] * 2, quick)
    assert (result.correct, of_other.correct) == (False, True)


HOW_MANY = pytest.mark.parametrize(
    "share", [pytest.param(16, id="some"), pytest.param(1, id="all", marks=pytest.mark.long)]
)


def one_in(share, tasks):
    """A seeded draw of one task in ``share``, in their order."""
    return [
        tasks[n] for n in sorted(random.Random(0).sample(range(len(tasks)), len(tasks) // share))
    ]


@HOW_MANY
@pytest.mark.parametrize("dataset", ["humaneval", "mbpp"])
def test_every_reference_passes(grader, dataset, share):
    assert len(official(dataset)) == {"humaneval": 164, "mbpp": 974}[dataset]
    tasks = one_in(share, official(dataset))
    results = score(tasks, [task.reference for task in tasks], grader)
    assert [verdict for verdict in results if verdict is None or not verdict.correct] == []


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_never_passes(quick, patience, name, whole):
    """Nor is it missing: then a policy could choose not to be graded. What takes all of its time is
    graded once, and the others by one of three tasks in turn, or by the ``whole`` three."""
    plain = item("mbpp", "code", entry_point="f", tests="assert f(2) == 4\nassert f(3) == 6")
    twice = item("mbpp", "code", entry_point="f", tests="assert f(f(2)) == 8")
    tasks = [TWICE, plain, twice]
    if not whole:
        turn = [*FORGERIES].index(name) % len(tasks)
        tasks = tasks[turn : turn + 1]
    if name in SLOW:
        tasks = [TWICE]
    patience(quick, name)
    answer = FORGERIES[name].replace("NAME", "f")
    for result in score(tasks, [answer] * len(tasks), quick):
        assert result is not None and not result.correct, result


@HOW_MANY
@pytest.mark.parametrize(
    "name",
    [
        "an object that equals everything", "an int that equals everything",
        "a str that equals everything", "patched builtins", "walks the frames",
        "an exception that lies", "a verdict on every handle, when called",
    ],
)  # fmt: skip
def test_a_forgery_passes_no_task_at_all(grader, name, share):
    tasks = one_in(share, [*official("humaneval"), *official("mbpp")[::5]])
    answers = [FORGERIES[name].replace("NAME", task.entry_point) for task in tasks]
    results = score(tasks, answers, grader)
    assert [verdict for verdict in results if verdict is None or verdict.correct] == []


def mutant(source: str, turn: int) -> str:
    """``source`` with one comparison turned round or one number raised in its last function, where
    it has any."""
    tree = ast.parse(source)
    places = [
        node
        for node in ast.walk(tree.body[-1])
        if isinstance(node, ast.Compare)
        or (isinstance(node, ast.Constant) and type(node.value) is int)
    ]
    if places:
        node = places[turn % len(places)]
        if isinstance(node, ast.Compare):
            node.ops[0] = {ast.Lt: ast.GtE, ast.Eq: ast.NotEq}.get(type(node.ops[0]), ast.Lt)()
        elif isinstance(node, ast.Constant):
            node.value += 1
    return ast.unparse(tree)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_honest_programs_are_graded_as_in_one_process(quick):
    """Programs of which some pass and some fail: apart, the tests say what they say together."""
    tasks = [*official("humaneval")[::4], *official("mbpp")[::24]]
    sources = [task.code_prompt + task.reference for task in tasks]
    answers = [mutant(source, turn) for turn, source in enumerate(sources)]
    apart = [bool(result and result.correct) for result in score(tasks, answers, quick)]
    with Pool(2) as pool:
        assert apart == together(tasks, answers, pool, QUICK)
    assert 5 < sum(apart) < len(tasks) - 25


@pytest.mark.parametrize("name", list(FORGERIES)[::5])
def test_forgeries_fail_without_namespaces_too(landlocked, patience, name):
    right = item("mbpp", "code", entry_point="f", tests="assert f(2) == 4")
    assert grade(landlocked, right, "def f(n): return n * 2").correct
    patience(landlocked, name)
    result = grade(landlocked, TWICE, FORGERIES[name].replace("NAME", "f"))
    assert result is not None and not result.correct
