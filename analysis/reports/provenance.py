"""The report's tables as they are read, and where each number comes from."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import pandas as pd

from analysis.records.behaviour import TAIL
from analysis.reports import markup
from analysis.run.drift import JUDGED
from study.features import FEATURES

if TYPE_CHECKING:
    import pandas as pd

    from analysis.reports.words import Evidence

SUMMARY_MIME = "application/vnd.judgedrift.summary+json"
"""Under this type the notebook hands its summary rows to whoever renders it."""

LABELS = {
    "judge_score": "judge score",
    "truth": "rule truth",
    "gap": "judge - truth",
    "reward": "reward",
}
METHOD = (
    "How to read the numbers: brackets are 95 % t intervals over runs, because a judge is applied "
    "to a run and the prompts and steps inside it are not replicates. A shift is the mean of the "
    f"last {TAIL:.0%} of the recorded steps minus that of the first {TAIL:.0%}. Comparisons are "
    "paired by seed: arms of one seed share prompts, first weights and first rollouts. Behaviours "
    "are ranked by their difference in standard deviations over all answers; Holm p corrects over "
    "the measures of one arm. A verdict that could not be had is missing, never 0; worst cases "
    "are what a shift would be if every missing score were the end of the scale that lowers or "
    "raises it most. Standard errors are over runs (which the brackets use) and, for comparison, "
    "within these very runs with groups or rollouts taken for independent, which says nothing of "
    "other seeds."
)
SAMPLES = (
    "The same prompts under every arm, at the first, middle and last recorded step of one seed: "
    "the first prompts of the step and the first completion of each, not picked for their looks."
)


def runs_table(found: Evidence) -> pd.DataFrame:
    """State and axes of every run, finished or not."""
    runs = found.runs
    table = runs[["arm", "seed", "state", "step", "steps", "seconds", "policy", "reward"]]
    recorded = {run.cell: len(set(run.step_P.tolist())) for run in found.records.runs}
    table.insert(4, "recorded", [recorded.get(cell, 0) for cell in runs["cell"]])
    table = table.assign(used=["yes" if cell in found.cells else "no" for cell in runs["cell"]])
    error = runs["error"].str.slice(0, 120)
    return (table.assign(error=error) if error.ne("").any() else table).rename(
        columns={"used": "in the estimates"}
    )


def shifts_table(shifts: pd.DataFrame, base: str | None) -> pd.DataFrame:
    """A shift table with its intervals written out."""
    rows = []
    order = [*LABELS, *FEATURES]
    lost = (shifts.loc[shifts["metric"].isin(JUDGED), "unscored"] > 0).any()
    position = shifts["metric"].map({metric: k for k, metric in enumerate(order)})
    for row in shifts.assign(_at=position).sort_values(["_at", "arm"]).to_dict("records"):
        line = {
            "measure": f"{LABELS.get(row['metric'], row['metric'])} ({row['unit']})",
            "arm": row["arm"],
            "first": row["first"],
            "last": row["last"],
            "shift [95 %]": markup.estimate(row["shift"], row["low"], row["high"]),
            "SE: runs / groups / rollouts": " / ".join(
                markup.number(row[key]) for key in ("se", "group_se", "naive_se")
            ),
            "runs": row["n"],
        }
        if lost:
            line["missing"] = f"{100 * row['unscored']:.1f} %"
            line["worst cases"] = markup.bracket(row["worst_low"], row["worst_high"])
        if shifts["diff"].notna().any():
            paired = row["pairs"] > 0
            worst = markup.bracket(row["diff_worst_low"], row["diff_worst_high"])
            line |= {
                f"beyond {base} [95 %]": markup.estimate(
                    row["diff"], row["diff_low"], row["diff_high"]
                )
                if paired
                else "",
                **({f"worst cases beyond {base}": worst} if lost else {}),
                "pairs": markup.number(row["pairs"]) if paired else "",
                "p (sign flip)": markup.p_value(row["p_sign_flip"]) if paired else "",
                "p (t, Holm)": markup.p_value(row["p_holm"]) if paired else "",
            }
        notes = dict.fromkeys(
            note
            for text in (row["note"], row["diff_note"])
            if isinstance(text, str)
            for note in text.split("; ")
            if note and "exact p" not in note
        )
        rows.append(line | {"note": "; ".join(notes)})
    table = pd.DataFrame(rows)
    return (
        table
        if len(table) and table["note"].ne("").any()
        else table.drop(columns="note", errors="ignore")
    )


def failures_table(found: Evidence) -> pd.DataFrame:
    """The failure table with its share in percent; the counts of a row add up to its verdicts."""
    table = found.failures
    unscored = [f"{100 * share:.2f} %" for share in table["unscored"]]
    return table.assign(unscored=unscored)


def features_note(found: Evidence) -> str:
    """What was measured on, and which features never varied."""
    note = "Features are counted in the answer (thinking stripped); equal for every judge."
    if found.records.keyword:
        note += f" The keyword is {found.records.keyword!r}."
    if found.absent:
        note += f" The same in every answer, so left out: {', '.join(found.absent)}."
    return note


def _arm(found: Evidence, arm: str) -> str:
    """An arm's runs, those that no estimate rests on set apart."""
    own = found.runs[found.runs["arm"] == arm]
    used = own["cell"].isin(found.cells)
    told = ", ".join(own.loc[used, "cell"]) or "none"
    left_out = ", ".join(own.loc[~used, "cell"])
    text = f"{arm}: {told}" + (f"; in no estimate: {left_out}" if left_out else "")
    return f'<p id="{markup.anchor(arm)}">{markup.escape(text)}</p>'


def provenance(found: Evidence) -> list[str]:
    """Run ids with config hash, code version and numbers of records; problems; versions."""
    runs = found.runs
    rollouts = {run.cell: run.rollouts for run in found.records.runs}
    verdicts = found.records.outcomes.groupby("cell")["verdicts"].sum().to_dict()
    table = pd.DataFrame(
        {
            "run": runs["cell"],
            "config hash": runs["config_hash"],
            "task": runs["task"],
            "judge model": runs["judge_model"],
            "grading": runs["grading"],
            "on failure": runs["on_failure"],
            "rollouts": [rollouts.get(cell, 0) for cell in runs["cell"]],
            "verdicts": [int(verdicts.get(cell, 0)) for cell in runs["cell"]],
            "commit": [
                commit[:10] + (" + changes" if dirty is True else "")
                for commit, dirty in zip(runs["git_commit"], runs["git_dirty"], strict=True)
            ],
        }
    )
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("judgedrift", "numpy", "pandas", "scipy")
    )
    parts = [
        "<h3>Runs behind each arm</h3>",
        *(_arm(found, arm) for arm in found.arms),
        markup.paragraph(
            "Where a table does not say otherwise its unit is the run and its intervals are 95 % t "
            "over the runs of an arm. Onsets and peaks are of single runs and resample groups of "
            "rollouts; predicted shifts have prediction intervals over the other runs. "
            f"Computed with {packages}."
        ),
        markup.table(table),
        "<p>To make it again: <code>python -m analysis.report "
        f"study={markup.escape(found.name)}</code></p>",
    ]
    if found.records.problems:
        parts += ["<h3>Could not be read</h3>", markup.sentences(found.records.problems)]
    return parts
