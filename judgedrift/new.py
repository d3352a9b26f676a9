"""Writes a commented preset of your own into ./conf, beside those that ship.

    judgedrift new judge mine url=http://127.0.0.1:8000/v1
    judgedrift new judge mine url=http://127.0.0.1:8000/v1 form='[RESULT] {score}' highest=5
    judgedrift new task mine path=prompts.jsonl
    judgedrift new reward mine
    judgedrift new experiment mine

It is then used by its name, such as judge=mine. A judge's endpoint is asked for its models and for
a verdict; the preset has the first grading that reads the reply, or the form of the score in it.
With config_dir=PATH it is written there.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from judges.ask.asker import served_models
from judges.ask.once import verdict_of
from judges.check import ANSWER, HARMLESS
from judges.endpoint.dialects import DIALECTS
from judges.grading.own_form import guessed, own_form
from study.cli import command, option, word
from study.config.bounds import Choice, Name, Number
from study.config.presets import OWN, SHIPPED, VARIABLE, WRITTEN
from study.config.schema import Endpoint, Grading, Judge, Sampling
from study.errors import UserError
from study.screen import one_line, visible
from study.system.files import write_text
from study.verdict import Outcome, Verdict

TEMPLATES = Path(__file__).with_name("templates")
GRADINGS = (("likert", {}), ("soft_choice", {"soft": False}), ("binary", {}), ("rubric_batch", {}))
"""Those that are tried, with their options, in this order, until one reads the reply."""
UNREAD = (
    "no grading reads these replies. Where the score stands in a form of the judge's own, write"
    " that under grading.options: form, such as '[RESULT] {score}', and highest, such as 5."
)
TOKENS = (256, 4096)
"""Of a reply, and of one that was cut off, as a model that thinks writes it."""
SHOWN = 160


@dataclass(frozen=True)
class Options:
    """Options of `judgedrift.new`: what to write, and where a judge answers."""

    group: str = word("group of the preset", *WRITTEN)
    name: str = word("name of the preset")
    url: str = option("address at which a judge answers, with /v1 at its end", "")
    model: str = option("model that is asked; left out, the one that the endpoint serves", "")
    api_key_env: str = option("name of the variable that holds the endpoint's key", "", Name())
    dialect: str = option("what the endpoint takes", "openai", Choice(tuple(DIALECTS)))
    form: str = option("how a judge writes its score, such as 'Score: {score}/10'", "")
    highest: float | None = option("number that is the score 1 in form=", None, Number(above=0))
    path: str = option("file of a task's prompts", "prompts.jsonl")

    @property
    def file(self) -> Path:
        """Where the preset is written."""
        return Path(os.environ.get(VARIABLE) or OWN) / self.group / f"{self.name}.yaml"

    def check(self) -> None:
        """Refuse a name that is none, or one that is there."""
        if not Name().accepts(self.name):
            raise UserError(f"{self.name!r} cannot be a name: it must be {Name().describe()}.")
        if (SHIPPED / self.group / self.file.name).exists() or self.file.exists():
            raise UserError(
                f"{self.group}={self.name} is there already, and nothing is written. Give another"
                f" name, or change {self.file}."
            )
        if (self.model or self.form) and not self.url:
            raise UserError("model= and form= have no meaning without url=. Give the address too.")
        own_form(self.form or None, self.highest)


@command("judgedrift.new judge mine url=http://127.0.0.1:8000/v1", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 written, 1 written, but no grading reads the judge's reply; 2 for a user's
    error."""
    text, known = (TEMPLATES / f"{options.group}.yaml").read_text(encoding="utf-8"), True
    values = {"name": options.name, "path": yaml_text(options.path)}
    if options.group == "judge":
        judge_values, known = of_judge(options)
        values |= judge_values
    text = re.sub(r"\{([a-z]+)\}", lambda match: values[match[1]], text)
    options.file.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.file, text)
    print(f"Written: {options.file}. Look through it; then type: {next_command(text)}")
    return 0 if known else 1


