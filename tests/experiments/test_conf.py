"""Every YAML in conf/ composes against the schemas."""

import dataclasses
import itertools
import random
from typing import Any

import pytest
from hydra import compose, initialize
from omegaconf import OmegaConf

from experiments.plan.preflight import undeclared
from experiments.sweep import cells_of
from judges.ask.identity import build_grading
from study.config.identity import identifying
from study.config.schema import Grading, Lora, Study, freeze, register
from study.rewards.checks import for_judge
from study.rows import Criterion, Rule, make_row
from tests.conftest import ROOT
from tests.tiers import some

GROUPS = sorted(path.name for path in (ROOT / "conf").iterdir() if path.is_dir())
GROUPS.remove("accelerate")  # its files are accelerate's own


def presets(group: str) -> list[str]:
    return [f"{group}={path.stem}" for path in sorted((ROOT / "conf" / group).glob("*.yaml"))]


APART = ("data", "experiment")
"""No group of a study (tests/experiments/datasets), and one whose presets choose of others."""
TOGETHER = [
    [preset for preset in row if preset]
    for row in itertools.zip_longest(*(presets(group) for group in GROUPS if group not in APART))
] + [[experiment] for experiment in presets("experiment")]
"""Each preset once, with one of every other group."""
FEW = [chosen for chosen in TOGETHER if len(chosen) < 3]
"""Arms, judges and experiments that are chosen by themselves or in twos."""
DRAWN = random.Random(0).sample(FEW, 8)
"""Those that the standard tier composes: a new one in each run would fail without a change of it.
Pages type most experiments, with their arms, and `test_docs_commands.py` composes these."""


ARMS = ["rl", "ruscarl", "verif", "ruscarl-verif", "verif-llm"]
"""Of the study of rewards."""


def row(chosen: list[str]) -> Any:
    long = chosen in FEW and chosen not in DRAWN
    return pytest.param(chosen, id=chosen[0], marks=[pytest.mark.long] * long)


def data_of(*words: str) -> dict[str, Any]:
    """The settings of a study with these arguments."""
    register()
    with initialize(version_base="1.3", config_path="../../conf"):
        config = compose("sweep", overrides=list(words))
    return OmegaConf.to_container(config, resolve=True)


def composed(*words: str) -> Study:
    return freeze(Study, data_of(*words))


@pytest.mark.parametrize("chosen", [row(chosen) for chosen in TOGETHER])
def test_presets_compose(chosen: list[str]) -> None:
    study = composed(*chosen)
    for group, name in (preset.split("=") for preset in chosen):
        if group in ("judge", "policy", "task"):
            assert getattr(study, group).name == name


def test_every_preset_says_how_to_run_it_and_each_promised_group_exists():
    for path in (ROOT / "conf").rglob("*.yaml"):
        head = path.read_text().splitlines()[:2]
        assert any(line.startswith(("# judgedrift ", "# python -m ")) for line in head), path
    promised = {"judge", "policy", "task", "reward", "scaffold", "trainer", "tracking"}
    assert promised | {"experiment", "debug"} <= set(GROUPS)


@pytest.mark.parametrize(
    "profile", ["full", "quickstart", pytest.param("small-real", marks=pytest.mark.long)]
)
def test_arms_differ_in_reward_scaffold_and_grading_alone(profile):
    """What the study compares, and nothing beside it: sampling, updates, template, rows."""
    words = ("experiment=verinstruct-arms", f"profile={profile}")
    flats = [identifying(data_of(*words, f"arm={arm}")) for arm in ARMS]
    assert undeclared(flats, ("reward", "scaffold", "judge.grading")) == {}
    assert len({flat.get("reward.name") for flat in flats}) == 2
    assert [flat.get("scaffold.name") for flat in flats] == [None, "ruscarl"] * 2 + [None]


