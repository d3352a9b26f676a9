"""Probes judges without any training: ``python -m experiments.probe judge=sim-verbose,sim-fair``.

Every judge is asked about the same controlled variants of the same prompts; what it said goes to
``runs/probes/<name>`` as records, and its profile to the screen. A rerun finds every verdict in the
store.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from analysis.probes.profile import profile
from analysis.probes.report import show, write_report
from experiments import selection
from judges.budget import Spent
from judges.identity import judge_id
from judges.probes import variants
from judges.probes.allowance import Allowance
from judges.probes.asking import ask
from judges.probes.model import rewritten
from judges.probes.sets import BUILT_IN, is_file, load_set
from judges.store import Store
from study import cells
from study.cli import read_pairs
from study.compose import load_presets, preset_names
from study.errors import UserError
from study.files import read_json, write_json
from study.records import VERDICT, write_part
from study.schema import Cost
from study.tasks import oracle

if TYPE_CHECKING:
    from analysis.probes.profile import Profile
    from judges.probes import Source, Variant
    from judges.probes.allowance import Allowance
    from study.schema import Judge, Task

USAGE = (
    "python -m experiments.probe judge=A,B [set=instruct-mini|TASK|FILE.jsonl] [n=64]"
    " [select=facility|random|stratified] [bases=correct,partial] [variants=NAME,...]"
    " [repeats=5] [temperatures=0,0.7,1] [keyword=robust] [rewriter=JUDGE] [margin=0.05]"
    " [threshold=0.5] [seed=0] [out=NAME|FOLDER] [runs_dir=runs] [report=true]"
    " [cost.max_calls=N] [cost.max_usd=X] [judge.KEY=VALUE ...] [task.KEY=VALUE ...]"
)
KEYS = (
    "judge", "set", "n", "select", "bases", "variants", "repeats", "temperatures", "keyword",
    "rewriter", "margin", "threshold", "seed", "out", "runs_dir", "report",
    "cost.max_calls", "cost.max_usd",
)  # fmt: skip
NUMBERS = {"n": int, "repeats": int, "seed": int, "margin": float, "threshold": float}
LIMITS = {"max_calls": int, "max_usd": float}
SPENT = "spent.json"
"""What all commands on one folder spent; a limit of ``cost`` is on the sum."""
PROBE = {
    "probe_id": "string",
    "prompt_id": "string",
    "prompt": "string",
    "variant": "string",
    "bias": "string",
    "base": "string",
    "against": "string",
    "keeps": "bool",
    "how": "string",
    "text": "string",
    "truth": "float64",
}
FORMAT = 1
BESIDE = ("cost", "runs_dir", "report", "out", "margin", "threshold")
"""Settings of a command that the tables do not depend on."""


@dataclass(frozen=True)
class Command:
    """The command line, read."""

    judges: list[str]
    set: str = "instruct-mini"
    n: int = 64
    select: str = "facility"
    bases: list[str] = field(default_factory=lambda: ["correct", "partial"])
    variants: list[str] = field(default_factory=list)
    """Edits and replacements to make; all where empty."""
    repeats: int = 5
    """How often contents are judged again at each temperature; below 2 they are not."""
    temperatures: list[float] = field(default_factory=lambda: [0.0, 0.7, 1.0])
    keyword: str = "robust"
    rewriter: str = ""
    """Preset of the model that writes slots; empty leaves them to rules."""
    margin: float = 0.05
    threshold: float = 0.5
    seed: int = 0
    out: str = ""
    runs_dir: Path = Path("runs")
    report: bool = False
    cost: Cost = field(default_factory=Cost)
    """Limits on what all commands on one folder may spend, the rewriter included."""
    overrides: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Where the records go: a bare name is one below ``runs/probes``."""
        if "/" in self.out:
            return Path(self.out).expanduser()
        return self.runs_dir / "probes" / (self.out or Path(self.set).stem)


def read_command(arguments: Sequence[str]) -> Command:
    """Read ``key=value`` arguments.

    Raises:
        UserError: something else, an unknown key, a value that is none, or no judge.
    """
    texts, overrides = read_pairs(arguments, KEYS, "experiments.probe", USAGE)
    values: dict[str, Any] = dict(texts)
    for name in ("judge", "bases", "variants"):
        if name in values:
            values[name] = list(dict.fromkeys(values[name].split(",")))
    for name, kind in NUMBERS.items():
        if name in values:
            values[name] = _number(name, values[name], kind)
    if values.get("margin") == 0:
        raise UserError("margin=0 is not a margin: give score units above 0, such as margin=0.05.")
    if "temperatures" in values:
        given = values["temperatures"].split(",")
        values["temperatures"] = [_number("temperatures", text, float) for text in given]
    if "report" in values:
        if values["report"] not in ("true", "false"):
            raise UserError(f"report={values['report']} is neither true nor false.")
        values["report"] = values["report"] == "true"
    if "runs_dir" in values:
        values["runs_dir"] = Path(values["runs_dir"])
    limits = {name: values.pop(f"cost.{name}", "null") for name in LIMITS}
    values["cost"] = Cost(
        **{
            name: _number(f"cost.{name}", limits[name], kind)
            for name, kind in LIMITS.items()
            if limits[name] != "null"
        }
    )
    return Command(values.pop("judge"), overrides=overrides, **values)


