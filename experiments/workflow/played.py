"""Programs played in a cell's world, and what a rule says of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from experiments.evaluation.metrics import Vote, elected
from experiments.workflow.operators.sc_ensemble import vote
from experiments.workflow.world import Programs
from study.cell.records import FEATURE
from study.errors import UserError
from study.programs.endings import INFRASTRUCTURE
from study.rows import Row, Truth
from study.tasks import oracle

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.trainer.world import Executed
    from judges.ask.replies import Store
    from study.config.schema import Study

MOST_REPEATS = 16
"""Runs of one program on one problem, however few tokens they take."""


@dataclass(frozen=True)
class Played:
    """What one program came to on one problem.

    Attributes:
        vote: its answer; None where executor, sandbox or grader failed, and not the program.
        tokens: of the executor, in and out; None where it does not count.
        why: what failed, where there is no vote.
    """

    vote: Vote | None
    tokens: float | None = None
    why: str = ""


Runs = dict[str, list[Played]]
"""Prompt id -> the runs on that problem."""


class Player:
    """Plays programs of one form as the policy of a study has them played; use it as a context.

    What a policy is helped by while it is trained is left out: no default program runs in place of
    an invalid one, none is mended, and the operator Test sees public tests alone.

    Args:
        count: tokens of a text, as the policy counts them.
        checked: whether programs are validated; false is for those that are known to be valid.
    Raises UserError: the executor's settings cannot work, or no sandbox holds here.
    """

    def __init__(
        self,
        config: Study,
        store: Store,
        form: str,
        count: Callable[[str], int] | None = None,
        checked: bool = True,
    ) -> None:
        settings = replace(
            config.workflow, form=form, fallback="none", repair=False, tests="public"
        )
        executor = replace(config.executor, max_failed_frac=1.0)  # what it loses is counted
        config = replace(config, workflow=settings, executor=executor)
        self._oracle = oracle(config.task)
        self.world = Programs(config, store, self._oracle, None, count, checked)
        self._task = config.task.name
        self._memo: dict[tuple[str, str, int], Played] = {}

    def play(self, rows: Sequence[Row], texts: Sequence[str], draw: int = 0) -> list[Played]:
        """What N completions to N rows came to, in the given draw of all replies.
        Raises UserError: the executor refuses, or no rule can tell of any answer."""
        pairs = {(row.prompt_id, text): row for row, text in zip(rows, texts, strict=True)}
        todo = [(row, key[1]) for key, row in pairs.items() if (*key, draw) not in self._memo]
        if todo:
            self.world.executor.draw = draw
            rows_todo, programs = [row for row, _ in todo], [text for _, text in todo]
            executed = self.world.play(rows_todo, programs)
            for (row, text), played in zip(todo, self._results(rows_todo, executed), strict=True):
                self._memo[row.prompt_id, text, draw] = played
        return [
            self._memo[row.prompt_id, text, draw] for row, text in zip(rows, texts, strict=True)
        ]

    def _results(self, rows: Sequence[Row], executed: Sequence[Executed]) -> list[Played]:
        with_answer = [place for place, each in enumerate(executed) if each.answer is not None]
        truths = self._oracle.truths(
            [rows[place] for place in with_answer],
            [executed[place].answer for place in with_answer],
        )
        if truths and all(truth is None for truth in truths):
            raise UserError(
                f"task={self._task} has no rule to check an answer with. Give a"
                " run of a task with a rule truth, such as task=workflow-mini or task=mixed."
            )
        truth_at = dict(zip(with_answer, truths, strict=True))
        results = []
        for place, (row, each) in enumerate(zip(rows, executed, strict=True)):
            assert each.played is not None
            tokens, outcome = each.columns[f"{FEATURE}tokens"], each.played.outcome
            truth = truth_at.get(place)
            if outcome in INFRASTRUCTURE:
                results.append(Played(None, tokens, outcome))
            elif each.answer is None:
                results.append(Played(Vote(None, False), tokens))
            elif isinstance(truth, Truth):
                results.append(Played(Vote(vote(row.domain, each.answer), truth.right), tokens))
            else:
                why = "no rule can tell" if truth is None else truth.reason
                results.append(Played(None, tokens, why))
        return results

    def repeat(
        self, rows: Sequence[Row], texts: Sequence[str], budgets: Mapping[str, float | None]
    ) -> Runs:
        """The runs of each row's program, repeated over the rows of a data set until they take its
        budget of mean tokens a row, at most `MOST_REPEATS` times; each repetition has its own draw
        of every reply. One run where the budget is None, or a run takes no tokens."""
        runs: Runs = {row.prompt_id: [] for row in rows}
        pairs = list(zip(rows, texts, strict=True))
        for draw in range(MOST_REPEATS):
            if not pairs:
                break
            rows_left, programs = [row for row, _ in pairs], [text for _, text in pairs]
            for row, played in zip(rows_left, self.play(rows_left, programs, draw), strict=True):
                runs[row.prompt_id].append(played)
            by_set = {
                name: [row for row in rows_left if row.dataset == name]
                for name in {row.dataset for row in rows_left}
            }
            short = {
                name
                for name, members in by_set.items()
                if falls_short([runs[row.prompt_id] for row in members], budgets.get(name))
            }
            pairs = [(row, text) for row, text in pairs if row.dataset in short]
        return runs

    def close(self) -> None:
        """End the sandboxes and the connections."""
        self.world.close()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def falls_short(runs: Sequence[Sequence[Played]], budget: float | None) -> bool:
    """Whether the runs on some rows take fewer tokens a row than the budget, and one more would
    take any."""
    tokens = mean_tokens(runs)
    last = mean_tokens([each[-1:] for each in runs])
    return budget is not None and tokens is not None and bool(last) and tokens < budget


def mean_tokens(runs: Sequence[Sequence[Played]]) -> float | None:
    """Mean over rows of the tokens of their runs, those left out of which nothing can be said; None
    where a count is unknown, or no row is left."""
    counts = [[played.tokens for played in each if played.vote is not None] for each in runs]
    counts = [each for each in counts if each]
    if not counts or any(None in each for each in counts):
        return None
    return fmean(sum(filter(None, each)) for each in counts)


def voted(runs: Sequence[Played]) -> bool | None:
    """Whether the answer that most runs came to is right, of several the one that was first; None
    where nothing can be said of any run. Where no answer can be counted, the first one decides."""
    votes = [played.vote for played in runs if played.vote is not None]
    if not votes:
        return None
    if len(votes) == 1 or all(each.ballot is None for each in votes):
        return votes[0].correct
    return elected(votes)


def any_right(runs: Sequence[Played]) -> bool | None:
    """Whether any run is right; None where nothing can be said of any."""
    votes = [played.vote for played in runs if played.vote is not None]
    return any(each.correct for each in votes) if votes else None
