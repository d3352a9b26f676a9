"""The command line of the probes, on simulated judges and on a file."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.display import markup
from analysis.probes.profile import profile
from analysis.probes.report import agreement_sentences, effects_table, show
from experiments import probe
from study.cell.places import LOCK
from study.errors import UserError
from study.system import locks
from study.system.files import read_json, write_json
from tests.conftest import Page

SMALL = ["judge=sim-verbose,sim-fair", "n=12", "repeats=2", "temperatures=0.7"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def done(runs) -> probe.Done:
    return probe.run(probe.main.read([*SMALL, f"runs_dir={runs}"]))


def rows_of(folder: Path, kind: str) -> list[dict]:
    return pq.read_table(folder / f"{kind}.parquet").to_pylist()


def test_the_records_are_whole(done, runs):
    assert done.folder == runs / "probes" / "instruct-mini"
    probes, verdicts = (rows_of(done.folder, kind) for kind in ("probes", "verdicts"))
    manifest = read_json(done.folder / "manifest.json")
    assert len(manifest["prompts"]) == 12 and manifest["probes"] == len(probes)
    assert {row["prompt_id"] for row in probes} == set(manifest["prompts"])
    assert set(manifest["judges"]) == {"sim-fair", "sim-verbose"}
    for name in ("sim-fair", "sim-verbose"):
        own = [row for row in verdicts if row["judge"] == name]
        first = [row for row in own if row["setting"] == "profile"]
        assert [row["probe_id"] for row in first] == [row["probe_id"] for row in probes]
        assert len(own) == len(first) + 2 * 4 * 12, "four contents of each prompt, twice"
        assert {row["judge_id"] for row in first} == {manifest["judges"][name]["judge_id"]}
    truth = {row["probe_id"]: row["truth"] for row in probes}
    for row in verdicts:
        if row["judge"] == "sim-fair":
            assert row["score"] == pytest.approx(truth[row["probe_id"]], abs=1e-7)
    assert done.calls == len(verdicts) and done.hits == 0


def test_a_rerun_asks_nothing_and_writes_the_same(done, runs):
    before = {path.name: path.read_bytes() for path in done.folder.glob("*.json")}
    texts = rows_of(done.folder, "probes")
    again = probe.run(probe.main.read([*SMALL, f"runs_dir={runs}"]))
    assert again.calls == 0 and again.hits == done.calls
    assert {path.name: path.read_bytes() for path in done.folder.glob("*.json")} == before
    assert rows_of(again.folder, "probes") == texts


@pytest.mark.parametrize(
    "changed", [["judge=sim-strict"], ["n=8"], ["seed=1"], ["judge.sampling.salt=x"]]
)
def test_probes_of_other_settings_are_not_written_over(done, runs, changed):
    before = {path: path.read_bytes() for path in done.folder.glob("*.*")}
    given = [word for word in SMALL if word.split("=")[0] != changed[0].split("=")[0]]
    with pytest.raises(UserError, match=r"out=instruct-mini-2"):
        probe.run(probe.main.read([*given, *changed, f"runs_dir={runs}"]))
    assert {path: path.read_bytes() for path in done.folder.glob("*.*")} == before


def test_two_probes_at_once_do_not_share_a_folder(done, runs):
    with (
        locks.held(done.folder / LOCK),
        pytest.raises(UserError, match="Another process is probing"),
    ):
        probe.run(probe.main.read([*SMALL, f"runs_dir={runs}"]))


def test_prompts_are_chosen_as_asked(done, runs):
    chosen = set(read_json(done.folder / "manifest.json")["prompts"])
    few = [SMALL[0], "n=12", "repeats=0", f"runs_dir={runs}", "variants=hedged"]
    for select in ("random", "stratified"):
        other = probe.run(probe.main.read([*few, f"select={select}", f"out={select}"]))
        prompts = set(read_json(other.folder / "manifest.json")["prompts"])
        assert len(prompts) == 12 and prompts != chosen
        variants = {row["variant"] for row in rows_of(other.folder, "probes")}
        assert variants == {"ycorrect", "ypartial", "ywrong", "ypolicy_raw", "hedged"}


def test_the_profile_is_printed_and_reported(done, runs, tmp_path, capsys):
    copy = shutil.copytree(runs, tmp_path / "runs")  # the report's command stands in its manifest
    assert probe.main([*SMALL, f"runs_dir={copy}", "report=true"]) == 0
    shown = capsys.readouterr().out
    assert "What sim-verbose pays for beyond the truth" in shown
    assert "sim-fair: undecided for" in shown
    assert "0 judge calls made" in shown
    titles = ("Contents as they are", "All probes", "Judges next to each other", "Asked again")
    assert [shown.index(title) for title in titles] == sorted(map(shown.index, titles))
    assert "Own texts" not in shown, "rules wrote all of them"
    assert "sim-verbose, sim-fair on contents: Krippendorff alpha" in shown
    assert "no model is on record as the author" in " ".join(shown.split())
    report = copy / done.folder.relative_to(runs) / "report"
    html = (report / "judge_profile.html").read_text()
    page = Page(html)
    assert "script" not in page.tags
    text = " ".join(page.text.split())
    for kind, count in (("Figure", 3), ("Table", 8)):
        numbers = [int(n) for n in re.findall(rf"{kind} ([0-9]+)\.", text)]
        assert numbers == list(range(1, count + 1)), kind
    inside = {link for link in page.links if link.startswith("#")}
    files = {link for link in page.links if link.startswith("tables/")}
    assert set(page.links) == inside | files
    assert all(html.count(f'id="{link[1:]}"') == 1 for link in inside)
    beside = (report / "tables").iterdir()
    assert files == {f"tables/{path.name}" for path in beside}
    headline = "sim-verbose pays for length, and that explains what it does with"
    opening, _, sections = text.partition("Findings")
    assert "injection" in opening[opening.index(headline) :]
    caveats = sections.index("What cannot be concluded")
    assert sections.index("What sim-verbose pays for") < caveats
    assert "sim-verbose changes by +" in text and "profile(folder" not in text
    assert "All probes, edited or without content too" in text
    assert "correlation within prompts" in text and "Do judges favour their own texts?" in text
    assert " nan" not in text.lower()


def test_what_a_probed_judge_wrote_is_compared_at_equal_truth(done, tmp_path, capsys):
    folder = tmp_path / "mine"
    shutil.copytree(done.folder, folder)
    table = pq.read_table(folder / "probes.parquet").to_pandas()
    longer = (table["variant"] == "yverbose") & (table["base"] == "partial")
    table.loc[longer, "how"] = "model"
    table.to_parquet(folder / "probes.parquet")
    manifest = read_json(folder / "manifest.json")
    manifest["command"]["rewriter"] = "sim-verbose"
    write_json(folder / "manifest.json", manifest)
    found = profile(folder)
    rows = found.preference.set_index(["judge", "own"])
    fair = ("sim-fair", "family")
    assert set(rows.index) == {("sim-verbose", "self"), ("sim-verbose", "family"), fair}
    assert (rows["texts"] == 12).all()
    assert rows.loc[fair, "effect"] == pytest.approx(0.0, abs=1e-6)
    show(found)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Own texts" in shown and "sim-verbose scores self texts (by sim-verbose)" in shown


def test_judges_that_have_none_beside_them_are_named(tmp_path):
    command = ["judge=sim-fair", "n=3", "variants=hedged", "repeats=0", f"runs_dir={tmp_path}"]
    found = profile(probe.run(probe.main.read(command)).folder)
    assert agreement_sentences(found) == ["One judge was probed, so there is no agreement to show."]
    mixed = pd.concat([found.scores, found.scores.assign(judge="other", pairwise=True)])
    assert agreement_sentences(replace(found, scores=mixed)) == [
        "sim-fair alone was asked about single texts: none to compare it with.",
        "other alone was asked about pairs: none to compare it with.",
    ]


def test_a_file_is_probed_by_a_judge_with_an_endpoint(tmp_path, monkeypatch, capsys):
    from starlette.responses import JSONResponse

    async def app(scope, receive, send):
        if scope["method"] == "GET":
            reply = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        else:
            body = json.loads((await receive())["body"])
            good = "There" in body["messages"][-1]["content"].rsplit("<<<answer", 1)[-1]
            message = {"content": "[[90]]" if good else "no idea"}
            reply = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        await JSONResponse(reply)(scope, receive, send)

    monkeypatch.setattr("judges.ask.session._simulated", lambda *_: app)
    path = tmp_path / "mine.jsonl"
    asked = [{"prompt": f"Where, {name}?", "responses": {"ycorrect": "There."}} for name in "abc"]
    path.write_text("\n".join(map(json.dumps, asked)))
    endpoint = [f"judge.endpoint.{word}" for word in ("url=asgi://x", "model=m", "attempts=1")]
    words = ["judge=openai-compatible", f"set={path}", f"runs_dir={tmp_path}", "repeats=2"]
    assert probe.main([*words, *endpoint]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the set has 3 prompts, but n=64 was typed" in shown
    assert "No rule knows the truth of these texts" in shown
    assert "Nothing is claimed of openai-compatible" in shown and "3 prompts gave a pair" in shown
    rows = rows_of(tmp_path / "probes" / "mine", "verdicts")
    lost = [row for row in rows if row["outcome"] == "unparsed"]
    assert len(lost) == 3 * 8 and all(row["score"] is None for row in lost), "texts without content"
    assert f"{len(lost)} of {len(rows)} verdicts of openai-compatible are missing" in shown


def test_a_limit_of_cost_stops_and_a_higher_one_goes_on(tmp_path, capsys):
    small = [word.replace("n=12", "n=8") for word in SMALL]
    command = [*small, "variants=hedged", f"runs_dir={tmp_path}"]
    folder = tmp_path / "probes" / "instruct-mini"

    def read() -> tuple[list[dict], dict, str]:
        shown = " ".join(capsys.readouterr().out.split())
        return rows_of(folder, "verdicts"), read_json(folder / "spent.json"), shown

    assert probe.main([*command, "cost.max_calls=60"]) == 1
    verdicts, spent, shown = read()
    # per judge 8 prompts x (4 contents + 2 edits), then 8 x 4 contents twice
    assert spent == {"calls": 60, "usd": 0.0} and len(verdicts) == 2 * (48 + 64)
    assert [row["score"] is None for row in verdicts] == [False] * 60 + [True] * 164
    assert {row["outcome"] for row in verdicts[60:]} == {"aborted"}
    assert "52 of 64 verdicts of sim-verbose (repeat T=0.7) were not requested" in shown
    assert "48 of 48 verdicts of sim-fair (profile) were not requested" in shown
    assert "has spent 60 calls" in shown and "cost.max_calls=120" in shown
    assert "sim-fair has no scored pair" in shown
    assert "Nothing is claimed of sim-verbose" in shown and "fewer than 10 carry no claim" in shown
    assert probe.main([*command, "cost.max_calls=60"]) == 1
    assert read()[1]["calls"] == 60, "the limit is on the folder"
    assert probe.main([*command, "cost.max_calls=224"]) == 0
    verdicts, spent, shown = read()
    assert spent["calls"] == 224 and {row["outcome"] for row in verdicts} == {"scored"}
    assert "not requested" not in shown and "164 judge calls made; 60 verdicts came from" in shown


def test_what_missing_verdicts_could_undo_is_said(tmp_path, capsys):
    command = ["judge=sim-flaky", "n=64", "variants=hedged,placebo", f"runs_dir={tmp_path}"]
    assert probe.main([*command, "repeats=0", "judge.simulated.noise_sd=0"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Missing verdicts could undo what is claimed" in shown
    found = profile(tmp_path / "probes" / "instruct-mini")
    table = effects_table(found, "sim-flaky").set_index("variant")
    row = found.effects.set_index("variant").loc["placebo"]
    assert row["unscored"] > 0 and row["bound_low"] < row["effect"] < row["bound_high"]
    worst = markup.bracket(row["bound_low"], row["bound_high"])
    assert table.loc["placebo", "worst cases"] == worst
    fair = tmp_path / "fair"
    probe.run(probe.main.read(["judge=sim-fair", "n=3", "variants=placebo", f"runs_dir={fair}"]))
    whole = profile(fair / "probes" / "instruct-mini")
    assert "worst cases" not in effects_table(whole, "sim-fair"), "nothing is missing"


def test_a_name_is_a_folder_below_runs_and_a_judge_named_twice_is_asked_once():
    read = probe.main.read
    assert read(["judge=a", "out=x"]).folder == Path("runs/probes/x")
    assert read(["judge=a", "out=./x"]).folder == Path("x")
    assert read(["judge=a", "set=some/file.jsonl"]).folder == Path("runs/probes/file")
    assert probe.main.read(["judge=a,a,b"]).judges == ["a", "b"]
