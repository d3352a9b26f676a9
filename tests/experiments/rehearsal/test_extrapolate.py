"""Lines, waits and figures at full size, on numbers that a hand can compute."""

from collections import Counter

import pytest

from experiments.rehearsal.extrapolate import Line, dollars, line, merged, wait_of_step
from experiments.rehearsal.figures import broken, compared, faults, figures
from experiments.rehearsal.measure import Measured, Use
from experiments.rehearsal.profiles import read_profiles
from experiments.rehearsal.scale import full_study
from study.config.compose import load_judge


def test_a_line_is_that_of_least_squares_and_does_not_fall() -> None:
    assert line([1, 2, 3], [5, 7, 9]) == Line(3.0, 2.0)
    assert Line(3.0, 2.0).at(10, copies=2) == 26.0
    uneven = line([1, 2, 3], [1, 2, 6])  # slope 5 / 2, mean 3 at 2
    assert (uneven.each, uneven.fixed) == pytest.approx((2.5, -2.0))
    # off the line by .5, -1, .5: sqrt(1.5 / 1 / 2)
    assert uneven.error == pytest.approx(0.75**0.5) and line([1, 2, 3], [5, 7, 9]).error == 0
    assert line([1, 2, 3], [9, 7, 5]) == Line(7.0, 0.0)
    assert line([2, 2, 2], [1, 2, 3]) == Line(2.0, 0.0)


def test_a_step_waits_for_slots_or_for_a_limit() -> None:
    use = Use(seconds=[10.0], request_tokens=[(60, 40)])
    slots = wait_of_step(use, 4, 2, None, None)
    assert (slots.seconds, slots.bound) == (20.0, "max_concurrency")
    requests = wait_of_step(use, 4, 2, 6, None)
    assert (requests.seconds, requests.bound) == (40.0, "requests a minute")
    tokens = wait_of_step(use, 4, 2, 6, 200)
    assert (tokens.seconds, tokens.bound) == (120.0, "tokens a minute")
    assert wait_of_step(use, 4, 64, 6000, 1e9).seconds == 10.0


def test_what_a_model_was_asked_adds_up_over_the_sizes() -> None:
    one = Use(2, Counter(empty=1), 3, 200, 20, 0.5, Counter(stop=2), [1.0, 2.0], [(100, 10)])
    total = merged([one, one])
    assert (total.verdicts, total.missing["empty"], total.attempts) == (4, 2, 6)
    assert (total.tokens_in, total.tokens_out, total.usd) == (400, 40, 1.0)
    assert total.seconds == [1.0, 2.0] * 2
    assert dollars(load_judge("qwq-plus"), 1e6, 1e6) == pytest.approx(0.8 + 2.4)


@pytest.fixture(scope="module")
def every():
    """One cell of 500 steps x 4 x 6 rollouts under qwq-plus, of which three sizes were rehearsed:
    each verdict took 1,000 tokens in and 500 out, and one request, of 10 s."""
    full = full_study("mixed-full", ["judge=qwq-plus", "seed=0,1", "task=mixed-mini"])
    sizes = []
    for prompts in (1, 2, 3):
        rollouts = 2 * prompts * 6
        use = Use(
            verdicts=rollouts,
            missing=Counter(unparsed=prompts),
            attempts=rollouts,
            tokens_in=1000 * rollouts,
            tokens_out=500 * rollouts,
            requests=Counter(stop=rollouts - prompts, unparsed=prompts, late=1),
            seconds=[10.0] * rollouts,
            request_tokens=[(1000, 500)] * rollouts,
        )
        sizes.append(
            Measured(
                rollouts_a_step=prompts * 6,
                cells=1,
                rollouts=rollouts,
                expected=rollouts,
                uses={"judge/qwq-plus": use},
                disk=1_000_000 + 1000 * rollouts,
                text=5000 * rollouts,
                verdicts=rollouts,
                verdict_bytes=4000 + 3000 * rollouts,
                replies=rollouts - prompts,
                reply_bytes=20_000 + 8000 * (rollouts - prompts),
                files=40,
                memory=600_000_000 + 1_000_000 * prompts * 6,
                report_s=5 + 0.001 * rollouts,
                broken=("a cell is killed",) if prompts == 3 else (),
            )
        )
    return figures(full, sizes, read_profiles())


def test_figures_at_full_size_are_those_of_a_verdict_times_all_verdicts(every) -> None:
    (qwq,) = every.models
    assert every.rollouts == qwq.verdicts == qwq.requests == 2 * 500 * 24
    assert (qwq.tokens_in, qwq.tokens_out) == (24_000_000, 12_000_000)
    assert qwq.usd == pytest.approx(24 * 0.8 + 12 * 2.4)
    # 24 requests of 10 s in 16 slots are two rounds; 600 requests or 1M tokens a minute are more
    assert (qwq.wait.seconds, qwq.wait.bound) == (20.0, "max_concurrency")
    assert qwq.hours == pytest.approx(2 * 500 * 20 / 3600)
    assert qwq.gpu_hours == 0


def test_disk_files_memory_and_report_are_read_from_lines(every) -> None:
    low, high = every.disk_bytes
    assert low == pytest.approx(2 * 1_000_000 + 1000 * 24_000)
    assert high - low == pytest.approx(5000 * 24_000)
    assert every.files.at(every.rollouts, every.copies) == pytest.approx(80)
    assert every.memory.at(24) == pytest.approx(624_000_000)
    assert every.report is not None and every.report.at(24_000) == pytest.approx(29)


def test_the_tables_set_the_rehearsal_beside_the_plan(every) -> None:
    rows = {row["figure"]: row for row in compared(every)}
    assert rows["completions"]["plan"] == "24,000"
    assert rows["dollars"]["rehearsal, at full size"] == "$48.00"
    assert rows["missing verdicts"]["rehearsal, at full size"] == "8.33%"  # 6 of 72
    assert rows["disk"]["rehearsal, at full size"] == "26 MB to 146 MB"
    assert rows["disk"]["plan"] == "no figure"
    # what each further one takes, not what an empty file does
    assert rows["disk of a verdict"]["rehearsal, at full size"] == "3 kB on record, 8 kB stored"
    assert rows["records of a step's verdicts"]["rehearsal, at full size"] == "72 kB"  # of 24
    assert rows["CPU time of the report"]["rehearsal, at full size"] == "29s to 29s"
    late = "judge/qwq-plus: 3 of 75 replies would take longer than judge.endpoint.deadline_s=600"
    assert broken(every)[0] == "a cell is killed" and broken(every)[1].startswith(late)
    assert faults(every) == [
        "judge/qwq-plus: of 75 requests late 3, unparsed 6; of 72 verdicts missing: unparsed 6"
    ]
