"""Judges by family, size and prompt: planted biases come out, and simulated judges stay out."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from analysis.display.figures import looks
from analysis.families import estimate
from analysis.families.display import behaviours_table, followed, judges_table
from analysis.families.estimate import (
    Families,
    is_simulated,
    judge_ids,
    key_of,
    probed_biases,
)
from analysis.frozen.effects import effects_of
from analysis.records.runs import Run
from analysis.report.evidence import gather
from analysis.report.sections import SECTIONS, families
from experiments import probe
from judges.ask.identity import judge_id
from study.config.compose import load_judge
from study.features import FEATURES
from tests.analysis.conftest import config_of, write_study
from tests.conftest import Page

SPREAD = dict.fromkeys(FEATURES[:5], 2.0)
BIAS = {"a": (0.02, -0.01, 0.0, 0.01, 0.0), "b": (-0.02, 0.02, 0.01, 0.0, 0.005)}
"""Score units per unit of each of the five behaviours, by family."""


def planted(
    family: str, seed: int, prompt: str = "strict", times: float = 1.0, **config: object
) -> Run:
    """Judge - truth is ``times`` the family's bias, and every behaviour drifts by 50 times it."""
    rng = np.random.default_rng([seed, ord(family), *prompt.encode()])
    step_P = np.repeat(np.arange(1, 11), 6)
    bias = times * np.array(BIAS[family])
    drift = 50.0 * bias * (step_P[:, None, None] - 1) / 9
    features = np.zeros((60, 8, len(FEATURES)))
    features[..., :5] = rng.normal(10, 2, size=(60, 8, 5)) + drift
    truth = rng.uniform(0.3, 0.7, size=(60, 8))
    judge = truth + features[..., :5] @ bias + rng.normal(0, 0.02, size=truth.shape)
    settings = {"judge.family": family, "judge.size": "8B", "judge.grading.name": "likert",
                "judge.grading.options.prompt": prompt, **config}  # fmt: skip
    return Run(
        cell=f"{family}-{prompt}-s{seed}", arm=family, seed=seed, done=True, step_P=step_P,
        reward=judge, advantage=judge - judge.mean(axis=1, keepdims=True), truth=truth,
        judge=judge, features=features, names=FEATURES, config=settings,
    )  # fmt: skip


def of_runs(runs: Sequence[Run], spread: Mapping[str, float]) -> Families | None:
    """The families of a study, by its own effects."""
    return estimate.of_runs(runs, spread, effects_of(runs, None))


def test_planted_biases_and_what_they_did_come_out():
    told = of_runs([planted(family, seed) for family in "ab" for seed in range(4)], SPREAD)
    assert told.measured == "judge - truth" and told.simulated == 0
    assert [(one.family, one.size, one.prompt, one.runs) for one in told.judges] == [
        ("a", "8B", "likert strict", 4),
        ("b", "8B", "likert strict", 4),
    ]
    for judge in told.judges:
        for planted_bias, behaviour in zip(BIAS[judge.family], judge.behaviours, strict=True):
            assert behaviour.bias.low <= 2 * planted_bias <= behaviour.bias.high
            assert behaviour.shift.value == pytest.approx(50 * planted_bias / 2, abs=0.3)
            assert behaviour.bias.n == behaviour.shift.n == 4 and behaviour.probed is None
        assert judge.followed.value > 0.4


def test_a_judge_has_a_mark_for_each_behaviour_in_the_look_of_its_arm():
    told = of_runs([planted(family, seed) for family in "ab" for seed in range(4)], SPREAD)
    drawn = followed(told)
    (axes,) = drawn.axes
    marks = {
        (float(line.get_xdata()[0]), float(line.get_ydata()[0])): line.get_color()
        for line in axes.lines
        if line.get_marker() not in ("", "None") and len(line.get_xdata()) == 1
    }
    for judge in told.judges:
        for each in judge.behaviours:
            colour = marks.pop((each.bias.value, each.shift.value))
            assert colour == looks("ab")[judge.arm]["color"]
    assert not marks
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert names == ["a, 8B, likert strict", "b, 8B, likert strict"]
    assert followed(of_runs([planted(family, 0) for family in "ab"], {})) is None


def test_few_judges_have_no_slope_and_no_behaviour_makes_no_row():
    few = of_runs([planted(family, 0) for family in "ab"], SPREAD)
    assert all(math.isnan(one.bias.low) for judge in few.judges for one in judge.behaviours)
    assert all(math.isnan(slope.value) for slope in few.slopes.values())
    doses = (("p1", 0.2), ("p2", 0.5), ("p3", 1.0), ("p4", 1.5), ("p5", 2.0))
    runs = [planted(f, seed, *dose) for f in "ab" for seed in range(2) for dose in doses]
    told = of_runs(runs, SPREAD)
    assert len(told.judges) == 10
    slope = told.slopes["length"]
    assert slope.n == 10 and slope.low < 50 / 4 < slope.high and slope.low > 0
    runs = [planted(family, seed) for family in "ab" for seed in range(2)]
    told, without = of_runs(runs, SPREAD), of_runs(runs, {})
    ends = [(each.followed.low, each.followed.high) for each in told.judges]
    assert ends[0] == (-1.0, 1.0), "two runs that differ tell nothing"
    assert all(math.isnan(each.followed.value) for each in without.judges)
    assert behaviours_table(without).empty and len(judges_table(without)) == 2


