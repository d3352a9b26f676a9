"""What is recorded of one executed program: columns, measured features, and its operator calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from experiments.workflow import static
from experiments.workflow.broker import Trace
from experiments.workflow.executor import Answer
from experiments.workflow.experience import Entry
from experiments.workflow.operators import OPERATORS
from experiments.workflow.operators.sc_ensemble import vote
from experiments.workflow.problem import Problem
from experiments.workflow.program import ast_sha
from experiments.workflow.repair import REPAIR
from experiments.workflow.run import Execution
from study.cell.records import FEATURE, CallRow
from study.config.programs import Workflow
from study.programs.endings import INFRASTRUCTURE, REFUSED, Ending
from study.programs.rewards import RIGHT
from study.rewards.formulas import repeated_share
from study.rows import Row

NGRAM = 3
"""Words of a program that are compared for repetition."""
REPAIR_TOKENS = 4096
"""Of a reply that mends a program."""


Column = str | list[str] | float | None
"""What a column of a rollout may hold."""


@dataclass(frozen=True)
class Repair:
    """What the executor made of an invalid program, and how that ran."""

    answer: Answer
    execution: Execution


@dataclass(frozen=True)
class Rollout:
    """One completion as its world played it.

    Attributes:
        execution: of the program as it was written.
        fallback: of the default program that ran in its place; None where none did.
        repair: None where the executor was not asked to mend it, or gave no reply.
    """

    problem: Problem
    execution: Execution
    fallback: Execution | None = None
    repair: Repair | None = None


def columns(rollout: Rollout, settings: Workflow) -> dict[str, Column]:
    """The columns of a rollout that only programs have."""
    own, problem = rollout.execution, rollout.problem
    effective = rollout.fallback or own
    report, broker = effective.report, effective.broker
    flags = effective.flags(problem)
    flags_raised = [name for name, is_raised in flags.items() if is_raised is True]
    values: dict[str, Column] = {
        "outcome": str(effective.outcome),
        "form": None if report.program is None else report.program.form,
        "program_sha": None if report.program is None else report.program.sha,
        "ast_sha": None if report.tree is None else ast_sha(report.tree),
        "flags": flags_raised,
    }
    if rollout.repair is not None:
        mended = rollout.repair.execution
        values |= {
            "repair": rollout.repair.answer.text,
            "repair_outcome": str(mended.outcome),
            "repair_answer": mended.answer,
        }
    mended_well = rollout.repair is not None and rollout.repair.execution.outcome is Ending.OK
    counts = Counter(trace.operator for trace in (broker.traces if broker else ()))
    features: dict[str, float | None] = {
        **measures(effective, problem, settings),
        "literal_share": flags["literal_share"],
        "calls": float(counts.total()),
        "model_calls": float(broker.model_calls) if broker else 0.0,
        "tokens": _tokens(effective),
        "critical_tokens": _number(broker.critical) if broker else 0.0,
        "cost_usd": broker.cost_usd if broker else 0.0,
        "nodes": None if report.tree is None else float(static.nodes_of(report.tree)),
        "repaired": float(mended_well),
        "fallback": float(rollout.fallback is not None),
        **{f"op/{name}": float(counts[name]) for name in OPERATORS},
    }
    return values | {f"{FEATURE}{name}": value for name, value in features.items()}


def measures(execution: Execution, problem: Problem, settings: Workflow) -> dict[str, float | None]:
    """Efficiency, simplicity, format (1 is best) and repetition (0 is best) of a program that ran,
    each from 0 to 1; None of one that did not.

    efficiency = 1 - tokens / ``full_tokens``, at least 0, and 1 without a price (tokens that the
    executor does not count are estimated from characters); simplicity = 1 -
    operator calls / their limit; format is 1 where an answer can be read in what it returned;
    repetition is the mean of the share of the program's word 3-grams that came before in it and
    the share of its calls that repeat an earlier one's arguments.
    """
    broker, program = execution.broker, execution.report.program
    if broker is None or program is None:
        return dict.fromkeys(("efficiency", "simplicity", "format", "repetition"))
    answer = execution.answer
    calls = broker.calls
    return {
        "efficiency": max(0.0, 1.0 - broker.tokens / settings.full_tokens * settings.priced),
        "simplicity": max(0.0, 1.0 - calls / settings.limits.operator_calls),
        "format": float(answer is not None and vote(problem.domain, answer) is not None),
        "repetition": fmean(
            (
                repeated_share(program.source.lower().split(), NGRAM),
                broker.repeated / calls if calls else 0.0,
            )
        ),
    }


def calls(rollout: Rollout, again: bool) -> list[CallRow]:
    """The rows of a rollout's operator calls; ``again`` where another rollout of the step has paid
    for the same run."""
    traces = [*_traces(rollout.execution), *_traces(rollout.fallback)]
    if rollout.repair is not None:
        traces += [_repair_trace(rollout.repair.answer), *_traces(rollout.repair.execution)]
    return [
        {
            "call": place,
            "operator": trace.operator,
            "ok": trace.ok,
            "error": trace.error,
            "model_calls": trace.model_calls,
            "tokens_in": trace.tokens_in,
            "tokens_out": trace.tokens_out,
            "attempts": 0 if again else trace.attempts,
            "cost_usd": 0.0 if again else trace.paid_usd,
            "keys": [key for key in trace.keys if key],
        }
        for place, trace in enumerate(traces)
    ]


def _traces(execution: Execution | None) -> list[Trace]:
    """The operator calls of a run in the order of the program's calls."""
    broker = None if execution is None else execution.broker
    return [] if broker is None else sorted(broker.traces, key=lambda trace: trace.number)


