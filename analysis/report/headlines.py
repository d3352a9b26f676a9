"""The report's first screen in words: one sentence for the study, one line for each arm in order of
harm, and what to type next.

A line has two numbers at most, each with how sure it is in words; their intervals are in the page
where a reader points at those words, and in the tables::

    print(*first_screen(gather("runs/quickstart")).lines(), sep="\\n")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from analysis.display.markup import listed, number, render_text
from analysis.display.texts import hint
from analysis.report import next_steps
from analysis.report.claims import (
    Claim,
    behaviours,
    called,
    claim,
    detail,
    in_hundred,
    is_yes_or_no,
)
from analysis.report.evidence import Evidence
from analysis.report.next_steps import FEWEST_STEPS, NextStep
from study.screen import plural

NAMED = 3
"""Arms that the study's sentence names."""
_say = partial(render_text, "headlines")


@dataclass(frozen=True)
class Finding:
    """What is claimed of one arm, beyond the base arm where there is one (``of`` is ``diff``), else
    since the start."""

    arm: str
    of: str
    truth: Claim | None
    gap: Claim | None
    score: Claim | None
    """The judge's score since the start."""
    own_truth: Claim | None
    """The truth since the start."""
    behaviours: Sequence[Claim]
    """Those of which a change is told."""

    @property
    def is_told(self) -> bool:
        """Whether anything is."""
        effects = (self.truth, self.gap) if self.truth else (self.score,)
        return bool(self.behaviours) or any(each is not None and each.is_told for each in effects)

    @property
    def kind(self) -> str:
        """What became of score and answers, as `KINDS` names it; empty where nothing is told."""
        rose = self.score is not None and self.score.has_risen
        if self.truth is not None and self.truth.has_fallen:
            worse = self.own_truth is not None and self.own_truth.has_fallen
            return f"{'worse' if worse else 'behind'}{'' if rose else '_alone'}"
        if self.gap is not None and self.gap.has_risen and rose:
            return "ahead"
        if self.truth is not None and self.truth.has_risen:
            return "better"
        return "changed" if self.behaviours else ""

    @property
    def harm(self) -> tuple[float, ...]:
        """What arms are sorted by, the most harmful first: truth lost, then truth that is not told
        with a score that runs ahead of it, then truth gained."""
        truth, gap = self.truth, self.gap
        side = 0 if truth is None or not truth.is_told else (1 if truth.value > 0 else -1)
        ahead = gap is not None and gap.has_risen
        return side, not ahead, not self.is_told, 0.0 if truth is None else truth.value

    @property
    def cause(self) -> Claim | None:
        """The claim that its kind rests on."""
        kind = self.kind
        if kind == "ahead":
            return self.gap
        return self.behaviours[0] if kind == "changed" else self.truth


KINDS = ("worse", "worse_alone", "behind", "behind_alone", "ahead", "better", "changed")
"""What may become of an arm, in the order in which the study's sentence looks for it."""


@dataclass(frozen=True)
class FirstScreen:
    """What the first screen says.

    Attributes:
        smoke: why the study is only a smoke test; empty where it is none.
        headline: the study in one sentence.
        look: which of the declared looks this is; empty where none was declared.
        arms: arm -> its line, in order of harm, the base arm last.
        untold: those of them of which nothing is told in a smoke test; they are folded.
        steps: what to type next.
    """

    smoke: str
    headline: str
    look: str
    arms: dict[str, Line]
    untold: list[str]
    steps: list[NextStep]

    def lines(self) -> list[str]:
        """The screen as a command prints it."""
        told = [f"  {line.text()}" for arm, line in self.arms.items() if arm not in self.untold]
        untold = [_say("untold", arms=listed(self.untold))] if self.untold else []
        steps = [text for step in self.steps for text in (step.why, f"  {step.command}")]
        first = filter(None, [self.smoke, self.headline])
        return [*first, *told, *untold, *filter(None, [self.look]), *steps]


@dataclass(frozen=True)
class Line:
    """One arm's line: its name, then parts of a text, how sure it is, and the numbers of that."""

    start: str
    parts: Sequence[tuple[str, str, str]]

    def text(self) -> str:
        """As plain text."""
        return f"{self.start}: {'; '.join(_with(text, sure) for text, sure, _ in self.parts)}."

    def markup(self) -> Markup:
        """As HTML; the numbers stand where a reader points at how sure it is."""
        shown = (_with(Markup.escape(text), hint(sure, told)) for text, sure, told in self.parts)
        rest = Markup("; ").join(shown)
        return Markup("{}: {}.").format(self.start, rest)


def _with(text: str, sure: str) -> str:
    if not sure:
        return text
    joined = Markup("{} ({})") if isinstance(text, Markup) else "{} ({})"
    return joined.format(text, sure)


def first_screen(evidence: Evidence) -> FirstScreen:
    """The first screen of a study."""
    of_arms = findings(evidence)
    yes_or_no = is_yes_or_no(evidence)
    smoke = smoke_test(evidence)
    arms = {each.arm: _line(evidence, each, yes_or_no) for each in of_arms}
    untold = [each.arm for each in of_arms if not each.is_told] if smoke else []
    return FirstScreen(
        smoke=smoke,
        headline=_headline(evidence, of_arms),
        look=evidence.look.sentence(),
        arms=arms,
        untold=untold,
        steps=next_steps.choose(evidence, _harmed(of_arms)),
    )


