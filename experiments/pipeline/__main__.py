"""From nothing to a report: rows fetched and prepared, policies trained and evaluated, a report.

    python -m experiments.pipeline policy=qwen25-7b judge=qwen3-32b seed=0,1,2
    python -m experiments.pipeline policy=qwen3-8b data=plan-c device=cuda:1 plan=true
    python -m experiments.pipeline policy=qwen25-7b skip=download,prepare evaluate.limit=200

The stages are download, prepare, train, evaluate and report; each is a command of its own, which
plan=true prints. What a stage read and left is noted in runs/STUDY/pipeline.json: a stage that is
done is not run again, one that was killed goes on, and one that reads something else than it did is
run anew, as are those that read what it leaves. Any setting of experiments.sweep can be typed, and
evaluate.KEY=VALUE for any option of experiments.evaluate datasets. Without experiment= it is
experiment=mixed-full, and without study= the study is mixed-POLICY.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments import launch
from experiments.evaluation.options import Options as Evaluation
from experiments.pipeline.notes import Notes, Outcome, Step
from experiments.pipeline.steps import STAGES, Plan, check_folder, command_line, steps_of
from experiments.plan.needs import HERE
from experiments.sweep import cells_of
from experiments.trainer.vllm import check_installed
from study.cli import command, option, overrides, preset
from study.config.bounds import Choice
from study.config.marks import field_types
from study.config.schema import Study
from study.errors import UserError
from study.finding import as_notes, stop_at_problem
from study.screen import visible
from study.system import locks
from study.system.machine import device_variables
from study.system.stopping import end_with_parent
from study.system.storage import explained
from study.tasks.datasets.preset import load_data
from study.tasks.datasets.sets import SETS

EVALUATE = "evaluate."
OURS = ("plan", "device", "shadow_judges")
"""Fields of a study that are no settings of the sweep here."""
SWEEP = tuple(name for name in field_types(Study) if name not in OURS)
GROUPS = ("profile", "experiment", "debug", "hydra")
LAST_S = 60.0
"""How long a stage that is told to stop may take."""


@dataclass(frozen=True)
class Options:
    """Options of `experiments.pipeline`: the rows, the device, stages and settings."""

    data: str = preset("data", "")
    datasets: list[str] = option(
        "sets to download, prepare and evaluate, in place of the preset's", [], Choice(tuple(SETS))
    )
    device: str = option("device of the policies: cpu, or cuda:N for GPU N", "")
    stages: list[str] = option("stages to run", list(STAGES), Choice(STAGES))
    skip: list[str] = option("stages to leave out", [], Choice(STAGES))
    plan: bool = option("print the stages and write nothing", False)
    settings: list[str] = overrides(
        *("data.", EVALUATE, *SWEEP, *GROUPS),
        about="any setting of experiments.sweep; data.KEY of the rows; evaluate.KEY, an option of"
        " experiments.evaluate datasets",
    )

    def check(self) -> None:
        """Refuse a pipeline that trains nobody in particular."""
        if not (self.typed("policy=") or self.typed("experiment=")):
            raise UserError("experiments.pipeline needs policy= (preset of the policy to train).")
        if not set(self.stages) - set(self.skip):
            raise UserError("skip= leaves out every stage of stages=. Leave one in.")

    def typed(self, *beginnings: str) -> list[str]:
        """The settings that were typed and begin so."""
        return [text for text in self.settings if text.lstrip("+~").startswith(beginnings)]


def plan_of(options: Options) -> Plan:
    """What the options ask for, composed and checked; nothing is read that a stage is to make.
    Raises UserError: settings that cannot be composed or do not go together."""
    variables = device_variables(options.device)
    typed = options.typed("data.")
    name = options.data or "plan-c"
    data = load_data(name, typed, options.datasets)
    words = [text for text in options.settings if text not in options.typed("data.", EVALUATE)]
    if not options.typed("experiment="):
        words = ["experiment=mixed-full", *words]
        policy = options.typed("policy=")[0].partition("=")[2]
        if not options.typed("study=") and "," not in policy:
            words.append(f"study=mixed-{policy}")
    rows_typed = bool(options.data or typed or options.datasets)
    if rows_typed and not options.typed("task.path="):
        words.append(f"task.path=data/{name}")
    stages = set(options.stages) - set(options.skip)
    in_order = tuple(stage for stage in STAGES if stage in stages)
    evaluation = [text.partition(EVALUATE)[2] for text in options.typed(EVALUATE)]
    reader = command("experiments.evaluate datasets run=runs/STUDY/CELL out=FILE", "", Evaluation)
    reader(lambda options: 0).read(["datasets", "run=CELL", "out=result.json", *evaluation])
    plan = Plan(
        cells_of(words),
        data,
        (*([f"datasets={','.join(options.datasets)}"] if options.datasets else []), *typed),
        tuple(words),
        tuple(evaluation),
        options.device,
        variables,
        in_order,
    )
    if rows_typed and plan.folder is None:
        task = plan.cells[0].config.task.name
        raise UserError(f"task={task} draws no rows of data=. Leave data= out, or type task=mixed.")
    return plan


Survey = dict[str, str | list[tuple[Step, Outcome]]]
"""Stage -> why it is left out, or its steps and what is known of each."""


def survey(plan: Plan, notes: Notes) -> Survey:
    """Look at every step once."""
    stages = {stage: steps_of(plan, stage) for stage in STAGES}
    return {
        stage: steps if isinstance(steps, str) else [(step, notes.look(step)) for step in steps]
        for stage, steps in stages.items()
    }


def show(stages: Survey) -> None:
    """Print what each stage would do, and why."""
    before = ""
    for stage, steps in stages.items():
        if isinstance(steps, str):
            print(visible(f"{stage:<9} skipped    {steps}"))
            continue
        outcomes = [(step, _after(outcome, before)) for step, outcome in steps]
        todo = [(step, outcome) for step, outcome in outcomes if not outcome.done]
        state, why = ("would run", todo[0][1].why) if todo else ("done", outcomes[0][1].why)
        print(visible(f"{stage:<9} {state:<10} {why}"))
        for step, _ in todo or outcomes:
            if step.words:
                print(f"    {visible(command_line(step.words))}")
        before = before or (stage if todo else "")


def _after(outcome: Outcome, before: str) -> Outcome:
    """What is known of a step while a stage before it is still to be run."""
    if not (before and outcome.done):
        return outcome
    return Outcome(False, f"{before} runs before it, and may change its input", {})


def _say(stage: str, steps: str | list[tuple[Step, Outcome]]) -> None:
    """Why a stage is left out, or what is known of some of its steps."""
    if isinstance(steps, str):
        print(visible(f"{stage}: skipped, {steps}"), flush=True)
        return
    for step, outcome in steps:
        print(visible(f"{step.name}: {'done, ' * outcome.done}{outcome.why}"), flush=True)


def run(plan: Plan, notes: Notes) -> int:
    """Do what is not done, stage by stage; exit code of the first command that fails, else 0."""
    for stage in STAGES:
        steps = steps_of(plan, stage)
        if isinstance(steps, str):
            _say(stage, steps)
            continue
        for step in steps:
            outcome = notes.look(step)
            _say(stage, [(step, outcome)])
            if not outcome.done and (code := _do(step, outcome, notes)):
                return code
    return 0


def _do(step: Step, outcome: Outcome, notes: Notes) -> int:
    """Run one step to its end, and note it."""
    if step.stage == "prepare":
        check_folder(step, notes.command(step))
    step.again(outcome)
    notes.begin(step, outcome.reads)
    print(visible(command_line(step.words)), flush=True)
    if code := call(step):
        print(
            f"The stage {step.stage} failed: its command ended with exit code {code}; its error is"
            " above. Correct it and rerun the command, which skips finished stages.",
            file=sys.stderr,
        )
        return code
    notes.end(step)
    return 0


def call(step: Step) -> int:
    """Run a step's command in a child that ends with this process; its exit code."""
    child = subprocess.Popen(
        [sys.executable, "-m", *step.words],
        stdin=subprocess.DEVNULL,
        env=os.environ | dict(step.variables or {}),
        preexec_fn=end_with_parent,
    )
    try:
        code = child.wait()
    finally:
        if child.poll() is None:  # this process was interrupted; the child may have heard it too
            child.terminate()
            try:
                child.wait(LAST_S)
            except subprocess.TimeoutExpired:
                child.kill()
    return code if code >= 0 else 128 - code


