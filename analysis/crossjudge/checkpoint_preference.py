"""Does a judge prefer the trained policy's answers to the first policy's, with and without rubric?

After Mahmoud et al. (2605.12474, sec. 4.1): where judges that see the rubric prefer the checkpoint
and judges that do not see it prefer the start, the rubric leaves something out.
"""

from __future__ import annotations

import numpy as np

from analysis.statistics.estimate import NAN, Estimate
from analysis.statistics.intervals import mean_interval
from analysis.statistics.proportions import logit_share


def wins(
    before_N: np.ndarray,
    before_prompt_N: np.ndarray,
    after_M: np.ndarray,
    after_prompt_M: np.ndarray,
) -> dict[object, float]:
    """Prompt -> chance that a later answer is scored above an earlier one to it, ties half.

    Prompts that one side did not answer, or answered without a score, are left out.

    Args:
        before_N: scores of N answers of the first policy by one judge; NaN is missing.
        before_prompt_N: labels of their prompts.
        after_M: scores of M later answers by the same judge.
        after_prompt_M: labels of their prompts.
    """
    sides = []
    for scores, prompts in ((before_N, before_prompt_N), (after_M, after_prompt_M)):
        has_score = np.isfinite(scores)
        by_prompt: dict[object, list[float]] = {}
        for prompt, score in zip(np.asarray(prompts)[has_score], scores[has_score], strict=True):
            by_prompt.setdefault(prompt, []).append(float(score))
        sides.append({prompt: np.array(values) for prompt, values in by_prompt.items()})
    first, later = sides
    return {
        prompt: float(np.mean(np.sign(later[prompt][:, None] - scores) / 2 + 0.5))
        for prompt, scores in first.items()
        if prompt in later
    }


def preference(wins_P: np.ndarray) -> Estimate:
    """Mean over P prompts of `wins`, or of a pairwise judge's verdicts as 1, .5 and 0: above .5
    the later answers are preferred. A t interval over prompts on the logit scale."""
    finite = np.asarray(wins_P, dtype=float)
    finite = finite[np.isfinite(finite)]
    prompts = len(finite)
    if not prompts:
        return Estimate(NAN, unit="prompt", note="no prompt has scored answers at both ends")
    variance = float(finite.var(ddof=1)) / prompts if prompts > 1 else NAN
    return logit_share(float(finite.mean()), variance, max(prompts - 1, 1), prompts, "prompt")


def left_out(rubric_P: np.ndarray, free_P: np.ndarray) -> Estimate:
    """How much more often judges prefer the later answers with the rubric than without it: mean
    difference of `wins` over prompts, with a t interval. Above 0 the rubric leaves out what the
    judges without it see."""
    return mean_interval((np.asarray(rubric_P) - np.asarray(free_P)).tolist(), "prompt")
