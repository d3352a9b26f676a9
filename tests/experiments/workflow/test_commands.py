"""The command lines: what they write, how they end, and what they refuse."""

import json
from typing import Any

import pytest

from experiments.workflow import run_command
from experiments.workflow.__main__ import main
from experiments.workflow.operators import OPERATORS
from study.config.compose import preset_names
from study.tasks import kind_of
from tests.commands import run
from tests.experiments.workflow.test_validate import AFLOW, METAGPT, SEED
from tests.experiments.workflow.theatre import program
from tests.experiments.workflow.world import TASK
from tests.study.sandbox.test_attacks import children, left
from tests.web_server import Handler, serving

PROBLEM = {"id": "p", "domain": "math", "prompt": "What is 6 times 7?", "answers": ["42"]}
pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def box(tmp_path):
    (tmp_path / "graph.py").write_text(SEED)
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM))
    line = {"text": "<answer>42</answer>", "tokens_in": 9, "tokens_out": 2}
    (tmp_path / "script.jsonl").write_text(json.dumps(line) + "\n")
    return tmp_path


@pytest.fixture
def typed(box):
    """The words of a run of the program in the box."""
    return [
        f"{name}={box / file}"
        for name, file in (
            ("program", "graph.py"),
            ("problem", "problem.json"),
            ("script", "script.jsonl"),
        )
    ]


def test_operators_are_told(commands):
    told = commands.result("operators")["operators"]
    assert [operator["name"] for operator in told] == list(OPERATORS)
    for operator in told:
        assert {"ok", "error"} <= operator["returns"].keys()
        assert all({"name", "type", "required"} <= item.keys() for item in operator["arguments"])
        assert len(operator["template_sha"]) == 64 and operator["max_model_calls"] >= 1
    test = next(operator for operator in told if operator["name"] == "Test")
    assert test["executes_code"] and test["max_model_calls"] == 4
    assert [item["name"] for item in test["arguments"] if not item["required"]] == ["test_loop"]


def test_one_program_is_validated(box, commands):
    result = commands.result("validate", f"program={box / 'graph.py'}")
    (row,) = result["programs"]
    assert (row["outcome"], result["counts"]) == ("ok", {"ok": 1})
    assert row["calls"] == {"pass": ["AnswerGenerate"], "fail": ["AnswerGenerate"]}
    assert row["operators"] == ["AnswerGenerate"] and row["path"].endswith("graph.py")
    assert len(row["sha"]) == len(row["ast_sha"]) == 64 and row["nodes"] > 30 and row["seconds"] > 0


def test_layout_and_comments_change_the_hash_of_the_text_alone(box, commands):
    words = ["validate", f"program={box / 'graph.py'}"]
    (first,) = commands.result(*words)["programs"]
    (box / "graph.py").write_text(SEED.replace("return", "# so\n\n        return"))
    (second,) = commands.result(*words)["programs"]
    assert first["sha"] != second["sha"] and first["ast_sha"] == second["ast_sha"]


def test_a_folder_of_rounds_is_validated_with_its_prompts(box, commands):
    for name, text, prompts in (
        ("round_1", AFLOW, 'SOLVE = """Solve."""\n'),
        ("round_2", METAGPT, ""),
        ("round_3", AFLOW, "OTHER = 'x'\n"),
        ("round_4", SEED, "SOLVE = ("),
        ("round_5", SEED, None),
    ):
        (box / "rounds" / name).mkdir(parents=True)
        (box / "rounds" / name / "graph.py").write_text(text)
        if prompts is not None:
            (box / "rounds" / name / "prompt.py").write_text(prompts)
    result = commands.result("validate", f"folder={box / 'rounds'}")
    outcomes = [row["outcome"] for row in result["programs"]]
    assert outcomes == ["ok", "ok", "contract_error", "contract_error", "contract_error"]
    said = ("its prompt.py is not Python (", "the file prompt.py next to it is missing")
    for row, start in zip(result["programs"][3:], said, strict=True):
        (unread,) = row["diagnostics"]
        assert unread["code"] == "unknown_prompt" and unread["message"].startswith(start)
    (wrong,) = result["programs"][2]["diagnostics"]
    assert (wrong["code"], wrong["line"], wrong["level"]) == ("unknown_prompt", 21, "error")
    assert result["programs"][2]["calls"] is None


