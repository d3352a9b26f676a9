"""``python -m experiments.workflow buffer``: what it writes, and what it refuses."""

import json

import pytest

from experiments.workflow.experience import CAP, MODES


def row(number, problem, **changed):
    return {
        "id": f"p{number}",
        "domain": "math",
        "problem": problem,
        "program": f"Custom -> Revise * {number}",
        "group_key": f"g{number}",
        "correct": 1.0,
        "verified": True,
        "total": 0.9,
    } | changed


QUERY = {"id": "p0", "domain": "math", "prompt": "How many apples are three and four apples?"}


def ask(commands, rows, *words, query=QUERY):
    path, problem = commands.rows("rows.jsonl", rows), commands.json("query.json", query)
    return commands.result("buffer", f"rows={path}", f"query={problem}", *words)


@pytest.mark.parametrize("mode", MODES)
def test_the_contract(commands, mode):
    rows = [
        row(0, "How many pears are there?"),  # its own id
        row(1, "How many apples are three and four apples, then?"),  # nearly the same
        row(2, "How many apples does a fox eat?"),
        row(3, "How many apples does an owl eat?", group_key="mine"),
        row(4, "Name four apples.", verified=False),
        row(5, "Name three pears."),
        row(6, "Name three pears.", id="p5", program="Custom  -> Revise * 5"),
        row(7, "Name three roads.", domain="qa"),
    ]
    result = ask(commands, rows, f"mode={mode}", "k=3", query=QUERY | {"group_key": "mine"})
    assert result["size"] == 6
    assert result["refused"] == {"unverified": 1, "duplicate": 1, "below": 0}
    assert {line["id"] for line in result["retrieved"]} == {"p2", "p5"}
    assert all(0 <= line["similarity"] < 1 for line in result["retrieved"])
    assert result["contamination"] == 0


def test_a_hundred_of_a_domain_stay_and_three_are_shown(commands):
    rows = [
        row(number, f"How many apples has house {number} in road {number % 7}?", domain=domain)
        for domain in ("math", "code", "qa")
        for number in range(1, CAP + 6)
    ]
    result = ask(commands, rows)
    assert result["size"] == 3 * CAP and result["refused"]["below"] == 15
    assert len(result["retrieved"]) == 3
    similarities = [line["similarity"] for line in result["retrieved"]]
    assert similarities == sorted(similarities, reverse=True)


def test_what_the_judge_alone_lets_in_is_counted(commands):
    rows = [row(1, "a b"), row(2, "c d", verified=False), row(3, "e f", verified=None, correct=0)]
    assert ask(commands, rows)["contamination"] == 0
    result = ask(commands, rows, "verified=false")
    assert result["size"] == 2 and result["contamination"] == 0.5
    none = ask(commands, rows[1:])
    assert none["size"] == 0 and none["contamination"] is None and none["retrieved"] == []


def test_a_query_may_be_typed(commands):
    path = commands.rows("rows.jsonl", [row(1, "How many pears?")])
    query = json.dumps({"id": 3, "domain": "math", "problem": "How many apples?"})
    (line,) = commands.result("buffer", f"rows={path}", f"query={query}")["retrieved"]
    assert line["id"] == "p1"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": 2}, "a row of version 2, but this version is 1"),
        ({"problem": " "}, "problem is a text"),
        ({"program": None}, "program is a text"),
        ({"verified": 0.5}, "verified is true, false or null"),
        ({"verified": "yes"}, "verified is a finite number"),
        ({"correct": 3}, "correct is a number from 0 to 1"),
        ({"total": float("inf")}, "total is a finite number"),
        ({"id": None}, "id is a text or a whole number"),
        ({"group_key": []}, "group_key is a text or a whole number"),
    ],
)
def test_a_row_that_does_not_fit(commands, changed, said):
    path = commands.rows("rows.jsonl", [row(1, "a"), row(2, "b") | changed])
    query = commands.json("query.json", QUERY)
    paragraph = commands.refused("buffer", f"rows={path}", f"query={query}")
    assert f"{path}, line 2" in paragraph and said in paragraph.lower()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mode=nearest"], "one of cosine, mmr, facility"),
        (["k=0"], "k=0 is not legal"),
        (["quantile=1"], "quantile=1"),
        (["query=gone.json"], "query=gone.json is not a file"),
        (["query={"], "is not JSON"),
        (['query={"id": 1, "domain": "math"}'], "prompt is None"),
    ],
)
def test_words_that_do_not_fit(commands, words, said):
    path = commands.rows("rows.jsonl", [row(1, "a")])
    if not words[0].startswith("query="):
        words = [*words, f"query={commands.json('query.json', QUERY)}"]
    assert said in commands.refused("buffer", f"rows={path}", *words)


def test_an_embedder_has_an_address_and_a_name(commands):
    rows = commands.rows("rows.jsonl", [row(1, "Name four apples.")])
    words = ("buffer", f"rows={rows}", f"query={commands.json('query.json', QUERY)}")
    assert "name an embedder together" in commands.refused(*words, "url=http://h/v1")
    assert "name an embedder together" in commands.refused(*words, "model=bag")
    assert "not a legal address" in commands.refused(*words, "model=bag", "url=h")
    said = commands.refused(*words, "model=bag", "url=http://h/v1", "api_key_env=NO_SUCH_KEY")
    assert "NO_SUCH_KEY" in said
