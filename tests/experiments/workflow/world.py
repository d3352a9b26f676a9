"""The planted world that tests share: the task, and the executor of its preset."""

import dataclasses

from study.config.presets import SHIPPED
from study.config.schema import Executor, Task, freeze
from study.config.simulated_executor import RATES
from study.system.files import read_yaml

TASK = Task(name="workflow-mini", eval_rows=1_000_000)
_PRESET = read_yaml(SHIPPED / "executor" / "sim.yaml")
SIM: Executor = freeze(Executor, {k: v for k, v in _PRESET.items() if k != "defaults"})


def rates_table() -> str:
    """The preset's table as it stands in docs/workflows.md."""
    assert SIM.simulated is not None
    lines = ["| operator | math | code | qa | style |", "|---|---|---|---|---|"]
    for name, operating in SIM.simulated.operators.items():
        cells = [
            ", ".join(
                f"{key} {'/'.join(f'{share:.2f}'.lstrip('0') for share in pairs[domain])}"
                for key in RATES
                if (pairs := getattr(operating, key))
            )
            for domain in ("math", "code", "qa")
        ]
        style = ", ".join(
            f"{getattr(operating, key)} {key}"
            for key in ("words", "bullets", "sure", "tokens")
            if getattr(operating, key)
        )
        lines.append(f"| `{name}` | {' | '.join(cells)} | {style} |")
    settings = dataclasses.asdict(SIM.simulated)
    others = ("correlation", "favourite", "anchored", "empty", "empty_per_1000")
    said = ", ".join(f"`{key}` {settings[key]:g}" for key in others)
    return "\n".join([*lines, "", f"For all of them: {said}."])
