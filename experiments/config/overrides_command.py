"""A published configuration of a workflow policy, as settings of a sweep.

Prints one setting a line, and after a # what has no counterpart here and why. Keys that are not
known are refused, each by its name, and so is a file that holds a secret. llm= is the file that
says where the executor is: {models: {NAME: {base_url, model_name, temperature, top_p}}}.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.config.overrides import EXPERIMENT, overrides
from study.cli import command, option, word
from study.screen import visible


@dataclass(frozen=True)
class Options:
    """Options of the command ``overrides``: the published files."""

    what: str = word("published settings as ours", "overrides")
    file: Path = option("YAML file in the style of training.yaml", required=True)
    llm: Path | None = option("YAML file in the style of aflow_llm.yaml")


@command("experiments.workflow overrides file=training.yaml llm=aflow_llm.yaml", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 printed, 2 for a user's error."""
    for line in overrides(options.file, options.llm):
        print(visible(line))
    sweep = f"python -m experiments.sweep experiment={EXPERIMENT} SETTINGS"
    print(f"# for the lines above: {sweep} plan=true")
    return 0
