"""The page of a rehearsal: printed, and kept beside what it read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.rehearsal.figures import Figures, broken, by_model, compared, faults
from experiments.rehearsal.profiles import Profiles, profile_of
from experiments.rehearsal.scale import STUDY, Scale
from study.config.endpoints import REHEARSED
from study.screen import plural, print_table, visible
from study.system.files import write_text

PAGE = "rehearsal.md"


def show(every: Figures, scale: Scale, profiles: Profiles, folder: Path) -> Path:
    """Print the figures and write them to `PAGE` in ``folder``, which is returned."""
    name = f"{STUDY}{every.full.experiment}"
    title = f"{name}: {REHEARSED}"
    figures, models = compared(every), by_model(every)
    print_table(figures, title)
    print_table(models, f"{title}; by model, at full size")
    lists = {
        "What broke": broken(every) or ["nothing"],
        "Faults that the endpoint made, as profiles say": faults(every) or ["none"],
        "How this was read": notes(every, scale, profiles),
    }
    for heading, lines in lists.items():
        print(f"{heading}:")
        for text in lines:
            print(visible(f"- {text}"))
    parts = [
        f"# {title}",
        "Judges were simulated and their verdicts drawn: nothing here is a result.",
        _table(figures),
        "## By model, at full size",
        _table(models),
        *(f"## {heading}\n\n{_list(lines)}" for heading, lines in lists.items()),
    ]
    path = folder / PAGE
    write_text(path, "\n\n".join(parts) + "\n")
    return path


def notes(every: Figures, scale: Scale, profiles: Profiles) -> list[str]:
    """What was rehearsed and how, and where its numbers are from."""
    first, trainer = every.sizes[0], every.full.config.trainer
    recorded = sum(each.rollouts for each in every.sizes)
    wanted = sum(each.expected for each in every.sizes)
    sizes = ", ".join(str(each.rollouts_a_step) for each in every.sizes)
    lines = [
        f"Rehearsed: {plural(first.cells, 'cell')} of {len(every.full.cells)},"
        f" {plural(scale.steps, 'step')} of {trainer.steps}, {sizes} of"
        f" {every.full.rollouts_a_step} rollouts a step, all times divided by {scale.factor:g};"
        f" {recorded:,} of {wanted:,} rollouts are on record",
        *every.full.notes,
        "The policy is not the study's: its time, its memory on a GPU and its checkpoints are not"
        " in these figures",
        "A step's wait is laid out from the rehearsed replies at full size; cells that ask one"
        " model at once share its server and its limits, and wait longer",
        "Disk and report are read from a line through the sizes; disk from texts that compress as"
        " they do here to texts that do not",
    ]
    for each in every.models:
        sources = profile_of(each.model, profiles).sources
        texts = "; ".join(f"{key}: {value}" for key, value in sources.items())
        lines.append(f"{each.model.role}={each.model.name} as by its profile. {texts}")
    return lines


def _table(rows: Sequence[dict[str, str]]) -> str:
    heads = list(rows[0])
    lines = [heads, ["---"] * len(heads), *([row[head] for head in heads] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in lines)
