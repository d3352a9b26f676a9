"""Six small sets, and a call that evaluates answers to them."""

import json

import pytest

from experiments.evaluate import main
from tests.experiments.small_sets import write_sets
from tests.study.tasks.datasets import roots
from tests.study.truth.shared import kept_comparers


@pytest.fixture(scope="module", autouse=True)
def _one_start_of_what_compares():
    with kept_comparers():
        yield


@pytest.fixture
def root(tmp_path):
    return write_sets(tmp_path / "data")


@pytest.fixture
def evaluate(root, tmp_path):
    """(lines or options, more words) -> exit code and the result."""

    def call(lines=None, *words, out="out.json"):
        target = tmp_path / out
        if lines is not None:
            path = roots.lines(tmp_path / "predictions.jsonl", lines)
            words = (f"predictions={path}", *words)
        code = main(["datasets", f"data.root={root}", f"out={target}", *words])
        return code, json.loads(target.read_text()) if target.exists() else None

    return call
