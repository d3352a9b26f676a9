"""How the bias got in: the report's sections on ledger, propagation, onset and other judges.

Each section is a list of HTML fragments, and says in words what a study is too small or too blind
to show. Nothing is computed that the modules behind it do not stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import markup

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.ledger import Run

SHOWN = 5
"""Behaviours in the stacked ledger."""


def sections(study: Path | str, cells: Sequence[str]) -> list[str]:
    """All fragments for the runs ``cells`` of a study's folder."""
    from analysis.frames import runs_frame, steps_frame
    from analysis.ledger import read_runs
    from analysis.replays import with_replays

    study_dir = Path(study)
    table = runs_frame(study_dir)
    acting = dict(zip(table["cell"].astype("str"), table["judge"].astype("str"), strict=True))
    runs = [run for run in read_runs(study_dir)[0] if run.cell in set(cells)]
    runs.sort(key=lambda run: (run.arm, run.seed))
    logged = steps_frame(study_dir, table)
    return [
        *ledger_section(runs),
        *propagation_section(runs, logged),
        *onset_section(runs, study_dir),
        *frontier_section(runs, study_dir),
        *judges_section(with_replays(runs, study_dir)[0], acting),
    ]


def ledger_section(runs: Sequence[Run]) -> list[str]:
    """What the advantages were made of, step by step."""
    from analysis.ledger import ledger

    head = ["<h2>What did the advantages reward?</h2>"]
    steps = ledger(runs)
    unique = [name for name in steps if name.startswith("unique/")]
    if steps.empty or not steps[unique].notna().any().any():
        return [*head, markup.paragraph("No step has rewards that differ within a group.")]
    drawn = stacked(steps, unique)
    note = (
        "Share of the within-group variance of the advantage that each behaviour explains alone, "
        "and what several explain together, by training step (mean over runs). The rest is what no "
        "behaviour explains, the truth among it."
    )
    columns = ["bias_share", "tied", "dead", "amplification", "unscored"]
    means = steps.groupby("arm", observed=True)[columns].mean().reset_index()
    names = {
        "bias_share": "advantage variance from judge - truth",
        "tied": "groups tied in truth",
        "dead": "groups without a gradient",
        "amplification": "std scaling / none",
    }
    return [*head, _drawn(drawn, note), markup.table(means.rename(columns=names))]


