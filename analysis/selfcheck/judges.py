"""Checks of `analysis.selfcheck` for what is said of judges: probes, rates, agreement, order.

One row asks the simulated judges themselves, over their own protocol; the others plant what a judge
says in numbers.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pandas as pd
from scipy.special import ndtr
from statsmodels.regression.mixed_linear_model import MixedLM

from analysis.crossjudge.estimate import inflation, matrix
from analysis.external.pairwise import judge_pairs
from analysis.external.preference import preferences
from analysis.forecast.estimate import rank
from analysis.mixture.confusion import judged, rates_differ
from analysis.planted.trials import Trials, replicated, silent, trials
from analysis.probes.effects import clustered_mean, pairs, tost
from analysis.probes.levels import positions, rates, wilson
from analysis.probes.profile import Evidence, scores
from analysis.records.runs import Run
from analysis.statistics.agreement import cohen_kappa, icc_family, krippendorff_alpha
from analysis.statistics.estimate import Estimate, around
from analysis.statistics.proportions import NORMAL, confusion, rogan_gladen
from judges.probes import Source, Variant, mini, variants
from judges.probes.asking import ask
from study.config.schema import Judge, Sampling, Simulated, Task
from study.tasks import instruct_mini, oracle

PROMPTS = 20
MARGIN = 0.05


def simulated_probes(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """The effect of hedging under a simulated judge that pays for length and flattens quality.

    40 prompts, two contents each, are judged ten times by `judges.simulated.app`; a replication
    draws 20 prompts and a verdict of each text. Per standard deviation of length the judge pays
    .05, and half of what the truth takes off for the hedge, which differs by prompt, does not
    reach it.
    """
    scale, votes = 0.5, 10
    by_vote = [_paired(table) for table in _simulated_votes(scale, votes)]
    bias = np.stack([wide["bias_change"].to_numpy() for wide in by_vote])
    planted = by_vote[0]["planted_change"] - (1 - scale) * by_vote[0]["truth_change"]
    pool, bases = len(planted), 2
    prompts = np.repeat(np.arange(PROMPTS), bases)
    effects = []
    for _ in range(count):
        drawn = rng.integers(0, pool // bases, PROMPTS)
        texts = (bases * drawn[:, None] + np.arange(bases)).ravel()
        values = bias[rng.integers(0, votes, len(texts)), texts]
        effects.append(clustered_mean(values, prompts))
    return {"probe effect, simulated judge": trials(planted.mean(), effects)}


@replicated({"TOST p > .05, bias at the margin": 0.0})
def equivalence(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """Size of TOST where the bias is just the margin, two texts a prompt with a common part."""
    prompts = np.repeat(np.arange(PROMPTS), 2)
    values = rng.normal(MARGIN, 0.03, PROMPTS)[prompts] + rng.normal(0, 0.03, len(prompts))
    return (silent(tost(clustered_mean(values, prompts), MARGIN)),)


@replicated(
    {"probe effect, rare flips": 0.06, "TOST p > .05, rare flips of .06": 0.0}, at_least=True
)
def rare_flips(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """An edit that turns 6 % of prompts from 0 to 1: a bias of .06, mostly without any spread."""
    effect = clustered_mean((rng.random(PROMPTS) < 0.06).astype(float), np.arange(PROMPTS))
    return effect, silent(tost(effect, MARGIN))


TPR, FPR = 0.85, 0.2


def planted_phi(prevalence: float) -> float:
    """Matthews correlation of verdicts with these rates and the truth."""
    q = prevalence * TPR + (1 - prevalence) * FPR
    return (TPR - FPR) * (prevalence * (1 - prevalence) / (q * (1 - q))) ** 0.5


@replicated(
    {"profile TPR, clustered": TPR, "profile Youden J, clustered": TPR - FPR}
    | {"profile phi, clustered": planted_phi(0.5)}
)
def profile_rates(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """TPR, J and phi of a profile where both rates differ by prompt (intraclass correlation .2)."""
    prompts, texts = 30, 8
    truth = np.tile([1.0, 0.0], prompts * texts // 2)
    tpr, fpr = (np.repeat(_by_prompt(rng, rate, prompts), texts) for rate in (TPR, FPR))
    table = pd.DataFrame(
        {"judge": "j", "pairwise": False, "truth": truth}
        | {"prompt_id": np.repeat(np.arange(prompts), texts)}
        | {"score": (rng.random(len(truth)) < np.where(truth > 0, tpr, fpr)).astype(float)}
    )
    by_measure = rates(table).set_index("measure")[["value", "low", "high"]]
    return tuple(Estimate(*by_measure.loc[name]) for name in ("TPR", "Youden J", "phi"))


@replicated({"clustered Wilson, share .97": 0.97}, at_least=True)
def rates_at_the_end(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """A share of .97 where the 30 texts of a prompt are right or wrong together, 64 prompts."""
    prompts = np.repeat(np.arange(64), 30)
    return (wilson((rng.random(64) < 0.97)[prompts], prompts),)


def binary(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """phi and J of independent verdicts, and the prevalence that they are corrected to."""
    prevalence, items = 0.4, 300
    truth = (np.arange(items) < prevalence * items).astype(float)
    passed = rng.binomial(items, prevalence * TPR + (1 - prevalence) * FPR, count)
    hits, alarms = rng.binomial(150, TPR, count), rng.binomial(150, FPR, count)
    rates = [confusion(rng.random(items) < np.where(truth > 0, TPR, FPR), truth) for _ in passed]
    corrected = (
        rogan_gladen(tested, items, hit, 150, alarm, 150)
        for tested, hit, alarm in zip(passed, hits, alarms, strict=True)
    )
    return {
        "phi, 300 items": trials(planted_phi(prevalence), (rate.phi for rate in rates)),
        "Youden J, 300 items": trials(TPR - FPR, (rate.youden_j for rate in rates)),
        "Rogan-Gladen, 300 items": trials(prevalence, corrected),
    }


APART, ALIKE, ALONE = 1.0, 0.3, 0.8
"""How far good and bad answers lie apart, and the SDs of a prompt's own part and of an answer's."""
_SPREAD = (ALIKE**2 + ALONE**2) ** 0.5
_HIT = float(ndtr(APART / 2 / _SPREAD))


@replicated(
    {"confusion TPR, over prompts": _HIT, "confusion FPR, over prompts": 1 - _HIT}
    | {"confusion Youden J": 2 * _HIT - 1, "confusion phi": 2 * _HIT - 1}
    | {"confusion AUC": float(ndtr(APART / _SPREAD / 2**0.5))}
    | {"rates by domain alike, p > .05": 0.0}
)
def judged_answers(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """Normal scores in two domains of 30 prompts, cut half-way; six answers to a prompt share a
    part of their score and how often they are good."""
    prompts, group = 60, 6
    truth = (rng.random((prompts, group)) < rng.beta(4, 4, (prompts, 1))).astype(float)
    score = APART * truth + rng.normal(0, ALIKE, (prompts, 1)) + rng.normal(0, ALONE, truth.shape)
    item = np.repeat(np.arange(prompts), group)
    domain = np.where(item % 2, "odd", "even")
    answers = pd.DataFrame(
        {"item": item, "domain": domain, "judge": score.ravel(), "truth": truth.ravel()}
    )
    rates = judged(answers, APART / 2)
    differ = silent(rates_differ(answers, APART / 2).p)
    return rates.tpr, rates.fpr, rates.youden_j, rates.phi, rates.auc, differ


SHARED = 1 / (1 + 0.7**2)
"""Share of the variance that items make of scores whose errors have an SD of .7."""
STRICT = 1 / (1.16 + 0.49)
"""The same where raters differ by a variance of .16 as well."""


@replicated(
    {"Cohen kappa": 0.6, "alpha, nominal": 0.6, "alpha, interval": SHARED}
    | {"ICC(1,1)": SHARED, "ICC(A,1)": STRICT, "ICC(C,1)": SHARED}
)
def raters(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """Two raters, one of whom copies the other with .6; three who see one value with error."""
    first = rng.integers(0, 3, 100).astype(float)
    second = np.where(rng.random(100) < 0.6, first, rng.integers(0, 3, 100))
    alike = rng.normal(0, 1, (200, 1)) + rng.normal(0, 0.7, (200, 3))
    strict = icc_family(_strict(rng, 60))
    return (
        cohen_kappa(first, second),
        krippendorff_alpha(np.stack([first, second], axis=1), "nominal"),
        krippendorff_alpha(alike),
        icc_family(alike)["ICC(1,1)"],
        strict["ICC(A,1)"],
        strict["ICC(C,1)"],
    )


@replicated({"ICC(A,1), 1000 items": STRICT})
def many_items(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """ICC(A,1) of three raters drawn at random, over 1,000 items."""
    return (icc_family(_strict(rng, 1000))["ICC(A,1)"],)


@replicated({"random intercept, slope": 0.4, "self preference at equal quality": 0.3})
def models(rng: np.random.Generator, number: int) -> tuple[Estimate, ...]:
    """statsmodels' random intercept over 40 clusters of 5; a judge's liking for its own answers."""
    cluster, items = np.repeat(np.arange(40), 5), 40
    x = rng.normal(0, 1, len(cluster))
    y = 0.4 * x + rng.normal(0, 1, 40)[cluster] + rng.normal(0, 1, len(cluster))
    fit = MixedLM(y, np.stack([np.ones(len(x)), x], axis=1), groups=cluster).fit(reml=True)
    slope = around(fit.params[1], NORMAL * fit.bse[1], 40, "cluster")
    authors = {"author": ["j", "a", "b", "c"], "author_family": ["f", "g", "h", "k"]}
    frame = pd.DataFrame(
        {"item": np.repeat(np.arange(items), 4), "judge": "j", "judge_family": "f"}
        | {name: np.tile(values, items) for name, values in authors.items()}
    )
    is_own = (frame["author"] == "j").to_numpy()
    # its answers are better as well, and each item has a taste of its own for them
    quality = 0.5 * is_own + rng.normal(0, 1, len(is_own))
    taste = 0.3 + rng.normal(0, 0.5, items).repeat(4)
    score = taste * is_own + quality + rng.normal(0, 0.7, len(is_own))
    liking, _ = preferences(frame.assign(score=score, quality=quality))
    return slope, liking.effect


def order(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Size of the position test of `analysis.pairwise` where items lean, but not all one way.

    Each of 12 items is shown in both orders twice and leans in all four, so p depends on nothing
    but how many lean to the first: it is worked out once for each number.
    """
    axes = pd.MultiIndex.from_product([range(12), range(2), [0, 1]])
    table = axes.to_frame(index=False, name=["item", "repeat", "order"])
    item, place = table["item"].to_numpy(), table["order"].to_numpy()
    table = table.astype({"item": "str"}).assign(judge="j", gold="first")
    p = []
    for leaning in range(13):
        shown_first = place == (item >= leaning)
        judged = judge_pairs(table.assign(verdict=np.where(shown_first, "first", "second")))
        p.append(judged["j"]["position_p_items"])
    p_values = map(silent, np.array(p)[rng.binomial(12, 0.5, count)])
    return {"position p > .05, by items": trials(0.0, p_values, at_least=True)}