def _repair_trace(answer: Answer) -> Trace:
    """The question for a mended program, as a call of its own."""
    return Trace(
        REPAIR,
        bool(answer.text.strip()),
        answer.tokens_in,
        answer.tokens_out,
        model_calls=1,
        attempts=answer.attempts,
        paid_usd=answer.cost_usd,
        keys=[answer.key],
    )


def metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Shares of all programs of a step, and means over those that ran."""
    outcomes = [record["outcome"] for record in records]
    executed = [record for record in records if record["outcome"] == Ending.OK]
    total = len(records)
    shas = {record["ast_sha"] for record in records if record["ast_sha"] is not None}

    def share(bad: Sequence[Ending]) -> float:
        return sum(outcome not in bad for outcome in outcomes) / total

    def mean(name: str, of: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        values = [record[f"{FEATURE}{name}"] for record in of]
        numbers = [value for value in values if value is not None]
        return {f"workflow/{name}": fmean(numbers)} if numbers else {}

    return {
        "workflow/parse": share((Ending.SYNTAX_ERROR,)),
        "workflow/contract": share(REFUSED),
        "workflow/executed": len(executed) / total,
        "workflow/extractable": sum(record[f"{FEATURE}format"] == 1.0 for record in executed)
        / total,
        "workflow/masked": sum(outcome in INFRASTRUCTURE for outcome in outcomes) / total,
        "workflow/unique_ast": len(shas) / total,
        **mean("repaired", records),
        **mean("fallback", records),
        **mean("calls", executed),
        **mean("tokens", executed),
        **{
            f"workflow/flag/{flag}": sum(flag in record["flags"] for record in executed)
            / len(executed)
            for flag in ("constant", "judge_address", "option_list", "echo_problem")
            if executed
        },
    }


def entries(
    records: Sequence[Mapping[str, Any]], row_of: Callable[[str], Row | None]
) -> list[Entry]:
    """Recorded rollouts as candidates of the buffer; those that did not run are none."""
    candidates = []
    for record in records:
        row = row_of(record["prompt_id"])
        if row is None or record["outcome"] != Ending.OK or record["feature/fallback"]:
            continue
        truth = record["truth"]
        candidates.append(
            Entry(
                row.prompt_id,
                row.domain or "qa",
                row.prompt_text(),
                record["completion"],
                getattr(row.spec.get("item"), "group_key", None),
                record["judge_score"],
                None if truth is None else truth > RIGHT,
                record["reward"],
            )
        )
    return candidates


def _tokens(execution: Execution) -> float | None:
    broker = execution.broker
    if broker is None:
        return 0.0
    if broker.tokens_in is None or broker.tokens_out is None:
        return None
    return float(broker.tokens_in + broker.tokens_out)


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)
