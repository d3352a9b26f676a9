"""What reads a text that a candidate, a judge or a policy wrote takes time in proportion to it.

A reader of such text belongs into ``READERS``: one line, its name and a function of a text.
"""

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from zlib import crc32

import pytest
from if_verifiable.common import get_loose_transformations

from experiments.data.near import shingles
from experiments.policies.tokens import by_rule
from experiments.workflow import flags, static
from experiments.workflow.experience import normal_form
from experiments.workflow.find import find
from experiments.workflow.operators.base import field_of, place_of
from experiments.workflow.operators.review import read_verdict
from experiments.workflow.operators.sc_ensemble import vote
from experiments.workflow.program import Refused
from judges import parse
from judges.grading import GRADINGS, delimiters
from judges.grading.own_form import OwnForm, guessed
from judges.grading.vocabulary import largest_number, read_labels
from judges.probes import model, slots
from judges.probes.rewriters import edits
from judges.scorers.table import SCORERS, score
from judges.simulated import operators, reply_format
from study.answers import answer_of, opened, strip_thinking
from study.cell import completions
from study.config.schema import Repetition, Scorer
from study.config.simulated_executor import SimulatedExecutor
from study.features import features
from study.rewards.formulas import repetition
from study.rows import make_row
from study.sandbox.calls import Limits, read_reply, same
from study.sandbox.inside import border
from study.sandbox.inside.literal import loads
from study.system import known_keys, secret_names, secrets
from study.tasks import instruct_mini, workflow_mini
from study.truth import choice, code, mathematics, numbers, qa
from study.truth.item import Item
from study.verdict import Reply, Request

PAIR = Request((), criteria=(0, 1), members=(0, 1))
EDITS = edits()
MINI = {"order": "alphabetical", "first": None}
SMALL, DOUBLINGS = 500, 4
MOST = 40
"""Times that 16 times the text may take: 16 where time is proportional, 256 where it is squared."""
FLOOR_S = 5e-5
"""A time below this is overhead and noise."""


def any_value(text: str) -> None:
    """A literal, read and compared, where it is one."""
    try:
        value = loads(text)
    except ValueError:
        return
    assert same(value, value)


def frame(text: str) -> None:
    """What a candidate wrote to its handle, as it is and as the literal of a sound reply."""
    for data in (text, json.dumps({"nonce": "n", "end": "returned", "text": text})):
        reply = {"cpu_s": 0.0, "end": "closed", "code": 0, "killed": False, "data": data}
        read_reply(reply, "n", Limits())


def question(text: str) -> None:
    """The request that a simulated judge takes apart."""
    try:
        reply_format.read_question({"messages": [{"role": "user", "content": text}]})
    except reply_format.Unanswerable:
        return


def alphabetical(text: str) -> None:
    """The rules of the built-in task, of which order is the one that compares pairs."""
    instruct_mini._order_faults(MINI, instruct_mini._read(text).items)


def log_probs(text: str) -> None:
    """A reply in tokens of eight characters."""
    pieces = [text[place : place + 8] for place in range(0, len(text), 8)]
    tokens = [{"token": piece, "logprob": -1.0} for piece in pieces]
    GRADINGS["soft_choice"]({}).parse(Reply("Yes", logprobs=tokens))


def rubric(vocabulary: str) -> Callable[[str], object]:
    def read(text: str) -> None:
        read_labels(text, [1, 2], vocabulary)
        largest_number(text, vocabulary)

    return read


def graded(name: str, **options: str) -> Callable[[str], object]:
    grading = GRADINGS[name](dict(options))
    return lambda text: grading.parse(Reply(text), PAIR)


def scored(name: str) -> Callable[[str], object]:
    settings = Scorer(name)
    score(settings, "word", "word")
    return lambda text: score(settings, text, text)


SPECIAL_TOKENS = ("<a_>", "@@end@@", "### Reply:", "word word", "[|", "1: ", "answer is")
PROBLEM = Item("humaneval:test:0", "humaneval", "code", "test", "", "", "", entry_point="a")
PROBLEM = replace(PROBLEM, code_prompt="def a():\n", choices=(("A", "word"), ("B", "1")))


def crossing(text: str) -> None:
    """What a candidate returns to trusted tests."""
    try:
        border.read(text, lambda number: number)
    except ValueError:
        return


def expression(text: str) -> None:
    """What is compared as MATH, whole and as far as it is compared at all."""
    mathematics.final_expression(text)
    mathematics.tidy(text)


def program(text: str) -> None:
    """What a policy wrote, as a program of either form, and what is wrong with it."""
    for form in (None, "dsl", "python"):
        try:
            static.read(find(text, form))
        except Refused:
            continue


def operator_reply(text: str) -> None:
    """What an executor said to the operators that look for something in it."""
    field_of("answer", text)
    place_of(text, 3)
    read_verdict(text)
    for domain in ("math", "qa", "code"):
        vote(domain, text)


