"""The numbers of README.md and docs, and whether a wrong one would be seen."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.claims.__main__ import check, main, write
from tests.claims.reading import (
    NUMBER,
    Claim,
    Computed,
    Made,
    ask,
    claimed,
    claims,
    digest_of,
    rounds_to,
    studies,
    written,
)
from tests.conftest import ROOT

QUICKSTART = "quickstart"
GIVEN = {
    "3.11": "pyproject.toml",
    "3.12": "pyproject.toml",
    "2.0": "the licence",
    "0.5": "policy.size of conf/policy/tiny.yaml, in millions",
    ".15": "a dose of conf/judge/sim-verbose.yaml",
}
"""Numbers of README.md that no study prints, and where they stand."""


@pytest.mark.parametrize("page", sorted({claim.page for claim in claims()}))
def test_every_claim_is_in_its_page_once_with_as_many_numbers(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for claim in claims():
        if claim.page == page:
            assert claim.study in studies()
            assert len(claimed(claim, text)) == len(claim.numbers) > 0


def test_every_number_of_the_readme_is_computed_or_given():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    places = [claimed(claim, text) for claim in claims() if claim.page == "README.md"]
    computed = {at for numbers in places for _, at in numbers}
    found = re.finditer(r"(?<![\w.])" + NUMBER + r"(?=M?\b)", text)
    others = {each[1] for each in found if "." in each[1] and each.start(1) not in computed}
    assert others == GIVEN.keys()


@pytest.mark.parametrize(
    ("text", "value", "same"),
    [
        *((".45", 0.452, True), (".45", 0.456, False), ("29", 28.91, True), ("28", 28.91, False)),
        *(("-117", -116.6, True), ("2,560", 2560, True), ("4e-9", 3.6e-9, True)),
        *(("4e-9", 3e-9, False), (".78", 0.775, True), ("0", float("nan"), False)),
    ],
)
def test_a_number_is_the_same_where_it_is_rounded_alike(text, value, same):
    assert rounds_to(text, value) is same


@pytest.mark.parametrize(
    ("value", "like", "text"),
    [
        *((0.8889, "1.00", ".89"), (1.0351, ".96", "1.04"), (-0.004, "-.09", ".00")),
        *((12.64, "+9.5", "+12.6"), (-3.2, "+9.5", "-3.2"), (2560, "1,515", "2,560")),
        *((3.6e-9, "4e-9", "4e-9"), (116.6, "117", "117"), (0.2, "3", "0")),
    ],
)
def test_a_number_is_written_as_the_page_writes(value, like, text):
    assert written(value, like) == text
    assert rounds_to(text, value)


def test_another_machine_may_differ_by_its_share():
    assert rounds_to(".50", 0.55, near=0.1) and not rounds_to(".50", 0.56, near=0.1)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text("The truth rises\nfrom .45 to .57.\n\n| R2 | .82 | -.95 |\n", encoding="utf-8")
    return path


def test_a_text_may_be_wrapped_and_a_row_of_a_table_written_out(page):
    text = page.read_text(encoding="utf-8")
    rises = Claim("page.md", "s", "truth rises from {} to {}.", ("a", "b"))
    assert [number for number, _ in claimed(rises, text)] == [".45", ".57"]
    assert text[claimed(rises, text)[1][1] :].startswith(".57.")
    row = Claim("page.md", "s", "| R2 | {} | {} |", ("a", "b"))
    assert [number for number, _ in claimed(row, text)] == [".82", "-.95"]
    for wrong in (
        Claim("page.md", "s", "truth falls from {} to {}.", ("a", "b")),
        Claim("page.md", "s", "from {} to {}.", ("a",)),
    ):
        with pytest.raises(ValueError, match=r"page\.md"):
            claimed(wrong, text)


class Planted(Computed):
    """Tables that are written here."""

    def _json(self, name: str) -> object:
        rows = [{"arm": "a", "dose": 0.1, "r2": 0.25}, {"arm": "j, a", "dose": 1, "r2": 0.75}]
        return {"rows": rows, "slope": {"value": 3.0}, "p": 0.5, "asked": self._commands.get(name)}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        *(
            ("t:rows arm=a r2", 0.25),
            ("t:rows dose=1 r2", 0.75),
            ("t:rows arm~a dose=0.1 r2", 0.25),
        ),
        *(("mean t:rows arm~a r2", 0.5), ("max t:rows dose|0.1|1 r2 %", 75.0)),
        *(("t:slope value", 3.0), ("t p", 0.5)),
    ],
)
def test_a_number_is_a_table_its_rows_and_a_column(words, value):
    assert Planted(Path("s"), {}).number(words) == value


def test_rows_that_are_several_or_none_are_no_number():
    for words in ("t:rows r2", "t:rows arm=b r2", "t:rows arm=a r3"):
        with pytest.raises(LookupError):
            Planted(Path("s"), {}).number(words)


def test_a_study_that_is_not_here_is_said_with_what_makes_it(tmp_path, capsys):
    assert main([f"runs_dir={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert all(made.command in printed for made in studies().values())
    assert main(["study=none"]) == 2


@pytest.fixture(scope="module")
def checked(small_study, tmp_path_factory):
    """Two claims on a page of our own about the small study: one is right."""
    root = tmp_path_factory.mktemp("pages")
    made = Made("judgedrift sweep", commands={"first": "forecast judges=sim-fair"})
    computed = Computed(small_study, made.commands)
    words = tuple(
        f"metrics arm=sim-fair seed=3 step=1 {m}" for m in ("policy/length", "truth/mean")
    )
    length, truth = map(computed.number, words)
    (root / "page.md").write_text(
        f"It begins with {length:.2f} words and {truth + 1:.2f} of truth, on {4} prompts.\n"
    )
    text = "begins with {} words and {} of truth, on {} prompts."
    claim = Claim("page.md", "debug", text, (*words, "first prompts"))
    return root, check(small_study, made, [claim], root)


def test_a_wrong_number_of_a_page_is_seen_and_written(checked):
    root, checked = checked
    assert [each.verdict for each in checked] == ["same", "DIFFERS", "same"]
    assert "DIFFERS" in checked[1].line() and "page.md" in checked[1].line()
    write(checked, root)
    right = written(checked[1].value, "1.00")
    assert f" words and {right} of truth, on 4 prompts." in (root / "page.md").read_text()


@pytest.mark.long
def test_the_pages_have_the_numbers_of_the_quickstart(quickstart, tmp_path):
    """Whole: three judges, three seeds, 40 steps, and the first page's picture of it. On another
    kind of machine than the pages were written on, a run takes another course, and most numbers are
    near."""
    made = studies()[QUICKSTART]
    shutil.copytree(quickstart.parent, tmp_path / "runs")
    folder = tmp_path / "runs" / QUICKSTART
    for words in made.then:
        assert ask(words, folder) == 0
    of = [claim for claim in claims() if claim.study == QUICKSTART]
    lines = check(folder, made, of)
    assert len(lines) >= 50
    if digest_of(folder) != made.digest:  # of 72 numbers 18 were further off on the next kind
        assert [each.line() for each in lines if not math.isfinite(each.value)] == []
        near = [rounds_to(each.text, each.value, made.near) for each in lines]
        assert sum(near) > len(near) / 2
        return
    assert [each.line() for each in lines if not rounds_to(each.text, each.value)] == []
    for picture in ("quickstart.svg", "quickstart-narrow.svg"):
        drawn = tmp_path / picture
        words = [sys.executable, "docs/site/picture.py", str(folder), str(drawn)]
        subprocess.run(words, cwd=ROOT, check=True)
        assert drawn.read_bytes() == (ROOT / "docs" / picture).read_bytes(), picture
