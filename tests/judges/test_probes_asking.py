"""What a probe asks of a judge and of a rewriter, in which order, and what a folder may spend."""

import asyncio
from typing import Any

import pytest

from judges.ask.allowance import MOST, Allowance
from judges.ask.budget import Spent
from judges.endpoint.client import Fetched
from judges.grading.delimiters import undelimit
from judges.probes import Source, variants
from judges.probes.asking import ask
from judges.probes.model import INSTRUCTIONS, rewritten
from study.config.schema import Cost, Judge, Price, Simulated
from study.errors import UserError
from study.rows import make_row
from study.verdict import Outcome, Reply
from tests.judges.sessions import held, text_of
from tests.waiting import on_own_clock

ROW = make_row(({"role": "user", "content": "Where is it?"},))
SOURCE = Source(ROW, {"correct": "It is 4 km off."})


def test_each_text_is_judged_and_contents_again_and_again(app, store):
    app.say = lambda body: f"[[{len(undelimit('answer', text_of(body)) or '')}]]"
    probes, _ = variants(SOURCE, only=["hedged", "key_colon"])
    done = ask(held(), probes, store, repeats=3, temperatures=(0.0, 1.0))
    first = [row for row in done.rows if row["setting"] == "profile"]
    assert [row["probe_id"] for row in first] == [one.probe_id for one in probes]
    assert [row["score"] for row in first] == [len(one.text) / 100 for one in probes]
    again = [row for row in done.rows if row["setting"] != "profile"]
    assert len(again) == 2 * 3 and {row["temperature"] for row in again} == {0.0, 1.0}
    assert {row["probe_id"] for row in again} == {probes[0].probe_id}, "the content as it is"
    assert {row["order"] for row in done.rows} == {None}
    # the first draw at temperature 0 is the verdict of the profile
    assert done.calls == len(probes) + 5 and done.hits == 1
    assert (
        sorted(body["temperature"] for body in app.bodies) == [0.0] * (len(probes) + 2) + [1.0] * 3
    )


def test_a_rerun_asks_nothing(app, store):
    probes, _ = variants(SOURCE)
    once = ask(held(), probes, store, repeats=2, temperatures=(0.7,))
    twice = ask(held(), probes, store, repeats=2, temperatures=(0.7,))
    assert once.calls == len(app.bodies) > 0
    assert (twice.calls, twice.hits) == (0, once.calls)
    assert [row["score"] for row in twice.rows] == [row["score"] for row in once.rows]


def test_a_pairwise_judge_sees_both_orders(app, store):
    app.say = lambda body: "[[A]]"  # whatever is shown first
    probes, _ = variants(SOURCE, only=["hedged", "yconfident_wrong"])
    done = ask(held("pairwise", votes=2), probes, store, repeats=5, temperatures=(1.0,))
    edited = [one for one in probes if one.against is not None]
    assert len(done.rows) == len(edited) * 2 * 2, "two orders, two votes, no repeats"
    assert {(row["order"], row["score"]) for row in done.rows} == {(0, 1.0), (1, 1.0)}
    assert {row["probe_id"] for row in done.rows} == {one.probe_id for one in edited}


def test_a_pairwise_judge_sees_each_content_beside_the_best_again_and_again(app, store):
    app.say = lambda body: "[[A]]" if body["temperature"] else "[[B]]"
    contents = {"correct": "It is 4 km off.", "partial": "It is off.", "policy": "It is 4 km off."}
    probes, _ = variants(Source(ROW, contents), only=["hedged"])
    done = ask(held("pairwise"), probes, store, repeats=3, temperatures=(0.0, 1.0))
    first = [row for row in done.rows if row["setting"] == "profile"]
    assert len(first) == 2 * 2, "two edited texts in two orders"
    again = [row for row in done.rows if row["setting"] != "profile"]
    partial = next(one.probe_id for one in probes if one.variant == "ypartial")
    assert {row["probe_id"] for row in again} == {partial}, "the same text twice is no pair"
    assert len(again) == 2 * 2 * 3, "temperatures, orders, repeats"
    assert {(row["setting"], row["order"], row["score"]) for row in again} == {
        (f"repeat T={heat}", order, float(heat)) for heat in (0, 1) for order in (0, 1)
    }
    assert {row["sample_index"] for row in again} == {0, 1, 2}


