"""New blocks of layer 1: adopted where they are better on rows that are no test rows, else not."""

import json
import shutil

import pytest
import yaml

from experiments.workflow import optimise
from experiments.workflow.blocks import BLOCKS, FOLDER, Blocks, check_text, keep
from experiments.workflow.find import FORMS
from experiments.workflow.operators.base import DOMAINS
from experiments.workflow.problem import Problem
from experiments.workflow.prompt import Prompter
from experiments.workflow.world import version_of
from study.cell.folder import CellFolder
from study.cell.records import write_part
from study.config.compose import load_executor, load_presets
from study.config.presets import SHIPPED
from study.config.schema import Study
from study.errors import UserError
from study.system.files import read_yaml
from study.tasks import TASKS
from tests.experiments.evaluation.answering import serving

GOOD = "Rules:\n- Write one word: Custom."
BAD = "Rules:\n- Write whatever you like."
SIM = ["task=workflow-mini", "executor=sim"]
TASK = load_presets("sim-fair", "workflow-mini")[1]


@pytest.fixture(scope="module")
def rows():
    """Every row of sums, by its text: whether it is a test row, and its answer."""
    kind = TASKS["workflow-mini"]
    return {
        row.prompt_text(): (split, row.reference)
        for split in ("train", "eval")
        for row in kind.rows(TASK, split)
    }


class Model:
    """Writes a program that works where the rules say GOOD, as operator answers every problem
    rightly, and proposes ``block``."""

    def __init__(self, rows, block=GOOD):
        self.rows, self.block, self.problems, self.proposals = rows, block, set(), []

    def __call__(self, body):
        text = "\n".join(turn["content"] for turn in body["messages"])
        lines = [line for line in text.split("\n") if line in self.rows]
        self.problems.update(lines)
        if "Write a better version of this block" in text:
            self.proposals.append(text)
            return f"I think:\n<block>\n{self.block}\n</block>"
        if "one word: Custom" in text:
            return "Custom"
        if body["messages"][0]["role"] == "system":
            return "Review -> Custom"
        return self.rows[lines[0]][1]


@pytest.fixture
def optimised(commands, tmp_path, isolated):
    """(model) -> the result of optimise on the rules of the short form."""

    def call(model, propose=False, refused=False, text=GOOD):
        (tmp_path / "new.txt").write_text(text)
        with serving(model) as (url, _):
            asked = ("=openai-compatible", f".endpoint.url={url}", ".endpoint.model=m")
            proposer = [f"proposer{word}" for word in asked]
            return (commands.refused if refused else commands.result)(
                *("optimise", "task=workflow-mini", "form=dsl", "block=rules", "limit=12"),
                *("domain=math", *(f"executor{word}" for word in asked)),
                *(f"blocks={tmp_path / 'blocks'}", f"runs_dir={tmp_path / 'runs'}"),
                *(proposer if propose else [f"text={tmp_path / 'new.txt'}"]),
            )

    return call


@pytest.fixture
def new_text(tmp_path):
    """The file of a better block."""
    path = tmp_path / "new.txt"
    path.write_text(GOOD)
    return path


def test_a_better_block_is_adopted_once_and_read_by_a_study(optimised, rows, tmp_path):
    model = Model(rows)
    result = optimised(model)
    assert result["adopted"] is True
    assert (result["old"]["accuracy"], result["new"]["accuracy"]) == (0.0, 1.0)
    assert (result["difference"], result["interval"], result["n"]) == (1.0, [1.0, 1.0], 12)
    assert (result["old"]["version"], result["new"]["version"]) == (1, 2)
    assert model.problems
    assert {rows[text][0] for text in model.problems} == {"train"}  # never a test row

    folder = tmp_path / "blocks"
    problem = Problem("p", "math", "What is 1 + 1?")
    before = Prompter("dsl").prompt(problem)
    after = Prompter("dsl", blocks=folder).prompt(problem)
    assert GOOD in after.messages[0]["content"]
    assert GOOD not in before.messages[0]["content"]
    assert {block.id: block.version for block in after.blocks}["rules"] == 2
    versions = [result[side]["prompt_version"] for side in ("old", "new")]
    assert versions == [version_of(before), version_of(after)]
    assert versions[0] != versions[1]

    assert json.loads((folder / "versions.json").read_text()) == {"rules-dsl": 2}
    text = (folder / "rules-dsl.txt").read_bytes()
    worse = optimised(Model(rows), text=BAD)
    assert (worse["difference"], worse["adopted"]) == (-1.0, False)
    assert (worse["old"]["version"], worse["new"]["version"]) == (2, 3)
    assert (folder / "rules-dsl.txt").read_bytes() == text
    same = optimised(Model(rows), refused=True)
    assert "Give a new version as text=FILE" in same


