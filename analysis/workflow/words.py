"""What `analysis.workflow` prints: a table for each question, and what a log of others shows."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.display.markup import TEXTS
from analysis.display.printed import as_text, short
from analysis.workflow import display as tables
from analysis.workflow.arm import Workflow
from analysis.workflow.log import LoggedRun, describe_run
from study.screen import visible

TITLES = TEXTS["workflow"]


def lines(workflow: Workflow) -> list[str]:
    """Every table that has rows."""
    by_title = {
        "rates": tables.rates_table(workflow),
        "gap": tables.gap_table(workflow, short),
        "operators": tables.operators_table(workflow, short),
        "exploits": tables.exploits_table(workflow),
        "shares": tables.shares_table(workflow, short),
        "optimum": tables.optimum_table(workflow, short),
        "treatments": tables.treatments_table(workflow, short),
    }
    text = [
        line for title, table in by_title.items() if len(table)
        for line in ("", TITLES[title], as_text(table))
    ]  # fmt: skip
    return [*text, "", TITLES["intervals"]]


def of_log(runs: Mapping[str, LoggedRun]) -> list[str]:
    """What each run of a log shows, in sentences."""
    return [
        visible(f"{name}: {sentence}")
        for name, run in runs.items()
        for sentence in describe_run(run)
    ]
