"""What a design can see: against statsmodels, a numerical integral and counted sign patterns."""

import numpy as np
import pytest
from scipy import integrate, stats
from statsmodels.stats.power import TTestIndPower, TTestPower

from analysis.statistics.intervals import sign_flip_p
from analysis.statistics.power import fewest_seeds, power, power_lines, smallest_effect, smallest_p
from tests.conftest import run_alone


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("effect", [0.2, 0.9, 2.5])
def test_power_agrees_with_statsmodels(seeds: int, effect: float) -> None:
    own = TTestPower().power(effect, seeds, 0.05)
    assert power(effect, seeds, paired=True) == pytest.approx(own, abs=1e-9)
    two = TTestIndPower().power(effect, seeds, 0.05)
    assert power(effect, seeds, paired=False) == pytest.approx(two, abs=1e-9)


@pytest.mark.parametrize("seeds", [2, 3, 6])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 8])
@pytest.mark.parametrize("paired", [True, False])
def test_the_smallest_effect_has_the_power_asked_for(seeds, alpha, paired) -> None:
    """Integrated over the distribution of the sample variance, so far out too."""
    effect = smallest_effect(seeds, paired=paired, alpha=alpha)
    free = seeds - 1 if paired else 2 * seeds - 2
    shift = effect * (seeds if paired else seeds / 2) ** 0.5
    t = stats.t.ppf(1 - alpha / 2, free)

    def seen(chi2: float) -> float:
        limit = t * (chi2 / free) ** 0.5
        inside = stats.norm.sf(limit - shift) + stats.norm.cdf(-limit - shift)
        return float(stats.chi2.pdf(chi2, free) * inside)

    assert integrate.quad(seen, 0, np.inf, limit=500)[0] == pytest.approx(0.8, abs=1e-6)


def test_power_without_an_effect_is_the_size_of_the_test() -> None:
    assert power(0.0, 5, paired=True) == pytest.approx(0.05)
    assert power(0.0, 5, paired=False, alpha=0.01) == pytest.approx(0.01)


@pytest.mark.parametrize("seeds", range(1, 8))
def test_floors_are_what_the_exact_tests_give_at_best(seeds: int) -> None:
    assert smallest_p(seeds) == sign_flip_p(np.arange(1.0, seeds + 1))


def test_fewest_seeds() -> None:
    assert fewest_seeds() == 6
    assert fewest_seeds(0.25) == 4  # 2/2^3 is .25, not below it


def test_a_design_that_can_never_say_it_is_warned_of() -> None:
    lines = power_lines(5, 2)
    assert any(line.startswith("Warning: 5 seeds cannot reach p < 0.05") for line in lines)
    assert any("0.0625" in line and "seed=0,1,2,3,4,5" in line for line in lines)
    assert "1.68 SD of the differences by seed, paired" in lines[0] and "2.02 SD" in lines[0]
    assert not any(line.startswith("Warning") for line in power_lines(6, 2))


def test_more_arms_ask_for_more() -> None:
    lines = power_lines(6, 4)
    strict = smallest_effect(6, paired=True, alpha=0.05 / 3)
    assert f"{strict:.2f} SD" in lines[1] and "3 comparisons" in lines[1]
    # 2/64 = .031 is below .05 but not below .05/3; 2/128 = .0156 is
    assert lines[-1].startswith("Warning") and lines[-1].endswith("7 seeds could.")


@pytest.mark.parametrize(
    "seeds, arms, words", [(1, 3, "one seed per arm gives no interval"), (6, 1, "no other arm")]
)
def test_designs_without_a_comparison(seeds: int, arms: int, words: str) -> None:
    assert words in power_lines(seeds, arms)[0]


def test_one_seed_has_no_power() -> None:
    assert np.isnan(smallest_effect(1, paired=True))


def test_a_plan_stays_light() -> None:
    code = (
        "import sys; from analysis.statistics.power import power_lines; power_lines(3, 3)\n"
        "print({'torch', 'pandas', 'scipy.stats', 'statsmodels'} & set(sys.modules))"
    )
    assert run_alone(code) == "set()\n"
