"""Stored rollouts scored again by another judge, grading or failure policy, and the advantages
then.

``python -m judges.replay study=NAME judge=NAME`` needs no policy and no GPU: the completions are
on record. Without ``judge=`` each run keeps its own judge, whose replies come from the store: then
only the reading of them and ``on_failure`` can differ. ``file=PATH`` scores completions of others.

``canonical=true`` shows the judge of each answer only what the rule reads of it, so that what is
left of judge minus truth is not of its style: the difference to the recorded one is surface.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from judges.ask.identity import judge_id
from judges.ask.replies import Store, open_store
from judges.ask.session import Session
from judges.grading.base import check_group
from study import truth as rules
from study.answers import answer_of
from study.cell import cells, exchange
from study.cell.audit import AUDIT
from study.cell.cells import Cell
from study.cell.completions import Completion, read_completions
from study.cell.folder import CellFolder, study_cells
from study.cell.parts import Part, read_part
from study.cell.records import PLACE, REPLAYED, VERDICT, part_name, write_part
from study.cell.verify import check_records
from study.cli import command, option, overrides
from study.config.bounds import Choice, Name, check
from study.config.compose import load_presets, preset_names
from study.config.schema import Judge, Study, VerdictStore
from study.errors import UserError
from study.finding import stop_at_problem
from study.programs.rewards import OK
from study.rewards import compose
from study.rewards.advantages import advantages
from study.rewards.corrections.corrector import Corrector, StepVerdicts
from study.rewards.failure import REPLAY_POLICIES
from study.rewards.replayed import Changed, Gaps, Replayed, RuleRow, compare, gaps
from study.rows import Row
from study.screen import print_table
from study.system.files import Damaged, say, write_json
from study.tasks import oracle
from study.verdict import VerdictRow, mean_score

JUDGES = preset_names("judge")
SCORED = ("judge_score", "reward", "advantage")
NEEDED = (*PLACE, *SCORED, "answer", "tokens", "truth")
"""Columns of a rollout that is replayed."""
NOT_IN_TABLE = ("gap", "original_gap", "domains")
"""Numbers of a replay that are printed as a sentence, or not at all."""
CANONICAL = "answer alone"
"""How a judge is marked that was shown no more of an answer than a rule reads."""
AT_ONCE = 256
"""Prompts of a file that are asked about before a refused judge stops the replay."""


@dataclass(frozen=True)
class Options:
    """The rollouts that are scored again, and the judge that scores them."""

    study: str | None = option("name of the study whose rollouts to score again", legal=Name())
    file: Path | None = option("file of completions, in place of a study")
    judge: str | None = option(
        f"preset of the judge; left out, each run's own: {', '.join(JUDGES)}"
    )
    on_failure: str | None = option(
        "how missing verdicts are handled; left out, as in each run. A replay has no run to abort",
        legal=Choice(REPLAY_POLICIES),
    )
    canonical: bool = option("show the judge only the answer that the rule reads", False)
    runs_dir: Path = option("folder that holds the studies", Path("runs"))
    out: str | None = option(
        "name of the replay, a folder below runs_dir/study/replays; with file= the Parquet file"
    )
    overrides: list[str] = overrides("judge.")

    def check(self) -> None:
        """Refuse what cannot be replayed."""
        if (self.study is None) == (self.file is None):
            raise UserError("judges.replay needs study= or file=, and takes only one of them.")
        if self.overrides and self.judge is None:
            raise UserError(
                f"{self.overrides[0]} changes a judge, but without judge= each run keeps its own"
                " judge. Add for example judge=sim-fair."
            )
        if self.file is not None and (self.judge is None or self.out is None):
            raise UserError("file= also needs judge= and out=.")
        if self.canonical and self.file is not None:
            raise UserError(
                "canonical=true needs study=, because no rule reads the answers of a file. Leave"
                " it out."
            )
        if self.study is not None:
            check("out", self.out or "own", Name())  # it becomes a folder
            if self.out == AUDIT:
                raise UserError(f"out={AUDIT} is where the study's audit lies. Name another.")


class Line(Changed, Gaps):
    """One replayed run or file, and the calls made."""

    cell: str
    judge: str
    calls: int


def replay_study(options: Options, judge: Judge | None) -> list[Line]:
    """Replay every run of a study that has rollouts.
    Raises UserError: no such study, or the judge cannot be asked."""
    study_dir = (options.runs_dir / str(options.study)).absolute()
    exchange.fetch(study_dir)
    folders = [f for f in study_cells(study_dir) if f.parts("rollouts")]
    if not folders:
        there = sorted(path.parent.name for path in options.runs_dir.glob("*/study.json"))
        raise UserError(
            f"study={options.study} has no rollouts in {options.runs_dir}. Studies there: "
            f"{', '.join(there) or 'no studies'}. Type for example: study=quickstart"
        )
    stop_at_problem(check_records(study_dir, folders))
    lines: list[Line] = []
    name = f"{judge.name}-{judge_id(judge)}" if judge else "own"
    name += f"-{options.on_failure}" if options.on_failure else ""
    name += "-canonical" if options.canonical else ""
    target = study_dir / "replays" / (options.out or name)
    for path in (target.parent, target):
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file, but should be the folder of replays. Move it away.")
    with open_store(options.runs_dir, kept_where(folders)) as store:
        for folder in folders:
            try:
                lines.append(replay_cell(cells.load_cell(folder), judge, options, store, target))
            except Damaged as error:
                say(f"{folder.name} is left out. {error}")
            write_json(target / "summary.json", lines)
    exchange.push(study_dir)
    if not lines:
        raise UserError(
            f"study={options.study} has no run that can be replayed. The reasons are above."
        )
    return lines


def kept_where(folders: Sequence[CellFolder]) -> VerdictStore:
    """Where the first run whose config can be read keeps its replies."""
    for folder in folders:
        with suppress(Damaged):
            return cells.load_cell(folder).config.store
    return VerdictStore()


def replay_cell(
    cell: Cell, judge: Judge | None, options: Options, store: Store, target: Path
) -> Line:
    """Score one run's rollouts again: what `compare` and `gaps` say, with the run and the calls
    made. Parts that are there already are kept, so a replay that was stopped goes on.
    Raises UserError: ``canonical``, and the task has answers that no rule reads."""
    config = cell.config
    judge = judge or config.judge
    policy = options.on_failure or judge.on_failure
    truth_of = oracle(config.task)
    folder = CellFolder(target / cell.name)
    for kind in ("rollouts", "verdicts"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    replayed: list[Replayed] = []
    truths: dict[str, RuleRow] = {}
    corrector = Corrector()
    with Session(judge, store, truth_of) as session:
        session.check()
        done_parts = {part.step: part for part in folder.parts("rollouts")}
        verdict_parts = {part.step: part for part in cell.folder.parts("verdicts")}
        for part in cell.folder.parts("rollouts"):
            name = part_name(part.step)
            new_part = done_parts.get(part.step, Part(folder / "rollouts" / name, part.step))
            # what is calibrated on earlier steps is made anew; the store has their replies
            if config.correction.calibrate or not _whole(new_part):
                records, rows = _records(part, truth_of.row_of, config.trainer.group_size)
                answers = [record["answer"] or "" for record in records]
                if options.canonical:
                    pairs = zip(rows, answers, strict=True)
                    answers = [_alone(row, answer) for row, answer in pairs]
                if judge.simulated is not None:  # then it says at once what it says
                    truth_of.truths(rows, answers)
                shadows: list[list[float | None]] = []
                if config.correction.panel != "none":
                    missing = Part(cell.folder / "verdicts" / name, part.step)
                    shadows = _shadow_scores(verdict_parts.get(part.step, missing), records)
                again, verdicts = _step(
                    session,
                    config,
                    records,
                    rows,
                    answers=answers,
                    shadows=shadows,
                    policy=policy,
                    corrector=corrector,
                )
                if options.canonical:
                    verdicts = [_marked(row) for row in verdicts]
                write_part(folder / "verdicts" / name, verdicts, VERDICT)
                new_part = Part(folder / "rollouts" / name, part.step)
                write_part(new_part.path, again, REPLAYED)
            replayed += read_part(new_part).to_pylist()
            truth_rows = read_part(part, ["rollout_id", "truth", "domain", "outcome"]).to_pylist()
            truths |= {record["rollout_id"]: record for record in truth_rows}
        calls = session.calls
    endings = [truths.get(row["rollout_id"], {}).get("outcome") for row in replayed]
    has_answer = [ending in (None, OK) for ending in endings]
    changed, gap_means = compare(replayed, has_answer), gaps(replayed, truths)
    return {"cell": cell.name, "judge": judge.name, **changed, **gap_means, "calls": calls}


def _alone(row: Row, answer: str) -> str:
    """What the rule reads of an answer; empty where it reads nothing."""
    if (item := row.spec.get("item")) is None:
        raise UserError(
            "canonical=true shows a judge the part of an answer that a rule reads, but no rule"
            f" reads the answers to {row.prompt_id}. It needs a study of verifiable sets, such as"
            " one of task=mixed or task=mixed-mini."
        )
    return rules.extracted(item, answer) or ""


def _marked(verdict: VerdictRow) -> VerdictRow:
    """A verdict on an answer alone, by another judge and identity than on the whole answer."""
    judge, judge_id = f"{verdict['judge']}, {CANONICAL}", f"{verdict['judge_id']}-canonical"
    return {**verdict, "judge": judge, "judge_id": judge_id}


def _whole(part: Part) -> bool:
    """Whether a replayed part is there and can be read; a damaged one is made again."""
    if not part.path.is_symlink() and not part.path.exists():
        return False
    try:
        return not set(REPLAYED) - set(read_part(part).column_names)
    except Damaged as error:
        say(f"{part} is damaged: it {error.why}; it is made again.")
        return False


def _records(
    part: Part, row_of: Callable[[str], Row | None], size: int
) -> tuple[list[dict[str, Any]], list[Row]]:
    """The rollouts of a part, in order, and the row of each.
    Raises Damaged: they are not what `_step` needs."""
    table = read_part(part)
    if lacking := set(NEEDED) - set(table.column_names):
        raise Damaged(part.path, f"has no {', '.join(sorted(lacking))}")
    if not table.num_rows:
        raise Damaged(part.path, "has no rows")
    records = table.to_pylist()
    rows = [row_of(record["prompt_id"] or "") for record in records]
    task_rows = [row for row in rows if row is not None]
    if len(task_rows) < len(rows) or any(record["rollout_id"] is None for record in records):
        raise Damaged(part.path, "holds rollouts of no prompt of its task")
    if len(records) % size:
        raise Damaged(
            part.path, f"holds {len(records)} rollouts, not a multiple of the group size {size}"
        )
    order = sorted(range(len(records)), key=lambda place: records[place]["rollout_id"])
    return [records[place] for place in order], [task_rows[place] for place in order]


def _step(
    session: Session,
    config: Study,
    records: list[dict[str, Any]],
    rows: list[Row],
    *,
    answers: list[str],
    shadows: list[list[float | None]],
    policy: str,
    corrector: Corrector,
) -> tuple[list[Replayed], list[VerdictRow]]:
    """One step's rollouts with new score, reward and advantage, and the verdicts behind them.
    ``answers`` are shown to the judge; the rest of a reward is made of what is on record, as are
    the scores by ``shadows``, of each shadow judge."""
    size = config.trainer.group_size
    inputs = [
        compose.recorded(config, row, record) for row, record in zip(rows, records, strict=True)
    ]
    judged_inputs = [
        replace(rollout, answer=answer) for rollout, answer in zip(inputs, answers, strict=True)
    ]
    votes_N = session.ask_many([rollout.item for rollout in judged_inputs], size)
    session.stop_if_refused()
    scores = [mean_score(votes) for votes in votes_N]
    step = records[0]["step"]
    corrected, _ = corrector(StepVerdicts(config, step, size, inputs, votes_N, shadows))
    rewards = compose.recompose(config, inputs, corrected, size, policy)
    rewards_P_G = np.array(rewards, dtype=float).reshape(-1, size)
    after = advantages(rewards_P_G, config.trainer.scale_rewards).ravel().tolist()
    verdicts = [
        verdict.row_of(record["rollout_id"], step=record["step"], role="replay")
        for record, votes in zip(records, votes_N, strict=True)
        for verdict in votes
    ]
    replayed = [
        _replayed(record, new=new, old=(record[name] for name in SCORED))
        for record, *new in zip(records, scores, rewards, after, strict=True)
    ]
    return replayed, verdicts


def _shadow_scores(part: Part, records: Sequence[dict[str, Any]]) -> list[list[float | None]]:
    """What each shadow judge on record said of these rollouts: the mean of its scored votes."""
    columns = ["rollout_id", "judge", "role", "score"]
    scores_by_judge: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for verdict in read_part(part, columns).to_pylist():
        if verdict["role"] == "shadow" and verdict["score"] is not None:
            scores_by_judge[verdict["judge"]][verdict["rollout_id"]].append(verdict["score"])
    ids = [record["rollout_id"] for record in records]
    return [
        [float(np.mean(scores[name])) if name in scores else None for name in ids]
        for scores in scores_by_judge.values()
    ]


def _replayed(
    place: Mapping[str, Any], *, new: Iterable[float | None], old: Iterable[float | None]
) -> Replayed:
    """A row of `REPLAYED`; ``new`` and ``old`` are judge score, reward and advantage."""
    score, reward, advantage = new
    original_score, original_reward, original_advantage = old
    return {
        "rollout_id": place["rollout_id"],
        "step": place["step"],
        "prompt_id": place["prompt_id"],
        "group": place["group"],
        "member": place["member"],
        "judge_score": score,
        "reward": reward,
        "advantage": advantage,
        "original_score": original_score,
        "original_reward": original_reward,
        "original_advantage": original_advantage,
    }


def replay_file(path: Path, judge: Judge, out: Path) -> Line:
    """Score completions that others wrote; groups are the completions of one prompt at one step.
    Raises UserError: the file, or a judge that knows only the prompts of its own task.
    """
    if judge.needs_rows:
        raise UserError(
            f"judge={judge.name} knows the truths or references of its own task's prompts only."
            " Name another judge for file=, or replay a study with it."
        )
    completions, lost = read_completions(path)
    print(f"{path}: {len(completions)} completions read, {lost} lost records")
    by_prompt: dict[tuple[int, str], list[Completion]] = defaultdict(list)
    for completion in completions:
        by_prompt[completion.step, completion.row.prompt_id].append(completion)
    groups = list(by_prompt.values())
    scores: list[list[float | None]] = []
    with Session(judge, None) as session:
        session.check()
        if session.compares:
            check_group(judge.grading.name, min(map(len, groups), default=2))
        for start in range(0, len(groups), AT_ONCE):
            scores += _scores(session, groups[start : start + AT_ONCE])
            session.stop_if_refused()
        calls = session.calls
    replayed: list[Replayed] = []
    for number, (members, new) in enumerate(zip(groups, scores, strict=True)):
        after = advantages(np.array([new], dtype=float))[0].tolist()
        for index, (member, score, advantage) in enumerate(zip(members, new, after, strict=True)):
            place = {
                "rollout_id": str(member.place),
                "step": member.step,
                "prompt_id": member.row.prompt_id,
                "group": number,
                "member": index,
            }
            old = (member.reward, member.reward, member.advantage)
            replayed.append(_replayed(place, new=(score, score, advantage), old=old))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_part(out, replayed, REPLAYED)
    return {"cell": path.name, "judge": judge.name, **compare(replayed), "calls": calls}


def _scores(session: Session, groups: Sequence[Sequence[Completion]]) -> list[list[float | None]]:
    """The score of each completion. Records of one prompt may bring criteria of their own: only a
    grading that compares judges all of a group by its first row."""
    size = max(map(len, groups))
    items: list[tuple[Row, str] | None] = []
    for group in groups:
        items += [(member.row, answer_of(member.completion) or "") for member in group]
        items += [None] * (size - len(group))  # groups of one size
    scores = iter(map(mean_score, session.ask_many(items, size)))
    return [list(islice(scores, size))[: len(group)] for group in groups]


@command("judges.replay study=quickstart judge=sim-fair", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 replayed, 2 a user's error."""
    judge = None
    if options.judge is not None:
        judge, _ = load_presets(options.judge, overrides=options.overrides)
    if options.file is not None:
        assert judge is not None and options.out is not None
        lines = [replay_file(options.file, judge, Path(options.out))]
    else:
        lines = replay_study(options, judge)
    printable = [{k: _shown(v) for k, v in line.items() if k not in NOT_IN_TABLE} for line in lines]
    print_table(printable, f"Replay of {options.study or options.file}")
    for line in lines:
        if "gap" in line:
            on = " on the answers alone" if options.canonical else ""
            new, old = (f"{line[name]:+.3f}" for name in ("gap", "original_gap"))
            print(f"{line['cell']}: judge minus truth {new}{on}, {old} as recorded")
    print(f"{sum(line['calls'] for line in lines)} judge calls made; the rest came from the store")
    if options.study:
        print(f"Written under {options.runs_dir / options.study / 'replays'}")
    return 0


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
