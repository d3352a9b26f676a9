"""Reads the programs that a command is given: one file, a folder of AFlow's rounds, or JSONL."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from experiments.workflow.executor import read_lines
from experiments.workflow.find import FORMS
from experiments.workflow.program import read_prompts
from study.config.simulated import DOMAINS
from study.errors import UserError
from study.system.files import first_line

GRAPH, PROMPT = "graph.py", "prompt.py"
MOST_READ = 1 << 20
"""Bytes of a program that are read: far more than are legal."""
LEGAL = (
    '{"id": TEXT, "program": TEXT, "form": python|dsl, "domain": math|code|qa, "prompts": [NAME]},'
    " of which form, domain and prompts may be left out"
)


@dataclass(frozen=True)
class Candidate:
    """One completion to look at, and how the result names it."""

    name: dict[str, str | int]
    text: str
    form: str | None = None
    domain: str | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    wrong: str = ""
    """What is wrong with the prompt file beside it."""


def read_text_of(key: str, path: Path) -> str:
    """What a policy may have written: any bytes, or none. Raises UserError: no such file."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_READ).decode("utf-8-sig", "replace").replace("\r\n", "\n")
    except OSError as error:
        raise UserError(
            f"{key}={path} cannot be read: {error.strerror}. Give a file with a program."
        ) from error


def one_program(path: Path, prompts: Path | None) -> list[Candidate]:
    """The program of a file; its prompts are those given, or lie beside a graph.py.
    Raises UserError: a file cannot be read, or that of the prompts is no Python."""
    beside = path.with_name(PROMPT)
    if prompts is None and path.name == GRAPH and beside.is_file():
        prompts = beside
    try:
        texts = {} if prompts is None else read_prompts(read_text_of("prompts", prompts))
    except (SyntaxError, ValueError) as error:
        raise UserError(
            f"prompts={prompts} is not Python ({first_line(error)}). Give a file with lines such as"
            ' SOLVE = "Solve this."'
        ) from error
    return [Candidate({"path": str(path)}, read_text_of("program", path), prompts=texts)]


def folder_programs(folder: Path) -> list[Candidate]:
    """Every graph.py below a folder with the prompt.py beside it; one that has none, or none that
    can be read, is wrong alone. Raises UserError: there is no graph.py."""
    if not folder.is_dir():
        raise UserError(f"folder={folder} is not a folder. Give one that holds {GRAPH} files.")
    graphs = sorted(path for path in folder.rglob(GRAPH) if path.is_file())
    if not graphs:
        raise UserError(
            f"folder={folder} holds no {GRAPH}. Give a folder of AFlow's rounds, such as"
            " workspace/GSM8K/workflows, or type program=FILE for one program."
        )
    candidates = []
    for path in graphs:
        text, texts, wrong, beside = read_text_of("folder", path), {}, "", path.with_name(PROMPT)
        if not beside.is_file():
            wrong = f"the file {PROMPT} next to it is missing; add it, empty if it has no prompts"
        try:
            texts = {} if wrong else read_prompts(read_text_of("folder", beside))
        except UserError as error:
            wrong = f"its {PROMPT} cannot be read ({first_line(error.__cause__ or error)})"
        except (SyntaxError, ValueError) as error:
            wrong = f"its {PROMPT} is not Python ({first_line(error)})"
        candidates.append(Candidate({"path": str(path)}, text, prompts=texts, wrong=wrong))
    return candidates


def listed_programs(path: Path) -> list[Candidate]:
    """The programs of a JSONL file. Raises UserError: there is none, or a row is not legal."""
    candidates = []
    for place, row in enumerate(read_lines("programs", path), 1):
        wrong = ""
        prompts = row.get("prompts") or []
        if not isinstance(row.get("program"), str):
            wrong = "it has no program"
        elif not isinstance(row.get("id"), str | int):
            wrong = "it has no id"
        elif row.get("form") not in (None, *FORMS):
            wrong = f"its form is {row['form']!r}"
        elif row.get("domain") not in (None, *DOMAINS):
            wrong = f"its domain is {row['domain']!r}"
        elif not isinstance(prompts, list | dict) or not all(
            isinstance(name, str) for name in prompts
        ):
            wrong = "its prompts are not a list of names"
        if wrong:
            raise UserError(f"Row {place} of programs={path}: {wrong}. A row is {LEGAL}.")
        texts = {name: prompts[name] if isinstance(prompts, dict) else name for name in prompts}
        texts = {name: str(text) for name, text in texts.items()}
        candidates.append(
            Candidate({"id": row["id"]}, row["program"], row.get("form"), row.get("domain"), texts)
        )
    if not candidates:
        raise UserError(f"programs={path} holds no program. A row is {LEGAL}.")
    return candidates


def read_candidates(
    program: Path | None, folder: Path | None, programs: Path | None, prompts: Path | None = None
) -> list[Candidate]:
    """The programs of the one option that is given. Raises UserError: none is, or several are."""
    if sum(path is not None for path in (program, folder, programs)) != 1:
        raise UserError(
            "Give program=FILE or programs=JSONL (or, to validate, folder=FOLDER), and only one of"
            " them."
        )
    if prompts is not None and program is None:
        raise UserError("prompts= has no meaning without program=. Leave it out.")
    if program is not None:
        return one_program(program, prompts)
    return folder_programs(folder) if folder is not None else listed_programs(programs or Path())
