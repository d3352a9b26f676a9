"""The texts of layer 1: those that come with the project, and newer ones of a folder of one's own.

A block is one file or several, NAME.txt. A folder has newer versions of some of them, and in
versions.json the number of each; what it does not have is as it comes with the project.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from experiments.policies.tokens import by_rule
from judges.grading.delimiters import placeholders
from study.errors import UserError
from study.system.files import read_json, read_text, write_json, write_text
from study.system.tables import table

FOLDER = Path(__file__).with_name("prompts")
BLOCKS = table(__file__)
"""Block -> its version, cap and files, in the order of a prompt."""
VERSIONS = "versions.json"


class Blocks:
    """The texts of one form, of ``folder`` where that has them.
    Raises UserError: the folder is none, or its versions cannot be read."""

    def __init__(self, form: str, folder: str | Path = "") -> None:
        self.form, self.folder = form, Path(folder) if folder else None
        if self.folder is not None and not self.folder.is_dir():
            raise UserError(
                f"workflow.blocks={folder} is not a folder. Give one that `python -m"
                " experiments.workflow optimise` has written, or leave workflow.blocks out."
            )
        self._versions = read_json(self.folder / VERSIONS) if self.folder else {}
        self._texts: dict[tuple[str, str], tuple[str, ...]] = {}

    def files(self, block: str, domain: str) -> list[str]:
        """The names of a block's files."""
        return [name.format(form=self.form, domain=domain) for name in BLOCKS[block]["files"]]

    def text(self, block: str, domain: str) -> tuple[str, ...]:
        """The texts of a block's files, and last the hash of them all.
        Raises UserError: a newer text is not legal, or cannot be read."""
        if (block, domain) not in self._texts:
            texts = [self._read(block, name) for name in self.files(block, domain)]
            sha = hashlib.sha256("\0".join(texts).encode()).hexdigest()
            self._texts[block, domain] = (*texts, sha)
        return self._texts[block, domain]

    def version(self, block: str, domain: str) -> int:
        """The highest version of a block's files."""
        built_in: int = BLOCKS[block]["version"]
        numbers = [self._versions.get(name) for name in self.files(block, domain)]
        return max([built_in, *(number for number in numbers if type(number) is int)])

    def _read(self, block: str, name: str) -> str:
        shipped = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")
        newer = None if self.folder is None else self.folder / f"{name}.txt"
        if newer is None or not newer.is_file():
            return shipped
        text = read_text(newer, "Correct it, or remove it.").rstrip("\n")
        check_text(block, shipped, text, str(newer))
        return text


def check_text(block: str, before: str, text: str, where: str) -> None:
    """Refuse what cannot take the place of a block's text.
    Raises UserError: it is empty, too long, or has other places to fill."""
    cap = BLOCKS[block].get("cap")
    names = placeholders(before)
    instead = ""
    if not text.strip():
        instead = "it is empty"
    elif cap is not None and (tokens := by_rule(text)) > cap:
        instead = f"it has {tokens} tokens, but at most {cap} are legal"
    elif sorted(placeholders(text)) != sorted(names):
        braces = ", ".join(f"{{{name}}}" for name in names) or "none"
        instead = f"its words in braces differ from the block's: {braces}, each as often"
    if instead:
        raise UserError(f"The text of the block {block} in {where} cannot be used: {instead}.")


def keep(folder: Path, name: str, text: str, version: int) -> None:
    """Make ``text`` the version of one file of a folder's blocks."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / VERSIONS
    versions = read_json(path)
    write_text(folder / f"{name}.txt", text.rstrip("\n") + "\n")
    write_json(path, versions | {name: version})
