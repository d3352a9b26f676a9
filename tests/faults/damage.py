"""Damaged files of a study, and every command that reads them: ``python -m tests.faults.damage``.

A case is one file of one cell, spoilt in one way, in a copy of a small study that is finished or
half finished. Each command that comes upon the file must name it (or what it did instead), must not
end in a traceback, and must not lose the other cell.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.cell.folder import CellFolder, study_cells
from study.declared import module_of
from study.system import files
from tests.conftest import in_parts

RUN = (
    *("debug=tiny", "judge=sim-fair,sim-verbose", "seed=0", "shadow=[sim-fair]"),
    *("trainer.steps=3", "sweep.report=false"),
)
"""The command that makes the study, two cells of three steps."""
LIMIT_S = 300
"""A command that waits for ever is stopped and counts as a traceback."""


def empty(path: Path) -> None:
    path.write_bytes(b"")


def torn(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: max(1, len(data) * 2 // 5)].rstrip(b"\n"))


def zeros(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def latin(path: Path) -> None:
    path.write_bytes(b"\xe9\xff" + path.read_bytes())


def array(path: Path) -> None:
    path.write_text("[1, 2]\n")


def words(path: Path) -> None:
    text = '{"step": "five", "state": 7, "seconds": "x", "factors": 3, "sent": "y", "rows": 5'
    path.write_text(text + ', "git": 4, "mlflow": [], "seed": "five"}\n')


def nan(path: Path) -> None:
    path.write_text('{"step": NaN, "seconds": NaN, "factors": NaN, "uri": NaN, "git": NaN}\n')


def deep(path: Path) -> None:
    path.write_text("[" * 200_000)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def huge(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(files.LARGEST + 1)


def middle(path: Path) -> None:
    """A line in the middle is cut, those after it are whole."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1][:40] + b"\n", *lines[2:]]))


def digit(path: Path) -> None:
    """A digit of a metric in the second line is another, so that the line is still a step."""
    lines = path.read_bytes().splitlines(keepends=True)
    head, _, tail = lines[1].rpartition(b'"metrics"')
    place = next(at for at, byte in enumerate(tail) if chr(byte) in "12345678")
    lines[1] = head + b'"metrics"' + tail[:place] + bytes([tail[place] + 1]) + tail[place + 1 :]
    path.write_bytes(b"".join(lines))


def scrambled(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20:300] = bytes(byte ^ 0x5A for byte in data[20:300])
    path.write_bytes(bytes(data))


def other_columns(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1, 2]}), path)


