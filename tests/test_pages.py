"""The built book in a real browser, with the network cut: what a reader touches, works."""

import http.server
import json
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest

import built_book
from kvlib import exercises
from kvlib.show import live, try_it

pytestmark = pytest.mark.browser
PATIENCE_MS = 120_000
LIVE = re.compile(r'<div class="kv-live" data-draw="(\w+)" data-controls="([^"]*)"')
MARKS = ('<div class="kv-live"', '<div class="kv-exercise"', '<div class="kv-try"')
CALL = "calls => Promise.all(calls.map(call => kvlibPage.runtime.call(...call)))"
WIDE = {"width": 1280, "height": 900}
AXE = """options => axe.run(document, {resultTypes: ["violations"], ...options}).then(found =>
    found.violations.filter(each => ["serious", "critical"].includes(each.impact))
        .map(each => `${each.id}: ${each.nodes.slice(0, 3).map(node => node.html.slice(0, 200))}`))
"""


def needed(thing, what: str):
    """Returns it, or skips; CI does not accept the skip."""
    if thing is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(what)
    return thing


@pytest.fixture(scope="session")
def book() -> Path:
    return needed(built_book.book(), "the book is not built: run `make html`")


@pytest.fixture(scope="session")
def site(book: Path):
    with built_book.served(book) as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    needed(built_book.chromium(), "there is no Chromium on this machine")
    with sync_playwright() as playwright, built_book.browser(playwright) as opened:
        yield opened


@contextmanager
def opened(browser, site: str, **options):
    """A page of the book, and the list of what goes wrong on it."""
    context = browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults: list[str] = []

    def ours(request) -> None:
        if not request.url.startswith((site, "data:", "blob:")):
            faults.append(f"asked for {request.url}")

    page.on("request", ours)
    page.on("console", lambda m: m.type == "error" and faults.append(f"console: {m.text}"))
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("requestfailed", lambda request: faults.append(f"failed: {request.url}"))
    page.on("response", lambda r: r.status >= 400 and faults.append(f"{r.status}: {r.url}"))
    yield page, faults
    context.close()


def go(page, address: str) -> None:
    """Opens a page and waits until its parts have come to life."""
    page.goto(address)
    page.locator(".kv-alive").last.wait_for()


def live_pages(book: Path) -> list[str]:
    found = (name for name in built_book.pages(book))
    return [name for name in found if any(m in (book / name).read_text("utf-8") for m in MARKS)]


def on_pages(book: Path, pattern: str) -> set:
    return {
        found
        for name in live_pages(book)
        for found in re.findall(pattern, (book / name).read_text("utf-8"))
    }


def visit(book: Path, site: str, names: list[str]) -> dict[str, dict]:
    """Opens pages one by one: what went wrong, what axe found, their bytes and their width."""
    from playwright.sync_api import sync_playwright

    packages = built_book.extension("web_assets").installed()
    axe = (packages / "axe-core" / "axe.min.js").read_text("utf-8")
    with (
        sync_playwright() as playwright,
        built_book.browser(playwright) as browser,
        opened(browser, site, viewport=WIDE) as (page, faults),
    ):
        return {name: look(page, faults, book, site, name, axe) for name in names}


def look(page, faults: list[str], book: Path, site: str, name: str, axe: str) -> dict:
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url))
    faults.clear()
    page.goto(f"{site}{name}?noidle", wait_until="load")
    page.evaluate("() => window.MathJax?.startup?.promise.then(() => null)")
    page.evaluate(axe)
    found = {"light": page.evaluate(AXE, {})}
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-theme=dark]")
    # Only colours differ, and in listings only those of the same few kinds of word.
    if not name.startswith("_modules/"):
        found["dark"] = page.evaluate(AXE, {"runOnly": ["color-contrast"]})
    page.set_viewport_size({"width": 390, "height": 800})
    found["width"] = page.evaluate("document.scrollingElement.scrollWidth")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(WIDE)
    sizes = {url: weight(book, url.removeprefix(site)) for url in asked}
    return {**found, "faults": list(faults), "bytes": sizes}


@pytest.fixture(scope="session")
def visits(book, site, browser):
    """Every page looked at, in two browsers at once."""
    names = built_book.pages(book)
    with ThreadPoolExecutor(2) as pool:
        halves = pool.map(lambda half: visit(book, site, half), (names[::2], names[1::2]))
        return {name: found for half in halves for name, found in half.items()}


def weight(book: Path, address: str) -> int:
    """Bytes of a file of the book; nothing for MathJax and what the theme brings to every page."""
    path = unquote(re.sub(r"[?#].*", "", address))
    theme = path.startswith("_static/") and not path.startswith("_static/live-")
    return 0 if theme or path == "searchindex.js" else (book / path).stat().st_size


