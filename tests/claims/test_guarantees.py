"""The figures of the pages on alarms, audits, panels and looks can be drawn again."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT


@pytest.mark.long
def test_the_figures_of_four_pages_are_drawn(tmp_path):
    words = [sys.executable, "docs/site/guarantees.py", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == ["audits.svg", "looks.svg", "onset-alarm.svg", "panels.svg"]
    for name in drawn:
        assert (ROOT / "docs" / name).is_file()
        assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg")
