"""What a plan says of the experiments that need no data: cells, calls, tokens, cost and power."""

import pytest

from tests.recording import compare

EXPERIMENTS = "quickstart judge-families interventions mixed-quickstart workflow-quickstart".split()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_plan_says_what_it_said(name, trained, tmp_path):
    done = trained(tmp_path, f"experiment={name}", "plan=true")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    first = next(place for place, line in enumerate(lines) if " cells " in line)
    compare(f"plan-{name}", lines[first:], tmp_path)
