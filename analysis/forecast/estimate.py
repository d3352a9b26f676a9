"""What each judge would push, from rollouts of the policy before training.

Every candidate scores the rollouts of the first step of a study, which no judge has taught anything
yet, the scores become the rewards and advantages that training would have made, and judges are
ranked by the push E Cov(A, z) on each behaviour, with intervals over prompts.
`analysis.forecast.units` turns it into shifts at the end of training.

`rank` says how sure the order of the judges is: prompts are drawn again for all of them at once, so
what prompts share does not blur it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from analysis.forecast.reference import votes_of, with_reference
from analysis.ledger.transmission import group_cov, scored_advantages
from analysis.records.frames import OPERATOR, runs_frame
from analysis.statistics.estimate import Estimate, columns
from analysis.statistics.intervals import mean_interval
from study.cell.cells import Cell, load_cell
from study.cell.folder import study_cells
from study.cell.parts import read_part
from study.cell.records import FEATURE
from study.config.compose import load_presets
from study.config.schema import Judge, Study, Trainer
from study.errors import UserError
from study.features import FEATURES, measured, shared_keyword
from study.programs.endings import Ending
from study.rewards import compose
from study.rewards.corrections.corrector import Corrector, StepVerdicts
from study.rows import Row
from study.system.files import Damaged, say
from study.tasks import kind_of
from study.verdict import mean_score

DRAWS = 2000
DRAWN_FROM = ("policy", "task")
SAMPLED = ("temperature", "top_p", "top_k", "max_completion_length")
"""Settings of a trainer on which rollouts before training depend."""
OWN = "study"
"""For the judges of a study, in place of names of presets."""


@dataclass(frozen=True)
class Ranked:
    """One judge's place on one behaviour, 1 pushes it up most, with its place in 95 % of the draws
    of prompts."""

    judge: str
    feature: str
    rank: Estimate


def rank(
    covariances: Mapping[str, np.ndarray], names: Sequence[str], seed: int = 0
) -> list[Ranked]:
    """Places of all judges on each behaviour; behaviours that a judge has no push on are left out.

    Args:
        covariances: judge -> Cov(advantage, feature) of each group, shape (P, K).
        names: the K features.
    """
    stacked = np.stack(list(covariances.values()))
    finite = np.isfinite(stacked)
    filled = np.where(finite, stacked, 0.0)
    prompts = stacked.shape[1]
    drawn = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / prompts), DRAWS)
    weights = np.concatenate([np.ones((1, prompts)), drawn])
    sums = np.einsum("bp,jpk->bjk", weights, filled)
    counts = np.einsum("bp,jpk->bjk", weights, finite.astype(float))
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    lines = []
    for k, name in enumerate(names):
        if not np.isfinite(means[0, :, k]).all() or np.ptp(means[0, :, k]) == 0:
            continue
        whole = means[:, :, k][np.isfinite(means[:, :, k]).all(axis=1)]
        places = rankdata(-whole, method="min", axis=1)
        low, high = np.quantile(places[1:], [0.025, 0.975], axis=0, method="closest_observation")
        by_judge = zip(places[0].tolist(), low.tolist(), high.tolist(), strict=True)
        lines += [
            Ranked(judge, name, Estimate(*ends, prompts, "prompt"))
            for judge, ends in zip(covariances, by_judge, strict=True)
        ]
    return lines


Record = Mapping[str, Any]
"""A rollout as its row of the records: columns differ by task."""


@dataclass(frozen=True)
class Rollouts:
    """Groups of first rollouts: rows (P,), records (P, G) and the answers' features (P, G, K)."""

    rows: tuple[Row, ...]
    records: tuple[tuple[Record, ...], ...]
    features: np.ndarray
    names: tuple[str, ...]

    @property
    def has_answer(self) -> np.ndarray:
        """Whether a judge is asked about each, (P, G): not where a program came to no answer."""
        return np.array([[r["outcome"] in (None, Ending.OK) for r in g] for g in self.records])

    @property
    def items(self) -> list[list[tuple[Row, str] | None]]:
        """Row and answer of each, (P, G); None where there is no answer."""
        return [
            [
                (row, record["answer"] or "") if answered else None
                for record, answered in zip(group, answered_G, strict=True)
            ]
            for row, group, answered_G in zip(self.rows, self.records, self.has_answer, strict=True)
        ]


