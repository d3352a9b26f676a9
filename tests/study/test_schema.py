import dataclasses

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError

from study.config.schema import GROUPS, Lora, Study, freeze, schema


def test_defaults_survive_a_round_trip_and_integers_become_floats():
    data = OmegaConf.to_container(OmegaConf.structured(schema(Study)), resolve=True)
    assert freeze(Study, data) == Study()
    frozen = freeze(Study, {"judge": {"simulated": {"doses": {"length": 1}, "scale": 2}}})
    assert isinstance(frozen.judge.simulated.doses["length"], float)
    assert isinstance(frozen.judge.simulated.scale, float)


def test_nested_nodes_are_none_or_whole_and_groups_are_fields():
    config = OmegaConf.structured(schema(Study))
    assert config.policy.lora is None
    merged = OmegaConf.merge(config, {"policy": {"lora": {"r": 4}}})
    assert freeze(Study, OmegaConf.to_container(merged, resolve=True)).policy.lora == Lora(r=4)
    assert set(GROUPS) <= {item.name for item in dataclasses.fields(Study)}


def test_frozen_records_cannot_change_nor_take_a_mistyped_key():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Study().seed = 1  # ty: ignore[invalid-assignment]
    with pytest.raises(ConfigKeyError, match="temprature"):
        mistyped = {"judge": {"sampling": {"temprature": 1}}}
        OmegaConf.merge(OmegaConf.structured(schema(Study)), mistyped)
    with pytest.raises(KeyError, match="temprature"):
        freeze(Study, {"judge": {"sampling": {"temprature": 1}}})
