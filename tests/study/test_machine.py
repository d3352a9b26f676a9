"""CPUs that this process may use: affinity, and quotas of either version of control groups."""

import os

import pytest

from study.errors import UserError
from study.system import machine
from study.system.machine import cpus, device_variables, has_process, kernel_variables


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


def test_the_affinity_counts_and_a_cpu_asks_for_no_gpu(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 999)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert cpus(tmp_path) == 2
    monkeypatch.setattr(machine, "gpus", lambda: pytest.fail("NVIDIA's tool was asked"))
    assert device_variables("cpu") == {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags: sse4_2 avx2 avx512f", {"ATEN_CPU_CAPABILITY": "avx2"}),
        ("flags: sse4_2 avx2", {}), ("flags: avx512f", {}), ("Features: asimd", {}), ("", {}),
    ],
)  # fmt: skip
def test_the_narrower_kernels_are_named_where_there_are_wider_ones(
    flags, expected, tmp_path, monkeypatch
):
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    assert kernel_variables(tmp_path) == {}
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(f"processor: 0\n{flags}\n")
    assert kernel_variables(tmp_path) == expected
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert kernel_variables(tmp_path) == {}


def gpus_of(monkeypatch, count: int, visible: str | None = None) -> None:
    """A machine with so many GPUs, of which a variable shows some."""
    monkeypatch.setattr(machine, "gpus", lambda: [("NVIDIA", 2**37)] * count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cuda:1", None, "1"), ("cuda", None, "0"), ("cuda:1", "3,2", "2"),
        ("cuda:0", "GPU-8a, GPU-9b", "GPU-8a"), ("cpu", None, ""), ("cpu", "1", ""),
    ],
)  # fmt: skip
def test_a_device_is_shown_to_a_child_alone(monkeypatch, device, visible, expected) -> None:
    gpus_of(monkeypatch, 4, visible)
    variables = device_variables(device)
    assert variables["CUDA_VISIBLE_DEVICES"] == expected
    if device != "cpu":  # numbers are those of NVIDIA's own tool
        assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert device_variables("") == {}


@pytest.mark.parametrize(
    ("device", "count", "visible", "message"),
    [
        ("cuda:2", 2, None, "has cpu, cuda:0, cuda:1"),
        ("cuda:1", 4, "2", "has cpu, cuda:0."),
        ("cuda:0", 4, "", "has cpu."),
        ("cuda:0", 4, "-1", "has cpu."),
        ("cuda:0", 4, "NoDevFiles", "has cpu."),
        ("cuda:1", 4, "2,-1,3", "has cpu, cuda:0."),
        ("cuda:0", 0, "0", "has cpu."),
        ("gpu", 1, None, "is not a device"),
        ("cuda:-1", 1, None, "is not a device"),
        ("cuda:0,cuda:1", 2, None, "is not a device"),
        ("cuda:1\n", 2, None, "is not a device"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    monkeypatch, device, count, visible, message
) -> None:
    gpus_of(monkeypatch, count, visible)
    with pytest.raises(UserError) as refusal:
        device_variables(device)
    assert message in str(refusal.value)


@pytest.mark.parametrize("pid", [0, -1, 2**80, None, "1", 1.0])
def test_what_is_no_number_of_a_process_runs_nowhere(pid) -> None:
    """0 and what is below stand for groups of processes."""
    assert not has_process(pid) and has_process(os.getpid())


def test_nothing_asks_the_machine_how_many_there_are() -> None:
    from tests.conftest import ROOT

    asking = [
        path.name
        for package in ("study", "judges", "analysis", "experiments")
        for path in (ROOT / package).rglob("*.py")
        if "cpu_count(" in path.read_text()
    ]
    assert asking == ["machine.py"]
