"""The notebook of a study: executed, to be changed, and never written over what was changed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jupytext
import matplotlib
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from papermill.exceptions import PapermillExecutionError

from analysis.report.sections import SECTIONS
from analysis.report.study_notebook import PLACE, ROOT, executed, is_ours, write_notebook
from study.errors import UserError
from tests.analysis.conftest import write_study


def texts(path: Path) -> str:
    """All that the cells of a notebook put out as text."""
    cells = json.loads(path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    shown = [output.get("data", {}).get("text/plain", output.get("text", "")) for output in outputs]
    return "\n".join("".join(each) for each in shown)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory) -> Path:
    """The notebook of two judges x two seeds. Not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "planted"
    return write_notebook(write_study(folder, judges=["sim-fair", "sim-verbose"], seeds=2))


def test_every_question_is_asked_in_words_and_answered_by_short_cells(notebook):
    content = json.loads(notebook.read_text())
    assert notebook == notebook.parents[1] / PLACE
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    assert max(len(cell["source"]) for cell in code) <= 20
    asked = [cell for cell in content["cells"] if cell["cell_type"] == "markdown"]
    assert len(asked) >= 10
    for cell in asked[1:]:
        assert "".join(cell["source"]).splitlines()[0].endswith("?")
    outputs = [output for cell in code for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    said = texts(notebook)
    assert "4 finished runs of 4" in said and "sim-verbose" in said


def test_a_notebook_that_was_changed_is_never_written_again(make_study):
    study = make_study(judges=["sim-fair"], seeds=1, steps=2)
    path = write_notebook(study)
    before = path.read_bytes()
    content = json.loads(before)
    for cell in content["cells"]:
        cell.pop("outputs", None)
    path.write_text(json.dumps(content))
    assert is_ours(path)
    written = json.loads(write_notebook(study).read_bytes())
    assert any(cell.get("outputs") for cell in written["cells"])
    content = json.loads(before)
    content["cells"][-1]["source"] = ["mine"]
    path.write_text(json.dumps(content))
    assert not is_ours(path)
    changed = path.read_bytes()
    assert write_notebook(study) == path and path.read_bytes() == changed
    path.write_text("no notebook")
    assert not is_ours(path) and write_notebook(study).read_text() == "no notebook"


@pytest.mark.parametrize(
    "options", [{"steps": 0, "state": "new"}, {"truth": False}, {"scored": False}, {"judges": []}]
)
def test_a_thin_study_has_a_notebook(make_study, options):
    study = make_study(**{"seeds": 1, "steps": 2, "judges": ["sim-fair", "sim-verbose"]} | options)
    assert "finished runs of" in texts(write_notebook(study))


def test_a_study_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(UserError, match="There is no study folder"):
        write_notebook(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def papermill() -> Callable[[Path, Path, dict[str, Any]], list[Any]]:
    """Papermill with Jupyter's own kernel: a notebook, its copy, parameters -> outputs."""
    import papermill

    def run(notebook: Path, copy: Path, parameters: dict[str, Any]) -> list[Any]:
        done = papermill.execute_notebook(
            notebook, copy, parameters, kernel_name="python3", progress_bar=False, cwd=copy.parent
        )
        return [output for cell in done.cells for output in cell.get("outputs", [])]

    return run


@pytest.mark.long
def test_papermill_runs_a_notebook_on_another_study(notebook, make_study, papermill, tmp_path):
    other = make_study("other", seeds=1, judges=["sim-fair"])
    named = {"study": other.name, "runs_dir": str(other.parent), "most": 3}
    outputs = papermill(notebook, tmp_path / "other.ipynb", named)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    said = texts(tmp_path / "other.ipynb")
    assert "1 finished runs of 1" in said and "sim-verbose" not in said


def test_the_notebook_of_the_report_shows_every_section(make_study):
    study = make_study(seeds=1, judges=["sim-verbose"], steps=2)
    named = {"study": study.name, "runs_dir": str(study.parent)}
    made = executed(ROOT / "notebooks" / "bias_report.py", named)
    outputs = [output for cell in made.cells for output in cell.get("outputs", [])]
    assert len(outputs) == len(SECTIONS) and "sim-verbose" in nbformat.writes(made)


@pytest.mark.long
def test_papermill_runs_the_report(make_study, papermill, tmp_path):
    study = make_study(seeds=1, judges=["sim-verbose"], steps=2)
    report, copy = tmp_path / "bias_report.ipynb", tmp_path / "copy.ipynb"
    jupytext.write(jupytext.read(ROOT / "notebooks" / "bias_report.py"), report)
    named = {"study": study.name, "runs_dir": str(study.parent)}
    assert len(papermill(report, copy, named)) == len(SECTIONS)
    assert "sim-verbose" in copy.read_text()


@pytest.mark.long
def test_papermill_ends_at_a_study_that_is_not_there(notebook, papermill, tmp_path):
    with pytest.raises(PapermillExecutionError, match=r"There is no study folder .*nowhere"):
        papermill(notebook, tmp_path / "out.ipynb", {"study": "nowhere"})


CELLS = """\
# %% tags=["parameters"]
size = 1  # of the figure

# %%
from IPython.display import HTML, display

print(f"size {size}")
display(HTML("<b>shown</b>"))
size * 7

# %%
left = ["unseen", "unseen too"]
for _ in range(2):
    left.pop()

# %%
from matplotlib.figure import Figure

Figure(figsize=(size, size)).add_subplot().figure
"""


def test_what_cells_print_display_and_evaluate_is_in_the_notebook(tmp_path):
    source = tmp_path / "small.py"
    source.write_text(CELLS)

    def surroundings():
        streams = sys.stdout, sys.stderr, sys.displayhook
        return streams, sys.modules["__main__"], Path.cwd(), dict(matplotlib.rcParams)

    before = surroundings()
    notebooks = [executed(source, {"size": size}) for size in (2, 3)]
    assert surroundings() == before and not InteractiveShell.initialized()
    text = nbformat.writes(notebooks[1])
    assert "size 3" in text and "<b>shown</b>" in text and "21" in text
    outputs = [output for cell in notebooks[1].cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    assert len(notebooks[1].cells[2].outputs) == 0, "no cell ends in a value that is not shown"
    assert nbformat.validate(notebooks[0]) is None
    assert notebooks[0].cells[0].source == "size = 2  # of the figure"


def test_a_notebook_is_executed_within_another_session_too(tmp_path):
    source = tmp_path / "small.py"
    source.write_text(CELLS)
    program = (
        "from pathlib import Path; from analysis.report.study_notebook import executed; "
        f"made = executed(Path({str(source)!r}), {{'size': 4}}); "
        "display('still here'); print(str(made.cells[1].outputs))"
    )
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "IPython", "--quick", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout.split("\n")[0].endswith("'still here'"), done
    assert "size 4" in done.stdout and "shown" in done.stdout


def test_a_cell_that_fails_is_named(tmp_path):
    source = tmp_path / "small.py"
    source.write_text(CELLS + "\n# %%\nsize / 0\n")
    out = sys.stdout
    with pytest.raises(ZeroDivisionError) as caught:
        executed(source, {"size": 2})
    assert caught.value.__notes__ == ["This came of cell 5 of small.py:\nsize / 0"]
    assert sys.stdout is out
