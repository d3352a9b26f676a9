"""The newest answers on which the acting judge and the rule part, with the judge's words."""

from __future__ import annotations

import heapq
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from study.cell.folder import study_cells
from study.cell.parts import Part, at_step, left_out, read_part
from study.errors import UserError
from study.screen import visible
from study.system.files import Damaged
from study.verdict import THRESHOLD

MOST_PARTS = 256
"""Recorded steps, the newest of all cells, in which is looked."""
ROUNDING = 0.01
"""A judge that scores in percent says no more: what lies closer together is no disagreement."""
LONGEST = 1_000
"""Characters that are shown of a text; of a longer one the end of the prompt and the start of
everything else."""
_ROLLOUT = ["rollout_id", "step", "domain", "dataset", "item", "prompt", "answer", "truth"]
_VERDICT = ["rollout_id", "role", "judge", "outcome", "score", "text", "reasoning", "reason"]


@dataclass(frozen=True)
class Disagreement:
    """An answer that one of judge and rule takes for right and the other for wrong."""

    cell: str
    step: int
    rollout_id: str
    domain: str | None
    dataset: str | None
    item: str | None
    judge: str
    judge_score: float
    truth: float
    prompt: str
    """The end of it, `LONGEST` characters at most; the start of what follows."""
    answer: str
    words: str
    """What the judge said: its reasoning where it gave one, then its reply."""

    def text(self) -> str:
        """For people; what others wrote is made visible."""
        place = " ".join(filter(None, (self.domain, self.dataset, self.item)))
        verdict = "judge yes, rule no" if self.judge_score >= THRESHOLD else "judge no, rule yes"
        head = (
            f"{self.cell}  step {self.step}  {place}".rstrip()
            + f"\n  {verdict}: {self.judge} says {self.judge_score:.2f}, the rule {self.truth:.2f}"
        )
        quotes = [("prompt", self.prompt), ("answer", self.answer), (self.judge, self.words)]
        return "\n".join(visible(line) for line in (head, *(_labelled(*each) for each in quotes)))


def _labelled(name: str, text: str) -> str:
    return f"  {name}:\n{textwrap.indent(text.strip() or '(nothing)', 4 * ' ')}"


class Disagreements:
    """Looks through the recorded steps of a study, newest first.

    Args:
        study_dir: of the study.
        domain: the only one to look at; empty for all.
    """

    def __init__(self, study_dir: Path, domain: str = "") -> None:
        self.domain = domain
        self.problems: list[str] = []
        """Sentences on parts that could not be read."""
        self.answers = 0
        """Answers looked at that both judge and rule have told of."""
        self.domains: set[str] = set()
        """Those of the answers that were looked at."""
        every = (
            (_age(part), part) for cell in study_cells(study_dir) for part in cell.parts("rollouts")
        )
        self.newest = [part for _, part in heapq.nlargest(MOST_PARTS, every)]

    def find(self, limit: int) -> list[Disagreement]:
        """The newest ones, ``limit`` at most.
        Raises UserError: a domain that no answer has that was looked at."""
        newest = list(islice(self._all(), limit))
        if self.domain and self.domain not in self.domains and not newest:
            legal = ", ".join(map(visible, sorted(self.domains)))
            has = f"Legal are {legal}" if legal else "Its rows name no domain: leave domain= out"
            raise UserError(
                f"domain={visible(self.domain)} is not a domain of this study's last"
                f" {len(self.newest)} recorded steps. {has}."
            )
        return newest

    def _all(self) -> Iterator[Disagreement]:
        for part in self.newest:
            try:
                yield from self._of(part)
            except Damaged as error:
                self.problems.append(left_out(error))

    def _of(self, part: Part) -> Iterator[Disagreement]:
        """The disagreements of one step, last rollout first."""
        cell = part.path.parent.parent
        judged = read_part(part, ["judge_score", "truth", "domain"]).to_pylist()
        self.domains |= {row["domain"] for row in judged if row.get("domain")}
        places = []
        for place, row in enumerate(judged):
            score, truth = row.get("judge_score"), row.get("truth")
            if score is None or truth is None or self.domain not in ("", row.get("domain")):
                continue
            self.answers += 1
            parted = (score >= THRESHOLD) != (truth >= THRESHOLD)
            if parted and abs(score - truth) > ROUNDING:
                places.append((place, score))
        if not places:
            return
        table = read_part(part, _ROLLOUT).take([place for place, _ in places])
        rows = [dict.fromkeys(_ROLLOUT) | row for row in table.to_pylist()]
        words = self._words(at_step(cell / "verdicts", part.step))
        for row, (_, score) in zip(reversed(rows), reversed(places), strict=True):
            judge, reply = words.get(str(row["rollout_id"]), ("judge", "(no verdict on record)"))
            yield Disagreement(
                *(cell.name, row["step"], str(row["rollout_id"])),
                *(row["domain"], row["dataset"], row["item"]),
                *(judge, score, row["truth"]),
                prompt=_end(row["prompt"] or ""),
                answer=_start(row["answer"] or ""),
                words=_start(reply),
            )

    def _words(self, part: Part) -> dict[str, tuple[str, str]]:
        """Rollout id -> the acting judge's name, and what it said in all its votes."""
        replies: dict[str, tuple[str, str]] = {}
        try:
            rows = read_part(part, _VERDICT).to_pylist()
        except Damaged as error:
            self.problems.append(left_out(error))
            return replies
        for row in (dict.fromkeys(_VERDICT) | row for row in rows):
            if row["role"] != "acting":
                continue
            texts = [str(row[name]) for name in ("reasoning", "text") if row[name]]
            texts = texts or [str(row["reason"] or row["outcome"] or "")]
            _, before = replies.get(str(row["rollout_id"]), ("", ""))
            every = "\n".join([*filter(None, [before]), *texts])
            replies[str(row["rollout_id"])] = (str(row["judge"] or "judge"), every)
        return replies


def _age(part: Part) -> tuple[float, int]:
    """When a step was recorded; a later step of the same moment is newer."""
    try:
        return part.path.stat().st_mtime, part.step
    except OSError:
        return 0.0, 0


def _start(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} [{len(text) - LONGEST} more]"


def _end(text: str) -> str:
    return text if len(text) <= LONGEST else f"[{len(text) - LONGEST} more] {text[-LONGEST:]}"
