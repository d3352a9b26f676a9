"""Writes a study's report: page, tables and summary, and what they were made of."""

from __future__ import annotations

from pathlib import Path

from analysis.display import markup
from analysis.report import made_of, tables
from analysis.report.evidence import Evidence, gather
from analysis.report.headlines import first_screen
from analysis.report.sections import SECTIONS, front, samples
from study.cell.exchange import folder_of
from study.cli import StudyOptions
from study.progress import each
from study.system.files import write_json


def write_report(study_dir: Path | str, sample_prompts: int = 2) -> Path:
    """Write the report of a study, its tables and its summary.

    Args:
        study_dir: ``runs/<study>``; runs in any state, or none at all.
        sample_prompts: so many prompts are shown side by side at the first, middle and last step.

    Returns:
        The HTML file. ``summary.json`` ({"rows": [{column: text}], "headline": sentence,
        "headlines": {arm: sentence}, "screen": its lines, "numbers": {arm: {name: value}},
        "where": on what these rest}) and a CSV file of each table, in ``tables``, lie beside it.

    Raises:
        UserError: no such folder.
        Exception: whatever a section raised, with a note that names it; nothing is written.
    """
    study_dir = folder_of(study_dir).absolute()
    StudyOptions(study_dir.name, study_dir.parent).check()
    html = study_dir / made_of.FOLDER / made_of.PAGE
    inputs = made_of.inputs(study_dir, sample_prompts)
    evidence = gather(study_dir)
    said = first_screen(evidence)
    summary = {
        "rows": tables.summary_rows(evidence),
        "headline": said.headline,
        "headlines": {arm: line.text() for arm, line in said.arms.items()},
        "screen": said.lines(),
        "numbers": tables.numbers(evidence),
        "where": evidence.effects.where,
    }
    parts = front(evidence, said), fragments_of(evidence, sample_prompts)
    markup.write_page(html, f"{study_dir.name}: bias report", *parts)
    write_json(html.parent / made_of.SUMMARY, summary)
    made_of.note(html.parent, inputs)
    return html


def fragments_of(evidence: Evidence, sample_prompts: int) -> list[str]:
    """The fragments of all sections behind the first screen, in their order."""
    fragments: list[str] = []
    for write in each(SECTIONS[1:], "sections of the report", len(SECTIONS) - 1):
        try:
            fragments += write(evidence, *([sample_prompts] if write is samples else []))
        except Exception as error:
            error.add_note(f"This came of section {getattr(write, '__name__', '')} of the report.")
            raise
    return fragments
