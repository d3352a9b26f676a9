"""Runs the tests of a list in its order and notes what becomes of each: a plugin of pytest.

``JUDGEDRIFT_CHOSEN`` names the list, a test a line; ``JUDGEDRIFT_OUTCOMES`` the file that gets a
line for each test that failed or could not be set up, as soon as it is known.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    result = yield
    lines = Path(os.environ["JUDGEDRIFT_CHOSEN"]).read_text().splitlines()
    order = {test: place for place, test in enumerate(lines)}
    left_out = [item for item in items if item.nodeid not in order]
    items[:] = sorted(
        (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
    )
    config.hook.pytest_deselected(items=left_out)
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["JUDGEDRIFT_OUTCOMES"], "a") as out:
            out.write(f"{report.nodeid}\n")
