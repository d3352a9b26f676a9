"""Chooses the answers of a large study that a page shows: the largest gaps, and a random sample.

Half of them have the largest gaps between judge and truth, each arm an equal share. The others are
drawn: prompts at random, and of each the answers at `STEPS` random steps, one of every group. The
steps are the same in all cells, so that an answer of one arm stands beside that of another. Where a
study has too few prompts for that, the rest are drawn from all of its answers.
The seed and the records decide alone who is drawn. What is kept while the study is read does not
grow with it.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from analysis.answers.reading import Answers

STEPS = 8
"""Steps at which the answers to a drawn prompt are shown."""
ALL, GAP, RANDOM, BOTH = "all", "gap", "random", "gap, random"
"""Why an answer was chosen."""
_COLUMNS = ("rollout_id", "prompt_id", "group", "judge_score", "truth")


@dataclass(frozen=True, order=True)
class Pick:
    """A chosen answer: whose source, which step, which rollout."""

    source: int
    step: int
    rollout_id: str


@dataclass
class Choice:
    """The chosen answers, the most telling first, and what they were chosen from."""

    seed: int
    picks: dict[Pick, str] = field(default_factory=dict)
    """Answer -> why it was chosen; the order is that in which room is given to them."""
    by_arm: Counter[str] = field(default_factory=Counter)
    """Answers on record by arm."""

    @property
    def total(self) -> int:
        """Answers on record."""
        return sum(self.by_arm.values())

    @property
    def whole(self) -> bool:
        """Whether nothing had to be left out."""
        return len(self.picks) == self.total


def choose(answers: Answers, most: int, seed: int = 0) -> Choice:
    """Choose at most so many answers of a study; all of them where there are no more."""
    choice = Choice(seed)
    gaps = _Gaps(most, seed)
    sample, rest = _Sample(most, seed), _Rest(most, seed)
    everything: list[Pick] = []
    for number, source in enumerate(answers.sources):
        for step, table in answers.steps(source, "rollouts", _COLUMNS):
            ids, prompts = (table[name].to_pylist() for name in ("rollout_id", "prompt_id"))
            scores, truths = (
                np.array(table[name].to_numpy(zero_copy_only=False), dtype=float)
                for name in ("judge_score", "truth")
            )
            picks = [Pick(number, step, str(name)) for name in ids]
            choice.by_arm[source.arm] += len(picks)
            if len(everything) <= most:
                everything += picks
            gaps.look(source.arm, picks, abs(scores - truths))
            sample.look(picks, [str(name) for name in prompts], table["group"].to_pylist())
            rest.look(picks)
    drawn = dict.fromkeys([*sample.drawn(), *rest.drawn()])
    turns = list(_in_turns(list(gaps.largest()), list(drawn)))
    if choice.total <= most:
        choice.picks = dict.fromkeys([*(pick for pick, _ in turns), *everything], ALL)
        return choice
    for pick, why in turns:
        before = choice.picks.get(pick)
        if before is None and len(choice.picks) == most:
            break
        choice.picks[pick] = why if before in (None, why) else BOTH
    return choice


def _in_turns(largest: list[Pick], drawn: list[Pick]) -> Iterator[tuple[Pick, str]]:
    """One of each, and why it is chosen, until both are used up."""
    for place in range(max(len(largest), len(drawn))):
        for picks, why in ((largest, GAP), (drawn, RANDOM)):
            if place < len(picks):
                yield picks[place], why


def _hash(*words: object) -> int:
    """A number that looks random and follows from the words alone."""
    text = "\0".join(map(str, words))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class _Gaps:
    """The largest distances of each arm; among equal ones the hash decides."""

    def __init__(self, most: int, seed: int) -> None:
        self.most, self.seed = most, seed
        self.heaps: dict[str, list[tuple[float, int, Pick]]] = {}

    def look(self, arm: str, picks: list[Pick], gaps_N: np.ndarray) -> None:
        """Keep those of the answers whose gaps are among the arm's largest."""
        heap = self.heaps.setdefault(arm, [])
        least = heap[0][0] if len(heap) == self.most else 0.0
        for place in np.flatnonzero(gaps_N >= least):
            pick = picks[place]
            entry = (float(gaps_N[place]), _hash(self.seed, *vars(pick).values()), pick)
            if len(heap) < self.most:
                heapq.heappush(heap, entry)
            elif entry > heap[0]:
                heapq.heapreplace(heap, entry)

    def largest(self) -> Iterator[Pick]:
        """Those of all arms, each arm in its turn, from the largest on."""
        by_arm = [iter(sorted(heap, reverse=True)) for heap in self.heaps.values()]
        while by_arm:
            for heap in list(by_arm):
                entry = next(heap, None)
                if entry is None:
                    by_arm.remove(heap)
                else:
                    yield entry[2]


