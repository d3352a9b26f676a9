"""The operators that a workflow program may call, as they are declared.

The result is {operators: [{name, version, about, arguments, returns, domains, executes_code,
max_model_calls, max_tokens, template_sha}]}: arguments are [{name, type, required, default}],
returns is {key: type} and has ok and error besides what the operator declares.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.workflow.operators import OPERATORS
from study.cli import command, option, output, word, writes
from study.system.files import write_json


def table() -> list[dict[str, object]]:
    """Every operator as the command writes it."""
    return [
        {
            "name": operator.name,
            "version": operator.version,
            "about": operator.about,
            "arguments": [vars(argument) for argument in operator.arguments],
            "returns": operator.returns,
            "domains": list(operator.domains),
            "executes_code": operator.executes_code,
            "max_model_calls": operator.max_model_calls,
            "max_tokens": operator.max_tokens,
            "template_sha": operator.template_sha,
            "hints": dict(operator.hints),
        }
        for operator in OPERATORS.values()
    ]


def markdown() -> str:
    """The operators as a table of docs/workflows.md."""
    lines = [
        "| operator | arguments | results | domains | model calls | what |",
        "|---|---|---|---|---|---|",
    ]
    for operator in OPERATORS.values():
        arguments = ", ".join(
            argument.name if argument.required else f"{argument.name}={argument.default!r}"
            for argument in operator.arguments
        )
        results = ", ".join(
            key + (" (bool)" if kind == "bool" else "") for key, kind in operator.results.items()
        )
        lines.append(
            f"| `{operator.name}` | `{arguments}` | {results} | {', '.join(operator.domains)} |"
            f" {operator.max_model_calls} | {operator.about} |"
        )
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Options:
    """Options of the command ``operators``: where to write them, and in which form."""

    what: str = word("list the operators", "operators")
    out: Path | None = output("JSON file for the result")
    docs: bool = option("print them as a table for the docs", False)


@command("experiments.workflow operators out=operators.json", __doc__, Options)
def main(options: Options) -> int:
    """Exit codes: 0 told, 2 for a user's error."""
    if options.out is not None:
        with writes("out", options.out):
            write_json(options.out, {"operators": table()})
    print(
        markdown()
        if options.docs
        else "\n".join(
            f"{operator.name}({', '.join(argument.name for argument in operator.arguments)})"
            f" -> {', '.join(operator.returns)}"
            for operator in OPERATORS.values()
        )
    )
    return 0
