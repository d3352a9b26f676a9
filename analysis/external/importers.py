"""What others' judge evaluations and trainers left on disk, as the two plain tables.

    python -m analysis.importers KIND FILE out=TABLE.csv [judge=NAME] [truth=COLUMNS] [by=prompt]

KIND is alpaca_eval, judgebench or llmbar (pairwise), ifeval, trl or verl (ratings). Each reader
returns a frame that `analysis.external.pairwise.check_pairwise` or
`analysis.external.ratings.check_ratings` takes as it is. A verdict that is not there stays blank.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from analysis.external import tables
from analysis.statistics.estimate import NAN
from study.completions import json_object, read_completions, sound_records
from study.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

FLIPPED = {"first": "second", "second": "first", "tie": "tie", "": ""}
_JUDGEBENCH = {"A>B": "first", "B>A": "second", "A=B": "tie", "A>>B": "first", "B>>A": "second"}
_NO_SCORE = ("step", "advantage", "group", "member", "index", "tokens", "gts")
"""Numbers in others' completions that no rater gave."""
_LLMBAR = {"1": "first", "2": "second", "tie": "tie"}


def alpaca_eval(path: Path, annotator: str = "") -> pd.DataFrame:
    """AlpacaEval annotations (Parquet or annotations.json) as a pairwise table without gold.

    ``first`` is the baseline (preference 1), ``second`` the model (2); continuous preferences are
    cut at 1.5, a preference of exactly 1.5 is a tie, and so is 0 (AlpacaEval's older tie code).
    One order only, for AlpacaEval draws it at random and maps it back. Two more columns: model,
    and preference as it was. An item is ``model/index``, or ``model/instruction`` without index.

    Args:
        annotator: The judge's name where the file has no column annotator.

    Raises:
        UserError: a missing column, a preference outside 0 and 1..2, or no annotator's name.
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
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise UserError(
            f"{path}, row {row + 1}, column preference holds {preference.iloc[row]}. Legal are "
            "1 (baseline) to 2 (model), 0 for a tie, or blank."
        )
    model = tables.texts(frame, "model")
    cut = preference.to_numpy()
    verdict = np.select(
        [np.isnan(cut), (cut == 0) | (cut == 1.5), cut < 1.5], ["", "tie", "first"], "second"
    )
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

    The second judgment is of the swapped pair and names the answers as shown: it is mapped back.
    A null judgment or decision, or one that is no decision, is blank.

    Args:
        judge: The judge's name; the records' judge_name where it is not given.

    Raises:
        UserError: a record without pair_id, label or judgments, a label that is none, or no name.
    """
    rows = []
    for place, record in enumerate(tables.read_records(path), start=1):
        _fields(path, place, record, ("pair_id", "label", "judgments"))
        gold = _word(path, place, "label", _JUDGEBENCH, record["label"])
        name = judge or str(record.get("judge_name") or "")
        if not name:
            raise UserError(f"{path} does not say which judge it is of. Type: judge=NAME")
        for order, judgment in enumerate(_listed(path, place, record, "judgments")[:2]):
            decision = judgment.get("decision") if isinstance(judgment, dict) else None
            verdict = _JUDGEBENCH.get(str(decision).strip(), "")
            rows.append(
                {
                    "item": str(record["pair_id"]),
                    "judge": name,
                    "order": order,
                    "repeat": 0,
                    "verdict": FLIPPED[verdict] if order else verdict,
                    "gold": gold,
                    "group": str(record.get("source", "")),
                }
            )
    return _frame(path, rows)


def llmbar(path: Path, judge: str) -> pd.DataFrame:
    """LLMBar results (result.json or JSON lines: label, results of "swap = False/True"), pairwise.

    LLMBar has mapped the swapped winner back already. Where a strategy ran several rounds, the
    last one that holds a winner is the verdict. An item is its place in the file, from 0.

    Raises:
        UserError: a record without label or results, or a label that is not 1 or 2.
    """
    rows = []
    for place, record in enumerate(tables.read_records(path), start=1):
        _fields(path, place, record, ("label", "results"))
        gold = _word(path, place, "label", {"1": "first", "2": "second"}, record["label"])
        for order, key in enumerate(("swap = False", "swap = True")):
            results = _listed(path, place, record, "results")
            rounds = [one[key] for one in results if isinstance(one, dict) and key in one]
            if rounds:
                last = rounds[-1] if isinstance(rounds[-1], dict) else {}
                winner = str(last.get("winner")).strip().lower()
                rows.append(
                    {
                        "item": str(place - 1),
                        "judge": judge,
                        "order": order,
                        "repeat": 0,
                        "verdict": _LLMBAR.get(winner, ""),
                        "gold": gold,
                    }
                )
    return _frame(path, rows)