@dataclass(frozen=True)
class Push:
    """What one judge would do to one behaviour on the first rollouts.

    ``push`` is the mean within-group Cov(advantage, feature) with its t interval over prompts;
    ``in_sds`` the same in SDs of the feature over rollouts.
    """

    judge: str
    feature: str
    push: Estimate
    in_sds: float
    prompts: int
    unscored: float


def covariances(rewards_P_G: np.ndarray, rollouts: Rollouts, scale: str) -> np.ndarray:
    """Cov(advantage, feature) inside groups, mean over those of one prompt: (prompts, K).

    NaN rewards are left out; ``scale`` is ``scale_rewards`` of the training that is forecast.
    """
    advantage = scored_advantages(rewards_P_G, scale)
    by_group = pd.DataFrame(group_cov(advantage, rollouts.features))
    return by_group.groupby([row.prompt_id for row in rollouts.rows]).mean().to_numpy()


def pushes(
    judge: str,
    rewards_P_G: np.ndarray,
    rollouts: Rollouts,
    scale: str,
    unscored: float | None = None,
) -> list[Push]:
    """The push of one judge on every feature; ``unscored`` is the share of NaN rewards if None."""
    covariance = covariances(rewards_P_G, rollouts, scale)
    missing = float(1 - np.isfinite(rewards_P_G).mean()) if unscored is None else unscored
    lines = []
    for k, name in enumerate(rollouts.names):
        push = mean_interval(covariance[:, k].tolist(), unit="prompt")
        values = rollouts.features[..., k]
        finite = values[np.isfinite(values)]
        spread = float(finite.std()) if finite.size else 0.0
        in_sds = push.value / spread if spread > 0 else float("nan")
        lines.append(Push(judge, name, push, in_sds, push.n, missing))
    return lines


def first_rollouts(cells: Sequence[Cell], keyword: str = "") -> Rollouts:
    """The distinct groups of the first step of all runs.

    Arms of one seed share their first rollouts, which are then taken once. A missing answer has NaN
    features; the calls of each operator are features of an executed program.
    Raises UserError: nothing is recorded, or groups differ in size.
    """
    task = cells[0].config.task
    row_of = kind_of(task).lookup(task)
    groups: dict[tuple[str | None, ...], tuple[Row, tuple[Record, ...]]] = {}
    needed = ["rollout_id", "group", "prompt_id", "answer", "tokens", "truth", "rules", "outcome"]
    for cell in cells:
        for part in cell.folder.parts("rollouts")[:1]:
            try:
                table = read_part(part)
            except Damaged as error:
                say(f"{part} is left out: it {error.why}.")
                continue
            absent = dict.fromkeys(needed)  # as another version's parts may be
            records = [absent | row for row in table.to_pylist()]
            rows_of = {r["prompt_id"]: row_of(r["prompt_id"] or "") for r in records}
            if None in rows_of.values() or any(r["rollout_id"] is None for r in records):
                say(f"{part} is left out: it holds rollouts of no prompt of the task.")
                continue
            for number in sorted({record["group"] for record in records}):
                group = [record for record in records if record["group"] == number]
                group.sort(key=lambda record: record["rollout_id"])
                prompt = group[0]["prompt_id"]
                same = ("answer", "program_sha")
                key = (prompt, *(record.get(name) for record in group for name in same))
                row = rows_of[prompt]
                assert row is not None
                groups.setdefault(key, (row, tuple(group)))
    sizes = {len(members) for _, members in groups.values()}
    if len(sizes) != 1:
        raise UserError(
            f"The first rollouts of these runs have groups of {sorted(sizes) or 'no'} members."
            " A forecast needs recorded steps of one group size."
        )
    rows, members = zip(*groups.values(), strict=True)
    all_records = [record for group in members for record in group]
    values = measured([record["answer"] for record in all_records], keyword)
    calls = sorted(set.intersection(*(set(record) for record in all_records)))
    calls = [name for name in calls if name.startswith(OPERATOR)]
    call_counts = [
        [record[name] if record["outcome"] == Ending.OK else None for name in calls]
        for record in all_records
    ]
    values = np.hstack(
        [values, np.array(call_counts, dtype=float).reshape(len(all_records), len(calls))]
    )
    names = (*FEATURES, *(name.removeprefix(FEATURE) for name in calls))
    shape = (len(members), len(members[0]), len(names))
    return Rollouts(rows, members, values.reshape(shape), names)


