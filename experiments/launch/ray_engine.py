"""The engine of a Ray cluster: slots on its nodes, each an actor that trains one cell at a time.

A slot holds a cell's CPUs, GPUs and memory as resources of Ray, so that several sweeps share a
cluster. The driver gives a free slot its next cell: one whose judge is asked on that node already,
if there is one. A cell whose slot or node is lost goes on elsewhere from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.launch import pool
from experiments.launch.node import announced
from experiments.launch.ray_nodes import Examiner, capacity, connected, living, needs, on_node
from experiments.launch.slot import Keys, Slot
from experiments.launch.watch import Watch
from experiments.plan.memory import trainings
from study.cell import cells
from study.cell.cells import Cell, models_of
from study.cell.folder import CellFolder
from study.errors import UserError
from study.screen import plural
from study.system.files import first_line

LOOK_S = 5.0
"""Seconds between two looks at which nodes there are."""
SILENT_S = 60.0
"""How long a node may be silent before that is said."""
EMPTY_S = 300.0
"""How long a sweep waits for a node when all are lost, or none has answered yet."""
BEGINS = 3
"""How often in a row a slot may be lost on a node before it had a cell."""


def run(todo: Sequence[Cell], watch: Watch) -> None:
    """Run the cells to their ends on a cluster of Ray. Raises UserError: there is none, or no node
    of it may train them."""
    config = todo[0].config
    with connected(config.sweep.ray.address) as ray, announced(todo[0].folder.study_dir) as sign:
        Sweep(ray, todo, watch, Examiner(ray, todo, sign)).run()


@dataclass
class Place:
    """A slot, where it is, and what it does."""

    actor: Any
    node: str
    folder: CellFolder | None = None
    judge: str = ""


class Queue:
    """Cells that wait, by judge, in their order."""

    def __init__(self, todo: Sequence[Cell]) -> None:
        self._judge_of = {cell.folder: cell.config.judge.name for cell in todo}
        self._free: dict[str, deque[CellFolder]] = {}
        for cell in todo:
            self._free.setdefault(cell.config.judge.name, deque()).append(cell.folder)
        self._parked: list[CellFolder] = []
        """Run by another process now, as far as is known."""

    def __len__(self) -> int:
        return len(self._parked) + sum(map(len, self._free.values()))

    def take(self, node: str, places: Sequence[Place]) -> tuple[str, CellFolder] | None:
        """The next cell for a slot on ``node``: of a judge that is asked there, else of one that is
        asked nowhere, else the first; with its judge."""
        judges_in_use = {place.judge for place in places if place.judge}
        judges_on_node = {place.judge for place in places if place.node == node}
        waiting = [judge for judge, folders in self._free.items() if folders]
        if not waiting:
            return None
        judge = min(
            waiting,
            key=lambda name: 0 if name in judges_on_node else 2 if name in judges_in_use else 1,
        )
        return judge, self._free[judge].popleft()

    def park(self, folder: CellFolder) -> None:
        """Somebody may still be running it; it is tried again once nobody does."""
        self._parked.append(folder)

    def look(self) -> None:
        """Cells that nobody runs any more come first."""
        for folder in list(self._parked):
            if folder.state() != "running":
                self._parked.remove(folder)
                self._free[self._judge_of[folder]].appendleft(folder)


class Sweep:
    """What the driver knows: nodes, slots, and what each of them does."""

    def __init__(self, ray: Any, todo: Sequence[Cell], watch: Watch, examiner: Examiner) -> None:
        self._ray, self._watch, self._examiner = ray, watch, examiner
        self._config, self._configs = todo[0].config, trainings(todo)
        self._queue = Queue(todo)
        self._actor = ray.remote(Slot)
        names = {model.endpoint.api_key_env or "" for model in models_of(todo)}
        self._keys = Keys({name: os.environ[name] for name in names if name in os.environ})
        self._nodes: dict[str, str] = {}
        """Node -> why no cell runs there."""
        self._silent: dict[str, float] = {}
        """Node that had not answered -> when that is said."""
        self._ever: dict[str, dict[str, float]] = {}
        """Node that was ever there -> what it had."""
        self._places: list[Place] = []
        self._working: dict[Any, Place] = {}
        """What a slot was asked -> the slot."""
        self._idle: list[Place] = []
        self._losses: Counter[CellFolder] = Counter()
        self._failed: Counter[str] = Counter()
        self._looked = self._ticked = 0.0
        self._peopled = time.monotonic()
        self._has_begun = False

    def run(self) -> None:
        """Train the queued cells in slots on the nodes until none is left."""
        try:
            while self._queue or self._running():
                if time.monotonic() - self._looked > LOOK_S:
                    self._look()
                if time.monotonic() - self._ticked > 1.0:
                    self._ticked = time.monotonic()
                    self._queue.look()
                    self._watch.tick()
                self._assign()
                ready: list[Any] = []
                if self._working:
                    ready, _ = self._ray.wait(list(self._working), timeout=1.0)
                else:
                    time.sleep(1.0)
                for ref in ready:
                    self._ended(ref)
        finally:
            self._stop()

    def _running(self) -> list[CellFolder]:
        return [place.folder for place in self._places if place.folder]

    def _look(self) -> None:
        """Examine nodes that are new, and make slots on those that have room. Raises UserError: no
        node may train, or none has been left for long."""
        self._looked = time.monotonic()
        nodes = living(self._ray)
        self._ever |= nodes  # where the last GPU is lost, cells do not go on without
        needed = needs(self._configs, self._ever)
        large = {name: capacity(resources, needed) for name, resources in nodes.items()}
        if unexamined := [name for name in nodes if large[name] and name not in self._nodes]:
            for name, why in self._examiner.refusals(unexamined, needed.get("GPU", 0)).items():
                self._nodes[name] = ""
                if why:
                    self._refuse(name, why)
        silent = [name for name in unexamined if name not in self._nodes]
        for name in silent:
            if self._looked > self._silent.setdefault(name, self._looked + SILENT_S):
                self._silent[name] = math.inf
                self._watch.say(
                    f"The node {name[:12]} has not described itself for {SILENT_S:g} s. The sweep"
                    " continues without it and keeps asking."
                )
        useful = [name for name in nodes if large[name] and self._nodes.get(name) == ""]
        if useful:
            self._peopled = self._looked
        elif not (self._has_begun or silent) or self._looked - self._peopled > EMPTY_S:
            raise self._no_node(nodes, needed, len(silent))
        else:
            self._looked = 0.0  # nobody works: look again at once
        for place in list(self._idle):
            if place.node not in useful:
                self._drop(place)
        cells_left = len(self._queue) + len(self._running())
        room = min(self._config.sweep.workers or cells_left, cells_left) - len(self._places)
        for name in useful:
            missing = large[name] - sum(place.node == name for place in self._places)
            share = max(1, int(nodes[name].get("CPU", 1)) // large[name])
            threads = self._config.sweep.threads or self._config.sweep.cpus_per_cell or share
            for _ in range(min(missing, room)):
                self._make(name, needed, threads)
                room -= 1

    def _no_node(
        self, nodes: dict[str, dict[str, float]], needed: dict[str, float], silent: int
    ) -> UserError:
        amounts = ", ".join(f"{name} {amount:g}" for name, amount in needed.items())
        refused = [why for name, why in self._nodes.items() if why and name in nodes]
        if refused:
            return UserError(f"No node of the cluster can train these cells. {refused[0]}")
        if silent:
            return UserError(
                f"No node of the cluster described itself within {EMPTY_S:g} s:"
                f" {plural(silent, 'node')} with room for a cell started no process. Other work"
                " may fill them. Type `ray status`, and rerun the command once they answer."
            )
        largest = "; ".join(
            ", ".join(f"{name} {resources.get(name, 0):g}" for name in needed)
            for resources in nodes.values()
        )
        return UserError(
            f"A cell takes {amounts}, and no node of the cluster has that much:"
            f" {largest or 'none'}. Type a smaller sweep.cpus_per_cell, sweep.gpus_per_cell or"
            " sweep.memory_per_cell_gb, or start a larger node: ray start --address=HOST:PORT"
        )

    def _make(self, node: str, needed: dict[str, float], threads: int) -> None:
        """A slot, which holds its resources from when Ray has them free."""
        actor = self._actor.options(
            num_cpus=needed["CPU"],
            num_gpus=needed.get("GPU", 0),
            memory=needed.get("memory"),
            scheduling_strategy=on_node(node),
        ).remote()
        place = Place(actor, node)
        self._places.append(place)
        ref = actor.begin.remote(pool.PRELOAD, threads, self._config.device, self._keys)
        self._working[ref] = place

    def _drop(self, place: Place) -> None:
        """Let go of a slot that does nothing, and of what it holds."""
        self._idle.remove(place)
        self._places.remove(place)
        self._kill(place)

    def _kill(self, place: Place) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):  # its node is gone, or the cluster
            self._ray.kill(place.actor)

    def _assign(self) -> None:
        """Give every free slot a cell, or let go of it where none waits."""
        for place in list(self._idle):
            if not self._queue:
                self._drop(place)
                continue
            while (next_cell := self._queue.take(place.node, self._places)) is not None:
                judge, folder = next_cell
                if pool.is_busy(folder):
                    self._queue.park(folder)
                elif not self._watch.skips(folder):
                    place.judge, place.folder = judge, folder
                    self._working[place.actor.run.remote(folder)] = place
                    self._idle.remove(place)
                    break

    def _ended(self, ref: Any) -> None:
        """A slot has begun, or its cell has ended, or it is lost."""
        place = self._working.pop(ref)
        try:
            answer = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._lose(place, error)
            return
        folder, place.folder = place.folder, None
        self._idle.append(place)
        if folder is None and answer:
            self._refuse(place.node, str(answer))
            self._drop(place)
            return
        self._has_begun = True
        self._failed.pop(place.node, None)
        if folder is not None and answer == cells.BUSY:
            self._queue.park(folder)
        elif folder is not None:
            self._watch.ended(folder, answer)

    def _lose(self, place: Place, error: Exception) -> None:
        """A slot is gone. What it ran goes on elsewhere once that process has left, or ends here if
        it was lost too often."""
        self._places.remove(place)
        self._looked = 0.0  # another is made
        folder, retries = place.folder, self._config.sweep.retries
        if folder is None:
            self._failed[place.node] += 1
            if self._failed[place.node] >= BEGINS:
                why = first_line(error)
                self._refuse(place.node, f"Every slot made there is lost at once ({why}).")
            return
        self._losses[folder] += 1
        if self._losses[folder] > retries:
            _wait_left([folder])
            self._watch.ended(folder, cells.ORPHANED)
            return
        self._watch.say(
            f"{folder.name}: its process on the node {place.node[:12]} was lost; it resumes from"
            f" its last checkpoint ({self._losses[folder]} of {retries} times)"
        )
        self._queue.park(folder)

    def _refuse(self, node: str, why: str) -> None:
        """No cell runs on a node any more."""
        if not self._nodes.get(node):
            self._watch.say(f"{why} No cell is run on the node {node[:12]}.")
        self._nodes[node] = why

    def _stop(self) -> None:
        """End every slot, and what it runs: a cell ends in order when its slot is gone."""
        running = self._running()
        for place in self._places:
            self._kill(place)
        _wait_left(running)
        for folder in running:
            with contextlib.suppress(Exception):  # why the sweep ends is known
                self._watch.ended(folder, cells.STOPPED)


def _wait_left(folders: Sequence[CellFolder]) -> None:
    """Cells whose slots are gone have left, or had the time for it."""
    limit = time.monotonic() + pool.LAST_S + 2.0
    while time.monotonic() < limit and any(folder.state() == "running" for folder in folders):
        time.sleep(0.1)