SUM = make_row(
    ({"role": "user", "content": "What is 1 + 1?"},),
    spec={
        "item": replace(
            PROBLEM,
            dataset="sums-easy",
            domain="math",
            meta={"difficulty": "easy", "right": "2", "wrong": ["3"]},
        )
    },
)
QA = replace(SUM.spec["item"], domain="qa", dataset="facts-easy")
SIMULATED = operators.Operators(
    SimulatedExecutor(), lambda address: SUM if address == SUM.prompt_id else None
)


def operator_prompt(name: str, text: str) -> None:
    """What programs and models wrote into an operator's prompt, as a simulated one reads it."""
    marks = operators.PROMPTS[name]
    shown = f"{marks['before']}{text}{marks['after']}"
    if marks["role"] == "chooses":
        shown = f"\n\nA:\n{text}\n\nB:\n{text}{marks['after']}"
    asked = SIMULATED.read(f"{marks['phrase']}\nWhat is 1 + 1?{shown}", b"")
    assert asked.row is SUM and asked.operator == name


def no_operator_prompt(text: str) -> None:
    """A request that is no prompt of an operator, and what a simulated one makes of answers."""
    SIMULATED.read(text, b"")
    for item in (SUM.spec["item"], replace(PROBLEM, meta=SUM.spec["item"].meta), QA):
        operators.bare(item, text)
        workflow_mini.is_favourite(item, text)


def flagged(text: str) -> None:
    """The answer of a program, which speaks to whoever reads it."""
    flags.judge_address(text)
    flags.option_list(text)
    flags.echo_problem(text, "A problem of some length.")
    flags.literal_share(text, ["a", "word ", "1."], ["b"])


OF_OPERATORS: dict[str, Callable[[str], object]] = {
    f"operator prompts, {name}": partial(operator_prompt, name) for name in operators.PROMPTS
}
"""Readers that are nearly the same."""
READERS: dict[str, Callable[[str], object]] = {
    "slots of a bias set": lambda text: slots.by_rule("yshort", text, text),
    "same or different": model.same,
    "workflow programs": program,
    "operator replies": operator_reply,
    "no operator prompts": no_operator_prompt,
    **OF_OPERATORS,
    "flags": flagged,
    "crossing": crossing,
    "numbers": numbers.final_number,
    "expressions": expression,
    "spans": qa.span,
    "choices": lambda text: choice.chosen(PROBLEM.choices, text),
    "code": lambda text: code.programs(PROBLEM, text),
    "values": any_value,
    "frames": frame,
    "answers": answer_of,
    "thinking": strip_thinking,
    "templates": opened,
    "features": lambda text: features(text, "robust"),
    "repetition": lambda text: repetition(Repetition(weight=1.0), text),
    "delimiters": lambda text: delimiters.undelimit("answer", delimiters.delimit("answer", text)),
    "delimiters with special tokens": lambda text: delimiters.undelimit(
        "answer",
        delimiters.escape_tokens(delimiters.delimit("answer", text), SPECIAL_TOKENS),
        SPECIAL_TOKENS,
    ),
    "delimiters of others": lambda text: delimiters.undelimit("answer", text),
    "outside of delimiters": delimiters.without_delimited,
    "questions": question,
    "secrets": secrets.redact,
    "known keys": lambda text: known_keys.blot_key(text, "a1 \\&%+/=b2"),
    "commands": lambda text: (
        secret_names.secret_in_command(text),
        secret_names.unfit_argument(text),
    ),
    "addresses": lambda text: (
        secrets.holds_credentials(f"http://h/{text}"),
        secret_names.shown_place(text),
    ),
    "arguments": lambda text: secret_names.may_hold_key(text),
    "stored replies": lambda text: parse.read_records(text.encode("utf-8", "replace")),
    "completions": lambda text: completions.sound_records(
        text.encode("utf-8", "replace"), completions.json_object
    ),
    "built-in task": alphabetical,
    "log-probs": log_probs,
    **{f"scorer {name}": scored(name) for name in SCORERS},
    "normal forms of programs": normal_form,
    "words of programs": shingles,
    "tokens of prompts": by_rule,
    "IFEval": get_loose_transformations,
    **{f"vocabulary {name}": rubric(name) for name in ("bool", "met")},
    **{f"grading {name}": graded(name) for name in ("likert", "listwise")},
    "grading by a form of its own": graded("likert", form="Score: {score}/10"),
    "escaping a form of its own": OwnForm("{score}/10", 10).escaped,
    "guessed forms of a score": guessed,
    **{f"edit {name}": EDITS[name].rewrite for name in ("yshort", "yverbose", "ystructured")},
}