def stacked(steps: pd.DataFrame, unique: Sequence[str]) -> Figure:
    """Explained advantage variance by behaviour as stacked areas, one panel per arm."""
    import matplotlib.pyplot as plt
    import numpy as np
    import seaborn as sns

    from analysis.figures import style

    top = list(steps[list(unique)].mean().sort_values(ascending=False).index[:SHOWN])
    arms = sorted(steps["arm"].unique())
    wide = min(3, len(arms))
    high = -(-len(arms) // wide)
    with style():
        made, panels = plt.subplots(
            high, wide, figsize=(3.4 * wide, 2.8 * high), sharex=True, sharey=True,
            layout="constrained", squeeze=False,
        )  # fmt: skip
        colours = [*sns.color_palette("colorblind", len(top)), (0.75, 0.75, 0.75)]
        labels = [*(name.removeprefix("unique/") for name in top), "several together"]
        for arm, axes in zip(arms, panels.flat, strict=False):
            part = steps[steps["arm"] == arm].groupby("step")[[*top, "advantage_r2"]].mean()
            alone = part[top].fillna(0.0).clip(lower=0.0).to_numpy().T
            together = np.clip(part["advantage_r2"].fillna(0.0) - alone.sum(axis=0), 0.0, None)
            axes.stackplot(part.index, *alone, together, colors=colours, labels=labels)
            axes.set(title=arm, ylim=(0, 1))
        for axes in panels[-1]:
            axes.set_xlabel("training step")
        for axes in panels[:, 0]:
            axes.set_ylabel("share of variance")
        for axes in list(panels.flat)[len(arms) :]:
            axes.set_visible(False)
        handles, names = panels.flat[0].get_legend_handles_labels()
        made.legend(handles, names, loc="outside lower center", ncols=3)
    return made


def propagation_section(runs: Sequence[Run], logged: pd.DataFrame) -> list[str]:
    """Predicted beside observed shifts, where there are runs enough."""
    import pandas as pd

    from analysis.calibration import FEWEST, calibrate
    from analysis.propagation import by_step, figure, paths, predict

    head = ["<h2>Does what was rewarded explain what was learned?</h2>"]
    long = [run for run in runs if len(set(run.step_P.tolist())) > 1]
    if len(long) <= FEWEST:
        return [
            *head,
            markup.paragraph(
                f"{len(long)} runs of two steps or more: the step size of a run is fitted on the "
                f"others, which takes {FEWEST + 1} runs."
            ),
        ]
    norms, rates = by_step(logged, "policy/grad_norm"), by_step(logged, "policy/learning_rate")
    rows = predict(paths(long, norms, rates), "adam")
    lines = calibrate(rows)
    table = pd.DataFrame([asdict(line) for line in lines])
    known = table.dropna(subset=["r2"])
    if known.empty:
        return [*head, markup.paragraph("No behaviour moved in a way that could be compared.")]
    shown = known.drop(columns="note").rename(columns={"low": "slope low", "high": "slope high"})
    drawn = figure(pd.DataFrame([asdict(row) for row in rows]), table)
    note = (
        "Shift of each run (last tenth of the steps minus first) against the one predicted from "
        "the covariance of advantage and behaviour in its own rollouts, with a step size fitted on "
        "the other runs. On the line: explained."
    )
    return [*head, _drawn(drawn, note), markup.table(shown)]


def onset_section(runs: Sequence[Run], study_dir: Path) -> list[str]:
    """When each run's gap began to grow, by the change point and by the threshold grid."""
    import pandas as pd

    from analysis.onset import dosed, line

    head = ["<h2>When did the judge leave the truth?</h2>"]
    found = [line(run, dosed(study_dir / run.cell)) for run in runs]
    note = (
        "Change point of judge minus truth with its 95 % interval, an early stop that would have "
        "ended the run, and the threshold grid of CHERRL (arXiv 2606.04923) for comparison; "
        "docs/onset.md says what each assumes."
    )
    table = pd.DataFrame([_onset_row(one) for one in found])
    return [*head, markup.paragraph(note), markup.table(table)]


def frontier_section(runs: Sequence[Run], study_dir: Path) -> list[str]:
    """Truth against judge along training, and the over-optimisation fits where KL is known."""
    import pandas as pd

    from analysis.overopt import rows

    head = ["<h2>How far can the judge be followed?</h2>"]
    known = [run for run in runs if (run.truth == run.truth).any()]
    if not known:
        return [*head, markup.paragraph("No rule knows the truth of these rows.")]
    note = (
        "Mean truth against mean judge score of each step, from the ring (first tenth) to the dot "
        "(last tenth), one line per run. On the grey line the judge says the truth."
    )
    fits = [row for run in known for row in rows(study_dir, run)]
    fitted = [row for row in fits if row["best"] is not None and row["score"] == "truth"]
    if not fitted:
        why = sorted({row["note"] for row in fits})
        return [*head, _drawn(frontier(known), note), markup.sentences(why)]
    table = pd.DataFrame(
        [
            {
                "arm": row["arm"],
                "seed": row["seed"],
                "form": row["best"]["form"],
                "peak (sqrt KL)": row["best"]["peak"],
                "low": row["low"],
                "high": row["high"],
                "largest sqrt KL": row["d_max"],
            }
            for row in fitted
        ]
    )
    return [*head, _drawn(frontier(known), note), markup.table(table)]


def frontier(runs: Sequence[Run]) -> Figure:
    """One path per run in the plane of judge score and truth."""
    import matplotlib.pyplot as plt
    import numpy as np

    from analysis.crossjudge import step_means
    from analysis.figures import looks, style

    look = looks(sorted({run.arm for run in runs}))
    with style():
        made, axes = plt.subplots(figsize=(6.5, 4.5), layout="constrained")
        axes.axline((0.5, 0.5), slope=1, color="0.6", linewidth=1, zorder=0)
        named: set[str] = set()
        for run in runs:
            x, y = step_means(run, run.judge), step_means(run, run.truth)
            window = -(-len(x) // 10)
            if not np.isfinite(x[:window]).any() or not np.isfinite(x[-window:]).any():
                continue
            colour = look[run.arm]["color"]
            smooth = np.ones(window) / window
            axes.plot(
                np.convolve(x, smooth, "valid"), np.convolve(y, smooth, "valid"),
                color=colour, linewidth=1, alpha=0.7, label="" if run.arm in named else run.arm,
            )  # fmt: skip
            named.add(run.arm)
            ends = [(np.nanmean(v[:window]), np.nanmean(v[-window:])) for v in (x, y)]
            axes.plot(ends[0][0], ends[1][0], "o", mfc="white", color=colour, markersize=6)
            axes.plot(ends[0][1], ends[1][1], "o", color=colour, markersize=6)
        axes.set(xlabel="judge score (mean of a step)", ylabel="rule truth (mean of a step)")
        made.legend(loc="outside lower center", ncols=2)
    return made


def _onset_row(found: Any) -> dict[str, Any]:
    """One line of `analysis.onset` for people."""
    onset, grid = found.onset, found.grid
    begun = onset.step == onset.step  # NaN is a gap that is not seen to rise
    return {
        "arm": found.arm,
        "seed": found.seed,
        "gap, first": found.gap_first,
        "gap, last": found.gap_last,
        "onset (step)": f"{onset.step:.0f} {markup.bracket(onset.low, onset.high)}"
        if begun
        else "none",
        "p": markup.p_value(onset.p),
        "early stop (step)": "" if found.alarm is None else str(found.alarm),
        "threshold grid (step)": _grid(grid),
        "note": onset.note,
    }


def _grid(grid: Any) -> str:
    """Mode and range of the threshold grid; the command `analysis.onset` says why there is none."""
    return "not resolved" if grid.mode is None else f"{grid.mode} [{grid.first}, {grid.last}]"


def _drawn(figure: Figure, note: str) -> str:
    """The figure as HTML, closed: a notebook shows every figure that is left open once more."""
    import matplotlib.pyplot as plt

    text = markup.figure(figure, note)
    plt.close(figure)
    return text


def judges_section(runs: Sequence[Run], acting: dict[str, str]) -> list[str]:
    """Every policy under every judge that looked on, and what was given up."""
    import pandas as pd

    from analysis.crossjudge import (
        agreement,
        agreement_figure,
        figure,
        inflation,
        matrix,
        substitutions,
    )

    head = ["<h2>Do other judges agree?</h2>"]
    if not any(run.shadows for run in runs):
        body = [
            markup.paragraph(
                "No other judge looked on. Type shadow=[NAME,NAME] with the sweep, or score the "
                "recorded rollouts again: python -m judges.replay study=... judge=NAME"
            )
        ]
    else:
        table = matrix(runs, acting)
        note = (
            "Gain in score from the first to the last tenth of the steps, by the judge that "
            "trained (rows) and the judge that scored (columns); mean over runs."
        )
        gains = pd.DataFrame([asdict(one) for one in inflation(table)])
        shared = (
            "Correlation of two judges' scores of the same rollouts, centred within groups: only "
            "differences inside a group reach an advantage."
        )
        body = [
            _drawn(figure(table), note),
            markup.table(gains),
            _drawn(agreement_figure(agreement(runs, acting)), shared),
        ]
    pairs = substitutions(runs)
    said = [
        f"Under {one.arm}, {one.risen} rose by at least {one.up:.2f} SD in every run while "
        f"{one.fallen} fell by at least {-one.down:.2f} SD ({one.runs} runs)."
        for one in pairs
    ]
    none = "No arm raised one behaviour and lowered another in all of its runs (0.25 SD each)."
    return [*head, *body, markup.sentences(said or [none])]
