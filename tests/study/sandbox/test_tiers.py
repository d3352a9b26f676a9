"""A tier is trusted for what it withstands, never for its name."""

import stat
import subprocess
import sys

import pytest

from experiments.sandbox import main
from study.sandbox import attacks, tiers
from study.sandbox.attacks import Ended
from study.sandbox.calls import Limits, Outcome, Result
from study.sandbox.inside import landlock
from study.sandbox.tiers import SandboxUnavailable, Tier
from study.sandbox.worker import Broken
from tests.waiting import GENEROUS_S


def stub(folder, text):
    path = folder / "bwrap"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


RUNS_WITHOUT_ISOLATION = """
import os, sys
words = sys.argv
start = next(i for i, word in enumerate(words) if word.endswith("python") or "python3" in word
             and not words[i - 1].startswith("--") and words[i + 1] == "-s")
options = words[start:]
options[-1] = ROOT
os.execv(options[0], options)
"""


@pytest.fixture(autouse=True)
def forget():
    tiers.find.cache_clear()
    yield
    tiers.find.cache_clear()


def test_bubblewrap_holds_wherever_it_can_make_namespaces():
    """Else a fault of ours would look like a machine without the tier, and skip its suite."""
    bwrap = tiers.bwrap_path()
    plain = ["--unshare-all", "--ro-bind", "/", "/", "/bin/true"]
    if bwrap is None or subprocess.run([bwrap, *plain], capture_output=True).returncode:
        pytest.skip("no bubblewrap that may make namespaces")
    assert tiers.try_tier(Tier.BWRAP) == ""


def test_landlock_holds_wherever_the_kernel_has_it():
    if landlock.abi() < 1:
        pytest.skip("this kernel has no Landlock")
    assert tiers.try_tier(Tier.LANDLOCK) == ""


@pytest.mark.parametrize("text", ["raise SystemExit(0)", "raise SystemExit('no namespaces')"])
def test_a_bwrap_that_does_nothing_is_not_accepted(tmp_path, text):
    assert "it ended" in tiers.try_tier(Tier.BWRAP, stub(tmp_path, text))


def test_a_worker_that_was_gone_before_it_was_asked_has_ended(tmp_path):
    worker = tiers.start(Tier.BWRAP, stub(tmp_path, "raise SystemExit('no namespaces')"))
    try:
        worker.process.wait(GENEROUS_S)
        with pytest.raises(Broken, match="it ended: no namespaces"):
            worker.ask({"code": "x" * 10_000}, Limits())
    finally:
        worker.close()


def test_a_bwrap_that_isolates_nothing_is_found_out(tmp_path):
    """It runs the very command line, outside of any namespace: seccomp alone is left, and files."""
    root = str(tiers.INSIDE.parents[2])
    fault = tiers.try_tier(
        Tier.BWRAP, stub(tmp_path, RUNS_WITHOUT_ISOLATION.replace("ROOT", repr(root)))
    )
    assert "untrusted code" in fault and "reads a file" in fault


def test_without_any_tier_code_is_refused_unless_said(monkeypatch):
    monkeypatch.setattr(tiers, "try_tier", lambda tier, bwrap=None: "refused by the kernel")
    with pytest.raises(SandboxUnavailable, match="sandbox=unsafe") as caught:
        tiers.find()
    assert "bwrap: refused by the kernel; landlock: refused by the kernel" in str(caught.value)
    assert tiers.find(unsafe=True) is Tier.UNSAFE


def test_landlock_is_the_second_choice(monkeypatch):
    monkeypatch.setattr(
        tiers, "try_tier", lambda tier, bwrap=None: "no" if tier is Tier.BWRAP else ""
    )
    assert tiers.find() is Tier.LANDLOCK


def test_unsafe_does_not_give_up_isolation_that_is_there(monkeypatch):
    monkeypatch.setattr(tiers, "try_tier", lambda tier, bwrap=None: "")
    assert tiers.find(unsafe=True) is Tier.BWRAP


def test_a_tier_that_is_asked_for_must_hold(monkeypatch, capsys):
    monkeypatch.setattr(tiers, "try_tier", lambda tier, bwrap=None: "it has no namespaces")
    monkeypatch.setattr(tiers, "find", lambda unsafe=False: Tier.LANDLOCK)
    assert main(["tier=bwrap"]) == 1
    assert main([]) == 0
    assert "bwrap: it has no namespaces" in capsys.readouterr().out


def test_the_table_shows_what_was_expected_and_what_came(monkeypatch, capsys):
    chosen = [one for one in attacks.ATTACKS if one.name in ("endless loop", "leaves by os._exit")]
    ends = [Result(Outcome.TIMEOUT), Result(Outcome.RETURNED, "out")]
    runs = [Ended(one, end, ()) for one, end in zip(chosen, ends, strict=True)]
    monkeypatch.setattr(tiers, "try_tier", lambda tier, bwrap=None: "")
    monkeypatch.setattr(attacks, "run", lambda tier: iter(runs))
    assert main(["tier=landlock"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["held", "endless", "loop", "timeout", "timeout"]
    assert lines[3].split() == "FAILED leaves by os._exit exited returned out".split()
