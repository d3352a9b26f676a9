"""Biases from probes alone: planted edits, and the judges of a folder over the wire."""

import numpy as np
import pandas as pd
import pytest

from analysis.forecast.__main__ import main
from analysis.forecast.from_probes import bias_of_edits
from analysis.forecast.response import Start
from experiments.probe import main as probe

START = Start(
    ("length", "bullets", "truth"), np.array([10.0, 1.0, 0.5]), np.array([4.0, 2.0, 0.5]), np.eye(3)
)


def edited(rng, n=300, noise=0.0):
    """Edits that change length and bullets, under a judge that pays .2 per SD of length."""
    words, bullets = rng.integers(-8, 9, n), rng.integers(-3, 4, n)
    texts = pd.DataFrame(
        {
            "probe_id": [f"{place}{kind}" for kind in "ab" for place in range(n)],
            "words": np.concatenate([np.full(n, 20.0), 20.0 + words]),
            "bullets": np.concatenate([np.full(n, 3.0), 3.0 + bullets]),
        }
    )
    paid = 0.2 * words / 4 + rng.normal(0, noise, n) - rng.normal(0, noise, n)
    edits = pd.DataFrame(
        {
            "probe_id": [f"{place}b" for place in range(n)],
            "against": [f"{place}a" for place in range(n)],
            "bias_change": paid,
        }
    )
    return edits, texts


def test_a_planted_dose_over_the_spread_that_the_score_would_have():
    edits, texts = edited(np.random.default_rng(0))
    spread = (0.2**2 + 0.5**2) ** 0.5
    assert bias_of_edits(edits, texts, START) == pytest.approx([0.2 / spread, 0.0], abs=0.01)
    noisy, texts = edited(np.random.default_rng(1), n=20_000, noise=0.3)
    spread = (0.2**2 + 0.5**2 + 0.3**2) ** 0.5
    assert bias_of_edits(noisy, texts, START) == pytest.approx([0.2 / spread, 0.0], abs=0.02)


def test_edits_without_a_score_are_left_out_and_too_few_are_no_bias():
    edits, texts = edited(np.random.default_rng(0))
    whole = bias_of_edits(edits, texts, START)
    edits.loc[::2, "bias_change"] = np.nan
    assert bias_of_edits(edits, texts, START) == pytest.approx(whole, abs=0.02)
    assert np.isnan(bias_of_edits(edits.head(4), texts, START)).all()


def test_what_is_no_folder_of_probes_is_said(small_study, tmp_path, capsys):
    words = [f"study={small_study.name}", f"runs_dir={small_study.parent}"]
    assert main([*words, f"probes={tmp_path}"]) == 2
    assert "not a folder of probes" in capsys.readouterr().err


def test_probed_judges_and_a_study_of_few_arms(small_study, tmp_path, capsys):
    runs_dir = tmp_path / "runs"
    assert probe(["judge=sim-fair,sim-verbose", "n=6", f"runs_dir={runs_dir}", "report=false"]) == 0
    capsys.readouterr()
    words = [f"study={small_study.name}", f"runs_dir={small_study.parent}"]
    folder = next(path.parent for path in runs_dir.rglob("probes.parquet"))
    assert main([*words, f"probes={folder}"]) == 2
    assert "the response fit needs 4" in capsys.readouterr().err
