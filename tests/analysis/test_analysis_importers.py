"""Others' result files, written here in the shape that their own code writes, as plain tables."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import pairwise as pairwise_command
from analysis import ratings as ratings_command
from analysis.external.importers import alpaca_eval, completions, ifeval, judgebench, llmbar
from analysis.external.pairwise import check_pairwise, judge_pairs
from analysis.external.ratings import agreement_report, check_ratings
from analysis.importers import main
from study.errors import UserError
from tests.published.alpaca_rates import length_controlled_rate as length_controlled
from tests.published.alpaca_rates import length_controlled_refit
from tests.study.tasks.datasets import roots

JUDGEBENCH = {"pair_id": "p", "label": "A>B", "judge_name": "g"}
JUDGEBENCH |= {"judgments": [{"decision": "A>B"}, None]}
IFEVAL = {"prompt": "p", "response": "r"}
IFEVAL |= {"instruction_id_list": ["a"], "follow_instruction_list": [True]}
LLMBAR = {"label": 1, "results": [{"swap = False": {"winner": "1"}}]}
VERL = {"input": "p", "output": "o", "score": 1, "acc": 0}
ALPACA = {"instruction": "i", "generator_2": "m", "annotator": "g", "preference": 1.2}


def test_alpaca_eval_codes_are_first_second_and_tie(tmp_path: Path):
    file = tmp_path / "a.parquet"
    preference = [1.0, 2.0, 1.5, 0.0, None, 1.2]
    pd.DataFrame({"model": "m", "index": range(6), "preference": preference}).to_parquet(file)
    found = alpaca_eval(file, "gpt")
    assert found["verdict"].tolist() == ["first", "second", "tie", "tie", "", "first"]
    assert judge_pairs(check_pairwise(found))["gpt"]["invalid"] == 1


def test_alpaca_evals_own_json_and_its_errors(tmp_path: Path):
    file = tmp_path / "annotations.json"
    file.write_text(json.dumps([ALPACA | {"preference": 2, "generator_1": "base"}]))
    assert alpaca_eval(file).loc[0, ["item", "judge", "verdict"]].tolist() == ["m/i", "g", "second"]
    file.write_text(json.dumps([ALPACA | {"preference": 3}]))
    with pytest.raises(UserError, match="row 1, column preference holds 3"):
        alpaca_eval(file)
    file.write_text(json.dumps([{"generator_2": "m", "instruction": "x", "preference": 1}]))
    with pytest.raises(UserError, match="Name the judge"):
        alpaca_eval(file)


def test_a_length_controlled_rate_of_equal_weights_or_lengths_is_a_half():
    assert length_controlled(0.0, 1.0, [-2.0, 2.0]) == pytest.approx(50)
    assert length_controlled(math.log(3), 0.0, [5.0, 7.0]) == pytest.approx(75)
    gap = np.linspace(-900, 1500, 400)
    exact = 1 / (1 + np.exp(3 * np.tanh(gap / gap.std(ddof=1))))
    share = exact + 0.02 * np.random.default_rng(0).choice([-1, 1], 400)
    assert share.mean() < 0.45
    assert length_controlled_refit(share, gap, np.sin(gap)) == pytest.approx(50, abs=0.5)
    assert math.isnan(length_controlled_refit(share, np.ones(400), gap))
    assert math.isnan(length_controlled_refit(np.ones(400), gap, gap))
    assert math.isnan(length_controlled_refit((gap < 0).astype(float), gap, np.sin(gap)))


def test_judgebench_maps_the_swapped_judgment_back(tmp_path: Path):
    def pair(name, label, first, second):
        said = [first and {"decision": first}, second and {"decision": second}]
        return {"pair_id": name, "source": "math", "label": label, "judgments": said}

    records = [
        pair("p1", "A>B", "A>B", "B>A"),  # right both times
        pair("p2", "B>A", "A>B", "A>B"),  # what is shown first, both times
        pair("p3", "A>B", None, "A=B"),
        pair("p4", "A>B", "junk", "A>B"),
    ]
    found = check_pairwise(judgebench(roots.lines(tmp_path / "j.jsonl", records), "g"))
    expected = ["first", "first", "first", "second", "", "tie", "", "second"]
    assert found["verdict"].tolist() == expected
    one = judge_pairs(found, "wrong")["g"]
    assert (one["both_correct"], one["first_first"], one["invalid"]) == (0.25, 1, 2)


def test_llmbar_has_mapped_back_already_and_its_last_round_counts(tmp_path: Path):
    def result(first, second):
        return {"swap = False": {"winner": first}, "swap = True": {"winner": second}}

    records = [
        {"label": 2, "results": [result("1", "1"), result("2", "2")]},
        {"label": 1, "results": [{"metrics": "a list"}, result("1", None)]},
    ]
    file = tmp_path / "result.json"
    file.write_text(json.dumps(records))
    found = check_pairwise(llmbar(file, "g"))
    assert found["verdict"].tolist() == ["second", "second", "first", ""]
    assert found["gold"].tolist() == ["second", "second", "first", "first"]
    assert judge_pairs(found)["g"]["accuracy"] == 1.0


@pytest.mark.parametrize("by", ["instruction", "prompt"])
def test_ifeval_keeps_an_empty_response_apart_from_a_failed_one(tmp_path: Path, by):
    def record(prompt, response, followed):
        made = {"prompt": prompt, "response": response, "follow_instruction_list": followed}
        made["instruction_id_list"] = ["a:x", "b:y"][: len(followed)]
        return made | {"follow_all_instructions": all(followed)}

    answers = ("p", "text", [True, False]), ("q", " ", [False]), ("r", "ok", [True])
    file = roots.lines(tmp_path / "s.jsonl", [record(*answer) for answer in answers])
    found = check_ratings(ifeval(file, "strict", by=by))
    expected = [1, 0, math.nan, 1] if by == "instruction" else [0, math.nan, 1]
    assert found["score"].tolist() == pytest.approx(expected, nan_ok=True)
    judged = found.assign(rater="j", role="judge")
    both = check_ratings(pd.concat([found, judged], ignore_index=True))
    one = agreement_report(both)["judges"]["j"]
    assert one["binary"]["youden_j"]["value"] == 1.0 and one["mae"]["value"] == 0.0


@pytest.mark.parametrize(
    ("reader", "record", "said"),
    [
        (judgebench, {"pair_id": 1}, "record 1 has no label, judgments"),
        (judgebench, {"pair_id": 1, "label": "C", "judgments": []}, "label holds 'C'"),
        (judgebench, {"pair_id": 1, "label": "A>B", "judgments": []}, "holds no verdicts"),
        (judgebench, {"pair_id": 1, "label": "A>B", "judgments": None}, "judgments is not a list"),
        (llmbar, {"label": 3, "results": []}, "label holds 3"),
        (ifeval, IFEVAL | {"follow_instruction_list": []}, "1 instructions but 0 verdicts"),
    ],
)
def test_records_of_another_shape_are_refused_with_their_place(tmp_path, reader, record, said):
    with pytest.raises(UserError, match=said):
        reader(roots.lines(tmp_path / "x.jsonl", [record]), "g")


def test_a_file_that_is_not_there_is_a_users_error(tmp_path: Path):
    with pytest.raises(UserError, match="is not a file"):
        llmbar(tmp_path / "none.json", "g")


def test_trl_completions_are_ratings_by_reward_function_within_grpo_groups(tmp_path: Path):
    turns = [{"role": "user", "content": "Name a colour."}]
    for step in (1, 2):
        texts = [[{"role": "assistant", "content": text}] for text in "abcd"]
        rows = {"step": [step] * 4, "prompt": [turns] * 4, "completion": texts}
        rows |= {"judge_reward": [0.1, 0.2, 0.3, None], "rule": [0.0, 0.0, 1.0, 1.0]}
        frame = pd.DataFrame(rows | {"advantage": [9.0, 9.0, 9.0, 9.0]})
        frame.to_parquet(tmp_path / f"completions_{step:05d}.parquet")
    found = check_ratings(completions(tmp_path, truth=["rule"]))
    assert found["item"].nunique() == 8 and found["group"].nunique() == 2
    roles = dict(zip(found["rater"], found["role"], strict=True))
    assert roles == {"judge_reward": "judge", "rule": "human"}
    one = agreement_report(found)["judges"]["judge_reward"]
    assert one["n"] == 6  # None is missing, never 0
    within = one["within_group"]["spearman"]
    # ranks 1 2 3 against 1.5 1.5 3, in either group
    assert (within["value"], within["n"]) == (pytest.approx(0.8660254), 2)


def test_verl_rollouts_keep_what_the_reward_function_said_beside_the_score(tmp_path: Path):
    def record(score, right):
        return {"input": "p", "output": "o", "gts": 7, "score": score, "step": 3, "acc": right}

    lines = [json.dumps(record(*one)) for one in ((0.5, True), (-1.0, False), (0.7, False))]
    file = tmp_path / "3.jsonl"
    file.write_text("\n".join([*lines, lines[0][:20]]))  # the last line was cut by a crash
    found = completions(file, truth=["acc"])
    assert found.attrs["lost"] == 1
    wide = check_ratings(found).pivot(index="item", columns="rater", values="score")
    assert wide["score"].tolist() == [0.5, -1.0, 0.7] and wide["acc"].tolist() == [1, 0, 0]
    assert list(wide) == ["acc", "score"]  # neither step nor the ground truth is a rater
    assert set(completions(file, raters=["score"])["rater"]) == {"score"}


@pytest.mark.parametrize(
    ("name", "text", "truth", "said"),
    [
        ("c.jsonl", '{"input": "p", "output": "o", "score": 1}', ["rule"], "truth=accuracy"),
        ("c.jsonl", '{"input": "p", "output": "o"}', [], "no column of scores"),
        ("c.jsonl", '{"score": 1}', [], "no prompt with its completion"),
        ("c.parquet", "text", [], "cannot be read as completions"),
        ("c.jsonl", "", [], "holds no verdicts"),
        ("c.txt", "", [], "unknown kind"),
    ],
)
def test_completions_that_cannot_be_read_say_why(tmp_path: Path, name, text, truth, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        completions(tmp_path / name, truth)


@pytest.mark.parametrize(
    ("arguments", "record", "next_command"),
    [
        (["judgebench"], JUDGEBENCH, pairwise_command.main),
        (["llmbar", "judge=g"], LLMBAR, pairwise_command.main),
        (["alpaca_eval"], ALPACA, pairwise_command.main),
        (["ifeval", "by=prompt"], IFEVAL, ratings_command.main),
        (["verl", "truth=acc"], VERL, ratings_command.main),
    ],
)
def test_command_writes_the_table_that_the_next_one_takes(
    tmp_path: Path, capsys, arguments, record, next_command
):
    file, out = roots.lines(tmp_path / "in.jsonl", [record]), tmp_path / "table.csv"
    assert main([*arguments, str(file), f"out={out}"]) == 0
    assert f"analysis.{next_command.__module__.split('.')[1]}" in capsys.readouterr().out
    assert next_command([str(out), f"out={tmp_path / 'found.json'}"]) == 0
    assert json.loads((tmp_path / "found.json").read_text())["options"]["file"] == str(out)


def test_a_table_of_others_judgements_holds_nothing_that_a_terminal_obeys(tmp_path: Path):
    record = {**JUDGEBENCH, "pair_id": "\x1b[2Jp"}
    file, out = roots.lines(tmp_path / "in.jsonl", [record]), tmp_path / "table.csv"
    assert main(["judgebench", str(file), f"out={out}"]) == 0
    assert b"\x1b" not in out.read_bytes() and r"\x1b[2J" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["judgebench", "out=t.csv"], "needs a word for file"),
        (["other", "in.jsonl", "out=t.csv"], "one of alpaca_eval, judgebench"),
        (["judgebench", "in.jsonl", "out=t.json"], "must end in .csv"),
        (["llmbar", "in.jsonl", "out=t.csv"], "does not name its judge"),
        (["judgebench", "in.jsonl", "out=t.csv"], "does not name its judge"),
        (
            ["judgebench", "in.jsonl", "out=t.csv", "truth=x"],
            "truth= has no meaning with analysis.importers judgebench",
        ),
        (["ifeval", "in.jsonl", "out=t.csv", "by=word"], "instruction, prompt"),
    ],
)
def test_bad_import_commands_exit_2_with_what_to_type(
    tmp_path: Path, capsys, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    roots.lines(tmp_path / "in.jsonl", [JUDGEBENCH | {"judge_name": None}])
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "t.csv").exists()
