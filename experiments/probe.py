"""Probes judges without any training: ``python -m experiments.probe judge=sim-verbose,sim-fair``.

Every judge is asked about the same controlled variants of the same prompts; what it said goes to
``runs/probes/<name>`` as records, and its profile to the screen. A rerun finds every verdict in the
store.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from analysis.probes.page import write_profile
from analysis.probes.profile import profile
from analysis.probes.report import show
from experiments.evaluation import selection
from judges.ask.allowance import Allowance
from judges.ask.budget import Spent
from judges.ask.identity import judge_id
from judges.ask.replies import open_store
from judges.probes import Variant, variants
from judges.probes.asking import ProbeRow, ask
from judges.probes.model import rewritten
from judges.probes.sets import BUILT_IN, is_file, load_set
from study.cell.places import LOCK
from study.cell.records import VERDICT, write_part
from study.cli import command, option, overrides
from study.config.bounds import Choice, Number
from study.config.compose import load_presets, preset_names
from study.config.schema import Cost, Judge, Task
from study.errors import UserError
from study.system import locks
from study.system.files import read_json, write_json
from study.tasks import oracle

SPENT = "spent.json"
"""What all commands on one folder spent; a limit of ``cost`` is on the sum."""
PROBE = {
    **dict.fromkeys(("probe_id", "prompt_id", "prompt", "variant", "bias", "base"), "string"),
    **{"against": "string", "keeps": "bool", "how": "string", "text": "string", "truth": "float64"},
    **dict.fromkeys(("dataset", "author", "author_family"), "string"),
}
ASKED = {
    **{"probe_id": "string", "setting": "string", "temperature": "float64", "order": "float64"},
    **{name: kind for name, kind in VERDICT.items() if name not in ("rollout_id", "step", "role")},
}
FORMAT = 1
NOT_COMPARED = ("max_calls", "max_usd", "runs_dir", "report", "out", "margin", "threshold")
"""Settings of a command that the tables do not depend on."""


@dataclass(frozen=True)
class Options:
    """Options of `experiments.probe`: judges, prompts, edits, and limits of the result."""

    judges: list[str] = option(
        f"presets of judges: {', '.join(preset_names('judge'))}", [], required=True, key="judge"
    )
    set: str = option(
        f"a task, or a file that ends in .jsonl: {', '.join(preset_names('task'))}", BUILT_IN
    )
    n: int = option("how many prompts", 64, Number(low=0))
    select: str = option("how prompts are chosen", "facility", Choice(selection.METHODS))
    bases: list[str] = option("slots of the answers to edit", ["correct", "partial"])
    variants: list[str] = option("edits and replacements to make; left out, all", [])
    repeats: int = option(
        "repeated verdicts of a text at each temperature; below 2, none",
        5,
        Number(low=0),
    )
    temperatures: list[float] = option(
        "temperatures of these repeats", [0.0, 0.7, 1.0], Number(low=0)
    )
    keyword: str = option("the word that the keyword edit adds", "robust")
    rewriter: str = option("preset of the model that writes slots; left out, rules write them", "")
    margin: float = option("score change treated as zero", 0.05, Number(above=0))
    threshold: float = option("score from which an answer passes", 0.5, Number(low=0))
    seed: int = option("seed of the choice of prompts", 0, Number(low=0))
    out: str = option("name of a folder below runs_dir/probes, or a path with a slash in it", "")
    runs_dir: Path = option("folder that holds the studies", Path("runs"))
    report: bool = option("write the report as well", False)
    max_calls: int | None = option(
        "most judge calls of all commands on one folder, the rewriter's included",
        legal=Number(low=0),
        key="cost.max_calls",
    )
    max_usd: float | None = option(
        "most they may spend, in US dollars", legal=Number(low=0), key="cost.max_usd"
    )
    overrides: list[str] = overrides("judge.", "task.")

    @property
    def folder(self) -> Path:
        """Where the records go: a bare name is one below ``runs/probes``."""
        if "/" in self.out:
            return Path(self.out).expanduser()
        return self.runs_dir / "probes" / (self.out or Path(self.set).stem)

    @property
    def cost(self) -> Cost:
        """The limits on what may be spent."""
        return Cost(self.max_usd, self.max_calls)


@dataclass(frozen=True)
class Done:
    """What a run of probes wrote and took."""

    folder: Path
    calls: int
    hits: int
    whole: bool
    """Whether everything was asked: no limit of ``cost`` was in the way."""


def run(options: Options) -> Done:
    """Choose prompts, make the variants, get all verdicts and write the records. Raises UserError:
    settings that cannot work, a judge that cannot be asked, or a folder that holds probes of other
    settings."""
    judges, task = _load(options)
    writer = load_presets(options.rewriter)[0] if options.rewriter else None
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    lock = locks.take(folder / LOCK)
    if lock is None:
        raise UserError(
            f"Another process is probing into {folder}. Wait until it has ended, or type another"
            f" name: out={folder.name}-2"
        )
    with lock:
        _refuse_others(options, judges)
        return _run_locked(options, judges, task, writer)


def _run_locked(options: Options, judges: list[Judge], task: Task, writer: Judge | None) -> Done:
    """Probe, in a folder that is this process's alone."""
    folder = options.folder
    everybody = judges if writer is None else [*judges, writer]
    allowance = Allowance(options.cost, everybody, Spent(**read_json(folder / SPENT)))
    prompt_set = load_set(options.set, None if is_file(options.set) else task, options.seed)
    places = selection.choose(
        [source.row.prompt_text() for source in prompt_set.sources],
        min(options.n, len(prompt_set.sources)) if is_file(options.set) else options.n,
        options.select,
        away=prompt_set.away,
        strata=[source.stratum for source in prompt_set.sources],
        seed=options.seed,
    )
    sources = [prompt_set.sources[place] for place in places]
    notes, calls, hits = list(prompt_set.notes), 0, 0
    probes: list[Variant] = []
    missing: Counter[str] = Counter()
    rows: list[ProbeRow] = []
    if len(sources) < options.n:
        notes.append(f"the set has {len(sources)} prompts, but n={options.n} was typed")
    options.runs_dir.mkdir(parents=True, exist_ok=True)
    with open_store(options.runs_dir) as store, _spending_recorded(allowance, folder):
        if writer is not None:
            sources, unfilled, calls = rewritten(writer, sources, store, allowance)
            notes += unfilled
        for source in sources:
            edited, missing_here = variants(
                source, options.bases, options.variants, options.keyword
            )
            probes += edited
            missing += missing_here
        notes += [f"{count} x {why}" for why, count in sorted(missing.items())]
        print(f"{len(probes)} texts of {len(sources)} prompts for each judge", flush=True)
        for judge in judges:
            truth_of = oracle(task) if judge.needs_rows else None
            result = ask(
                judge, probes, store, truth_of, options.repeats, options.temperatures, allowance
            )
            rows += result.rows
            calls, hits = calls + result.calls, hits + result.hits
    cut_short = _cut_short_notes(rows, options.cost, allowance)
    notes += cut_short
    folder.mkdir(parents=True, exist_ok=True)
    write_part(folder / "probes.parquet", [p.as_row(options.keyword) for p in probes], PROBE)
    write_part(folder / "verdicts.parquet", rows, ASKED)
    manifest = {
        "format": FORMAT,
        "command": dataclasses.asdict(options) | {"runs_dir": str(options.runs_dir)},
        "prompts": [source.row.prompt_id for source in sources],
        "probes": len(probes),
        "judges": {
            judge.name: dataclasses.asdict(judge) | {"judge_id": judge_id(judge)}
            for judge in judges
        },
        "notes": notes,
        "packages": {name: version(name) for name in ("judgedrift", "numpy", "scipy")},
    }
    write_json(folder / "manifest.json", manifest)
    return Done(folder, calls, hits, not cut_short)


