"""Runs a workflow program on a problem, in the sandbox, with a broker between it and the model.

problem= is {id, domain, prompt, entry_point?, public_tests?}, in a file or as JSON itself; hidden
tests and answers may stand in it and are not read. executor= is a preset of conf/executor, whose
model is asked as in a study and whose replies are kept in the store of runs_dir=; or scripted. Then
script= are the replies: lines {text, tokens_in?, tokens_out?, fail?: timeout|http_500|empty}, used
in order, the last again and again; lines with an operator answer only that one. The result is
{outcome, answer, claimed_cost, cost_usd, calls: [{operator, ok, tokens_in, tokens_out}], tokens_in,
tokens_out, critical_tokens, own_s, wall_s, flags, sandbox}; programs= makes a list of them under
runs.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.workflow.broker import Workshop
from experiments.workflow.executor import Executor, read_script
from experiments.workflow.find import FORMS
from experiments.workflow.inputs import Candidate, read_candidates
from experiments.workflow.model import ModelExecutor
from experiments.workflow.problem import Problem, read_problem
from experiments.workflow.run import Record, execute, record
from experiments.workflow.validate import WORLDS
from judges.ask.identity import check_settings
from judges.ask.replies import Store, open_store
from judges.serving.lease import leases
from study.cli import command, option, output, overrides, word, writes
from study.config.bounds import Choice, Number
from study.config.compose import load_executor, preset_names
from study.config.schema import Executor as ExecutorSettings
from study.config.schema import Price, VerdictStore
from study.errors import UserError
from study.sandbox.conversation import Stage
from study.screen import visible
from study.system.files import write_json
from study.tasks import oracle

SCRIPTED = "scripted"
PRESETS = [name for name in preset_names("executor") if name != "none"]
Work = Callable[[Callable[[], Executor]], Coroutine[Any, Any, list[Record]]]
"""Runs the programs, each answered by an executor that it asks for."""


@dataclass(frozen=True)
class Options:
    """Options of the command ``run``: the programs, the problem, and who answers."""

    what: str = word("run programs", "run")
    program: Path | None = option("file with one completion")
    programs: Path | None = option("JSONL file of programs, each run on the same problem")
    prompts: Path | None = option("prompt file of program=")
    form: str | None = option("the only form to look for", None, Choice(FORMS))
    problem: str = option("problem, as JSON or as a JSON file", required=True)
    executor: str = option(
        "who answers: scripted, or a preset of the executor", SCRIPTED, Choice((SCRIPTED, *PRESETS))
    )
    script: Path | None = option("JSONL file of replies; each program starts from its first line")
    static: bool = option("whether to validate first; false runs invalid programs too", True)
    price_input: float | None = option(
        "US dollars per million tokens in", None, Number(low=0), key="price.input"
    )
    price_output: float | None = option(
        "US dollars per million tokens out", None, Number(low=0), key="price.output"
    )
    runs_dir: Path = option("folder of the reply store of a preset", Path("runs"))
    overrides: list[str] = overrides("executor.")
    out: Path = output("JSON file for the result", required=True)
    given: frozenset[str] = frozenset()
    """Options that were typed."""

    def check(self) -> None:
        """Raises UserError: options that do not go together."""
        scripted = self.executor == SCRIPTED
        if scripted and self.script is None:
            raise UserError(
                "executor=scripted needs script=, a JSONL file of replies. Give one, or type"
                " executor=PRESET, one that `judgedrift presets executor` lists."
            )
        if scripted and self.overrides:
            raise UserError(
                f"{self.overrides[0]} has no meaning with executor=scripted. Leave it out, or type"
                " executor=PRESET."
            )
        wrong = sorted({"script", "price_input", "price_output"} & self.given)
        if wrong and not scripted:
            raise UserError(
                f"{wrong[0].replace('_', '.')}= is for executor=scripted, but executor="
                f"{self.executor} is given. Leave it out; settings of a preset are typed as"
                " executor.KEY=VALUE, such as executor.price.input=0.1."
            )


async def runs(
    candidates: Sequence[Candidate],
    problem: Problem,
    executor: Callable[[], Executor],
    checked: bool,
    form: str | None,
) -> list[Record]:
    """One record for each program, one after the other; ``executor`` gives who answers each."""
    with Stage(1 + len(WORLDS)) as stage, Workshop(stage.tier, 1) as workshop:
        records = []
        for item in candidates:
            own_problem = dataclasses.replace(problem, domain=item.domain or problem.domain)
            execution = await execute(
                item.text,
                own_problem,
                executor(),
                stage,
                workshop,
                checked,
                item.form or form,
                item.prompts,
            )
            records.append(record(execution, own_problem, stage))
        return records


def by_script(options: Options, work: Work) -> list[Record]:
    """The records of programs that a file answers."""
    assert options.script is not None
    script = read_script(options.script)
    script.price = Price(options.price_input or 0.0, output=options.price_output or 0.0)
    return asyncio.run(work(script.again))


def by_preset(options: Options, work: Work) -> list[Record]:
    """The records of programs that the model of a preset answers.
    Raises UserError: its settings cannot work, or nobody answers at its endpoint."""
    settings, task = load_executor(options.executor, overrides=options.overrides)
    check_settings(settings)
    options.runs_dir.mkdir(parents=True, exist_ok=True)

    async def answered(executor: ExecutorSettings, store: Store) -> list[Record]:
        model = ModelExecutor(executor, store, oracle(task))
        try:
            await model.asker.check()
            return await work(lambda: model)
        finally:
            await model.close()

    with (
        leases([settings], options.runs_dir) as reached,
        open_store(options.runs_dir, VerdictStore()) as store,
    ):
        executor = reached(settings)
        assert isinstance(executor, ExecutorSettings)
        return asyncio.run(answered(executor, store))


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
    answer = by_script if options.executor == SCRIPTED else by_preset
    records = answer(
        options, lambda executor: runs(candidates, problem, executor, options.static, options.form)
    )
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
