"""Render a notebook of this source tree into one HTML page: `write_report` does it for a study.

The notebook's cells run in this process, as a Jupyter kernel takes seconds to start. They become
one HTML file that loads nothing from anywhere, with the executed notebook beside it, in
``runs/<study>/report``.
"""

from __future__ import annotations

import ast
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from analysis.display.page import page, write_tables
from study.cell.exchange import folder_of
from study.cli import StudyOptions
from study.errors import UserError
from study.system.files import clear_leftovers, write_json, write_text

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "bias_report.py"
SUMMARY_MIME = "application/vnd.judgedrift.summary+json"
"""Under this type the notebook hands `write_report` what other programs read: rows of the summary
table, headlines, and numbers by arm."""


def write_report(study_dir: Path | str, parameters: dict[str, Any] | None = None) -> Path:
    """Execute the notebook on a study and write its HTML, executed notebook and summary.

    Args:
        study_dir: ``runs/<study>``; runs in any state, or none at all.
        parameters: of the notebook, by name.

    Returns:
        The HTML file; ``bias_report.ipynb``, ``summary.json`` ({"rows": [{column: text}],
        "headlines": {arm: sentence}, "numbers": {arm: {name: value}}}) and a CSV file of each
        table, in ``tables``, are there too.

    Raises:
        UserError: no such folder, or a parameter that the notebook does not have.
        Exception: whatever a cell raised, with a note that says which cell; nothing is written.
    """
    study_dir = folder_of(study_dir).absolute()
    StudyOptions(study_dir.name, study_dir.parent).check()
    html = study_dir / "report" / "bias_report.html"
    values = {**(parameters or {}), **of_study(study_dir)}
    executed = render(NOTEBOOK, values, html, f"{study_dir.name}: bias report")
    write_json(html.parent / "summary.json", _summary(executed))
    return html


def render(source: Path, parameters: dict[str, Any], html: Path, title: str) -> Any:
    """Execute a notebook, write its page and, beside it, the executed notebook and the tables;
    return the executed notebook.

    Raises:
        UserError: the notebook is missing, or does not have one of the parameters.
    """
    import nbformat

    notebook = executed(source, parameters)
    for folder in (html.parent, html.parent / "tables"):
        clear_leftovers(folder)
    write_text(html.with_suffix(".ipynb"), nbformat.writes(notebook))
    write_tables(notebook.cells, html.parent / "tables")
    write_text(html, _to_html(notebook, title))
    return notebook


def executed(source: Path, parameters: dict[str, Any]) -> Any:
    """A notebook of this source tree with its outputs. Raises as `render` does."""
    import jupytext

    if not source.exists():
        raise UserError(
            f"The notebook {source.name} is missing. It is part of the source tree, not of an "
            "installed package: run the command from a checkout installed with "
            "pip install -e ."
        )
    notebook = jupytext.read(source, fmt="py:percent")
    check_parameters(notebook, parameters)
    _execute(notebook, parameters, source.name)
    return notebook


def of_study(study_dir: Path | str) -> dict[str, str]:
    """The parameters by which a notebook finds a study."""
    folder = Path(study_dir)
    return {"study": folder.name, "runs_dir": str(folder.parent)}


def check_parameters(notebook: Any, values: dict[str, Any]) -> None:
    """Refuse names that the cell tagged ``parameters`` does not assign.

    Raises:
        UserError: with the names that the notebook has.
    """
    legal = [
        ast.unparse(node.targets[0])
        for cell in notebook.cells
        if "parameters" in _tags(cell)
        for node in _assignments(cell.source)
    ]
    unknown = [name for name in values if name not in legal]
    if unknown:
        raise UserError(
            f"The report has no parameter {', '.join(unknown)}. It has "
            f"{', '.join(name for name in legal if name not in of_study(''))}. Type for example: "
            "python -m analysis.report study=quickstart sample_prompts=3"
        )