def next_command(text: str) -> str:
    """The first command in the head of a preset."""
    return next(line for line in text.splitlines() if line.startswith("# judgedrift"))[2:]


def yaml_text(text: str) -> str:
    """A text as YAML has it, on one line."""
    return yaml.safe_dump(text, default_style='"', width=10**6).strip()


def of_judge(options: Options) -> tuple[dict[str, str], bool]:
    """What a preset of a judge says, and whether a grading reads its replies.
    Raises UserError: the endpoint does not answer, or serves several models and none is named."""
    values = {
        "url": yaml_text(options.url),
        "model": yaml_text(options.model),
        "key": options.api_key_env or "null",
        "grading": "  name: likert",
        "tokens": str(TOKENS[0]),
    }
    if not options.url:
        about = "# Give it an address: judgedrift new judge NAME url=URL asks that for the rest."
        return {**values, "about": about}, True
    endpoint = Endpoint(
        url=options.url,
        model=options.model,
        api_key_env=options.api_key_env or None,
        dialect=options.dialect,
    )
    models = served_models(Judge(name=options.name, endpoint=endpoint)) or []
    model = options.model or (models[0] if len(models) == 1 else "")
    if not model:
        listed = f"serves {', '.join(map(visible, models[:8]))}" if models else "lists no models"
        raise UserError(f"{options.url} {listed}. Name one: model=NAME. Nothing is written.")
    endpoint = dataclasses.replace(endpoint, model=model)
    own = {"form": options.form, "highest": options.highest}
    own = {key: value for key, value in own.items() if value}
    *failed, (judge, verdict) = verdicts(options.name, endpoint, own)
    known = verdict.outcome is Outcome.scored
    for _, each in [*failed, (judge, verdict)]:
        print(f"{each.grading:<12} {_result(each)}")
    if not known:
        print(f"{options.name}: {UNREAD}")
        judge, verdict = failed[0] if failed else (judge, verdict)
    reply = one_line(visible(verdict.text), SHOWN)
    grading = yaml.safe_dump(dataclasses.asdict(judge.grading), allow_unicode=True, width=10**6)
    about = f"# {options.url} serves {', '.join(map(visible, models[:8])) or model}. Asked with the"
    about += f"\n# grading {verdict.grading}, it replied: {reply}"
    values |= {
        "about": about if known else f"{about}\n# {UNREAD}",
        "model": yaml_text(model),
        "grading": textwrap.indent(grading.rstrip(), "  "),
        "tokens": str(judge.sampling.max_tokens),
    }
    return values, known


def verdicts(name: str, endpoint: Endpoint, own: dict[str, Any]) -> Iterator[tuple[Judge, Verdict]]:
    """The judge under one grading after the other, with its verdict on the harmless question, until
    one is scored: by the form that is its ``own``, else by each of `GRADINGS`, with a form that the
    first reply has. Raises UserError: it cannot be asked."""
    gradings = [Grading("likert", own)] if own else [Grading(*each) for each in GRADINGS]
    while gradings:
        grading = gradings.pop(0)
        for tokens in TOKENS:
            sampling = Sampling(max_tokens=tokens)
            judge = Judge(name=name, endpoint=endpoint, grading=grading, sampling=sampling)
            verdict = verdict_of(judge, HARMLESS, ANSWER)
            if verdict.outcome is not Outcome.truncated:
                break
        yield judge, verdict
        if verdict.outcome is Outcome.scored:
            return
        if not grading.options and (form := guessed(verdict.text)):
            gradings.insert(0, Grading("likert", {"form": form}))


def _result(verdict: Verdict) -> str:
    """How a verdict ended, on one line."""
    if verdict.outcome is Outcome.scored:
        return f"scored {verdict.score:.3f}: {one_line(visible(verdict.text), SHOWN)}"
    return f"{verdict.outcome}: {one_line(visible(verdict.reason), SHOWN)}"


if __name__ == "__main__":
    sys.exit(main())