def test_only_natural_judges_that_differ_are_told():
    alike = [planted("a", seed) for seed in range(3)]
    assert of_runs(alike, SPREAD) is None
    simulated = planted("b", 0, **{"judge.simulated.noise_sd": 0.1})
    real = planted("a", 0, **{"judge.simulated": None})
    assert is_simulated(simulated) and not is_simulated(real)
    assert of_runs([*alike, simulated], SPREAD) is None
    other = planted("a", 9, prompt="/some/where/mine.txt")
    told = of_runs([*alike, simulated, other], SPREAD)
    assert told.simulated == 1 and key_of(other)[2] == "likert mine"


def test_without_truth_what_the_judge_pays_is_measured():
    runs = [planted(family, seed) for family in "ab" for seed in range(2)]
    blind = [Run(**{**vars(run), "truth": np.full_like(run.truth, np.nan)}) for run in runs]
    told = of_runs(blind, SPREAD)
    assert told.measured == "the judge's score"
    assert told.judges[0].behaviours[0].bias.value == pytest.approx(0.04, abs=0.01)
    assert math.isnan(told.judges[0].truth.value)


def natural_study(folder: Path, **kinds: dict[str, object]) -> Path:
    """A written study whose judges are real ones of these families, sizes and prompts."""
    write_study(folder, judges=tuple(kinds), seeds=2, steps=2)
    for path in folder.glob("*/config.yaml"):
        with config_of(path.parent) as config:
            config["judge"] |= {"simulated": None, **kinds[config["judge"]["name"]]}
    return folder


KINDS = {"one": {"family": "qwen3", "size": "8B"}, "two": {"family": "gpt-oss", "size": "20B"}}


@pytest.mark.usefixtures("unrendered")
def test_the_report_has_the_section_where_judges_differ_and_only_there(tmp_path, evidence):
    shown = families(gather(natural_study(tmp_path / "families", **KINDS)))
    text = " ".join(Page("".join(shown)).text.split())
    assert families in SECTIONS
    for said in ("qwen3", "gpt-oss", "20B", "likert default", "judge - truth", "rank correlation"):
        assert said in text
    assert "bias by probe" not in text and " nan" not in text.lower()
    same = gather(natural_study(tmp_path / "alike", one=KINDS["one"], two=KINDS["one"]))
    assert same.families is None and families(same) == []
    assert families(evidence) == []


@pytest.mark.usefixtures("unrendered")
def test_a_kept_probe_of_the_same_judge_stands_beside(tmp_path):
    """The probe of a judge that pays for words says so, per word, and is found by judge_id."""
    words = ["judge=sim-verbose", "n=24", "repeats=0", "variants=yverbose,hedged"]
    words += [f"runs_dir={tmp_path}", "judge.simulated.noise_sd=0"]
    done = probe.run(probe.main.read(words))
    manifest = json.loads((done.folder / "manifest.json").read_text())
    biases = probed_biases(tmp_path / "probes")
    (name,) = biases
    assert name == manifest["judges"]["sim-verbose"]["judge_id"]
    assert name == judge_id(load_judge("sim-verbose", "judge.simulated.noise_sd=0"))
    length = biases[name]["length"]
    assert length.low < length.value < length.high and length.value > 0.005
    study = natural_study(tmp_path / "beside", **KINDS)
    cells = [path.parent.name for path in sorted(study.glob("*/config.yaml"))]
    ids = judge_ids(study, cells)
    assert len(set(ids.values())) == 2 and set(ids) == set(cells)
    manifest["judges"]["sim-verbose"]["judge_id"] = ids[cells[0]]
    (done.folder / "manifest.json").write_text(json.dumps(manifest))
    evidence = gather(study)
    one, two = evidence.families.judges
    of_length = {each.name: each.probed for each in one.behaviours}["length"]
    assert of_length.value == pytest.approx(length.value * evidence.spread["length"])
    assert all(each.probed is None for each in two.behaviours)
    assert "bias by probe" in " ".join(families(evidence))
    del manifest["judges"]["sim-verbose"]["judge_id"]
    (done.folder / "manifest.json").write_text(json.dumps(manifest))
    assert probed_biases(tmp_path / "probes") == {}
    (done.folder / "probes.parquet").write_bytes(b"damaged")
    assert probed_biases(tmp_path / "probes") == {}
