"""A few of the kills of ``python -m tests.faults.chaos``, which does the same two hundred times.

Of these a lost slot is in `test_ray_engine` and a killed sweep in `test_kill`, without ``LONG=1``.
"""

import random

import pytest

from tests.faults.chaos import Chaos

pytest.importorskip("ray")


@pytest.mark.timeout(1800)
@pytest.mark.long
@pytest.mark.slow
def test_records_are_those_of_an_unbroken_run_whatever_is_killed(tmp_path):
    chaos = Chaos(tmp_path, ["seed=0", "trainer.steps=4"], 3, random.Random(3))
    try:
        chaos.run(between_s=5.0)
    finally:
        chaos.stop()
    assert chaos.killed.total() == 3
    assert chaos.wrong == []
    assert not chaos.cluster.processes()
