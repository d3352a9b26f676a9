"""Says in one screen whether a judge can be used: ``python -m judges.check judge=NAME``.

It asks for one verdict on a harmless question, past the store, and shows what came of it.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass

from judges.ask.identity import build_grading
from judges.ask.once import verdict_of
from judges.endpoint import dialects
from judges.grading import GRADINGS
from judges.grading.delimiters import can_escape
from judges.grading.own_form import guessed
from judges.grading.special_tokens import folders, special_tokens
from study import tasks
from study.cli import command, overrides, preset
from study.config.compose import load_presets
from study.config.schema import Judge, Task
from study.rows import Criterion, Row, prompt_id
from study.screen import one_line, plural, visible
from study.verdict import Outcome, Reply, Verdict

PROMPT = "Name the capital of France in one short sentence."
ANSWER = "The capital of France is Paris."
HARMLESS = Row(
    prompt_id=prompt_id(PROMPT),
    messages=({"role": "user", "content": PROMPT},),
    criteria=(
        Criterion("Names Paris as the capital of France."),
        Criterion("Is a single short sentence."),
    ),
    spec={},
    split="check",
    reference=ANSWER,
)
"""The question that every judge should be able to judge."""
REASON_CHARACTERS = 200
UNREAD = (Outcome.unparsed, Outcome.truncated, Outcome.empty)
"""The judge answered, and no grade was read in it."""
MOST_TOKENS = 40
"""Special tokens that are listed."""


def probe(judge: Judge, task: Task | None = None) -> Verdict:
    """One fresh verdict on a harmless question; a judge that needs one is asked a row of
    ``task``.
    Raises UserError: the judge cannot be asked: no key, no endpoint, or it serves another model."""
    if not judge.needs_rows or task is None:
        return verdict_of(judge, HARMLESS, ANSWER)
    row = tasks.kind_of(task).rows(task, "train")[0]
    return verdict_of(judge, row, ANSWER, tasks.oracle(task))


def screen(judge: Judge, verdict: Verdict) -> list[tuple[str, str]]:
    """What there is to say about a judge that was reached, as (label, text)."""
    size = f"{judge.size} ({judge.active_size} active)" if judge.active_size else judge.size
    context = f"context {judge.context:,} tokens" if judge.context else ""
    about = (judge.name, judge.family, size, judge.revision, context)
    model_name, served = judge.endpoint.model or judge.name, verdict.served_model
    if verdict.outcome is Outcome.scored:
        labels = f" ({', '.join(verdict.labels)})" if verdict.labels else ""
        result = f"scored {verdict.score:.3f}{labels}"
    else:
        result = f"{verdict.outcome}: {verdict.reason[:REASON_CHARACTERS]}"
    tokens = "not reported by the endpoint"
    if verdict.tokens_in is not None and verdict.tokens_out is not None:
        cached = verdict.tokens_cached
        part = "" if cached is None else f" ({cached} of them cached)"
        tokens = f"{verdict.tokens_in} in{part}, {verdict.tokens_out} out"
    attempts = plural(verdict.attempts, "attempt")
    as_served = f" as {served}" if served not in ("", model_name) else ""
    rows = [
        ("judge", ", ".join(filter(None, about))),
        ("endpoint", f"{judge.endpoint.url} answers"),
        ("model", f"{model_name} is served{as_served}"),
        ("dialect", dialects.described(judge)),
        ("grading", f"{verdict.grading} version {verdict.grading_version}"),
        ("marks", marks(judge)),
        ("verdict", result),
        ("latency", f"{verdict.latency_s:.2f} s, {attempts}"),
        ("tokens", tokens),
        ("cost", cost(judge, verdict)),
    ]
    if verdict.outcome in UNREAD:
        at = [label for label, _ in rows].index("verdict") + 1
        text = one_line(verdict.text or verdict.reasoning, REASON_CHARACTERS)
        rows[at:at] = [
            ("reply", text or "nothing"),
            ("expects", build_grading(judge).reply_form),
            ("try", "; or ".join(remedies(judge, verdict))),
        ]
    return rows


def remedies(judge: Judge, verdict: Verdict) -> list[str]:
    """Settings by which a judge's reply may be read, the surest first: more room where it was cut,
    a grading or a form of its own that reads this very reply, a form that the endpoint forces, a
    prompt of one's own."""
    room = f"judge.sampling.max_tokens={4 * judge.sampling.max_tokens}"
    thought = bool(verdict.reasoning) or "thinking" in verdict.reason
    settings = [room] if verdict.outcome is Outcome.truncated or thought else []
    settings += ["judge.sampling.thinking=false"] if thought else []
    reply = Reply(verdict.text)
    settings += [
        f"judge.grading.name={name}"
        for name, kind in GRADINGS.items()
        if name != judge.grading.name and kind().parse(reply).outcome is Outcome.scored
    ]
    if form := guessed(verdict.text):
        settings.append(f"judge.grading.name=likert \"judge.grading.options.form='{form}'\"")
    can_force = dialects.dialect_of(judge).structured == "vllm"
    can_force = can_force and "structured" in build_grading(judge).choices
    if can_force and not judge.grading.options.get("structured"):
        settings.append("judge.grading.options.structured=true")
    return [*settings, "judge.grading.options.prompt=mine.txt, a prompt that asks for that form"]


