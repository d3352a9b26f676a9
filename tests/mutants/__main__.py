"""How many planted faults do the tests catch?

``python -m tests.mutants n=300 seed=0`` draws faults in the four packages, runs for each the tests
that reach it, and prints the share that the tests caught, by tier. The first run records what each
test reaches, which takes about as long as ``make test LONG=1``.

A fault is tried with the tests that reach it, those that reach little else first, until one fails
or ``budget`` seconds are used, apart from as many for what tests share; one that runs at import, or
in no block that a test reaches, with the tests that reach its file, then its folder, then the one
around that. So the share is a lower bound, by what a larger budget would add. It is printed as
drawn, and weighted by how many places there are for each kind. A run that takes too long is ended,
and its fault is counted apart.

``against=FILE`` takes the faults of an earlier result and prints the difference with a 95 %
interval. ``controls=20`` also runs trials with no fault: what fails there fails by itself.
Faults that change nothing that anyone could see stand with the reason in ``equivalent.toml``, by
hand, before results are seen, and are left out; ``list=true`` prints the faults and ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from study.cli import command, option
from study.config import bounds
from study.errors import UserError
from tests.mutants.campaign import Campaign, Trial
from tests.mutants.faults import KINDS, Fault, all_faults, drawn
from tests.mutants.reach import recorded
from tests.mutants.trial import Tree, trees

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
RECORD_S = 4 * 3600.0
TIERS = ("standard", "long")


@dataclass(frozen=True)
class Options:
    """The command line; see the module."""

    n: int = option("faults, as many of each kind", 300, bounds.Number(low=1, high=100_000))
    seed: int = option("of the draw", 0, bounds.Number(low=0, high=2**32))
    workers: int = option("faults tried at once", 2, bounds.Number(low=1, high=64))
    budget: float = option(
        "seconds of tests for a fault in each tier", 40.0, bounds.Number(low=0.0)
    )
    controls: int = option("trials without a fault", 0, bounds.Number(low=0, high=1000))
    long: bool = option("also the tests that only LONG=1 runs", True)
    against: Path | None = option("result whose faults are taken, and compared with")
    list: bool = option("print the faults and end", False)
    out: Path = option("folder of records and results", ROOT / "build" / "mutants")


def suite_digest(root: Path) -> str:
    """Digest of all files of ours: a record holds for the tree it was made of. The list of
    equivalent faults is left out: no test reads it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    digest = sha256()
    for name in sorted(filter(None, listed.decode().split("\0"))):
        ours = (
            name.endswith((".py", ".yaml", ".toml", ".txt"))
            and name != "tests/mutants/equivalent.toml"
        )
        if ours and (root / name).is_file():
            digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return digest.hexdigest()[:16]


def record(copy: Tree, folder: Path, workers: int, long: bool) -> None:
    """Run every test once, and keep what each reaches, what it takes and whether it passes."""
    environment = recorded(copy.environment, copy.folder, folder)
    environment["JUDGEDRIFT_TEST_TIMES"] = str(folder)
    words = [
        "-q",
        "-p",
        "tests.timing",
        "-p",
        "tests.mutants.reach",
        "-n",
        str(workers),
        "--dist",
        "loadfile",
    ]
    words += [
        "--no-loadscope-reorder",
        "-m",
        "" if long else "not long",
        f"--basetemp={copy.folder.parent / 'b'}",
    ]
    with (folder / "log.txt").open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=copy.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=RECORD_S,
        )
    (folder / "whole").touch()


def equivalent() -> dict[str, str]:
    """Fault by name -> why nobody could see it."""
    return tomllib.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}


def read_result(path: Path) -> dict[str, dict[str, str]]:
    """Fault by name -> what an earlier run kept of it.
    Raises UserError: there is no such result."""
    if not path.is_file():
        raise UserError(f"There is no result {path}. Give a file that an earlier run wrote.")
    return {row["name"]: row for row in json.loads(path.read_text())}


def chosen_faults(options: Options) -> list[Fault]:
    """The faults of the draw, or those of an earlier result as far as their places are there."""
    faults = all_faults(ROOT)
    if options.against is None:
        return drawn(faults, options.n, options.seed)
    by_name = {fault.name: fault for fault in faults}
    names = read_result(options.against)
    return [by_name[name] for name in names if name in by_name]


def tried(
    campaign: Campaign, faults: Sequence[Fault], controls: int
) -> dict[str, tuple[Trial, Trial]]:
    """Fault by name -> its trial on the standard tier, and on all tests."""

    def report(trial: Trial) -> None:
        by = f" by {trial.caught_by}" if trial.caught_by else ""
        print(f"{trial.seconds:6.1f} s {trial.outcome}{by}: {trial.fault.name}", flush=True)

    failing = campaign.controls(list(faults)[:controls])
    print(f"controls: {len(failing)} of {controls} failed without a fault {failing}", flush=True)
    standard = campaign.try_all(faults, long=False, report=report)
    left = [trial.fault for trial in standard if trial.outcome == "survived"]
    long = {trial.fault.name: trial for trial in campaign.try_all(left, long=True, report=report)}
    return {trial.fault.name: (trial, long.get(trial.fault.name, trial)) for trial in standard}


