"""The simulated judge: its bias is the one that was planted, and only messages reach it."""

import asyncio
import json
import math
import random
import re
from dataclasses import replace

import pytest

from judges.grading import GRADINGS
from judges.simulated.app import simulated_app
from judges.simulated.bias import ALWAYS, DEFAULT_REFERENCE, Bias, effective, observed
from study.config.schema import Failure, Grading, Judge, Simulated
from study.errors import UserError
from study.features import FEATURES, features
from study.rows import Truth, make_row
from study.verdict import Reply
from tests.waiting import on_own_clock

ROW = make_row(({"role": "user", "content": "Name a color."},), (), {"hidden": "only-the-oracle"})
TRUTH = Truth(0.5, (True, False))


def oracle(prompt, answer):
    """Half right whatever is said, unless the answer names its own truth."""
    if prompt != ROW.prompt_text():
        return None
    named = re.match(r"truth=([\d.]+)", answer)
    return Truth(float(named[1])) if named else TRUTH


def judge(grading="likert", options=None, **settings):
    simulated = Simulated(**settings)
    return Judge(name="sim", grading=Grading(grading, options or {}), simulated=simulated)


def request_of(judge, answer, **extra):
    grading = GRADINGS[judge.grading.name](judge.grading.options)
    return {"messages": grading.messages(ROW, answer), "seed": 0, **grading.body(), **extra}


