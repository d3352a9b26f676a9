"""A report that would come out the same is not written again, and any other is."""

import os
import shutil

import pytest

import analysis
from analysis.report import __main__ as report
from analysis.report import made_of
from analysis.report.writing import write_report
from study.cell.folder import study_cells
from study.config import presets


@pytest.fixture
def written(make_study):
    study = make_study(seeds=1, judges=["sim-fair"])
    write_report(study)
    return study


def is_current(study, sample_prompts=2):
    return made_of.is_current(study / made_of.FOLDER, made_of.inputs(study, sample_prompts))


def test_the_command_writes_a_report_once(written, monkeypatch, capsys):
    page = written / "report" / "bias_report.html"
    before = page.stat().st_mtime_ns
    words = [f"study={written.name}", f"runs_dir={written.parent}"]
    (written / "summary.json").write_text("[]", encoding="utf-8")  # what a sweep writes last
    assert report.main(words) == 0 and page.stat().st_mtime_ns == before
    screen = capsys.readouterr().out
    assert str(page) in screen and len(screen.splitlines()) > 2
    assert report.main([*words, "sample_prompts=1"]) == 0 and page.stat().st_mtime_ns > before
    assert capsys.readouterr().out == screen
    monkeypatch.setattr(analysis, "write_report", lambda *_: pytest.fail("nothing has changed"))
    assert report.main([*words, "sample_prompts=1"]) == 0


def later(path):
    """As if its bytes had been written again."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda study: later(next(study.rglob("rollouts/*.parquet"))),
        lambda study: later(study / "study.json"),
        lambda study: next(study.rglob("verdicts/*.parquet")).unlink(),
        lambda study: (study / "more").write_text("", encoding="utf-8"),
        lambda study: (study / "report" / "tables" / "scores.csv").unlink(),
        lambda study: later(study / "report" / "summary.json"),
        lambda study: (study / "report" / "bias_report.html").write_text("", encoding="utf-8"),
        lambda study: (study / "report" / "made_of.json").write_text("{", encoding="utf-8"),
    ],
    ids=["records", "study", "a part gone", "a file more", "table", "summary", "page", "note"],
)
def test_whatever_changes_the_report_is_written_again(written, change):
    assert is_current(written) and not is_current(written, sample_prompts=3)
    change(written)
    assert not is_current(written)
    write_report(written)
    assert is_current(written)


def test_another_program_preset_package_or_state_is_another_report(written, tmp_path, monkeypatch):
    program, config, packages = (tmp_path / name for name in ("program", "config", "packages"))
    shutil.copytree(made_of.PROGRAM / "analysis" / "report", program / "analysis" / "report")
    for folder in (config, packages):
        folder.mkdir()
    monkeypatch.setattr(made_of, "PROGRAM", program)
    monkeypatch.setattr(presets, "folders", lambda: [config])
    monkeypatch.setattr(made_of.sysconfig, "get_paths", lambda: {"purelib": str(packages)})
    digests = [made_of.inputs(written, 2)]

    def differs():
        digests.append(made_of.inputs(written, 2))
        return len({*digests}) == len(digests)

    later(program / "analysis" / "report" / "words.py")
    assert differs()
    (config / "judge.yaml").write_text("name: x\n", encoding="utf-8")
    assert differs()
    (packages / "numpy-9.dist-info").mkdir()
    assert differs()
    (cell,) = study_cells(written)
    monkeypatch.setattr(type(cell), "state", lambda *_, **__: "killed")
    assert differs()
    (program / "analysis" / "__pycache__").mkdir()
    (program / "analysis" / "__pycache__" / "x.pyc").write_bytes(b"")
    assert not differs(), "what Python keeps of the program changes nothing"