def test_every_page_opens_offline_without_a_complaint(visits):
    assert len(visits) > 10
    assert {name: each["faults"] for name, each in visits.items() if each["faults"]} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_shuts_a_reader_out(visits, theme):
    assert {name: each[theme] for name, each in visits.items() if each.get(theme)} == {}


def test_no_page_is_heavy_before_its_python_is_asked_for(visits):
    heavy = {name: sum(each["bytes"].values()) for name, each in visits.items()}
    assert {name: size for name, size in heavy.items() if size > 400_000} == {}


def test_no_page_is_wider_than_a_phone(visits):
    assert {name: each["width"] for name, each in visits.items() if each["width"] > 390} == {}


class Anchors(HTMLParser):
    """What a page points to, and what on it can be pointed at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.to: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        self.to |= {given[key] for key in ("href", "src") if given.get(key)}


def test_every_link_and_anchor_leads_somewhere(book):
    pages = {name: Anchors((book / name).read_text("utf-8")) for name in built_book.pages(book)}
    broken = []
    for name, page in pages.items():
        for link in page.to:
            if re.match(r"[a-z]+:|//", link):
                continue
            address, anchor = urldefrag(urljoin(f"/{name}", link))
            target = unquote(address.split("?")[0]).lstrip("/")
            known = pages.get(target)
            there = (book / target).is_file() and (known is None or not anchor)
            if not there and not (known and unquote(anchor) in known.ids):
                broken.append(f"{name}: {link}")
    assert broken == []


def test_every_page_states_the_policy(book):
    policy = built_book.extension("live_pages").policy(online=False)
    for name in built_book.pages(book):
        head, _, rest = (book / name).read_text("utf-8").partition("Content-Security-Policy")
        assert f'content="{policy}"' in rest[:600], name
        assert "<script" not in head and "<link" not in head, name


@pytest.fixture(scope="session")
def python(book, site, browser):
    """A page whose Python has started, to ask it for many things at once."""
    with opened(browser, site) as (page, faults):
        go(page, f"{site}{live_pages(book)[0]}?noidle")
        page.evaluate(CALL, [["render", "decode_steps", "{}"]])
        yield lambda calls: page.evaluate(CALL, calls)
        assert faults == []


def moves(controls: dict) -> list[str]:
    """Every control over its whole range, the others as they stand; then some of everything."""
    given = {name: control["value"] for name, control in controls.items()}
    single = [
        {**given, name: value} for name, control in controls.items() for value in control["values"]
    ]
    draw = random.Random(0)
    mixed = [{name: draw.choice(c["values"]) for name, c in controls.items()} for _ in range(20)]
    return [json.dumps(values) for values in single + mixed]


def test_the_page_draws_what_cpython_draws(book, python):
    widgets = on_pages(book, LIVE.pattern)
    assert widgets
    calls = [
        ["render", name, values]
        for name, controls in sorted(widgets)
        for values in moves(json.loads(unescape(controls)))
    ]
    for (_, name, values), drawn in zip(calls, python(calls), strict=True):
        assert drawn == live.render(name, values), f"{name} at {values}"


def test_the_page_grades_as_the_notebook_does(book, python):
    slugs = on_pages(book, r'data-exercise="([\w-]+)"')
    assert slugs
    calls, expected = [], []
    for each in (exercises.load(slug) for slug in sorted(slugs)):
        for source in (each.solution, *each.wrong):
            calls.append(["grade", each.slug, source])
            expected.append(json.loads(live.grade(each.slug, source)))
    for call, answer, right in zip(calls, python(calls), expected, strict=True):
        graded = json.loads(answer)
        assert graded["passed"] == (call[2] == exercises.load(call[1]).solution), call
        assert graded["passed"] == right["passed"], call


def ends(part):
    """Yields after moving each control to its ends by keyboard: its label and the text it shows."""
    for box in part.locator(".kv-control").all():
        field = box.locator("input, select").first
        label = box.locator("label, legend").first.inner_text()
        for key in ("Home", "End"):
            if box.locator("[type=radio]").count():
                box.locator("[type=radio]").nth(0 if key == "Home" else 1).focus()
                field.page.keyboard.press("Space")
            else:
                field.focus()
                field.page.keyboard.press(key)
            yield label


def test_every_widget_moves_by_keyboard_and_says_what_came(book, site, browser):
    for name in live_pages(book):
        with opened(browser, site) as (page, faults):
            go(page, f"{site}{name}")  # Python loads when the browser is idle
            for part in page.locator(".kv-live").all():
                controls = json.loads(part.get_attribute("data-controls"))
                labels = {each["label"] for each in controls.values()}
                for label in ends(part):
                    assert label in labels
                part.locator(".kv-note:empty").wait_for(state="attached")
                last = {key: each["values"][-1] for key, each in controls.items()}
                page.wait_for_selector(f".kv-live[data-shown='{compact(last)}']", state="attached")
                expected = live.render(part.get_attribute("data-draw"), json.dumps(last))
                assert same_picture(part, expected), f"{name}: {last}"
                title = re.search("<title>(.*?)</title>", expected)[1]
                part.locator(".kv-spoken", has_text=unescape(title)).wait_for(state="attached")
            assert faults == [], name


def compact(values: dict) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).replace("'", "\\'")


def same_picture(part, svg: str) -> bool:
    """Whether the part shows this picture, as the browser reads it."""
    return part.locator(".kv-view").evaluate(
        "(view, svg) => { const other = document.createElement('div'); other.innerHTML = svg;"
        " return view.innerHTML === other.innerHTML; }",
        svg,
    )


@pytest.fixture
def exercise_page(book, browser):
    """A page with an exercise, a picture and, put there by this test, a try-it box."""
    texts = {name: (book / name).read_text("utf-8") for name in live_pages(book)}
    name, text = next((n, t) for n, t in texts.items() if all(m in t for m in MARKS[:2]))
    box = try_it("from kvlib.sizes import KVShape\n\nKVShape(2, 1, 4).bytes_per_token('fp8')")
    mine = box._repr_html_().replace("kv-try", 'kv-try" id="mine', 1)
    changed = text.replace(MARKS[1], mine + MARKS[1], 1)
    # One value more than the drawing knows: moving there makes it raise.
    changed = re.sub(
        r"(kind&quot;: &quot;slider&quot;.*?values&quot;: \[)(.*?texts&quot;: \[)",
        r"\g<1>-1, \g<2>&quot;none&quot;, ",
        changed,
        count=1,
    )
    with built_book.served(book, {name: changed}) as site, opened(browser, site) as (page, faults):
        go(page, f"{site}{name}?noidle")
        yield page
        assert faults == []


def test_a_drawing_that_raises_shows_the_error_and_recovers(exercise_page):
    part = exercise_page.locator(".kv-live").first
    slider = part.locator("input[type=range]").first
    before = part.locator(".kv-view").inner_html()
    slider.press("Home")
    part.locator(".kv-error", has_text="ValueError: ").wait_for()
    slider.press("End")
    part.locator(".kv-view svg").wait_for()
    assert part.locator(".kv-error").count() == 0
    assert part.locator(".kv-view").inner_html() != before


def test_an_exercise_is_solved_in_the_page(exercise_page):
    part = exercise_page.locator(".kv-exercise").first
    exercise = exercises.load(part.get_attribute("data-exercise"))
    text = part.get_by_label("Your answer")
    assert text.input_value().strip() == exercise.stub.strip()
    text.fill(f"print('so far')\n{exercise.wrong[0]}")
    part.get_by_role("button", name="Check").click()
    part.get_by_text("Not yet: ").wait_for()
    assert part.locator(".kv-editor .kv-printed").inner_text().strip() == "so far"
    text.fill(exercise.solution)
    text.press("Control+Enter")
    part.get_by_text("Passed: ").wait_for()
    part.get_by_role("button", name="Reset").click()
    assert text.input_value().strip() == exercise.stub.strip()
    text.press("Tab")
    assert part.get_by_role("button", name="Check").evaluate("e => e === document.activeElement")


def test_a_new_line_keeps_the_indentation(exercise_page):
    text = exercise_page.get_by_label("Your answer").first
    text.fill("")
    text.type("for x in y:\nif x:\nz = 1\n")
    assert text.input_value() == "for x in y:\n    if x:\n        z = 1\n        "


def test_code_to_try_gives_what_it_gave_in_the_notebook(exercise_page):
    part = exercise_page.locator("#mine")
    assert part.locator(".kv-editor .kv-printed").inner_text() == "16"
    text = part.get_by_label("Try it")
    text.fill("print(2)\n3 * 7")
    part.get_by_role("button", name="Run").click()
    part.locator(".kv-editor .kv-printed", has_text="2\n21").wait_for()
    text.fill("import kvlib\nkvlib.PagedCash")
    part.get_by_role("button", name="Run").click()
    part.get_by_text("AttributeError in line 2: ").wait_for()


def test_code_that_runs_away_is_stopped_and_the_page_recovers(exercise_page):
    exercise_page.clock.install()
    part, picture = (exercise_page.locator(f".kv-{each}").first for each in ("exercise", "live"))
    slider = picture.locator("input[type=range]").first
    slider.press("End")
    picture.locator(".kv-note:empty").wait_for(state="attached")
    exercise_page.wait_for_selector(".kv-live[data-shown]")
    before = picture.get_attribute("data-shown")
    part.get_by_label("Your answer").fill("while True:\n    pass")
    part.get_by_role("button", name="Check").click()
    slider.press("ArrowLeft")  # waits behind the runaway code
    exercise_page.clock.run_for(11_000)
    part.get_by_text("Stop ends it").wait_for()
    picture.get_by_role("button", name="Stop").wait_for()
    assert picture.get_attribute("data-shown") == before
    part.get_by_role("button", name="Stop").click()
    part.get_by_text("Stopped. Python starts afresh.").wait_for()
    exercise_page.wait_for_selector(f".kv-live:not([data-shown='{before}'])")
    exercise = exercises.load(part.get_attribute("data-exercise"))
    part.get_by_label("Your answer").fill(exercise.solution)
    part.get_by_role("button", name="Check").click()
    part.get_by_text("Passed: ").wait_for()


def test_a_python_that_breaks_down_is_started_again(exercise_page):
    part = exercise_page.locator("#mine")
    part.get_by_label("Try it").fill("import os; os._exit(1)")
    part.get_by_role("button", name="Run").click()
    part.get_by_text("Python broke down").wait_for()
    part.get_by_label("Try it").fill("6 * 7")
    part.get_by_role("button", name="Run").click()
    part.locator(".kv-editor .kv-printed", has_text="42").wait_for()


CALLING_OUT = """
import js
from pyodide.ffi import to_js
from pyodide.http import open_url

