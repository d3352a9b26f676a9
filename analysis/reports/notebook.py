"""Render a notebook of this source tree into one HTML page: `write_report` does it for a study.

The notebook is executed in a kernel of this very Python and becomes one HTML file that loads
nothing from anywhere, with the executed notebook beside it, in ``runs/<study>/report``.
"""

from __future__ import annotations

import ast
import subprocess
from html import escape
from pathlib import Path
from typing import Any

from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from traitlets import default

from study.cli import StudyOptions
from study.errors import UserError
from study.files import write_json, write_text

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "bias_report.py"
SUMMARY_MIME = "application/vnd.judgedrift.summary+json"
"""Under this type the notebook hands its summary rows to `write_report`."""


def write_report(study_dir: Path | str, parameters: dict[str, Any] | None = None) -> Path:
    """Execute the notebook on a study and write its HTML, executed notebook and summary.

    Args:
        study_dir: ``runs/<study>``; runs in any state, or none at all.
        parameters: of the notebook, by name.

    Returns:
        The HTML file; ``bias_report.ipynb`` and ``summary.json`` ({"rows": [...]}) are there too.

    Raises:
        UserError: no such folder, or a parameter that the notebook does not have.
    """
    study_dir = Path(study_dir).absolute()
    StudyOptions(study_dir.name, study_dir.parent).check()
    html = study_dir / "report" / "bias_report.html"
    values = {**(parameters or {}), "study_dir": str(study_dir)}
    executed = render(NOTEBOOK, values, html, f"{study_dir.name}: bias report")
    write_json(html.parent / "summary.json", {"rows": _summary(executed)})
    return html


def render(source: Path, parameters: dict[str, Any], html: Path, title: str) -> Any:
    """Execute a notebook, write its page and, beside it, the executed notebook; return that.

    Raises:
        UserError: the notebook is missing, or does not have one of the parameters.
    """
    import jupytext
    import nbformat

    if not source.exists():
        raise UserError(
            f"The notebook {source.name} is missing. It is part of the source tree, not of an "
            "installed package: run the command from a checkout installed with "
            "pip install -e ."
        )
    notebook = jupytext.read(source, fmt="py:percent")
    check_parameters(notebook, parameters)
    executed = _execute(notebook, parameters)
    write_text(html.with_suffix(".ipynb"), nbformat.writes(executed))
    write_text(html, _to_html(executed, title))
    return executed


def check_parameters(notebook: Any, values: dict[str, Any]) -> None:
    """Refuse names that the cell tagged ``parameters`` does not assign; papermill only warns.

    Raises:
        UserError: with the names that the notebook has.
    """
    legal = [
        ast.unparse(node.targets[0])
        for cell in notebook.cells
        if "parameters" in cell.metadata.get("tags", [])
        for node in ast.parse(cell.source).body
        if isinstance(node, ast.Assign)
    ]
    unknown = [name for name in values if name not in legal]
    if unknown:
        raise UserError(
            f"The report has no parameter {', '.join(unknown)}. It has "
            f"{', '.join(name for name in legal if name != 'study_dir')}. Type for example: "
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
    css = Path(__file__).with_name("report.css").read_text()
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{css}</style></head><body>{body}</body></html>\n"
    )


def _execute(notebook: Any, parameters: dict[str, Any]) -> Any:
    """The notebook after a run of all cells in a kernel of this very Python."""
    from papermill import execute_notebook

    # A kernel spec named python3 may be installed for the user and belong to another Python.
    class ThisPython(AsyncKernelManager):
        @default("transport_encryption")
        def _encrypted(self) -> str:
            return "auto"

        @property
        def kernel_spec(self) -> KernelSpec:
            return KernelSpec(**get_kernel_dict())

        async def _async_launch_kernel(self, kernel_cmd: list[str], **kw: Any) -> None:
            # what a cell prints comes back over the wire; what is left is talk of shutting down
            await super()._async_launch_kernel(kernel_cmd, stderr=subprocess.DEVNULL, **kw)

    return execute_notebook(
        notebook,
        None,
        parameters,
        kernel_name="python3",
        kernel_manager_class=ThisPython,
        progress_bar=False,
        cwd=ROOT,
    )


def _summary(notebook: Any) -> list[dict[str, str]]:
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    data = (output.get("data", {}).get(SUMMARY_MIME) for output in outputs)
    return next(filter(None, data), [])
