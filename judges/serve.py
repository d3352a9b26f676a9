"""Serves a simulated judge over a real socket: ``python -m judges.serve judge=sim-verbose``.

Any OpenAI client can ask it, so what a study does with it is what it would do with a real judge.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.config import Judge, Task, freeze
from experiments.errors import UserError

CONF = Path(__file__).resolve().parent.parent / "conf"
USAGE = (
    "python -m judges.serve judge=NAME [task=instruct-mini] [host=127.0.0.1] [port=8100]"
    " [judge.KEY=VALUE ...] [task.KEY=VALUE ...]"
)


@dataclass(frozen=True)
class Command:
    """The command line, read."""

    judge: str
    task: str = "instruct-mini"
    host: str = "127.0.0.1"
    port: int = 8100
    overrides: list[str] = field(default_factory=list)
    """Further settings of the judge and the task, as Hydra takes them."""


def read_command(arguments: Sequence[str]) -> Command:
    """Read ``key=value`` arguments.

    Raises:
        UserError: something else than key=value, an unknown key, a bad port, or no judge.
    """
    values: dict[str, str] = {}
    overrides = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key.lstrip("+~").startswith(("judge.", "task.")):
            overrides.append(argument)
        elif equals and value and key in ("judge", "task", "host", "port"):
            values[key] = value
        else:
            raise UserError(f"{argument!r} is no argument of judges.serve. Type {USAGE}")
    if "judge" not in values:
        raise UserError(
            f"judges.serve needs a judge: one of {', '.join(preset_names('judge'))}. Type {USAGE}"
        )
    port = values.pop("port", "8100")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UserError(f"port={port} is no port: give 0 (any free one) to 65535.")
    return Command(**values, port=int(port), overrides=overrides)


def preset_names(group: str) -> list[str]:
    """The presets of a config group."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def load(command: Command) -> tuple[Judge, Task]:
    """Compose the judge's and the task's preset with the overrides.

    Raises:
        UserError: an unknown preset, or an override that the schema does not take.
    """
    for group, name in (("judge", command.judge), ("task", command.task)):
        if name not in preset_names(group):
            raise UserError(
                f"{group}={name} is no preset. There are {', '.join(preset_names(group))}; a new"
                f" one is a file conf/{group}/NAME.yaml."
            )
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from experiments.config import register

    register()
    chosen = [f"+judge={command.judge}", f"+task={command.task}"]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose(overrides=[*chosen, *command.overrides])
        data: Any = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as problem:
        raise UserError(
            f"The settings do not fit: {' '.join(str(problem).split())} The names and defaults of"
            " all settings are in experiments/config.py."
        ) from problem
    return freeze(Judge, data["judge"]), freeze(Task, data["task"])


def serve(command: Command) -> None:
    """Serve until interrupted; prints the address once the socket listens.

    Raises:
        UserError: the judge is not simulated, or the address cannot be had.
    """
    judge, task = load(command)
    if judge.simulated is None:
        start = judge.endpoint.start_command
        raise UserError(
            f"judge={judge.name} is not simulated, so it is not served from here."
            + (f" Start it with: {start}" if start else "")
            + (f" It is asked at {judge.endpoint.url}." if judge.endpoint.url else "")
        )
    import uvicorn

    from experiments.tasks import oracle
    from judges.simulated import simulated_app

    app = simulated_app(judge, oracle(task))
    listener = _listen(command.host, command.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"{judge.name} answers at http://{shown}:{port}/v1 (stop it with Ctrl-C)", flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as problem:
        raise UserError(
            f"Nothing can listen on {host}:{port} ({problem.strerror}). Give another address; type"
            " for example port=0 to take any free port."
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 2 for what the user can put right."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(argument in ("-h", "--help") for argument in given):
        print(f"{__doc__}\n{USAGE}\n\nSimulated judges are the presets conf/judge/sim-*.yaml.")
        return 0
    try:
        serve(read_command(given))
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