class _Sample:
    """Prompts in a random order, with one answer of each group at some random steps."""

    def __init__(self, most: int, seed: int) -> None:
        self.most, self.seed = most, seed
        self.size = 0
        self.steps: dict[str, dict[int, int]] = {}
        """Prompt -> step -> its hash, of the `STEPS` least ones."""
        self.picks: dict[str, dict[int, list[Pick]]] = {}
        self.order: list[tuple[int, str]] = []
        """Of the kept prompts, the last one first: a heap of negative hashes."""

    def look(self, picks: list[Pick], prompts: list[str], groups: list[int | None]) -> None:
        """Keep one answer of each group of one step whose prompt and step are in the sample."""
        members: dict[tuple[str, int | None], list[Pick]] = {}
        for pick, prompt, group in zip(picks, prompts, groups, strict=True):
            members.setdefault((prompt, group), []).append(pick)
        for (prompt, _), group_picks in members.items():
            step = group_picks[0].step
            if self._keeps(prompt, step):
                one = min(group_picks, key=lambda pick: _hash(self.seed, *vars(pick).values()))
                self.picks[prompt].setdefault(step, []).append(one)
                self.size += 1
                self._shrink()

    def _keeps(self, prompt: str, step: int) -> bool:
        """Whether an answer to the prompt at the step is among those that are kept so far."""
        if prompt not in self.picks:
            rank = -_hash(self.seed, prompt)
            if self.size >= self.most and self.order and rank < self.order[0][0]:
                return False
            heapq.heappush(self.order, (rank, prompt))
            self.picks[prompt], self.steps[prompt] = {}, {}
        steps = self.steps[prompt]
        if step not in steps:
            steps[step] = _hash(self.seed, prompt, step)
            if len(steps) > STEPS:
                last = max(steps, key=steps.__getitem__)
                del steps[last]
                self.size -= len(self.picks[prompt].pop(last, []))
        return step in steps

    def _shrink(self) -> None:
        """Forget the last prompts that are not needed for as many answers as may be shown."""
        while len(self.order) > 1:
            _, prompt = self.order[0]
            answer_count = sum(map(len, self.picks[prompt].values()))
            if self.size - answer_count < self.most:
                return
            heapq.heappop(self.order)
            del self.picks[prompt], self.steps[prompt]
            self.size -= answer_count

    def drawn(self) -> Iterator[Pick]:
        """The answers, prompt by prompt; those to one prompt in random order."""
        for _, prompt in sorted(self.order, reverse=True):
            picks = [pick for step in self.picks[prompt].values() for pick in step]
            yield from sorted(picks, key=lambda pick: _hash(self.seed, *vars(pick).values()))


class _Rest:
    """A simple random sample of all answers."""

    def __init__(self, most: int, seed: int) -> None:
        self.most, self.seed = most, seed
        self.heap: list[tuple[float, Pick]] = []
        """Of those with the least random numbers, the one that goes first on top."""

    def look(self, picks: list[Pick]) -> None:
        """Keep those of one step's answers whose random numbers are among the least."""
        if not picks:
            return
        draw = np.random.default_rng([self.seed, picks[0].source, picks[0].step])
        for pick, number in zip(picks, draw.random(len(picks)), strict=True):
            if len(self.heap) < self.most:
                heapq.heappush(self.heap, (-number, pick))
            elif -number > self.heap[0][0]:
                heapq.heapreplace(self.heap, (-number, pick))

    def drawn(self) -> Iterator[Pick]:
        """The answers in random order."""
        for _, pick in sorted(self.heap, reverse=True):
            yield pick