def other_types(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    names = ["step", *({"reward", "score"} & set(table.column_names))]
    for name in names:
        index = table.column_names.index(name)
        table = table.set_column(index, name, pa.array(["five"] * table.num_rows))
    pq.write_table(table, path)


def other_step(path: Path) -> None:
    shutil.copy(path.with_name("step-000001.parquet"), path)


def copied(path: Path) -> None:
    shutil.copy(path, path.with_name(f"copy of {path.name}"))


def named_oddly(path: Path) -> None:
    shutil.copy(path, path.with_name(f"{path.stem[:5]}abc.parquet"))


def doubled(path: Path) -> None:
    shutil.copytree(path.parent, path.parent.with_name(f"copy of {path.parent.name}"))


def gone(path: Path) -> None:
    path.unlink()


TEXT = (empty, torn, zeros, latin, array, words, nan, deep, folder, loop, pipe, huge)
PART = (empty, torn, zeros, latin, array, folder, loop, pipe, scrambled)
SHAPE = (other_columns, other_types, other_step, copied, named_oddly, gone)
FILES: dict[str, tuple[Callable[[Path], None], ...]] = {
    "status.json": TEXT,
    "../study.json": TEXT,
    "config.yaml": (*TEXT, gone, doubled),
    "environment.json": TEXT,
    "mlflow.json": TEXT,
    "metrics.jsonl": (
        middle,
        digit,
        torn,
        zeros,
        latin,
        array,
        words,
        nan,
        deep,
        folder,
        loop,
        pipe,
    ),
    "rollouts/step-000002.parquet": (*PART, *SHAPE),
    "verdicts/step-000002.parquet": (*PART, *SHAPE),
    "rollouts/MERGED": (*PART, other_columns, other_types, copied, named_oddly, gone),
    "verdicts/MERGED": (*PART, other_columns, other_types, copied, named_oddly, gone),
}
"""File of a cell -> how it is spoilt; all steps in one, or else a part for each step."""
BY_BYTES = {"scrambled", "other_columns", "other_types", "other_step"}
"""Damage inside a whole Parquet file, which only those who read it can see."""


@dataclass(frozen=True)
class Case:
    """One file, spoilt."""

    file: str
    how: Callable[[Path], None]

    @property
    def name(self) -> str:
        return f"{self.how.__name__} {self.file}"

    @property
    def merged(self) -> bool:
        return self.file.endswith("MERGED")


CASES = [Case(file, how) for file, ways in FILES.items() for how in ways]


def study_of(runs_dir: Path) -> Path:
    return runs_dir / "debug"


def half(study: Path) -> None:
    """Make the second cell one that was killed after its second step."""
    cell = victim(study)
    for path in (cell / "DONE", *cell.glob("*/step-000003.parquet")):
        path.unlink()
    for path in (cell / "policy", cell / "checkpoints" / "checkpoint-3"):
        shutil.rmtree(path)
    lines = (cell / "metrics.jsonl").read_text().splitlines(keepends=True)
    (cell / "metrics.jsonl").write_text("".join(lines[:2]))
    files.write_json(cell / "status.json", {"state": "running", "step": 2, "steps": 3})


def victim(study: Path) -> Path:
    return sorted(study.glob("sim-*"))[-1]


# the commands, in this process


def plan(runs_dir: Path) -> int:
    return _sweep(runs_dir, "plan=true")


def run(runs_dir: Path) -> int:
    """All cells are done: nothing is trained."""
    return _sweep(runs_dir)


def _sweep(runs_dir: Path, *more: str) -> int:
    from hydra.core.global_hydra import GlobalHydra

    from experiments import sweep

    GlobalHydra.instance().clear()
    os.environ.pop("HYDRA_FULL_ERROR", None)  # as `main` finds it in a process of its own
    sys.argv = ["experiments.sweep", f"runs_dir={runs_dir}", *RUN, "tracking=none", *more]
    return sweep.main()


def resume(runs_dir: Path) -> int:
    from experiments import train

    return train.main([f"cell={victim(study_of(runs_dir))}", "threads=1"])


def rebuild(runs_dir: Path) -> int:
    from experiments.tracking import __main__ as tracking

    return tracking.main(["rebuild", "study=debug", f"runs_dir={runs_dir}"])


def read(runs_dir: Path) -> int:
    """What every analysis begins with: the study as arrays, and what is wrong in its folders."""
    from analysis.records.runs import read_study
    from study.cell.verify import check_records
    from study.finding import stop_at_problem

    study = study_of(runs_dir)
    others = set(study_cells(study)) - {CellFolder(victim(study))}
    found = read_study(study)
    print("\n".join(found.problems))
    stop_at_problem(check_records(study, study_cells(study)))
    assert {run.cell for run in found.runs} >= {cell.name for cell in others}
    assert not any(run.cell.startswith("copy") for run in found.runs)
    return 0


def gather(runs_dir: Path) -> int:
    """What the report shows, without a kernel."""
    from analysis.report.evidence import gather as gather_evidence
    from analysis.report.tables import runs_table
    from analysis.report.words import findings, limits

    evidence = gather_evidence(study_of(runs_dir))
    findings(evidence), limits(evidence), runs_table(evidence)
    return read(runs_dir)


def _analysis(name: str) -> Callable[[Path], int]:
    def command(runs_dir: Path) -> int:
        from importlib import import_module

        return import_module(module_of(f"analysis.{name}")).main(
            ["study=debug", f"runs_dir={runs_dir}"]
        )

    command.__name__ = name
    return command


def forecast(runs_dir: Path) -> int:
    from analysis.forecast import __main__ as forecast_command

    given = ["study=debug", f"runs_dir={runs_dir}", "judges=sim-fair"]
    return forecast_command.main(given)


def replay(runs_dir: Path) -> int:
    from judges import replay

    return replay.main(["study=debug", f"runs_dir={runs_dir}", "judge=sim-fair"])


ANALYSES = [
    _analysis(name)
    for name in ("ledger", "onset", "overopt", "propagation", "mediation", "natural", "crossjudge")
]
FINISHED = [plan, run, rebuild, gather, *ANALYSES, _analysis("dose"), forecast, replay]
HALF = [plan, resume, gather]


def speaks(case: Case, command: Callable[[Path], int]) -> bool:
    """Whether the command comes upon the file, and so must speak of it."""
    name, how = command.__name__, case.how.__name__
    if case.file == "mlflow.json":
        return name in ("plan", "run", "rebuild", "read", "resume")
    if case.file == "environment.json":
        return name in ("plan", "run", "rebuild", "gather", "read", "resume")
    if case.file == "../study.json":
        return name in ("plan", "rebuild", "gather", "read")
    if how == "doubled" and name == "resume":
        return False  # a cell that is trained by hand reads no other folder
    if case.file == "config.yaml" and how in ("torn", "words", "nan") and name == "resume":
        return True
    if how in BY_BYTES:
        more = ("forecast", "replay") if "rollouts" in case.file else ("resume",)
        if how == "scrambled" and name == "resume":
            return False  # it reads who judged and what that cost, and those pages are whole
        return name in ("gather", "read", *more)
    return name in ("plan", "run", "rebuild", "gather", "read", "resume")


def named(case: Case, said: str) -> bool:
    if case.how is doubled:
        return "copy of sim-" in said
    if case.how is copied:
        return "copy of step" in said
    if case.how is named_oddly:
        return "abc.parquet" in said
    if case.how is gone and "/step-" in case.file:
        return "no part of step 2" in said or "step-000002" in said
    if case.merged:
        return "no part of step 1, 2" in said or "steps-000001-" in said
    return Path(case.file).name in said or (case.how is gone and "config.yaml" in said)


def attempt(command: Callable[[Path], int], runs_dir: Path) -> tuple[str, str]:
    """How the command ended and what it said: ``code N`` or ``traceback``."""
    out = io.StringIO()
    files.PRINTED_LINES.clear()
    given = sys.argv
    before = signal.signal(signal.SIGALRM, _late)
    signal.alarm(LIMIT_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = command(runs_dir)
        end = f"code {code}"
    except BaseException:
        out.write(traceback.format_exc())
        end = "traceback"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        sys.argv = given
    said = out.getvalue()
    return ("traceback" if "Traceback (most recent" in said else end), said


def _late(*_: Any) -> None:
    raise Endless(f"no end after {LIMIT_S} s")


class Endless(BaseException):
    """Nobody may take this for an error of a file and go on."""


@dataclass(frozen=True)
class Result:
    """What one command made of one case."""

    case: Case
    command: str
    end: str
    said: str
    silent: bool

    @property
    def bad(self) -> bool:
        return self.silent or self.end == "traceback"


HEAVY = shutil.ignore_patterns("checkpoint-*", "policy", ".cache", "report")
"""What only training reads."""


def trials(
    source: Path, cases: Iterable[Case], commands: Iterable[Callable[[Path], int]], unfinished: bool
) -> Iterator[Result]:
    """Each case in a copy of the runs folder ``source``, read by each command in turn; a command
    that repairs the file gets a fresh copy, as does the one after it."""
    commands = list(commands)
    for case in cases:
        for command in commands:
            with tempfile.TemporaryDirectory() as scratch:
                runs_dir = Path(scratch) / "runs"
                layout = source if case.merged else parts_of(source)
                shutil.copytree(layout, runs_dir, ignore=None if unfinished else HEAVY)
                study = study_of(runs_dir)
                if unfinished:
                    half(study)
                path = Path(os.path.normpath(victim(study) / case.file))
                if case.merged:
                    (path,) = path.parent.glob("steps-*")
                if not path.exists():
                    files.write_json(path, {})
                case.how(path)
                end, said = attempt(command, runs_dir)
            silent = speaks(case, command) and not named(case, said)
            yield Result(case, command.__name__, end, said, silent)


def parts_of(source: Path) -> Path:
    """A copy of the runs folder ``source`` with a part for each step, beside it; made once."""
    copy = source.with_name(f"{source.name}-in-parts")
    if not copy.exists():
        in_parts(shutil.copytree(source, copy))
    return copy


def make(runs_dir: Path) -> None:
    """The study that is copied, made by its command."""
    from tests.conftest import sweep

    done = sweep(runs_dir, *RUN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(study_cells(study_of(runs_dir))) == 2


def main(words: list[str]) -> int:
    """``python -m tests.faults.damage [words of a case]``; exits 1 where a case was bad."""
    chosen = [case for case in CASES if all(word in case.name for word in words)]
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "runs"
        make(source)
        parts = [case for case in chosen if not case.merged]
        for unfinished, commands in ((False, FINISHED), (True, HALF)):
            for result in trials(source, parts if unfinished else chosen, commands, unfinished):
                counts["readings"] += 1
                counts[result.end] += 1
                counts["silent"] += result.silent
                if result.bad:
                    what = "silent" if result.silent else "traceback"
                    print(f"{what}: {result.command} on {result.case.name}: {result.said[-1500:]}")
    ends = ", ".join(f"{counts[end]} {end}" for end in sorted(counts) if end.startswith("code"))
    print(
        f"{len(chosen)} damaged files in two studies, {counts['readings']} readings: "
        f"{counts['silent']} silent, {counts['traceback']} tracebacks; {ends}"
    )
    return 1 if counts["silent"] or counts["traceback"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
