"""A study's report as one page: `write_report` gathers what is known, and each section says it."""

from __future__ import annotations

from pathlib import Path

from analysis.display.page import write_page
from analysis.report.evidence import Evidence, gather
from analysis.report.headlines import headlines
from analysis.report.sections import SECTIONS, front, samples
from analysis.report.tables import numbers, summary_rows
from study.cell.exchange import folder_of
from study.cli import StudyOptions
from study.system.files import write_json


def write_report(study_dir: Path | str, sample_prompts: int = 2) -> Path:
    """Write the report of a study, its tables and its summary.

    Args:
        study_dir: ``runs/<study>``; runs in any state, or none at all.
        sample_prompts: so many prompts are shown side by side at the first, middle and last step.

    Returns:
        The HTML file. ``summary.json`` ({"rows": [{column: text}], "headlines": {arm: sentence},
        "numbers": {arm: {name: value}}}) and a CSV file of each table, in ``tables``, lie beside
        it.

    Raises:
        UserError: no such folder.
        Exception: whatever a section raised, with a note that names it; nothing is written.
    """
    study_dir = folder_of(study_dir).absolute()
    StudyOptions(study_dir.name, study_dir.parent).check()
    html = study_dir / "report" / "bias_report.html"
    evidence = gather(study_dir)
    summary = {
        "rows": summary_rows(evidence),
        "headlines": headlines(evidence),
        "numbers": numbers(evidence),
    }
    opening, rest = front(evidence), sections(evidence, sample_prompts)
    write_page(html, f"{study_dir.name}: bias report", opening, rest)
    write_json(html.parent / "summary.json", summary)
    return html


def sections(evidence: Evidence, sample_prompts: int) -> list[str]:
    """The fragments of all sections behind the first screen, in their order."""
    fragments: list[str] = []
    for section in SECTIONS[1:]:
        settings = (sample_prompts,) if section is samples else ()
        try:
            fragments += section(evidence, *settings)
        except Exception as error:
            error.add_note(f"This came of the section {section.__name__} of the report.")
            raise
    return fragments
