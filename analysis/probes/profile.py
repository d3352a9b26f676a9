"""A judge's profile from a folder of probes: what it pays for that the truth does not.

``profile`` reads what ``python -m experiments.probe`` wrote and gives tables; nothing is asked of
any judge here. docs/probes.md says how each number is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.probes import judges, levels
from analysis.probes.effects import MARGIN, effects, explained, pairs, slots
from analysis.probes.levels import THRESHOLD
from judges.probes.asking import PROFILE
from judges.probes.sets import is_file
from judges.simulated.bias import Bias
from study.config.schema import Simulated, freeze
from study.errors import UserError
from study.system.files import first_line, read_json

PROBES, VERDICTS, MANIFEST = "probes.parquet", "verdicts.parquet", "manifest.json"


@dataclass(frozen=True)
class Evidence:
    """What a folder holds."""

    name: str
    probes: pd.DataFrame
    verdicts: pd.DataFrame
    manifest: dict[str, Any]

    @property
    def judges(self) -> list[str]:
        """The probed judges by name, as they were typed."""
        return self.manifest["command"]["judges"]


@dataclass(frozen=True)
class Profile:
    """Every table of a profile; a judge without the data for one has no row in it."""

    evidence: Evidence
    scores: pd.DataFrame
    pairs: pd.DataFrame
    effects: pd.DataFrame
    explained: pd.DataFrame
    """`analysis.probes.effects.explained`: biases that another behaviour explains."""
    rates: pd.DataFrame
    """Over contents as they are."""
    all_rates: pd.DataFrame
    """Over all single texts: edits and texts without content too."""
    scale: pd.DataFrame
    hacks: pd.DataFrame
    length: pd.DataFrame
    repeats: pd.DataFrame
    positions: pd.DataFrame
    reasons: pd.DataFrame
    failures: pd.DataFrame
    agreement: pd.DataFrame
    preference: pd.DataFrame
    slots: pd.DataFrame
    """Of a set that is a file of slots; no row of any other."""
    no_preference: list[str]
    """Why nothing is said of some judge's taste for its own texts."""
    margin: float
    threshold: float


def read(folder: Path | str) -> Evidence:
    """The records of a folder. Raises UserError: it is none of ours."""
    folder = Path(folder)
    for name in (PROBES, VERDICTS, MANIFEST):
        if not (folder / name).is_file():
            raise UserError(
                f"{folder} holds no {name}, so it is not a folder of probes. Make one, for example:"
                " python -m experiments.probe judge=sim-verbose,sim-fair"
            )
    remedy = "Rerun the experiments.probe command: its verdicts are in the store"
    try:
        probes, verdicts = (pd.read_parquet(folder / name) for name in (PROBES, VERDICTS))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} holds a damaged {PROBES} or {VERDICTS} ({first_line(error)}). {remedy}."
        ) from error
    manifest = read_json(folder / MANIFEST, remedy)
    if lacking := [name for name in ("command", "judges") if name not in manifest]:
        raise UserError(f"{folder / MANIFEST} lacks {', '.join(lacking)}. {remedy}.")
    if "probe_id" not in verdicts or not {"probe_id", "prompt_id"} <= set(probes):
        raise UserError(f"{folder} holds a {PROBES} or {VERDICTS} with other columns. {remedy}.")
    probes = probes.rename(columns=lambda name: name.removeprefix("component/"))
    verdicts["prompt_id"] = verdicts["probe_id"].map(probes.set_index("probe_id")["prompt_id"])
    return Evidence(folder.name, probes, verdicts, manifest)


def scores(evidence: Evidence) -> pd.DataFrame:
    """One row per judge and probe: the mean over its scored votes, NaN where there is none.

    ``pairwise`` judges score an edited text by its mean win over both orders of a pair, and have
    a score only where both orders were obtained. ``planted`` is what a simulated judge's doses
    add to the text, in score units and before clipping; NaN for pairwise and for real judges.
    """
    parts = []
    probes = evidence.probes.rename(columns={"length": "words"})
    first = evidence.verdicts[evidence.verdicts["setting"] == PROFILE]
    for judge in evidence.judges:
        votes = first[first["judge"] == judge]
        pairwise = bool(votes["order"].notna().any())
        if pairwise:
            wins = votes["score"].where(votes["order"] != 0, 1 - votes["score"])
            orders = wins.groupby([votes["probe_id"], votes["sample_index"]])
            mean = orders.mean().where(orders.count() == 2).groupby(level="probe_id").mean()
            planted = math.nan
        else:
            mean = votes.groupby("probe_id")["score"].mean()
            simulated = evidence.manifest["judges"][judge].get("simulated")
            planted = _planted(simulated, probes["text"])
        score = probes["probe_id"].map(mean).astype(float)
        parts.append(probes.assign(judge=judge, pairwise=pairwise, score=score, planted=planted))
    return pd.concat(parts, ignore_index=True)


def _planted(settings: dict[str, Any] | None, texts: pd.Series) -> float | list[float]:
    """Sum of dose x standardised feature of each text; NaN for a real judge."""
    if settings is None:
        return math.nan
    simulated = freeze(Simulated, settings)
    bias = Bias(simulated)
    return [
        math.fsum(dose * z[name] for name, dose in simulated.doses.items())
        for z in map(bias.standardised, texts)
    ]


def profile(folder: Path | str, margin: float = MARGIN, threshold: float = THRESHOLD) -> Profile:
    """All tables of a folder. Raises UserError: not a folder of probes, or a margin that is not
    above 0.

    Args:
        margin: score units within which a bias counts as none; fixed before looking.
        threshold: the score from which a text is called good.
    """
    if not margin > 0:
        raise UserError(f"margin={margin} is not above 0. Give score units, such as 0.05.")
    evidence = read(folder)
    table = scores(evidence)
    scale = levels.scale_use(table)
    spread = dict(zip(scale["judge"], scale["sd"], strict=True)) if len(scale) else {}
    paired = pairs(table)
    words = evidence.probes.set_index("probe_id")["length"]
    preference, no_preference = judges.own_texts(table, evidence.manifest)
    filled = is_file(str(evidence.manifest["command"].get("set", "")))
    biases = effects(paired, spread, margin)
    reasons, failed = levels.failures(evidence.verdicts, words)
    return Profile(
        evidence=evidence,
        scores=table,
        pairs=paired,
        effects=biases,
        explained=explained(table, paired, biases, margin),
        rates=levels.rates(table[table["bias"] == "content"], threshold),
        all_rates=levels.rates(table, threshold),
        scale=scale,
        hacks=levels.hacks(table, threshold),
        length=levels.length_preference(table, paired),
        repeats=levels.repeats(evidence.verdicts, threshold),
        positions=levels.positions(evidence.verdicts),
        reasons=reasons,
        failures=failed,
        agreement=judges.agreement(table),
        preference=preference,
        slots=slots(table if filled else table[:0], paired),
        no_preference=no_preference,
        margin=margin,
        threshold=threshold,
    )