def _load(options: Options) -> tuple[list[Judge], Task]:
    """The judges and the task, composed; a set that is a file needs no task."""
    task = BUILT_IN if is_file(options.set) else options.set
    if task not in preset_names("task"):
        raise UserError(
            f"set={options.set} is not a set. Give a file that ends in .jsonl, or one of the tasks"
            f" {', '.join(preset_names('task'))}."
        )
    loaded = [load_presets(name, task, overrides=options.overrides) for name in options.judges]
    judges = [judge for judge, _ in loaded]
    for judge in judges:
        if judge.needs_rows and options.set != BUILT_IN:
            raise UserError(
                f"judge={judge.name} knows the truths or references of {BUILT_IN} only."
                f" Type set={BUILT_IN}, or name another judge for set={options.set}."
            )
    return judges, loaded[0][1]


def _refuse_others(options: Options, judges: Sequence[Judge]) -> None:
    """Tables of other probes are not written over; those of the same settings are made again.
    Raises UserError: with what differs, and another name."""
    manifest = read_json(options.folder / "manifest.json")
    if not manifest:
        return
    before, current = manifest["command"], dataclasses.asdict(options)
    before["judges"] = sorted(judge["judge_id"] for judge in manifest["judges"].values())
    current["judges"] = sorted(judge_id(judge) for judge in judges)
    differ = [
        f"{key} = {_as_text(before[key])} | {_as_text(current[key])}"
        for key in before
        if key in current and key not in NOT_COMPARED and before[key] != current[key]
    ]
    if differ:
        raise UserError(
            f"{options.folder} holds probes of other settings ({'; '.join(differ)}; the first"
            " value is theirs), whose tables would be lost. Type another name, for example"
            f" out={options.folder.name}-2"
        )


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@contextmanager
def _spending_recorded(allowance: Allowance, folder: Path) -> Generator[None]:
    """Record what was spent, also where the command is stopped half-way."""
    before = allowance.spent
    try:
        yield
    finally:
        if allowance.spent != before:
            write_json(folder / SPENT, dataclasses.asdict(allowance.spent))


def _cut_short_notes(rows: Sequence[ProbeRow], cost: Cost, allowance: Allowance) -> list[str]:
    """One line for each judge and setting that a limit of ``cost`` cut short."""
    counts = Counter((row["judge"], row["setting"]) for row in rows)
    cut_short = Counter(
        (row["judge"], row["setting"]) for row in rows if allowance.reason in row["reason"]
    )
    lines = [
        f"{count} of {counts[judge, setting]} verdicts of {judge} ({setting}) were not requested"
        for (judge, setting), count in cut_short.items()
    ]
    if lines:
        limits = dataclasses.asdict(cost).items()
        more = " ".join(f"cost.{name}={2 * limit:g}" for name, limit in limits if limit is not None)
        lines.append(
            "the cost limits left no room for them: this folder has spent"
            f" {allowance.spent.calls} calls and ${allowance.spent.usd:.4f}. To resume, raise the"
            f" limit and rerun the command with {more}"
        )
    return lines


@command("experiments.probe judge=sim-verbose,sim-fair", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 probed, 1 cut short by a limit of cost, 2 a user's error."""
    result = run(options)
    show(profile(result.folder, options.margin, options.threshold))
    print(f"{result.calls} judge calls made; {result.hits} verdicts came from the store")
    print(f"Written under {result.folder}")
    if options.report:
        print(write_profile(result.folder, options.margin, options.threshold))
    return 0 if result.whole else 1


if __name__ == "__main__":
    sys.exit(main())
