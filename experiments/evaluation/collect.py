"""Answers to evaluate: generated where asked to, read from files, matched to prompts or ids.

A file of responses is JSONL ``{prompt, response}``, written so that a killed run goes on. A
response of null could not be generated: it is missing, which an empty one is not. A prediction is
an answer that somebody else made to a row of a verifiable set, matched by its id.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.evaluation.generate import Row, Source, Turns, source_of
from experiments.evaluation.options import Options
from experiments.evaluation.results import guard
from study.errors import UserError
from study.system.files import sha256, write_text
from study.tasks.datasets.sets import SETS
from study.tasks.files import records, refuse, short
from study.truth.item import Item

SHAPE = 'Legal is one JSON object per line: {"prompt": TEXT, "response": TEXT}.'


@dataclass(frozen=True)
class Response:
    """One line of a file of responses."""

    prompt: str
    text: str | None
    line: int
    fields: Mapping[str, Any]
    """The whole object; `fill` adds model and settings, `generate` stop, tokens and error."""
    sample: int = 0
    """Which of the responses to its prompt this is, from 0."""


@dataclass(frozen=True)
class Collected:
    """The answers to the prompts that are evaluated, and how they came about."""

    responses: dict[Any, list[Response]]
    """Key of a prompt -> its responses, those included that could not be generated."""
    model: str | None
    files: list[dict[str, str]]
    """Path and sha256 of each file of responses."""
    beside: int
    """Responses to prompts that are not evaluated."""
    truncated: int
    """Of the responses to prompts that are evaluated, those that ran into ``max_tokens``."""
    settings: Mapping[str, object] | None
    """How the responses were generated; None for a file that was given."""

    @property
    def texts(self) -> dict[Any, list[str]]:
        """Key of a prompt -> the responses that are there; a prompt without one is missing."""
        texts = {
            key: [response.text for response in responses if response.text is not None]
            for key, responses in self.responses.items()
        }
        return {key: present for key, present in texts.items() if present}

    @property
    def failed(self) -> int:
        """Responses that could not be generated."""
        return sum(response.text is None for each in self.responses.values() for response in each)


def collect(
    options: Options,
    turns: Turns,
    keys: Mapping[str, Any] | None = None,
    judge: str | None = None,
    once: bool = False,
) -> Collected:
    """The responses to ``turns``, generated first where options name a model and not a file. Raises
    UserError: options that do not fit, a result of another model in ``out``, a response to no
    prompt of these, or responses that are missing without ``allow_missing``.

    Args:
        turns: the prompts to evaluate.
        keys: stripped text of every prompt of the data, evaluated or not -> its key. Without them
            the stripped text is the key, and a response to any other prompt is beside.
        once: a prompt has one response, and a second one is refused.
    """
    source = source_of(options)
    if source is None:
        if options.samples != 1:
            raise UserError(
                "samples= is only for generated answers, not for a file of them. Leave it out."
            )
        assert options.responses is not None
        paths = [options.responses]
    else:
        guard(options.out, source.model, options.what, judge)
        paths = _generate_files(options, source, turns)
    prompt_keys = {keys[text.strip()] if keys else text.strip() for text in turns}
    answered: dict[Any, list[Response]] = defaultdict(list)
    beside = truncated = 0
    models: set[str | None] = set()
    for number, path in enumerate(paths):
        responses = read_responses(path)
        models.add(model_of(responses, path))
        lines: dict[Any, int] = {}
        for response in responses:
            place, start = f"{path}, line {response.line}", repr(response.prompt[:60])
            text = response.prompt.strip()
            key = keys.get(text) if keys else text
            if key is None:
                raise UserError(
                    f"{place}: {start} is not a prompt of this evaluation. Every prompt must match"
                    " one of its prompts exactly; type a conversation as turns `role: content`"
                    " with an empty line between them."
                )
            if once and key in lines:
                raise UserError(
                    f"{place} answers the prompt of line {lines[key]} again: {start}. Keep one"
                    " response per prompt."
                )
            lines[key] = response.line
            if key not in prompt_keys:
                beside += 1
            else:
                truncated += response.fields.get("stop") == "length"
                sample = len(answered[key]) if source is None else number
                answered[key].append(replace(response, sample=sample))
    model = models.pop()
    guard(options.out, model, options.what, judge)
    files = [{"path": str(path.resolve()), "sha256": sha256(path)} for path in paths]
    settings = None if source is None else source.settings
    collected = Collected(dict(answered), model, files, beside, truncated, settings)
    complete(collected, len(prompt_keys), paths[0], options.allow_missing)
    return collected


def _generate_files(options: Options, source: Source, turns: Turns) -> list[Path]:
    """One file of responses per sample, each filled up by a seed of its own."""
    samples, out = options.samples, options.out
    if samples > 1 and not source.settings["temperature"]:
        raise UserError(
            f"samples={samples} of greedy decoding are {samples} copies. Type temperature=0.7"
            " or another above 0."
        )
    base = options.responses_out or out.with_suffix(".responses.jsonl")
    numbers = [f".{n}" for n in range(samples)] if samples > 1 else [""]
    paths = [base.with_suffix(f"{number}{base.suffix}") for number in numbers]
    if out.resolve() in [path.resolve() for path in paths]:
        raise UserError(f"out and responses_out are both {out}. Give them different names.")
    for number, path in enumerate(paths):
        seeded_source = (
            source_of(replace(options, seed=options.seed + number)) if number else source
        )
        assert seeded_source is not None
        fill(seeded_source, turns, path)
    return paths


def model_of(responses: Iterable[Response], path: Path) -> str | None:
    """The model that the lines name, None where they name none. Raises UserError: they name
    several."""
    models = {
        str(response.fields["model"]) for response in responses if response.fields.get("model")
    }
    if len(models) > 1:
        raise UserError(
            f"{path} mixes the responses of {len(models)} models: {', '.join(sorted(models))}."
            " Give each model its own file."
        )
    return models.pop() if models else None


def complete(collected: Collected, n_prompts: int, path: Path, allow_missing: bool) -> None:
    """Refuse answers to fewer than ``n_prompts`` prompts unless ``allow_missing``.
    Raises UserError: for that, and where there is no answer at all."""
    n_answered, failed = len(collected.texts), collected.failed
    if not n_answered:
        raise UserError(f"{path} has no response to score.")
    if n_answered < n_prompts and not allow_missing:
        again = f" {failed} were not generated; rerun the command to generate them."
        again = f" Answers of null: {failed}." if collected.settings is None else again
        again = again if failed else ""
        raise UserError(
            f"{path} answers {n_answered} of {n_prompts} prompts.{again} Type allow_missing=true"
            " to score the others; the result then records how many are missing."
        )


def fill(source: Source, turns: Turns, path: Path) -> None:
    """Write the responses that ``path`` does not have yet; those it has stay. Raises UserError
    where ``path`` is of another model or other settings, or the source cannot answer."""
    answered = reopen(path, source.model, source.settings)
    todo = {prompt: messages for prompt, messages in turns.items() if prompt not in answered}
    if not todo:
        return
    print(f"{len(todo)} of {len(turns)} responses to generate into {path}", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    shared = {"model": source.model, "settings": source.settings}
    with path.open("a", encoding="utf-8") as file:

        def keep(row: Row) -> None:
            file.write(json.dumps(row | shared, ensure_ascii=False) + "\n")
            file.flush()  # a killed run keeps it

        source.answer(todo, keep)


def read_responses(path: Path, torn: bool = False) -> list[Response]:
    """Every line of ``path``, without a ``torn`` last one, as a killed writer leaves it. Raises
    UserError where there is no such file, or with the number of a line that is not a response."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError as error:
        raise UserError(f"There is no file of responses at {path}. {SHAPE}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 JSONL: {error}. {SHAPE}") from error
    responses = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (torn and number == len(lines)):
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number} is not JSON: {error}. {SHAPE}") from error
        if not isinstance(row, dict) or not {"prompt", "response"} <= row.keys():
            raise UserError(f"{path}, line {number} lacks prompt or response. {SHAPE}")
        if not isinstance(row["prompt"], str) or not isinstance(row["response"], str | None):
            raise UserError(f"{path}, line {number}: prompt and response are texts. {SHAPE}")
        responses.append(Response(row["prompt"], row["response"], number, row))
    return responses


