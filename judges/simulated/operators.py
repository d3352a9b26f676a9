"""A simulated executor: answers the operators of workflow programs by a table of rates.

It gets only the messages. It finds the operator by a phrase of that operator's prompt, the problem
by looking each line up among the task's rows, and asks its own oracle whether a solution is right.
What it says is decided by the request alone, its seed included: the same request gets the same
reply in any process. docs/workflows.md says what the rates mean.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from judges.simulated import protocol
from judges.simulated.protocol import generator, tokens, truths_of
from judges.simulated.reply_format import Message, Unanswerable, read_messages
from judges.simulated.truths import Truths
from study.config.simulated_executor import Operating, SimulatedExecutor, check, rate
from study.rows import Row, Truth, prompt_id
from study.system.tables import table
from study.truth.code import answer_code
from study.truth.item import Item
from study.truth.numbers import final_number
from study.truth.oracle import Oracle
from study.truth.qa import span

_TABLE = table(__file__)
PROMPTS: dict[str, dict[str, str]] = _TABLE["operators"]
"""Operator -> how its prompt is read: role, phrase, before, after."""
_STYLE = _TABLE["style"]
_WORDS: list[str] = _STYLE["words"].split()
LETTERS = string.ascii_uppercase
NO_ANALYSIS = "None"
"""What Programmer is given where there is no analysis."""
LONGEST = 4000
"""Characters of a wrong answer that is said again; a longer one becomes another wrong one."""


@dataclass(frozen=True)
class OperatorQuestion:
    """One request, taken apart.

    Attributes:
        operator: whose prompt it is; one that is nobody's is taken for Custom's.
        row: of the problem; None where no line of the prompt is one.
        answers: in the solutions that are shown, bare of what stands around them.
        content: hash of the messages and the seed.
        characters: of the prompt.
    """

    operator: str
    row: Row | None
    answers: tuple[str, ...]
    content: bytes
    characters: int


@dataclass(frozen=True)
class Reply:
    """What is said, and the tokens it took, those that are not shown included."""

    text: str
    tokens_in: int
    tokens_out: int


class Operators:
    """The table as functions of a request.

    Args:
        row_of: prompt id -> the row of the task, or None.
    Raises UserError: the settings are not legal.
    """

    def __init__(self, settings: SimulatedExecutor, row_of: Callable[[str], Row | None]) -> None:
        check(settings, tuple(PROMPTS))
        self.settings, self._row_of = settings, row_of

    def read(self, text: str, content: bytes) -> OperatorQuestion:
        """What a prompt asks. Raises Unanswerable: its row is of a task that does not say what a
        model may answer."""
        operator = operator_of(text)
        # what is no Unicode is no line of a row
        lines = text.encode("utf-8", "replace").decode().split("\n")
        rows = (self._row_of(prompt_id(line.strip())) for line in lines)
        row = next((row for row in rows if row is not None), None)
        if row is None:
            return OperatorQuestion(operator, None, (), content, len(text))
        item: Item = row.spec["item"]
        if not {"difficulty", "right", "wrong"} <= item.meta.keys():
            raise Unanswerable(
                404, "Only rows of task=workflow-mini list their legal answers.", "unknown_prompt"
            )
        answers = tuple(bare(item, solution) for solution in solutions(operator, text))
        return OperatorQuestion(operator, row, answers, content, len(text))

    def reply(self, question: OperatorQuestion, right: Sequence[bool]) -> Reply:
        """What is answered; ``right`` says of each of ``asked.answers`` whether it is."""
        settings = self.settings
        operating = settings.operators.get(question.operator, Operating())
        draw = generator(settings.seed, question.content, 0)
        empty_share = settings.empty + settings.empty_per_1000 * question.characters / 1000
        text = ""
        if draw.random() >= empty_share:
            text = _STYLE["unknown"]
            if question.row is not None:
                text = _Reply(self, question, right, operating, draw, question.row).text()
        text = text.encode("utf-8", "replace").decode()
        return Reply(text, tokens(question.characters), tokens(len(text)) + operating.tokens)

    def shared(self, kind: str, address: str) -> float:
        """The draw from [0, 1) that the calls of a kind share on one problem."""
        key = f"{self.settings.seed} {kind} {address}".encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=7).digest(), "big") / 2**56


class _Reply:
    """One reply in the making."""

    def __init__(
        self,
        world: Operators,
        question: OperatorQuestion,
        right: Sequence[bool],
        operating: Operating,
        draw: Random,
        row: Row,
    ) -> None:
        self.world, self.question, self.right = world, question, right
        self.operating, self.draw, self.row = operating, draw, row
        self.item: Item = row.spec["item"]

    def text(self) -> str:
        role, name = PROMPTS[self.question.operator]["role"], self.question.operator
        if role == "checks":
            right = bool(self.right and self.right[0])
            no = self.happens("false_alarm" if right else "detection", name)
            why = _STYLE["flawed" if no else "fine"]
            return (
                f"<review_result>{not no}</review_result>\n<feedback>{self.around(why)}</feedback>"
            )
        if role == "chooses":
            return f"<solution_letter>{LETTERS[self.chosen()]}</solution_letter>"
        answer = self.solved() if role == "solves" else self.corrected()
        if name == "AnswerGenerate":
            thought = " ".join(_WORDS[:12])
            return f"<thought>{thought}</thought>\n<answer>{self.styled(answer)}</answer>"
        if name == "Programmer":
            is_number = self.row.domain == "math" and answer.lstrip("-").isdecimal()
            value = answer if is_number else repr(answer)
            return f"```python\ndef solve():\n    return {value}\n```"
        if name in ("CustomCodeGenerate", "Test"):
            return fenced(answer)
        return self.styled(answer)

    def happens(self, key: str, kind: str) -> bool:
        """Whether something with that rate does; ``kind`` are the calls that share a draw."""
        own, shares = self.draw.random(), self.draw.random() < self.world.settings.correlation
        uniform = self.world.shared(kind, self.row.prompt_id) if shares else own
        difficulty = self.item.meta["difficulty"]
        return uniform < rate(self.operating, key, self.row.domain, difficulty)

    def solved(self) -> str:
        """The answer of an operator that solves the problem, or repeats what it is shown."""
        if self.shown_answer() and self.draw.random() < self.world.settings.anchored:
            return self.same()
        return self.item.meta["right"] if self.happens("right", "solves") else self.wrong()

    def corrected(self) -> str:
        """The answer of an operator that works on a solution."""
        right = bool(self.right and self.right[0])
        if self.happens("keep" if right else "repair", self.question.operator):
            return self.item.meta["right"]
        return self.wrong() if right or not self.shown_answer() else self.same()

    def shown_answer(self) -> str:
        """The answer of the solution that is shown."""
        return self.question.answers[0] if self.question.answers else ""

    def same(self) -> str:
        if self.right[0]:
            return self.item.meta["right"]
        return self.shown_answer() if len(self.shown_answer()) <= LONGEST else self.wrong()

    def wrong(self) -> str:
        favourite, *others = self.item.meta["wrong"]
        likes = self.draw.random() < self.world.settings.favourite
        return favourite if likes or not others else self.draw.choice(others)

    def chosen(self) -> int:
        """The place of the solution that is chosen."""
        places = range(len(self.right))
        if not places:
            return 0
        good = [place for place in places if self.right[place]]
        if good and len(good) < len(places):
            takes = self.happens("choice", self.question.operator)
            return self.draw.choice(
                good if takes else [place for place in places if not self.right[place]]
            )
        return self.draw.choice(places)

    def styled(self, answer: str) -> str:
        """An answer with what the operator says around it."""
        style = self.operating
        if not (style.words or style.sure or style.bullets):
            return answer
        last = fenced(answer) if self.row.domain == "code" else f"Answer: {answer}"
        return f"{self.around('')}\n{last}".lstrip("\n")

    def around(self, text: str) -> str:
        """The words and phrases of the operator's style, with ``text`` among them."""
        style = self.operating
        words = (_WORDS * (style.words // len(_WORDS) + 1))[: style.words]
        size = max(1, -(-len(words) // max(1, style.bullets)))
        mark = "- " if style.bullets else ""
        lines = [
            mark + " ".join(words[start : start + size]) for start in range(0, len(words), size)
        ]
        phrases = _STYLE["sure"]
        sure = " ".join(phrases[place % len(phrases)] for place in range(style.sure))
        return "\n".join(filter(None, (*lines, sure, text)))


def operator_of(text: str) -> str:
    """The operator whose phrase stands first in a prompt; Custom where none does."""
    places = {name: text.find(prompt["phrase"]) for name, prompt in PROMPTS.items()}
    positions = {name: place for name, place in places.items() if place >= 0}
    return min(positions, key=lambda name: positions[name], default="Custom")


def solutions(operator: str, text: str) -> list[str]:
    """The solutions that a prompt shows."""
    prompt = PROMPTS[operator]
    if prompt["role"] == "chooses":
        end = text.rfind(prompt["after"])
        return _lettered(text[: end if end >= 0 else len(text)])
    start = text.find(prompt["before"])
    if start < 0:
        return []
    start += len(prompt["before"])
    end = text.rfind(prompt["after"]) if prompt["after"] else -1
    solution = text[start : end if end >= start else len(text)]
    return [] if operator == "Programmer" and solution == NO_ANALYSIS else [solution]


def _lettered(text: str) -> list[str]:
    """The texts under the letters A, B, C, ..."""
    texts: list[str] = []
    start = text.find("\n\nA:\n")
    while start >= 0:
        begin = start + len("\n\nA:\n")
        following = LETTERS[len(texts) + 1 : len(texts) + 2]
        start = text.find(f"\n\n{following}:\n", begin) if following else -1
        texts.append(text[begin : start if start >= 0 else len(text)])
    return texts


def bare(item: Item, solution: str) -> str:
    """The answer that a rule reads in a solution, or nothing."""
    if item.domain == "code":
        return answer_code(item, solution).strip()
    if item.domain == "math":
        number = final_number(solution)
        return "" if number is None else number.text
    return span(solution)


def fenced(code: str) -> str:
    """A block of Python."""
    return f"```python\n{code}\n```"


def operators_app(simulated: SimulatedExecutor, model: str, oracle: Oracle) -> Starlette:
    """The application of one simulated executor, which answers to the name ``model``.
    Raises UserError: the settings are not legal."""
    return SimulatedOperators(simulated, model, oracle).app()


class SimulatedOperators(protocol.Simulated):
    """A simulated executor behind its protocol."""

    def __init__(self, simulated: SimulatedExecutor, model: str, oracle: Oracle) -> None:
        super().__init__(model)
        self._operators = Operators(simulated, oracle.row_of)
        self._truths = Truths(oracle)

    async def reply(self, body: Mapping[str, object], request: Request) -> Response:
        """What the operator's model says."""
        turns, content = read_messages(body)
        question = self._operators.read("\n".join(turns), content)
        truths: list[Truth] = []
        if question.row is not None and question.answers:
            _, rule_truths = await self._truths.of(question.row.prompt_text(), question.answers)
            truths = truths_of(rule_truths)
        reply = self._operators.reply(question, [truth.score == 1.0 for truth in truths])
        message = Message(reply.text)
        return self.respond(body, message, reply.tokens_in, reply.tokens_out, content.hex())