def _run_locked(plan: Plan) -> int:
    """`run`, for whoever holds the study's pipeline."""
    stop_at_problem(launch.check_writable(plan.study_dir))
    lock = locks.take(plan.study_dir / ".pipeline.lock")
    if lock is None:
        raise UserError(
            f"Another process runs a pipeline of {plan.study_dir.name} now. Wait for it to end, or"
            " type another study=NAME."
        )
    with lock:
        return run(plan, Notes(plan.study_dir))


def work(options: Options) -> int:
    """Plan or run. Raises UserError: all that can be known to be wrong before anything is run."""
    plan = plan_of(options)
    if plan.study_dir.exists() and not plan.study_dir.is_dir():
        stop_at_problem(launch.check_configs(plan.cells))  # which says so
    stages = survey(plan, Notes(plan.study_dir))
    pending = any(
        not outcome.done
        for steps in stages.values()
        if not isinstance(steps, str)
        for _, outcome in steps
    )
    if pending:
        stop_at_problem(launch.check_configs(plan.cells))
        if "train" in plan.stages:
            stop_at_problem(launch.check_policies(plan.cells))
            left = [cell for cell in plan.cells if cell.folder.state() != "done"]
            elsewhere = plan.cells[0].config.sweep.engine not in HERE
            stop_at_problem(as_notes(check_installed(left, elsewhere), options.plan))
    if options.plan:
        show(stages)
    elif pending:
        return _run_locked(plan)
    else:
        for stage, steps in stages.items():
            _say(stage, steps)
    return 0


@command("experiments.pipeline policy=qwen25-7b plan=true", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 all stages are done, 2 a user's error, else that of the stage that failed."""
    try:
        return work(options)
    except OSError as error:
        if (trouble := explained(error, Path.cwd())) is None:
            raise
        raise UserError(trouble) from error


if __name__ == "__main__":
    sys.exit(main())
