"""Trains one cell by the command that a user types, on a GPU or several, and reads its records.

    python -m benchmarks.gpu.cells bf16|fsdp|zero2|zero3|server|leases [device=cpu]

bf16     a policy of half a billion random weights, in bfloat16
fsdp, zero2, zero3
         the same, its weights cut over all GPUs by accelerate; on a CPU two copies of a tiny one
server   vLLM draws the completions on the last GPU and is given the weights at each step
leases   a judge that the sweep serves by vLLM shares one GPU with the policy
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from benchmarks.gpu.colocate import Engines
from benchmarks.gpu.models import make_model
from experiments.sweep import cells_of
from experiments.trainer import vllm
from judges.serving.server import get
from study.cell.folder import CellFolder, study_cells
from study.cell.parts import read_all
from study.cell.records import read_metrics
from study.config.presets import preset_file
from study.config.schema import Judge
from study.system.machine import usable_gpus

STEPS, ROLLOUTS = 3, 8
# What random weights write is all the same to a judge without errors, and teaches nothing.
STUDY = (
    *("study=gpu", "seed=0", "tracking=none", "judge=sim-noisy", "task=instruct-mini"),
    "trainer=small-real",
    *("policy=smollm2-135m-instruct", f"trainer.steps={STEPS}", "sweep.report=false"),
    *("trainer.max_completion_length=32", "trainer.learning_rate=0.001"),
)
SERVER = "http://127.0.0.1:8765"
START_S = 600
JUDGE = (
    *("judge=smollm2-135m", "judge.serve.auto=true", "judge.serve.device=gpu"),
    *("judge.serve.gpu_memory_utilization=0.4", "judge.serve.max_model_len=2048"),
    *("judge.serve.dtype=bfloat16", "sweep.gpus_per_cell=0.5"),
)


def settings(kind: str, folder: Path, cpu: bool) -> list[str]:
    """The words of the sweep, with what they name written into ``folder``."""
    model = make_model(folder / "policy", "tiny" if cpu else "0.5B")
    words = [*STUDY, f"policy.path={model}", f"runs_dir={folder / 'runs'}"]
    words.append("policy.dtype=float32" if cpu else "policy.dtype=bfloat16")
    words += ["device=cpu"] if cpu else []
    if kind in ("fsdp", "zero2", "zero3"):
        words.append(f"sweep.accelerate={accelerate_file(kind, folder, cpu)}")
    if kind == "server":
        words += ["trainer.vllm.mode=server", f"trainer.vllm.url={SERVER}", "sweep.workers=1"]
    if kind == "leases":
        words += [*JUDGE, f"judge.serve.model={model}"]
    return words


def accelerate_file(kind: str, folder: Path, cpu: bool) -> Path:
    """The shipped file for as many GPUs as there are."""
    text = preset_file("accelerate", "ddp-cpu" if cpu else kind).read_text(encoding="utf-8")
    count = 2 if cpu else len(usable_gpus())
    file = folder / f"{kind}.yaml"
    file.write_text(re.sub(r"(?m)^num_processes: .*$", f"num_processes: {count}", text))
    return file


@contextlib.contextmanager
def policy_server(words: Sequence[str]) -> Generator[dict[str, str], None, None]:
    """vLLM with the policy on the last GPU, by the command that the product says to type; gives the
    environment that leaves the other GPUs to the sweep. Raises AssertionError: it does not
    answer."""
    *others, last = (gpu.name for gpu in usable_gpus())
    command = shlex.split(vllm.command(cells_of(words)[0].config))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": last, "VLLM_SERVER_DEV_MODE": "1"}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        end = time.monotonic() + START_S
        while get(Judge(), f"{SERVER}/health") is None:
            assert process.poll() is None, f"{shlex.join(command)} ended with {process.returncode}"
            assert time.monotonic() < end, f"{shlex.join(command)} does not answer"
            time.sleep(1)
        yield {"CUDA_VISIBLE_DEVICES": ",".join(others)}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait()


def sweep(words: Sequence[str], environment: dict[str, str]) -> CellFolder:
    """The cell that the sweep has trained. Raises AssertionError: it ended with a mistake."""
    command = [sys.executable, "-m", "judgedrift", "sweep", *words]
    done = subprocess.run(command, env=os.environ | environment)
    (runs_dir,) = (word.partition("=")[2] for word in words if word.startswith("runs_dir="))
    folders = study_cells(Path(runs_dir) / "gpu")
    for folder in folders:
        if done.returncode and (folder / "log.txt").is_file():
            print((folder / "log.txt").read_text()[-3000:], file=sys.stderr)
    assert done.returncode == 0, f"the sweep ended with {done.returncode}"
    (folder,) = folders
    return folder


def look(folder: CellFolder, kind: str) -> str:
    """What the records say, in a line. Raises AssertionError: a step, a rollout, a reward or a
    gradient is not there, or vLLM's probabilities are not the policy's."""
    lines, _ = read_metrics(folder.path)
    rows = [row for _, table in read_all(folder / "rollouts") for row in table.to_pylist()]
    assert (len(lines), len(rows)) == (STEPS, STEPS * ROLLOUTS), (len(lines), len(rows))
    assert all(row["logprob_sum"] is not None and row["logprob_sum"] < 0 for row in rows)
    metrics = [line["metrics"] for line in lines]
    norms = [of_step["policy/grad_norm"] or 0.0 for of_step in metrics]
    assert any(norms), "no step had a gradient"
    said = f"{len(rows)} rollouts, gradient norms " + " ".join(f"{norm:.3g}" for norm in norms)
    if kind == "server":
        engines = Engines.of(metrics)
        engines.check()
        said += f", {engines}"
    if kind == "leases":
        scored = sum(row["judge_score"] is not None for row in rows)
        assert scored > len(rows) / 2, f"{scored} of {len(rows)} answers have a verdict"
        said += f", {scored} verdicts"
    return said


def main() -> None:
    """One cell of the kind that is named."""
    kind, cpu = sys.argv[1], "device=cpu" in sys.argv
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        words = settings(kind, Path(name), cpu)
        running = policy_server(words) if kind == "server" else contextlib.nullcontext({})
        with running as environment:
            print(look(sweep(words, environment), kind))


if __name__ == "__main__":
    main()
