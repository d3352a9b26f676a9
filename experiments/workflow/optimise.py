"""New versions of a block of layer 1: proposed, tried on validation rows, kept if better.

Old and new prompt go to the same policy, which answers greedily; its programs are executed by the
same executor, and a rule says whether their answers are right.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from analysis.statistics.bootstrap import mean_by_bootstrap
from analysis.statistics.estimate import Estimate
from experiments.workflow import static
from experiments.workflow.blocks import BLOCKS, FOLDER
from experiments.workflow.executor import Down, Question
from experiments.workflow.find import find
from experiments.workflow.model import ModelExecutor
from experiments.workflow.operators.base import field_of
from experiments.workflow.played import Player, Runs, voted
from experiments.workflow.program import Refused
from judges.ask.replies import Store
from judges.grading.delimiters import fill, placeholders
from study.cell.folder import CellFolder
from study.cell.parts import read_part
from study.config.schema import Executor, Study
from study.errors import UserError
from study.programs.endings import Ending
from study.rows import Row
from study.tasks import kind_of, sample
from study.truth.item import Item
from study.truth.oracle import Oracle

COMMONEST = 5
"""Faults that a proposer is told."""
READ = 2000
"""Programs of a run, the last ones, in which those are looked for."""
ROOM = 4096
"""Tokens of a reply of a model that is asked for a block or a program."""
LOOKED_AT = 8
"""Rows to train on that are looked at for each that is wanted: a run has drawn some."""
Writer = Callable[[Player, Sequence[Row]], list[str | None]]
"""Writes a program for each row, as a player's prompts ask for it; None where it could not."""


def trained_prompts(run: CellFolder) -> set[str]:
    """Ids of the prompts that a run has trained on."""
    return {
        name
        for _, table in run.records("rollouts", ["prompt_id"])
        for name in table["prompt_id"].to_pylist()
    }


def validation_rows(
    config: Study, limit: int, seed: int, without: Collection[str], domain: str = ""
) -> tuple[str, list[Row]]:
    """Rows to choose by, and which they are: of the task's validation split where its held-out rows
    are that, else rows to train on that are not ``without``. Rows of a test split are never taken.
    Raises UserError: there is none."""
    kind = kind_of(config.task)
    split = "validation"
    rows = [row for row in kind.rows(config.task, "eval") if _is_validation(row)]
    if not rows:
        split = "train, never drawn"
        rows = sample(kind.rows(config.task, "train"), LOOKED_AT * limit + len(without))
        rows = [row for row in rows if row.prompt_id not in without]
    rows = [row for row in rows if not domain or row.domain == domain]
    if not rows:
        raise UserError(
            f"task={config.task.name} has no row{f' of {domain}' if domain else ''} outside its"
            " test rows and the run's training rows. Prepare its rows with a validation split, or"
            " give a run that drew fewer."
        )
    Random(seed).shuffle(rows)
    return split, rows[:limit]


def _is_validation(row: Row) -> bool:
    item = row.spec.get("item")
    return isinstance(item, Item) and item.split == "validation"


def faults(run: CellFolder, form: str) -> list[tuple[str, int]]:
    """What was wrong most often with the programs of a run, in words, and how often."""
    counts: Counter[str] = Counter()
    n_read = 0
    for part in reversed(run.parts("rollouts")):
        for record in read_part(part, ["outcome", "completion"]).to_pylist():
            if record["outcome"] in (None, Ending.OK) or n_read == READ:
                continue
            n_read += 1
            counts.update(_faults_of(record["completion"], form) or {record["outcome"]})
    return counts.most_common(COMMONEST)


def _faults_of(completion: str, form: str) -> set[str]:
    """The errors that are seen in a completion without running it."""
    try:
        diagnostics = static.read(find(completion, form))[1]
    except Refused as refused:
        diagnostics = [refused.diagnostic]
    return {
        f"{diagnostic.code}: {diagnostic.message}"[:300]
        for diagnostic in diagnostics
        if diagnostic.level == "error"
    }


def proposal(block: str, text: str, errors: Sequence[tuple[str, int]]) -> str:
    """What a proposer is asked."""
    lines = [f"- {error} ({count} times)" for error, count in errors]
    places = ", ".join(f"{{{name}}}" for name in placeholders(text)) or "none"
    return fill(
        (FOLDER / "proposal.txt").read_text(encoding="utf-8"),
        block=block,
        text=text,
        errors="\n".join(lines) or "- nothing is known",
        cap=str(BLOCKS[block].get("cap", ROOM)),
        places=places,
    )


def propose(executor: Executor, store: Store, truths: Oracle, prompt: str) -> str:
    """The block in a model's reply. Raises UserError: it cannot be asked, or writes none."""
    (reply,) = ask_all(executor, store, truths, "Propose", [({"role": "user", "content": prompt},)])
    text = field_of("block", reply or "")
    if not text or not text.strip():
        raise UserError(
            f"proposer={executor.name} wrote no block between <block> and </block>. Type the"
            " command with another proposer=NAME, or give the new block as text=FILE."
        )
    return text.strip()


def ask_all(
    executor: Executor,
    store: Store,
    truths: Oracle,
    name: str,
    prompts: Sequence[tuple[dict[str, str], ...]],
) -> list[str | None]:
    """The replies of a model to some prompts; None where there is none.
    Raises UserError: nobody answers at its endpoint."""

    async def work() -> list[str | None]:
        model = ModelExecutor(executor, store, truths)
        try:
            await model.asker.check()
            return list(await asyncio.gather(*(reply(model, prompt) for prompt in prompts)))
        finally:
            await model.close()

    async def reply(model: ModelExecutor, prompt: tuple[dict[str, str], ...]) -> str | None:
        try:
            return (await model.ask(Question(name, prompt, ROOM))).text
        except Down:
            return None

    return asyncio.run(work())


def tried(
    config: Study, store: Store, rows: Sequence[Row], write: Writer, count: Any, folder: Path | str
) -> tuple[Runs, str]:
    """What the policy's programs come to with the blocks of a folder, and the prompts' version."""
    workflow = replace(config.workflow, blocks=str(folder))
    with Player(replace(config, workflow=workflow), store, workflow.form, count) as player:
        player.world.check()
        texts = write(player, rows)
        pairs = [(row, text) for row, text in zip(rows, texts, strict=True) if text is not None]
        runs: Runs = {row.prompt_id: [] for row in rows}
        if pairs:
            played = player.play([row for row, _ in pairs], [text for _, text in pairs])
            for (row, _), each in zip(pairs, played, strict=True):
                runs[row.prompt_id].append(each)
        return runs, player.world.prompt(rows[0], learning=False)[1]


def compared(old: Runs, new: Runs, seed: int) -> tuple[list[float], list[float], Estimate]:
    """Of the rows of which both say something: whether the old is right, the new, and the mean
    difference, new less old, with its paired bootstrap by problem."""
    pairs = [
        (float(before), float(after))
        for name in old
        if (before := voted(old[name])) is not None and (after := voted(new[name])) is not None
    ]
    before, after = ([pair[place] for pair in pairs] for place in (0, 1))
    return before, after, mean_by_bootstrap(np.array(after) - np.array(before), seed, "problem")
