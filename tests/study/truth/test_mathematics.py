"""MATH: which expression counts, what equals what, and that no expression holds up the others."""

import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from lm_eval.tasks.hendrycks_math.utils import last_boxed_only_string, remove_boxed

from study.sandbox.calls import Outcome
from study.sandbox.worker import Broken
from study.truth import Grader, equations, mathematics, score
from study.truth.extract import last_box
from study.truth.mathematics import Comparer, Comparison, final_expression, tidy
from tests.study.truth.shared import item, official
from tests.waiting import GENEROUS_S


@pytest.fixture(scope="module")
def grader():
    """One process that compares: each start costs more than a second of CPU."""
    with Grader(1) as runner:
        yield runner


def gold(answer):
    return item("math", "math", answers=(answer,))


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{\frac{\sqrt{3}}{2}}", r"\frac{\sqrt{3}}{2}"), (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1} then \boxed{2", "1"), (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"), (r"\fbox{4} }", "4"), (r"\boxed {5}", "5"),
        (r"so $\boxed 6$.", "6"), (r"\boxed{}", ""), ("{7}", None),
    ],
)  # fmt: skip
def test_the_last_balanced_box(text, box):
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        (r"thus $x=2$, and \boxed{3}", "3"),
        (r"The answer is $\frac{1}{2}$. Good.", r"\frac{1}{2}"),
        ("The final answer is: 42", "42"),
        ("One sees\n\\[ x = 5 \\]", " x = 5 "),
        (r"\frac12", r"\frac12"),
        ("x^2 + 1", "x^2 + 1"),
        ("There are so 42 of them.", "42"),
        ("It costs $5 and then $6.", "6"),
        (r"8\sqrt{3} \text { square inches}", r"8\sqrt{3} \text { square inches}"),
        (".5", ".5"),
        ("We see it.\nx^2 + 1", "x^2 + 1"),
        ("I do not know", None),
        ("", None),
    ],
)
def test_the_expression_that_a_text_gives(text, expression):
    assert final_expression(text) == expression


@pytest.mark.parametrize(
    ("expression", "plain"),
    [
        (r"25\%", "25"), (r"\$20", "20"), (r"30^\circ", "30"), (r"30^{\circ}", "30"),
        (r"575\text{ students}", "575"), ("575 students", "575"), (r"12 \text{ cm}^2", "12"),
        (r"\text{(B)}", "B"), (r"1,\!000,\!000", "1000000"), ("90{,}900", "90900"),
        (r"11 \frac{2}{3}", r"\frac{35}{3}"),
        (r"\left( 1, \dfrac{1}{2} \right)", r"( 1, \frac{1}{2} )"), (r"\text{June 20}", "June 20"),
    ],
)  # fmt: skip
def test_what_does_not_count_is_taken_off(expression, plain):
    assert tidy(expression) == plain


