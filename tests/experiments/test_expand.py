"""A sweep's cells are those of Hydra's own multirun, and its errors say what Hydra says."""

import random
import re
from collections import Counter
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from experiments.plan.expand import expand
from experiments.plan.preflight import check_once
from experiments.sweep import cells_of
from study.config.composer import NeedsHydra
from study.config.schema import register
from study.errors import UserError
from study.finding import stop_at_problem
from tests import composing

PRESETS = (
    "judge=sim-fair,sim-verbose", "judge=sim-dose", "judge=choice(sim-noisy,sim-strict)",
    "judge=glob(sim-f*)", "judge=glob(*,exclude=[s*,q*,o*,b*])", "judge=sort(sim-fair,sim-dose)",
    "judge='sim-fair'", "judge=nobody", "judge=3", "judge={name:mine}", "judge=null",
    "task=instruct-mini,workflow-mini", "task=mixed-mini", "policy=qwen3-8b",
    "reward=judge,rule", "reward=hybrid", "scaffold=ruscarl,none", "tracking=none",
    "trainer=verinstruct", "trainer=quickstart,mixed-quickstart", "executor=sim",
    "debug=tiny", "debug=null,tiny", "arm=knockout-absent,knockout-biased", "arm=intervene-kl",
    "profile=quickstart", "profile=small-real", "experiment=interventions", "experiment=knockout",
    "experiment=mixed-quickstart", "experiment=dose-response", "experiment=null",
    "variant=null", "variant=qwen3-8b-mixed", "held_out=none", "held_out=null",
    "~held_out", "~debug", "~arm", "~judge", "~judge=sim-verbose", "+debug=tiny",
    "+judge@second=sim-fair", "judge@second=sim-fair", "+judge=sim-fair", "++judge=sim-fair",
)  # fmt: skip
VALUES = (
    "seed=range(0,3)", "seed=0,5", "seed=choice(2,1)", "seed=sort(3,1,2,reverse=true)",
    "seed=shuffle(1,2,3)", "seed=shuffle(range(4))", "seed=interval(0,1)", "seed=x", "seed=null",
    "++seed=1,2", "+seed=1", "~seed", "~seed=4", "seed=1.5", "seed=int(2.0)", "seed=[1,2]",
    "trainer.learning_rate=1e-3,0.002", "trainer.learning_rate=range(0.001,0.003,0.001)",
    "trainer.steps=3", "trainer.nothing=3", "trainer={steps:4,group_size:2}", "+trainer.nothing=1",
    "study=a-b", "study='a,b'", "study=\"it's\"", "study=${judge.name}", "study=${judge.nothing}",
    "study=${seed}-${trainer.steps}", "study=s-${hydra:runtime.choices.judge}", "study=???",
    "study=\\${seed}", "study=${oc.env:NOBODY_SET_THIS,x}", "study=${hydra:job.num}",
    "arm=plain", "arm=null", "factors=[judge,seed]", "factors=[judge],[seed,judge]",
    "factors=[]", "factors.0=task", "shadow=[sim-fair]", "shadow=[sim-fair,sim-dose],[]",
    "judge.grading.options.clip=zero", "judge.grading.options={clip:none,deep:{a:[1,null]}}",
    "++judge.grading.options.clip=zero,none", "~judge.grading.options", "judge.simulated=null",
    "judge.simulated.doses={length:0.5}", "judge.simulated.doses.length=0,0.25,0.5",
    "+judge.simulated.doses.hedging=0.1", "++judge.simulated.doses.length=0.3",
    "~judge.simulated.doses", "judge.simulated.noise_sd=${trainer.beta}",
    "+judge.endpoint.extra_body.top_k=20", "judge.name=sim-fair", "judge.without=length,flattery",
    "correction.without=[length]", "policy.lora={r:4}", "policy.lora.r=4", "policy.lora=null",
    "policy.architecture={layers:2}", "policy.chat_template='{{ x }}'", "policy.warmup.steps=5,6",
    "task.options={}", "task.options.depth=3", "reward.weights={judge:1.0,rule:0.5}",
    "reward.domains={code:rule}", "cost.max_usd=1.0,null", "device=cpu", "plan=true",
    "task.path='a b/c=d.jsonl'", "task.path=null", "task.path=''", "sweep={workers:1}",
    "sweep.report=True,false", "tracking.uri=sqlite:///x.db", "nothing=1", "nothing",
    "=1", "+new=1",
    "hydra.job.env_set.X=1", "hydra.sweeper.max_batch_size=2",
    "+hydra.sweeper.params.seed='7,8'",
)  # fmt: skip
SHAPE = ["tracking=none", "judge=sim-fair", "seed=0"]
"""Before what is drawn, so that most command lines come to a few cells."""


