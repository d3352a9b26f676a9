"""Which answers the page holds, what stands in it, and what the command says."""

import base64
import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.colors import to_hex

from analysis.answers.choice import ALL, BOTH, GAP, RANDOM, STEPS, Pick, _Sample, choose
from analysis.answers.page import LONGEST, MARKS, Texts, escaped, excerpt, how, write_page
from analysis.answers.reading import read_answers
from analysis.display.figures import looks, looks_of
from analysis.report.evidence import gather
from analysis.view import main
from tests.analysis.conftest import damage, write_held_out
from tests.conftest import Page


def data_of(path: Path) -> dict[str, Any]:
    """What a page holds, as its script reads it."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def rows_of(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(told["fields"], row, strict=True)) for row in told["answers"]]


@pytest.fixture(scope="module")
def page(planted, tmp_path_factory) -> Path:
    return write_page(planted, tmp_path_factory.mktemp("page") / "answers.html").path


# --- the choice ------------------------------------------------------------------------------


class Planted:
    """A study whose records are made up: (cells, steps, groups, members) gaps."""

    def __init__(self, gaps: np.ndarray, prompts: int, arms: int = 2) -> None:
        self.gaps, self.prompts = gaps, prompts
        self.sources = [SimpleNamespace(cell=k, arm=f"arm{k % arms}") for k in range(len(gaps))]

    def steps(self, source, kind, columns):
        for step, gaps in enumerate(self.gaps[source.cell], start=1):
            groups, members = gaps.shape
            rows = [
                {
                    "rollout_id": f"{step}-{group}-{member}",
                    "prompt_id": f"p{(step * groups + group) % self.prompts}",
                    "group": group,
                    "judge_score": float(gaps[group, member]),
                    "truth": 0.0,
                }
                for group in range(groups)
                for member in range(members)
            ]
            yield step, pa.Table.from_pylist(rows)


def test_a_small_study_is_shown_whole_and_another_seed_chooses_others(planted):
    choice = choose(read_answers(planted), 5000)
    assert choice.total == 3 * 3 * 6 * 16 == len(choice.picks)
    assert choice.whole and set(choice.picks.values()) == {ALL}
    answers = read_answers(planted)
    first, again, other = (list(choose(answers, 100, seed).picks) for seed in (1, 1, 2))
    assert first == again and set(first) != set(other)


def test_a_sample_forgets_what_it_cannot_show():
    sample = _Sample(20, seed=0)
    for number in range(500):
        sample.look([Pick(0, 1, f"{number}")], [f"prompt {number}"], [0])
        assert sample.size <= 20 and len(sample.picks) == len(sample.order) <= 20
    assert sample.size == 20


def test_the_largest_gaps_of_each_arm_are_chosen_and_a_sample_of_all():
    draw = np.random.default_rng(0)
    gaps = draw.normal(size=(4, 50, 4, 4)) * np.array([10.0, 1.0, 10.0, 1.0])[:, None, None, None]
    study = Planted(gaps, prompts=40)
    choice = choose(study, 400)
    why = Counter(choice.picks.values())
    assert len(choice.picks) == 400 and choice.total == gaps.size and not choice.whole
    assert why[GAP] + why[BOTH] >= 190 and why[RANDOM] + why[BOTH] >= 190
    for arm in range(2):
        own = np.sort(abs(gaps[arm::2]).ravel())[::-1]
        chosen = [
            abs(gaps[pick.source][pick.step - 1][tuple(map(int, pick.rollout_id.split("-")[1:]))])
            for pick, reason in choice.picks.items()
            if reason != RANDOM and pick.source % 2 == arm
        ]
        assert 90 <= len(chosen) <= 110, "arms with small gaps have their share"
        assert sorted(chosen, reverse=True) == pytest.approx(own[: len(chosen)])


def test_the_sample_is_the_same_steps_of_a_prompt_in_every_cell():
    study = Planted(np.full((3, 200, 2, 4), np.nan), prompts=4, arms=3)
    choice = choose(study, 4 * STEPS * 3)
    assert set(choice.picks.values()) == {RANDOM}
    steps: dict[int, Counter[int]] = {}
    for pick in choice.picks:
        group = int(pick.rollout_id.split("-")[1])
        steps.setdefault((pick.step * 2 + group) % 4, Counter())[pick.step] += 1
    assert len(steps) == 4 and all(len(by_step) == STEPS for by_step in steps.values())
    assert all(set(by_step.values()) == {3} for by_step in steps.values()), "one of each cell"


@pytest.mark.parametrize("seeds", [120, pytest.param(300, marks=pytest.mark.long)])
def test_every_answer_has_the_same_chance_to_be_drawn(seeds):
    """Of 60 prompts 10 are drawn, and one of two answers of a run: each in 10 of 120 seeds, and
    the one that is drawn least and most lies within 4 standard deviations."""
    mean = seeds / 12
    off = 4 * (mean * 11 / 12) ** 0.5
    study = Planted(np.full((2, 15, 4, 2), np.nan), prompts=60)
    drawn: Counter[str] = Counter()
    for seed in range(seeds):
        picks = choose(study, 20, seed).picks
        assert len(picks) == 20
        drawn.update(pick.rollout_id for pick in picks if pick.source == 0)
    assert (
        len(drawn) == 120 and mean - off < min(drawn.values()) <= max(drawn.values()) < mean + off
    )
    assert np.mean(list(drawn.values())) == pytest.approx(mean)


def test_where_prompts_are_few_the_rest_is_drawn_from_all():
    study = Planted(np.random.default_rng(1).normal(size=(2, 100, 2, 4)), prompts=1)
    choice = choose(study, 600)
    why = Counter(choice.picks.values())
    assert len(choice.picks) == 600 and why[RANDOM] + why[BOTH] >= 300
    by_step = Counter(pick.step for pick, each in choice.picks.items() if each != GAP)
    assert len(by_step) > 90, "of nearly every step, not of eight"


# --- what the page holds ---------------------------------------------------------------------


def test_the_page_needs_nothing_and_lets_nothing_else_run(page):
    text = page.read_text()
    read = Page(text)
    assert read.links == [] and read.tags.count("script") == 2 and read.tags.count("style") == 1
    assert not {"img", "link", "iframe", "object", "base"} & set(read.tags)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    said = policy[1].replace("&#39;", "'")
    for wanted in ("default-src 'none'", "require-trusted-types-for 'script'", "base-uri 'none'"):
        assert wanted in said
    assert "unsafe" not in said and "http" not in said
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in said


def test_what_is_escaped_is_the_same_when_it_is_read_and_the_script_makes_text():
    script = (Path(__file__).parents[2] / "analysis/answers/web/page.js").read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval", "Function("):
        assert word not in script
    assert "</script" not in script and "<!--" not in script
    hostile = '</script><!--<script>&amp;\u2028\u2029"\\\x00\x7f\ud7ff\U0001f600'
    assert json.loads(escaped([hostile])) == [hostile]
    assert not set("<>&\u2028\u2029") & set(escaped([hostile]))


def test_hostile_text_stands_in_the_data_without_a_bracket(page):
    inside = page.read_text().split('id="data">')[1].split("</script>")[0]
    assert not set("<>&\u2028\u2029") & set(inside)
    wanted = '<script src="https://example.org/x.js"></script>'
    assert any(wanted in each for each in json.loads(inside)["texts"])


def test_an_answer_has_its_numbers_behaviour_and_verdicts(page):
    told = data_of(page)
    here = [source["cell"].startswith("sim-verbose-s1") for source in told["sources"]]
    (row,) = (row for row in rows_of(told) if here[row["source"]] and row["id"] == "000003-0005")
    words = 6 + 1 + 9 * 2
    assert row["truth"] == pytest.approx(0.41) and row["step"] == 3
    assert row["judge"] == pytest.approx(0.41 + 0.01 * (words - 6))
    names = [each["name"] for each in told["behaviours"]]
    assert row["behaviour"][names.index("length")] == words
    assert told["texts"][row["prompt"]] == "Say something, prompt 1 of step 3"
    ((role, judge, _, outcome, score, *_),) = row["verdicts"]
    said = [told["texts"][place] for place in (role, judge, outcome)]
    assert said == ["acting", "sim-verbose", "scored"] and score == row["judge"]


def test_arms_stand_and_look_as_in_the_report(make_study):
    """The base first, which by name would be the fifth, then seven others: more than markers."""
    names = ["apart", "best", "curt", "dull", "sim-fair", "even", "fond", "grim"]
    study = make_study(judges=names, seeds=1, steps=2, groups=1)
    arms = data_of(write_page(study).path)["arms"]
    told = gather(study)
    assert told.arms == ["sim-fair", *sorted({*names} - {"sim-fair"})]
    assert [each["name"] for each in arms] == told.arms
    with looks_of(told.arms):
        wanted = looks(told.arms)
    for each in arms:
        assert each["color"] == to_hex(wanted[each["name"]]["color"])
        assert each["mark"] == MARKS[wanted[each["name"]]["marker"]]
    assert len({(each["color"], each["mark"]) for each in arms}) == 8


def test_a_missing_verdict_is_never_a_number(page):
    told = data_of(page)
    flaky = [k for k, source in enumerate(told["sources"]) if source["judge"] == "sim-flaky"]
    failed = [row for row in rows_of(told) if row["source"] in flaky and row["member"] == 3]
    assert len(failed) == 3 * 6 * 4
    for row in failed:
        assert row["judge"] is None and row["reward"] is None and row["advantage"] is None
        (verdict,) = row["verdicts"]
        told_of = dict(zip(told["verdict_fields"], verdict, strict=True))
        assert told_of["score"] is None and told["texts"][told_of["outcome"]] == "unparsed"


def test_texts_stand_once_and_long_ones_are_cut_and_said():
    texts = Texts()

    def add(text):
        return texts.add(excerpt(text))

    long = "b" * 8_000 + "lost!" + "e" * 4_000
    cut = "b" * 8_000 + "\n[...]\n" + "e" * 4_000
    assert [add("a"), texts.add(None), add(long), add("a")] == [0, None, 1, 0]
    assert texts.shown() == ["a", cut] and texts.cut == {1: LONGEST + 5}
    size = texts.size
    add("<")
    texts.forget(2, size)
    assert texts.shown() == ["a", cut] and texts.size == size
    texts.forget(1, 4)
    assert texts.cut == {}
    # those that begin alike have a length of their own
    texts = Texts()
    whole, longer, longest = ("x" * (LONGEST + more) for more in (0, 1, 2))
    assert [add(each) for each in (whole, longer, longest, longer)] == [0, 1, 2, 1]
    assert texts.cut == {1: LONGEST + 1, 2: LONGEST + 2}


def test_a_page_is_no_larger_than_it_may_be_and_says_what_was_left_out(planted, tmp_path):
    written = write_page(planted, tmp_path / "small.html", most_mb=0.2)
    told = data_of(written.path)
    assert written.bytes == written.path.stat().st_size <= 200_000
    assert 50 < len(told["answers"]) < told["total"] == 864
    assert f"Here are {len(told['answers']):,} of the study's 864 answers." in written.how
    assert f"{864 - len(told['answers'])} more were left out to keep the page small." in written.how
    assert {row["source"] for row in rows_of(told)} == set(range(9)), "of every run"


def test_the_page_says_how_many_of_how_many_and_the_seed(planted, tmp_path):
    written = write_page(planted, tmp_path / "some.html", most=100, seed=7)
    told = data_of(written.path)
    assert len(told["answers"]) == 100
    assert "Here are 100 of the study's 864 answers." in written.how and "(seed 7)" in written.how
    assert written.how in " ".join(Page(written.path.read_text()).text.split())
    found = re.search(r" (\d+) have the .* (\d+) are a random .* (\d+) are both", written.how)
    gaps, drawn, both = map(int, found.groups())
    assert gaps + drawn - both == 100
    assert how(told | {"whole": True}) == "All 864 answers of the study are here."


def test_a_damaged_part_is_left_out_and_said(make_study, tmp_path):
    study = make_study(seeds=1)
    damage(study, "sim-fair-*/rollouts/step-000002.parquet")
    written = write_page(study, tmp_path / "page.html")
    assert any("rollouts/step-000002.parquet is left out" in line for line in written.problems)
    assert "step-000002.parquet is left out" in Page(written.path.read_text()).text
    assert len(data_of(written.path)["answers"]) == 3 * 6 * 16 - 16


def test_answers_of_a_study_that_was_trained_have_all_that_is_on_record(small_study, tmp_path):
    told = data_of(write_page(small_study, tmp_path / "page.html").path)
    roles = Counter(told["texts"][v[0]] for row in rows_of(told) for v in row["verdicts"])
    assert roles["acting"] == roles["shadow"] == told["total"] == len(told["answers"])
    assert "component/reference_logprob" in told["numbers"]
    places = {str(place) for place in range(len(told["numbers"]))}
    assert all(set(row["numbers"]) <= places for row in rows_of(told))


def test_answers_to_held_out_rows_are_a_set_of_their_own(make_study, tmp_path):
    study = make_study(seeds=1, judges=["sim-fair"], steps=1)
    write_held_out(next(study.glob("sim-fair-*")))
    told = data_of(write_page(study, tmp_path / "page.html").path)
    assert [source["set"] for source in told["sources"]] == ["training", "held-out"]
    assert Counter(row["source"] for row in rows_of(told)) == {0: 16, 1: 16}


# --- the command -------------------------------------------------------------------------------


def test_the_command_writes_the_page_beside_the_report(make_study, capsys):
    study = make_study(seeds=1, steps=2)
    assert main([f"study={study.name}", f"runs_dir={study.parent}"]) == 0
    path = study / "report" / "answers.html"
    said = capsys.readouterr().out
    assert path.is_file() and said.startswith(f"{path}\n")
    assert "All 96 answers of the study are here." in said


def test_a_study_without_answers_says_so(make_study, capsys):
    study = make_study(judges=["sim-fair"], seeds=1, steps=0, state="new")
    assert main([f"study={study.name}", f"runs_dir={study.parent}"]) == 2
    assert "has no recorded answer" in capsys.readouterr().err
