"""One data folder of all sets for the tests of this folder."""

import pytest

from tests.study.tasks.datasets import roots


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return roots.make(tmp_path_factory.mktemp("root"))
