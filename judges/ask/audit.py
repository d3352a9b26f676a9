"""A reference is asked about a drawn share of a study's answers: `study.cell.audit` says which.

The reference is one judge, several whose mean counts, or a person. What judges say is kept as
verdicts of the role ``replay``, a part for each step, and their replies in the store; who is
stopped goes on where it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from judges.ask.identity import judge_id
from judges.ask.replies import Store
from judges.ask.session import Session
from study.cell import audit as kept
from study.cell import cells
from study.cell.audit import Audit, Frame, Question
from study.cell.folder import CellFolder, study_cells
from study.cell.parts import read_part
from study.cell.records import PLACE, VERDICT, part_name, write_part
from study.cell.verify import check_records
from study.config.schema import Judge, Study
from study.errors import UserError
from study.finding import stop_at_problem
from study.progress import each
from study.rows import Row
from study.system.files import Damaged
from study.tasks import oracle
from study.truth.oracle import Oracle
from study.verdict import Outcome, VerdictRow

AT_ONCE = 256
"""Answers that are asked about together, of as many steps as it takes."""
AGAIN = (Outcome.timeout, Outcome.rate_limited, Outcome.transport, Outcome.endpoint_down)
"""How a request ends of which nobody has read the answer: the group is asked about again by the
next command."""


class Answer(NamedTuple):
    """An answer of a drawn group."""

    rollout_id: str
    group: int
    row: Row
    text: str


def opened(
    study_dir: Path,
    reference: Sequence[str],
    *,
    judges: Sequence[Judge] = (),
    share: float,
    seed: int,
    rules: bool,
) -> Audit:
    """The audit of a study by this reference, with as many groups drawn as the share takes; begun
    where there is none, and written before anybody is asked.

    Raises:
        UserError: another reference was asked before, or no answer of a finished run may be drawn.
        Damaged: records cannot be read.
    """
    audit = kept.load(study_dir)
    ids = tuple(map(judge_id, judges))
    if audit is not None and (audit.reference, audit.reference_ids) != (tuple(reference), ids):
        raise UserError(
            f"The answers of {study_dir.name} were sent to {', '.join(audit.reference)}, and an"
            " audit has one reference. Name that one, with the same settings, or begin another:"
            f" mv {kept.folder_of(study_dir)} {study_dir.parent}/{study_dir.name}-audit"
        )
    if audit is not None:
        seed, rules, share = audit.seed, audit.rules, max(audit.share, share)
    else:
        seed, share = _as_trained(study_dir, reference, ids, seed, share)
    frames = list(frames_of(study_dir, rules=rules))
    earlier, asked = (audit.groups, audit.asked) if audit is not None else ((), 0)
    groups, sizes = kept.draw(frames, share, seed, earlier)
    steps = {frame.cell: frame.steps for frame in frames}
    audit = Audit(tuple(reference), ids, share, seed, rules, tuple(groups), sizes, steps, asked)
    kept.save(audit, study_dir)
    return audit


def _as_trained(
    study_dir: Path, reference: Sequence[str], ids: Sequence[str], seed: int, share: float
) -> tuple[int, float]:
    """Seed and share of a draw that takes in what ``truth.audit`` drew of runs as they were
    trained. Raises UserError: another reference was asked then."""
    for folder in study_cells(study_dir):
        config = cells.load_cell(folder).config
        if not config.truth.audit:
            continue
        if [*map(judge_id, config.auditors)] != [*ids]:
            names = ",".join(config.truth.audit)
            raise UserError(
                f"{folder.name} asked {names} while it was trained, and an audit has one reference,"
                f" but by={','.join(reference)} is another, or has other settings. Type by={names}"
            )
        seed, share = config.truth.seed, max(share, config.truth.share)
    return seed, share


def frames_of(study_dir: Path, *, rules: bool) -> Iterator[Frame]:
    """The groups of finished runs that may be drawn: those of which no truth is known by rule, or
    all of them where ``rules``.

    Raises:
        UserError: there is none.
        Damaged: records cannot be read.
    """
    folders = [folder for folder in study_cells(study_dir) if folder.is_done()]
    stop_at_problem(check_records(study_dir, folders))
    groups = 0
    for folder in folders:
        config = cells.load_cell(folder).config
        declared = 0 if config.correction.stop else config.trainer.steps
        for name in (folder.name, kept.held_out(folder.name)):
            table = _places(study_dir / name, rules=rules)
            if not len(table):
                continue
            groups += len(table)
            steps = table["step"]
            if name != folder.name:  # how far a run moved, its first and last evaluation say
                table = table[steps.isin([steps.min(), steps.max()])]
            yield Frame(
                cell=name,
                seed=config.seed,
                steps=max(declared, int(steps.max())),
                step_P=table["step"].to_numpy(dtype=int),
                group_P=table["group"].to_numpy(dtype=int),
            )
    if groups:
        return
    if not folders:
        raise UserError(
            f"{study_dir.name} has no finished run, and only their answers are drawn. To see its"
            f" progress, type: judgedrift monitor study={study_dir.name}"
        )
    raise UserError(
        f"A rule knows the truth of all answers of {study_dir.name}, so that an audit would add"
        " nothing. To see how well a reference agrees with the rule, add rules=true."
    )


def _places(folder: Path, *, rules: bool) -> pd.DataFrame:
    """Step and group of what may be drawn of the answers on record in a folder."""
    columns = ["step", "group", "truth"]
    tables = [read_part(part, columns) for part in CellFolder(folder).parts("rollouts")]
    if not tables:
        return pd.DataFrame(columns=columns[:2])
    known = pa.concat_tables(tables).to_pandas().groupby(columns[:2])["truth"].count()
    return known.index.to_frame(index=False)[(known == 0).to_numpy() | rules]


def answers_of(study_dir: Path, audit: Audit, cell: str) -> Iterator[tuple[int, list[Answer]]]:
    """Step -> the answers of its drawn groups in one run, by group and member.
    Raises Damaged: the records cannot be read, or hold an answer to no prompt of the task."""
    folder = CellFolder(study_dir / cell)
    row_of = oracle(_config(study_dir, cell).task).row_of
    steps = audit.steps_of(cell)
    for part in folder.parts("rollouts"):
        if part.step not in steps:
            continue
        records = read_part(part, [*PLACE, "answer"]).to_pylist()
        wanted = [record for record in records if record["group"] in steps[part.step]]
        wanted.sort(key=lambda record: (record["group"], record["member"]))
        found = []
        for record in wanted:
            if (row := row_of(record["prompt_id"] or "")) is None:
                raise Damaged(part.path, "holds an answer to no prompt of its task")
            text = record["answer"] or ""
            found.append(Answer(record["rollout_id"], record["group"], row, text))
        yield part.step, found


def questions_of(study_dir: Path, audit: Audit) -> list[tuple[Question, Row]]:
    """All answers that were drawn, group by group in the order of the draw, those of a group in an
    order that tells nothing; equal answers have one name. Raises Damaged: as `answers_of`."""
    place_of = {(each.cell, each.step, each.group): n for n, each in enumerate(audit.groups)}
    by_group: dict[int, list[tuple[Question, Row]]] = {}
    for cell in dict.fromkeys(drawn.cell for drawn in audit.groups):
        for step, answers in answers_of(study_dir, audit, cell):
            for answer in answers:
                place = place_of[cell, step, answer.group]
                name = kept.question_of(audit, answer.row.prompt_id, answer.text)
                question = Question(name, place, answer.row.prompt_text(), answer.text)
                by_group.setdefault(place, []).append((question, answer.row))
    return [
        each
        for place in sorted(by_group)
        for each in sorted(by_group[place], key=lambda pair: pair[0].name)
    ]


def _config(study_dir: Path, cell: str) -> Study:
    """The config of the run whose answers are drawn under a name."""
    return cells.load_cell(CellFolder(study_dir / kept.run_of(cell))).config


def ask(study_dir: Path, audit: Audit, judges: Sequence[Judge], store: Store) -> int:
    """Ask judges about every drawn answer that has no verdict of theirs yet; returns the calls.
    The groups count when all have been asked about.

    Raises:
        UserError: a judge cannot be asked.
        Damaged: records cannot be read.
    """
    calls = 0
    drawn = dict.fromkeys(group.cell for group in audit.groups)
    for cell in each(drawn, "runs", len(drawn)):
        truth_of = oracle(_config(study_dir, cell).task)
        with ExitStack() as stack:
            sessions = [stack.enter_context(Session(judge, store, truth_of)) for judge in judges]
            for session in sessions:
                session.check()
            folder = kept.cell_of(study_dir, cell) / "verdicts"
            folder.mkdir(parents=True, exist_ok=True)
            for steps in _batches(study_dir, audit, cell):
                _ask_steps(steps, sessions, folder, truth_of)
            calls += sum(session.calls for session in sessions)
    kept.save(replace(audit, asked=len(audit.groups)), study_dir)
    return calls


def _batches(
    study_dir: Path, audit: Audit, cell: str
) -> Iterator[dict[int, tuple[list[Answer], list[dict[str, Any]]]]]:
    """Step -> answers to ask about, and verdicts on others that stay; about `AT_ONCE` at a time."""
    there = {part.step: part for part in kept.cell_of(study_dir, cell).parts("verdicts")}
    batch: dict[int, tuple[list[Answer], list[dict[str, Any]]]] = {}
    for step, answers in answers_of(study_dir, audit, cell):
        before = read_part(there[step]).to_pylist() if step in there else []
        group_of = {answer.rollout_id: answer.group for answer in answers}
        again = {group_of.get(each["rollout_id"]) for each in before if each["outcome"] in AGAIN}
        done = {group_of.get(each["rollout_id"]) for each in before} - again
        verdicts = [each for each in before if group_of.get(each["rollout_id"]) in done]
        new = [answer for answer in answers if answer.group not in done]
        if new:
            batch[step] = (new, verdicts)
        if sum(len(answers) for answers, _ in batch.values()) >= AT_ONCE:
            yield batch
            batch = {}
    if batch:
        yield batch


def _ask_steps(
    steps: dict[int, tuple[list[Answer], list[dict[str, Any]]]],
    sessions: Sequence[Session],
    folder: Path,
    truth_of: Oracle,
) -> None:
    """Ask about whole groups of several steps, and write a part for each step."""
    places = [(step, answer) for step, (answers, _) in steps.items() for answer in answers]
    size = max(Counter((step, answer.group) for step, answer in places).values())
    items: list[tuple[Row, str] | None] = []
    at: list[int] = []
    """Place in ``items`` of each answer: a group that lost a rollout is filled up."""
    before: tuple[int, int] | None = None
    for step, answer in places:
        if (step, answer.group) != before:
            items += [None] * (-len(items) % size)
            before = (step, answer.group)
        at.append(len(items))
        items.append((answer.row, answer.text))
    items += [None] * (-len(items) % size)
    if any(session.judge.simulated is not None for session in sessions):  # they say it at once
        truth_of.truths([answer.row for _, answer in places], [answer.text for _, answer in places])
    rows: dict[int, list[VerdictRow]] = {step: [] for step in steps}
    for session in sessions:
        votes_N = session.ask_many(items, size)
        session.stop_if_refused()
        for place, (step, answer) in zip(at, places, strict=True):
            rows[step] += [
                verdict.row_of(answer.rollout_id, step=step, role="replay")
                for verdict in votes_N[place]
            ]
    for step, (_, verdicts) in steps.items():
        write_part(folder / part_name(step), [*verdicts, *rows[step]], VERDICT)
