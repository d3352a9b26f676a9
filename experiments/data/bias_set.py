"""Builds the bias set and fills its slots: by a policy that answers, by a rewriter, or by rules.

What was had stands in the file, whatever stops the command; the same command goes on with the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from experiments.data.bias_set_options import GENERATION, RULED, BiasSetOptions
from experiments.evaluation.collect import fill, read_responses
from experiments.evaluation.generate import Source, source_of
from experiments.evaluation.options import Options as Evaluation
from judges.ask.replies import open_store
from judges.probes import biasset, slots
from judges.probes.biasset import POLICY, VARIANTS, Item, Summary
from judges.probes.model import check_writer, writer
from judges.probes.slots import RULES, Author, Written
from study.answers import answer_of, strip_thinking
from study.cli import writes
from study.config.compose import load_judge, preset_names
from study.config.presets import read_preset
from study.errors import UserError


def bias_set(
    options: BiasSetOptions, path: Path | None, out: Path, seed: int, overrides: Sequence[str] = ()
) -> Summary:
    """Build the set, where there is none, fill the slots that are asked for, and count it.
    Raises UserError: what `judges.probes.biasset` and `judges.probes.slots` refuse, a policy that
    cannot answer, or a set in ``out`` that is not the one asked for."""
    items = _start(options, path, out, seed)
    with writes("out", out):
        if options.fill == POLICY:
            _fill_policy(options, items, out, seed)
        elif options.fill:
            _fill_variants(options, items, out, overrides)
        biasset.write(out, items)
    return biasset.summary(out, items)


def _start(options: BiasSetOptions, path: Path | None, out: Path, seed: int) -> list[Item]:
    """The prompts to go on with."""
    if path is not None:
        items = biasset.read(path)
        if not out.exists() or out.resolve() == path.resolve():
            return items
        items_there = biasset.read(out)
        if _holds(items_there, items):
            return items_there
        if not options.overwrite:
            raise UserError(
                f"out={out} exists but lacks texts or prompts of path={path}. Leave path= out to"
                " continue it, or type another out=, or overwrite=true."
            )
        return items
    if not out.exists():
        return biasset.build(options.n, seed)
    items = biasset.read(out)
    if not options.fill or "n" in options.given:
        new_items = biasset.build(options.n, seed)
        same = [item["id"] for item in items] == [item["id"] for item in new_items]
        if not same and (options.fill or not options.overwrite):
            raise UserError(
                f"out={out} holds {len(items)} other prompts than n={options.n} seed={seed} draws."
                " Type another out=, or overwrite=true without fill= to lose them."
            )
        filled = sum(bool(text) for item in items for text in item["responses"].values())
        if not options.fill and filled and not options.overwrite:
            raise UserError(
                f"out={out} holds these prompts with {filled} slots filled, which a new set would"
                " lose. Type fill= to fill the rest, another out=, or overwrite=true."
            )
        if not options.fill:
            return new_items
    return items


def _holds(items_there: Sequence[Item], items: Sequence[Item]) -> bool:
    """Whether ``items_there`` has the prompts of ``items`` with every text of theirs."""
    return [item["id"] for item in items_there] == [item["id"] for item in items] and all(
        after["responses"][slot] == text
        for before, after in zip(items, items_there, strict=True)
        for slot, text in before["responses"].items()
        if text
    )


def _fill_policy(options: BiasSetOptions, items: Sequence[Item], out: Path, seed: int) -> None:
    """Let the policy answer; its thinking stands beside the answer."""
    typed = {name: getattr(options, name) for name in GENERATION}
    keys_given = frozenset(options.given & {*GENERATION})
    source = source_of(Evaluation("rubric", out=out, seed=seed, given=keys_given, **typed))
    assert source is not None, "a policy is named"
    name, family = _author_of(options, source)
    author = Author(name, family, how="policy")
    settings = source.settings
    slots_to_fill = slots.todo(items, [POLICY], author, options.overwrite, str(out), settings)
    made_with = json.dumps([source.model, settings], sort_keys=True)
    stamp = hashlib.sha256(made_with.encode()).hexdigest()[:8]
    answers = out.with_name(f"{out.stem}.answers-{stamp}.jsonl")
    turns = {item["id"]: item["meta"]["prompt_messages"] for item, _ in slots_to_fill}
    try:
        fill(source, turns, answers)
    finally:  # whatever stops it; the same command asks for what is not there
        if _take(slots_to_fill, answers, author):
            biasset.write(out, items)
        else:
            answers.unlink(missing_ok=True)


def _take(slots_to_fill: Sequence[tuple[Item, str]], answers: Path, author: Author) -> int:
    """Put the answers of a file, and why some could not be had, into the set. Returns how many
    texts there were."""
    rows = read_responses(answers, torn=True) if answers.is_file() else []
    by_id = {row.prompt: row for row in rows}
    for item, slot in slots_to_fill:
        if row := by_id.get(item["id"]):
            slots.put(item, slot, author, _answered(row.text, row.fields))
    return sum(row.text is not None for row in rows)


def _answered(text: str | None, fields: Any) -> Written:
    """The answer of a policy, without its thinking."""
    how = {"settings": fields.get("settings"), "model": fields.get("model")}
    if text is None:
        return Written(None, str(fields.get("error") or "no answer"), beside=how)
    thought = "\n".join(filter(None, [fields.get("thinking"), strip_thinking(text)[1]]))
    cut = fields.get("stop") == "length"
    beside = how | {"stop": fields.get("stop")} | ({"thinking": thought} if thought else {})
    answer = answer_of(text)
    if not answer:
        why = "cut off while it thought" if answer is None and cut else "the answer is empty"
        return Written(None, why, beside=beside)
    checks = {"meaning": None, "length": not cut, "format": None}
    return Written(answer, checks=checks, beside=beside)


def _author_of(options: BiasSetOptions, source: Source) -> tuple[str, str]:
    """Name and family of who answers: those of a preset whose model it is, as far as one is known;
    of a run, the model's own name and the family of its policy."""
    if options.run is not None:
        policy = options.run.config()["policy"]
        return source.model, str(policy.get("family") or "")
    model = str(options.model or "")
    for group in ("judge", "policy"):
        for name in preset_names(group):
            preset = read_preset(group, name)
            served, endpoint = preset.get("serve") or {}, preset.get("endpoint") or {}
            models = {name, preset.get("path"), served.get("model"), endpoint.get("model")}
            if model and options.adapter is None and model.rstrip("/") in models:
                return name, str(preset.get("family") or "")
    return source.model, ""


def _fill_variants(
    options: BiasSetOptions, items: Sequence[Item], out: Path, overrides: Sequence[str]
) -> None:
    """Let a judge preset, or rules, write the variants."""
    variants = options.slots or VARIANTS
    if options.rewriter == RULED:
        if not any(slots.base_of(item, "")[0] for item in items):
            raise UserError(
                "rewriter=rules found no prompt with a text to start from. Fill ycorrect by hand,"
                " type fill=ypolicy_raw first, or type rewriter=JUDGE, which also writes ycorrect."
            )
        slots.fill_by_rules(slots.todo(items, variants, RULES, options.overwrite, str(out)))
        return
    judge = load_judge(options.rewriter, *overrides)
    check_writer(judge)
    author = Author(judge.name, judge.family)
    slots_to_fill = slots.todo(items, variants, author, options.overwrite, str(out))
    options.runs_dir.mkdir(parents=True, exist_ok=True)
    with (
        open_store(options.runs_dir) as store,
        writer(judge, store) if slots_to_fill else nullcontext() as session,
    ):
        if session is not None:
            slots.fill_by_model(slots_to_fill, author, session, lambda: biasset.write(out, items))
