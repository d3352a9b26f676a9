"""Whether workflow programs can work, before a token is spent.

program= is a file with a completion, prompts= the prompt file of its prompt_custom. folder= takes
every graph.py below it with the prompt.py beside it. programs= are rows {id, program, form?,
domain?, prompts?: [names]}. The result is {programs: [{path or id, outcome, diagnostics: [{line,
code, level, message}], calls: {pass, fail} or null, operators, nodes, sha, ast_sha, seconds}],
counts}: docs/workflows.md lists the codes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.workflow.find import FORMS
from experiments.workflow.inputs import Candidate, read_candidates
from experiments.workflow.problem import STAND_IN
from experiments.workflow.program import Diagnostic, outcome_of
from experiments.workflow.validate import WORLDS, Report, validate
from study.cli import command, option, output, word, writes
from study.config.bounds import Choice
from study.config.simulated import DOMAINS
from study.sandbox.conversation import Stage
from study.screen import visible
from study.system.files import write_json

AT_ONCE = 2
"""Programs that are looked at together; each runs in all stub worlds at once."""


@dataclass(frozen=True)
class Options:
    """Options of the command ``validate``: the programs, and their form."""

    what: str = word("check whether programs can work", "validate")
    program: Path | None = option("file with one completion")
    folder: Path | None = option("folder with graph.py and prompt.py files")
    programs: Path | None = option("JSONL file of programs")
    prompts: Path | None = option("prompt file of program=")
    form: str | None = option("the only form to look for", None, Choice(FORMS))
    domain: str | None = option("domain of the problems; math if not given", None, Choice(DOMAINS))
    out: Path = output("JSON file for the result", required=True)


async def reports(
    candidates: Sequence[Candidate], form: str | None, domain: str | None
) -> list[Report]:
    """One report for each program, in their order."""
    places = asyncio.Semaphore(AT_ONCE)

    async def look(item: Candidate) -> Report:
        if item.wrong:
            wrong = Diagnostic(1, "unknown_prompt", item.wrong)
            return Report(outcome_of([wrong]), (wrong,))
        problem = dataclasses.replace(STAND_IN, domain=item.domain or domain or STAND_IN.domain)
        async with places:
            return await validate(item.text, stage, item.form or form, item.prompts, problem)

    with Stage(AT_ONCE * len(WORLDS)) as stage:
        return list(await asyncio.gather(*map(look, candidates)))


@command("experiments.workflow validate program=graph.py out=report.json", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 with any verdict, 2 for a user's error."""
    candidates = read_candidates(options.program, options.folder, options.programs, options.prompts)
    results = asyncio.run(reports(candidates, options.form, options.domain))
    rows = [{**item.name, **each.as_row()} for item, each in zip(candidates, results, strict=True)]
    counts = Counter(str(report.outcome) for report in results)
    with writes("out", options.out):
        write_json(options.out, {"programs": rows, "counts": counts})
    for item, report in list(zip(candidates, results, strict=True))[:20]:
        wrong = next((line for line in report.diagnostics if line.level == "error"), None)
        error = f": line {wrong.line}, {wrong.code}: {wrong.message}" if wrong else ""
        name = item.name.get("path", item.name.get("id"))
        print(visible(f"{name}: {report.outcome}{error}"))
    print(f"{', '.join(f'{n} {outcome}' for outcome, n in counts.items())}. {options.out}")
    return 0