def test_a_block_that_changes_nothing_is_not_adopted_nor_written(optimised, rows, tmp_path):
    result = optimised(Model(rows), text=BAD)
    assert (result["difference"], result["interval"]) == (0.0, [0.0, 0.0])
    assert result["adopted"] is False
    assert not (tmp_path / "blocks").exists()


def test_a_model_proposes_a_block(optimised, rows):
    model = Model(rows)
    result = optimised(model, propose=True)
    assert result["adopted"] is True
    assert result["new"]["text"] == GOOD
    (asked,) = model.proposals
    assert (FOLDER / "rules-dsl.txt").read_text().strip() in asked


@pytest.mark.parametrize(
    "block, said", [("", "wrote no block"), ("word " * 300, "at most 200 are legal")]
)
def test_a_proposal_that_is_no_legal_block_is_said(optimised, rows, block, said):
    assert said in optimised(Model(rows, block=block), propose=True, refused=True)


@pytest.mark.parametrize(
    "words, said",
    [
        (SIM, "text=FILE or from proposer=NAME"),
        (["text={text}"], "needs a policy"),
        (["text={text}", *SIM, "block=domain"], "twice"),
        (["text={text}", "executor=sim", "task=mixed-mini"], "knows the problems of"),
        (["text=nowhere", *SIM], "text=nowhere is not a file"),
        (["text={text}", "run=nowhere"], "nowhere is not a cell"),
        (["text={text}", "run=nowhere", "form=dsl"], "form= is set by the run"),
        (["text={text}", *SIM, "proposer.context=9"], "without proposer=NAME"),
    ],
)
def test_what_cannot_be_tried_is_said(commands, tmp_path, new_text, words, said):
    typed = [word.format(text=new_text) for word in words]
    typed += ["block=rules", f"blocks={tmp_path / 'blocks'}"]
    assert said in commands.refused("optimise", *typed)


def test_a_run_s_policy_that_is_shown_no_blocks_is_said(commands, tmp_path, new_text):
    folder = tmp_path / "cell"
    folder.mkdir()
    (folder / "config.yaml").write_text(
        "world: workflow\nstudy: s\njudge: {name: sim-fair, endpoint: {url: ''}}\n"
        "task: {name: workflow-mini}\nworkflow: {prompt: problem}\n"
    )
    words = [f"run={folder}", "block=rules", f"text={new_text}"]
    said = commands.refused("optimise", *words, f"blocks={tmp_path / 'blocks'}")
    assert "sees no blocks" in said


@pytest.mark.parametrize("form", FORMS)
def test_every_block_that_ships_is_legal_in_its_own_place(form):
    for domain in DOMAINS:
        for block in BLOCKS:
            text = Blocks(form).text(block, domain)[0]
            check_text(block, text, text, "itself")


@pytest.mark.parametrize(
    "block, text, said",
    [
        ("rules", " \n", "it is empty"),
        ("problem", "Solve it. {mark}", "{mark}, {mark}, {problem}, {mark}, {entry_point}"),
        ("rules", "Use {x}.", "words in braces differ from the block's: none"),
        ("role", "word " * 81, "it has 81 tokens, but at most 80"),
    ],
)
def test_a_text_that_cannot_take_a_block_s_place_is_refused_where_it_is_read(
    tmp_path, block, text, said
):
    name = Blocks("dsl").files(block, "math")[0]
    keep(tmp_path, name, text, 2)
    with pytest.raises(UserError) as refused:
        Prompter("dsl", blocks=tmp_path).prompt(Problem("p", "math", "One?"))
    assert said in str(refused.value)
    assert name in str(refused.value)