def _number(name: str, text: str, kind: type) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise UserError(f"{name}={text} is no number of 0 or more. Type {USAGE}")
    return value


@dataclass(frozen=True)
class Done:
    """What a run of probes wrote and took."""

    folder: Path
    calls: int
    hits: int
    notes: list[str]
    whole: bool
    """Whether everything was asked: no limit of ``cost`` was in the way."""


def run(command: Command) -> Done:
    """Choose prompts, make the variants, get all verdicts and write the records.

    Raises:
        UserError: settings that cannot work, a judge that cannot be asked, or a folder that holds
            probes of other settings.
    """
    judges, task = _load(command)
    _refuse_strangers(command, judges)
    writer = _writer(command)
    folder = command.folder
    with cells.lock(folder) or _busy(folder):
        _refuse_others(command, judges)
        return _run_held(command, judges, task, writer)


def _run_held(command: Command, judges: list[Judge], task: Task, writer: Judge | None) -> Done:
    """Probe, in a folder that is this process's alone."""
    folder = command.folder
    everybody = judges if writer is None else [*judges, writer]
    allowance = Allowance(command.cost, everybody, Spent(**read_json(folder / SPENT)))
    prompt_set = load_set(command.set, None if is_file(command.set) else task, command.seed)
    chosen = selection.choose(
        [source.row.prompt_text() for source in prompt_set.sources],
        min(command.n, len(prompt_set.sources)) if is_file(command.set) else command.n,
        command.select,
        away=prompt_set.away,
        strata=[source.stratum for source in prompt_set.sources],
        seed=command.seed,
    )
    sources = [prompt_set.sources[place] for place in chosen]
    notes, calls, hits = list(prompt_set.notes), 0, 0
    if len(sources) < command.n:
        notes.append(f"the set has {len(sources)} prompts, and {command.n} were asked for")
    command.runs_dir.mkdir(parents=True, exist_ok=True)
    with Store(command.runs_dir / "verdicts.db") as store, _kept(allowance, folder):
        if writer is not None:
            sources, lost, calls = rewritten(writer, sources, store, allowance)
            notes += lost
        probes, missing = _variants(command, sources)
        notes += [f"{count} x {why}" for why, count in sorted(missing.items())]
        print(f"{len(probes)} texts of {len(sources)} prompts for each judge", flush=True)
        rows: list[dict[str, Any]] = []
        for judge in judges:
            truth_of = _oracle(judge, task)
            asked = ask(
                judge, probes, store, truth_of, command.repeats, command.temperatures, allowance
            )
            rows += asked.rows
            calls, hits = calls + asked.calls, hits + asked.hits
    unasked = _unasked(rows, command.cost, allowance)
    notes += unasked
    folder.mkdir(parents=True, exist_ok=True)
    write_part(folder / "probes.parquet", [p.as_row(command.keyword) for p in probes], PROBE)
    write_part(folder / "verdicts.parquet", rows, _verdict_columns())
    manifest = _manifest(command, judges, sources, probes, notes)
    write_json(folder / "manifest.json", manifest)
    return Done(folder, calls, hits, notes, not unasked)


def _load(command: Command) -> tuple[list[Judge], Task]:
    """The judges and the task, composed; a set that is a file needs no task."""
    task = BUILT_IN if is_file(command.set) else command.set
    if task not in preset_names("task"):
        raise UserError(
            f"set={command.set} is not a set. Give a file that ends in .jsonl, or one of the tasks"
            f" {', '.join(preset_names('task'))}."
        )
    loaded = [load_presets(name, task, overrides=command.overrides) for name in command.judges]
    return [judge for judge, _ in loaded], loaded[0][1]


def _refuse_strangers(command: Command, judges: Sequence[Judge]) -> None:
    for judge in judges:
        if judge.simulated is not None and command.set != BUILT_IN:
            raise UserError(
                f"judge={judge.name} is simulated: it knows the rule truth of {BUILT_IN} and of no"
                f" other prompts. Probe it with set={BUILT_IN}, or name a real judge for"
                f" set={command.set}."
            )


def _busy(folder: Path) -> NoReturn:
    raise UserError(
        f"Another process is probing into {folder}. Wait until it has ended, or give these probes "
        f"a name of their own: out={folder.name}-2"
    )