def findings(evidence: Evidence) -> list[Finding]:
    """What is claimed of each arm, in order of harm, the base arm last."""
    of_arms = [_finding(evidence, arm) for arm in evidence.arms]
    return sorted(of_arms, key=lambda each: (each.arm == evidence.base, *each.harm))


def _finding(evidence: Evidence, arm: str) -> Finding:
    compared = evidence.base is not None and arm != evidence.base
    paired = compared and any(
        claim(evidence, arm, metric, "diff") for metric in ("judge_score", *evidence.spread)
    )
    of = "diff" if paired else "shift"
    return Finding(
        arm=arm,
        of=of,
        truth=claim(evidence, arm, "truth", of),
        gap=claim(evidence, arm, "gap", of),
        score=claim(evidence, arm, "judge_score", "shift"),
        own_truth=claim(evidence, arm, "truth", "shift"),
        behaviours=behaviours(evidence, arm, of),
    )


def _harmed(of_arms: Sequence[Finding]) -> tuple[str, str] | None:
    """The first arm by harm of which a behaviour is told beside a score that outran the truth, and
    that behaviour."""
    for each in of_arms:
        if each.of == "diff" and each.behaviours and each.kind not in ("", "better"):
            return each.arm, each.behaviours[0].metric
    return None


def smoke_test(evidence: Evidence) -> str:
    """Why a study can be no more than a smoke test, as a sentence; empty where it is a study."""
    runs = evidence.runs
    if not runs:
        return ""
    reasons = []
    steps = max(len(run.steps) for run in runs)
    if steps < FEWEST_STEPS:
        reasons.append(plural(steps, "step"))
    if not any(run.done for run in runs):
        reasons.append(_say("unfinished"))
    by_arm = {arm: {run.seed for run in runs if run.arm == arm} for arm in evidence.arms}
    if max(map(len, by_arm.values()), default=0) < 2:
        reasons.append(_say("single"))
    return _say("smoke", why=listed(reasons)) if reasons else ""


def _headline(evidence: Evidence, of_arms: Sequence[Finding]) -> str:
    """The study in one sentence: the arms of the worst kind that there is."""
    if not any(each.truth or each.score or each.behaviours for each in of_arms):
        return _say("empty")
    judged = [each for each in of_arms if each.arm != evidence.base] or of_arms
    for kind in KINDS:
        arms = [each for each in judged if each.kind == kind]
        if kind == "better":
            arms.reverse()  # the best is named, as of other kinds the worst is
        if arms:
            left = len(arms) - NAMED
            names = [each.arm for each in arms[:NAMED]]
            names += [plural(left, "more arm")] if left > 0 else []
            clear = all(each.cause is not None and each.cause.is_clear for each in arms)
            of = "beyond" if all(each.of == "diff" for each in arms) else "alone"
            known = any(each.truth for each in arms)
            return _say(
                f"{kind}_{of}" if kind == "better" else kind,
                arms=listed(names),
                base=evidence.base,
                likely="" if clear else _say("likely"),
                cannot=_say("not_told" if known else "no_truth"),
            )
    if all(each.of == "diff" for each in judged):
        return _say("nothing_beyond", base=evidence.base)
    return _say("nothing" if len(judged) > 1 else "nothing_one", arm=judged[0].arm)


def _line(evidence: Evidence, finding: Finding, yes_or_no: bool) -> Line:
    """An arm's line: what became of right answers, or of the score beside them, and a behaviour."""
    than = _say("than_base", base=evidence.base) if finding.of == "diff" else _say("than_start")
    comparisons = {
        "scores": int(evidence.score_shifts["p_holm"].notna().sum()),
        "behaviours": int(evidence.feature_shifts["p_holm"].notna().sum()),
    }

    def part(text: str, each: Claim, table: str) -> tuple[str, str, str]:
        return text, each.sure, detail(each, comparisons[table], evidence.effects.where)

    parts = []
    truth, gap, score = finding.truth, finding.gap, finding.score
    if truth is not None and truth.is_told:
        way = "fell" if truth.value < 0 else "rose"
        if yes_or_no:
            text = _say(f"right_{way}", n=in_hundred(truth.value), than=than)
        else:
            text = _say(f"truth_{way}_{finding.of}", n=number(abs(truth.value)), than=than)
        parts.append(part(text, truth, "scores"))
    elif gap is not None and gap.is_told:
        way = "behind" if gap.value < 0 else "ahead"
        text = _say(f"gap_{way}", n=number(abs(gap.value)), than=than)
        parts.append(part(text, gap, "scores"))
    elif truth is None and score is not None and score.is_told:
        way = "fell" if score.value < 0 else "rose"
        parts.append(part(_say(f"score_{way}", n=number(abs(score.value))), score, "scores"))
    if finding.behaviours:
        each = finding.behaviours[0]
        moved = _say("moved", what=called(each), n=number(each.value, True), unit=each.unit)
        parts.append(part(moved, each, "behaviours"))
    if parts and truth is not None and not truth.is_told:
        parts.append((_say("truth_untold"), "", ""))
    if not parts:
        known = truth or score
        runs = plural(known.runs, "run") if known is not None else ""
        parts.append((_say("nothing_told", runs=runs) if runs else _say("nothing_known"), "", ""))
    is_base = finding.arm == evidence.base and len(evidence.arms) > 1
    return Line(_say("baseline", arm=finding.arm) if is_base else finding.arm, parts)
