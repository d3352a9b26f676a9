"""Programs that ask while they run: who may say how much, whose time it is, and what is left."""

import asyncio
import json

import pytest

from study.sandbox import tiers
from study.sandbox.calls import Limits, Outcome, cut_short
from study.sandbox.conversation import WINDOW, Stage

OPERATOR = {"Ask": [{"name": "text", "type": "str", "required": True}]}
HEAD = """\
class Workflow:
    def __init__(self, name, llm_config, dataset):
        self.ask = operator.Ask(create_llm_instance(llm_config))
    async def __call__(self, problem):
"""
SHORT = Limits(cpu_s=1, wall_s=20.0, own_s=1.0)


def request(body):
    source = HEAD + "\n".join(f"        {line}" for line in body.split("\n"))
    texts = {"source": source, "problem": "p", "entry_point": "", "domain": "math"}
    return texts | {"operators": OPERATOR, "prompts": {}}


@pytest.fixture(scope="module")
def runner():
    """An event loop, and a stage on it."""
    try:
        tier = tiers.find()
    except tiers.SandboxUnavailable as error:
        pytest.skip(str(error))
    with asyncio.Runner() as runner:
        runner.run(asyncio.sleep(0))
        with Stage(2, tier) as stage:
            runner.stage = stage
            yield runner


def run(runner, body, hear, limits=SHORT):
    return runner.run(runner.stage.run(request(body), limits, hear))


def answering(frames, wait_s=0.0):
    """Answers each call with its number, after a while; ends the program when it ends."""

    def hear(talk, text):
        frame = json.loads(text)
        frames.append(frame)
        if "end" in frame:
            talk.leave()
            return
        reply = {"reply": frame["call"], "result": {"text": str(frame["call"])}, "spent": {}}
        talk.loop.call_later(wait_s, talk.say, reply)

    return hear


def test_calls_come_as_lines_and_results_go_back(runner):
    frames = []
    body = (
        "import asyncio\n"
        "rs = await asyncio.gather(*[self.ask(str(n)) for n in range(3)])\n"
        "last = await self.ask(text='x')\n"
        "return ''.join(r['text'] for r in rs) + last['text'], 0"
    )
    reply = run(runner, body, answering(frames))
    assert [frame.get("after") for frame in frames[:4]] == [[], [], [], [1, 2, 3]]
    assert frames[4] == {"end": "returned", "answer": "1234", "cost": 0.0}
    assert reply["end"] == "left" and not reply["dirty"]


def test_waiting_is_not_own_time_and_sleeping_is(runner):
    frames = []
    body = "for _ in range(3):\n    r = await self.ask('x')\nreturn r['text'], 0"
    reply = run(runner, body, answering(frames, wait_s=0.4))
    assert frames[-1]["end"] == "returned" and reply["own_s"] < SHORT.own_s
    reply = run(runner, "import time\ntime.sleep(60)", answering(frames))
    assert reply["end"] == "own" and reply["own_s"] >= SHORT.own_s
    assert cut_short(reply, SHORT).outcome is Outcome.TIMEOUT


def test_a_wall_or_a_line_that_is_too_long_ends_a_program(runner):
    limits = Limits(cpu_s=1, wall_s=1.0, own_s=1.0)
    assert run(runner, "await self.ask('x')", lambda talk, text: None, limits)["end"] == "deadline"
    messages = []
    limits = Limits(cpu_s=1, wall_s=20.0, own_s=5.0, reply_bytes=1000)
    reply = run(runner, "import os\nos.write(3, b'x' * 5000)", messages.append, limits)
    assert reply["end"] == "overflow" and not messages


def test_a_program_that_is_not_answered_says_no_more_than_the_window(runner):
    messages = []

    def hear(talk, text):
        messages.append(text)
        if len(messages) == WINDOW:  # one more would come now
            talk.loop.call_later(0.5, talk.leave)

    body = "import asyncio\nawait asyncio.gather(*[self.ask(str(n)) for n in range(50)])"
    run(runner, body, hear)
    assert len(messages) == WINDOW


def test_a_stage_keeps_a_clean_sandbox_and_drops_one_that_was_written_to(runner):
    frames = []
    run(runner, "return 'x', 0", answering(frames))
    kept = runner.stage._idle[-1]
    run(runner, "return 'x', 0", answering(frames))
    assert runner.stage._idle[-1] is kept
    if runner.stage.tier is tiers.Tier.BWRAP:
        reply = run(runner, "open('/tmp/left', 'w').close()\nreturn 'x', 0", answering(frames))
        assert reply["dirty"] and kept not in runner.stage._idle
    run(runner, "import os\nreturn str(os.path.exists('/tmp/left')), 0", answering(frames))
    assert frames[-1]["answer"] == "False"


def test_answers_that_come_too_late_are_for_nobody(runner):
    """The program ends while calls are open: their replies are not those of the next one."""
    frames = []

    def late(talk, text):
        frame = json.loads(text)
        if "call" in frame:
            reply = {"reply": frame["call"], "result": {"text": "late"}, "spent": {}}
            for _ in range(50):
                talk.say(reply)
        else:
            talk.leave()

    body = (
        "import asyncio, os\nt = asyncio.ensure_future(self.ask('x'))\n"
        "await asyncio.sleep(0)\nos._exit(0)"
    )
    for _ in range(5):
        run(runner, body, late)
        run(runner, "r = await self.ask('x')\nreturn r['text'], 0", answering(frames))
        assert frames[-1]["answer"] == "1"
