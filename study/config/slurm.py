"""Settings of a sweep's jobs on a Slurm cluster, besides the needs of each cell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from study.config import bounds


@dataclass(frozen=True)
class Slurm:
    """The jobs of ``engine=slurm``: where they run, for how long, after which lines of shell."""

    cluster: str = bounds.choice("slurm", "slurm", "local")
    """local runs the jobs on this machine, by the same way but without Slurm."""
    partition: str = ""
    """Partition of the jobs; empty takes the cluster's default."""
    account: str = ""
    """Account that the jobs are charged to."""
    constraint: str = ""
    """Features that a node must have."""
    time_min: int = bounds.number(1440, low=1, high=1_000_000, unit="minutes")
    """Minutes of one job; a cell that needs more goes on from its checkpoint in the next."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell before each job, such as ``module load cuda``."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further settings of submitit's executor, as it spells them: qos, nodelist, mail_user."""
