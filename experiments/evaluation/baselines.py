"""What an accuracy is to be compared with: a constant answer, other methods, an untrained policy.

The constant answer is graded on the spot. The others are evaluations of their own: they are looked
for in the results beside this one, and where one is not there the table has the command that makes
it. Each is taken over the very rows of this evaluation.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NotRequired, TypedDict

from analysis.statistics.estimate import Estimate
from experiments.evaluation.metrics import Vote, best_of, majority, rate
from experiments.evaluation.options import Options
from study.errors import UserError
from study.system.files import read_json
from study.tasks.datasets.sets import SETS
from study.tasks.files import records
from study.truth import Grader, score
from study.truth.item import Item
from study.truth.votes import ballot

SAMPLES, TEMPERATURE = 8, 0.7
"""Of self-consistency, where nothing else is typed (Wang et al. 2023 sample at 0.7)."""
CONSTANT = "def {name}(*args, **kwargs):\n    return True"
"""The program that answers every task of code alike."""


@dataclass(frozen=True)
class Evaluated:
    """One set of a result that is there: who answered how, and every answer."""

    path: Path
    model: str | None
    method: str | None
    dataset: str
    split: str
    tokens: float | None
    """Mean number of tokens of an answer."""
    items: Path
    rows: str
    """Hash of all rows of the split, evaluated or not: ids alone do not tell data from data."""


Words = Mapping[str, object]
"""Options of a command, of which None is left out."""


class Baseline(TypedDict):
    """A baseline's accuracy with its interval over n rows; or None, and the command that makes it.

    ``file`` is the result that it was taken from, ``answer`` the one that is given to everything,
    ``votes`` and ``k`` the samples of a row, and ``tokens`` those of all of them.
    """

    accuracy: float | None
    ci95: NotRequired[list[float]]
    n: NotRequired[int]
    file: NotRequired[str]
    answer: NotRequired[str]
    votes: NotRequired[int]
    k: NotRequired[int]
    tokens: NotRequired[float | None]
    command: NotRequired[str | None]


def others(folders: Iterable[Path], without: Iterable[Path]) -> list[Evaluated]:
    """The evaluated sets of every result in some folders, the latest first, ``without`` the files
    of this evaluation; what cannot be read as a result is none."""
    sets = []
    paths = {path.resolve() for folder in folders for path in folder.glob("*.json")}
    paths = {path for path in paths - set(without) if path.is_file()}
    for path in sorted(paths, key=lambda path: (-path.stat().st_mtime_ns, path)):
        try:
            result = read_json(path)
            if result.get("evaluation") != "datasets":
                continue
            who = (path, result["model"], result["method"])
            for entry in result["datasets"]:
                tokens = None if entry["tokens"] is None else float(entry["tokens"])
                place = (entry["dataset"], entry["split"], tokens, Path(entry["items"]))
                sets.append(Evaluated(*who, *place, entry["hashes"]["split"]))
        except (UserError, KeyError, TypeError, ValueError):
            continue
    return sets


def votes_on(evaluated: Evaluated, ids: Sequence[str]) -> list[list[Vote]] | None:
    """Its graded answers to rows, in their order, a list for each; None where it was not asked
    about all of them, or its file of items is gone."""
    rows: dict[str, list[Vote]] = {}
    try:
        for _, line in records(evaluated.items):
            answers = rows.setdefault(line["id"], [])
            if line["correct"] is not None:
                text = None if line["extracted"] is None else str(line["extracted"])
                dataset = evaluated.dataset
                name = ballot(dataset, SETS[dataset].domain, text)
                answers.append(Vote(name, bool(line["correct"])))
    except (UserError, KeyError, TypeError):
        return None
    return [rows[name] for name in ids] if rows.keys() >= set(ids) else None


@dataclass(frozen=True)
class Table:
    """The baselines of one set of this evaluation, over the rows that it has an accuracy of.

    Args:
        here: this evaluation of the set; its answers with a score are ``votes``, by row.
        elsewhere: other evaluations, the latest first.
        untrained: the model that was trained, and how it is named in a command; None where that is
            not known.
    """

    options: Options
    here: Evaluated
    votes: Mapping[str, list[Vote]]
    elsewhere: Sequence[Evaluated]
    untrained: tuple[str, Words] | None

    def rows(self) -> dict[str, Baseline]:
        """Baseline -> its accuracy with its interval, or None and the command that makes it."""
        method = self.here.method or "direct"
        untrained: Baseline = {"accuracy": None, "command": None}
        if self.untrained is not None:
            model, words = self.untrained
            untrained = self._mean(method, model) or self._command("untrained", **words)
        voted: Baseline = {"accuracy": None, "command": None}
        if SETS[self.here.dataset].domain != "code":  # no two programs are the same answer
            voted = self._vote() or self._command("sc", method="sc")
        return {
            "untrained": untrained,
            "direct": self._mean("direct") or self._command("direct", method="direct"),
            "chain_of_thought": self._mean("cot") or self._command("cot", method="cot"),
            "self_consistency": voted,
            "oracle_best_of_k": self._best() or self._command("sc", method="sc"),
        }

    def _answers(self, method: str, model: str | None) -> tuple[Evaluated, list[list[Vote]]] | None:
        """Somebody's answers by a method to the rows of this evaluation; those rows are left out
        to which that one has no answer with a score."""
        here = self.here
        if (method, model) == (here.method, here.model):
            return (here, list(self.votes.values())) if self.votes else None
        key = (method, model, here.dataset, here.split, here.rows)
        for other in self.elsewhere if model is not None else ():
            data = (other.dataset, other.split, other.rows)
            if (other.method, other.model, *data) == key:
                votes = votes_on(other, list(self.votes))
                if votes and any(votes):
                    return other, [answers for answers in votes if answers]
        return None

    def _mean(self, method: str, model: str | None = None) -> Baseline | None:
        """The mean accuracy of the answers by a method."""
        if (answers := self._answers(method, model or self.here.model)) is None:
            return None
        other, rows = answers
        credits = [[float(vote.correct) for vote in votes] for votes in rows]
        return {**accuracy_of(rate(credits), rows), "file": str(other.path)}

    def _vote(self) -> Baseline | None:
        """The vote of as many samples as take the tokens of one answer here, at least one; of all
        where the tokens are not known, or this is the vote."""
        if (answers := self._answers("sc", self.here.model)) is None:
            return None
        other, rows = answers
        k = min(map(len, rows))
        if other is not self.here and other.tokens and self.here.tokens:
            k = max(1, min(k, int(self.here.tokens / other.tokens)))
        tokens = None if other.tokens is None else k * other.tokens
        entry = accuracy_of(majority(rows, k), rows)
        return {**entry, "votes": k, "tokens": tokens, "file": str(other.path)}

    def _best(self) -> Baseline | None:
        """Who picks a right one of as many samples as every row has: of this evaluation where that
        is several, else of self-consistency's."""
        several = list(self.votes.values())
        other = self.here
        if min(map(len, several), default=0) < 2:
            if (answers := self._answers("sc", self.here.model)) is None:
                return None
            other, several = answers
        k = min(map(len, several))
        best = best_of([votes[:k] for votes in several])
        return {**accuracy_of(best, several), "k": k, "file": str(other.path)}

    def _command(self, label: str, **words: object) -> Baseline:
        """A baseline that is not there, and what to type for it."""
        return {"accuracy": None, "command": typed(self.options, label, words)}