def test_the_judge_alone_is_asked_what_rules_would_check():
    """arm=verif-llm leaves no rule to be run, and its judge sees the rule's words; otherwise it is
    arm=verif."""
    words = ("experiment=verinstruct-arms", "profile=full")
    by_rule, alone = (composed(*words, f"arm={arm}") for arm in ("verif", "verif-llm"))
    assert dataclasses.replace(alone.reward, rules="run") == by_rule.reward
    assert (alone.judge, alone.scaffold) == (by_rule.judge, by_rule.scaffold)
    rule = Rule("0:0", "Sentence", "Ends in a full stop.", "def check_following(i, r): return 1")
    turn = {"role": "user", "content": "Say hi."}
    row = make_row((turn,), (Criterion("Is polite."),), rules=(rule,))
    asked = [for_judge(row, study.reward.rules) for study in (by_rule, alone)]
    grading = build_grading(alone.judge)
    shown = [grading.messages(each, "hi")[0]["content"] for each in asked]
    assert ["- Ends in a full stop." in text for text in shown] == [False, True]
    assert all("- Is polite.\n" in text for text in shown)


@pytest.mark.parametrize("name", ["judge-families", "judge-families-small"])
def test_judges_of_all_families_differ_in_judge_and_seed_alone(name):
    """What the command fans out: three families and six judges, or eight askings of one."""
    flats = [identifying(cell.data) for cell in cells_of([f"experiment={name}"])]
    assert undeclared(flats, ("judge", "seed")) == {}
    asked = ("judge.name", "judge.grading.name", "judge.grading.options.prompt")
    judges = {tuple(map(flat.get, asked)) for flat in flats}
    families = {flat["judge.family"] for flat in flats}
    if name == "judge-families":
        assert len(flats) == 18 and families == {"qwen3", "gpt-oss", "qwq"}
        assert len(judges) == 6 and {flat.get("seed", 0) for flat in flats} == {0, 1, 2}
    else:
        assert len(flats) == len(judges) == 8 and families == {"smollm2"}


def crossed(ones: list[str], others: list[str]) -> list[Any]:
    """Each with each; in the standard tier everyone has a pair."""
    pairs = [(one, other) for one in ones for other in others]
    most = max(len(ones), len(others))
    kept = {(ones[k % len(ones)], others[k % len(others)]) for k in range(most)}
    return some(pairs, standard=kept)


@pytest.mark.parametrize(
    ("policy", "judge"),
    crossed(["qwen25-7b", "qwen3-8b"], ["qwen3-32b", "gpt-oss-120b", "qwq-plus"]),
)
def test_the_mixture_at_full_size(policy, judge):
    config = composed("experiment=mixed-full", f"policy={policy}", f"judge={judge}")
    assert (config.task.name, config.judge.name, config.policy.name) == ("mixed", judge, policy)
    assert config.policy.lora == Lora(r=64, alpha=64)
    asked = {"prompt": "equivalence", "reference": "shown"}
    assert config.judge.grading == Grading("binary", asked), "whatever the judge's own preset asks"
    trainer = config.trainer
    assert (trainer.prompts_per_step, trainer.group_size, trainer.steps) == (4, 6, 500)
    assert trainer.eval_steps and trainer.keep_steps
    mixed = composed("experiment=mixed-full", f"policy={policy}", "trainer=mixed").trainer
    assert (mixed.prompts_per_step, mixed.group_size) == (8, 8)


def test_arms_of_a_mixture_differ_in_judge_and_reward_and_a_policy_by_its_mixture():
    arms = ("fair", "lenient-qa", "strict-code", "rule")
    configs = [data_of("experiment=mixed-quickstart", f"arm=mixed-{arm}") for arm in arms]
    assert [config["arm"] for config in configs] == ["fair", "lenient-qa", "strict-code", "rule"]
    assert undeclared([identifying(config) for config in configs], ("judge", "reward")) == {}
    assert [config["reward"]["name"] for config in configs] == ["judge"] * 3 + ["rule"]
    biased = [config["judge"]["simulated"]["domains"] for config in configs]
    assert (biased[1]["qa"]["fpr"], biased[2]["code"]["tpr"]) == (0.7, 0.3)
    assert biased[0] == biased[3]
    # LoRA 64/64 there, whoever asks; what another task trains keeps its hash.
    assert composed("task=mixed", "policy=qwen3-8b").policy.lora == Lora(r=64, alpha=64)
    for words in (["experiment=verinstruct-rl"], ["task=verinstruct"], []):
        assert composed(*words, "policy=qwen3-8b").policy.lora == Lora(r=64, alpha=128)
    typed = composed("task=mixed", "policy=qwen3-8b", "policy.lora.alpha=16")
    assert typed.policy.lora == Lora(r=64, alpha=16)
    tiny = composed("task=mixed").policy
    assert (tiny.name, tiny.lora) == ("tiny", Lora(r=16, alpha=32))