SAME = [
    # what plain text comparison, or a silent parser, gets wrong
    (r"\frac{1}{2}", r"\dfrac{1}{2}"), (r"\frac{1}{2}", "0.5"), (r"\frac{1}{2}", "1/2"),
    (r"\frac12", r"\frac{2}{4}"), ("(1,2)", "(1, 2)"), (r"\text{A}", "A"), (r"\text{(B)}", "B"),
    (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2"), (r"25\%", "25"), ("25", r"25\%"), (r"\$15.48", "15.48"),
    (r"87^\circ", "87"), (r"575\text{ students}", "575"), (r"18,\!107", "18107"), ("x = 4", "4"),
    ("2x+3", "3+2x"), ("(x+1)(x-1)", "x^2-1"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"[-3,2]", r"[-3, 2]"), (r"(-\infty, 2)\cup(3,\infty)", r"(-\infty,2) \cup (3,\infty)"),
    ("4, -2 + 3i, -2 - 3i", "-2-3i, 4, -2+3i"), (r"7, -2, \text{ and } -5", "-5, -2, 7"),
    (r"11 \frac{2}{3}", r"\frac{35}{3}"), (r"\text{even}", "Even"), (r"3\sqrt{2}", r"\sqrt{18}"),
    ("100, 200", "200, 100"), (r"1,\!000,\!000", "1,000,000"), (r"10\,000", "10000"),
    (r"2\pi", "2 pi"), ("2", "2 sheep"), ("2015_{9}", "2015_9"), ("2015_{9}", "2015"),
]  # fmt: skip
OTHER = [
    ("0", "0.0001"), ("0", "0.0000001"), ("1", "1.0005"), (r"\frac{1}{3}", "0.33"),
    ("0.0002", "0.0003"), ("(1,2)", "(2,1)"), ("x+1", "x-1"), (r"\text{even}", "odd"),
    (r"\text{even}", "neve"), ("25", "0.25"), ("12", "121"), ("2", "1, 2"), ("12", "1 2"),
    ("2", "2 pi"), ("3", "3 sin theta"), ("10", "10 million"), ("5", "5 or six"),
    ("2015_{9}", "2015_{8}"), ("10", "10_8"), ("x_1", "x_2"),
]  # fmt: skip


@pytest.mark.parametrize(("right", "answer"), SAME)
def test_equal_expressions_are_right(grader, right, answer):
    for text in (answer, f"So the result is $\\boxed{{{answer}}}$."):
        assert score([gold(right)], [text], grader)[0].outcome == "passed"


@pytest.mark.parametrize(("right", "answer"), OTHER)
def test_other_expressions_are_wrong(grader, right, answer):
    verdict = score([gold(right)], [f"\\boxed{{{answer}}}"], grader)[0]
    assert (verdict.correct, verdict.outcome, verdict.extracted) == (False, "failed", answer)


def test_latex_is_parsed_unless_it_is_too_long(grader):
    """With another antlr than its own math-verify would read no LaTeX, and say nothing of it."""
    pair = Comparison((r"\frac{\sqrt{12}}{4}",), r"\frac{\sqrt{3}}{2}")
    assert grader.crew("math", Comparer).run([pair])[0].value is True
    verdict = score([gold("3")], ["\\boxed{" + "1+" * 600 + "1}"], grader)[0]
    assert (verdict.correct, verdict.outcome) == (False, "too_long")


SLOW = [r"9^{9^{9^{9^{9}}}}", r"(x+y+z+w)^{40} - (x+y)^{60}", r"\sum_{n=1}^{10^{12}} \frac{1}{n^n}"]
HOSTILE = [
    "9**9**9**9**9", r"\sqrt{" * 20 + "2" + "}" * 20, r"\frac{1}{" * 90 + "2" + "}" * 90,
    "(" * 400 + "1" + ")" * 400, "+".join(f"x_{{{n}}}" for n in range(70)), "{" * 900, "\\" * 999,
    "\0" * 50, "\ud800", "__import__('os').system('true')",
]  # fmt: skip


def test_a_hostile_expression_is_wrong_and_the_next_is_read(grader, monkeypatch):
    """Also where each of them is ended: the rows between them are read as always."""
    monkeypatch.setattr(mathematics, "LIMITS", replace(mathematics.LIMITS, cpu_s=1))
    answers = [text for hostile in [*SLOW, *HOSTILE] for text in (f"\\boxed{{{hostile}}}", "0.50")]
    verdicts = score([gold(r"\frac{1}{2}") for _ in answers], answers, grader)
    assert all(verdict is not None for verdict in verdicts)
    assert {verdict.outcome for verdict in verdicts[: 2 * len(SLOW) : 2]} == {"timeout"}
    assert not any(verdict.correct for verdict in verdicts[::2])
    assert all(verdict.correct for verdict in verdicts[1::2])


@pytest.mark.parametrize("answer", ["", "Nothing at all", r"\boxed{}", r"\boxed{\text{}}"])
def test_no_answer_is_wrong(grader, answer):
    verdict = score([gold("3")], [answer], grader)[0]
    assert (verdict.correct, verdict.outcome, verdict.extracted) == (False, "no_answer", None)


def below(process: int) -> list[int]:
    """The children of a process."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(number) for number in text.split()]


@pytest.mark.parametrize("whom", ["the child", "all of it"])
def test_what_is_killed_from_outside_is_asked_again(grader, whom):
    """Only the answer's own limits are a verdict on it."""
    crew = grader.crew("math", Comparer)
    before = crew.outcomes.copy()
    assert score([gold("1/2")], ["0.5"], grader)[0].correct
    (comparer,) = crew._workers.values()
    process = comparer.worker.process.pid
    if whom == "the child":
        (child,) = below(process)
        os.kill(child, signal.SIGKILL)
    else:
        os.killpg(process, signal.SIGKILL)
    verdicts = score([gold("1/2"), gold("2")], ["0.50", "3.0"], grader)
    assert [verdict.correct for verdict in verdicts] == [True, False]
    assert crew.outcomes - before == {Outcome.RETURNED: 3}


def test_a_process_that_dies_twice_is_missing(monkeypatch):
    monkeypatch.setattr("study.truth.mathematics.sys.executable", "/bin/false")
    with Grader(1) as runner:
        verdicts = score([gold("1/2"), gold("2")], ["0.5", "2"], runner)
    assert verdicts[0] is None and verdicts[1].correct


def test_memory_that_others_filled_is_no_verdict(monkeypatch):
    """A child's caches grow with what it is asked: only its first request may end for memory."""

    def full(golds, answer):
        if answer == "large":
            raise MemoryError
        return True

    verdicts = []
    monkeypatch.setattr(equations, "equal", full)
    monkeypatch.setattr(equations, "_say", verdicts.append)

    def serve(*answers):
        lines = [json.dumps({"golds": [], "answer": text, "cpu_s": 2}) for text in answers]
        monkeypatch.setattr(equations, "_lines", lambda: iter(lines))
        verdicts.clear()
        return equations._serve(), [verdict["end"] for verdict in verdicts]

    assert serve("large") == (equations.SPOILT, ["memory"])
    assert serve("1", "large") == (equations.FULL, ["compared"])
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    with pytest.raises(Broken):  # so that it is asked again, and of a new process
        comparer = Comparer()
        died = {"end": "died", "code": equations.FULL}
        monkeypatch.setattr(comparer.worker, "ask", lambda *_: died)
        try:
            comparer.call(Comparison(("1",), "2"))
        finally:
            comparer.close()


def test_the_last_box_of_official_solutions_is_that_of_lm_eval():
    for gold in official("math"):
        boxed = remove_boxed(last_boxed_only_string(gold.reference))
        assert last_box(gold.reference) == boxed.strip()


@pytest.mark.parametrize(
    "count", [pytest.param(500, id="some"), pytest.param(5000, id="all", marks=pytest.mark.long)]
)
def test_every_official_solution_is_right(grader, count):
    assert len(official("math")) == 5000
    items = random.Random(0).sample(official("math"), count)
    for answers in ([row.reference for row in items], [row.answers[0] for row in items]):
        verdicts = score(items, answers, grader)
        assert [verdict for verdict in verdicts if verdict is None or not verdict.correct] == []


def test_an_answer_of_another_problem_is_wrong(grader):
    """Shifted by one, so that right and wrong are known without a second opinion."""
    items = official("math")[:400:4]
    answers = [f"\\boxed{{{row.answers[0]}}}" for row in items]
    verdicts = score(items, [*answers[1:], answers[0]], grader)
    for mine, verdict, theirs in zip(items, verdicts, [*items[1:], items[0]], strict=True):
        assert verdict is not None
        if tidy(mine.answers[0]) == tidy(theirs.answers[0]):
            assert verdict.correct
    assert sum(not verdict.correct for verdict in verdicts if verdict) > 90


def test_its_processes_say_nothing_of_their_own_and_end_with_it(grader):
    """The parent reads its standard output; a warning of a library there would be an answer. This
    is the last test, as it takes the process of them all."""
    crew = grader.crew("math", Comparer)
    pairs = [Comparison(("1",), "2"), Comparison(("1/2",), r"\frac{}{")]
    assert [result.value for result in crew.run(pairs)] == [False, False]
    (comparer,) = crew._workers.values()
    assert comparer.worker.errors.tell() == 0
    children = below(comparer.worker.process.pid)
    comparer.worker.process.stdin.close()
    assert comparer.worker.process.wait(GENEROUS_S) == 0 and children
    assert not any(Path(f"/proc/{child}").exists() for child in children)