def ifeval(path: Path, rater: str, role: str = "human", by: str = "instruction") -> pd.DataFrame:
    """IFEval result lines (eval_results_strict.jsonl or _loose.jsonl) as a table of ratings.

    A rule is what a judge is held against, hence ``role="human"``. An empty response is missing,
    not failed: a request that came back with nothing says nothing about following instructions.

    Args:
        by: "instruction", an item ``prompt#k`` for each, its type the group; or "prompt", one item
            that all its instructions decide, without group.

    Raises:
        UserError: a record without its fields, or as many verdicts as instructions it has not.
    """
    if by not in ("instruction", "prompt"):
        raise UserError(f"by={by!r} is not legal; legal are 'instruction' and 'prompt'.")
    needed = ("prompt", "response", "instruction_id_list", "follow_instruction_list")
    rows = []
    for place, record in enumerate(tables.read_records(path), start=1):
        _fields(path, place, record, needed)
        names, followed = (_listed(path, place, record, field) for field in needed[2:])
        if len(names) != len(followed):
            raise UserError(
                f"{path}, record {place} has {len(names)} instructions but {len(followed)} "
                "verdicts in follow_instruction_list. Each instruction needs one."
            )
        item = str(record.get("key", record["prompt"]))
        scores = [float(bool(one)) for one in followed]
        if by == "prompt":
            scores, names, items = [float(all(followed))], [""], [item]
        else:
            items = [f"{item}#{k}" for k in range(len(names))]
        empty = not str(record["response"] or "").strip()
        rows += [
            {"item": one, "rater": rater, "role": role, "score": NAN if empty else score,
             "group": str(name)}
            for one, score, name in zip(items, scores, names, strict=True)
        ]  # fmt: skip
    return _frame(path, rows)


def completions(path: Path, truth: Sequence[str] = (), raters: Sequence[str] = ()) -> pd.DataFrame:
    """TRL's completions (Parquet) or verl's rollouts (JSON lines) as a table of ratings.

    Every column of numbers is a rater: TRL has one for each reward function, verl ``score`` and
    what its reward function returned beside it. The group is the GRPO group, a prompt at a step;
    an item is ``file/row``. A missing score stays missing; ``frame.attrs["lost"]`` counts records
    of a damaged file that could not be read.

    Args:
        path: One file, or a folder of them.
        truth: Columns that a rule gave: they are what the judges are held against (role human).
        raters: The judges' columns; all others of numbers where none is named.

    Raises:
        UserError: no such file, a record without prompt and completion, or no such column.
    """
    files = [path]
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if one.suffix in (".parquet", ".jsonl", ".gz"))
    rows, lost = [], 0
    for file in files:
        found, damaged = read_completions(file)
        lost += damaged
        for one, record in zip(found, _records(file), strict=True):
            numbers = {
                name: float(value)
                for name, value in record.items()
                if isinstance(value, int | float) and name not in _NO_SCORE
            }
            place = {"item": f"{file.stem}/{one.place}", "group": f"{one.step}/{one.row.prompt_id}"}
            rows.append(place | {"scores": numbers})
    there = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    wrong = [name for name in (*truth, *raters) if name not in there]
    if wrong or (rows and not there):
        given = f"{path} has no numbers in a column {', '.join(wrong)}" if wrong else f"{path} has"
        raise UserError(
            f"{given}{'' if wrong else ' no column of scores'}; columns of numbers are "
            f"{', '.join(there) or 'none'}. Name some of them: truth=accuracy."
        )
    kept = [name for name in there if name in truth or name in (raters or there)]
    table = [
        {
            "item": row["item"],
            "rater": name,
            "role": "human" if name in truth else "judge",
            "score": row["scores"].get(name, NAN),
            "group": row["group"],
        }
        for row in rows
        for name in kept
    ]
    frame = _frame(path, table)
    frame.attrs["lost"] = lost
    return frame


def _records(path: Path) -> list[dict[str, Any]]:
    """The records of a file, as many and in the order that `read_completions` gives them."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [record for _, record in sound_records(data, json_object)[0]]


def _frame(path: Path, rows: list[dict[str, Any]]) -> pd.DataFrame:
    if not rows:
        raise UserError(f"{path} holds no verdicts. Give the file that the evaluation wrote.")
    frame = pd.DataFrame(rows)
    frame.attrs["path"] = str(path)
    return frame


def _fields(path: Path, place: int, record: Mapping[str, Any], needed: tuple[str, ...]) -> None:
    missing = [name for name in needed if name not in record]
    if missing:
        raise UserError(
            f"{path}, record {place} has no {', '.join(missing)}; it has {', '.join(record)}."
        )


def _listed(path: Path, place: int, record: Mapping[str, Any], field: str) -> list[Any]:
    if not isinstance(record[field], list):
        raise UserError(f"{path}, record {place}, {field} holds no list.")
    return record[field]


def _word(path: Path, place: int, field: str, legal: Mapping[str, str], given: Any) -> str:
    word = legal.get(str(given).strip())
    if word is None:
        raise UserError(
            f"{path}, record {place}, {field} holds {given!r}. Legal are {', '.join(legal)}."
        )
    return word


def read_as(
    kind: str,
    path: Path,
    judge: str = "",
    by: str = "instruction",
    truth: Sequence[str] = (),
    raters: Sequence[str] = (),
) -> pd.DataFrame:
    """The table of a file that an evaluation or a trainer of this kind wrote.

    Raises:
        UserError: no judge's name where one is needed, or a bad file.
    """
    if kind == "alpaca_eval":
        return alpaca_eval(path, judge)
    if kind in ("trl", "verl"):
        return completions(path, truth, raters)
    if kind == "ifeval":
        return ifeval(path, judge or "rule", by=by)
    if kind == "judgebench":
        return judgebench(path, judge)
    if not judge:
        raise UserError(f"{path} does not say which judge it is of. Type: judge=NAME")
    return llmbar(path, judge)
