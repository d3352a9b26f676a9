"""Layer 1: what a policy is shown before it writes a program.

A prompt is made of blocks in a fixed order, each with a version and a hash, so that a record can
say which texts it was made of. Under a limit the examples go first, one by one from the last, then
the words on the domain, then the rules; the other blocks always stay. The problem is in it once,
letter by letter; what is not for the policy's eyes, answers and hidden tests, is never read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.policies.tokens import by_rule
from experiments.workflow.blocks import BLOCKS, Blocks
from experiments.workflow.experience import Buffer, Entry, Query
from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.base import Operator
from experiments.workflow.problem import Problem
from judges.grading.delimiters import fill
from study.config import bounds
from study.config.programs import Workflow
from study.errors import UserError

SYSTEM = ("role", "contract", "operators", "rules")
"""Blocks of the first message; the others are the second."""
DROPPABLE = ("rules", "domain")
"""Blocks that a limit takes away once there are no examples left, the last first."""
SHOTS = 3
GAP = "\n\n"
"""Between two blocks; counted with the one before it."""


@dataclass(frozen=True)
class Block:
    """One block as it was made; ``sha`` is that of its own text, not of what is put into it."""

    id: str
    version: int
    sha: str
    text: str
    tokens: int
    kept: bool = True


@dataclass(frozen=True)
class Prompt:
    """The messages, all blocks in order, and the examples that are in it with their similarity."""

    messages: tuple[dict[str, str], ...]
    blocks: tuple[Block, ...]
    few_shots: tuple[tuple[Entry, float], ...]

    @property
    def tokens(self) -> int:
        """Of all blocks that are kept, each counted alone with the gap behind it."""
        return sum(block.tokens for block in self.blocks if block.kept)


@dataclass(frozen=True)
class Example:
    """An entry of the buffer as it is shown, and its likeness to the problem."""

    entry: Entry
    similarity: float
    text: str
    tokens: int


def offered(settings: Workflow) -> list[Operator]:
    """The operators that a study offers. Raises UserError: it names one that there is not."""
    names = settings.operators or list(OPERATORS)
    for name in names:
        bounds.check("workflow.operators", name, bounds.Choice(tuple(OPERATORS)), "[Custom]")
    return [OPERATORS[name] for name in names]


class Prompter:
    """Makes the prompts of one form: ``Prompter().prompt(problem, buffer)``."""

    def __init__(
        self,
        form: str = "python",
        count: Callable[[str], int] = by_rule,
        operators: Collection[Operator] = OPERATORS.values(),
        blocks: str | Path = "",
    ) -> None:
        """``count`` says how many tokens a text has; ``blocks`` is a folder of newer texts.
        Raises UserError: there is no such folder."""
        self.operators, self.form, self.count = operators, form, count
        self.texts = Blocks(form, blocks)
        self._fixed: dict[str, list[Block]] = {}

    def prompt(
        self,
        problem: Problem,
        buffer: Buffer | None = None,
        cap: int | None = None,
        shots: int = SHOTS,
        mode: str = "cosine",
    ) -> Prompt:
        """The prompt of a problem, with at most ``shots`` examples and ``cap`` tokens.
        Raises UserError: the blocks that always stay have more."""
        examples = self._examples(problem, buffer, shots, mode)
        *fixed, domain = self._of_domain(problem.domain)
        blocks = [*fixed, domain, self._few_shots(examples), self._problem(problem)]
        while cap is not None and (over := _tokens(blocks) - cap) > 0:
            if examples:
                examples = examples[:-1]
                blocks[-2] = self._few_shots(examples)
                continue
            droppable = [block.id for block in blocks if block.kept and block.id in DROPPABLE]
            if not droppable:
                raise UserError(
                    f"cap={cap} is {over} tokens too few for the problem and the fixed text before"
                    f" it. Give cap={cap + over} or more."
                )
            last = list(BLOCKS).index(droppable[-1])
            blocks[last] = replace(blocks[last], kept=False)
        few_shots = tuple((example.entry, example.similarity) for example in examples)
        return Prompt(_messages(blocks), tuple(blocks), few_shots)

    def _of_domain(self, domain: str) -> list[Block]:
        """The blocks of a domain that no problem changes."""
        if domain not in self._fixed:
            listed = [_line(one, self.form) for one in self.operators if domain in one.domains]
            values = {"operators": "\n".join(listed)}
            self._fixed[domain] = [
                self._block(name, fill(self.texts.text(name, domain)[0], **values), domain)
                for name in ("role", "contract", "operators", "rules", "domain")
            ]
        return self._fixed[domain]

    def _block(self, name: str, text: str, domain: str, sha: str = "") -> Block:
        sha = sha or hashlib.sha256(text.encode()).hexdigest()
        version = self.texts.version(name, domain)
        return Block(name, version, sha, text, self.count(text + GAP))

    def _examples(
        self, problem: Problem, buffer: Buffer | None, shots: int, mode: str
    ) -> list[Example]:
        """Examples within their cap that do not hold the problem itself."""
        if buffer is None or not shots:
            return []
        _, form, _ = self.texts.text("few_shots", "")
        examples = []
        for entry, likeness in buffer.retrieve(Query.of(problem), mode, shots):
            if problem.prompt in entry.problem or problem.prompt in entry.program:
                continue
            text = fill(form, problem=entry.problem, program=self._fenced(entry.program))
            examples.append(Example(entry, likeness, text, self.count(text + GAP)))
        while examples and self._few_shots(examples).tokens > BLOCKS["few_shots"]["cap"]:
            examples.pop()
        return examples

    def _few_shots(self, examples: Sequence[Example]) -> Block:
        frame, _, sha = self.texts.text("few_shots", "")
        texts = GAP.join(example.text for example in examples)
        tokens = self.count(fill(frame, examples="")) + sum(example.tokens for example in examples)
        return Block(
            "few_shots",
            self.texts.version("few_shots", ""),
            sha,
            fill(frame, examples=texts),
            tokens if examples else 0,
            kept=bool(examples),
        )

    def _problem(self, problem: Problem) -> Block:
        frame, called, sha = self.texts.text("problem", "")
        mark = hashlib.blake2b(problem.prompt.encode("utf-8", "surrogatepass"), digest_size=6)
        request = GAP + fill(called, entry_point=problem.entry_point) if problem.entry_point else ""
        text = fill(frame, mark=mark.hexdigest(), problem=problem.prompt, entry_point=request)
        return self._block("problem", text, problem.domain, sha)

    def _fenced(self, program: str) -> str:
        """The program in a block whose fence it does not hold; a line of the DSL as it is."""
        if self.form == "dsl":
            return program
        fence = "```"
        while fence in program:
            fence += "`"
        return f"{fence}python\n{program}\n{fence}"


def _line(operator: Operator, form: str) -> str:
    """One operator for the prompt: how it is called, what it returns, what it is for."""
    if form == "dsl":
        return f"- {operator.name}: {operator.about}"
    arguments = ", ".join(
        f"{one.name}: {one.type}{'' if one.required else ' (optional)'}"
        for one in operator.arguments
    )
    keys = ", ".join(f"{key}: {kind}" for key, kind in operator.results.items())
    return f"- {operator.name}({arguments}) -> {{{keys}}}: {operator.about}"


def _tokens(blocks: Sequence[Block]) -> int:
    return sum(block.tokens for block in blocks if block.kept)


def _messages(blocks: Sequence[Block]) -> tuple[dict[str, str], ...]:
    in_prompt = [block for block in blocks if block.kept]
    parts = {
        "system": [block.text for block in in_prompt if block.id in SYSTEM],
        "user": [block.text for block in in_prompt if block.id not in SYSTEM],
    }
    return tuple({"role": role, "content": GAP.join(texts)} for role, texts in parts.items())
