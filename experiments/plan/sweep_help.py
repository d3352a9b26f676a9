"""The help of the sweep, on one screen: the settings that people change, and where the rest is."""

from __future__ import annotations

from collections.abc import Sequence

from study.cli import shown_examples
from study.config.presets import GROUPS, preset_names
from study.config.settings import settings

USAGE = "[KEY=VALUE[,VALUE...]] ..."
ABOUT = """Trains a policy under each judge: one cell for each combination of the values
that commas separate. Rerun it to resume. The report is written at the end."""
ABOUT_PLAN = """Prints what a sweep would run, cost and take, and the smallest difference
that it could see; writes nothing. It takes every setting of a sweep."""
EXAMPLES = (
    "python -m experiments.sweep judge=sim-fair,sim-verbose seed=0,1,2",
    "python -m experiments.sweep judge=sim-fair,sim-verbose seed=0,1,2 plan=true",
)
PRESETS = ("judge", "policy", "task", "reward", "experiment")
"""Groups of presets that most sweeps name."""
SHORT = {
    "seed": "0,1,2 trains each arm three times",
    "study": "its name, and its folder under runs/",
    "trainer.steps": "updates of the policy",
    "trainer.learning_rate": "step size",
    "trainer.prompts_per_step": "prompts of a step",
    "trainer.group_size": "completions of a prompt",
    "trainer.max_completion_length": "most tokens of a completion",
}
"""Single settings that people change."""
VALUES = {"WHOLE_NUMBER": "N", "NUMBER": "X", "TEXT": "NAME"}
"""Types of values, in a word each."""


def text(typed: str, examples: Sequence[str] = EXAMPLES, about: str = ABOUT) -> str:
    """The help of a sweep that is typed so: at most a screen of 80 columns."""
    every, rows = settings(), {f"{group}=NAME": _preset(group) for group in PRESETS}
    rows |= {f"{key}={VALUES[every[key].value]}": what for key, what in SHORT.items()}
    width = max(map(len, rows)) + 2
    others = [
        "All presets, with what each is:    judgedrift presets judge",
        f"All {len(every)} settings, by part:         judgedrift help trainer",
        "One of them, its default and unit: judgedrift help trainer.beta",
        "Every key with its value:          --cfg job",
        "Hydra's own words:                 --hydra-help",
    ]
    return "\n\n".join(
        [
            f"usage: {typed} {USAGE}",
            about,
            "\n".join(
                [
                    "What people change (presets in brackets):",
                    *(f"  {key:<{width}}{what}" for key, what in rows.items()),
                ]
            ),
            "\n".join(others),
            shown_examples(examples),
        ]
    )


def _preset(group: str) -> str:
    count = len([name for name in preset_names(group) if name != "base"])
    return f"{GROUPS[group]} ({count})"