UNITS = [
    " ", "\t", "\n", "\r\n", "\u200b", "\u3000", "0", "a", "Z", "_", "-", "+", ".", ",", ":", ";",
    "!", "?", "\\", '"', "'", "`", "#", "*", "|", "[", "]", "{", "}", "(", ")", "<", ">", "</",
    "\0", "\ud800", "\U0001f600", "word ", "yellow ", "a b ", "\\\\", '\\"', "''", "1 ", "1: ",
    "1:\t", "1. ", "1,", "[1,", "[[", "]]", "[[a", "[[]]", "{}", "[]", "()", '["', '{"', '{"1":',
    '{"a":[', "{'1': '", '"1": "met", ', '{"1": "met"} ', "1: met\n", "1: met, ", "1: a ", "1:a-",
    "[true ", '["yes" ', "not ", "1: not ", '"score"', "score ", "criterion ", "> ", "- ", "# ",
    "**", "**a", "***", "<think>", "</think>", "<think ", "< ", "[ ", "\u25c1 ", "[THINK]",
    "<|channel|>", "<|channel|>final", "<|start|>", "<|message|>", "<|end|>", "analysis",
    "assistantfinal", "<<<", "<<<a ", "<<<answer 0123456789abcdef>>>\n",
    "\n<<</answer 0123456789abcdef>>>", "-----BEGIN " + "PRIVATE KEY-----", "-----END ", "://",
    "://a:", "bearer ", "sk-", "what a ", "let me know if ? ", "here is my answer ", "1 yes\n",
    "answer is ", "Answer: ", "#### ", "\\boxed{", "\\boxed", "\\frac{1}{2}", "\\text{", "$$ ",
    "\\( ", "1,234", "3 1/2 ", "1e5", "-$", "```\n", "~~~ py\n", "def a(", "(A) ",
    "Custom -> ", "(Custom)*2->", "[Custom,", "Review ? ", "class Workflow:\n", "<answer>", "A or ",
    "import a\n", "    x = 1\n", "option A ", "<a_", "<a:", "[|a", "<a|", "]<]a ", "<reserved_",
]  # fmt: skip
"""What a nasty text repeats."""
FRONTS = ("", "[", '{"1": ', "1:", '"', "<", "9")
ENDS = ("", "x", "\n", '"}')


def seconds(read: Callable[[str], object], text: str) -> float:
    """Processor time of one reading, by this thread alone."""
    begun = time.thread_time()
    read(text)
    return time.thread_time() - begun


def slow_shapes(
    read: Callable[[str], object], shapes: Iterable[tuple[int, int]], repeats: int = 5
) -> list[str]:
    """The shapes that take more than their share when they are doubled, measured again and again
    where it looks so. A shape is the place of a unit, and how many fronts it has, the first of
    which is none."""
    slow = []
    for place, fronts in shapes:
        unit = UNITS[place]
        for turn in range(fronts):
            front = FRONTS[1 + (place + turn) % (len(FRONTS) - 1)] if turn else ""
            end = ENDS[(place + turn) % len(ENDS)]
            small = front + unit * (SMALL // len(unit)) + end
            large = front + unit * ((SMALL << DOUBLINGS) // len(unit)) + end
            few, many = seconds(read, small), seconds(read, large)
            for _ in range(repeats):
                if many <= MOST * max(few, FLOOR_S):
                    break
                few, many = max(few, seconds(read, small)), min(many, seconds(read, large))
            else:
                slow.append(f"{front!r} {unit!r} {end!r}: {many / max(few, FLOOR_S):.0f} times")
    return slow


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion_to_its_text(name: str, whole: bool) -> None:
    """Every second unit alone, and each tenth behind a front too, from another one on for each
    reader. Readers that are nearly the same share the units."""
    shapes = [(place, len(FRONTS)) for place in range(len(UNITS))]
    if not whole:
        first = crc32(name.encode())
        shapes = [(place, 2 if (place + first) % 10 == 0 else 1) for place, _ in shapes]
        shapes = [(place, fronts) for place, fronts in shapes if (place + first) % 2 == 0]
    if name in OF_OPERATORS and not whole:
        shapes = shapes[list(OF_OPERATORS).index(name) :: len(OF_OPERATORS)]
    assert slow_shapes(READERS[name], shapes) == []


@pytest.mark.parametrize("name", [name for name in READERS if name.startswith("vocabulary")])
def test_an_object_of_many_broken_pairs_is_read_in_proportion(name: str) -> None:
    """A key that is followed to the end of its line costs the square where each is."""
    small, large = ('{"1":"met",' + '"a":' * count + "x" for count in (250, 4_000))
    few = max(min(seconds(READERS[name], small) for _ in range(3)), FLOOR_S)
    assert any(seconds(READERS[name], large) <= MOST * few for _ in range(3))


@pytest.mark.parametrize(
    ("pattern", "unit"),
    [
        (r"\s*x", " "),
        (r"\[+x", "["),
        ("-----BEGIN.*?-----END X", "-----BEGIN " + "PRIVATE KEY-----"),
    ],
)
def test_a_reader_that_goes_back_is_found(pattern: str, unit: str) -> None:
    """The measure can fail: patterns that try again from every place."""
    shapes = [(UNITS.index(unit), 2)]
    assert slow_shapes(re.compile(pattern, re.DOTALL).search, shapes, repeats=1)