def _refuse_others(command: Command, judges: Sequence[Judge]) -> None:
    """Tables of other probes are not written over; those of the same settings are made again.

    Raises:
        UserError: with what differs, and another name.
    """
    manifest = read_json(command.folder / "manifest.json")
    if not manifest:
        return
    before, now = _settings(manifest["command"]), _settings(dataclasses.asdict(command))
    before["judges"] = sorted(judge["judge_id"] for judge in manifest["judges"].values())
    now["judges"] = sorted(judge_id(judge) for judge in judges)
    differ = [
        f"{key} = {_shown(before[key])} | {_shown(now[key])}"
        for key in before
        if key in now and before[key] != now[key]
    ]
    if differ:
        raise UserError(
            f"{command.folder} holds probes of other settings ({'; '.join(differ)}; the first "
            "value is theirs), and their tables would be lost. Give these a name of their own, for "
            f"example out={command.folder.name}-2"
        )


def _settings(command: dict[str, Any]) -> dict[str, Any]:
    """What decides the tables of a command; the rest says where, at what cost and how shown."""
    return {key: value for key, value in command.items() if key not in BESIDE}


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _oracle(judge: Judge, task: Task) -> Any:
    return oracle(task) if judge.simulated is not None else None


def _writer(command: Command) -> Judge | None:
    return load_presets(command.rewriter)[0] if command.rewriter else None


@contextmanager
def _kept(allowance: Allowance, folder: Path) -> Generator[None]:
    """Record what was spent, also where the command is stopped half-way."""
    before = allowance.spent
    try:
        yield
    finally:
        if allowance.spent != before:
            write_json(folder / SPENT, dataclasses.asdict(allowance.spent))


def _unasked(rows: Sequence[dict[str, Any]], cost: Cost, allowance: Allowance) -> list[str]:
    """One line for each judge and setting that a limit of ``cost`` cut short."""
    asked = Counter((row["judge"], row["setting"]) for row in rows)
    lost = Counter(
        (row["judge"], row["setting"]) for row in rows if allowance.reason in row["reason"]
    )
    if not lost:
        return []
    limits = {name: limit for name, limit in dataclasses.asdict(cost).items() if limit is not None}
    more = " ".join(f"cost.{name}={2 * limit:g}" for name, limit in limits.items())
    spent = f"{allowance.spent.calls} calls and ${allowance.spent.usd:.4f}"
    lines = [
        f"{count} of {asked[judge, setting]} verdicts of {judge} ({setting}) were not asked for"
        for (judge, setting), count in lost.items()
    ]
    return [
        *lines,
        f"the limits of cost had no room for them: this folder has spent {spent}. To go on, raise"
        f" the limit and run the same command again: {more}",
    ]


def _variants(command: Command, sources: Sequence[Source]) -> tuple[list[Variant], Counter[str]]:
    probes: list[Variant] = []
    missing: Counter[str] = Counter()
    for source in sources:
        made, lost = variants(source, command.bases, command.variants, command.keyword)
        probes += made
        missing += lost
    return probes, missing


def _verdict_columns() -> dict[str, str]:
    added = {
        "probe_id": "string",
        "setting": "string",
        "temperature": "float64",
        "order": "float64",
    }
    left_out = ("rollout_id", "step", "role")
    return added | {name: kind for name, kind in VERDICT.items() if name not in left_out}


def _manifest(
    command: Command,
    judges: Sequence[Judge],
    sources: Sequence[Source],
    probes: Sequence[Variant],
    notes: Sequence[str],
) -> dict[str, Any]:
    """What was probed and how; enough to do it again."""
    settings = dataclasses.asdict(command) | {"runs_dir": str(command.runs_dir)}
    return {
        "format": FORMAT,
        "command": settings,
        "prompts": [source.row.prompt_id for source in sources],
        "probes": len(probes),
        "judges": {
            judge.name: dataclasses.asdict(judge) | {"judge_id": judge_id(judge)}
            for judge in judges
        },
        "notes": list(notes),
        "packages": {name: version(name) for name in ("judgedrift", "numpy", "scipy")},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Exit codes: 0 probed, 1 cut short by a limit of cost, 2 a user's error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(argument in ("-h", "--help") for argument in given):
        print(f"{__doc__}\n{USAGE}")
        return 0
    try:
        command = read_command(given)
        done = run(command)

        found: Profile = profile(done.folder, command.margin, command.threshold)
        show(found)
        print(f"{done.calls} judge calls made; {done.hits} verdicts came from the store")
        print(f"Written under {done.folder}")
        if command.report:
            print(write_report(done.folder, command.margin, command.threshold))
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if done.whole else 1


if __name__ == "__main__":
    sys.exit(main())