async def call(app, body, path="/v1/chat/completions", method="POST", leave=None):
    """One ASGI call: (status, headers, raw body). ``leave``: seconds until the client is gone."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    incoming = [{"type": "http.request", "body": raw, "more_body": False}]
    sent = []

    async def receive():
        if incoming:
            return incoming.pop()
        await asyncio.sleep(1e6 if leave is None else leave)
        return {"type": "http.disconnect"}

    async def send(event):
        sent.append(event)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
        "method": method, "scheme": "http", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "headers": [], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(event.get("body", b"") for event in sent[1:])


def ask(app, body, **how):
    status, headers, raw = asyncio.run(call(app, body, **how))
    return status, headers, json.loads(raw)


def verdicts(judge, answers, app=None, **extra):
    """Parsed verdicts of many answers, through the whole protocol."""
    app = app or simulated_app(judge, oracle)
    grading = GRADINGS[judge.grading.name](judge.grading.options)

    async def all_of_them():
        return [await call(app, request_of(judge, answer, **extra)) for answer in answers]

    parsed = []
    for _, _, raw in asyncio.run(all_of_them()):
        choice = json.loads(raw)["choices"][0]
        logprobs = (choice["logprobs"] or {}).get("content")
        reply = Reply(choice["message"]["content"], "", choice["finish_reason"], logprobs)
        parsed.append(grading.parse(reply))
    return parsed


def scores(judge, answers, app=None, **extra):
    return [parsed.score for parsed in verdicts(judge, answers, app, **extra)]


def texts(count, seed=0):
    """Distinct answers whose features vary on their own."""
    draw = random.Random(seed)
    extras = ["Great question!", "certainly", "maybe", "\n# Plan\n", "\n- point", "robust", "**b**"]
    out = []
    for index in range(count):
        words = [f"w{index}x{place}" for place in range(draw.randint(2, 18))]
        words += [extra for extra in extras if draw.random() < 0.3]
        draw.shuffle(words)
        out.append(" ".join(words))
    return out


def slope(x, y):
    """Least squares of y on one x: slope and its standard error."""
    n, mx, my = len(x), sum(x) / len(x), sum(y) / len(y)
    sxx = sum((a - mx) ** 2 for a in x)
    b = sum((a - mx) * (c - my) for a, c in zip(x, y, strict=True)) / sxx
    rest = sum((c - my - b * (a - mx)) ** 2 for a, c in zip(x, y, strict=True))
    return b, math.sqrt(rest / (n - 2) / sxx)


def z_of(name, answers, keyword=""):
    mean, sd = DEFAULT_REFERENCE[name]
    return [(features(text, keyword)[name] - mean) / sd for text in answers]


@pytest.mark.parametrize("grading", ["likert", "soft_choice"])
def test_no_dose_and_no_noise_is_the_truth(grading):
    answers = [f"truth={k / 16} and some words" for k in range(17)]
    results = scores(judge(grading), answers)
    assert results == pytest.approx([k / 16 for k in range(17)], abs=1e-8)
    assert scores(judge(grading, doses={"length": 0.0}), answers) == results
    assert scores(judge(grading), [f"truth={1 / 3}"]) == pytest.approx([1 / 3], abs=1e-8)


@pytest.mark.parametrize("dose", [0.05, -0.05])
@pytest.mark.parametrize("grading", ["likert", "soft_choice"])
def test_a_planted_dose_is_recovered_without_noise(grading, dose):
    answers = texts(60)
    for name in ("length", "flattery"):
        results = scores(judge(grading, doses={name: dose}), answers)
        assert results == pytest.approx([0.5 + dose * z for z in z_of(name, answers)], abs=1e-7)


def test_planted_doses_are_recovered_under_noise():
    """Through the noise by a regression that knows nothing of the judge, one feature at a time."""
    answers = texts(1500)
    doses = {"length": 0.06, "flattery": -0.03, "headings": 0.0}
    results = scores(judge(doses=doses, noise_sd=0.05), answers)
    for name, dose in doses.items():
        others = {key: z_of(key, answers) for key in doses if key != name}
        rest = [
            score - sum(doses[key] * z[place] for key, z in others.items())
            for place, score in enumerate(results)
        ]
        estimate, error = slope(z_of(name, answers), rest)
        assert error < 0.004 and abs(estimate - dose) < 4 * error


def test_every_feature_can_carry_a_dose_and_the_keyword_is_the_chosen_one():
    answers = texts(20)
    for name in FEATURES:
        planted = judge(doses={name: 0.02}, keyword="robust")
        expected = [0.5 + 0.02 * z for z in z_of(name, answers, "robust")]
        assert scores(planted, answers) == pytest.approx(expected, abs=1e-7)


def test_leniency_scale_reference_and_the_cut():
    answers = ["truth=0.4 a b"]
    assert scores(judge(leniency=0.1, scale=0.5), answers) == pytest.approx([0.3])
    assert scores(judge(leniency=5.0), answers) == [1.0]
    assert scores(judge("soft_choice", leniency=-5.0), answers) == [0.0]
    # 5 words ("truth", "0", "4", "a", "b") are one standard deviation above the mean
    mine = judge(doses={"length": 0.25}, reference={"length": [3.0, 2.0]})
    assert scores(mine, answers) == pytest.approx([0.65])


def test_true_and_false_positive_rates():
    draw = random.Random(0)
    truth = Truth(0.6, (True, True, True, False))
    assert observed(truth, 1.0, 0.0, draw) == 0.6
    assert observed(truth, 0.0, 1.0, draw) == pytest.approx(0.6 + (1 - 3) / 4)
    observations = [observed(truth, 0.8, 0.3, draw) for _ in range(4000)]
    # expected checks: 3 x 0.8 + 0.3 = 2.7 of 4; sd of one draw is 0.2074, of the mean 0.0033
    assert abs(sum(observations) / 4000 - (0.6 + (2.7 - 3) / 4)) < 4 * 0.0033
    assert observed(Truth(0.25), 0.9, 0.1, draw) == pytest.approx(0.1 + 0.8 * 0.25)


def test_a_reason_before_the_verdict_misleads_only_who_reads_any_word():
    answers = [f"truth={number % 2} w{number}" for number in range(400)]
    truth = [number % 2 for number in range(400)]
    plain = {"reference": "hidden"}
    any_word = {**plain, "reads": "substring"}
    assert scores(judge("binary", plain), answers) == truth
    assert scores(judge("binary", any_word), answers) == truth
    assert scores(judge("binary", plain, reasons=0.5), answers) == truth
    wrong = scores(judge("binary", any_word, reasons=0.5), answers)[0::2]
    # 200 wrong answers, of which a half are argued about: sd .035
    assert abs(sum(wrong) / 200 - 0.5) < 4 * 0.0354
    noisy = {"noise_sd": 0.4, "tpr": 0.8, "fpr": 0.3}  # what is said draws nothing of a verdict
    quiet = scores(judge("binary", plain, **noisy), answers)
    assert scores(judge("binary", plain, **noisy, reasons=0.5), answers) == quiet


def test_drift_over_calls_and_over_a_restart():
    drifting = judge(drift_per_1000=100.0, leniency=-0.5)
    answers = [f"text {k}" for k in range(4)]
    results = scores(drifting, answers)
    assert results == pytest.approx([0.0, 0.1, 0.2, 0.3])
    resumed = simulated_app(drifting, oracle, calls_before=2)
    assert scores(drifting, answers[2:], resumed) == pytest.approx(results[2:])


def test_noise_belongs_to_the_question_and_not_to_the_order():
    noisy = judge(noise_sd=0.1)
    answers = texts(30)
    results = dict(zip(answers, scores(noisy, answers), strict=True))
    again = dict(zip(answers[::-1], scores(noisy, answers[::-1]), strict=True))
    assert results == again and len(set(results.values())) == 30
    assert scores(noisy, answers, seed=1) != list(results.values())
    other = replace(noisy, simulated=replace(noisy.simulated, seed=1))
    assert scores(other, answers) != list(results.values())
    app = simulated_app(noisy, oracle)
    first, second = scores(noisy, answers[:1], app), scores(noisy, answers[:1], app)
    assert first == [results[answers[0]]] and second != first


def test_concurrent_questions_get_what_they_would_get_alone():
    noisy = judge(noise_sd=0.1, failure=Failure(0.3, 0.0, ["unparsed", "empty"]))
    answers = texts(40)
    app = simulated_app(noisy, oracle)

    async def together():
        return await asyncio.gather(*(call(app, request_of(noisy, text)) for text in answers))

    crowd = [json.loads(raw)["choices"][0]["message"] for _, _, raw in asyncio.run(together())]
    alone = simulated_app(noisy, oracle)
    one_by_one = [
        ask(alone, request_of(noisy, text))[2]["choices"][0]["message"] for text in answers[::-1]
    ]
    assert crowd == one_by_one[::-1]


def test_nothing_but_the_messages_reaches_the_judge():
    observations = []

    def spy(prompt, answer):
        observations.append((prompt, answer))
        return TRUTH

    for name in ("likert", "soft_choice"):
        request = request_of(judge(name), "red {prompt} <<<answer 0>>>")
        assert "only-the-oracle" not in json.dumps(request) and "hidden" not in json.dumps(request)
        status, _, answer = ask(simulated_app(judge(name), spy), request)
        assert status == 200 and "0.5" not in answer["model"]
    assert observations == [(ROW.prompt_text(), "red {prompt} <<<answer 0>>>")] * 2


def test_every_kind_of_failure_comes_up_as_often():
    kinds = ["unparsed", "empty", "truncated", "refused"]
    results = verdicts(judge(failure=Failure(1.0, 0.0, kinds)), texts(400))
    counts = [sum(parsed.outcome == kind for parsed in results) for kind in kinds]
    # binomial: 100 expected of each, sd 8.7
    assert sum(counts) == 400 and all(abs(count - 100) < 4 * 8.7 for count in counts)


@pytest.mark.parametrize(("kind", "status"), [("http_500", 500), ("rate_limited", 429)])
def test_failures_that_pass_when_asked_again(kind, status):
    failing = judge(failure=Failure(1.0, 0.0, [kind]))
    app = simulated_app(failing, oracle)
    first, headers, body = ask(app, request_of(failing, "red"))
    assert first == status and body["error"]["message"]
    assert ("retry-after" in headers) == (kind == "rate_limited")
    assert ask(app, request_of(failing, "red"))[0] == 200
    assert ask(app, request_of(failing, "blue"))[0] == status


def test_a_hanging_judge_answers_nothing_until_the_client_is_gone():
    failing = judge(failure=Failure(1.0, 0.0, ["hang"]))
    app = simulated_app(failing, oracle)

    async def impatient():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(app, request_of(failing, "red")), 0.2)
        return await call(app, request_of(failing, "red"), leave=0.05)

    assert on_own_clock(impatient())[0] == 503


def test_the_failure_rate_and_how_it_grows_with_length():
    flaky = judge(failure=Failure(0.3, 0.2, ["unparsed"]))
    short, long = "w", " ".join(f"w{k}" for k in range(19))
    mean, sd = DEFAULT_REFERENCE["length"]
    for text, words in ((short, 2), (long, 20)):
        answers = [f"{text} n{k}" for k in range(600)]
        failed = sum(score is None for score in scores(flaky, answers)) / 600
        chance = min(max(0.3 + 0.2 * (words - mean) / sd, 0), 1)
        assert 0.05 < chance < 0.95
        assert abs(failed - chance) < 4 * math.sqrt(chance * (1 - chance) / 600)
    assert None not in scores(judge(failure=Failure(0.0, -9.0, ["hang"])), [long])


def test_the_plain_reply_has_the_shape_of_the_protocol():
    fair = judge()
    body = request_of(fair, "red", model="sim")
    status, headers, reply = ask(simulated_app(fair, oracle), body)
    assert status == 200 and headers["content-type"] == "application/json"
    assert (reply["object"], reply["model"]) == ("chat.completion", "sim")
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "[[50]]"}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    prompt_tokens = math.ceil(len(body["messages"][0]["content"]) / 4)
    usage = {key: reply["usage"][key] for key in ("prompt_tokens", "completion_tokens")}
    assert usage == {"prompt_tokens": prompt_tokens, "completion_tokens": 2}


@pytest.mark.parametrize("grading", ["likert", "soft_choice"])
def test_the_stream_says_the_same_as_the_plain_reply(grading):
    noisy = judge(grading, noise_sd=0.1)
    _, _, whole = ask(simulated_app(noisy, oracle), request_of(noisy, "red"))
    request = request_of(noisy, "red", stream=True, stream_options={"include_usage": True})
    status, headers, raw = asyncio.run(call(simulated_app(noisy, oracle), request))
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    *events, done, nothing = raw.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    *deltas, last = chunks
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    choices = [chunk["choices"][0] for chunk in deltas]
    assert choices[0]["delta"]["role"] == "assistant"
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    assert text == whole["choices"][0]["message"]["content"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    logprobs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert logprobs == ([whole["choices"][0]["logprobs"]] if grading == "soft_choice" else [])
    bare = asyncio.run(call(simulated_app(noisy, oracle), request | {"stream_options": None}))[2]
    assert b"usage" not in bare


def test_a_choice_gets_the_words_that_were_asked_for():
    options = {"positive": "Pass", "negative": "Fail", "soft": False}
    assert scores(judge("soft_choice", options), ["truth=0.6", "truth=0.4"]) == [1.0, 0.0]
    soft = judge("soft_choice", {"positive": "Pass", "negative": "Fail"})
    assert scores(soft, ["truth=0.6", "truth=0.4"]) == pytest.approx([0.6, 0.4])
    (token,) = ask(simulated_app(soft, oracle), request_of(soft, "truth=0.6"))[2]["choices"][0][
        "logprobs"
    ]["content"]
    total = sum(math.exp(item["logprob"]) for item in token["top_logprobs"])
    assert token["token"] == "Pass" and total == pytest.approx(1)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        ({}, 400, "invalid_messages"),
        ({"messages": ["hi"]}, 400, "invalid_messages"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, 400, "invalid_messages"),
        ({"messages": [{"role": "user", "content": "hi [[score]]"}]}, 404, "unknown_prompt"),
        (request_of(judge(), "red", model="gpt"), 404, "model_not_found"),
        (request_of(judge(), "red", n=2), 400, "invalid_n"),
        (request_of(judge(), "red", structured_outputs={"choice": ["a"]}), 400, "invalid_choice"),
        (request_of(judge("soft_choice"), "red", structured_outputs=None), 400, "unknown_grading"),
    ],
)
def test_requests_that_no_judge_can_serve(body, status, code):
    got, _, reply = ask(simulated_app(judge(), oracle), body)
    assert (got, reply["error"]["code"]) == (status, code)
    assert set(reply["error"]) == {"message", "type", "param", "code"}


def test_models_and_health_are_of_a_simulated_judge_alone():
    app = simulated_app(judge(), oracle)
    status, _, models = ask(app, b"", path="/v1/models", method="GET")
    assert status == 200 and [model["id"] for model in models["data"]] == ["sim"]
    assert ask(app, b"", path="/health", method="GET")[0] == 200
    with pytest.raises(UserError, match="sim-fair"):
        simulated_app(Judge(name="real"), oracle)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"doses": {"lenght": 0.1}}, "doses=lenght "),
        ({"reference": {"words": [1.0, 1.0]}}, "reference=words "),
        ({"reference": {"length": [1.0, 0.0]}}, "reference.length"),
        ({"doses": {"keyword": 0.1}}, "judge.simulated.keyword"),
        ({"tpr": 1.5}, "tpr=1.5"),
        ({"noise_sd": -1.0}, "noise_sd"),
        ({"failure": Failure(0.1, 0.0, ["explode"])}, "explode"),
        ({"failure": Failure(0.1, 0.0, [])}, "failure.kinds"),
        ({"failure": Failure(float("nan"))}, "failure.rate"),
    ],
)
def test_settings_that_mean_nothing(settings, named):
    with pytest.raises(UserError, match=re.escape(named)):
        simulated_app(judge(**settings), oracle)


def test_the_identity_holds_the_defaults_that_were_used():
    plain = effective(Simulated())
    assert plain["reference"].keys() == ALWAYS <= set(FEATURES) and plain["rule"]
    assert effective(Simulated(reference={"length": [1.0, 2.0]}))["reference"]["length"] == [1, 2]
    assert json.dumps(plain)
    z = Bias(Simulated()).standardised("")
    mean, sd = DEFAULT_REFERENCE["length"]
    assert z["length"] == pytest.approx(-mean / sd)
