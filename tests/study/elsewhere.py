"""A cell of a URL, with a stand-in for a body: ``python -m tests.study.elsewhere CELL STEPS``.

It records the same rows for a step whoever makes it, and keeps a checkpoint of every second one.
With two words more, ``pipe 3``, it is killed as it calls that method of s3fs for the third time.
"""

import json
import os
import signal
import sys
from pathlib import Path
from random import Random

from study.cell import exchange, lease
from study.cell.folder import CellFolder
from study.cell.merged import merge_cell, reopen
from study.cell.records import ROLLOUT, VERDICT, Recorder, rollout_id


def body(folder: Path, steps: int) -> None:
    """Go on from the last checkpoint to the end, as `experiments.train.run_cell` does."""
    with lease.held(CellFolder(folder)):
        if CellFolder(folder).is_done():
            return
        complete_steps = sorted(
            int(path.parent.name[11:]) for path in folder.glob("checkpoints/*/COMPLETE")
        )
        last = complete_steps[-1] if complete_steps else 0
        reopen(CellFolder(folder), last)
        recorder = Recorder(folder, last)
        for step in range(last + 1, steps + 1):
            rng = Random(step)
            rows = [{"rollout_id": rollout_id(step, row), "step": step} for row in range(3)]
            rollouts = [dict.fromkeys(ROLLOUT) | row | {"reward": rng.random()} for row in rows]
            verdicts = [dict.fromkeys(VERDICT) | row | {"score": rng.random()} for row in rows]
            recorder.write_step(step, rollouts, verdicts, {"reward/mean": rng.random()})
            CellFolder(folder).set_status(state="running", step=step, steps=steps, pid=os.getpid())
            if step % 2 == 0:
                checkpoint = folder / "checkpoints" / f"checkpoint-{step}"
                checkpoint.mkdir(parents=True, exist_ok=True)
                (checkpoint / "weights").write_bytes(rng.randbytes(1000))
                (checkpoint / "COMPLETE").write_text("{}")
                exchange.push(folder)
        merge_cell(CellFolder(folder))
        CellFolder(folder).set_status(state="done", step=steps)
        exchange.push(folder, ended=True)
        (folder / "DONE").touch()


def lay(folder: Path) -> None:
    """What a sweep leaves for a body to run."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n")
    CellFolder(folder).set_status(state="new")
    CellFolder(folder).push_if_new()


def dies(call: str, turn: int) -> None:
    """Kill this process at the ``turn``-th call of a method of s3fs."""
    from s3fs import S3FileSystem

    real, calls = getattr(S3FileSystem, call), []

    def counted(self, *args, **kwargs):
        calls.append(args)
        if len(calls) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *args, **kwargs)

    setattr(S3FileSystem, call, counted)


if __name__ == "__main__":
    lease.SETTLES_S = 0.01
    if len(sys.argv) > 3:
        dies(sys.argv[3], int(sys.argv[4]))
    body(Path(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps("ended"))
