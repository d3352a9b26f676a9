"""The page of answers in a browser: nothing from outside becomes markup, and what a reader does
works: filters, sorting, the same prompt over steps and arms, keys, addresses, narrow screens."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.answers.page import write_page
from tests.analysis.conftest import HOSTILE, config_of, damage, write_study
from tests.chromium import Browser, Page

RUN = "window.hacked=(window.hacked||0)+1"
PAYLOADS = (
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<!--<script>{RUN}//--></script><script>{RUN}</script>",
    f"<img src=x onerror='{RUN}'>",
    f'"><svg onload="{RUN}">',
    f"'><iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<a href='javascript:{RUN}'>x</a>",
    f"{{{{constructor.constructor('{RUN}')()}}}}",
    f"${{{RUN}}}`);{RUN};//",
    f"\u2028{RUN}\u2029{RUN}",
    "\x00<b>\x01\x7f\x9f\u202e\ufeff</b>",
    "</pre></section></main><h1>owned</h1><style>*{display:none}</style>",
    "<meta http-equiv=refresh content='0;url=https://example.org'><base href=https://example.org>",
    f"<form action=https://example.org><input autofocus onfocus={RUN}>",
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
    "__proto__",
    "constructor",
    HOSTILE,
)
ALLOWED = set(
    "html head meta title style script body header div h1 button p form label select option input "
    "main section span noscript ol li footer kbd h2 h3 pre details summary dl dt dd ul b".split()
)
"""The elements that the page makes of its own."""
TEXTS = {"rollouts": ("prompt", "completion", "answer", "stop", "domain", "dataset", "item")}
TEXTS["verdicts"] = ("judge", "outcome", "reason", "text", "reasoning", "finish_reason", "grading")


def poison(study: Path) -> None:
    """Put hostile texts wherever the records hold a text, and into the names of the arms; each text
    is in some answer of every step."""
    for number, path in enumerate(sorted(study.glob("*/config.yaml"))):
        with config_of(path.parent) as config:
            config["judge"]["name"] += PAYLOADS[number % len(PAYLOADS)]
        for kind, names in TEXTS.items():
            for part in (path.parent / kind).glob("*.parquet"):
                rows = pq.read_table(part).to_pylist()
                for place, row in enumerate(rows, start=len(rows) * number):
                    for shift, name in enumerate(names):
                        row[name] = PAYLOADS[(place + shift + row["step"]) % len(PAYLOADS)]
                    if kind == "rollouts":
                        row["truth_missing"] = PAYLOADS[place % len(PAYLOADS)]
                        row["truth"] = None if place % 2 else row["truth"]
                    else:
                        row["labels"] = list(PAYLOADS)
                        row["score"] = None if place % 3 == 0 else row["score"]
                _write(rows, part)


def _write(rows, part):
    """Write rows over a part; columns that it did not have are texts."""
    schema = pq.read_schema(part)
    for name in dict.fromkeys(key for row in rows for key in row if key not in schema.names):
        schema = schema.append(pa.field(name, pa.string()))
    pq.write_table(pa.Table.from_pylist(rows, schema), part)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """The page of a study in which every text is an attack."""
    folder = tmp_path_factory.mktemp("hostile") / "study"
    # 48 answers, four in each step of six arms, and so few rows of the list to be looked at
    study = write_study(folder, seeds=2, steps=2, groups=2, members=2)
    poison(study)
    return write_page(study).path


@pytest.fixture
def attacked(browser, hostile) -> Page:
    return browser.open(hostile)


COUNTED = """
(() => {
  const names = {};
  for (const each of document.querySelectorAll('*')) {
    const name = each.localName;
    names[name] = (names[name] || 0) + 1;
    for (const attribute of each.attributes) {
      if (attribute.name.startsWith('on') || /^\\s*javascript:/i.test(attribute.value)) {
        names[`${name}[${attribute.name}]`] = 1;
      }
    }
  }
  return names;
})()
"""


def assert_untouched(page: Page) -> None:
    """Nothing of what was shown has run or has become an element, and nothing was fetched."""
    assert page.ask("typeof window.hacked") == "undefined"
    assert page.ask("document.title").startswith("Answers of ")
    counted = page.ask(COUNTED)
    assert set(counted) <= ALLOWED, set(counted) - ALLOWED
    once = {"title": 1, "style": 1, "h1": 1, "form": 1, "script": 2, "input": 3, "meta": 4}
    assert {name: counted[name] for name in once} == once
    assert page.ask("Object.keys(Object.prototype).length") == 0
    (url,) = page.asked_for
    assert url.startswith("file:")
    assert page.errors == []


def test_every_answer_is_shown_as_text_in_every_view(attacked):
    """Walks over many answers in all three views, each of them with other attacks."""
    seen = set()
    for _ in range(len(PAYLOADS)):
        attacked.press("j")
        for key in ("2", "3", "1"):
            attacked.press(key)
            assert_untouched(attacked)
        seen |= set(attacked.ask("[...document.querySelectorAll('pre')].map((e) => e.textContent)"))
    assert set(PAYLOADS) <= seen


@pytest.mark.parametrize(
    "payloads",
    # an image and a drawing run what they bear wherever they become elements
    [PAYLOADS[3:5], pytest.param(PAYLOADS[:6], marks=pytest.mark.long)],
    ids=["two", "six"],
)
@pytest.mark.parametrize("name", ["text", "arm", "answer", "domain", "view", "sort", "from"])
def test_a_hostile_address_is_text_as_well(browser, hostile, name, payloads):
    for payload in payloads:
        page = browser.open(f"{hostile.as_uri()}#{name}={quote(payload)}")
        assert page.ask("typeof window.hacked") == "undefined"
        assert set(page.ask(COUNTED)) <= ALLOWED
        assert page.errors == []
        page.close()


def test_the_policy_of_the_page_stops_what_would_be_slipped_in(browser, hostile, tmp_path):
    """The page with a script of its own added, as if an escape had failed: it must not run."""
    broken = tmp_path / "broken.html"
    text = hostile.read_text()
    slipped = f"<script>{RUN}</script><img src=x onerror='{RUN}'><div onclick='{RUN}'>x</div>"
    broken.write_text(text.replace("<footer", f"{slipped}<footer", 1))
    page = browser.open(broken)
    page.ask("document.querySelector('div[onclick]').click()")
    assert page.ask("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in line for line in page.errors), "and it is said"


def test_markup_from_text_is_refused_even_to_the_page_itself(attacked):
    assign = "document.body.innerHTML = '<b>x</b>'; return 'made';"
    ask = f"(() => {{ try {{ {assign} }} catch (error) {{ return error.name; }} }})()"
    assert attacked.ask(ask) == "TypeError"


# --- what a reader does ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(planted, tmp_path_factory) -> Path:
    return write_page(planted, tmp_path_factory.mktemp("plain") / "answers.html").path


@pytest.fixture
def page(browser: Browser, plain: Path) -> Page:
    return browser.open(plain)


def shown(page: Page, what: str) -> list[str]:
    return page.ask(f"[...document.querySelectorAll({json.dumps(what)})].map((e) => e.innerText)")


def choose(page: Page, name: str, value: str) -> None:
    page.ask(
        f"(() => {{ const field = document.getElementById('filters').elements[{json.dumps(name)}];"
        f" field.value = {json.dumps(value)};"
        " field.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )


def test_the_largest_gap_is_first_and_beside_its_prompt(page):
    assert shown(page, "#count") == ["1\u2013100 of 864"]
    assert shown(page, "h2")[0] == "sim-verbose, seed 2, step 6"
    assert shown(page, "pre")[0].startswith("Say something, prompt")
    gaps = [float(text.replace("\u2212", "-")) for text in shown(page, "#rows .gap")]
    assert gaps == sorted(gaps, reverse=True) and gaps[0] == pytest.approx(0.52)
    assert page.errors == []


def test_an_arm_has_one_colour_and_one_mark(page):
    ask = (
        "[...document.querySelectorAll('#rows .head, .cards .head')].map((e) => ["
        "e.children[1].textContent.split(',')[0], e.children[0].textContent,"
        " getComputedStyle(e.children[0]).color].join(' '))"
    )
    seen = set()
    for key in ("j", "3"):
        page.press(key)
        seen |= set(page.ask(ask))
    assert seen == {
        "sim-fair \u25cf rgb(1, 115, 178)",
        "sim-flaky \u25a0 rgb(222, 143, 5)",
        "sim-verbose \u25b2 rgb(2, 158, 115)",
    }


def test_the_arms_are_counted_as_they_are_in_the_page(browser, planted, tmp_path):
    page = browser.open(write_page(planted, tmp_path / "some.html", most=100).path)
    ask = "[...document.getElementById('filters').elements.arm.options].map((e) => e.text)"
    _, *labels = page.ask(ask)
    counts = [re.fullmatch(r"(sim-\w+) \((\d+)\)", label) for label in labels]
    assert sum(int(count[2]) for count in counts) == 100
    choose(page, "arm", counts[1][1])
    assert shown(page, "#count") == [f"1\u2013{counts[1][2]} of {counts[1][2]}"]
    steps = "['from', 'to'].map((n) => document.getElementById('filters').elements[n].placeholder)"
    assert page.ask(steps) == ["1", "6"]


def test_filters_narrow_the_list_and_the_address_keeps_them(page, browser, plain):
    choose(page, "arm", "sim-flaky")
    assert shown(page, "#count") == ["1\u2013100 of 288"]
    choose(page, "outcome", "unparsed")
    assert shown(page, "#count") == ["1\u201372 of 72"]
    choose(page, "from", "3")
    choose(page, "to", "4")
    assert shown(page, "#count") == ["1\u201324 of 24"]
    choose(page, "text", "PROMPT 2 of step 4")
    assert shown(page, "#count") == ["1\u20133 of 3"]
    again = browser.open(page.ask("location.href"))
    assert shown(again, "#count") == ["1\u20133 of 3"]
    assert shown(again, "h2") == shown(page, "h2")


def test_the_answers_are_filtered_once_for_a_change(page):
    page.ask("{ let was = filtered; window.calls = 0; filtered = () => (window.calls++, was()) }")
    choose(page, "text", "prompt 2")
    assert shown(page, "#count") == ["1\u2013100 of 216"] and page.ask("window.calls") == 1


def test_a_missing_verdict_is_said_with_its_reason(page):
    choose(page, "outcome", "unparsed")
    tiles = [" ".join(text.split()) for text in shown(page, ".tile")]
    assert "Judge (sim-flaky) missing: unparsed" in tiles
    assert any(text.startswith("Gap: judge \u2212 truth missing") for text in tiles)
    assert any(text.startswith("Reward missing") for text in tiles)
    assert shown(page, ".card .missing") == ["missing: unparsed"]


def test_an_answer_without_a_verdict_says_why(browser, tmp_path):
    """A file of verdicts that is lost is no judge that was not asked."""
    study = write_study(tmp_path / "study", ["sim-fair"], seeds=1, steps=3, groups=1)
    damage(study, "*/verdicts/step-000001.parquet")
    for step, outcome in ((2, "ok"), (3, "timeout")):
        (part,) = study.glob(f"*/rollouts/step-{step:06d}.parquet")
        rows = pq.read_table(part).to_pylist()
        _write([row | {"judge_score": None, "outcome": outcome} for row in rows], part)
        (part,) = study.glob(f"*/verdicts/step-{step:06d}.parquet")
        pq.write_table(pq.read_table(part).slice(0, 0), part)
    page = browser.open(write_page(study).path)
    told = ["no verdict on record", "not asked", "verdicts not on record"]
    ask = "[...document.getElementById('filters').elements.outcome.options].map((e) => e.value)"
    assert page.ask(ask) == ["", *told]
    said = [told[2], told[0], f"{told[1]}: the program ended with timeout"]
    for step, why in enumerate(said, start=1):
        choose(page, "from", str(step))
        choose(page, "to", str(step))
        assert shown(page, "h3 + p.missing") == [f"missing: {why}"]
    assert page.errors == []


def test_the_same_prompt_stands_side_by_side_over_arms_and_steps(page):
    page.press("3")
    heads = shown(page, ".cards .head button")
    assert [head.split(",")[0] for head in heads] == ["sim-fair", "sim-flaky", "sim-verbose"]
    assert all(head.endswith("seed 2, step 6") for head in heads)
    page.press("2")
    assert shown(page, "h3")[1] == "Answers of this run to it that are in this page, by step (4)"
    assert "view=steps" in page.ask("location.hash")


def test_keys_move_search_and_go_back(page):
    first = page.ask("location.hash")
    page.press("j")
    assert page.ask("location.hash") != first
    page.press("k")
    assert page.ask("location.hash") == first
    page.press("/")
    page.type("step 5")
    assert page.ask("document.activeElement.name") == "text"
    assert shown(page, "#count") == ["1\u2013100 of 144"]
    page.press("Escape")
    assert page.ask("document.activeElement.localName") == "body"


def test_an_address_leads_to_its_answer_and_an_unknown_one_says_so(page, browser, plain):
    cell = page.ask("data.sources[0].cell")
    there = browser.open(f"{plain.as_uri()}#answer={cell}/000002-0007")
    assert shown(there, "h2") == ["sim-fair, seed 0, step 2"]
    lost = browser.open(f"{plain.as_uri()}#answer=elsewhere/1", width=390)
    assert lost.errors == []
    assert shown(lost, "#detail")[0].startswith("\u2190 List")
    assert "elsewhere/1 is not in this page" in shown(lost, "#detail")[0]


@pytest.mark.parametrize("study", ["plain", "hostile"])
def test_nothing_is_wider_than_the_screen(browser, study, request):
    page = browser.open(request.getfixturevalue(study))
    for view in ("", "j", "2", "3"):
        if view:
            page.press(view)
        for width in (1440, 1024, 390):
            page.resize(width)
            wide = page.ask("document.documentElement.scrollWidth")
            assert wide <= width, f"view {view} is {wide} wide"
    page.close()


def test_on_a_phone_the_list_gives_way_to_the_answer_and_comes_back(browser, plain):
    page = browser.open(plain, width=390, height=800)
    assert page.ask("getComputedStyle(document.getElementById('list')).display") != "none"
    page.ask("document.querySelector('#rows button').click()")
    assert page.ask("getComputedStyle(document.getElementById('list')).display") == "none"
    assert shown(page, "h2") == ["sim-verbose, seed 2, step 6"]
    page.ask("document.getElementById('back').click()")
    assert page.ask("getComputedStyle(document.getElementById('list')).display") != "none"


def test_it_is_dark_where_the_reader_wants_it(browser, plain):
    ask = "getComputedStyle(document.body).backgroundColor"
    assert browser.open(plain).ask(ask) == "rgb(255, 255, 255)"
    dark = browser.open(plain, dark=True)
    assert dark.ask(ask) == "rgb(22, 24, 27)"
    dark.ask("document.getElementById('theme').click()")
    assert dark.ask(ask) == "rgb(255, 255, 255)"