def share(caught: int, of: int) -> str:
    """A share with Wilson's 95 % interval."""
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(caught, of, method="wilson") if of else (0.0, 1.0)
    return f"{caught} of {of} = {caught / max(of, 1):.3f} [{low:.3f}, {high:.3f}]"


def weighted(rows: Sequence[dict[str, str]], tier: str, places: Mapping[str, int]) -> str:
    """The share caught of all faults that can be planted, with a 95 % interval.

    Each kind's share counts by its ``places``, since as many are drawn of the rare ones: the
    stratified mean and its standard error (Cochran, Sampling Techniques, 5.3 and 5.6).
    """
    mean = variance = 0.0
    drawn_from = {kind: n for kind, n in places.items() if any(row["kind"] == kind for row in rows)}
    for kind, n in drawn_from.items():
        outcomes = [row[tier] for row in rows if row["kind"] == kind and row[tier] != "timed_out"]
        share_caught = outcomes.count("caught") / max(len(outcomes), 1)
        weight = n / sum(drawn_from.values())
        mean += weight * share_caught
        variance += weight**2 * share_caught * (1 - share_caught) / max(len(outcomes) - 1, 1)
    half = 1.96 * variance**0.5
    return f"{mean:.3f} [{max(mean - half, 0.0):.3f}, {min(mean + half, 1.0):.3f}]"


def print_shares(
    rows: Sequence[dict[str, str]], places: Mapping[str, int], tiers: Sequence[str]
) -> None:
    """The share caught by each of ``tiers``, whole and by kind; then what survived."""
    for tier in tiers:
        print(f"{tier:9} of all faults that can be planted: {weighted(rows, tier, places)}")
        for kind in ("all", *KINDS):
            here = [row for row in rows if kind in ("all", row["kind"])]
            decided = [row for row in here if row[tier] != "timed_out"]
            caught = sum(row[tier] == "caught" for row in decided)
            late = len(here) - len(decided)
            print(f"{tier:9} {kind:14} {share(caught, len(decided))}, {late} timed out")
    for row in rows:
        if row["long"] == "survived":
            print(f"survived: {row['path']}:{row['line']} {row['before']!r} -> {row['after']!r}")


def print_difference(
    before: dict[str, dict[str, str]], rows: Sequence[dict[str, str]], tiers: Sequence[str]
) -> None:
    """The difference of each of ``tiers`` to an earlier result's whole suite, fault by fault."""
    from statsmodels.stats.contingency_tables import mcnemar

    for tier in tiers:
        pairs = [
            (before[row["name"]]["long"] == "caught", row[tier] == "caught")
            for row in rows
            if "timed_out" not in (row[tier], before[row["name"]]["long"])
        ]
        lost, gained = pairs.count((True, False)), pairs.count((False, True))
        caught = lost + pairs.count((True, True))
        table = [[caught - lost, lost], [gained, pairs.count((False, False))]]
        print(
            f"{tier}: of what the whole suite caught before, lost {share(lost, caught)};"
            f" gained {gained}; McNemar's exact p {mcnemar(table).pvalue:.3f}"
        )


@command("tests.mutants n=300 seed=0", __doc__ or "", Options)
def main(options: Options) -> int:
    faults = chosen_faults(options)
    skipped = equivalent()
    if options.list:
        for fault in faults:
            mark = "equivalent " if fault.name in skipped else ""
            print(f"{mark}{fault.name}\n    {fault.line}: {fault.before!r} -> {fault.after!r}")
        return 0
    left_out = [fault for fault in faults if fault.name in skipped]
    faults = [fault for fault in faults if fault.name not in skipped]
    print(f"{len(faults)} faults; {len(left_out)} more are equivalent and left out", flush=True)
    folder = options.out / (suite_digest(ROOT) + ("" if options.long else "-standard"))
    with trees(ROOT, options.workers) as copies:
        if not (folder / "whole").exists():
            print(f"recording what each test reaches in {folder}", flush=True)
            record(copies[0], folder, options.workers, options.long)
        # of a copy: the tree may have been edited while it was recorded
        campaign = Campaign(copies[0].folder, folder, copies, options.budget)
        print(f"{len(campaign.passed)} tests passed as they were recorded", flush=True)
        trials = tried(campaign, faults, options.controls)
    rows = []
    for fault in faults:
        standard, whole = trials[fault.name]
        outcomes = {"standard": standard.outcome, "long": whole.outcome}
        rows.append(asdict(fault) | outcomes | {"caught_by": whole.caught_by})
    path = options.out / f"seed-{options.seed}-{folder.name}.json"
    path.write_text(json.dumps(rows, indent=1))
    tiers = TIERS if options.long else TIERS[:1]
    print_shares(rows, Counter(fault.kind for fault in all_faults(ROOT)), tiers)
    if options.against:
        print_difference(read_result(options.against), rows, tiers)
    print(f"kept in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