def attempt(call):
    try:
        call()
    except Exception:
        pass

inner = js.Blob.new(to_js([f"fetch('{OTHER}/inner', {{mode: 'no-cors'}})"]))
module = js.Object.fromEntries(to_js([["type", "module"]]))
attempt(lambda: open_url(OTHER + "/request"))
attempt(lambda: js.fetch(OTHER + "/fetch"))
attempt(lambda: js.WebSocket.new(OTHER.replace("http", "ws") + "/socket"))
attempt(lambda: js.EventSource.new(OTHER + "/events"))
attempt(lambda: js.Worker.new(js.URL.createObjectURL(inner)))
attempt(lambda: js.Worker.new(OWN, module))
"""


WAYS = ("request", "fetch", "socket", "events", "inner", "worker")


@pytest.mark.parametrize("bound", [True, False], ids=["with the policy", "without it"])
def test_code_in_the_page_cannot_call_out(book, browser, bound):
    """Without the policy the same code does reach the other server, so the attempts are real."""
    asked = []

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()

        def log_message(self, *args):
            pass

    name = live_pages(book)[0]
    text = (book / name).read_text("utf-8")
    if not bound:
        text = text.replace("Content-Security-Policy", "X-Nothing")
    changed = {name: text}
    with built_book.serving(Other) as other, built_book.served(book, changed) as site:
        changed["worker.mjs"] = f"fetch('{other}/worker', {{mode: 'no-cors'}})"
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        go(page, f"{site}{name}?noidle")
        script = CALLING_OUT.replace("OTHER", repr(other)).replace("OWN", repr(f"{site}worker.mjs"))
        outcome = json.loads(page.evaluate(CALL, [["run", script]])[0])
        assert outcome["error"] == ""
        page.wait_for_timeout(1500)
        context.close()
    assert set(asked) == (set() if bound else {f"/{way}" for way in WAYS})


def test_opened_from_a_file_a_page_says_how_to_serve_it(book, browser):
    name = next(iter(live_pages(book)))
    page = browser.new_page()
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda m: m.type == "error" and faults.append(m.text))
    page.goto((book / name).as_uri())
    line = page.locator(".kv-note").first
    line.get_by_text(f'python -m http.server --directory "{book}/"').wait_for()
    assert page.locator(".kv-live svg, .kv-stub").first.is_visible()
    assert page.locator(".kv-controls").count() == 0
    assert faults == []
    page.close()


def test_without_scripts_and_on_paper_the_page_is_whole(exercise_page, book, site, browser):
    exercise_page.emulate_media(media="print")
    for hidden in (".kv-controls", ".kv-editor"):
        assert not exercise_page.locator(hidden).first.is_visible()
    for shown in (".kv-live svg", ".kv-settings", ".kv-stub"):
        assert exercise_page.locator(shown).first.is_visible()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}{live_pages(book)[0]}")
    assert page.locator(".kv-live svg, .kv-stub").first.is_visible()
    assert page.locator(".kv-settings, .kv-hint").first.is_visible()
    context.close()
