"""Writes the page of answers: one file with its data, style and script, which needs nothing else.

Whatever a policy, a judge or a task wrote goes in as JSON that no reader of HTML takes for markup,
and the script makes text nodes of it. The page's policy lets no other script run, loads nothing,
and forbids the script to make elements from text.

`content` is what the page holds, as plain data. Texts stand once, in a list, and are named by their
place in it. A number that is missing is null, and what is known of the reason stands beside it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from analysis.answers import MOST, MOST_MB
from analysis.answers.choice import ALL, BOTH, GAP, RANDOM, STEPS, Choice, Pick, choose
from analysis.answers.reading import Answers, read_answers
from analysis.display.figures import MARKERS, looks, looks_of
from analysis.display.markup import environment, inline_hash
from analysis.drift.base import base_of
from analysis.drift.estimate import arms_in_order, usable_cells
from analysis.records.frames import NUMBERS, read_config
from study.cell.places import shown
from study.config.identity import identifying
from study.errors import UserError
from study.features import FEATURES, measured, unit
from study.system.files import clear_leftovers, write_text

BEGINNING, ENDING = 8_000, 4_000
"""Characters that the page shows of a text longer than both: reasoning ends in its verdict."""
LONGEST = BEGINNING + ENDING
LEFT_OUT = "\n[...]\n"
"""Between the two."""
ROLLOUTS = (
    *("rollout_id", "step", "prompt_id", "group", "member", "prompt", "completion", "answer"),
    *("tokens", "stop", "reward", "advantage", "truth", "judge_score", "dataset", "domain"),
    *("item", "truth_missing", "outcome", *NUMBERS),
)
VERDICTS = (
    *("rollout_id", "role", "judge", "sample_index", "outcome", "labels", "score", "reason"),
    *("text", "reasoning", "finish_reason", "grading", "from_cache"),
)
FIELDS = (
    *("source", "id", "step", "prompt_id", "group", "member", "why", "prompt", "answer"),
    *("completion", "tokens", "stop", "dataset", "domain", "item", "program", "reward"),
    *("advantage", "truth", "truth_missing", "judge", "behaviour", "numbers", "verdicts"),
)
"""What is known of an answer, in the order of its row."""
VERDICT_FIELDS = (
    *("role", "judge", "vote", "outcome", "score", "labels", "reason", "text", "reasoning"),
    *("finish", "grading", "stored"),
)
_TEXTS = frozenset(
    "prompt_id prompt answer completion stop dataset domain item program truth_missing role judge "
    "outcome reason text reasoning finish grading".split()
)


class Excerpt(NamedTuple):
    """What the page shows of a text, and the length of all of it."""

    shown: str
    length: int


def excerpt(text: str) -> Excerpt:
    """A text as the page shows it: the long ones without their middle."""
    if len(text) <= LONGEST:
        return Excerpt(text, len(text))
    return Excerpt(f"{text[:BEGINNING]}{LEFT_OUT}{text[-ENDING:]}", len(text))


@dataclass
class Texts:
    """Texts by their place in a list; each stands there once."""

    places: dict[Excerpt, int] = field(default_factory=dict)
    """Each with its place."""
    cut: dict[int, int] = field(default_factory=dict)
    """Place of a text of which only beginning and end are shown -> its length."""
    size: int = 0
    """Bytes that they take in the page."""

    def add(self, text: Excerpt | None) -> int | None:
        """The place of a text; None for a missing one."""
        if text is None:
            return None
        if text not in self.places:
            self.places[text] = len(self.places)
            self.size += len(escaped(text.shown).encode()) + 1
            if text.length > LONGEST:
                self.cut[self.places[text]] = text.length
        return self.places[text]

    def shown(self) -> list[str]:
        """The texts in their places, the long ones cut."""
        return [text.shown for text in self.places]

    def forget(self, count: int, size: int) -> None:
        """Be again as with so many texts of that size."""
        while len(self.places) > count:
            self.cut.pop(self.places.popitem()[1], None)
        self.size = size


def escaped(value: Any) -> str:
    """``value`` as JSON that no reader of HTML takes for anything but the text of a script."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}


