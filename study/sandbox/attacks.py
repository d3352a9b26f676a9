"""What hostile code tries, and how each attempt has to end: the table that tests and users run.

Every attack in ``attacks.toml`` is a function ``attack(where)`` that returns what it obtained:
``None`` or an empty list is nothing, so ``returned`` with nothing is a refusal as well.

An attack proves that it could; it destroys nothing that was not made for it, since a sandbox may
fail: what exists is opened and not written, and whoever is not the victim is sent signal 0.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from study.sandbox import tiers
from study.sandbox.calls import Call, Limits, Outcome, Result, passes
from study.sandbox.pool import Pool
from study.sandbox.tiers import Tier
from study.sandbox.worker import Broken
from study.system.tables import table

QUICK = Limits(cpu_s=1, wall_s=2.0, memory_mb=256)
EXPECTED = "EXPECTED-VALUE-4711"
"""Stands for what an answer is compared with; it is never sent."""
VARIABLE = "JUDGEDRIFT_CANARY"
NOTHING = (None, [], "", 0, False)
TRIED = """
def tried(*attempts):
    obtained = []
    for attempt in attempts:
        try:
            value = attempt()
        except (OSError, RuntimeError, ValueError, AttributeError, IndexError):
            continue
        obtained.append(repr(value)[:80])
    return obtained
"""
"""What most attacks begin with: which of several attempts were not refused."""


@dataclass(frozen=True)
class Attack:
    """One attempt.

    Attributes:
        ends: the outcomes that hold it off; ``returned`` only where nothing was obtained.
        cheats: it answers for a wrong solution: any value holds but the one expected.
        harmless: it may run without isolation, as the proof that this table can fail.
    """

    name: str
    source: str
    ends: frozenset[Outcome] = frozenset({Outcome.RETURNED})
    cheats: bool = False
    harmless: bool = False


def _attack(
    name: str,
    body: str,
    cheats: bool = False,
    harmless: bool = False,
    ends: Sequence[str] = (Outcome.RETURNED,),
    x86_64: Sequence[str] = (),
) -> Attack:
    source = f"{TRIED}\n\ndef attack(where):\n{textwrap.indent(body, '    ')}"
    outcomes = x86_64 if x86_64 and platform.machine() == "x86_64" else ends
    return Attack(name, source, frozenset(map(Outcome, outcomes)), cheats, harmless)


_TABLE = table(__file__)
ATTACKS = [_attack(name, **entry) for name, entry in _TABLE.items()]
"""Every attempt; the parent, its files and its other processes are looked at after each."""


@dataclass(frozen=True)
class Ended:
    """How one attack ended, and the traces that it left on this machine."""

    attack: Attack
    result: Result
    traces: tuple[str, ...]

    @property
    def held(self) -> bool:
        """Whether the outcome is one of those expected, with nothing obtained and no trace left."""
        succeeded = self.result.outcome is Outcome.RETURNED and self.result.value not in NOTHING
        if self.attack.cheats:
            succeeded = passes(self.result, EXPECTED)
        return self.result.outcome in self.attack.ends and not succeeded and not self.traces


def run(tier: Tier, attacks: list[Attack] | None = None) -> Iterator[Ended]:
    """Make each attack in a sandbox of ``tier`` and look for traces on this machine.
    Raises Broken: the sandbox itself failed twice in a row.
    Raises ValueError: an attack that would succeed, and harm this machine, as nothing isolates it.
    """
    selection = ATTACKS if attacks is None else attacks
    if tier is Tier.UNSAFE and not all(attack.harmless for attack in selection):
        raise ValueError("without isolation only harmless attacks are made")
    with _targets() as (where, traces), Pool(1, tier=tier) as pool:
        for attack in selection:
            (result,) = pool.run([Call(attack.source, "attack", (where,), QUICK)])
            if result.outcome is Outcome.SANDBOX:
                raise Broken(result.detail)
            yield Ended(attack, result, tuple(traces()))


@contextlib.contextmanager
def _targets() -> Generator[tuple[dict[str, str | int], Callable[[], list[str]]]]:
    """Things to attack, and a function that says which of them were touched."""
    os.environ[VARIABLE] = tiers.SECRET
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    root = Path(f"/judgedrift-{secrets.token_hex(8)}")
    with tiers.targets() as (where, tier_traces):

        def traces() -> list[str]:
            harm = ["it killed a process"] if victim.poll() is not None else []
            harm += ["it wrote a file"] if root.exists() else []
            return harm + tier_traces()

        try:
            yield {**where, "root": str(root), "victim": victim.pid}, traces
        finally:
            del os.environ[VARIABLE]
            root.unlink(missing_ok=True)
            victim.kill()
            victim.wait()
