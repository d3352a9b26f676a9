"""RuscaRL scaffolding: some rollouts of a group are shown criteria before they answer.

The share shown falls within a group (the first rollout sees most, the last nothing) and over the
steps. The samples come from pi(y | x, criteria); unless ``scaffold.keep`` says otherwise, the
update takes them for samples of pi(y | x). Never applied in evaluation.
Source: Rubric-Scaffolded RL, arXiv 2508.16949, as its public code does it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from study.config.schema import Scaffold
from study.errors import UserError
from study.rows import Criterion, Row

BASE = "You are a helpful assistant."
COVER = "A complete answer meets these points:"
AVOID = "A good answer stays clear of these:"
WARNING = (
    "Answer as if you had never seen these points: do not mention, quote or hint at them or at any"
    " scoring."
)


@dataclass(frozen=True)
class Shown:
    """What one rollout sees.

    Attributes:
        ratio: group share times step share, in [0, 1].
        items: places of the criteria shown, in the order of the rubric.
        messages: the chat turns that it answers.
    """

    ratio: float
    items: tuple[int, ...]
    messages: tuple[dict[str, str], ...]


def check(scaffold: Scaffold, rows: Sequence[Row]) -> None:
    """Refuse rows that hold nothing to show. Raises UserError: naming the first."""
    if scaffold.name == "none":
        return
    bare = [row.prompt_id for row in rows if not items(row)]
    if bare:
        raise UserError(
            f"scaffold={scaffold.name} shows criteria, but {len(bare)} of {len(rows)} rows have"
            f" none, first prompt_id={bare[0]}. There the scaffold would silently do nothing. Type"
            " scaffold=none, or take a task whose rows have rubrics (task.options.needs=criteria"
            " refuses others)."
        )


def items(row: Row) -> tuple[Criterion, ...]:
    """All that a scaffold can show of a row: its criteria, then its rules in words."""
    return row.criteria + tuple(Criterion(rule.text, rule.points) for rule in row.rules)


def group_share(scaffold: Scaffold, member: int, group_size: int) -> float:
    """Share of the criteria that rollout ``member`` (from 0) of G sees at full strength.

    linear and math_linear: (G - 1 - i) / (G - 1), and 1 for G = 1; binary: 1 for i < full_reveal.
    """
    if scaffold.group == "binary":
        return float(member < scaffold.full_reveal)
    return 1.0 if group_size < 2 else (group_size - 1 - member) / (group_size - 1)


def step_share(scaffold: Scaffold, step: int, steps: int) -> float:
    """Strength of the scaffold at ``step`` (from 1) of T.

    With x = (step - 1) / (T - 1): linear 1 - x (the same as (T - step) / (T - 1)); power
    (1 - x)^p; sigmoid 1 / (1 + exp(k (x - x0))); 1 without decay or with T = 1.
    """
    if scaffold.decay == "none" or steps <= 1:
        return 1.0
    x = min(max((step - 1) / (steps - 1), 0.0), 1.0)
    if scaffold.decay == "sigmoid":
        # the exponent is cut where 1 / (1 + exp(.)) is 0 in double precision, before exp overflows
        return 1.0 / (1.0 + math.exp(min(scaffold.k * (x - scaffold.x0), 700.0)))
    return (1.0 - x) ** (scaffold.power if scaffold.decay == "power" else 1.0)


def choose(scaffold: Scaffold, count: int, ratio: float, draw: random.Random) -> tuple[int, ...]:
    """Places of the criteria to show, in the order of the rubric.

    round(count * ratio) of them, with Python's rounding to even, drawn at random. math_linear takes
    the first ones in order instead; there the last but one (the format) is always shown, and the
    last (the answer) only at ratio 1.
    """
    if scaffold.group == "math_linear" and count >= 2:
        places = list(range(round((count - 2) * ratio)))
        return (*places, count - 2, *((count - 1,) if ratio >= 1.0 else ()))
    return tuple(sorted(draw.sample(range(count), round(count * ratio))))


def show(
    scaffold: Scaffold, row: Row, member: int, group_size: int, step: int, steps: int, seed: int
) -> Shown:
    """What rollout ``member`` of a group of G sees of ``row`` at ``step`` of T.

    The draw depends on seed, step, prompt and member alone, so a resumed run shows the same.
    """
    offered = items(row)
    ratio = group_share(scaffold, member, group_size) * step_share(scaffold, step, steps)
    draw = random.Random(f"{seed} {step} {row.prompt_id} {member}")
    places = choose(scaffold, len(offered), ratio, draw)
    text = BASE if scaffold.base_prompt else ""
    if places:
        text = wording(scaffold, [offered[place] for place in places])
    return Shown(ratio, places, with_system(row.messages, text))


def wording(scaffold: Scaffold, shown: Sequence[Criterion]) -> str:
    """The system text that shows criteria, those to cover before those to avoid."""
    cover = [f"- {item.text} ({item.points:g} points)" for item in shown if item.points >= 0]
    avoid = [f"- {item.text} (costs {-item.points:g} points)" for item in shown if item.points < 0]
    parts = [BASE]
    parts += ["\n".join([COVER, *cover])] if cover else []
    parts += ["\n".join([AVOID, *avoid])] if avoid else []
    parts += ["Be thorough: leave none of them out."] if cover else []
    parts += [WARNING] if scaffold.leak_warning else []
    return "\n\n".join(parts)


def with_system(messages: tuple[dict[str, str], ...], text: str) -> tuple[dict[str, str], ...]:
    """``text`` as the system turn; a row's own system turn follows in the same turn, because chat
    templates know one only."""
    if not text:
        return messages
    first, rest = messages[0], messages
    if first["role"] == "system":
        text, rest = f"{text}\n\n{first['content']}", messages[1:]
    return ({"role": "system", "content": text}, *rest)
