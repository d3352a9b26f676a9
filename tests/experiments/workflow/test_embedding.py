"""Examples by an embedder's vectors: who is near, who has none, and who is asked again."""

import dataclasses
import json
from collections.abc import Iterator

import numpy as np
import pytest

from experiments.plan.preflight import check_inputs
from experiments.sweep import cells_of
from experiments.workflow.embedding import MOST_LOST, Embeddings
from experiments.workflow.experience import MODES, Buffer, Entry, Query
from experiments.workflow.problem import problem_of
from judges.ask.replies import Store
from study.cell.cells import Cell, embedders_of, models_of
from study.config.schema import Embedder, Endpoint
from study.errors import UserError
from study.finding import stop_at_problem
from study.tasks import kind_of
from tests.experiments.workflow.test_world import recorded, world_of
from tests.web_server import Handler, serving

AXES = ("fruit", "apple", "pear", "animal", "fox", "owl", "road", "train")
"""Of the planted vectors: the first three words are one direction, and so on."""


class Embedding(Handler):
    """Vectors by the words of `AXES`; fails at texts that say so."""

    def do_GET(self) -> None:
        self.answer(json.dumps({"data": [{"id": "bag"}]}).encode())

    def do_POST(self) -> None:
        request, state = json.loads(self.body()), vars(self.server)
        text = request["input"]
        state["texts"].append(text)
        if self.path != "/v1/embeddings" or state["down"]:
            return self.answer(b"{}", 503)
        if "too long" in text:
            return self.answer(b'{"error": {"message": "the input is too long"}}', 400)
        groups = [any(word in text for word in AXES[at : at + 3]) for at in (0, 3, 6)]
        vector = [1.0 + 2 * inside for inside in groups] + [0.0] * text.count("!")
        answer = {"data": [{"index": 0, "embedding": vector}], "model": request["model"]}
        return self.answer(json.dumps(answer).encode())


@dataclasses.dataclass
class Server:
    """Its address, the texts that it was asked for, and whether it is down."""

    url: str
    state: dict

    def embedder(self, **endpoint) -> Embedder:
        quick = {"attempts": 1, "backoff_s": 0.0, "deadline_s": 30.0}
        return Embedder(endpoint=Endpoint(url=self.url, model="bag", **quick | endpoint))


@pytest.fixture
def server() -> Iterator[Server]:
    state = {"texts": [], "down": []}
    with serving(Embedding, **state) as url:
        yield Server(f"{url}/v1", state)


