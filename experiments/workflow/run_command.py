"""Runs a workflow program on a problem, in the sandbox, with a broker between it and the model.

problem= is {id, domain, prompt, entry_point?, public_tests?}, in a file or as JSON itself; hidden
tests and answers may stand in it and are not read. script= are the model's replies: lines {text,
tokens_in?, tokens_out?, fail?: timeout|http_500|empty}, used in order, the last again and again;
lines with an operator answer only that one. The result is {outcome, answer, claimed_cost, cost_usd,
calls: [{operator, ok, tokens_in, tokens_out}], tokens_in, tokens_out, critical_tokens, own_s,
wall_s, flags, sandbox}; programs= makes a list of them under runs.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.workflow.broker import Workshop
from experiments.workflow.executor import Script, read_script
from experiments.workflow.find import FORMS
from experiments.workflow.inputs import Candidate, read_candidates
from experiments.workflow.problem import Problem, read_problem
from experiments.workflow.run import Record, execute, record
from experiments.workflow.validate import WORLDS
from study.cli import command, option, output, word, writes
from study.config.bounds import Choice, Number
from study.config.schema import Price
from study.errors import UserError
from study.sandbox.conversation import Stage
from study.screen import visible
from study.system.files import write_json


@dataclass(frozen=True)
class Options:
    """Options of the command ``run``: the programs, the problem, and who answers."""

    what: str = word("run programs", "run")
    program: Path | None = option("file with one completion")
    programs: Path | None = option("JSONL file of programs, each run on the same problem")
    prompts: Path | None = option("prompt file of program=")
    form: str | None = option("the only form to look for", None, Choice(FORMS))
    problem: str = option("problem, as JSON or as a JSON file", required=True)
    executor: str = option("who answers", "scripted", Choice(("scripted",)))
    script: Path | None = option("JSONL file of replies; each program starts from its first line")
    static: bool = option("whether to validate first; false runs invalid programs too", True)
    price_input: float | None = option(
        "US dollars per million tokens in", None, Number(low=0), key="price.input"
    )
    price_output: float | None = option(
        "US dollars per million tokens out", None, Number(low=0), key="price.output"
    )
    out: Path = output("JSON file for the result", required=True)


async def runs(
    candidates: Sequence[Candidate],
    problem: Problem,
    script: Script,
    checked: bool,
    form: str | None,
) -> list[Record]:
    """One record for each program, one after the other."""
    with Stage(1 + len(WORLDS)) as stage, Workshop(stage.tier, 1) as workshop:
        records = []
        for item in candidates:
            own_problem = dataclasses.replace(problem, domain=item.domain or problem.domain)
            execution = await execute(
                item.text,
                own_problem,
                script.again(),
                stage,
                workshop,
                checked,
                item.form or form,
                item.prompts,
            )
            records.append(record(execution, own_problem, stage))
        return records


@command(
    "experiments.workflow run program=graph.py problem=problem.json executor=scripted"
    " script=replies.jsonl out=run.json",
    __doc__,
    Options,
)
def main(options: Options) -> int:
    """Exit codes: 0 with any outcome, 2 for a user's error."""
    candidates = read_candidates(options.program, None, options.programs, options.prompts)
    problem = read_problem(options.problem)
    if options.script is None:
        raise UserError("executor=scripted needs script=, a JSONL file of replies.")
    script = read_script(options.script)
    script.price = Price(options.price_input or 0.0, output=options.price_output or 0.0)
    records = asyncio.run(runs(candidates, problem, script, options.static, options.form))
    named_records = [{**item.name, **each} for item, each in zip(candidates, records, strict=True)]
    with writes("out", options.out):
        write_json(
            options.out,
            {"runs": named_records} if options.programs is not None else named_records[0],
        )
    for item, entry in list(zip(candidates, records, strict=True))[:20]:
        reason = f" ({entry['why']})" if entry["why"] else ""
        name = item.name.get("path", item.name.get("id"))
        print(visible(f"{name}: {entry['outcome']}{reason}, {len(entry['calls'])} operator calls"))
    print(options.out)
    return 0
