"""CPUs that this process may use: affinity, and quotas of either version of control groups."""

from __future__ import annotations

import os

import pytest

from study.machine import cpus


def mounted(root, groups: str, **files: str):
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def many(monkeypatch) -> None:
    """A process that may use 64 CPUs, on a machine of any size."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 2),
        ("0::/host/path\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        (
            "4:cpu,cpuacct:/job\n0::/\n",
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "600000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            6,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ("3:memory:/x\n", {"memory/x/cpu.max": "100000 100000\n"}, 64),
        ("nonsense", {"cpu.max": "what\n"}, 64),
        ("", {}, 64),
    ],
)
def test_a_quota_cuts_what_the_affinity_allows(tmp_path, many, groups, files, expected) -> None:
    assert cpus(mounted(tmp_path, groups, **files)) == expected


def test_the_affinity_is_what_counts_and_not_the_machine(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 999)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert cpus(tmp_path) == 2


def test_nothing_asks_the_machine_how_many_there_are() -> None:
    from tests.conftest import ROOT

    asking = [
        path.name
        for package in ("study", "judges", "analysis", "experiments")
        for path in (ROOT / package).rglob("*.py")
        if "cpu_count(" in path.read_text()
    ]
    assert asking == ["machine.py"]
