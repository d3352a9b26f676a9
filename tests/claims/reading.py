"""Numbers of pages, the study that each is from, and how it is computed from that study's records.

``reading.toml`` has a row for each text of a page with numbers in it; ``{}`` stands for a number::

    [[claims]]
    page = "README.md"
    study = "quickstart"
    text = "truth rises from {} to {}."
    numbers = ["frozen arm=sim-fair metric=truth first", "frozen arm=sim-fair metric=truth last"]

A number is computed by words: a table, its rows, a column. The table is a command of
`judgedrift.commands` and, behind a colon, a part of the JSON that it writes; or ``metrics``, which
has a row for each line of a cell's metrics. Rows are chosen by ``KEY=VALUE``, ``KEY~END`` (what the
value ends with) and ``KEY|ONE|OTHER``; several need ``mean``, ``min`` or ``max`` before the table.
``%`` at the end makes a share a percentage. A Markdown table is one row here: ``rows`` are the
beginning of each of its lines with the word that ``@`` stands for in ``numbers``, ``over`` the
words of its columns, for ``*``, and ``cell`` the form of a cell.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.records.runs import read_runs
from judgedrift.commands import COMMANDS
from study.cell.folder import study_cells
from study.declared import module_of
from study.system.tables import table

NUMBER = r"([-+]?(?:\d[\d,]*)?\.?\d+(?:e-?\d+)?)"
"""A number as pages write it: 4.1, .45, -117, 2,560, 4e-9."""
TOGETHER: dict[str, Callable[[pd.Series], float]] = {
    "mean": lambda values: float(values.mean()),
    "min": lambda values: float(values.min()),
    "max": lambda values: float(values.max()),
}


CHOSEN = re.compile(r"([^=~|]+)([=~|])(.+)")
"""Rows of a table: a column, how its values are compared, with what."""


@dataclass(frozen=True)
class Made:
    """A study that numbers are from.

    Attributes:
        command: what makes it.
        digest: `digest_of` the records that the pages were written from; empty where not kept.
        near: share by which a number may differ on another kind of machine, where sums of floats
            come out otherwise and a run takes another course.
        commands: name -> words of `judgedrift`, for a table that takes options.
        then: words of `judgedrift` that follow, each of which takes the study.
    """

    command: str
    digest: str = ""
    near: float = 0.0
    commands: Mapping[str, str] = field(default_factory=dict)
    then: Sequence[str] = ()


@dataclass(frozen=True)
class Claim:
    """A text of a page with numbers in it; ``numbers`` say how each is computed."""

    page: str
    study: str
    text: str
    numbers: tuple[str, ...]

    @property
    def pattern(self) -> re.Pattern[str]:
        """What finds it in a page, however its lines are broken."""
        parts = (r"\s+".join(map(re.escape, part.split(" "))) for part in self._parts)
        return re.compile(r"(?<![\w.])" + NUMBER.join(parts))

    @property
    def _parts(self) -> list[str]:
        return " ".join(self.text.split()).split("{}")


def studies() -> dict[str, Made]:
    """The studies of the pages, by name."""
    return {name: Made(**row) for name, row in table(__file__)["studies"].items()}


def claims() -> list[Claim]:
    """All claims, those of Markdown tables line by line."""
    return [claim for row in table(__file__)["claims"] for claim in _written_out(**row)]


def _written_out(
    page: str,
    study: str,
    numbers: Sequence[str],
    text: str = "",
    rows: Sequence[Sequence[str]] = (),
    over: Sequence[str] = ("",),
    cell: str = "{} |",
) -> list[Claim]:
    if not rows:
        return [Claim(page, study, text, tuple(numbers))]
    return [
        Claim(
            page,
            study,
            " ".join([begins, *(cell for _ in over)]),
            tuple(n.replace("@", word).replace("*", column) for column in over for n in numbers),
        )
        for begins, word in rows
    ]


def claimed(claim: Claim, page_text: str) -> list[tuple[str, int]]:
    """The numbers of a claim as its page has them, and where each begins.
    Raises ValueError: the text is not there once, or has other numbers than the claim computes."""
    found = list(claim.pattern.finditer(page_text))
    if len(found) != 1:
        raise ValueError(f"{claim.page} has {len(found)} times: {claim.text}")
    numbers = [(text, found[0].start(place + 1)) for place, text in enumerate(found[0].groups())]
    if len(numbers) != len(claim.numbers):
        raise ValueError(
            f"{claim.page}: {len(numbers)} numbers, {len(claim.numbers)} computed: {claim.text}"
        )
    return numbers


def rounds_to(text: str, value: float, near: float = 0.0) -> bool:
    """Whether a value is that number, rounded alike, or differs from it by the share ``near``."""
    plain = text.replace(",", "")
    mantissa, _, power = plain.partition("e")
    unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    within = max(unit / 2, near * abs(float(plain)))
    return bool(abs(value - float(plain)) <= within + 1e-9 * max(unit, abs(value)))


def written(value: float, like: str) -> str:
    """A value as pages write it, with as many digits as a number has there."""
    mantissa, _, power = like.partition("e")
    digits = len(mantissa.partition(".")[2])
    if power:
        head, _, tail = f"{value:.{digits}e}".partition("e")
        return f"{head}e{int(tail)}"
    text = f"{abs(value):,.{digits}f}" if "," in like else f"{abs(value):.{digits}f}"
    plus = "+" if like.startswith("+") else ""
    sign = "" if not float(text.replace(",", "")) else "-" if value < 0 else plus
    return sign + (text.removeprefix("0") if digits and text != "0" else text)


def digest_of(study_dir: Path) -> str:
    """16 hex digits over rewards and behaviours of every rollout of a study's finished runs."""
    digest = hashlib.sha256()
    for run in sorted(read_runs(study_dir)[0], key=lambda run: run.cell):
        if run.done:
            digest.update(run.cell.encode())
            digest.update(np.ascontiguousarray(run.reward).tobytes())
            digest.update(np.ascontiguousarray(run.features).tobytes())
    return digest.hexdigest()[:16]