def test_programs_of_a_file_are_validated(commands):
    rows = [
        {"id": "a", "program": SEED},
        {"id": 2, "program": "Custom -> Format", "form": "dsl", "domain": "qa"},
        {"id": "c", "program": "Custom -> Format", "form": "python"},
        {"id": "d", "program": AFLOW, "prompts": ["SOLVE"]},
        {"id": "e", "program": ""},
        {"id": "f", "program": program("return problem")},
    ]
    result = commands.result("validate", f"programs={commands.rows('rows.jsonl', rows)}")
    assert [row["id"] for row in result["programs"]] == ["a", 2, "c", "d", "e", "f"]
    assert [row["outcome"] for row in result["programs"]] == [
        *("ok", "ok", "syntax_error", "ok", "syntax_error", "contract_error")
    ]
    assert result["counts"] == {"ok": 3, "syntax_error": 2, "contract_error": 1}
    assert result["programs"][4]["calls"] is None and result["programs"][4]["sha"] is None


def test_a_program_is_run(commands, typed):
    result = commands.result("run", *typed, "executor=scripted")
    keys = "outcome answer claimed_cost cost_usd calls tokens_in tokens_out critical_tokens own_s"
    assert {*keys.split(), "wall_s", "flags", "sandbox"} <= result.keys()
    assert (result["outcome"], result["answer"], result["tokens_in"]) == ("ok", "42", 9)
    assert {"operator", "ok", "tokens_in", "tokens_out"} <= result["calls"][0].keys()
    assert result["flags"].keys() == {
        *("constant", "literal_share", "judge_address", "option_list", "echo_problem")
    }


def test_programs_of_a_file_are_run_and_each_begins_the_script_anew(commands):
    rows = [{"id": "a", "program": SEED}, {"id": "b", "program": "AnswerGenerate"}]
    script = [{"text": f"<answer>{n}</answer>"} for n in (1, 2)]
    words = [f"programs={commands.rows('rows.jsonl', rows)}", f"problem={json.dumps(PROBLEM)}"]
    result = commands.result("run", *words, f"script={commands.rows('script.jsonl', script)}")
    assert [(row["id"], row["answer"]) for row in result["runs"]] == [("a", "1"), ("b", "1")]


def test_a_preset_answers_as_in_a_study_and_the_store_keeps_what_it_said(box, commands):
    row = kind_of(TASK).rows(TASK, "eval")[0]
    problem = {"id": "p", "domain": row.domain, "prompt": row.prompt_text()}
    programs = commands.rows("rows.jsonl", [{"id": n, "program": "AnswerGenerate"} for n in "ab"])
    typed = [f"programs={programs}", f"problem={json.dumps(problem)}", f"runs_dir={box / 'runs'}"]
    first, again = (commands.result("run", *typed, "executor=sim")["runs"] for _ in range(2))
    assert [run["outcome"] for run in first] == ["ok", "ok"]
    assert first[0]["answer"] == first[1]["answer"] == again[0]["answer"] != ""
    assert first[0]["tokens_out"] == again[0]["tokens_out"] > 0
    assert (box / "runs" / "verdicts.db").is_file()