def test_a_limit_leaves_the_rest_missing_and_the_store_is_free(app, store):
    probes, _ = variants(SOURCE)
    few = Allowance(Cost(max_calls=5), [held()])
    done = ask(held(), probes, store, repeats=2, temperatures=(0.7,), allowance=few)
    assert done.calls == len(app.bodies) == few.spent.calls == 5
    missing = [row for row in done.rows if row["outcome"] == "aborted"]
    assert len(missing) == len(done.rows) - 5 > 0
    assert all(row["score"] is None and row["attempts"] == 0 for row in missing)
    assert all("cost.max_calls=5" in row["reason"] for row in missing)
    kept = [row["outcome"] for row in done.rows]
    none = Allowance(Cost(max_calls=5), [held()], few.spent)
    again = ask(held(), probes, store, repeats=2, temperatures=(0.7,), allowance=none)
    assert again.calls == 0 and [row["outcome"] for row in again.rows] == kept
    rest = ask(held(), probes, store, repeats=2, temperatures=(0.7,))
    assert {row["outcome"] for row in rest.rows} == {"scored"}
    assert rest.calls == len(missing), "what was not asked is not taken for asked"


def test_a_rewriter_s_texts_are_paid_for_too(app, store):
    app.say = lambda body: "Written anew."
    one = Allowance(Cost(max_calls=1), [held()])
    filled, lost, calls = rewritten(held(), [SOURCE], store, one)
    assert calls == 1 and len(filled[0].slot_texts) == 1
    assert len(lost) == len(INSTRUCTIONS) - 1 and all("aborted" in line for line in lost)


def test_order_zero_shows_the_counterpart_first(app, store):
    def prefer_hedged(body: dict[str, Any]) -> str:
        text = text_of(body)
        instruction_end = text.index("It is 4 km off.")
        first_block = text[instruction_end : text.index("It is 4 km off.", instruction_end + 1)]
        return "[[A]]" if "perhaps" in first_block else "[[B]]"

    app.say = prefer_hedged
    probes, _ = variants(SOURCE, only=["hedged"])
    done = ask(held("pairwise"), probes, store)
    # the edited text wins both times: shown second in order 0, first in order 1
    assert [(row["order"], row["score"]) for row in done.rows] == [(0, 0.0), (1, 1.0)]


def test_an_order_that_cannot_be_read_is_missing(app, store):
    app.say = lambda body: "hard to say"
    probes, _ = variants(SOURCE, only=["hedged"])
    done = ask(held("pairwise"), probes, store)
    assert [row["outcome"] for row in done.rows] == ["unparsed", "unparsed"]
    assert [row["score"] for row in done.rows] == [None, None]


def test_a_ranking_has_no_pairs_and_a_simulated_judge_writes_nothing(app, store):
    probes, _ = variants(SOURCE, only=["hedged"])
    with pytest.raises(UserError, match="listwise, which has no pairs"):
        ask(held("listwise"), probes, store)
    with pytest.raises(UserError, match="is no model and writes nothing"):
        rewritten(Judge(name="sim", simulated=Simulated()), [SOURCE], store)


def test_a_model_fills_the_empty_slots_once(app, store):
    app.say = lambda body: "" if "few words" in text_of(body) else "Written anew."
    source = Source(ROW, SOURCE.contents, {"yverbose": ("Long.", "set")})
    filled, lost, calls = rewritten(held(), [source, Source(ROW, {"policy": "x"})], store)
    assert filled[0].slot_texts == {
        "yverbose": ("Long.", "set"),
        **dict.fromkeys(
            ("ystructured", "ysycophant", "yconfident_wrong"), ("Written anew.", "model")
        ),
    }
    assert filled[1].slot_texts == {}, "nothing to start from"
    assert lost == ["1 x yshort: empty from the rewriter"]
    texts = [text_of(body) for body in app.bodies]
    assert all(undelimit("answer", text) == "It is 4 km off." for text in texts)
    assert {slot for slot, words in INSTRUCTIONS.items() if any(words in t for t in texts)} == {
        "yshort", "ystructured", "ysycophant", "yconfident_wrong"
    }  # fmt: skip
    again, _, more = rewritten(held(), [source], store)
    assert calls == len(texts) and again[0].slot_texts == filled[0].slot_texts
    assert more <= 1, "only what gave no text is asked again"


PRICED = Judge(name="dear", price=Price(input=1.0, output=2.0))


def reply(calls: int = 1, usd: float | None = 0.01, cached: bool = False) -> Fetched:
    return Fetched((Reply("x"),), None, "", calls, 0.1, cost_usd=usd, from_cache=cached)


