"""A policy of programs beside the programs that it has to beat, over the same rows and executor.

Every program is played as the policy's own are. A baseline that takes fewer tokens of the executor
than the policy is repeated, each time with other draws, and its runs vote, until they take as many:
``accuracy_equal_tokens``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.statistics.bootstrap import mean_by_bootstrap
from analysis.statistics.estimate import Estimate
from experiments.evaluation.chosen import digest
from experiments.evaluation.generate import Source, source_of
from experiments.evaluation.metrics import averages, rate
from experiments.evaluation.options import BASELINES, Options
from experiments.evaluation.results import guard, track, write_result
from experiments.evaluation.rubric import SPLITS
from experiments.policies.load import training_of_run
from experiments.policies.tokens import by_policy
from experiments.workflow import baselines
from experiments.workflow.check import check_executor
from experiments.workflow.played import (
    MOST_REPEATS,
    Player,
    Runs,
    any_right,
    mean_tokens,
    voted,
)
from experiments.workflow.templates import TEMPLATES
from judges.ask.replies import Store, open_store
from study.cell.cells import load_cell
from study.config.compose import load_executor
from study.config.schema import Study
from study.errors import UserError
from study.finding import stop_at_problem
from study.rows import Row
from study.screen import print_table
from study.system.files import write_text
from study.tasks import kind_of, sample
from study.tasks.kind import grading

TRAINED = "trained"
SAMPLES = 4
"""K of oracle_best_of_k."""
CHOOSING = 12
"""Rows to train on of each data set, by which its fixed best program is chosen."""
LOOKED_AT = 2048
"""Rows to train on among which those are looked for."""
THOUGHT = "chain-of-thought"
"""The template whose samples are self-consistency's (Wang et al. 2023)."""
Judge = Callable[[Sequence[Any]], bool | None]


@dataclass(frozen=True)
class Method:
    """How one way to answer did on the rows that it is for.

    Attributes:
        runs: of each row, the first alone or as many as equal tokens take.
        judge: what some runs of a row come to.
        once: whether one run is the method itself, and all of them its vote at equal tokens; false
            where all of them are the method.
        programs: data set -> its one program, or the name of that.
    """

    name: str
    runs: Runs
    judge: Judge = voted
    once: bool = True
    programs: Mapping[str, str] | None = None


def evaluate_workflow(options: Options) -> None:
    """Play the policy's programs and those of the baselines, and write the result."""
    config = cell_of(options)
    policy = source_of(options)
    assert policy is not None
    guard(options.out, policy.model, options.what)
    names_chosen = set(BASELINES if "all" in options.baselines else options.baselines)
    rows = chosen_rows(options, config)
    with ExitStack() as stack:
        if kind_of(config.task).runs_code(config.task):
            stack.enter_context(grading(config.sandbox == "unsafe"))
        store = stack.enter_context(store_of(options, config))
        methods, models, calls = _policies(options, config, store, rows, policy, names_chosen)
        budgets = _budgets(rows, methods[0].runs)
        with Player(config, store, "python", checked=False) as player:
            methods += _programs(options, config, player, rows, budgets, names_chosen)
            calls += player.world.calls
    sets = {name or config.task.name: members for name, members in by_set(rows).items()}
    entries = [
        {"dataset": name, "domain": baselines.domain_of(members[0])}
        | _entry(members, method, methods[0], options.seed)
        | {"program": (method.programs or {}).get(members[0].dataset)}
        for name, members in sets.items()
        for method in methods
        if any(row.prompt_id in method.runs for row in members)
    ]
    overall = [_entry(rows, method, methods[0], options.seed) for method in methods]
    names = [method.name for method in methods]
    result: dict[str, Any] = {
        "evaluation": options.what,
        "model": policy.model,
        "models": models,
        "executor": {
            "name": config.executor.name,
            "model": config.executor.endpoint.model,
            "revision": config.executor.revision,
        },
        "task": {"name": config.task.name, "split": options.split or "eval", "rows": len(rows)},
        "dataset": {
            "name": f"{config.task.name}-{options.split or 'eval'}",
            "digest": digest(row.prompt_id for row in rows)[:16],
        },
        "datasets": entries,
        "overall": overall,
        "averages": {
            name: averages([entry for entry in entries if entry["method"] == name])
            for name in names
        },
        "seed": options.seed,
        "executor_calls": calls,
        "items": str(_write_items(options.out, rows, methods)),
    }
    write_result(options.out, result)
    _show(result, options.out)
    track(options, options.what, _numbers(entries), result)


