"""One fresh verdict on one answer, past the store: for a look at a judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from judges.ask.session import Session
from study import tasks
from study.config.compose import load_presets
from study.config.schema import Judge
from study.errors import UserError
from study.rows import Criterion, Row, RuleTruth, prompt_id
from study.verdict import Verdict

OTHER_ANSWER = "I do not know."
"""What an answer is compared with by a grading of groups."""


def ask(
    judge: Judge | str,
    prompt: str,
    answer: str,
    *settings: str,
    reference: str | None = None,
    criteria: Sequence[str] = (),
    task: str = "instruct-mini",
) -> Verdict:
    """What a judge says of one answer.

    Args:
        judge: a preset, or a judge as ``load_judge`` gives it.
        settings: settings over the preset, such as ``judge.sampling.temperature=0``.
        reference: what a right answer is, for a grading that shows it.
        criteria: what a rubric asks of the answer, for a grading by rubric.
        task: the preset whose rows a simulated judge knows; the prompt is one of theirs.

    Returns: a verdict; one without a score says in ``outcome`` and ``reason`` why.

    Raises UserError: no such preset, a judge that cannot be asked, or a simulated one that does not
        know the prompt.
    """
    name = judge if isinstance(judge, str) else "sim-fair"
    preset, of_task = load_presets(name, task, settings)
    judge = preset if isinstance(judge, str) else judge
    row = Row(
        prompt_id=prompt_id(prompt),
        messages=({"role": "user", "content": prompt},),
        criteria=tuple(map(Criterion, criteria)),
        spec={},
        split="asked",
        reference=reference,
    )
    if not judge.needs_rows:
        return verdict_of(judge, row, answer)
    oracle = tasks.oracle(of_task)
    known = oracle.row_of(row.prompt_id)
    if known is None:
        first = tasks.kind_of(of_task).rows(of_task, "train")[0].messages[-1]["content"]
        raise UserError(
            f"judge={judge.name} is simulated: it knows the rules of task={task} alone, and this"
            f" prompt is none of its prompts. One is: {first!r}. A real judge takes any prompt."
        )
    return verdict_of(judge, known, answer, oracle)


def verdict_of(
    judge: Judge,
    row: Row,
    answer: str,
    oracle: Callable[[str, str], RuleTruth] | None = None,
) -> Verdict:
    """One fresh verdict of a judge on an answer to a row; see `judges.ask.session.Session`.
    Raises UserError: the judge cannot be asked: no key, no endpoint, or it serves another model."""
    single = dataclasses.replace(judge, sampling=dataclasses.replace(judge.sampling, votes=1))
    with Session(single, None, oracle) as session:
        session.check()
        items = [(row, answer), *[(row, OTHER_ANSWER)] * session.compares]
        return session.ask_many(items, len(items))[0][0]