def spend(
    allowance: Allowance, judge: Judge, count: int, each: Fetched
) -> tuple[list[int], list[Fetched]]:
    """Ask ``count`` times an endpoint that answers everything alike; the sizes of the batches."""
    sizes: list[int] = []
    under_way = 0

    async def send() -> Fetched:
        nonlocal under_way
        if not under_way:
            sizes.append(0)
        sizes[-1] += 1
        under_way += 1
        await asyncio.sleep(0.001)
        under_way -= 1
        return each

    async def main() -> list[Fetched]:
        return await asyncio.gather(*(allowance.spend(judge, send) for _ in range(count)))

    return sizes, on_own_clock(main())


def test_all_is_sent_at_once_or_never_more_than_the_limit() -> None:
    allowance = Allowance(Cost(), [PRICED])
    sizes, results = spend(allowance, PRICED, 1000, reply(usd=0.5))
    assert sizes == [1000] and len(results) == 1000
    assert allowance.spent == Spent(1000, 500.0)
    allowance = Allowance(Cost(max_calls=100), [PRICED])
    sizes, results = spend(allowance, PRICED, 150, reply())
    assert sizes == [1, 2, 4, 8, 16, 32, 37] and max(sizes) <= MOST
    assert [one.outcome for one in results] == [None] * 100 + [Outcome.aborted] * 50
    assert all(one.attempts == 0 and one.cost_usd == 0.0 for one in results[100:])
    assert "cost.max_calls=100" in results[-1].reason
    assert allowance.spent.calls == 100
    assert spend(allowance, PRICED, 2, reply())[1][0].outcome is Outcome.aborted


def test_requests_are_foreseen_to_take_what_the_dearest_took() -> None:
    tried_thrice = Allowance(Cost(max_calls=10), [PRICED])
    sizes, _ = spend(tried_thrice, PRICED, 9, reply(calls=3))
    assert sum(sizes) == 3 and tried_thrice.spent.calls == 9, "no room for another three"
    paid = Allowance(Cost(max_usd=0.1), [PRICED])
    sizes, _ = spend(paid, PRICED, 99, reply(usd=0.01))
    assert sum(sizes) == 10 and paid.spent.usd == pytest.approx(0.1)


def test_limits_are_shared_kept_or_refused() -> None:
    other = Judge(name="cheap", price=Price(input=0.1, output=0.2))
    allowance = Allowance(Cost(max_usd=1.0), [PRICED, other])
    sizes, _ = spend(allowance, PRICED, 5, reply(usd=0.3))
    assert sizes == [1, 2], "0.9 of 1"
    sizes, _ = spend(allowance, other, 99, reply(usd=0.02))
    assert sum(sizes) == 5 and allowance.spent.usd == pytest.approx(1.0)
    with pytest.raises(UserError, match=r"cost\.max_calls=0 .* above 0"):
        Allowance(Cost(max_calls=0), [])
    with pytest.raises(UserError, match="judge=free has no price"):
        Allowance(Cost(max_usd=1.0), [PRICED, Judge(name="free")])
    Allowance(Cost(max_usd=1.0), [Judge(name="sim", simulated=Simulated())])


def test_what_others_asked_is_free_and_what_was_spent_before_counts() -> None:
    allowance = Allowance(Cost(max_calls=5), [PRICED])
    _, results = spend(allowance, PRICED, 50, reply(cached=True))
    assert [one.outcome for one in results] == [None] * 50
    assert allowance.spent == Spent()
    allowance = Allowance(Cost(max_calls=10), [PRICED], Spent(7, 0.0))
    sizes, _ = spend(allowance, PRICED, 9, reply())
    assert sum(sizes) == 3


def test_who_gives_up_leaves_the_room_to_others() -> None:
    allowance = Allowance(Cost(max_calls=2), [PRICED])

    async def hang() -> Fetched:
        return await asyncio.get_running_loop().create_future()

    async def send() -> Fetched:
        return reply()

    async def main() -> Fetched:
        task = asyncio.create_task(allowance.spend(PRICED, hang))
        queued = asyncio.create_task(allowance.spend(PRICED, send))
        last = asyncio.create_task(allowance.spend(PRICED, send))
        await asyncio.sleep(0)
        queued.cancel()
        await asyncio.sleep(0)
        task.cancel()
        return await last

    assert on_own_clock(main()) == reply()
    assert allowance.spent.calls == 1