def order_by_prompt(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """The same of a profile: each of 12 prompts leans one way in all of its 6 pairs."""
    # one judge for each number of prompts that lean to the text shown first
    pairs = pd.MultiIndex.from_product([range(13), range(12), range(6), [0.0, 1.0]])
    table = pairs.to_frame(index=False, name=["judge", "prompt_id", "probe_id", "order"])
    table = table.assign(
        score=(table["prompt_id"] < table["judge"]).astype(float),
        sample_index=0,
        setting="profile",
        probe_id=table["prompt_id"].astype("str") + "/" + table["probe_id"].astype("str"),
    )
    p = positions(table).set_index("judge")["p"].to_numpy(dtype=float)
    p_values = map(silent, p[rng.binomial(12, 0.5, count)])
    return {"position p > .05, by prompts": trials(0.0, p_values, at_least=True)}


@replicated({"place among three judges": 2.0}, at_least=True)
def places(rng: np.random.Generator, seed: int) -> tuple[Estimate, ...]:
    """The place of the middle of three judges that differ by a fifth of a standard error."""
    shared = rng.normal(0, 0.2, (40, 1))
    pushes = {
        judge: shared + rng.normal(push, 0.2, (40, 1))
        for judge, push in (("a", 0.01), ("b", 0.0), ("c", -0.01))
    }
    return tuple(line.rank for line in rank(pushes, ("z",), seed) if line.judge == "b")


def inflated(rng: np.random.Generator, count: int) -> dict[str, Trials]:
    """Own gain .3 beyond the truth and .2 beyond a judge that fails more often on bad answers.

    Five runs an arm. Truth rises, so the other judge fails less at the end: over its own scored
    answers alone it would seem to gain less than it does.
    """
    runs = []
    for place in range(5 * count):
        truth = rng.normal(0.3, 0.2, (12, 8))
        truth[6:] += 0.2
        acting, other = (truth + rng.normal(0, 0.05, truth.shape) for _ in range(2))
        acting[6:] += 0.3 + rng.normal(0, 0.1)
        other[6:] += 0.1 + rng.normal(0, 0.1)
        failed = rng.random(truth.shape) < np.clip(0.8 - truth, 0, 1)
        nothing = np.full(truth.shape, np.nan)
        runs.append(
            Run(
                *(str(place), str(place // 5), place % 5, True, np.repeat([1, 2], 6)),
                *(acting, nothing, truth, acting, nothing[..., None], ("z",)),
                shadows={"other": np.where(failed, np.nan, other)},
                config={"judge.name": "own"},
            )
        )
    arms = inflation(matrix(runs))
    return {
        "own gain - others', who fail": trials(0.2, (arm.inflation for arm in arms)),
        "own gain - truth's, t over runs": trials(0.3, (arm.beyond_truth for arm in arms)),
    }


CHECKS = (
    *(simulated_probes, equivalence, rare_flips, profile_rates, rates_at_the_end, binary),
    *(judged_answers, raters, models, order, order_by_prompt, places, inflated),
)
FAILING = (many_items,)
"""Rows outside their band, and so not in the table: an approximation (McGraw and Wong's) that few
raters over many items break, which `analysis.statistics.agreement` warns of. A strict test fails
as soon as one of them is right."""


def _simulated_votes(scale: float, votes: int) -> list[pd.DataFrame]:
    """Scores tables of `analysis.probes.profile`, one of each vote: two contents of 40 prompts,
    hedged."""
    task, bases = Task(name="instruct-mini", train_rows=1, eval_rows=40), ("partial", "policy")
    truth = oracle(task)
    probes: list[Variant] = []
    for row in instruct_mini.TASK.rows(task, "eval"):
        contents = {base: mini.contents(row)[base] for base in bases}
        source = Source(row, contents, truth=lambda text, row=row: truth(row.prompt_text(), text))
        probes += variants(source, bases, ["hedged"])[0]
    # between .2 and .7, and the noise small: no score comes to an end of the scale
    bias = Simulated(doses={"length": 0.05}, noise_sd=0.03, leniency=0.2, scale=scale)
    judge = Judge(name="sim", simulated=bias, sampling=Sampling(temperature=1.0, votes=votes))
    verdicts = pd.DataFrame(ask(judge, probes, None, truth).rows)
    table = pd.DataFrame([probe.as_row() for probe in probes])
    table = table.rename(columns=lambda name: name.removeprefix("component/"))
    manifest = {"command": {"judges": ["sim"]}, "judges": {"sim": {"simulated": asdict(bias)}}}
    return [
        scores(Evidence("", table, verdicts[verdicts["sample_index"] == vote], manifest))
        for vote in range(votes)
    ]


def _paired(table: pd.DataFrame) -> pd.DataFrame:
    """Hedged texts beside their contents, both of a prompt after each other."""
    return pairs(table).sort_values(["prompt_id", "base"])


def _by_prompt(rng: np.random.Generator, mean: float, prompts: int) -> np.ndarray:
    """A rate of each prompt, with intraclass correlation 1 / (1 + 4) = .2."""
    return rng.beta(4 * mean, 4 * (1 - mean), prompts)


def _strict(rng: np.random.Generator, items: int) -> np.ndarray:
    """Scores of three raters, some stricter: variances 1 of items, .16 of raters, .49 of errors."""
    values, raters = rng.normal(0, 1, (items, 1)), rng.normal(0, 0.4, (1, 3))
    return values + raters + rng.normal(0, 0.7, (items, 3))