def content(answers: Answers, choice: Choice, most_bytes: int) -> dict[str, Any]:
    """Everything that the page shows, at most so many bytes of it: where not all chosen answers
    fit, those that come last in the choice are left out."""
    read_rows = _read(answers, choice)
    texts = Texts()
    names = {name for row in read_rows.values() for name in row["numbers"]}
    numbers = sorted(names)
    rows, size = [], 0
    for pick, why in choice.picks.items():
        if (row := read_rows.pop(pick, None)) is None:
            continue
        before = len(texts.places), texts.size
        line = _line(row | {"why": why}, numbers, texts)
        size += len(escaped(line)) + 1
        if rows and size + texts.size > most_bytes:
            texts.forget(*before)
            break
        rows.append(line)
    return {
        "study": answers.folder.name,
        "seed": choice.seed,
        "total": choice.total,
        "chosen": len(choice.picks),
        "whole": choice.whole and len(rows) == choice.total,
        "arms": [{"name": arm, **look} for arm, look in arm_looks(answers).items()],
        "sources": [
            {
                **{key: getattr(each, key) for key in ("cell", "arm", "judge", "seed", "set")},
                **{key: getattr(each, key) for key in ("on_failure", "state")},
            }
            for each in answers.sources
        ],
        "behaviours": [{"name": name, "unit": unit(name)} for name in FEATURES],
        "numbers": numbers,
        "fields": FIELDS,
        "verdict_fields": VERDICT_FIELDS,
        "answers": rows,
        "texts": texts.shown(),
        "cut": texts.cut,
        "beginning": BEGINNING,
        "ending": ENDING,
        "problems": answers.problems,
    }


