import dataclasses

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError

from study.config.schema import GROUPS, Lora, Study, freeze, schema


def test_schema_round_trip_keeps_every_default():
    data = OmegaConf.to_container(OmegaConf.structured(schema(Study)), resolve=True)
    assert freeze(Study, data) == Study()


def test_optional_nested_node_is_none_or_whole():
    config = OmegaConf.structured(schema(Study))
    assert config.policy.lora is None
    merged = OmegaConf.merge(config, {"policy": {"lora": {"r": 4}}})
    assert freeze(Study, OmegaConf.to_container(merged, resolve=True)).policy.lora == Lora(r=4)


def test_frozen_records_cannot_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Study().seed = 1  # ty: ignore[invalid-assignment]


def test_a_mistyped_key_is_refused_by_name():
    with pytest.raises(ConfigKeyError, match="temprature"):
        mistyped = {"judge": {"sampling": {"temprature": 1}}}
        OmegaConf.merge(OmegaConf.structured(schema(Study)), mistyped)
    with pytest.raises(KeyError, match="temprature"):
        freeze(Study, {"judge": {"sampling": {"temprature": 1}}})


def test_integers_given_for_floats_become_floats():
    frozen = freeze(Study, {"judge": {"simulated": {"doses": {"length": 1}, "scale": 2}}})
    assert isinstance(frozen.judge.simulated.doses["length"], float)
    assert isinstance(frozen.judge.simulated.scale, float)


def test_every_group_is_a_field_of_the_study():
    assert set(GROUPS) <= {item.name for item in dataclasses.fields(Study)}
