"""What a cell's hash covers: what was changed, and nothing that a later version may add."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from study.config.identity import (
    ABSENT,
    digest,
    flatten,
    hashed_default,
    identifying,
    left_out,
)
from study.config.marks import RUN_TIME, changed_default, dataclass_of, field_types
from study.config.schema import Endpoint, Judge, Sampling, Simulated, Study, Trainer
from tests.conftest import ROOT
from tests.study.test_bounds import nested


@dataclass(frozen=True)
class NextSampling(Sampling):
    min_p: float = 0.0


@dataclass(frozen=True)
class NextSimulated(Simulated):
    moods: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NextJudge(Judge):
    sampling: NextSampling = field(default_factory=NextSampling)
    simulated: NextSimulated | None = None
    panel: Endpoint | None = None


@dataclass(frozen=True)
class NextStudy(Study):
    """The schema of a later version: one key more in four places."""

    judge: NextJudge = field(default_factory=NextJudge)
    shadow_judges: list[NextJudge] = field(default_factory=list)
    selection: str = "none"


def plain(config: Study) -> dict[str, Any]:
    return dataclasses.asdict(config)


SIMULATED = Judge(name="j", simulated=Simulated(doses={"length": 0.5}, noise_sd=0.1))
CONFIGS = {
    "defaults": Study(),
    "a judge": Study(judge=Judge(name="j", endpoint=Endpoint(model="m", extra_body={"k": [1]}))),
    "simulated": Study(judge=SIMULATED, seed=3),
    "shadow": Study(shadow_judges=[SIMULATED, Judge()], trainer=Trainer(steps=7)),
}


def later(data: dict[str, Any]) -> dict[str, Any]:
    """What the later version resolves the same command to: its new keys at their defaults."""
    judges = [data["judge"], *data["shadow_judges"]]
    for judge in judges:
        judge["panel"] = None
        judge["sampling"]["min_p"] = 0.0
        if judge["simulated"]:
            judge["simulated"]["moods"] = []
    return {**data, "selection": "none"}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_new_key_leaves_every_hash_as_it_was(name: str) -> None:
    data = later(plain(CONFIGS[name]))
    assert data != plain(CONFIGS[name])
    assert digest(data, NextStudy) == digest(plain(CONFIGS[name]))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("selection",), "diverse"),
        (("judge", "panel"), {}),
        (("judge", "sampling", "min_p"), 0.1),
        (("judge", "simulated", "moods"), ["kind"]),
        (("shadow_judges", 0, "sampling", "min_p"), 0.1),
    ],
)
def test_a_new_key_off_its_default_counts(path: tuple[Any, ...], value: Any) -> None:
    data = later(plain(dataclasses.replace(CONFIGS["shadow"], judge=SIMULATED)))
    before = digest(data, NextStudy)
    *way, last = path
    node: Any = data
    for step in way:
        node = node[step]
    node[last] = value
    assert digest(data, NextStudy) != before


def test_only_what_was_changed_is_hashed_and_optional_parts_count() -> None:
    assert identifying(plain(Study())) == {}
    assert identifying(plain(CONFIGS["simulated"])) == {
        "judge.name": "j",
        "judge.simulated": {},
        "judge.simulated.doses.length": 0.5,
        "judge.simulated.noise_sd": 0.1,
        "seed": 3,
    }
    there = Study(judge=Judge(simulated=Simulated()))
    assert identifying(plain(there)) == {"judge.simulated": {}}
    assert digest(plain(there)) != digest(plain(Study()))
    one = [Study(shadow_judges=[Judge()] * count) for count in range(3)]
    assert len({digest(plain(config)) for config in one}) == 3
    far = Judge(endpoint=Endpoint(url="http://elsewhere", model="m"))
    flat = identifying(plain(Study(shadow_judges=[far])))
    assert flat == {"shadow_judges.0": {}, "shadow_judges.0.endpoint.model": "m"}


def test_each_key_off_its_default_changes_the_hash() -> None:
    """Every key of the schema but the run-time ones, one at a time."""
    before, digests = digest(plain(Study())), set()
    for key, default in defaults().items():
        name = key.rpartition(".")[2]
        if isinstance(default, bool):
            value: Any = not default
        elif isinstance(default, int | float):
            value = default + 1
        else:
            value = {"other": 1} if isinstance(default, dict) else f"not {default}"
        new_digest = digest(nested(key, value))
        assert new_digest != before and new_digest not in digests, name
        digests.add(new_digest)


def test_a_changed_default_makes_no_two_configs_equal() -> None:
    @dataclass(frozen=True)
    class Before:
        steps: int = 40

    @dataclass(frozen=True)
    class After:
        steps: int = changed_default(40, 60)

    assert After().steps == 60
    assert digest({"steps": 40}, After) == digest({"steps": 40}, Before)
    assert digest({"steps": 60}, After) == digest({"steps": 60}, Before)
    assert digest({"steps": 60}, After) != digest({"steps": 40}, After)


def defaults(cls: type = Study, at: str = "") -> dict[str, Any]:
    """Every key that a hash can hold, with the value that it leaves out."""
    leaves: dict[str, Any] = {}
    for item in dataclasses.fields(cls):
        key, part = f"{at}{item.name}", dataclass_of(field_types(cls)[item.name])
        if item.metadata.get(RUN_TIME):
            continue
        default = hashed_default(item)
        if part is None or default is None:
            leaves[key] = default
        if part is not None and default != []:
            leaves |= defaults(part, f"{key}.")
    return leaves


def test_no_default_that_a_hash_leaves_out_was_changed() -> None:
    """Where this fails: give the field its new default as ``changed_default(old, new)``, so
    that older runs keep their hashes and new ones do not take them. New keys are to be added to the
    file."""
    assert defaults() == yaml.safe_load((ROOT / "tests/study/hashed_defaults.yaml").read_text())


def test_what_is_left_out_can_be_said_and_empty_leaves_are_kept() -> None:
    assert left_out("trainer.steps") == 40
    assert left_out("judge.simulated.noise_sd") == 0.0
    assert left_out("judge.grading.options") == {}
    assert left_out("judge.grading.options.scale") == ABSENT
    assert left_out("nothing") == ABSENT
    assert flatten({"a": {"b": 1, "c": []}, "d": [2, {"e": None}]}) == {
        "a.b": 1,
        "a.c": [],
        "d.0": 2,
        "d.1.e": None,
    }