def test_a_folder_of_blocks_that_is_none_is_said(tmp_path):
    with pytest.raises(UserError, match=r"workflow\.blocks=.*nowhere is not a folder"):
        Prompter("dsl", blocks=tmp_path / "nowhere")


def test_rows_to_choose_by_are_neither_test_rows_nor_drawn(rows):
    config = Study(task=TASK, executor=load_executor("sim")[0])
    _, first = optimise.validation_rows(config, 40, 0, set())
    without = {row.prompt_id for row in first}
    split, second = optimise.validation_rows(config, 40, 0, without)
    assert split == "train, never drawn"
    assert len(first) == len(second) == 40
    assert not without & {row.prompt_id for row in second}
    assert {rows[row.prompt_text()][0] for row in (*first, *second)} == {"train"}
    _, others = optimise.validation_rows(config, 40, 1, set())
    assert [row.prompt_id for row in others] != [row.prompt_id for row in first]
    _, code = optimise.validation_rows(config, 5, 0, set(), "code")
    assert {row.domain for row in code} == {"code"}


def test_the_commonest_faults_of_a_run_are_told(tmp_path):
    completions = ["Review -> Revise"] * 3 + ["Custom -> Wrong"] * 2 + ["Custom"] * 9
    outcomes = ["contract_error"] * 5 + ["ok"] * 8 + ["operator_error"]
    records = [
        {"step": 1, "outcome": outcome, "completion": text}
        for outcome, text in zip(outcomes, completions, strict=True)
    ]
    (tmp_path / "rollouts").mkdir()
    kinds = {"step": "int32", "outcome": "string", "completion": "string"}
    write_part(tmp_path / "rollouts" / "step-000001.parquet", records, kinds)
    (first, count), (second, twice), (third, once) = optimise.faults(CellFolder(tmp_path), "dsl")
    assert (count, twice, once) == (3, 2, 1)
    assert "Review" in first
    assert "unknown_operator" in second
    assert third == "operator_error"
    asked = optimise.proposal("rules", BAD, [(first, count)])
    assert f"- {first} (3 times)" in asked
    assert "each as often: none" in asked


@pytest.mark.usefixtures("isolated")
def test_the_policy_of_a_run_is_shown_both_and_its_programs_count(
    commands, tmp_path, new_text, little
):
    """A policy that writes no program under either block: nothing is better, nothing adopted."""
    base, folder = tmp_path / "little", tmp_path / "runs" / "study" / "cell"
    shutil.copytree(little, base)
    settings = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 16384}))
    shutil.copytree(base, folder / "policy")
    drawn = TASKS["workflow-mini"].rows(TASK, "train")[0]
    (folder / "rollouts").mkdir()
    record = {"step": 1, "prompt_id": drawn.prompt_id, "outcome": "ok", "completion": "Custom"}
    kinds = {"step": "int32", **dict.fromkeys(list(record)[1:], "string")}
    write_part(folder / "rollouts" / "step-000001.parquet", [record], kinds)
    executor = read_yaml(SHIPPED / "executor" / "sim.yaml")
    config = {
        "study": "study",
        "world": "workflow",
        "judge": {"name": "sim-fair", "endpoint": {"url": ""}},
        "executor": {key: value for key, value in executor.items() if key != "defaults"},
        "task": {"name": "workflow-mini"},
        "policy": {"path": str(base), "dtype": "float32"},
        "workflow": {"form": "dsl"},
        "trainer": {"max_completion_length": 4},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    words = [f"run={folder}", "block=rules", f"text={new_text}", "limit=10"]
    result = commands.result("optimise", *words, f"blocks={tmp_path / 'blocks'}")
    assert (result["n"], result["n_missing"], result["adopted"]) == (10, 0, False)
    assert (result["old"]["accuracy"], result["new"]["accuracy"]) == (0.0, 0.0)
    assert result["old"]["prompt_version"] != result["new"]["prompt_version"]
    assert optimise.trained_prompts(CellFolder(folder)) == {drawn.prompt_id}
