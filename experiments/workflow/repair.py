"""Asks the executor to mend an invalid program; what it mends is no success of the policy."""

from __future__ import annotations

from experiments.workflow.validate import Report
from judges.grading.delimiters import fill

REPAIR = "Repair"
"""Who asks, in the records of calls."""
PROMPT = (
    "A workflow program cannot be run. Correct it, and change nothing else.\n\nThe program:\n"
    "{program}\n\nWhat is wrong:\n{errors}\n\nReply with the whole corrected program in one fenced"
    " code block{form}."
)
FORMS = {"python": " of Python, with the class Workflow", "dsl": ", a single line"}
MOST_ERRORS = 20
LONGEST = 16_384
"""Characters of the program that are shown."""


def repair_prompt(program: str, report: Report, form: str) -> str:
    """What the executor is asked."""
    errors = [diagnostic for diagnostic in report.diagnostics if diagnostic.level == "error"][
        :MOST_ERRORS
    ]
    listed = "\n".join(f"line {diagnostic.line}: {diagnostic.message}" for diagnostic in errors)
    return fill(PROMPT, program=program[:LONGEST], errors=listed, form=FORMS[form])