def marks(judge: Judge) -> str:
    """Which marks get a backslash in what the judge is shown.
    Raises Damaged: a file of its tokenizer is."""
    by_rule = "escaped: marks of model families, such as <|im_end|>, <eos>, [INST] and [|user|]"
    places = " and ".join(map(str, folders(judge)))
    if not places:
        return f"{by_rule}; its tokenizer is missing: judge.serve.model names no folder here"
    tokens = special_tokens(judge)
    escaped = list(filter(can_escape, tokens))
    token_list = " ".join(escaped[:MOST_TOKENS])
    more = len(escaped) - MOST_TOKENS
    own = plural(len(escaped), "special token")
    text = f"{by_rule}; {own} of {places}{': ' * bool(escaped)}{token_list}"
    text += f" and {more:,} more" if more > 0 else ""
    if unescaped := [repr(token) for token in tokens if not can_escape(token)]:
        text += f"; not escaped, because a backslash does not split them: {' '.join(unescaped)}"
    return text


def cost(judge: Judge, verdict: Verdict) -> str:
    """US dollars per 1,000 verdicts such as this one, or why that is not known."""
    if verdict.cost_usd is not None:
        per = f"${1000 * verdict.cost_usd:,.4f} per 1,000 verdicts like this one"
        return f"{per} (price: {judge.price.source})" if judge.price.source else per
    if judge.price.input or judge.price.output:
        return "unknown: the endpoint did not report its tokens"
    return "unknown: set judge.price before you use cost.max_usd"


def check(judge: Judge, task: Task) -> bool:
    """Probe every replica and print the screen; whether all of them gave a score.
    Raises UserError: one of them cannot be asked."""
    scored = True
    for url in (judge.endpoint.url, *judge.endpoint.replicas):
        endpoint = dataclasses.replace(judge.endpoint, url=url, replicas=[])
        single = dataclasses.replace(judge, endpoint=endpoint)
        verdict = probe(single, task)
        for label, text in screen(single, verdict):
            print(f"{label:<9} {visible(text)}")
        scored &= verdict.outcome is Outcome.scored
    return scored


@dataclass(frozen=True)
class Options:
    """The judge that is asked once, and the task whose row it grades."""

    judge: str = preset("judge")
    task: str = preset("task", "instruct-mini")
    overrides: list[str] = overrides("judge.", "task.")


@command("judges.check judge=sim-fair", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 where a verdict was scored, 1 where not, 2 for a user's error."""
    judge, task = load_presets(options.judge, options.task, options.overrides)
    return 0 if check(judge, task) else 1


if __name__ == "__main__":
    sys.exit(main())
