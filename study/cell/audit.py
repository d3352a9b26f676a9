"""The audit of a study: which of its answers a reference is asked about, and what it said of them.

Most tasks have no rule that knows the truth. Then a reference, such as other judges or a person, is
asked about a share of *whole groups*, since rollouts by themselves cannot say what happens within
groups. Which groups these are is drawn and written down before the reference is asked.

Each run's steps are divided into `STRETCHES`, of which the first and the last are the tenths that a
shift compares. In each stretch the groups are in a random order, and the first of it are drawn: a
larger share takes more of the same order. Runs of a seed have one order, as they answered the same
prompts. All that lies in ``replays/audit`` of the study's folder.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from study.cell.folder import CellFolder
from study.cell.records import EVALUATIONS
from study.config.schema import Study
from study.errors import UserError
from study.screen import FORMULA
from study.system.files import Damaged, read_json, read_text, write_json, write_text

AUDIT = "audit"
"""Name of its folder among the replays of a study; no replay has this name."""
STRETCHES = 10
FEWEST, FEWEST_ROWS = 2, 10
"""Groups that are drawn of each stretch at least, as one alone would have no interval; and
held-out rows, which are few and say how far a run moved."""
PERSON = "person"
"""The reference that is no judge."""
LARGEST_ANSWERS = 256 << 20
"""Bytes of a person's answers that are read."""
_GROUPS, _QUESTIONS, _ANSWERS = "groups.csv", "questions.csv", "answers.csv"
_GROUP_HEAD = ("cell", "step", "group", "stretch")
_QUESTION_HEAD = ("answer", "group", "prompt", "text", "score")
"""Where ``score`` is for who answers in a spreadsheet."""
_ANSWER_HEAD = ("answer", "score")


class Drawn(NamedTuple):
    """One group that was drawn: its run, its place there, and the stretch of the run's steps.

    The answers to held-out rows of a run stand as those of a run of their own: `held_out`.
    """

    cell: str
    step: int
    group: int
    stretch: int


@dataclass(frozen=True)
class Audit:
    """What was drawn of a study, and for whom.

    Attributes:
        reference: names of the judges that are asked, or `PERSON`.
        reference_ids: identities of those judges.
        share: of the groups of each stretch that was drawn; the largest so far.
        seed: of the draw.
        rules: whether answers whose truth a rule knows were drawn too, to compare the reference.
        groups: that were drawn, in the order in which a person is shown them.
        sizes: cell -> stretch -> groups that were drawn from.
        steps: cell -> steps that the run made.
        asked: so many groups, from the first on, the judges have been asked about. Only these
            count: of others it hangs on where a command was stopped whether they were.
    """

    reference: tuple[str, ...]
    reference_ids: tuple[str, ...]
    share: float
    seed: int
    rules: bool
    groups: tuple[Drawn, ...] = ()
    sizes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    asked: int = 0

    @property
    def by_person(self) -> bool:
        """Whether a person answers."""
        return self.reference == (PERSON,)

    def steps_of(self, cell: str) -> dict[int, list[int]]:
        """Step -> groups drawn of it, of one run."""
        by_step: dict[int, list[int]] = defaultdict(list)
        for drawn in self.groups:
            if drawn.cell == cell:
                by_step[drawn.step].append(drawn.group)
        return dict(sorted(by_step.items()))


@dataclass(frozen=True)
class Frame:
    """The groups of a run that may be drawn: step and number of each, (P,), and the steps that the
    run made.

    Runs that have one ``seed`` have one order. Held-out rows are the same in every run and at every
    step, and so is their order.
    """

    cell: str
    seed: int
    steps: int
    step_P: np.ndarray
    group_P: np.ndarray

    @property
    def stretch_P(self) -> np.ndarray:
        """The stretch of each group; evaluations on held-out rows are one each."""
        if run_of(self.cell) == self.cell:
            return stretches(self.steps)[self.step_P - 1]
        return np.unique(self.step_P, return_inverse=True)[1]

    @property
    def fewest(self) -> int:
        """Groups that are drawn of each stretch at least."""
        return FEWEST if run_of(self.cell) == self.cell else FEWEST_ROWS

    def number(self, draw_seed: int, step: int, group: int) -> float:
        """The number by which a group stands in the random order of its stretch."""
        if run_of(self.cell) == self.cell:
            return _uniform(draw_seed, self.seed, step, group)
        return _uniform(draw_seed, EVALUATIONS, group)