def reopen(path: Path, model: str, settings: Mapping[str, Any]) -> set[str]:
    """Prompts that ``path`` already answers; failed responses and a torn last line are dropped.
    Raises UserError where the file is of another model, or was made with other settings."""
    if not path.exists():
        return set()
    responses = read_responses(path, torn=True)
    for response in responses:
        if response.fields.get("model") != model:
            raise UserError(
                f"{path}, line {response.line} is a response of {response.fields.get('model')!r},"
                f" and this is {model!r}. Give another responses_out=FILE, or move that one away."
            )
        before = response.fields.get("settings")
        if before != settings:
            raise UserError(
                f"{path}, line {response.line} was made with {before}, but these settings are"
                f" {dict(settings)}. Give another responses_out=FILE, or the same settings."
            )
    answered = [response for response in responses if response.text is not None]
    lines = (json.dumps(response.fields, ensure_ascii=False) + "\n" for response in answered)
    write_text(path, "".join(lines))
    return {response.prompt for response in answered}


LINE_SHAPE = (
    'a line is {"dataset": NAME, "id": ID, "prediction": TEXT or null}, and "sample": NUMBER where'
    " a row is answered several times"
)
Line = tuple[str, str, str, Response]
"""Where it stands, its set, its id as it is written, and the answer."""


