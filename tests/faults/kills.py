"""Kills without end: ``python -m tests.faults.kills kills=200``.

Small cells are killed at every window between two writes, then at random times, whole sweeps too,
and run again until they are done. Each has to end with the records, advantages and final weights of
a run that nothing disturbed. Exits 1 where one does not.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from study.cell.folder import study_cells
from tests.conftest import ROOT
from tests.faults import lives, windows

SWEEP = ("judge=sim-noisy,sim-flaky", "seed=0,1", "trainer.steps=3", "shadow=[sim-verbose]")
AT_ONCE = 2


def main(arguments: list[str]) -> int:
    """Options: ``kills`` at random times, ``sweeps`` of them of a whole sweep, ``windows=no``,
    ``seed`` of the random times."""
    given = dict(argument.split("=", 1) for argument in arguments)
    kills, sweeps = int(given.get("kills", 200)), int(given.get("sweeps", 8))
    chance = random.Random(int(given.get("seed", 0)))
    scratch = Path(tempfile.mkdtemp(prefix="kills-"))
    began = time.monotonic()
    whole = lives.unbroken(scratch / "whole", *SWEEP)
    print(f"{len(whole)} unbroken cells in {time.monotonic() - began:.0f} s", flush=True)
    wrong: list[str] = []
    if given.get("windows") != "no":
        wrong += at_every_window(scratch, whole[0])
    wrong += at_random(scratch, whole, kills - sweeps, chance)
    wrong += of_sweeps(scratch, whole, sweeps, chance)
    print(f"{len(wrong)} mismatches in {time.monotonic() - began:.0f} s", *wrong, sep="\n")
    shutil.rmtree(scratch)
    return 1 if wrong else 0


def at_every_window(scratch: Path, whole: Path) -> list[str]:
    """A cell that is killed once in each window of its life, and then run to its end."""
    began = time.monotonic()
    folder = lives.lay(scratch / "window", whole)
    names = killed_in_turn(folder, scratch / "windows.txt")
    wrong = finished(folder, whole, "every window")
    print(f"{len(names)} windows, one kill each, in {time.monotonic() - began:.0f} s", flush=True)
    return wrong


def killed_in_turn(folder: Path, names: Path, wanted: str = "") -> list[str]:
    """Run a cell until it ends, each time killed at the first window where none was before.

    Args:
        folder: the cell, laid by `lives.lay`.
        names: a new file for the windows.
        wanted: only windows whose name matches this regular expression.

    Returns:
        The windows.
    """
    stop = partial(windows.kill_at_new, folder.parent.parent, names, wanted)
    while (code := lives.run(folder, stop)) == -signal.SIGKILL:
        pass
    assert code == 0, f"the cell ended with {code}; see {folder / 'log.txt'}"
    return names.read_text().splitlines()


def finished(folder: Path, whole: Path, what: str) -> list[str]:
    """Run the cell to its end, and once more: what is wrong with it then."""
    if code := lives.run(folder):
        return [f"{what}: the second run ended with {code}"]
    wrong = [f"{what}: {kind} differ" for kind in lives.differences(folder, whole)]
    before = lives.everything(folder)
    if lives.run(folder) or lives.everything(folder) != before:
        wrong.append(f"{what}: a run of the finished cell changed it")
    if (found := lives.tracked(folder)) != ["FINISHED"]:
        wrong.append(f"{what}: its runs in MLflow are {found}")
    return wrong


def at_random(scratch: Path, whole: list[Path], kills: int, chance: random.Random) -> list[str]:
    """``kills`` kills at random times of cells that run side by side, each until it is done."""
    began = time.monotonic()
    count = done = 0
    wrong: list[str] = []
    names = (f"random-{number}" for number in itertools.count())
    templates = itertools.cycle(whole)
    running: dict[Path, tuple] = {}
    for name in ("cold", "warm"):  # the first one waits for the server's imports
        undisturbed = lives.lay(scratch / name, whole[0])
        first = time.monotonic()
        assert lives.run(undisturbed) == 0
        span = time.monotonic() - first

    def launch(folder: Path, template: Path) -> None:
        delay = chance.uniform(0, span)
        running[folder] = (lives.start(folder), time.monotonic(), delay, template)

    while count < kills or running:
        while count < kills and len(running) < AT_ONCE:
            template = next(templates)
            launch(lives.lay(scratch / next(names), template), template)
        time.sleep(0.005)
        for folder, (child, started, delay, template) in list(running.items()):
            ran = time.monotonic() - started
            if child.is_alive() and ran >= delay and count < kills:
                child.kill()
            if child.is_alive():
                continue
            child.join()
            del running[folder]
            if child.exitcode == -signal.SIGKILL:
                count += 1
                if count % 25 == 0:
                    print(f"{count} kills, {done} cells, {len(wrong)} mismatches", flush=True)
                launch(folder, template)
                continue
            done += 1
            wrong += finished(folder, template, folder.parent.parent.name)
            shutil.rmtree(folder.parent.parent)
    print(
        f"{count} kills at random times, {done} cells, in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return wrong


def of_sweeps(scratch: Path, whole: list[Path], kills: int, chance: random.Random) -> list[str]:
    """``kills`` kills of a sweep as it runs; its command is then given again until all is done."""
    if not kills:
        return []
    began = time.monotonic()
    runs_dir = scratch / "swept"
    command = [sys.executable, "-m", "experiments.sweep", f"runs_dir={runs_dir}"]
    span, killed, studies = 25.0, 0, 0
    wrong: list[str] = []
    while killed < kills:
        child = subprocess.Popen(
            [*command, *lives.TINY, *SWEEP],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"COLUMNS": "200"},
        )
        started = time.monotonic()
        try:
            child.wait(chance.uniform(5.0, span))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            killed += 1
        else:
            span = time.monotonic() - started
        folders = study_cells(runs_dir / "debug")
        if killed == kills or (child.returncode == 0 and len(folders) == len(whole)):
            wrong += [f"the sweep: {text}" for text in swept(runs_dir, whole)]
            studies += 1
            shutil.rmtree(runs_dir)
    print(
        f"{killed} kills of a sweep, {studies} studies of {len(whole)} cells, in "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    return wrong


def swept(runs_dir: Path, whole: list[Path]) -> list[str]:
    """What is wrong with a study once its sweep has come to its end."""
    folders = lives.unbroken(runs_dir, *SWEEP)
    if [folder.name for folder in folders] != [folder.name for folder in whole]:
        return ["other cells"]
    return [
        f"{folder.name}: {kind} differ"
        for folder, template in zip(folders, whole, strict=True)
        for kind in lives.differences(folder, template)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