def held_out(cell: str) -> str:
    """The name under which the answers of a run to held-out rows are drawn."""
    return f"{cell}/{EVALUATIONS}"


def run_of(cell: str) -> str:
    """The run whose answers are drawn under a name."""
    return cell.removesuffix(f"/{EVALUATIONS}")


def stretches(steps: int) -> np.ndarray:
    """The stretch of each of T steps, 0 to `STRETCHES` - 1: the first and the last tenth (rounded
    up), and what is between them in parts of about one length."""
    tail = math.ceil(steps / STRETCHES)
    place_T = np.zeros(steps, dtype=int)
    middle = np.arange(tail, max(steps - tail, tail))
    place_T[middle] = 1 + np.arange(len(middle)) * (STRETCHES - 2) // max(len(middle), 1)
    if steps > tail:
        place_T[-tail:] = STRETCHES - 1
    return place_T


def draw(
    frames: Sequence[Frame], share: float, seed: int, earlier: Sequence[Drawn] = ()
) -> tuple[list[Drawn], dict[str, dict[int, int]]]:
    """The groups that a share takes, those drawn ``earlier`` first, and how many each stretch of
    each run has.

    In every prefix of the new ones each stretch has about the same share of its groups.
    """
    chosen: list[tuple[float, float, Drawn]] = []
    sizes: dict[str, dict[int, int]] = {}
    for frame in frames:
        stretch_P = frame.stretch_P
        sizes[frame.cell] = {}
        for stretch in np.unique(stretch_P).tolist():
            here = stretch_P == stretch
            pairs = zip(frame.step_P[here].tolist(), frame.group_P[here].tolist(), strict=True)
            order = sorted((frame.number(seed, *pair), *pair) for pair in pairs)
            size = sizes[frame.cell][stretch] = len(order)
            count = min(size, max(frame.fewest, math.ceil(round(share * size, 9))))
            for rank, (_, step, group) in enumerate(order[:count]):
                drawn = Drawn(frame.cell, step, group, stretch)
                tie = _uniform(seed, frame.cell, step, group)
                chosen.append(((rank + 0.5) / size, tie, drawn))
    known = {*earlier}
    return [*earlier, *(drawn for *_, drawn in sorted(chosen) if drawn not in known)], sizes


def drawn_of(config: Study) -> frozenset[tuple[int, int]]:
    """Step and group of what ``truth.audit`` asks about while a run is trained; none without one.
    The declared steps decide it, before the first of them."""
    if not config.truth.audit:
        return frozenset()
    steps, groups = config.trainer.steps, config.trainer.prompts_per_step
    return drawn_places(
        config.seed, steps, groups, share=config.truth.share, draw_seed=config.truth.seed
    )


@lru_cache(maxsize=64)
def drawn_places(
    seed: int, steps: int, groups: int, *, share: float, draw_seed: int
) -> frozenset[tuple[int, int]]:
    """Step and group of what is drawn of a run of T steps of so many groups, before its first."""
    step_P, group_P = (place.ravel() + 1 for place in np.indices((steps, groups)))
    chosen, _ = draw([Frame("", seed, steps, step_P, group_P - 1)], share, draw_seed)
    return frozenset((drawn.step, drawn.group) for drawn in chosen)