class Computed:
    """The tables of a study, each made once."""

    def __init__(self, study_dir: Path, commands: Mapping[str, str]) -> None:
        self._folder, self._commands = study_dir, commands
        self._tables: dict[str, Any] = {}

    def number(self, words: str) -> float:
        """What these words say (see the module); NaN where the study cannot tell it.
        Raises LookupError: no such table, row or column."""
        given = words.split()
        scale = 100.0 if given[-1] == "%" else 1.0
        *given, column = given[:-1] if given[-1] == "%" else given
        together = TOGETHER.get(given[0])
        name, *rows = given[1:] if together else given
        frame = self._frame(name)
        for row in rows:
            key, mark, wanted = CHOSEN.fullmatch(row).groups()
            frame = frame[[_is(each, mark, wanted) for each in frame[key]]]
        if together is None and len(frame) != 1:
            raise LookupError(f"{len(frame)} rows: {words}")
        values = pd.to_numeric(frame[column])  # null, where a command cannot tell
        return scale * (together(values) if together else float(values.iloc[0]))

    def _frame(self, name: str) -> pd.DataFrame:
        command, _, path = name.partition(":")
        if command not in self._tables:
            made = self._metrics() if command == "metrics" else self._json(command)
            self._tables[command] = made
        data = self._tables[command]
        if isinstance(data, pd.DataFrame):
            return data
        for key in filter(None, path.split(".")):
            data = data[key]
        return pd.json_normalize(data if isinstance(data, list) else [data])

    def _metrics(self) -> pd.DataFrame:
        arms = {run.cell: (run.arm, run.seed) for run in read_runs(self._folder)[0]}
        rows = [
            {"arm": arms[folder.name][0], "seed": arms[folder.name][1], "step": line["step"]}
            | line["metrics"]
            for folder in study_cells(self._folder)
            for line in folder.lines()
        ]
        return pd.DataFrame(rows)

    def _json(self, name: str) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out.json")
            words = self._commands.get(name, name)
            if code := ask(words, self._folder, f"out={out}"):
                raise LookupError(f"judgedrift {words} ended with {code}")
            return json.loads(out.read_text(encoding="utf-8"))


def ask(words: str, study_dir: Path, *options: str) -> int:
    """The exit code of ``judgedrift WORDS`` on a study; what it prints is left out."""
    name, *typed = shlex.split(words)
    main = importlib.import_module(module_of(COMMANDS[name].module)).main
    with contextlib.redirect_stdout(io.StringIO()):
        study = (f"study={study_dir.name}", f"runs_dir={study_dir.parent}")
        return main([*study, *typed, *options])


def _is(value: Any, mark: str, wanted: str) -> bool:
    """Whether a cell of a table is chosen, numbers by their value."""
    if mark == "~":
        return str(value).endswith(wanted)
    if isinstance(value, int | float):
        return any(value == float(one) for one in wanted.split("|"))
    return str(value) in wanted.split("|")