def rewards(
    judge: Judge, config: Study, rollouts: Rollouts, runs_dir: Path
) -> tuple[np.ndarray, np.ndarray]:
    """The judge's scores of all rollouts and the rewards that ``config`` makes of them, (P, M).

    NaN is a missing score or reward. Rows are put to the judge in groups as they are trained,
    scores corrected, failures treated and parts added up as in the first step of ``config``.
    """
    recorded = [
        compose.recorded(config, row, record)
        for row, group in zip(rollouts.rows, rollouts.records, strict=True)
        for record in group
    ]
    items = [rollout.item for rollout in recorded]
    of_prompt, group = len(rollouts.records[0]), config.trainer.group_size
    size = of_prompt if of_prompt % group else group
    panel = config.shadows if config.correction.panel != "none" else ()
    votes_J_N = votes_of((judge, *panel), items, size, config, runs_dir)
    scores, *others = [[mean_score(votes) for votes in votes_N] for votes_N in votes_J_N]
    corrected, _ = Corrector()(StepVerdicts(config, 1, size, recorded, votes_J_N[0], others))
    paid = compose.recompose(config, recorded, corrected, size, judge.on_failure)
    scores_P_M, paid_P_M = np.array([scores, paid], dtype=float).reshape(2, -1, of_prompt)
    return scores_P_M, paid_P_M


@dataclass(frozen=True)
class Candidate:
    """A judge, and the configuration of the training that would take it."""

    judge: Judge
    config: Study


def choose(
    names: str, cells: Sequence[Cell], arms: Mapping[str, str], trainer: Trainer | None = None
) -> dict[str, Candidate]:
    """Label -> candidate: presets by name under the configuration of the first run, or with
    ``study`` the judge of each arm under its own; ``trainer`` in its place. Raises UserError: no
    such preset."""
    if names == OWN:
        by_arm = {arms[cell.name]: cell.config for cell in cells}
        of_arms = [arm for arm in dict.fromkeys(arms.values()) if arm in by_arm]
        chosen = {arm: Candidate(by_arm[arm].judge, by_arm[arm]) for arm in of_arms}
    else:
        config = cells[0].config
        chosen = {name: Candidate(load_presets(name)[0], config) for name in names.split(",")}
    return {
        label: replace(each, config=_with_trainer(each.config, trainer))
        for label, each in chosen.items()
    }


def _with_trainer(config: Study, trainer: Trainer | None) -> Study:
    return config if trainer is None else replace(config, trainer=trainer)


@dataclass(frozen=True)
class BaseRewards:
    """Rollouts before training and what each candidate's training would pay for them.

    Attributes:
        study: whose judges are forecast, and ``base`` that whose rollouts are read.
        truth: of each rollout, (P, M), by rule, else by the judges that audit the base study; NaN
            where neither can tell.
        paid: candidate -> rewards (P, M).
        unscored: candidate -> share of the rollouts that it gave no score.
        config: of the study's first run, with the trainer that was asked for.
        of_study: whether the candidates are its arms, each as it was configured.
    """

    study: str
    base: str
    config: Study
    of_study: bool
    rollouts: Rollouts
    truth: np.ndarray
    candidates: dict[str, Candidate]
    paid: dict[str, np.ndarray]
    unscored: dict[str, float]

    @property
    def policy(self) -> str:
        """Its preset's name."""
        return self.config.policy.name

    def trainer(self, label: str) -> Trainer:
        """Settings of the candidate's training."""
        return self.candidates[label].config.trainer


def ask(
    study_dir: Path, judges: str, base_dir: Path | None = None, trainer: Trainer | None = None
) -> BaseRewards:
    """Put rollouts before training to every candidate; to none where ``judges`` is empty.

    Args:
        study_dir: of the candidates.
        base_dir: the study whose rollouts of the first step are put to them; left out, the same.
        trainer: in place of the recorded one.

    Raises UserError: no runs with rollouts, judges that cannot be asked, or a base of another
    policy or task.
    """
    cells = _readable(study_dir)
    base = cells if base_dir in (None, study_dir) else _readable(base_dir)
    runs = runs_frame(study_dir)
    for problem in runs.attrs["problems"]:
        say(f"{problem}.")
    arms = dict(zip(runs["cell"].astype("str"), runs["arm"].astype("str"), strict=True))
    chosen = choose(judges, cells, arms, trainer) if judges else {}
    all_judges = [cell.config.judge for cell in cells] + [each.judge for each in chosen.values()]
    keyword = shared_keyword(judge.simulated.keyword for judge in all_judges if judge.simulated)
    config = _with_trainer(cells[0].config, trainer)
    for each in (config, *(candidate.config for candidate in chosen.values())):
        _check_base(each, base[0])
    rollouts = first_rollouts(base, keyword)
    truth = np.array(
        [[record["truth"] for record in group] for group in rollouts.records], dtype=float
    )
    if judges:
        truth = with_reference(truth, rollouts.items, base_dir or study_dir, base[0].config)
    paid, unscored = {}, {}
    for label, each in chosen.items():
        scores, paid[label] = rewards(each.judge, each.config, rollouts, study_dir.parent)
        unscored[label] = float(np.isnan(scores[rollouts.has_answer]).mean())
    return BaseRewards(
        study=study_dir.name,
        base=(base_dir or study_dir).name,
        config=config,
        of_study=judges == OWN,
        rollouts=rollouts,
        truth=truth,
        candidates=chosen,
        paid=paid,
        unscored=unscored,
    )


