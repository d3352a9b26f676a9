"""What submits jobs to Slurm, made of the settings of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.slurm import jobs as queue
from study.config.schema import Study
from study.errors import UserError


def executor_of(config: Study, folder: str | Path) -> Any:
    """What submits jobs by the settings of a sweep; their files are in ``folder``.
    Raises UserError: ``sweep.slurm.more`` has a setting that submitit does not take."""
    import submitit

    sweep, slurm = config.sweep, config.sweep.slurm
    executor = submitit.AutoExecutor(folder, cluster=slurm.cluster)
    gpus = int(sweep.gpus_per_cell)
    if slurm.cluster == "slurm" and not gpus and config.device != "cpu":
        gpus = int(queue.has_gpus(slurm.partition))
    options = {
        "partition": slurm.partition,
        "account": slurm.account,
        "constraint": slurm.constraint,
        "setup": slurm.setup,
        "array_parallelism": sweep.workers,
    }
    slurm_settings = {key: value for key, value in options.items() if value} | slurm.more
    settings: dict[str, Any] = {
        "name": f"judgedrift-{config.study}",
        "timeout_min": slurm.time_min,
        "cpus_per_task": sweep.cpus_per_cell or sweep.threads or 1,
        "gpus_per_node": gpus or None,
        "mem_gb": sweep.memory_per_cell_gb or None,
        "slurm_array_parallelism": queue.MOST,
    }
    try:
        executor.update_parameters(
            **settings | {f"slurm_{key}": value for key, value in slurm_settings.items()}
        )
    except (ValueError, TypeError, NameError) as error:
        why = " ".join(str(error).split()).partition(" Known executors")[0].replace("slurm_", "")
        raise UserError(
            f"sweep.slurm.more={slurm.more} is not legal for submitit: {why[:900]}. Type one of"
            " its settings, for example: sweep.slurm.more.qos=NAME"
        ) from error
    return executor
