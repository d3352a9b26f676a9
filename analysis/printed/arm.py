"""What the commands print that compare arms: who taught what, and how surely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.arm.crossjudge import mean_gains
from analysis.arm.dose import straight
from analysis.arm.ranking import moved_most
from analysis.reports.figures import dose_caption

LEGEND = (
    "r2, slope, inside: scale fitted on all other runs; _unseen: on the runs of other arms only,\n"
    "as for a judge that nobody trained on; r2_repeated: no theory, mean of the arm's other runs."
)


def crossjudge_text(result: Mapping[str, Any], least: float) -> str:
    """Gains by judge, inflation, agreement and substitutions."""
    table = pd.DataFrame(result["matrix"])
    wide = mean_gains(table)
    lines = ["Gain from the first to the last tenth of the steps, by the judge that scored, on"]
    lines += ["rollouts that the own judge scored as well; mean over runs:"]
    lines += [wide.round(3).to_string(), "\nGain with the own judge [95 % t intervals over runs]:"]
    lines.append(pd.DataFrame(result["inflation"]).round(3).to_string(index=False))
    lines += [f"  {name}: {meaning}" for name, meaning in result["inflation_columns"].items()]
    shared = pd.DataFrame(result["agreement"])
    shared = shared[shared["judge"] < shared["other"]]
    lines.append("\nCorrelation within groups, mean over runs [95 % t interval over runs]:")
    lines += [shared.round(3).to_string(index=False), ""]
    lines += [
        f"{swap['arm']}: {swap['risen']} rose by {swap['up']:.2f} SD or more beyond {swap['base']}"
        f" in each of {swap['runs']} pairs of runs, {swap['fallen']} fell by {-swap['down']:.2f}"
        f" SD or more; a bias-free arm would show any in {swap['chance']:.2g} of studies"
        for swap in result["substitutions"]
    ]
    if result["substitutions_untold"]:
        lines.append(result["substitutions_untold"])
    elif not result["substitutions"]:
        lines.append(
            f"No behaviour rose while another fell by {least:g} SD beyond {result['base_arm']} in"
            " all pairs of runs of an arm."
        )
    return "\n".join([*lines, *(f"problem: {problem}" for problem in result["problems"])])


def dose_text(result: dict[str, Any]) -> str:
    """Slope, line, monotone and Emax fits of one behaviour over doses."""
    fit, bent, slope = result["line"], result["emax"], result["slope"]
    curve = bent["note"] or (
        f"e0 {bent['e0']:.3g}, emax {bent['emax']:.3g}, ed50 {bent['ed50']:.3g}; AIC"
        f" {bent['aic']:.1f} against {bent['aic_line']:.1f} of the line"
    )
    return "\n".join(
        [
            f"{result['feature']}: {fit['runs']} runs, shift per unit of dose {slope['slope']:.3g}"
            f" [{slope['low']:.3g}, {slope['high']:.3g}] over {slope['n']} {slope['unit']}s"
            f"{' (' + slope['note'] + ')' if slope['note'] else ''}; trend p"
            f" {result['trend_p']:.4g}"
            f" (doses permuted{' within seeds' if slope['unit'] == 'seed' else ''})",
            f"line over runs taken for independent: [{fit['low']:.3g}, {fit['high']:.3g}],"
            f" R2 {fit['r2']:.3f}; {straight(result['lack_of_fit_p'])}",
            "monotone: "
            + ", ".join(f"{dose:g} -> {value:.3g}" for dose, value in result["monotone"]),
            f"Emax: {curve}",
            dose_caption(result),
            *(f"problem: {problem}" for problem in result["problems"]),
        ]
    )


def forecast_text(result: Mapping[str, Any]) -> str:
    """Pushes by judge and behaviour, ranks of those that are moved most, and the validation."""
    table = pd.DataFrame(result["pushes"])
    wide = table.pivot(index="judge", columns="feature", values="in_sds")
    lines = [f"Push at the first step, in SDs of each behaviour ({result['prompts']} prompts):"]
    lines.append(wide.round(3).to_string())
    for name in moved_most(result["pushes"]):
        lines.append(
            f"\n{name}: push [95 % t interval over prompts], rank [95 % over prompts drawn again]"
        )
        pushes = table[table.feature == name].set_index("judge")
        ranks = [line for line in result["ranks"] if line["feature"] == name]
        for line in sorted(ranks, key=lambda line: line["rank"]):
            row = pushes.loc[line["judge"]]
            lines.append(
                f"  {line['rank']}. [{line['low']}, {line['high']}] {line['judge']}:"
                f" {row.push:+.3g} [{row.low:+.3g}, {row.high:+.3g}]"
            )
    if "validation" in result:
        lines.append("\nForecast against the runs that were trained (rank correlation over arms):")
        lines.append(pd.DataFrame(result["validation"]).round(3).to_string(index=False))
    return "\n".join(lines)


def mediation_text(result: Mapping[str, Any]) -> str:
    """The effect on the truth, through the behaviour and past it."""
    return (
        f"truth per unit of dose, {len(result['runs'])} runs: total {result['total']:.3g}"
        f" [{result['total_low']:.3g}, {result['total_high']:.3g}], through {result['feature']}"
        f" {result['indirect']:.3g} [{result['low']:.3g}, {result['high']:.3g}], else"
        f" {result['direct']:.3g}\n"
        f"{result['feature']} per unit of dose {result['a']:.3g}, truth per unit of"
        f" {result['feature']} {result['b']:.3g}; a common cause with a correlation of"
        f" {result['rho']:.2f} would make all of the indirect effect. {result['note']}"
    )


def propagation_text(result: Mapping[str, Any]) -> str:
    """Calibration by behaviour, then the best-predicted one run by run."""
    rows, calibration = pd.DataFrame(result["runs"]), pd.DataFrame(result["calibration"])
    best = calibration.sort_values("r2", ascending=False)["feature"].iloc[0]
    columns = ["cell", "observed", "predicted", "low", "high", "of_truth", "of_bias", "scale"]
    columns += ["unseen", "repeated"]
    lines = [
        calibration.drop(columns="note").round(3).to_string(index=False),
        LEGEND,
        f"\n{best}, run by run (predicted with a scale fitted on the other runs):",
        rows[rows.feature == best][columns].to_string(index=False, float_format="%.3g"),
    ]
    if result["kl_limit"]:
        held = pd.DataFrame(result["kl_limit"])
        lines += [
            f"\n{best}, observed beside what the KL penalty would hold (Cov(A, z) / beta):",
            held[held.feature == best].to_string(index=False, float_format="%.3g"),
        ]
    return "\n".join([*lines, *(f"problem: {problem}" for problem in result["problems"])])