def _readable(study_dir: Path) -> list[Cell]:
    """The cells of a study with rollouts. Raises UserError: there are none."""
    cells = []
    for folder in study_cells(study_dir):
        if folder.parts("rollouts"):
            try:
                cells.append(load_cell(folder))
            except Damaged as error:
                say(f"{folder.name} is left out. {error}")
    if not cells:
        raise UserError(f"{study_dir} has no readable rollouts. Run one cell for one step first.")
    return cells


def _check_base(config: Study, base: Cell) -> None:
    """Raises UserError: the base is of another policy or task, or was sampled otherwise than the
    training of ``config`` samples."""
    drawn, name = base.config, base.folder.path.parent.name
    pairs = {
        **{group: [getattr(each, group).name for each in (config, drawn)] for group in DRAWN_FROM},
        **{
            f"trainer.{key}": [getattr(each.trainer, key) for each in (config, drawn)]
            for key in SAMPLED
        },
    }
    for key, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise UserError(
                f"{name} has rollouts of {key}={theirs}, and what is forecast has {key}={ours}."
                f" Type judgedrift sweep experiment=base {key}={ours} study=NAME, and base=NAME"
                " here."
            )


@dataclass(frozen=True)
class Pushes:
    """The push of every candidate on every behaviour, from ``rollouts`` answers of the policy
    before training to each of so many prompts, which lie in the study ``base``."""

    study: str
    base: str
    prompts: int
    rollouts: int
    pushes: list[Push]
    ranks: list[Ranked]

    def numbers(self) -> dict[str, object]:
        """For JSON."""
        return {
            **{"study": self.study, "base": self.base, "unit": "prompt"},
            **{"prompts": self.prompts, "rollouts": self.rollouts},
            "pushes": [columns(line, push="") for line in self.pushes],
            "ranks": [columns(line, rank="") for line in self.ranks],
        }


def forecast(base_rewards: BaseRewards) -> Pushes:
    """The push of every candidate on every behaviour, and their ranks."""
    lines: list[Push] = []
    by_judge = {}
    for label, paid in base_rewards.paid.items():
        trainer = base_rewards.trainer(label)
        groups = grouped(base_rewards.rollouts, trainer.group_size)
        paid_P_G = paid.reshape(len(groups.rows), -1)
        scale = trainer.scale_rewards
        lines += pushes(label, paid_P_G, groups, scale, base_rewards.unscored[label])
        by_judge[label] = covariances(paid_P_G, groups, scale)
    rollouts = base_rewards.rollouts
    prompts = len({row.prompt_id for row in rollouts.rows})
    return Pushes(
        study=base_rewards.study,
        base=base_rewards.base,
        prompts=prompts,
        rollouts=sum(map(len, rollouts.records)) // prompts,
        pushes=lines,
        ranks=rank(by_judge, rollouts.names) if by_judge else [],
    )


def grouped(rollouts: Rollouts, size: int) -> Rollouts:
    """Rollouts in groups of ``size``, as they are trained; as they are where that does not divide
    those of a prompt."""
    of_prompt = rollouts.features.shape[1]
    if of_prompt % size:
        return rollouts
    parts = of_prompt // size
    rows = tuple(row for row in rollouts.rows for _ in range(parts))
    records = tuple(
        group[place : place + size]
        for group in rollouts.records
        for place in range(0, of_prompt, size)
    )
    shape = (len(rows), size, len(rollouts.names))
    return Rollouts(rows, records, rollouts.features.reshape(shape), rollouts.names)
