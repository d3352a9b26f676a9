"""What others' judge evaluations and trainers left on disk, as the two plain tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.external import tables
from analysis.statistics.estimate import NAN
from study.cell.completions import read_completions
from study.cli import command, option, word, writes
from study.config.bounds import Choice
from study.errors import UserError
from study.screen import CONTROLS
from study.system.files import write_text

_FLIPPED = {"first": "second", "second": "first"}
_JUDGEBENCH = {"A>B": "first", "B>A": "second", "A=B": "tie", "A>>B": "first", "B>>A": "second"}
_LLMBAR = {"1": "first", "2": "second", "tie": "tie"}
_LLMBAR_LABELS = {"1": "first", "2": "second"}
_NO_SCORE = ("step", "advantage", "group", "member", "index", "tokens", "gts")
"""Numbers in others' completions that no rater gave."""


def alpaca_eval(path: Path, annotator: str = "") -> pd.DataFrame:
    """AlpacaEval annotations (Parquet or annotations.json) as a pairwise table without gold.

    ``first`` is the baseline (preference 1), ``second`` the model (2), cut at 1.5; exactly 1.5 is a
    tie, and so is 0 (AlpacaEval's older code). AlpacaEval draws the order at random and maps it
    back, so there is one. Two more columns: model and preference. An item is ``model/index``, or
    ``model/instruction`` without index. ``annotator``: the judge's name where the file has none.
    Raises UserError: a missing column, a preference outside 0 and 1..2, or no annotator's name.
    """
    frame = tables.read_table(path)
    frame = frame.rename(columns={"generator_2": "model"} if "model" not in frame else {})
    key = "index" if "index" in frame else "instruction"
    meaning = (
        "AlpacaEval annotations have model (or generator_2), index or instruction, preference."
    )
    tables.require(frame, ("model", key, "preference"), meaning)
    if not annotator and "annotator" not in frame:
        raise UserError(f"{path} has no column annotator. Name the judge: annotator='gpt-4'.")
    preference = tables.numbers(frame, "preference")
    bad = ~(preference.isna() | (preference == 0) | preference.between(1, 2))
    tables.refuse(frame, "preference", bad, "1 (baseline) to 2 (model), 0 for a tie, or blank")
    model = tables.texts(frame, "model")
    ties = preference.isin([0, 1.5])
    verdict = np.select([preference.isna(), ties, preference < 1.5], ["", "tie", "first"], "second")
    return pd.DataFrame(
        {
            "item": model + "/" + tables.texts(frame, key),
            "judge": annotator or tables.texts(frame, "annotator"),
            "order": 0,
            "repeat": 0,
            "verdict": verdict,
            "gold": "",
            "model": model,
            "preference": preference,
        }
    )


def judgebench(path: Path, judge: str = "") -> pd.DataFrame:
    """JudgeBench outputs (JSON lines: pair_id, label, judgments of both orders), pairwise.

    The second judgment is of the swapped pair and names the answers as shown: it is mapped back. A
    null judgment or decision, or an unknown one, is blank. ``judge``: the judge's name; the
    records' judge_name where it is not given. Raises UserError: a record without pair_id, label or
    judgments, an unknown label, or no name.
    """
    rows = []
    for where, record in _records(path, "pair_id", "label", "judgments"):
        gold = _word(where, record, "label", _JUDGEBENCH)
        name = _judge_name(path, judge or record.get("judge_name"))
        for order, judgment in enumerate(_listed(where, record, "judgments")[:2]):
            decision = judgment.get("decision") if isinstance(judgment, dict) else None
            verdict = _JUDGEBENCH.get(str(decision).strip(), "")
            verdict = _FLIPPED.get(verdict, verdict) if order else verdict
            group = str(record.get("source", ""))
            rows.append((str(record["pair_id"]), name, order, 0, verdict, gold, group))
    return _table(path, rows, "item judge order repeat verdict gold group")


