"""Train the runs of a Latin hypercube, from which a forecast is fitted.

    python -m experiments.hypercube study=forecast-fit       # 72 arms, 144 runs
    judgedrift sweep experiment=forecast-build study=forecast-fit 'factors=[judge,trainer,seed]'
    python -m experiments.hypercube study=forecast-unseen    # 24 other arms, 48 runs
    judgedrift sweep experiment=base
    judgedrift forecast study=forecast-fit base=base-tiny-instruct-mini

The arms differ in the simulated judge (checks taken for their opposite, noise, leniency, and none
to three biases of either sign) and in the training (steps, learning rate, ``beta``,
``scale_rewards``). Each range is cut into as many equal parts as there are draws, and each part is
drawn from once (McKay, Beckman and Conover 1979). Each training is one ``judgedrift sweep`` with
judges of its own; rerun the command to resume. ``forecast-unseen`` is drawn alike and is in no fit.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from study.cli import command, option, preset
from study.config.bounds import Choice
from study.features import FEATURES
from study.system.files import say

BIASES = tuple(name for name in FEATURES if name != "keyword")
NUMBERS_OF_BIASES = (0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3)
"""Equally likely."""
NEGATIVE = 1 / 4
"""Share of the biases that pay for less of a behaviour."""
DOSES = (0.04, 0.2)
"""Score per SD, of either sign."""
CHECKS = {"tpr": (0.7, 1.0), "fpr": (0.0, 0.25), "noise_sd": (0.0, 0.25), "leniency": (-0.2, 0.2)}
STEPS = (10, 80)
"""Drawn evenly on a logarithmic scale."""
TRAININGS: Mapping[str, Sequence[float | str]] = {
    "learning_rate": (0.0004, 0.0006, 0.001),
    "beta": (0.0, 0.0, 0.05, 0.2),
    "scale_rewards": ("group", "group", "batch", "none"),
}


@dataclass(frozen=True)
class Design:
    """How many trainings with how many judges each, from which seed they are drawn, and the seeds
    of the runs."""

    drawn_from: int
    trainings: int
    judges: int
    seeds: tuple[int, ...]


DESIGNS = {
    "forecast-fit": Design(drawn_from=0, trainings=18, judges=4, seeds=(30, 31)),
    "forecast-unseen": Design(drawn_from=1, trainings=8, judges=3, seeds=(40, 41)),
}


@dataclass(frozen=True)
class Options:
    """Which of the studies, of which policy, and where."""

    study: str = option("study to train", "forecast-fit", Choice(tuple(DESIGNS)))
    policy: str = preset("policy", "tiny")
    runs_dir: str = option("folder that holds the studies", "runs")
    plan: bool = option("print the sweeps and train nothing", False)


@dataclass(frozen=True)
class Training:
    """Settings of one training, and those of each judge that it is given."""

    trainer: Mapping[str, float | str]
    judges: tuple[Mapping[str, object], ...]

    def words(self) -> list[str]:
        """As a sweep takes them."""
        judges = ",".join(json.dumps(judge).replace('"', "") for judge in self.judges)
        settings = [f"trainer.{name}={value}" for name, value in self.trainer.items()]
        return [*settings, f"+judge.simulated={judges.replace(' ', '')}"]


def drawn(design: Design) -> list[Training]:
    """The trainings of a design; the same whenever it is drawn."""
    rng = np.random.default_rng(design.drawn_from)
    arms = design.trainings * design.judges
    steps = np.exp(_between(np.log(STEPS[0]), np.log(STEPS[1]), _latin(rng, design.trainings)))
    of_trainings = {
        name: [values[int(share * len(values))] for share in _latin(rng, design.trainings)]
        for name, values in TRAININGS.items()
    }
    checks = {name: _between(*ends, _latin(rng, arms)) for name, ends in CHECKS.items()}
    counts = [NUMBERS_OF_BIASES[int(share * len(NUMBERS_OF_BIASES))] for share in _latin(rng, arms)]
    sizes = iter(_between(*DOSES, _latin(rng, sum(counts))))
    is_negative = iter(_latin(rng, sum(counts)) < NEGATIVE)
    names = _dealt(rng)
    judges = []
    for arm, count in enumerate(counts):
        doses: dict[str, float] = {}
        while len(doses) < count:
            name = next(names)
            if name not in doses:  # where two rounds meet
                doses[name] = round(float(next(sizes)) * (-1 if next(is_negative) else 1), 3)
        judges.append({**{k: round(float(v[arm]), 3) for k, v in checks.items()}, "doses": doses})
    return [
        Training(
            {"steps": round(float(steps[at]))} | {k: v[at] for k, v in of_trainings.items()},
            tuple(judges[at * design.judges : (at + 1) * design.judges]),
        )
        for at in range(design.trainings)
    ]


def _latin(rng: np.random.Generator, count: int) -> np.ndarray:
    """One draw from each of ``count`` equal parts of [0, 1), in any order."""
    return (rng.permutation(count) + rng.random(count)) / max(count, 1)


def _between(low: float, high: float, share: np.ndarray) -> np.ndarray:
    return low + (high - low) * share


def _dealt(rng: np.random.Generator) -> Iterator[str]:
    """Behaviours without end, all once in every round."""
    while True:
        yield from (BIASES[place] for place in rng.permutation(len(BIASES)))


@command("experiments.hypercube study=forecast-fit", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 all trained, else that of the first sweep which failed."""
    design = DESIGNS[options.study]
    seeds = ",".join(map(str, design.seeds))
    for training in drawn(design):
        words = [
            *("experiment=forecast-fit", f"study={options.study}", f"policy={options.policy}"),
            *(*training.words(), f"seed={seeds}", f"runs_dir={options.runs_dir}"),
        ]
        say(f"judgedrift sweep {shlex.join(words)}")
        if options.plan:
            continue
        sweep = [sys.executable, "-m", "experiments.sweep", *words, "sweep.report=false"]
        if code := subprocess.run(sweep, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
