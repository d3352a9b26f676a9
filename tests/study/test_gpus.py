"""A lease is of GPUs that nobody else of this user has, and lapses with whoever had it."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import UserError
from study.system.gpus import PARTS, left_by, parts_of, take
from study.system.machine import Gpu
from tests.conftest import python

pytestmark = pytest.mark.usefixtures("own_leases")
THREE = [Gpu(str(number), f"GPU-{number}", "NVIDIA H200", 2**37) for number in range(3)]


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """What is entered here is given back when the test has ended."""
    with ExitStack() as leases:
        yield leases


def shown(leases: ExitStack, *wanted: object) -> str:
    """The GPUs of a lease of ``wanted``, or why there is none."""
    lease = take(*wanted)
    if lease is None:
        return "none is free"
    leases.callback(lease.close)
    return lease.variables.get("CUDA_VISIBLE_DEVICES", "")


def test_a_lease_is_of_gpus_that_nobody_else_has() -> None:
    with ExitStack() as first:
        with ExitStack() as two:
            assert [shown(first, THREE, 1), shown(two, THREE, 2)] == ["0", "1,2"]
            assert take(THREE, 1) is None and take(THREE, 0.1) is None
        assert shown(first, THREE, 1) == "1"
        assert take(THREE, 2) is None  # one is left
        assert shown(first, THREE, 0) == ""


@pytest.mark.parametrize(
    ("share", "fit"), [(0.5, 2), (1 / 3, 3), (0.3, 3), (0.25, 4), (0.1, 10), (0.07, 12)]
)
def test_shares_fill_a_gpu_and_no_more(share, fit, held) -> None:
    assert [shown(held, THREE[:1], share) for _ in range(fit)] == ["0"] * fit
    assert take(THREE[:1], share) is None and take(THREE[:1], 1) is None


def test_shares_go_to_the_emptiest_gpu(held) -> None:
    assert [shown(held, THREE, 0.5) for _ in range(4)] == ["0", "1", "2", "0"]
    assert take(THREE, 1) is None
    assert shown(held, THREE[:2], 0.25) == "1"  # of another sweep, beside a half


def test_a_share_of_each_of_several_leaves_the_rest_of_each(held) -> None:
    assert shown(held, THREE, 2, 0.6) == "0,1"
    assert [shown(held, THREE, 0.4) for _ in range(4)] == ["2", "2", "0", "1"]
    assert take(THREE, 0.4) is None and take(THREE, 2, 0.4) is None


@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0])), max_size=5),
)
def test_what_is_left_is_what_the_locks_leave(count, wants) -> None:
    gpus = [Gpu(str(n), f"GPU-{n}", "", 0) for n in range(count)]
    leases = [take(gpus, several, share) for several, share in wants]
    left = left_by(count, wants)
    try:
        assert (left is None) == (None in leases)
        if left is not None:
            held = dict.fromkeys(range(count), 0)
            for lease, (_, share) in zip(leases, wants, strict=True):
                for name in lease.variables["CUDA_VISIBLE_DEVICES"].split(","):
                    held[int(name)] += parts_of(share)
            assert left == [PARTS - parts for parts in held.values()]
    finally:
        for lease in filter(None, leases):
            lease.close()


def test_a_lease_lapses_with_whoever_died(tmp_path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from study.system import gpus;"
        "from study.system.machine import Gpu; gpus.HOST = Path(sys.argv[1]);"
        "lease = gpus.take([Gpu('0', 'GPU-0', '', 0)], 1); print(lease is not None, flush=True);"
        "time.sleep(60)"
    )
    child = python(code, tmp_path)
    assert child.stdout is not None and child.stdout.readline() == "True\n"
    assert take(THREE[:1], 1) is None
    child.kill()
    child.communicate()
    lease = take(THREE[:1], 1)
    assert lease is not None
    lease.close()


def test_a_folder_of_somebody_else_is_refused(tmp_path) -> None:
    (tmp_path / f"judgedrift-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UserError, match="another user's or not a folder"):
        take(THREE, 1)
