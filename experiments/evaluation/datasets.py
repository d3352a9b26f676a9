"""Verifiable sets: answers scored by rule, and beside it what a judge says of the same answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from experiments.evaluation import baselines, chosen
from experiments.evaluation.baselines import Baseline, Evaluated
from experiments.evaluation.chosen import Part, digest
from experiments.evaluation.collect import (
    Collected,
    collect,
    collect_predictions,
    matched,
    read_predictions,
)
from experiments.evaluation.generate import source_of
from experiments.evaluation.metrics import (
    Answer,
    Confusion,
    Measured,
    averages,
    by_row,
    domain_means,
    judged,
    measure,
    missing,
    votes_of,
)
from experiments.evaluation.options import Options
from experiments.evaluation.results import guard, track, write_in_study, write_result
from experiments.evaluation.rubric import differs, grade, trained_under
from judges.ask.identity import build_grading
from judges.grading.base import check_rows
from study.answers import answer_of
from study.cell.folder import CellFolder
from study.config.compose import load_presets
from study.config.schema import Judge
from study.errors import UserError
from study.rows import Missing, Row, RuleTruth, Truth
from study.sandbox import tiers
from study.screen import print_table
from study.system.files import read_json, write_text
from study.system.machine import cpus
from study.tasks.datasets.sets import SETS
from study.tasks.mixed import item_row
from study.truth import Grader, score
from study.truth.item import Item
from study.truth.oracle import Oracle

NO_TRUTH = Missing("the answer has no rule truth")


@dataclass
class Graded:
    """The answers to the rows of one set."""

    part: Part
    answers: list[Answer]
    missing: list[tuple[str, int]]
    """(row, sample) of the answers that are not there."""
    constant: Baseline


def evaluate_datasets(options: Options) -> None:
    """Collect answers to the rows of verifiable sets, score them by rule, and write the result."""
    options = _with_defaults(options)
    source = source_of(options)  # options that do not fit are said before data that are missing
    judge = load_presets(options.judge, overrides=options.overrides)[0] if options.judge else None
    trained = trained_under(options)
    same = None
    if judge is not None and trained is not None:
        same = not differs(judge, trained, options)
    untrained = None if source is None else _untrained(options, source.model)
    parts, collected = _collected(options, judge)
    unsafe = options.sandbox == "unsafe"
    with Grader(workers=max(2, cpus()), unsafe=unsafe) as grader:
        graded = [_grade(part, collected, grader) for part in parts]
        faults = dict(grader.faults)
    if judge is not None:
        _ask(judge, graded, options.runs_dir)
    shas = [file["sha256"] for file in collected.files]
    predictions = shas[0] if len(shas) == 1 else digest(shas)
    entries = [_entry(answers, options, judge, predictions) for answers in graded]
    _add_baselines(entries, graded, options, collected.model, untrained)
    hashes = [entry["hashes"]["data"] for entry in entries]
    result: dict[str, object] = {
        "evaluation": options.what,
        "model": collected.model,
        "method": options.method,
        "data": {
            "name": "+".join(part.name for part in parts),
            "digest": digest(hashes)[:16],
            "root": options.root,
        },
        "datasets": entries,
        "domains": domain_means(entries),
        "averages": averages(entries),
        "seed": options.seed,
        "responses": collected.files,
        "n_beside": collected.beside,
        "faults": faults,
        "sandbox": str(tiers.find(unsafe)) if any(map(_is_code, parts)) else None,
    }
    if judge is not None:
        grading = {"name": judge.grading.name, **judge.grading.options}
        result |= {"judge": _judge_fields(judge), "grading": grading, "same_judge": same}
    if collected.settings is not None:
        result |= {"generation": collected.settings, "n_truncated": collected.truncated}
    write_result(options.out, result)
    if place := _place_in_study(options):
        write_in_study(place, result)
    _show(result, options.out)
    track(options, options.what, _numbers(result), {**result, "dataset": result["data"]})


def _with_defaults(options: Options) -> Options:
    """The options with the method's own number of samples and temperature. Raises UserError: a
    number of samples for answers that are there."""
    if options.predictions is not None:
        if "samples" in options.given:
            raise UserError(
                "samples= is only for generated answers, not for a file of them. Leave it out."
            )
        return options
    options = replace(options, method=options.method or "direct")
    if options.method != "sc":
        return options
    usual = {"samples": baselines.SAMPLES, "temperature": baselines.TEMPERATURE}
    changes = {key: value for key, value in usual.items() if key not in options.given}
    options = replace(options, **changes)
    if options.samples < 2:
        raise UserError("method=sc votes over several answers. Type samples=8, or method=cot.")
    return options


def _is_code(part: Part) -> bool:
    return part.domain == "code"


def _check(parts: Sequence[Part], options: Options, judge: Judge | None) -> None:
    """Refuse, before anything is generated, what could not be graded.
    Raises UserError: rows that the judge's grading does not take.
    Raises SandboxUnavailable: code that cannot be isolated here."""
    if judge is not None:
        rows = [item_row(item, item.split) for part in parts for item in part.rows]
        check_rows(build_grading(judge), rows)
    if any(map(_is_code, parts)):
        tiers.find(options.sandbox == "unsafe")


def _collected(options: Options, judge: Judge | None) -> tuple[list[Part], Collected]:
    """The rows to evaluate, and the answers to them by id."""
    name = None if judge is None else judge.name
    if options.predictions is None:
        sets = chosen.load_sets(options.datasets or chosen.default_sets(), options.root)
        parts = chosen.choose_rows(sets, {}, options)
        _check(parts, options, judge)
        rows = [item for part in parts for item in part.rows]
        prompts = {item.id: chosen.prompt_of(item, options.method) for item in rows}
        turns = {text: [{"role": "user", "content": text}] for text in prompts.values()}
        collected = collect(options, turns, judge=name)
        by_prompt = collected.responses
        return parts, replace(
            collected,
            responses={row: by_prompt.get(text.strip(), []) for row, text in prompts.items()},
        )
    lines = read_predictions(options.predictions)
    mentioned = {dataset for _, dataset, _, _ in lines}
    sets = chosen.load_sets(options.datasets or filter(mentioned.__contains__, SETS), options.root)
    pairs = matched(lines, sets)
    splits: dict[str, list[str]] = {}
    for _, item, _ in pairs:
        if item.split not in splits.setdefault(item.dataset, []):
            splits[item.dataset].append(item.split)
    parts = chosen.choose_rows(sets, splits, options)
    _check(parts, options, judge)
    ids = {item.id for part in parts for item in part.rows}
    collected = collect_predictions(lines, pairs, ids, options.predictions, options.allow_missing)
    guard(options.out, collected.model, options.what, name)
    return parts, collected


def _grade(part: Part, collected: Collected, grader: Grader) -> Graded:
    """The answers to the rows of one set with what the rule says of each."""
    without_answer: list[tuple[str, int]] = []
    to_grade: list[tuple[Item, int, str | None, int | None]] = []
    for item in part.rows:
        responses = collected.responses.get(item.id, [])
        for response in responses:
            if response.text is None:
                without_answer.append((item.id, response.sample))
                continue
            tokens = response.fields.get("tokens")
            tokens = tokens if type(tokens) is int else None
            to_grade.append((item, response.sample, answer_of(response.text), tokens))
        if not responses:
            without_answer.append((item.id, 0))
    print(f"{len(to_grade)} answers to {part.name} are graded", flush=True)
    items, texts = [item for item, *_ in to_grade], [text for _, _, text, _ in to_grade]
    scores = score(items, texts, grader)
    answers = [
        Answer(item, sample, result, text, tokens)
        for (item, sample, text, tokens), result in zip(to_grade, scores, strict=True)
    ]
    scored = {answer.item.id: answer.item for answer in answers if answer.score is not None}
    constant = baselines.constant(list(scored.values()), part.whole, grader)
    return Graded(part, answers, without_answer, constant)


def _ask(judge: Judge, graded: Sequence[Graded], runs_dir: Path) -> None:
    """Give every answer that the rule could score the judge's score. One that was cut off while it
    was thinking is put to no judge: it would pass for an empty one, which may be right."""
    truths: dict[tuple[str, str | None], RuleTruth] = {}
    rows = {}
    pairs_to_judge = []
    for of_set in graded:
        for place, answer in enumerate(of_set.answers):
            if answer.score is None or answer.text is None:
                continue
            row = rows.setdefault(answer.item.id, item_row(answer.item, answer.item.split))
            correct = answer.score.correct
            truths[row.prompt_id, answer.text] = Truth(float(correct), (correct,))
            pairs_to_judge.append((of_set.answers, place, row, answer.text))
    by_prompt = {row.prompt_id: row for row in rows.values()}

    def rule_truths(rows: Sequence[Row], answers: Sequence[str | None]) -> list[RuleTruth]:
        pairs = zip(rows, answers, strict=True)
        return [truths.get((row.prompt_id, answer), NO_TRUTH) for row, answer in pairs]

    oracle = Oracle(by_prompt.get, rule_truths)
    verdicts = grade(judge, oracle, [(row, text) for _, _, row, text in pairs_to_judge], runs_dir)
    for (answers, place, _, _), verdict in zip(pairs_to_judge, verdicts, strict=True):
        answers[place] = replace(answers[place], verdict=verdict.score)


class Asked(TypedDict):
    """The judge of a result."""

    name: str
    model: str
    revision: str


class Entry(TypedDict):
    """One set of a result; ``hashes`` are of prompts, data, split and predictions."""

    dataset: str
    domain: str
    split: str
    metrics: dict[str, float]
    n: int
    n_samples: int
    n_missing: int
    n_unscored: int
    n_trained_on: int | None
    ci95: dict[str, list[float]]
    judge: Asked | None
    confusion: Confusion | None
    tokens: float | None
    hashes: dict[str, str]
    items: str
    """File of one line per answer."""
    baselines: NotRequired[dict[str, Baseline]]


def _entry(graded: Graded, options: Options, judge: Judge | None, predictions: str) -> Entry:
    """One set of the result, without its baselines; its file of items is written."""
    part, answers = graded.part, graded.answers
    measured: Measured = measure(answers, part.dataset, part.domain, options.method)
    tokens = [answer.tokens for answer in answers if answer.tokens is not None]
    return {
        "dataset": part.dataset,
        "domain": part.domain,
        "split": part.split,
        "metrics": measured.metrics,
        "n": measured.rows,
        "n_samples": len(answers),
        "n_missing": len(graded.missing),
        "n_unscored": sum(answer.score is None for answer in answers),
        "n_trained_on": part.trained_on,
        "ci95": measured.intervals,
        "judge": None if judge is None else _judge_fields(judge),
        "confusion": None if judge is None else judged(answers),
        "tokens": sum(tokens) / len(tokens) if tokens else None,
        "hashes": {
            "prompt": digest(chosen.prompt_of(item, options.method) for item in part.rows),
            "data": digest(map(_data, part.rows)),
            "split": digest(map(_data, part.whole)),
            "predictions": predictions,
        },
        "items": str(_write_items(graded, options.out, predictions, judge is not None)),
    }


def _data(item: Item) -> str:
    """What is asked in a row and how it is scored."""
    fields = [item.id, item.prompt, item.answers, item.answerable, item.setup, item.tests]
    return json.dumps(fields)


def _write_items(graded: Graded, out: Path, predictions: str, judged: bool) -> Path:
    """One line per answer beside the result, those that are missing at the end, under a name that
    says whose answers they are."""
    lines = []
    for answer in graded.answers:
        lines.append(answer.record | ({"verdict": answer.verdict} if judged else {}))
    for row, sample in graded.missing:
        line = {"id": row, "sample": sample, **missing("missing", "there is no answer")}
        lines.append(line | ({"verdict": None} if judged else {}))
    path = out.resolve().with_name(f"{out.stem}.{graded.part.name}-{predictions[:8]}.items.jsonl")
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
    return path


def _add_baselines(
    entries: Sequence[Entry],
    graded: Sequence[Graded],
    options: Options,
    model: str | None,
    untrained: tuple[str, baselines.Words] | None,
) -> None:
    """Add to each set what its accuracy is to be compared with."""
    place = _place_in_study(options)
    folders = [options.out.parent, *([place.parent] if place else [])]
    elsewhere = baselines.others(folders, [options.out.resolve(), *([place] if place else [])])
    for entry, of_set in zip(entries, graded, strict=True):
        part = of_set.part
        here = Evaluated(
            *(options.out.resolve(), model, options.method, part.dataset, part.split),
            *(entry["tokens"], Path(entry["items"]), entry["hashes"]["split"]),
        )
        votes = {row[0].item.id: votes_of(row) for row in by_row(of_set.answers)}
        table = baselines.Table(options, here, votes, elsewhere, untrained)
        entry["baselines"] = {"constant": of_set.constant, **table.rows()}


def _untrained(options: Options, model: str) -> tuple[str, baselines.Words] | None:
    """The model that was trained, as results name it, and the words of a command that asks it about
    the same rows. A cell's own command leaves out what the cell was trained on."""
    run, trained = options.run, trained_under(options) if options.adapter else None
    if trained is not None and (Path(trained["place"]) / "config.yaml").is_file():
        run = CellFolder(Path(trained["place"]))
    if run is not None:
        words: dict[str, Any] = {"run": run, "checkpoint": 0, "adapter": None, "model": None}
        source = source_of(replace(options, **words))
        assert source is not None
        return source.model, words
    if options.adapter is not None:
        config = read_json(options.adapter / "adapter_config.json")
        base = options.model or config.get("base_model_name_or_path")
        return model.partition(" + ")[0], {"adapter": None, "model": base}
    return None