def entries(*problems: str) -> list[Entry]:
    return [
        Entry(number, "math", problem, f"run({number})", verified=True, total=1.0)
        for number, problem in enumerate(problems)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_the_nearest_by_vectors_is_not_the_nearest_by_words(server, mode) -> None:
    problems = ["How much fruit is in a box of pears?", "How many trains leave a station by noon?"]
    query = Query("q", "math", "How many apples grow here by noon, and how many leave?")
    by_words = Buffer().updated(entries(*problems))
    assert by_words.retrieve(query, mode, 1)[0][0].id == 1
    with Embeddings(server.embedder(), None) as vectors:
        by_vectors = dataclasses.replace(by_words, vectors=vectors)
        ((nearest, cosine),) = by_vectors.retrieve(query, mode, 1)
        a, b = (np.array(each) for each in ([3.0, 1, 1], [3.0, 1, 1]))
        assert nearest.id == 0
        assert cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        assert by_vectors.sha == by_words.sha


def test_the_same_problem_is_still_known_by_its_words(server) -> None:
    problem = "How much fruit is in a box of seven pears?"
    with Embeddings(server.embedder(), None) as vectors:
        buffer = dataclasses.replace(Buffer().updated(entries(problem)), vectors=vectors)
        assert buffer.retrieve(Query("q", "math", f"{problem} "), "cosine", 3) == []
        assert buffer.retrieve(Query("q", "math", "A basket of apples"), "cosine", 3) != []


def test_what_has_no_vector_is_missing_and_no_number(server) -> None:
    kept = entries("A box of pears", "A problem that is too long")
    with Embeddings(server.embedder(), None) as vectors:
        buffer = dataclasses.replace(Buffer().updated(kept), vectors=vectors)
        chosen = buffer.retrieve(Query("q", "math", "apples"), "cosine", 3)
        assert [entry.id for entry, _ in chosen] == [0]
        assert buffer.retrieve(Query("q", "math", "too long, too"), "cosine", 3) == []
        assert set(vectors.lost) == {"A problem that is too long", "too long, too"}
        n_asked = len(server.state["texts"])
        vectors(["too long, too", "apples"])
        assert len(server.state["texts"]) == n_asked  # nobody is asked twice


def test_vectors_are_kept_in_the_store(server, tmp_path) -> None:
    texts = ["a box of pears", "a fox", "a box of pears"]
    made = []
    for _ in range(2):
        with (
            Store(tmp_path / "verdicts.db") as store,
            Embeddings(server.embedder(), store) as vectors,
        ):
            made.append(np.stack(vectors(texts)))
    np.testing.assert_array_equal(*made)
    assert sorted(server.state["texts"]) == sorted(set(texts))
    with Store(tmp_path / "verdicts.db") as store:
        newer = dataclasses.replace(server.embedder(), revision="2")
        with Embeddings(newer, store) as vectors:
            vectors(texts)
    assert len(server.state["texts"]) == 4  # other weights are asked anew


def test_one_that_is_down_stops_the_run(server) -> None:
    server.state["down"].append(True)
    texts = [f"fox {number}" for number in range(2 * MOST_LOST)]
    with (
        Embeddings(server.embedder(), None) as vectors,
        pytest.raises(UserError, match=f"for {MOST_LOST} problems in a row"),
    ):
        vectors(texts)


def test_one_that_refuses_text_after_text_stops_the_run(server) -> None:
    with (
        Embeddings(server.embedder(), None) as vectors,
        pytest.raises(UserError, match="too long"),
    ):
        vectors([f"too long {number}" for number in range(2 * MOST_LOST)])


def test_vectors_of_two_sizes_are_refused(server) -> None:
    with (
        Embeddings(server.embedder(), None) as vectors,
        pytest.raises(UserError, match=r"vectors of [34] and of [34] numbers"),
    ):
        vectors(["a fox", "a fox!"])


def test_a_world_embeds_what_it_learned_and_what_it_asks(server) -> None:
    config = cell_of().config
    every = kind_of(config.task).rows(config.task, "train")
    learned, other, *_ = [row for row in every if row.domain == "math"]
    buffer = dataclasses.replace(config.workflow.buffer, shots=1, embedder=server.embedder())
    with world_of(config, buffer=buffer, prompt="layered") as world:
        world.learn([recorded(learned, "Programmer", 1.0, 1.0)])
        for _ in range(2):
            world.prompt_for(other)
            world.learn([])
        assert server.state["texts"] == [problem_of(each).prompt for each in (learned, other)]
        invalid = {"outcome": "syntax_error", "ast_sha": None, "feature/repaired": None}
        metrics = world.metrics([invalid | {"feature/fallback": None}])
        assert metrics["workflow/without_vector"] == 0
    plain = dataclasses.replace(buffer, embedder=Embedder())
    with world_of(config, buffer=plain, prompt="layered") as world:
        assert world.embeddings is None


def test_a_plan_knows_it_and_refuses_what_cannot_work() -> None:
    words = ["workflow.buffer.embedder.endpoint.model=bag", "workflow.buffer.shots=2"]

    def refusal_of(*more: str) -> str:
        cell = cell_of(*words, *more)
        with pytest.raises(UserError) as refused:
            stop_at_problem(check_inputs([cell]))
        return str(refused.value)

    assert "not a legal address" in refusal_of()
    url = "workflow.buffer.embedder.endpoint.url=http://h/v1/embeddings"
    assert "without /embeddings" in refusal_of(url)
    assert [each.role for each in embedders_of([cell_of(*words)])] == ["workflow.buffer.embedder"]
    assert len(models_of([cell_of(*words)])) == len(models_of([cell_of()])) + 1
    assert embedders_of([cell_of(words[0])]) == []  # without examples nobody asks it


def cell_of(*words: str) -> Cell:
    return cells_of(["experiment=workflow-quickstart", "tracking=none", *words])[0]


def test_it_is_part_of_a_cells_name_and_its_address_is_not() -> None:
    names = {
        cell_of(*words).folder.path.name
        for words in (
            [],
            ["workflow.buffer.embedder.endpoint.url=http://h/v1"],
            ["workflow.buffer.embedder.endpoint.model=bag"],
        )
    }
    assert len(names) == 2