def llmbar(path: Path, judge: str = "") -> pd.DataFrame:
    """LLMBar results (result.json or JSON lines: label, results of "swap = False/True"), pairwise.

    LLMBar has mapped the swapped winner back already. Where a strategy ran several rounds, the last
    one that holds a winner is the verdict. An item is its place in the file, from 0. Raises
    UserError: no judge's name, a record without label or results, or a label other than 1, 2.
    """
    judge, rows = _judge_name(path, judge), []
    for item, (where, record) in enumerate(_records(path, "label", "results")):
        gold = _word(where, record, "label", _LLMBAR_LABELS)
        results = _listed(where, record, "results")
        for order, key in enumerate(("swap = False", "swap = True")):
            rounds = [each[key] for each in results if isinstance(each, dict) and key in each]
            if rounds:
                last = rounds[-1] if isinstance(rounds[-1], dict) else {}
                verdict = _LLMBAR.get(str(last.get("winner")).strip().lower(), "")
                rows.append((str(item), judge, order, 0, verdict, gold))
    return _table(path, rows, "item judge order repeat verdict gold")


def ifeval(path: Path, rater: str, by: str = "instruction") -> pd.DataFrame:
    """IFEval result lines (eval_results_strict.jsonl or _loose.jsonl) as a table of ratings.

    A rule is what a judge is held against, hence the role human. An empty response is missing, not
    failed. Raises UserError: a record without its fields, or without a verdict for each
    instruction. ``by``: "instruction", an item ``prompt#k`` for each, its type the group; or
    "prompt", one item that all its instructions decide, without group.
    """
    rows = []
    needed = ("prompt", "response", "instruction_id_list", "follow_instruction_list")
    for where, record in _records(path, *needed):
        names, followed = (_listed(where, record, field) for field in needed[2:])
        if len(names) != len(followed):
            raise UserError(
                f"{where} has {len(names)} instructions but {len(followed)} "
                "verdicts in follow_instruction_list. Each instruction needs one."
            )
        item = str(record.get("key", record["prompt"]))
        items = [f"{item}#{k}" for k in range(len(names))]
        if by == "prompt":
            followed, names, items = [all(followed)], [""], [item]
        empty = not str(record["response"] or "").strip()
        rows += [
            (item, rater, "human", NAN if empty else float(bool(passed)), str(name))
            for item, passed, name in zip(items, followed, names, strict=True)
        ]
    return _table(path, rows, "item rater role score group")


def completions(path: Path, truth: Sequence[str] = (), raters: Sequence[str] = ()) -> pd.DataFrame:
    """TRL's completions (Parquet) or verl's rollouts (JSON lines) as a table of ratings.

    Every column of numbers is a rater: a reward function, or what it returned beside its score. The
    group is the GRPO group, a prompt at a step; an item is ``file/row``. What a damaged file has
    lost is counted in ``frame.attrs["lost"]``. Raises UserError: no such file, a record without
    prompt and completion, or no such column.

    Args:
        path: One file, or a folder of them.
        truth: Columns that a rule gave: they are what the judges are held against (role human).
        raters: The judges' columns; all others of numbers where none is named.
    """
    inside = sorted(path.iterdir()) if path.is_dir() else []
    files = [file for file in inside if file.suffix in (".parquet", ".jsonl", ".gz")]
    places, scores, damaged_count = [], [], 0
    for file in files if path.is_dir() else [path]:
        sound, damaged = read_completions(file)
        damaged_count += damaged
        for completion in sound:
            group = f"{completion.step}/{completion.row.prompt_id}"
            places.append((f"{file.stem}/{completion.place}", group))
            scores.append(
                {
                    name: float(value)
                    for name, value in completion.record.items()
                    if isinstance(value, int | float) and name not in _NO_SCORE
                }
            )
    names = list(dict.fromkeys(name for record in scores for name in record))
    wrong = [name for name in (*truth, *raters) if name not in names]
    if wrong or (scores and not names):
        lacks = f"numbers in a column {', '.join(wrong)}" if wrong else "column of scores"
        raise UserError(
            f"{path} has no {lacks}; columns of numbers are {', '.join(names) or 'none'}. Name "
            "some of them: truth=accuracy."
        )
    rows = [
        (item, name, "human" if name in truth else "judge", record.get(name, NAN), group)
        for (item, group), record in zip(places, scores, strict=True)
        for name in names
        if name in truth or name in (raters or names)
    ]
    frame = _table(path, rows, "item rater role score group")
    frame.attrs["lost"] = damaged_count
    return frame


