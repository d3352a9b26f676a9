"""Sends a random share of a study's answers to a reference, whose scores stand for the truth.

For tasks without a rule that knows the truth. ``by=JUDGE`` asks another judge, ``by=A,B`` several,
whose mean counts, and ``by=person`` opens a page on which a person answers, one answer at a time,
without being told the arm or the score. The share is of whole groups of every finished run, drawn
before anybody is asked; a larger share later adds to them. Without ``by=`` it prints what the audit
says so far, or what each share would tell. The report, and every other command, then reads the
reference's scores as the truth of those groups.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from analysis.audit.display import audit_text, gap_by_stretch, plan_text
from analysis.audit.estimate import audit_of
from analysis.audit.person import Desk
from analysis.audit.plan import SPREAD, plan
from analysis.display.printed import show
from analysis.records.runs import Run, read_study
from analysis.statistics.estimate import columns, group_sums, ratio
from judges.ask import audit as asking
from judges.ask.replies import open_store
from judges.replay import kept_where
from judges.serving import server
from study.cell import audit as kept
from study.cell import exchange
from study.cell.audit import PERSON
from study.cell.folder import study_cells
from study.cli import FigureOptions, command, option, overrides
from study.config.bounds import Number
from study.config.compose import load_presets, preset_names
from study.errors import UserError
from study.screen import plural
from study.system import locks

LOCK = ".audit.lock"
"""Held in a study's folder by who draws and answers."""


@dataclass(frozen=True)
class Options(FigureOptions):
    """Options of `analysis.audit`: whom to ask about how many answers."""

    by: str | None = option(
        f"whom to ask: {PERSON}, or presets of judges, joined by commas; left out, nobody"
    )
    share: float = option(
        "of the groups of each tenth of a run's steps, two of each at least",
        0.05,
        Number(above=0, high=1),
    )
    seed: int = option("of the draw", 0, Number(low=0))
    rules: bool = option("also answers whose truth a rule knows, to compare the reference", False)
    answers: Path | None = option("file of a person's answers, in place of the page")
    levels: int = option("scores that the page has keys for", 5, Number(low=2, high=9))
    port: int = option("port of the page; 0 is any free one", 0, Number(low=0, high=65535))
    overrides: list[str] = overrides("judge.")

    def check(self) -> None:
        """Refuse what cannot be asked."""
        super().check()
        names = self.by.split(",") if self.by else []
        unknown = [name for name in names if name not in (PERSON, *preset_names("judge"))]
        if unknown or (PERSON in names and len(names) > 1) or len({*names}) < len(names):
            raise UserError(
                f"by={self.by} names no reference. Type by={PERSON}, or judges that each have a"
                f" preset, once: {', '.join(preset_names('judge'))}."
            )
        if self.answers is not None and names != [PERSON]:
            raise UserError(f"answers={self.answers} are a person's. Add by={PERSON}.")
        if self.overrides and (len(names) != 1 or names == [PERSON]):
            raise UserError(
                f"{self.overrides[0]} changes a judge, but by={self.by or ''} names not one. Add"
                " for example by=sim-fair."
            )


@contextmanager
def alone(study_dir: Path) -> Generator[None]:
    """No other process draws or answers meanwhile. Raises UserError: another one does."""
    try:
        with locks.held(study_dir / LOCK, wait_s=0.0):
            yield
    except locks.LockTimeout as error:
        raise UserError(
            f"Another process asks about the answers of {study_dir.name} just now. Wait for its"
            " end, or stop it: what was answered is kept."
        ) from error


def ask_judges(options: Options, names: list[str]) -> None:
    """Draw, and ask the judges about what was drawn."""
    judges = [load_presets(name, overrides=options.overrides)[0] for name in names]
    audit = asking.opened(
        options.folder,
        names,
        judges=judges,
        share=options.share,
        seed=options.seed,
        rules=options.rules,
    )
    with open_store(options.runs_dir, kept_where(study_cells(options.folder))) as store:
        calls = asking.ask(options.folder, audit, judges, store)
    print(f"{calls} judge calls made; the rest came from the store")


def ask_person(options: Options) -> None:
    """Draw, and read a person's file or open the page; it ends with Ctrl-C."""
    audit = asking.opened(
        options.folder, [PERSON], share=options.share, seed=options.seed, rules=options.rules
    )
    questions = asking.questions_of(options.folder, audit)
    path = kept.save_questions(options.folder, [question for question, _ in questions])
    if options.answers is not None:
        scores = kept.read_answers(options.answers, {question.name for question, _ in questions})
        kept.save_answers(options.folder, kept.load_answers(options.folder) | scores)
        print(f"{plural(len(scores), 'answer')} read from {options.answers}")
        return
    import uvicorn

    desk = Desk(options.folder, audit, questions, options.levels)
    listener = server.listen("127.0.0.1", options.port, "another port, or port=0 for a free one")
    port = listener.getsockname()[1]
    print(
        f"Open http://127.0.0.1:{port}/{desk.token}/ and answer; stop with Ctrl-C. The same"
        f" answers stand in {path}, for a spreadsheet: give it back with answers=FILE.",
        flush=True,
    )
    config = uvicorn.Config(desk.app(), log_level="warning", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def planned(options: Options, runs: list[Run]) -> str:
    """What an audit of each share would tell of a study that has none."""
    finished = [run for run in runs if run.done]
    if not finished:
        raise UserError(
            f"{options.study} has no finished run, and only their answers are drawn. To see its"
            f" progress, type: judgedrift monitor study={options.study}"
        )
    first = finished[0]
    steps = len(first.steps)
    return plan_text(
        plan(steps, len(first.step_P) / steps, spread=spread_of(finished)),
        study=options.study,
        steps=steps,
        members=first.judge.shape[1],
        runs=len(finished),
    )


def spread_of(runs: list[Run]) -> float:
    """SD over groups of their mean of score - truth, where the runs have truths; else `SPREAD`."""
    sums = np.concatenate([group_sums(run.judge - run.truth) for run in runs])
    gaps = ratio(sums[sums[:, 1] > 0])
    return float(gaps.std(ddof=1)) if len(gaps) > 1 else SPREAD


@command("analysis.audit study=quickstart by=sim-fair rules=true", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 asked or printed, 2 a user's error."""
    if options.by is not None:
        with alone(options.folder):
            try:
                if options.by == PERSON:
                    ask_person(options)
                else:
                    ask_judges(options, options.by.split(","))
            finally:
                exchange.push(options.folder)
    records = read_study(options.folder)
    audit = audit_of(records.runs, options.folder)
    if audit is None:
        print(planned(options, records.runs))
        return 0
    rows = [
        columns(replace(arm, by_stretch=())) | {"by_stretch": list(map(columns, arm.by_stretch))}
        for arm in audit.arms
    ]
    settings = {"study": options.study, "reference": audit.audit.reference}
    numbers = settings | {"share": audit.audit.share, "arms": rows, "problems": records.problems}
    return show(
        options,
        numbers,
        lambda: audit_text(audit, records.problems),
        lambda: gap_by_stretch(audit),
    )


if __name__ == "__main__":
    sys.exit(main())