def outcome(arguments: list[str], *flags: str) -> Any:
    """The cells of a command line, or the error; sweeps that are shuffled come out alike."""
    random.seed(5)
    try:
        cells = cells_of([*flags, *arguments])
        return [(cell.data, cell.config, cell.id, cell.folder) for cell in cells]
    except UserError as error:
        return str(error)
    except ValueError as error:  # of Hydra's, which is not in one paragraph
        return error


drawn = st.tuples(
    st.lists(st.sampled_from(PRESETS), max_size=2, unique=True),
    st.lists(st.sampled_from(VALUES), max_size=3, unique=True),
).map(lambda parts: [word for words in parts for word in words])


def agree(ours: Any, hydras: Any, typed: list[str]) -> bool:
    """Whether two outcomes of the same words are one; an error of Hydra's is quoted, or its cause
    told instead."""
    if not isinstance(hydras, ValueError):
        return ours == hydras
    blamed = isinstance(ours, str) and re.search(r"=(\S+) is not a preset\. ", ours)
    told = bool(blamed) and any(blamed[1] in word for word in typed)
    return isinstance(ours, str) and (str(hydras) in ours or told)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(["judge=nobody", "seed=range(0,3)", "nothing"])
@example(["~judge", "judge.simulated.doses.length=0,0.25,0.5"])
@example(["seed=x", "study=${judge.nothing}", "=1"])
@given(drawn)
def test_cells_are_those_of_hydras_multirun(arguments: list[str]) -> None:
    """Of several mistakes either may be told first: then it is told as where it stands alone."""
    typed = [*SHAPE, *arguments]
    ours, hydras = outcome(typed), outcome(typed, "--multirun")
    if not agree(ours, hydras, typed):
        assert isinstance(ours, str) and isinstance(hydras, str | ValueError)
        alone = (outcome([*SHAPE, word], "--multirun") for word in arguments)
        assert any(agree(ours, each, typed) for each in alone)


@pytest.mark.parametrize(
    ("arguments", "compositions"),
    [
        (["judge=sim-fair,sim-verbose,sim-dose", "seed=range(0,20)"], 1 + 3),
        (["judge=sim-fair", "seed=1,2,3", "trainer.learning_rate=1e-3,2e-3", "shadow=[]"], 1 + 1),
        (["judge=sim-fair", "seed=1", "judge.without=length,flattery"], 1 + 1),
    ],
)
def test_hydra_composes_once_per_choice_of_presets(monkeypatch, arguments, compositions) -> None:
    """And once for the whole command line, which says how it is swept."""
    composed = []
    compose = ConfigLoaderImpl.load_configuration
    monkeypatch.setattr(
        ConfigLoaderImpl,
        "load_configuration",
        lambda *given, **named: composed.append(given) or compose(*given, **named),
    )
    assert len(cells_of(arguments)) > 1
    assert len(composed) == compositions


def test_a_preset_is_read_from_its_file_once(monkeypatch) -> None:
    monkeypatch.setattr(composing, "COPIES", {})
    read: Counter[str] = Counter()
    load = ConfigRepository.load_config
    monkeypatch.setattr(
        ConfigRepository,
        "load_config",
        lambda self, config_path: read.update([config_path]) or load(self, config_path),
    )
    assert len(cells_of(["judge=sim-fair,sim-verbose", "seed=1"])) == 2
    assert {"judge/sim-fair", "judge/sim-verbose", "trainer/quickstart"} <= read.keys()
    assert set(read.values()) == {1}


@pytest.mark.parametrize(
    "typed",
    [
        "hydra/launcher=basic",
        "hydra.job.env_set.JUDGEDRIFT_STUDY=x",
        "study=s-${hydra:runtime.choices.judge}",
        "--multirun",
    ],
)
def test_what_hydra_alone_can_know_is_left_to_hydra(typed) -> None:
    register()
    with pytest.raises(NeedsHydra):
        expand([*SHAPE, typed], lambda _, config: OmegaConf.to_container(config, resolve=True))


@pytest.mark.parametrize(
    ("typed", "words", "instead"),
    [
        ("judge=3", "judge=3 is not a preset.", "conf/judge/NAME.yaml"),
        ("+new=1", "new is not a setting of a study", "--cfg job"),
    ],
)
def test_what_hydra_answers_with_a_traceback_is_one_paragraph(typed, words, instead) -> None:
    with pytest.raises(UserError) as refused:
        cells_of([typed])
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert instead in str(refused.value)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (
            ["experiment=mixed-quickstart", "judge=sim-fair", "seed=0"],
            r"arm = fair \| lenient-qa \| strict-code, which does not change the training",
        ),
        (["judge=sim-fair", "seed=0", "cost.max_usd=1.0,2.0"], r"cost.max_usd = 1.0 \| 2.0"),
    ],
)
def test_combinations_that_are_one_cell_are_refused(typed, told) -> None:
    """Else the last label would stand in the report for what another arm trained."""
    with pytest.raises(UserError, match=told):
        stop_at_problem(check_once(cells_of(typed)))
