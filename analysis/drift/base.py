"""Which arm of a study the others are compared with: one for every table of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from analysis.drift.estimate import base_arm
from study.config.identity import left_out
from study.config.marks import under

BETA = "trainer.beta"
INTERVENTIONS = ("correction", "shadow_judges", BETA)
"""What an intervention on a judge may be a setting of."""


def base_of(table: pd.DataFrame, runs: Iterable[tuple[str, int, Mapping[str, Any]]]) -> str | None:
    """The arm that a report compares the others with: `drift.estimate.base_arm` of the ``table``,
    or the plain arm where that one is it or intervenes in it. ``runs``: arm, seed and identity of
    each."""
    base = base_arm(table)
    settings: dict[str, dict[str, Any]] = {}
    for arm, _, identity in sorted(runs, key=lambda run: run[:2]):
        settings.setdefault(arm, settings_of(identity))
    plain, compared = plain_arm(settings)
    return plain if compared and base in (plain, *compared) else base


def settings_of(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What makes the runs of an arm alike: all but their seed."""
    return {key: value for key, value in identity.items() if key != "seed"}


def plain_arm(settings: Mapping[str, dict[str, Any]]) -> tuple[str, list[str]]:
    """The arm without a correction that most others differ from in interventions alone, and these
    others: none has a smaller KL penalty, and each has a correction or a larger one. Panels bring
    shadow judges with them, and those alone are no intervention."""
    rest = {
        arm: {k: v for k, v in s.items() if not under(k, INTERVENTIONS)}
        for arm, s in settings.items()
    }
    betas = {arm: s.get(BETA, left_out(BETA)) for arm, s in settings.items()}
    corrected = {arm for arm, s in settings.items() if any(under(k, ["correction"]) for k in s)}
    compared = {
        plain: [
            arm
            for arm in settings
            if rest[arm] == rest[plain]
            and betas[arm] >= betas[plain]
            and (arm in corrected or betas[arm] > betas[plain])
        ]
        for plain in settings
        if plain not in corrected
    }
    plain = max(compared, key=lambda arm: len(compared[arm]), default="")
    return plain, compared.get(plain, [])
