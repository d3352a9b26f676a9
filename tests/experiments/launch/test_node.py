"""What a node must equal: environment, view of the study's folder, clock, memory of its GPUs."""

import inspect
import json
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.launch import node
from experiments.sweep import cells_of
from experiments.train import PACKAGES
from study.errors import UserError
from study.finding import stop_at_problem
from tests.commands import run_program
from tests.conftest import ROOT

SEND = """
import json, sys
import contextlib, hashlib, importlib.metadata, importlib.util, os, pathlib, platform, socket
text = {read!r}
names = dict(contextlib=contextlib, hashlib=hashlib, importlib=importlib, os=os, platform=platform)
names |= dict(socket=socket, Path=pathlib.Path)
exec(text, names)
print(json.dumps(names["describe"](sys.argv[2:], sys.argv[1])))
"""


def there(sign, *path):
    """What `node.describe` says where its code came over a wire, with ``path`` as PYTHONPATH."""
    source = "from __future__ import annotations\n" + inspect.getsource(node.describe)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    words = [SEND.format(read=source), str(sign), *PACKAGES]
    return json.loads(run_program(*words, cwd=sign.parent, env=variables, check=True).stdout)


@pytest.fixture
def sign(tmp_path):
    with node.announced(tmp_path / "not" / "there" / "study") as path:
        yield path
    assert not path.exists()


@pytest.fixture
def here(sign):
    return node.describe(PACKAGES, str(sign))


def test_an_equal_node_is_taken(here, sign):
    assert here["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    other = there(sign, ROOT)
    assert node.identity(here) == node.identity(other)
    stop_at_problem(node.check_node(here, other, sign))


def test_other_versions_and_other_code_are_refused_with_the_difference(here, sign, tmp_path):
    stale = tmp_path / "stale"
    (stale / "torch-0.0.1.dist-info").mkdir(parents=True)
    (stale / "torch-0.0.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n"
    )
    for name in ("judges", "analysis", "experiments", "judgedrift"):
        (stale / name).symlink_to(ROOT / name)
    (stale / "study").mkdir()
    for path in (ROOT / "study").glob("*.py"):
        (stale / "study" / path.name).write_text(path.read_text())
    (stale / "study" / "cells.py").write_text("# another one\n")
    with pytest.raises(UserError) as refused:
        stop_at_problem(node.check_node(here, there(sign, stale, ROOT), sign))
    text = str(refused.value)
    assert f"torch 0.0.1 there and {here['packages']['torch']} here" in text
    assert "the code differs in study/" in text and " more." in text
    assert "transformers" not in text


def test_a_node_without_the_environment_or_the_folder_is_refused(here, sign):
    empty = {"python": "3.9", "packages": dict.fromkeys(PACKAGES, "none"), "files": {}}
    with pytest.raises(UserError, match=r"Python 3\.9 there.*peft none.*not installed there"):
        stop_at_problem(node.check_node(here, here | empty, sign))
    with pytest.raises(UserError, match=f"does not see the study's folder {sign.parent}"):
        stop_at_problem(node.check_node(here, there(sign.with_name("elsewhere"), ROOT), sign))
    with pytest.raises(UserError, match="may not write to the study's folder"):
        stop_at_problem(node.check_node(here, here | {"writable": False}, sign))


@given(
    ahead=st.floats(-100, 100),
    ways=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=5, max_size=5),
)
def test_the_offset_of_a_clock_is_as_good_as_its_round_trip_says(ahead, ways):
    clock, left = 1000.0, list(ways)

    def ask():
        nonlocal clock
        there, back = left.pop()
        clock += there
        read = clock + ahead
        clock += back
        return read

    offset, within = node.clock_offset(ask, lambda: clock)
    assert abs(offset - ahead) <= within + 1e-6
    assert within == pytest.approx(min(sum(way) / 2 for way in ways), abs=1e-6)


def test_clocks_that_are_apart_are_refused_and_a_folder_of_ones_own_has_none(tmp_path):
    stop_at_problem(node.check_clock("gpu-1", 4.9, 0.0))
    stop_at_problem(node.check_clock("gpu-1", -8.0, 3.0))
    with pytest.raises(UserError, match=r"gpu-1 is 8\.0 s behind the sweep's, and 5 s is the most"):
        stop_at_problem(node.check_clock("gpu-1", -8.0, 2.9))
    offset, within = node.clock_of_folder(tmp_path)
    assert abs(offset) <= within + 0.1  # a file's stamp is a tick of the kernel old at most
    assert list(tmp_path.iterdir()) == []


def test_gpus_that_are_too_small_are_refused(tmp_path):
    heads = {"num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28}
    widths = {"hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064}
    (tmp_path / "config.json").write_text(json.dumps(heads | widths))
    words = [f"policy.path={tmp_path}", "policy.dtype=bfloat16", "judge=sim-fair", "seed=0"]
    todo = cells_of(words)
    gpus = [("A", 141 * 2**30), ("B", 80 * 2**30)]
    stop_at_problem(node.check_gpus(todo, "gpu-1", gpus, 1.0))
    stop_at_problem(node.check_gpus(todo, "gpu-1", [], 1.0))
    with pytest.raises(UserError, match=r"a share of 0\.1 of the GPU B \(80\.0 GiB\) of the node"):
        stop_at_problem(node.check_gpus(todo, "gpu-1", gpus, 0.1))
