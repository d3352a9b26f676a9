"""Gets the verdicts on a set of probes: as they are, in both orders, and over and over again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from judges.ask.allowance import Allowance
from judges.ask.replies import Store
from judges.ask.session import Session
from judges.grading.comparing import Pairwise
from judges.probes.variants import Variant
from study.config.schema import Judge
from study.errors import UserError
from study.rows import Row, RuleTruth
from study.verdict import Parsed, Request, Verdict, VerdictRow

PROFILE = "profile"
"""The setting of verdicts by the judge as it is configured."""
AS_GIVEN, SWAPPED = 0, 1
"""Orders of a pair: the counterpart shown first, or the edited text."""
Pair = tuple[Variant, Variant]
"""A text and its counterpart."""


class Orders(Pairwise):
    """A pair in both orders, a verdict for each: of two answers as they are given, then of them
    swapped. The score says how far the answer shown first is preferred."""

    def group_requests(self, row: Row, answers: Sequence[str]) -> tuple[Request, ...]:
        """Each request is about the answer that it shows first."""
        return tuple(
            dataclasses.replace(request, members=request.members[:1])
            for request in super().group_requests(row, answers)
        )

    def group_combine(
        self, row: Row, answers: Sequence[str], parts: Sequence[tuple[Request, Parsed]]
    ) -> list[Parsed]:
        """What each reply says."""
        return [parsed for _, parsed in parts]


class ProbeRow(VerdictRow):
    """A verdict on a probe; ``order`` is that of the two texts, None of a text by itself."""

    probe_id: str
    setting: str
    temperature: float
    order: int | None


@dataclasses.dataclass(frozen=True)
class ProbeResults:
    """The verdicts of one judge and what they took."""

    rows: list[ProbeRow]
    calls: int
    hits: int


def ask(
    judge: Judge,
    probes: Sequence[Variant],
    store: Store | None,
    oracle: Callable[[str, str], RuleTruth] | None = None,
    repeats: int = 0,
    temperatures: Sequence[float] = (),
    allowance: Allowance | None = None,
) -> ProbeResults:
    """All verdicts of one judge on the probes.

    A pairwise judge is shown each edited text beside its counterpart, in both orders; any other
    judges each text by itself. The contents as they are (no edit) are judged ``repeats`` times
    more at each temperature: by themselves, or each beside the best of its prompt. A verdict that
    ``allowance`` has no room for is ``aborted``.
    Raises UserError: the judge cannot be asked, or compares in a way that has no pairs."""
    contents = [probe for probe in probes if probe.bias == "content"]
    by_id = {probe.probe_id: probe for probe in probes}
    edited = [(probe, by_id[probe.against]) for probe in probes if probe.against is not None]
    orders = Orders(judge.grading.options) if judge.grading.name == Orders.name else None
    with Session(judge, store, oracle, allowance=allowance, grading=orders) as session:
        session.check()
        pairwise = session.compares
        rows = _pairs(session, edited) if pairwise else _singles(session, probes)
        calls, hits = session.calls, session.hits
    beside_best = _ranked(contents)
    if repeats < 2 or not (beside_best if pairwise else contents):
        return ProbeResults(rows, calls, hits)
    for temperature in temperatures:
        sampling = dataclasses.replace(judge.sampling, temperature=temperature, votes=repeats)
        other, setting = dataclasses.replace(judge, sampling=sampling), f"repeat T={temperature:g}"
        with Session(other, store, oracle, allowance=allowance, grading=orders) as session:
            if pairwise:
                rows += _pairs(session, beside_best, setting)
            else:
                rows += _singles(session, contents, setting)
            calls, hits = calls + session.calls, hits + session.hits
    return ProbeResults(rows, calls, hits)


def _ranked(contents: Sequence[Variant]) -> list[Pair]:
    """Each content of a prompt with the first one that the prompt has, which is the best."""
    best = {probe.row.prompt_id: probe for probe in reversed(contents)}
    pairs = [(probe, best[probe.row.prompt_id]) for probe in contents]
    return [(probe, first) for probe, first in pairs if probe.text != first.text]


def _singles(session: Session, probes: Sequence[Variant], setting: str = PROFILE) -> list[ProbeRow]:
    votes_of_each = session.ask_many([(probe.row, probe.text) for probe in probes])
    session.stop_if_refused()
    return [
        _record(verdict, session.judge, probe, setting, None)
        for probe, votes in zip(probes, votes_of_each, strict=True)
        for verdict in votes
    ]


def _pairs(session: Session, pairs: Sequence[Pair], setting: str = PROFILE) -> list[ProbeRow]:
    """Each text beside its counterpart, in both orders, ``sampling.votes`` times."""
    judge = session.judge
    if judge.grading.name != "pairwise":
        raise UserError(
            f"judge={judge.name} grades by {judge.grading.name}, which has no pairs to swap. Type"
            " judge.grading.name=pairwise, or with a grading of single answers, for example"
            " judge.grading.name=likert."
        )
    items = [(probe.row, text) for probe, other in pairs for text in (other.text, probe.text)]
    orders = [(probe, order) for probe, _ in pairs for order in (AS_GIVEN, SWAPPED)]
    return [
        _record(verdict, judge, probe, setting, order)
        for index in range(judge.sampling.votes)
        for (probe, order), [verdict] in zip(
            orders, session.ask_many(items, 2, [index]), strict=True
        )
    ]


def _record(
    verdict: Verdict, judge: Judge, probe: Variant, setting: str, order: int | None
) -> ProbeRow:
    return {
        **verdict.as_row(),
        "probe_id": probe.probe_id,
        "setting": setting,
        "temperature": judge.sampling.temperature,
        "order": order,
    }
