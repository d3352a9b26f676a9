"""Every YAML in conf/ composes against the schemas."""

import pytest
from hydra import compose, initialize
from omegaconf import OmegaConf

from experiments.config import Study, freeze, register
from tests.conftest import ROOT

GROUPS = sorted(path.name for path in (ROOT / "conf").iterdir() if path.is_dir())
PRESETS = [
    f"{group}={path.stem}"
    for group in GROUPS
    for path in sorted((ROOT / "conf" / group).glob("*.yaml"))
]


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_composes(preset):
    register()
    with initialize(version_base="1.3", config_path="../../conf"):
        config = compose("sweep", overrides=[preset])
    frozen = freeze(Study, OmegaConf.to_container(config, resolve=True))
    assert isinstance(frozen, Study)
    group, name = preset.split("=")
    if group in ("judge", "policy", "task"):
        assert getattr(frozen, group).name == name


def test_every_preset_says_how_to_run_it():
    for path in (ROOT / "conf").rglob("*.yaml"):
        head = path.read_text().splitlines()[:2]
        assert any(line.startswith("# python -m ") for line in head), path


def test_the_groups_the_study_promises_exist():
    promised = {"judge", "policy", "task", "reward", "scaffold", "trainer", "tracking"}
    assert promised | {"experiment", "debug"} <= set(GROUPS)
