"""Shared pieces: the command line as a user calls it, a small finished study, a page as read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import settings

from study.sandbox import tiers
from study.sandbox.pool import Pool

settings.register_profile("no-clock", deadline=None)  # a slow machine is no failure
settings.load_profile("no-clock")
ROOT = Path(__file__).resolve().parents[1]


def sweep(runs_dir: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the sweep's command line against ``runs_dir`` and return what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "experiments.sweep", f"runs_dir={runs_dir}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | {"COLUMNS": "200"} | environment,
    )


class Page(HTMLParser):
    """What a browser would load, and what a reader would read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_data(self, data):
        self.text += " " + data


@pytest.fixture(scope="session")
def small_study(tmp_path_factory) -> Path:
    """Two simulated judges x two seeds of two steps, trained for real; the study's folder."""
    runs_dir = tmp_path_factory.mktemp("runs")
    done = sweep(
        runs_dir, "debug=tiny", "judge=sim-fair,sim-flaky", "seed=3,4", "shadow=[sim-verbose]"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return runs_dir / "debug"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two sandboxes; the test is skipped where nothing isolates."""
    try:
        tiers.find()
    except tiers.SandboxUnavailable as error:
        pytest.skip(str(error))
    with Pool(2) as made:
        yield made