def _to_html(notebook: Any, title: str) -> str:
    """An executed notebook as one page that holds its outputs, not its code, and needs no net."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(
        template_name="basic",
        exclude_input=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        mathjax_url="",
        require_js_url="",
        jquery_url="",
        mermaid_js_url="",
    )
    body, _ = exporter.from_notebook_node(notebook)
    return page(body, title)


def _execute(notebook: Any, parameters: dict[str, Any], name: str) -> None:
    """Run all cells of ``notebook`` in this process and put their outputs into it. ``parameters``
    take the place of the values that the cell tagged ``parameters`` assigns, so that a program that
    sets some of them later, as papermill does, leaves the others."""
    from IPython.utils.capture import capture_output
    from nbformat import v4

    for cell in notebook.cells:
        if "parameters" in _tags(cell):
            cell.source = _assigned(cell.source, parameters)
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with _displays():
        for count, cell in enumerate(code, start=1):
            try:
                with capture_output() as captured:
                    _run(cell.source, names, f"{name}, cell {count}")
            except Exception as error:
                error.add_note(f"This came of cell {count} of {name}:\n{cell.source}")
                raise
            streams = {"stdout": captured.stdout, "stderr": captured.stderr}
            printed = [
                v4.new_output("stream", name=stream, text=text)
                for stream, text in streams.items()
                if text
            ]
            shown = [
                v4.new_output("display_data", data=output.data, metadata=output.metadata or {})
                for output in captured.outputs
            ]
            cell.execution_count, cell.outputs = count, printed + shown


def _assignments(source: str) -> list[ast.Assign]:
    return [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]


def _assigned(source: str, values: dict[str, Any]) -> str:
    """The source of a cell with other values; what stands around them, comments too, is kept."""
    lines = source.encode().splitlines()  # ast counts bytes
    for node in reversed(_assignments(source)):
        name, value = ast.unparse(node.targets[0]), node.value
        if name in values:
            before = lines[value.lineno - 1][: value.col_offset]
            after = lines[(value.end_lineno or 0) - 1][value.end_col_offset :]
            line = before + repr(values[name]).encode() + after
            lines[value.lineno - 1 : value.end_lineno] = [line]
    return b"\n".join(lines).decode()


def _run(source: str, names: dict[str, Any], place: str) -> None:
    """Run the source of one cell among ``names``, and display its value if it ends in one."""
    body = ast.parse(source, place).body
    shown = len(body) - isinstance(body[-1], ast.Expr) if body else 0
    for tree in (ast.Module(body[:shown], []), ast.Interactive(body[shown:])):
        kind = "single" if isinstance(tree, ast.Interactive) else "exec"
        exec(compile(tree, place, kind, dont_inherit=True), names)


@contextmanager
def _displays() -> Generator[None]:
    """Within the block IPython's ``display`` finds a session that shows every kind of output,
    figures too: the one that this process is in, or a bare one. A whole one would keep a history on
    disk and take the place of ``__main__``."""
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.core.pylabtools import print_figure

    class Bare(InteractiveShell):
        def __init__(self) -> None:
            super(InteractiveShell, self).__init__()
            self.display_pub = None
            self.init_events()  # pyplot asks for them

        def enable_gui(self, gui: str | None = None) -> None:
            """There is none."""

    session = InteractiveShell.instance() if InteractiveShell.initialized() else Bare.instance()
    before = session.display_formatter
    formatter = DisplayFormatter()
    # by name: pylabtools' own way would have matplotlib choose a backend
    formatter.formatters["image/png"].for_type_by_name(
        "matplotlib.figure", "Figure", partial(print_figure, base64=True)
    )
    session.display_formatter = formatter
    try:
        yield
    finally:
        session.display_formatter = before
        Bare.clear_instance()


def _tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


def _summary(notebook: Any) -> dict[str, Any]:
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    data = (output.get("data", {}).get(SUMMARY_MIME) for output in outputs)
    return next(filter(None, data), {"rows": [], "headlines": {}})