def _read(answers: Answers, choice: Choice) -> dict[Pick, dict[str, Any]]:
    """The chosen answers in full."""
    ids_of_source: dict[int, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for pick in choice.picks:
        ids_of_source[pick.source][pick.step].append(pick.rollout_id)
    row_of_pick: dict[Pick, dict[str, Any]] = {}
    for number, by_step in ids_of_source.items():
        source = answers.sources[number]
        for step, rollouts, verdicts in answers.judged(source, ROLLOUTS, VERDICTS, by_step):
            ids = by_step[step]
            votes: dict[str, list[dict[str, Any]]] = defaultdict(list)
            if verdicts is not None:
                chosen = verdicts.filter(pc.field("rollout_id").isin(ids))
                for vote in chosen.to_pylist():
                    votes[vote["rollout_id"]].append(vote)
            rows = rollouts.filter(pc.field("rollout_id").isin(ids)).to_pylist()
            features = measured([row["answer"] for row in rows], answers.keyword)
            for row, behaviour in zip(rows, features, strict=True):
                pick = Pick(number, step, row["rollout_id"])
                row_of_pick[pick] = _answer(row, votes[row["rollout_id"]], behaviour, number)
    return row_of_pick


def _answer(
    row: Mapping[str, Any], votes: Sequence[Mapping[str, Any]], behaviour: np.ndarray, source: int
) -> dict[str, Any]:
    """One answer under the names of `FIELDS`."""
    return {
        **{name: _read_value(name, row.get(name)) for name in FIELDS},
        "source": source,
        "id": row["rollout_id"],
        "judge": row["judge_score"],
        "program": _read_value("program", row.get("outcome")),
        "behaviour": list(behaviour),
        "numbers": {
            name: value
            for name, value in row.items()
            if name.startswith(NUMBERS) and value is not None and math.isfinite(value)
        },
        "verdicts": [_verdict(vote) for vote in votes],
    }


def _verdict(vote: Mapping[str, Any]) -> dict[str, Any]:
    """One verdict under the names of `VERDICT_FIELDS`."""
    return {
        **{name: _read_value(name, vote.get(name)) for name in VERDICT_FIELDS},
        "vote": vote.get("sample_index"),
        "finish": _read_value("finish", vote.get("finish_reason")),
        "stored": vote.get("from_cache"),
    }


def _read_value(name: str, value: Any) -> Any:
    """A value as it is held until the page is made: of a text its excerpt, however long it is."""
    return excerpt(value) if name in _TEXTS and value is not None else value


def _line(row: Mapping[str, Any], numbers: Sequence[str], texts: Texts) -> list[Any]:
    """An answer as the page holds it, in the order of `FIELDS`."""
    row = {
        **row,
        "behaviour": [_number(value) for value in row["behaviour"]],
        "numbers": {numbers.index(key): _number(value) for key, value in row["numbers"].items()},
        "verdicts": [
            [_value(name, vote[name], texts) for name in VERDICT_FIELDS] for vote in row["verdicts"]
        ],
    }
    score = ("reward", "advantage", "truth", "judge")
    return [
        _number(row[name]) if name in score else _value(name, row[name], texts) for name in FIELDS
    ]


def _value(name: str, value: Any, texts: Texts) -> Any:
    if name == "score":
        return _number(value)
    if name == "labels":
        return [texts.add(excerpt(str(label))) for label in value or ()]
    return texts.add(value) if name in _TEXTS else value


def _number(value: Any) -> float | int | None:
    """Six significant digits of a finite number; None of any other."""
    if value is None or not math.isfinite(value):
        return None
    number = float(f"{value:.6g}")
    return int(number) if number == int(number) and abs(number) < 1 << 53 else number


MARKS = dict(zip(MARKERS, "\u25cf\u25a0\u25b2\u25c6\u25bc\u271a\u2716", strict=True))
"""What stands in a text for a marker of the report's figures."""


def arm_looks(answers: Answers) -> dict[str, dict[str, str]]:
    """``color`` and ``mark`` of each arm, in the report's order; arms of no name come last."""
    from matplotlib.colors import to_hex

    used_cells = {*usable_cells(answers.runs)}
    settings = [
        (each.arm, each.seed, identifying(read_config(each.folder, [])))
        for each in answers.sources
        if each.cell in used_cells and not each.held_out
    ]
    base = base_of(answers.runs[answers.runs["cell"].isin(used_cells)], settings)
    ordered = arms_in_order(answers.runs, base)
    arms = list(dict.fromkeys([*ordered, *(each.arm for each in answers.sources)]))
    with looks_of(ordered):
        return {
            arm: {"color": to_hex(look["color"]), "mark": MARKS[look["marker"]]}
            for arm, look in looks(arms).items()
        }


WEB = Path(__file__).parent / "web"
PLACE = "report/answers.html"
"""Where the page is in a study's folder, beside the report."""
FRAME = 64_000
"""Bytes that are kept for what is not an answer: style, script, names."""


@dataclass(frozen=True)
class Written:
    """A page, and what it says of itself."""

    path: Path
    bytes: int
    how: str
    problems: list[str]


def write_page(
    study_dir: Path | str,
    out: Path | None = None,
    most: int = MOST,
    seed: int = 0,
    most_mb: float = MOST_MB,
) -> Written:
    """Write the page of a study's answers.

    Args:
        out: the file; without it `PLACE` in the study's folder.
        most: answers that it holds at most.
        seed: of the random sample.
        most_mb: megabytes that it has at most; answers are left out for it.

    Raises:
        UserError: there is no answer on record, or the study has another format.
    """
    answers = read_answers(study_dir)
    choice = choose(answers, most, seed)
    if not choice.total:
        why = answers.problems[0] if answers.problems else "no run of it has finished a step"
        raise UserError(
            f"{shown(answers.folder)} has no recorded answer: {why}. To see its progress, type:"
            f" python -m experiments.monitor study={answers.folder.name}"
        )
    page_content = content(answers, choice, int(most_mb * 1e6) - FRAME)
    path = out or answers.folder / PLACE
    text = rendered(page_content)
    clear_leftovers((answers.folder / PLACE).parent)
    write_text(path, text)
    return Written(path, len(text.encode()), how(page_content), answers.problems)


def rendered(page_content: dict[str, Any]) -> str:
    """The page of what `content` told."""
    script, style = (
        (WEB / name).read_text(encoding="utf-8").strip() for name in ("page.js", "page.css")
    )
    policy = (
        f"default-src 'none'; script-src {inline_hash(script)}; style-src {inline_hash(style)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )
    page = environment(WEB).get_template("page.html")
    data = escaped(page_content)
    return page.render(
        content=page_content,
        how=how(page_content),
        policy=policy,
        style=style,
        script=script,
        data=data,
    )


def how(page_content: dict[str, Any]) -> str:
    """How many of a study's answers a page holds, and how they were chosen."""
    count, total = len(page_content["answers"]), page_content["total"]
    if page_content["whole"]:
        return f"All {total:,} answers of the study are here."
    why = Counter(row[page_content["fields"].index("why")] for row in page_content["answers"])
    parts = [f"Here are {count:,} of the study's {total:,} answers."]
    if why[GAP] + why[BOTH]:
        parts.append(
            f"{why[GAP] + why[BOTH]:,} have the largest gaps between judge and truth, either way, "
            "with an equal share for each arm."
        )
    if why[RANDOM] + why[BOTH]:
        parts.append(
            f"{why[RANDOM] + why[BOTH]:,} are a random sample (seed {page_content['seed']}): "
            "prompts drawn at random, and one answer of each group that a run gave to them at up "
            f"to {STEPS} random steps; where these are too few, answers drawn from all."
        )
    if why[BOTH]:
        parts.append(f"{why[BOTH]:,} are both.")
    if why[ALL]:
        parts.append(
            "They were chosen alternately from those with the largest gaps between judge and"
            f" truth, either way, and from a random order (seed {page_content['seed']})."
        )
    if count < page_content["chosen"]:
        parts.append(
            f"{page_content['chosen'] - count:,} more were left out to keep the page small."
        )
    return " ".join(parts)
