"""Commands of ``experiments.workflow`` as a user types them, in this process."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.workflow.__main__ import main
from tests.experiments.workflow.theatre import opened
from tests.study.tasks.datasets.roots import lines
from tests.study.truth.shared import kept_comparers

theatre = pytest.fixture(scope="module")(opened)


@pytest.fixture(scope="module", autouse=True)
def _one_start_of_what_compares():
    with kept_comparers():
        yield


class Commands:
    """Types commands; ``folder`` is where their files lie."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def rows(self, name: str, rows: list[dict[str, Any]]) -> Path:
        return lines(self.folder / name, rows)

    def json(self, name: str, value: Any) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(value))
        return path

    def result(self, *words: str) -> dict[str, Any]:
        """What a command that ends well writes to its out=."""
        out = self.folder / "out.json"
        assert main([*words, f"out={out}"]) == 0, self.capsys.readouterr().err
        return json.loads(out.read_text())

    def refused(self, *words: str) -> str:
        """The paragraph of a command that the user has to mend; it writes nothing."""
        out = self.folder / "refused.json"
        assert main([*words, f"out={out}"]) == 2
        assert not out.exists()
        said = self.capsys.readouterr().err
        assert said.count("\n") == 1
        return said


@pytest.fixture
def commands(tmp_path, capsys):
    return Commands(tmp_path, capsys)