def _uniform(*words: object) -> float:
    """A number in [0, 1) that these words alone decide."""
    digest = hashlib.sha256(":".join(map(str, words)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def folder_of(study_dir: Path) -> Path:
    """Where the audit of a study lies."""
    return study_dir / "replays" / AUDIT


def cell_of(study_dir: Path, cell: str) -> CellFolder:
    """The folder with the reference's verdicts on the answers of one run."""
    return CellFolder(folder_of(study_dir) / cell)


def save(audit: Audit, study_dir: Path) -> None:
    """Write what was drawn."""
    folder = folder_of(study_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / _GROUPS, _csv(_GROUP_HEAD, audit.groups))
    settings = {key: value for key, value in asdict(audit).items() if key != "groups"}
    write_json(folder / "audit.json", settings)


def load(study_dir: Path) -> Audit | None:
    """The audit of a study; None where it has none. Raises Damaged: its files cannot be read."""
    path = folder_of(study_dir) / "audit.json"
    if not path.exists():
        return None
    files = [file for file in (path, path.with_name(_GROUPS)) if file.exists()]
    stats = [file.stat() for file in files]
    return _load(path, tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats))


@lru_cache(maxsize=4)
def _load(path: Path, stamps: tuple[tuple[int, int, int], ...]) -> Audit:
    """What a file says as long as it is the same: every run of a study reads it."""
    settings = read_json(path)
    try:
        audit = Audit(
            reference=tuple(map(str, settings["reference"])),
            reference_ids=tuple(map(str, settings["reference_ids"])),
            share=float(settings["share"]),
            seed=int(settings["seed"]),
            rules=bool(settings["rules"]),
            sizes={
                str(cell): {int(stretch): int(size) for stretch, size in of_cell.items()}
                for cell, of_cell in settings["sizes"].items()
            },
            steps={str(cell): int(steps) for cell, steps in settings["steps"].items()},
            asked=int(settings["asked"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(path, f"says nothing of an audit ({error})") from error
    path = path.with_name(_GROUPS)
    try:
        rows = _rows(path, _GROUP_HEAD, read_text(path))
        drawn = (Drawn(cell, int(step), int(group), int(at)) for cell, step, group, at in rows)
        return replace(audit, groups=tuple(drawn))
    except FileNotFoundError as error:
        raise Damaged(path, "is not there") from error
    except ValueError as error:
        raise Damaged(path, f"holds no places of groups ({error})") from error


def question_of(audit: Audit, prompt_id: str, text: str) -> str:
    """The name under which a person is shown an answer: it tells nothing of the run, and equal
    answers to a prompt have one, so that nobody is asked twice."""
    return hashlib.sha256(f"{audit.seed}:{prompt_id}:{text}".encode()).hexdigest()[:16]


class Question(NamedTuple):
    """An answer that a person is shown: its name, the place in the draw of a group that it is in,
    what the policy was asked, and what it wrote."""

    name: str
    group: int
    prompt: str
    text: str


def save_questions(study_dir: Path, questions: Iterable[Question]) -> Path:
    """Write what a person is shown, in that order; a text that a spreadsheet would take for a
    formula has an apostrophe before it. Returns the file."""
    path = folder_of(study_dir) / _QUESTIONS
    rows = (
        (each.name, each.group, _plain(each.prompt), _plain(each.text), "") for each in questions
    )
    write_text(path, _csv(_QUESTION_HEAD, rows))
    return path


def _plain(text: str) -> str:
    return f"'{text}" if text.startswith(tuple(FORMULA)) else text


def load_questions(study_dir: Path) -> list[tuple[str, int]]:
    """Each answer with the place of its group in the draw, in the order in which a person is shown
    them. Raises Damaged: that cannot be read."""
    path = folder_of(study_dir) / _QUESTIONS
    try:
        rows = _rows(path, _QUESTION_HEAD[:2], read_text(path, largest=LARGEST_ANSWERS))
        return [(name, int(group)) for name, group in rows]
    except FileNotFoundError as error:
        raise Damaged(path, "is not there") from error
    except ValueError as error:
        raise Damaged(path, f"holds no questions ({error})") from error


def answered_groups(
    audit: Audit, questions: Iterable[tuple[str, int]], answers: Mapping[str, float | None]
) -> set[tuple[str, int, int]]:
    """Cell, step and group of what a person has answered whole, up to the first group that is not:
    a prefix of a random order is a random sample, and a choice of answers is none."""
    members: dict[int, list[str]] = defaultdict(list)
    for name, place in questions:
        members[place].append(name)
    whole = set()
    for place, drawn in enumerate(audit.groups):
        if not members[place] or not all(name in answers for name in members[place]):
            break
        whole.add((drawn.cell, drawn.step, drawn.group))
    return whole


def save_answers(study_dir: Path, answers: Mapping[str, float | None]) -> None:
    """Write what a person said so far."""
    rows = ((name, "" if score is None else repr(score)) for name, score in answers.items())
    write_text(folder_of(study_dir) / _ANSWERS, _csv(_ANSWER_HEAD, rows))


def load_answers(study_dir: Path) -> dict[str, float | None]:
    """What a person said so far. Raises Damaged: that cannot be read."""
    path = folder_of(study_dir) / _ANSWERS
    if not path.exists():
        return {}
    try:
        return read_answers(path)
    except Damaged:
        raise
    except UserError as error:
        raise Damaged(path, f"cannot be read: {error}") from error


def read_answers(path: Path, known: Iterable[str] | None = None) -> dict[str, float | None]:
    """Answer -> its score in [0, 1] in a file of a person's; None where the person could not tell.

    Args:
        known: answers that were asked about; without it all are taken.

    Raises:
        UserError: no such file, no such answer, one that stands twice, or a score out of bounds.
    """
    try:
        rows = _rows(path, _ANSWER_HEAD, read_text(path, largest=LARGEST_ANSWERS))
    except FileNotFoundError as error:
        raise UserError(f"There is no file {path}.") from error
    except ValueError as error:
        raise UserError(
            f"{path} is no file of answers: {error}. Its first line names the columns, answer and"
            " score among them, and each further line has an answer's name and a score from 0 to 1,"
            " or nothing for what cannot be told."
        ) from error
    names = None if known is None else {*known}
    scores: dict[str, float | None] = {}
    for number, (name, text) in enumerate(rows, 2):
        where = f"line {number} of {path}"
        if name in scores:
            raise UserError(f"{where} answers {name:.20} again. Leave one of the lines.")
        if names is not None and name not in names:
            raise UserError(
                f"{where} is about {name:.20}, which nobody asked. The names are those in the file"
                " that this study's audit wrote."
            )
        scores[name] = _score(text, where)
    return scores


def _score(text: str, where: str) -> float | None:
    """A score as it was typed; None for nothing."""
    if not text.strip():
        return None
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= 1:
        raise UserError(f"{where} has the score {text:.20}. Scores are from 0 to 1, or nothing.")
    return score


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return file.getvalue()


def _rows(path: Path, names: Sequence[str], text: str) -> list[list[str]]:
    """What the rows below a head have in these columns.
    Raises ValueError: the head has not all of them, or a row has another length."""
    csv.field_size_limit(LARGEST_ANSWERS)
    try:
        head, *rows = [row for row in csv.reader(io.StringIO(text.removeprefix("\ufeff"))) if row]
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path.name} is no CSV") from error
    head = [name.strip() for name in head]
    if lacking := [name for name in names if name not in head]:
        raise ValueError(f"its first line has no {', '.join(lacking)}")
    if wrong := next((row for row in rows if len(row) != len(head)), None):
        raise ValueError(f"a line has {len(wrong)} entries, and the first {len(head)}")
    places = [head.index(name) for name in names]
    return [[row[place] for place in places] for row in rows]
