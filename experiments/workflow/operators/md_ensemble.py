"""MdEnsemble: a majority of votes on which solution is the best."""

from __future__ import annotations

import asyncio
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

VOTES = 5


async def play(desk: Desk, operator: Operator, *, solutions: list[str], problem: str) -> Results:
    """The solution that most votes name, each over an order of its own; the earlier of two."""
    solutions = solutions[: len(LETTERS)]
    places = [place for place, solution in enumerate(solutions) if solution.strip()]
    if not places:
        return {"error": "there is no solution to choose from"}
    if len(places) == 1:
        return {"solution": solutions[places[0]]}
    orders = [desk.random.sample(places, len(places)) for _ in range(VOTES)]
    replies = await asyncio.gather(
        *(
            desk.ask(
                operator.fill_prompt(
                    problem=problem,
                    solutions=lettered([solutions[place] for place in order]),
                )
            )
            for order in orders
        )
    )
    votes = Counter(
        order[place]
        for order, reply in zip(orders, replies, strict=True)
        if (place := place_of(reply, len(order))) is not None
    )
    if not votes:
        return {"solution": solutions[places[0]], "error": "no vote names a solution"}
    return {"solution": solutions[min(votes, key=lambda place: (-votes[place], place))]}


OPERATOR = Operator(
    name="MdEnsemble",
    about="Chooses the best solution by a majority of five votes.",
    arguments=(Argument("solutions", "list[str]"), Argument("problem")),
    results={"solution": "str"},
    prompt=(
        "Several solutions of one problem are given under letters. Compare them and choose the most"
        " capable one.\n\nProblem:\n{problem}\n\n{solutions}\n\nPut its letter, and nothing else,"
        " between <solution_letter> and </solution_letter>."
    ),
    play=play,
    max_model_calls=VOTES,
    max_tokens=512,
)
