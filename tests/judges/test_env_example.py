"""`.env.example` names what is read from the environment, and holds no value."""

from __future__ import annotations

import re
import subprocess

from study.config.presets import SHIPPED, preset_names, read_preset
from tests.conftest import ROOT

EXAMPLE = ROOT / ".env.example"
OF_LIBRARIES = {"HF_TOKEN": "huggingface_hub", "JUDGE_KEY": "a name of the user's"}


def names() -> list[str]:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    settings = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Z][A-Z_]+=", line) for line in settings), "a value stands there"
    return [line[:-1] for line in settings]


def test_every_key_of_a_preset_stands_there() -> None:
    keys = {
        read_preset(group, name).get("endpoint", {}).get("api_key_env")
        for group in ("judge", "executor")
        for name in preset_names(group)
    }
    assert keys - {None, ""} <= set(names())


def test_everything_there_is_read_by_us_or_by_a_library() -> None:
    floors = [ROOT / name for name in ("study", "judges", "analysis", "experiments")]
    files = [path for floor in floors for path in floor.rglob("*.py")] + [*SHIPPED.rglob("*.yaml")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [name for name in names() if name not in text and name not in OF_LIBRARIES] == []
    assert len(set(names())) == len(names())


def test_git_keeps_the_example_and_not_the_file_made_of_it() -> None:
    for name, ignored in ((".env", 0), (".env.example", 1)):
        done = subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT)
        assert done.returncode == ignored, name