def typed(options: Options, label: str, words: Words) -> str:
    """The command of this evaluation with other ``words``, of which None is left out."""
    dropped = ("what", "judge", "overrides", "same_judge", "runs_dir", "track", "given")
    changes: dict[str, object] = {
        "out": options.out.with_name(f"{options.out.stem}-{label}.json"),
        "responses_out": None,
        **({"predictions": "ANSWERS.jsonl"} if options.predictions else {}),
        **words,
    }
    if words.get("method") == "sc":
        changes |= dict.fromkeys(("samples", "temperature"))
    text = f"python -m experiments.evaluate {options.what}"
    for each in fields(options):
        name = each.name
        value = changes.get(name, getattr(options, name) if name in options.given else None)
        if name in dropped or value is None or (name in changes and changes[name] is None):
            continue
        key = each.metadata["option"].key or name
        typed_value = ",".join(value) if isinstance(value, list) else str(value)
        typed_value = typed_value.lower() if isinstance(value, bool) else typed_value
        text += " " + shlex.quote(f"{key}={typed_value}")
    return text


def constant_answer(rows: Sequence[Item]) -> str:
    """The right answer that occurs most often in a split, the first one of several; no answer, as
    "", counts as one. For code there is `CONSTANT`."""
    golds = Counter(item.answers[0] if item.answers else "" for item in rows)
    return golds.most_common(1)[0][0]


def constant(rows: Sequence[Item], whole: Sequence[Item], grader: Grader) -> Baseline:
    """The baseline that gives one answer to everything, graded on ``rows``."""
    code = whole[0].domain == "code"
    answer = CONSTANT if code else constant_answer(whole)
    texts = [answer.format(name=item.entry_point) if code else answer for item in rows]
    scores = [result for result in score(rows, texts, grader) if result is not None]
    credits = [[float(result.correct)] for result in scores]
    return {**accuracy_of(rate(credits), credits), "answer": answer}


def accuracy_of(estimate: Estimate, rows: Sequence[object]) -> Baseline:
    """A baseline's accuracy, its interval, and the rows that it was taken over."""
    interval = [estimate.low, estimate.high]
    return {"accuracy": estimate.value, "ci95": interval, "n": len(rows)}