def _place_in_study(options: Options) -> Path | None:
    """Where a run's result also lies: beside the runs of its study."""
    if options.run is None:
        return None
    cell = options.run.path.resolve()
    method = "" if options.method == "direct" else f"-{options.method}"
    name = f"{cell.name}-step-{options.step}{method}_results.json"
    return cell.parent / "results" / "evaluation" / name


def _judge_fields(judge: Judge) -> Asked:
    return {"name": judge.name, "model": judge.endpoint.model, "revision": judge.revision}


def _numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """What of a result is a metric of MLflow, whose names hold no ``@``."""
    numbers = {f"averages/{name}": value for name, value in result["averages"].items()}
    for entry in result["datasets"]:
        name = f"{entry['dataset']}-{entry['split']}"
        for metric, value in entry["metrics"].items():
            numbers[f"{name}/{metric.replace('@', '_at_')}"] = value
        numbers |= {f"{name}/{key}": entry[key] for key in ("n", "n_missing", "n_unscored")}
    return {
        name: float(value)
        for name, value in numbers.items()
        if value is not None and not math.isnan(value)
    }


def _show(result: Mapping[str, Any], target: Path) -> None:
    lines = []
    for entry in result["datasets"]:
        low, high = entry["ci95"]["accuracy"]
        others = {name: _share(each["accuracy"]) for name, each in entry["baselines"].items()}
        confusion = entry["confusion"] or {}
        lines.append(
            {
                "set": f"{entry['dataset']}-{entry['split']}",
                "rows": str(entry["n"]),
                "missing": str(entry["n_missing"] or ""),
                "unscored": str(entry["n_unscored"] or ""),
                "trained on": str(entry["n_trained_on"] or ""),
                "accuracy": _share(entry["metrics"]["accuracy"]),
                "95 %": f"{_share(low)} to {_share(high)}",
                **{name.replace("_", " "): text for name, text in others.items()},
                **{f"judge {key}": _share(confusion.get(key)) for key in ("tpr", "fpr")},
            }
        )
    print_table(lines, f"{result['model'] or 'answers of a file'}, by rule")
    for reason, count in result["faults"].items():
        print(f"{count} unscored: {reason}")
    for name, value in {**result["domains"], **result["averages"]}.items():
        print(f"{name:<10} {_share(value)}")
    commands = {
        each["command"]: name
        for entry in result["datasets"]
        for name, each in entry["baselines"].items()
        if each.get("command") and result["model"] is not None
    }
    for command, name in commands.items():
        print(f"For the baseline {name}: {command}")
    print(target)


def _share(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4f}"