def cell_of(options: Options) -> Study:
    """The config of the run, with the executor that was asked for.
    Raises UserError: no run, or one whose policy writes no programs."""
    run = options.run
    assert run is not None
    training_of_run(run)
    config = load_cell(run).config
    if config.world != "workflow":
        raise UserError(
            f"run={run} has world={config.world}: its policy writes answers, but {options.what}"
            " runs programs. Give a run of world=workflow, or type python -m experiments.evaluate"
            f" datasets run={run} out={options.out}"
        )
    if options.executor:
        executor = load_executor(options.executor, overrides=options.overrides)[0]
        config = replace(config, executor=executor)
        stop_at_problem(check_executor(config))
    return config


def store_of(options: Options, config: Study) -> Store:
    """The store of the run's replies."""
    assert options.run is not None
    return open_store(options.run.path.resolve().parent.parent, config.store)


def chosen_rows(options: Options, config: Study) -> list[Row]:
    """Rows of a split: the first that are held out, or, of those to train on, some of every place.
    Raises UserError: there is none."""
    kind = kind_of(config.task)
    splits = SPLITS[options.split or "eval"]
    rows_chosen: list[Row] = []
    for split in splits:
        rows = kind.rows(config.task, split)
        room = (
            len(rows) if options.limit is None else min(len(rows), options.limit - len(rows_chosen))
        )
        # held-out rows are a mixture already, and rows to train on stand one set behind the other
        spread = len(rows) if split == "train" else room
        rows_chosen += [rows[place * spread // room] for place in range(room)]
    if not rows_chosen:
        raise UserError(
            f"task={config.task.name} has no row in its split {options.split or 'eval'}. Type"
            " split=train, or split=all."
        )
    return rows_chosen


def by_set(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Data set -> its rows, in their order."""
    sets: dict[str, list[Row]] = {}
    for row in rows:
        sets.setdefault(row.dataset, []).append(row)
    return sets


def counter_of(source: Source, config: Study) -> Callable[[str], int] | None:
    """How a prompt's tokens are counted in training, where prompts are cut to a number of them."""
    if config.workflow.prompt == "problem" or source.tokenizer is None:
        return None
    return by_policy(source.tokenizer())


def write_programs(
    source: Source, player: Player, rows: Sequence[Row], samples: int = 1
) -> list[list[str | None]]:
    """What a policy writes to each row, ``samples`` times; None where it could not be asked."""
    prompts = {row.prompt_id: player.world.prompt_for(row, learning=False) for row in rows}
    turns = {f"{name} {k}": prompts[name] for name in prompts for k in range(samples)}
    texts: dict[str, str | None] = {}
    source.answer(turns, lambda row: texts.update({row["prompt"]: row["response"]}))
    return [[texts[f"{row.prompt_id} {k}"] for k in range(samples)] for row in rows]


def _policies(
    options: Options,
    config: Study,
    store: Store,
    rows: Sequence[Row],
    policy: Source,
    names_chosen: set[str],
) -> tuple[list[Method], dict[str, str], int]:
    """The policy, first, and what is compared with it of policies; who they are; and the requests
    that went to the executor."""
    models = {TRAINED: policy.model}
    limited = decoding(options, config)
    with Player(config, store, config.workflow.form, counter_of(policy, config)) as player:
        player.world.check()
        greedy = _source(replace(limited, temperature=0.0))
        own = _runs(player, rows, write_programs(greedy, player, rows))
        methods = [Method(TRAINED, own)]
        if "untrained" in names_chosen:
            before = _source(replace(limited, temperature=0.0, checkpoint=0))
            models["untrained"] = before.model
            texts = [each[0] for each in write_programs(before, player, rows)]
            pairs = [(row, text) for row, text in zip(rows, texts, strict=True) if text is not None]
            budgets = _budgets(rows, own)
            answered = [row for row, _ in pairs]
            programs = [text for _, text in pairs]
            runs = player.repeat(answered, programs, budgets) if pairs else {}
            methods.append(Method("untrained", {row.prompt_id: [] for row in rows} | runs))
        if "oracle_best_of_k" in names_chosen:
            several = write_programs(_source(limited), player, rows, _samples(options))
            runs = _runs(player, rows, several)
            methods.append(Method("oracle_best_of_k", runs, any_right, once=False))
        return methods, models, player.world.calls


def _samples(options: Options) -> int:
    return options.samples if "samples" in options.given else SAMPLES


def decoding(options: Options, config: Study) -> Options:
    """Options with the run's own way to sample, where nothing else is typed."""
    usual = {
        "max_tokens": config.trainer.max_completion_length,
        "temperature": config.trainer.temperature,
        "top_p": config.trainer.top_p,
        "top_k": config.trainer.top_k,
    }
    return replace(options, **{key: usual[key] for key in usual if key not in options.given})


def _source(options: Options) -> Source:
    source = source_of(options)
    assert source is not None
    return source


def _runs(player: Player, rows: Sequence[Row], texts: Sequence[Sequence[str | None]]) -> Runs:
    """Every text played once."""
    pairs = [
        (row, text)
        for row, several in zip(rows, texts, strict=True)
        for text in several
        if text is not None
    ]
    runs: Runs = {row.prompt_id: [] for row in rows}
    if pairs:
        rows_played, programs = map(list, zip(*pairs, strict=True))
        for row, played in zip(rows_played, player.play(rows_played, programs), strict=True):
            runs[row.prompt_id].append(played)
    return runs


def _budgets(rows: Sequence[Row], own: Runs) -> dict[str, float | None]:
    """Data set -> mean tokens that the policy's programs take of the executor on a row."""
    return {
        name: mean_tokens([own[row.prompt_id] for row in members if own[row.prompt_id]])
        for name, members in by_set(rows).items()
    }


def _programs(
    options: Options,
    config: Study,
    player: Player,
    rows: Sequence[Row],
    budgets: Mapping[str, float | None],
    names_chosen: set[str],
) -> list[Method]:
    """The baselines that are programs for all rows of a domain or data set."""

    def play(name: str, program: Callable[[Row], str], of: Sequence[Row] = rows) -> Method:
        print(f"{name}: {len(of)} rows", flush=True)
        return Method(name, player.repeat(of, [program(row) for row in of], budgets))

    methods = []
    if "direct" in names_chosen:
        methods.append(play("direct", lambda row: TEMPLATES["custom"]))
    if {"chain_of_thought", "self_consistency"} & names_chosen:
        thought = play("chain_of_thought", lambda row: TEMPLATES[THOUGHT])
        methods += [thought] if "chain_of_thought" in names_chosen else []
        if "self_consistency" in names_chosen:
            fitting = _fitting(rows, thought.runs, budgets)
            methods.append(Method("self_consistency", fitting, once=False))
    if "templates" in names_chosen:
        for name in TEMPLATES:
            offered = baselines.offered_in(name)
            members = [row for row in rows if baselines.domain_of(row) in offered]
            if members:
                methods.append(
                    play(f"template/{name}", lambda row, name=name: TEMPLATES[name], members)
                )
    if "aflow" in names_chosen:
        method = play("aflow", lambda row: TEMPLATES[baselines.first_template(row)])
        starts = {row.dataset: baselines.first_template(row) for row in rows}
        methods.append(replace(method, programs=starts))
    if "fixed_best" in names_chosen:
        best = _fixed_best(options, config, player, rows)
        method = play("fixed_best", lambda row: best[row.dataset][1])
        programs = {name: program for name, (program, _) in best.items()}
        methods.append(replace(method, programs=programs))
    if "random" in names_chosen:
        methods.append(play("random", lambda row: baselines.random_program(row, options.seed)))
    return methods


def _fitting(rows: Sequence[Row], runs: Runs, budgets: Mapping[str, float | None]) -> Runs:
    """As many of each row's runs, one at least, as the tokens of its data set are enough for."""
    fitting: Runs = {}
    for name, members in by_set(rows).items():
        several, budget = [runs[row.prompt_id] for row in members], budgets[name]
        k = max(map(len, several))
        while k > 1 and budget is not None:
            if (mean_tokens([each[:k] for each in several]) or 0.0) <= budget:
                break
            k -= 1
        fitting |= {row.prompt_id: runs[row.prompt_id][:k] for row in members}
    return fitting


def _fixed_best(
    options: Options, config: Study, player: Player, rows: Sequence[Row]
) -> dict[str, tuple[str, str]]:
    """Data set -> the template, or of a run of the short form the program that its policy wrote
    most often in that domain, which does best on rows to train on; its name and its class."""
    assert options.run is not None
    frequent = baselines.frequent(options.run) if config.workflow.form == "dsl" else {}
    training = sample(kind_of(config.task).rows(config.task, "train"), LOOKED_AT)
    sets = by_set(training)
    offered = {name: baselines.offered_in(name) for name in TEMPLATES}
    best = {}
    for name, members in by_set(rows).items():
        domain = baselines.domain_of(members[0])
        candidates = {each: TEMPLATES[each] for each in TEMPLATES if domain in offered[each]}
        if domain in frequent:
            text, program = frequent[domain]
            candidates[text] = program
        trial_rows = sets.get(name, [row for row in training if baselines.domain_of(row) == domain])
        trial_rows = trial_rows[:CHOOSING]
        print(
            f"fixed_best: {len(candidates)} programs on {len(trial_rows)} rows of {name}",
            flush=True,
        )
        shares = {}
        for candidate, program in candidates.items():
            played = player.play(trial_rows, [program] * len(trial_rows))
            shares[candidate] = sum(each.vote is not None and each.vote.correct for each in played)
        winner = max(shares, key=lambda candidate: shares[candidate])
        best[name] = (winner, candidates[winner])
    return best


def _entry(rows: Sequence[Row], method: Method, own: Method, seed: int) -> dict[str, Any]:
    """One method on those of some rows that it is for."""
    runs = {
        row.prompt_id: method.runs[row.prompt_id] for row in rows if row.prompt_id in method.runs
    }
    first = {row: each[:1] if method.once else each for row, each in runs.items()}
    accuracy = _rate(first, method.judge)
    metrics = {"accuracy": accuracy}
    equal = None
    if method.once and method is not own:
        metrics["accuracy_equal_tokens"] = _rate(runs, method.judge)
        repeats = max(map(len, runs.values()))
        tokens = mean_tokens([each for each in runs.values() if each])
        equal = {"repeats": repeats, "tokens": tokens, "most_repeats": repeats == MOST_REPEATS}
    differences = [
        float(ours) - float(theirs)
        for row in runs
        if (ours := own.judge(own.runs[row])) is not None
        and (theirs := method.judge(runs[row])) is not None
    ]
    difference = mean_by_bootstrap(np.array(differences), seed, "problem")
    return {
        "method": method.name,
        "metrics": {key: each.value for key, each in metrics.items()},
        "n": accuracy.n,
        "n_missing": len(runs) - accuracy.n,
        "ci95": {key: [each.low, each.high] for key, each in metrics.items()},
        "tokens": mean_tokens([each for each in first.values() if each]),
        "samples": None if method.once else max(map(len, runs.values())),
        "equal_tokens": equal,
        "difference": None if method is own else estimate(difference),
    }


def _rate(runs: Runs, judge: Judge) -> Estimate:
    """The share of rows that are right; those of which nothing can be said are left out."""
    rights = [right for right in map(judge, runs.values()) if right is not None]
    return rate([[float(right)] for right in rights])


def estimate(value: Estimate) -> dict[str, Any]:
    """As JSON; the interval is null where there is none."""
    interval = None if math.isnan(value.low) else [value.low, value.high]
    return {"estimate": value.value, "interval": interval, "n": value.n}


def _write_items(out: Path, rows: Sequence[Row], methods: Sequence[Method]) -> Path:
    """One line per method and row beside the result."""
    lines = [
        json.dumps(
            {
                "method": method.name,
                "id": row.item or row.prompt_id,
                "dataset": row.dataset,
                "runs": [
                    {
                        "correct": None if played.vote is None else played.vote.correct,
                        **{key: asdict(played)[key] for key in ("tokens", "why")},
                    }
                    for played in method.runs[row.prompt_id]
                ],
            }
        )
        for method in methods
        for row in rows
        if row.prompt_id in method.runs
    ]
    path = out.resolve().with_name(f"{out.stem}.items.jsonl")
    write_text(path, "".join(f"{line}\n" for line in lines))
    return path


def _numbers(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What of a result is a metric of MLflow."""
    numbers = {
        f"{entry['dataset']}/{entry['method']}/{key}": value
        for entry in entries
        for key, value in {**entry["metrics"], "tokens": entry["tokens"]}.items()
    }
    return {
        name: float(each)
        for name, each in numbers.items()
        if each is not None and not math.isnan(each)
    }


def _show(result: Mapping[str, Any], target: Path) -> None:
    def share(value: float | None) -> str:
        return "" if value is None or math.isnan(value) else f"{value:.3f}"

    lines = []
    for entry in (*result["datasets"], *({"dataset": "all"} | each for each in result["overall"])):
        low, high = entry["ci95"]["accuracy"]
        equal, difference = entry["equal_tokens"] or {}, entry["difference"] or {}
        ends = difference.get("interval")
        lines.append(
            {
                "set": entry["dataset"],
                "method": entry["method"],
                "rows": str(entry["n"]),
                "missing": str(entry["n_missing"] or ""),
                "accuracy": share(entry["metrics"]["accuracy"]),
                "95 %": f"{share(low)} to {share(high)}" if share(low) else "",
                "tokens": "" if entry["tokens"] is None else f"{entry['tokens']:.0f}",
                "runs": str(equal.get("repeats", "") or entry["samples"] or ""),
                "at equal tokens": share(entry["metrics"].get("accuracy_equal_tokens")),
                "trained is better by": ""
                if ends is None
                else f"{difference['estimate']:+.3f} ({ends[0]:+.3f} to {ends[1]:+.3f})",
            }
        )
    executor = result["executor"]["name"]
    print_table(lines, f"{result['model']}, executor {executor}, by rule")
    print(f"{result['executor_calls']} requests to the executor. {target}")