def read_predictions(path: Path) -> list[Line]:
    """The lines of a file of predictions. Raises UserError: a file that cannot be read, or the
    first line that is none, with its number."""
    lines = []
    for number, record in records(path, key="predictions"):
        where = f"{path}, {number}"
        dataset, name = record.get("dataset"), record.get("id")
        if "prediction" not in record:
            refuse(where, "no prediction", LINE_SHAPE)
        if not isinstance(dataset, str) or dataset not in SETS:
            refuse(where, f"the dataset {short(dataset)}", f"the sets are {', '.join(SETS)}")
        if not isinstance(name, str | int) or isinstance(name, bool):
            refuse(where, f"an id that is {short(name)}", LINE_SHAPE)
        text = record["prediction"]
        if not isinstance(text, str | None):
            refuse(where, f"a prediction that is {short(text)}", LINE_SHAPE)
        sample = record.get("sample", 0)
        if type(sample) is not int or sample < 0:
            refuse(where, f"a sample that is {short(sample)}", "it is a whole number from 0 on")
        if text is not None:
            # a lone half of a pair, which JSON can write and UTF-8 cannot
            text = text.encode("utf-8", "replace").decode("utf-8")
        place = int(number.rpartition(" ")[2])
        lines.append((where, dataset, str(name), Response("", text, place, record, sample)))
    if not lines:
        raise UserError(f"predictions={path} holds no prediction; {LINE_SHAPE}.")
    return lines


def matched(
    lines: Sequence[Line], sets: Mapping[str, Sequence[Item]]
) -> list[tuple[str, Item, Response]]:
    """(where, row, answer) of every line whose set is among ``sets``. Raises UserError: an id of no
    row, or a row that is answered twice as the same sample."""
    names = {name: _names(items) for name, items in sets.items()}
    before: dict[tuple[str, int], str] = {}
    pairs = []
    for where, dataset, name, response in lines:
        if dataset not in names:
            continue
        item = names[dataset].get(name)
        if item is None:
            last = sets[dataset][-1].id.rpartition(":")[2]
            legal = f"the ids of {dataset} are {sets[dataset][0].id} and so on, to row {last}"
            refuse(where, f"the unknown id {short(name)}", legal)
        earlier = before.setdefault((item.id, response.sample), where)
        if earlier != where:
            refuse(
                where,
                f"{short(item.id)} answered again, after {earlier.rpartition(', ')[2]}",
                'several answers to a row each have a "sample" of their own, from 0 on',
            )
        pairs.append((where, item, response))
    return pairs


def collect_predictions(
    lines: Sequence[Line],
    pairs: Sequence[tuple[str, Item, Response]],
    ids: Collection[str],
    path: Path,
    allow_missing: bool,
) -> Collected:
    """The answers to the rows ``ids``, by id. Raises UserError: rows without an answer that are not
    allowed, or lines of several models."""
    answers: dict[Any, list[Response]] = defaultdict(list)
    for _, item, response in pairs:
        if item.id in ids:
            answers[item.id].append(response)
    for responses in answers.values():
        responses.sort(key=lambda response: response.sample)
    files = [{"path": str(path.resolve()), "sha256": sha256(path)}]
    model = model_of((response for *_, response in lines), path)
    beside = len(lines) - sum(map(len, answers.values()))
    collected = Collected(dict(answers), model, files, beside, 0, None)
    complete(collected, len(ids), path, allow_missing)
    return collected


def _names(items: Sequence[Item]) -> dict[str, Item]:
    """Every way to name a row -> the row: its id, its index alone, and its set's own id."""
    names: dict[str, Item] = {}
    for item in items:
        names[item.id.rpartition(":")[2]] = item
        if item.alias:
            names[item.alias] = item
    return names | {item.id: item for item in items}
