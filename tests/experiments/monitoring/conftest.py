"""A study of one cell under the judge ``fair``, as most tests of this folder look at it."""

import pytest

from study.cell.folder import CellFolder
from tests.experiments.monitoring.studies import lay


@pytest.fixture
def folder(tmp_path) -> CellFolder:
    """The cell's folder; its study is ``mine`` in ``tmp_path``."""
    (made,) = lay(tmp_path, "fair")
    return made
