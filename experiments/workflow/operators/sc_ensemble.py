"""ScEnsemble: takes the solution whose answer occurs most often."""

from __future__ import annotations

from collections import Counter

from experiments.workflow.operators.base import (
    LETTERS,
    Argument,
    Desk,
    Operator,
    Results,
    lettered,
    place_of,
)
from study.truth.code import blocks
from study.truth.extract import after_answer, last_box
from study.truth.numbers import final_number
from study.truth.votes import ballot

SHORT = 80
"""Characters of an answer that may be counted as it stands."""


def vote(domain: str, solution: str) -> str | None:
    """What a solution is counted under; None where no answer can be read in it."""
    if domain == "code":
        return (blocks(solution) or [solution])[0].strip() or None
    box = last_box(solution)
    if domain == "math":
        number = final_number(solution)
        if box is None and number is not None:
            return str(number.value)
        return ballot("", "math", box)
    text = box or after_answer(solution) or solution
    plain = " ".join(text.casefold().split()).strip(".!?\"'` ")
    return plain if 0 < len(plain) <= SHORT else None


async def play(desk: Desk, operator: Operator, *, solutions: list[str], problem: str) -> Results:
    """The first solution of the most frequent answer. The model is asked only where two answers are
    as frequent, or none can be read; what it says is one of those."""
    solutions = solutions[: len(LETTERS)]
    if not any(solution.strip() for solution in solutions):
        return {"error": "there is no solution to choose from"}
    votes = [vote(desk.domain, solution) for solution in solutions]
    counts = Counter(name for name in votes if name is not None)
    most = max(counts.values(), default=0)
    leading = [name for name, count in counts.items() if count == most]
    if len(leading) == 1:
        return {"response": solutions[votes.index(leading[0])]}
    places = [votes.index(name) for name in leading] or [
        place for place, solution in enumerate(solutions) if solution.strip()
    ]
    if len(places) == 1:
        return {"response": solutions[places[0]]}
    desk.random.shuffle(places)
    listing = lettered([solutions[place] for place in places])
    reply = await desk.ask(operator.fill_prompt(problem=problem, solutions=listing))
    letter = place_of(reply, len(places))
    if letter is None:
        error = "the reply names no solution" if reply.strip() else "the reply is empty"
        return {"response": solutions[min(places)], "error": error}
    return {"response": solutions[places[letter]]}


OPERATOR = Operator(
    name="ScEnsemble",
    about="Chooses the solution whose answer occurs most often.",
    arguments=(
        Argument("solutions", "list[str]"),
        Argument("problem", required=False, default=""),
    ),
    results={"response": "str"},
    prompt=(
        "Several solutions of one problem are given under letters. Choose the one whose final"
        " answer is the most consistent with the others.\n\nProblem:\n{problem}\n\n{solutions}"
        "\n\nPut its letter, and nothing else, between <solution_letter> and </solution_letter>."
    ),
    play=play,
    max_tokens=512,
)
