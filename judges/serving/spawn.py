"""A service in a process of its own, which outlives the one that started it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from judges.serving.keeper import Keeper, Taken
from study.config.schema import GROUPS, Model, freeze
from study.errors import UserError
from study.system import stopping
from study.system.installed import path_for_children

FAILED = 2
ERROR = "error: "
"""What the log of a keeper has before the paragraph that says why it could not serve."""


def spawn_keeper(
    model: Model, runs_dir: Path, while_used: bool, port: int, log: Path
) -> subprocess.Popen[bytes]:
    """Start a process that keeps a service and outlives this one; what it says is added to ``log``.
    See `Keeper`."""
    settings = {
        "role": model.role,
        "model": dataclasses.asdict(model),
        "runs_dir": str(runs_dir.absolute()),
        "while_used": while_used,
        "port": port,
    }
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | path_for_children(),
            start_new_session=True,  # neither Ctrl-C nor the end of a terminal is for it
        )
    _SPAWNED.append(process)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:  # its log says why it reads nothing
        pipe.write(json.dumps(settings).encode())
    return process


_PROGRAM = "import sys; from judges.serving.spawn import keep_service; sys.exit(keep_service())"
_SPAWNED: list[subprocess.Popen[bytes]] = []
"""Keepers that this process started, some of which go on after it."""


def keep_service() -> int:
    """Keep the service that standard input tells of. Exit codes: 0 it ended in order, or somebody
    else serves; 2 for a user's error."""
    settings = json.load(sys.stdin)
    model: Model = freeze(GROUPS[settings["role"]], settings["model"])
    stopping.take_signals()
    try:
        keeper = Keeper(
            model,
            Path(settings["runs_dir"]),
            while_used=settings["while_used"],
            port=settings["port"],
        )
        print(f"{keeper.service.name} ends: {keeper.keep()}", flush=True)
    except Taken as taken:
        print(taken, flush=True)
    except KeyboardInterrupt:
        print("ends: a signal came", flush=True)
    except UserError as error:
        print(f"{ERROR}{error}", flush=True)
        return FAILED
    return 0