class Model(Handler):
    """One model that answers every question alike."""

    def do_GET(self) -> None:
        self.answer(b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        vars(self.server)["asked"].append(json.loads(self.body()))
        message = {"role": "assistant", "content": "<thought>6*7</thought><answer>42</answer>"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 50, "completion_tokens": 7}
        self.answer(json.dumps({"model": "m", "choices": [choice], "usage": usage}).encode())


def test_any_preset_answers_at_its_endpoint_at_its_price(box, commands):
    asked: list[dict[str, Any]] = []
    with serving(Model, asked=asked) as url:
        result = commands.result(
            *("run", f"program={box / 'graph.py'}", f"problem={box / 'problem.json'}"),
            *("executor=gpt-oss-120b", f"executor.endpoint.url={url}/v1"),
            *("executor.endpoint.model=m", "executor.price.input=2", "executor.price.output=10"),
            f"runs_dir={box / 'runs'}",
        )
    assert (result["outcome"], result["answer"], result["tokens_in"]) == ("ok", "42", 50)
    assert result["cost_usd"] == pytest.approx((50 * 2 + 7 * 10) / 1e6)
    (body,) = asked
    assert (body["temperature"], body["reasoning_effort"]) == (0.0, "low")
    assert "What is 6 times 7?" in body["messages"][-1]["content"]


def test_every_preset_of_an_executor_can_be_typed():
    assert sorted(run_command.PRESETS) == sorted({*preset_names("executor")} - {"none"})


def test_lines_of_a_script_are_used_in_order_and_by_operator(box, commands, typed):
    (box / "graph.py").write_text(
        program(
            "a = await self.custom(problem, 'a')\nr = await self.review(problem, 's')\n"
            "b = await self.custom(problem, 'b')\nc = await self.custom(problem, 'c')\n"
            "return a['response'] + b['response'] + c['response'] + r['feedback'], 0"
        )
    )
    (box / "script.jsonl").write_text(
        '{"text": "1"}\n{"operator": "Review", "text": "True <feedback>R</feedback>"}\n'
        '{"text": "2"}\n'
    )
    assert commands.result("run", *typed)["answer"] == "122R"


def test_an_invalid_program_is_run_only_where_it_is_asked_for(box, commands, typed):
    (box / "graph.py").write_text(program("import os\nreturn 'x', -1"))
    result = commands.result("run", *typed)
    assert (result["outcome"], result["answer"], result["calls"]) == ("forbidden", None, [])
    result = commands.result("run", *typed, "static=false")
    assert (result["outcome"], result["answer"], result["claimed_cost"]) == ("ok", "x", -1.0)


ENDLESS = {
    "endless": program("while True:\n    pass"),
    "sleeping": program("import time\ntime.sleep(600)"),
    "forking": program(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError: pass"
    ),
}


@pytest.mark.alone
@pytest.mark.parametrize(
    "name", ["endless", pytest.param("sleeping", marks=pytest.mark.long), "forking"]
)
def test_an_endless_program_ends_and_leaves_no_process(box, typed, name):
    before = children()
    (box / "graph.py").write_text(ENDLESS[name])
    words = ["run", *typed, "static=false", f"out={box / 'out.json'}"]
    done = run("experiments.workflow", *words, real=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((box / "out.json").read_text())["outcome"] == "timeout"
    assert left(before) == set()


@pytest.mark.parametrize(
    "words",
    [
        ["program"],
        ["validate"],
        ["validate", "program=no/such/file.py"],
        ["validate", "folder=no/such/folder"],
        ["validate", "programs=no.jsonl"],
        ["validate", "program=a.py", "folder=b"],
        ["validate", "program=graph.py", "form=perl"],
        ["validate", "program=graph.py", "domain=law"],
        ["validate", "program=graph.py", "prompts=no.py"],
        ["validate", "program=graph.py", "prompts=broken.txt"],
        ["validate", "programs=rows.jsonl"],
        ["validate", "programs=empty.jsonl"],
        ["validate", "programs=broken.txt"],
        ["run", "problem=problem.json", "script=script.jsonl"],
        ["run", "program=graph.py", "problem=no.json", "script=script.jsonl"],
        ["run", "program=graph.py", "problem={}", "script=script.jsonl"],
        ["run", "program=graph.py", 'problem={"id"', "script=script.jsonl"],
        ["run", "program=graph.py", "problem=law.json", "script=script.jsonl"],
        ["run", "program=graph.py", "problem=broken.txt", "script=script.jsonl"],
        ["run", "program=graph.py", "problem=problem.json"],
        ["run", "program=graph.py", "problem=problem.json", "script=no.jsonl"],
        ["run", "program=graph.py", "problem=problem.json", "script=bad.jsonl"],
        ["run", "program=graph.py", "problem=problem.json", "script=empty.jsonl"],
        ["run", "program=graph.py", "problem=problem.json", "script=s", "executor=gpt"],
        ["run", "program=graph.py", "problem=problem.json", "script=s", "executor=sim"],
        ["run", "program=graph.py", "problem=problem.json", "price.input=1", "executor=sim"],
        ["run", "program=graph.py", "problem=problem.json", "executor=openai-compatible"],
        [
            *("run", "program=graph.py", "problem=problem.json", "script=script.jsonl"),
            "executor.sampling.max_tokens=9",
        ],
        [
            *("run", "program=graph.py", "problem=problem.json", "executor=gpt-oss-120b"),
            "executor.endpoint.url=http://127.0.0.1:9/v1",
        ],
    ],
)
def test_bad_input_gets_a_paragraph(box, commands, monkeypatch, words):
    monkeypatch.chdir(box)
    (box / "law.json").write_text(json.dumps(PROBLEM | {"domain": "law"}))
    (box / "rows.jsonl").write_text('{"id": "a"}\n')
    (box / "bad.jsonl").write_text('{"text": 1}\n')
    (box / "empty.jsonl").write_text("\n")
    (box / "broken.txt").write_text("{(")
    assert len(commands.refused(*words)) > 40


def test_a_command_is_asked_for_and_help_is_there(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["--help"]) == 0
    assert main(["run", "--help"]) == 0
