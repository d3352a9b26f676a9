"""The scaffold's schedule as a table, and its figure on disk."""

import matplotlib.pyplot as plt

from analysis.scaffold.__main__ import main
from analysis.scaffold.display import changes, schedule
from study.config.schema import Scaffold

LINEAR = Scaffold(name="ruscarl", group="linear", decay="linear")


def test_counts_by_hand():
    """Two steps of three rollouts: shares 1, 1/2, 0 of four criteria, then nothing."""
    table = schedule(LINEAR, 2, 3, 4)
    assert table["shown"].tolist() == [4, 2, 0, 0, 0, 0]
    assert table["ratio"].tolist() == [1.0, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_only_steps_that_change_are_listed():
    assert changes(schedule(Scaffold(name="ruscarl", decay="none"), 5, 2, 3)).index.tolist() == [1]
    falling = changes(schedule(LINEAR, 5, 2, 4))
    assert falling.index.tolist() == [1, 2, 3, 4, 5] and falling[0].tolist() == [4, 3, 2, 1, 0]


def test_the_figure_is_drawn(tmp_path, capsys):
    out, before = tmp_path / "new" / "scaffold.png", plt.get_fignums()
    assert main([f"out={out}", "steps=12", "group_size=4", "criteria=3", "scaffold.x0=0.5"]) == 0
    assert out.stat().st_size > 5000 and plt.get_fignums() == before
    assert "12" not in capsys.readouterr().out.split("\n")[0]
