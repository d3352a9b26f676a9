"""The executed notebook of a study, for a researcher to go on from: questions, and short cells.

Its cells run in this process, as a Jupyter kernel takes seconds to start. It is written again while
nobody has changed its cells, and never afterwards.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from study.cell.exchange import folder_of
from study.cli import StudyOptions
from study.system.files import clear_leftovers, write_text
from study.system.installed import ROOT

SOURCE = ROOT / "judgedrift" / "notebooks" / "study.py"
PLACE = Path("report") / "study.ipynb"
_MARK = "judgedrift"
"""Key of the notebook's metadata under which the hash of its cells stands, as they were written."""


def write_notebook(study_dir: Path | str) -> Path:
    """Execute the notebook on a study and write it to `PLACE`.

    A notebook that was changed by hand stays as it is.

    Raises:
        UserError: no such folder.
        Exception: whatever a cell raised, with a note that says which; nothing is written.
    """
    import nbformat

    study_dir = folder_of(study_dir).absolute()
    StudyOptions(study_dir.name, study_dir.parent).check()
    path = study_dir / PLACE
    if not is_ours(path):
        return path
    notebook = executed(SOURCE, of_study(study_dir))
    notebook.metadata[_MARK] = {"cells": _hash(notebook.cells)}
    clear_leftovers(path.parent)
    write_text(path, nbformat.writes(notebook))
    return path


def is_ours(path: Path) -> bool:
    """Whether a notebook is as it was written, or there is none."""
    if not path.exists():
        return True
    try:
        content = json.loads(path.read_bytes())
        return content["metadata"][_MARK]["cells"] == _hash(content["cells"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _hash(cells: list[Any]) -> str:
    """Of the texts of the cells; a file keeps each as lines."""
    texts = ["".join(cell["source"]) for cell in cells]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def executed(source: Path, parameters: dict[str, Any]) -> Any:
    """A notebook of this project with its outputs, and ``parameters`` in its tagged cell."""
    import jupytext

    notebook = jupytext.read(source, fmt="py:percent")
    _execute(notebook, parameters, source.name)
    return notebook


def of_study(study_dir: Path | str) -> dict[str, str]:
    """The parameters by which a notebook finds a study."""
    folder = Path(study_dir)
    return {"study": folder.name, "runs_dir": str(folder.parent)}


def _execute(notebook: Any, parameters: dict[str, Any], name: str) -> None:
    """Run all cells of ``notebook`` in this process and put their outputs into it. ``parameters``
    take the place of the values that the cell tagged ``parameters`` assigns, so that a program that
    sets some of them later, as papermill does, leaves the others."""
    from IPython.utils.capture import capture_output
    from nbformat import v4

    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
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


def _assigned(source: str, values: dict[str, Any]) -> str:
    """The source of a cell with other values; what stands around them, comments too, is kept."""
    lines = source.encode().splitlines()  # ast counts bytes
    for node in reversed([each for each in ast.parse(source).body if isinstance(each, ast.Assign)]):
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