def _table(path: Path, rows: list[tuple[Any, ...]], columns: str) -> pd.DataFrame:
    if not rows:
        raise UserError(f"{path} holds no verdicts. Give the evaluation's own output file.")
    frame = pd.DataFrame(rows, columns=columns.split())
    frame.attrs["path"] = str(path)
    return frame


def _records(path: Path, *needed: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each record of a file with its place, for errors."""
    for place, record in enumerate(tables.read_records(path), start=1):
        where = f"{path}, record {place}"
        if missing := [name for name in needed if name not in record]:
            raise UserError(f"{where} has no {', '.join(missing)}; it has {', '.join(record)}.")
        yield where, record


def _listed(where: str, record: Mapping[str, Any], field: str) -> list[Any]:
    if not isinstance(record[field], list):
        raise UserError(f"{where}, {field} is not a list.")
    return record[field]


def _word(where: str, record: Mapping[str, Any], field: str, legal: Mapping[str, str]) -> str:
    word = legal.get(str(record[field]).strip())
    if word is None:
        raise UserError(f"{where}, {field} holds {record[field]!r}. Legal are {', '.join(legal)}.")
    return word


def _judge_name(path: Path, name: Any) -> str:
    if not name:
        raise UserError(f"{path} does not name its judge. Type: judge=NAME")
    return str(name)


PAIRS = {"alpaca_eval": alpaca_eval, "judgebench": judgebench, "llmbar": llmbar}
"""Readers that make pairwise tables, which `analysis.external.pairwise.check_pairwise` takes as
they are; the others make ratings, which `analysis.ratings.check_ratings` takes. A missing verdict
stays blank."""
COMPLETIONS = ("trl", "verl")


@dataclass(frozen=True)
class Options:
    """Options of `analysis.importers`: the file, the program that wrote it, and the columns."""

    kind: str = word("program that wrote the file", *PAIRS, "ifeval", *COMPLETIONS)
    file: Path = word("the file")
    out: Path = option("CSV file for the table", required=True)
    judge: str = option("name of the judge, if the file has none", "", only=(*PAIRS, "ifeval"))
    by: str = option("row unit", "instruction", Choice(("instruction", "prompt")), only=("ifeval",))
    truth: list[str] = option("columns of truth", [], only=COMPLETIONS)
    raters: list[str] = option("columns of other raters", [], only=COMPLETIONS)

    def check(self) -> None:
        """Refuse a table that is not CSV."""
        if self.out.suffix != ".csv":
            raise UserError(f"out={self.out} must end in .csv.")


@command("analysis.importers judgebench outputs.jsonl out=table.csv judge=gpt-4o", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 written, 2 a user's error."""
    if options.kind in COMPLETIONS:
        table = completions(options.file, options.truth, options.raters)
    elif options.kind == "ifeval":
        table = ifeval(options.file, options.judge or "rule", by=options.by)
    else:
        table = PAIRS[options.kind](options.file, options.judge)
    with writes("out", options.out):
        plain = table.map(
            lambda value: value.translate(CONTROLS) if isinstance(value, str) else value
        )
        write_text(options.out, plain.to_csv(index=False))
    following = "pairwise" if options.kind in PAIRS else "ratings"
    damaged_count = table.attrs.get("lost", 0)
    note = f" {damaged_count} damaged records are lost." if damaged_count else ""
    print(f"{len(table)} rows for python -m analysis.{following} {options.out}.{note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
