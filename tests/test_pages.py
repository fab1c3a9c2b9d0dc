"""Every page of the built book, in a real browser with the network cut."""

import re
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest

import built_book
from test_book import listed

pytestmark = pytest.mark.browser
WIDE = {"width": 1280, "height": 900}
AXE = """([where, options]) => axe.run(where, {resultTypes: ["violations"], ...options})
    .then(found => found.violations.filter(each => ["serious", "critical"].includes(each.impact))
        .map(each => `${each.id}: ${each.nodes.slice(0, 3).map(node => node.html.slice(0, 200))}`))
"""
# Contrast hangs on nothing but these; a page has thousands of words and some dozens of such kinds.
# Three of each kind are looked at.
ALIKE = """where => {
    const grounds = new Map([[null, {behind: "", opacity: 1}]]), kinds = new Map();
    const ground = each => {
        if (!grounds.has(each)) {
            const {backgroundColor, backgroundImage, opacity} = getComputedStyle(each);
            const parent = ground(each.parentElement);
            const behind = /^rgb\\(/.test(backgroundColor) ? "" : parent.behind;
            grounds.set(each, {
                behind: `${backgroundColor} ${backgroundImage} ${behind}`,
                opacity: opacity * parent.opacity,
            });
        }
        return grounds.get(each);
    };
    for (const each of document.querySelectorAll(`${where} *`)) {
        const words = [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (!words || !each.checkVisibility({visibilityProperty: true})) continue;
        const {color, fontSize, fontWeight, textShadow} = getComputedStyle(each);
        const kind = JSON.stringify([color, fontSize, fontWeight, textShadow, ground(each)]);
        kinds.set(kind, [...(kinds.get(kind) ?? []), each].slice(0, 3));
    }
    return [...kinds.values()].flat();
}"""
LOADED = """[location.href, ...performance.getEntriesByType("resource").map(each => each.name)]"""
ALL_BUT_COLOURS = ["html", {"rules": {"color-contrast": {"enabled": False}}}]
COLOURS = f"""where => ({AXE})([{{include: ({ALIKE})(where)}}, {{runOnly: ["color-contrast"]}}])"""
# A screen on which both sidebars stand beside the text.
NARROWEST = {"width": 1200, "height": 800}
# Pictures with a slider or a list that ends outside of the picture's box.
CONTROLS = """() => [...document.querySelectorAll(".kv-live")].filter(each => {
  const right = each.getBoundingClientRect().right + 1;
  return [...each.querySelectorAll(".kv-controls *")].some(
    one => one.getBoundingClientRect().right > right);
}).map(each => each.dataset.draw)"""
# What is wider than its box on a phone, once the page has noticed that it is on one.
UNFIT = """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(
    [...document.querySelectorAll(".bd-article :is(div.math > mjx-container, table.table)")]
        .map(each => [each, each.matches("table") ? each.parentElement : each])
        .filter(([, box]) => box.scrollWidth > box.clientWidth + 1)
        .map(([each]) => each.textContent.trim().slice(0, 60))))))"""
CUT = """[...document.querySelectorAll(".cell_input pre")]
    .filter(each => each.scrollWidth > each.clientWidth + 1)
    .map(each => each.textContent.slice(0, 60))"""


def visit(book: Path, site: str, names: list[str]) -> dict[str, dict]:
    """Opens pages one by one: what went wrong, what axe found, their bytes and their width."""
    from playwright.sync_api import sync_playwright

    packages = built_book.extension("web_assets").installed()
    axe = (packages / "axe-core" / "axe.min.js").read_text("utf-8")
    with (
        sync_playwright() as playwright,
        built_book.browser(playwright) as browser,
        built_book.opened(browser, site, viewport=WIDE) as (page, faults),
    ):
        return {name: look(page, faults, book, site, name, axe) for name in names}


def look(page, faults: list[str], book: Path, site: str, name: str, axe: str) -> dict:
    faults.clear()
    page.goto(f"{site}{name}?noidle", wait_until="load")
    page.evaluate("() => window.MathJax?.startup?.promise.then(() => null)")
    if parts := page.locator(".kv-live, .kv-exercise, .kv-try").count():
        page.locator(".kv-alive").last.wait_for(state="attached")
    page.evaluate(axe)
    where = "html" if name == "book/index.html" else "main"
    found = {"light": page.evaluate(AXE, ALL_BUT_COLOURS) + page.evaluate(COLOURS, where)}
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-theme=dark]")
    found["dark"] = page.evaluate(COLOURS, where)
    page.set_viewport_size({"width": 390, "height": 800})
    found["width"] = page.evaluate("document.scrollingElement.scrollWidth")
    found["controls"] = page.evaluate(CONTROLS)
    found["unfit"] = page.evaluate(UNFIT)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(NARROWEST)
    found["cut"] = page.evaluate(CUT)
    page.set_viewport_size(WIDE)
    found["bytes"] = sum(weight(book, url.removeprefix(site)) for url in page.evaluate(LOADED))
    found["asleep"] = parts - page.locator(".kv-alive").count()
    return {**found, "faults": list(faults)}


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


def test_everything_that_can_live_does(visits):
    assert {name: each["asleep"] for name, each in visits.items() if each["asleep"]} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_shuts_a_reader_out(visits, theme):
    assert {name: each[theme] for name, each in visits.items() if each.get(theme)} == {}


@pytest.mark.parametrize("where", ["p", ".highlight .n"], ids=["text", "listing"])
def test_a_word_that_cannot_be_read_is_found(book, site, browser, where):
    """One word among hundreds, in a colour that only it has."""
    packages = built_book.extension("web_assets").installed()
    with built_book.opened(browser, site, viewport=WIDE) as (page, _):
        page.goto(f"{site}book/how_to_run.html?noidle")
        page.evaluate((packages / "axe-core" / "axe.min.js").read_text("utf-8"))
        assert page.evaluate(COLOURS, "main") == []
        last = page.locator(f"main {where}:visible").last
        last.evaluate("each => { each.style.color = '#c0c1c2'; each.textContent = 'pale'; }")
        (found,) = page.evaluate(COLOURS, "main")
        assert found.startswith("color-contrast: ") and "pale" in found


def test_no_page_is_heavy_before_its_python_is_asked_for(visits):
    heavy = {name: each["bytes"] for name, each in visits.items()}
    assert {name: size for name, size in heavy.items() if size > 400_000} == {}


def test_code_fits_its_column_where_it_is_narrowest(visits):
    assert {name: each["cut"] for name, each in visits.items() if each["cut"]} == {}


def test_what_moves_a_picture_is_not_wider_than_a_phone(visits):
    assert {name: each["controls"] for name, each in visits.items() if each["controls"]} == {}


def test_formulas_and_tables_fit_a_phone(visits):
    assert {name: each["unfit"] for name, each in visits.items() if each["unfit"]} == {}


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


def test_only_pages_of_the_contents_are_built(book):
    """The folder that is built holds tests, tools and perhaps an environment beside them."""
    made_by_sphinx = {"genindex.html", "search.html", "py-modindex.html"}
    names = {name for name in built_book.pages(book) if not name.startswith("_modules/")}
    assert names - made_by_sphinx == {f"{page}.html" for page in listed()}


FROM_ELSEWHERE = re.compile(r"""<(?:script|img|iframe|link(?=[^>]*stylesheet))\b[^>]*["']https?:""")


def test_no_page_needs_a_widget_manager_or_anything_from_elsewhere(book):
    """A manager of the wrong version would show nothing at all, and the build would stay green."""
    for name in built_book.pages(book):
        page = (book / name).read_text("utf-8")
        # Pages that show sources have such words as text, where brackets are escaped.
        assert not re.search(r"<script[^>]*jupyter\.widget", page), name
        assert not re.search(r"<script[^>]*(?:html-manager|require(?:\.min)?\.js)", page), name
        assert not FROM_ELSEWHERE.search(page), name


def test_every_page_states_the_policy(book):
    policy = built_book.extension("live_pages").policy(online=False)
    for name in built_book.pages(book):
        head, _, rest = (book / name).read_text("utf-8").partition("Content-Security-Policy")
        assert f'content="{policy}"' in rest[:600], name
        assert "<script" not in head and "<link" not in head, name


def test_opened_from_a_file_a_page_says_how_to_serve_it(book, browser):
    name = next(iter(built_book.texts(book)))
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


def test_without_scripts_a_page_is_whole(book, site, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}{next(iter(built_book.texts(book)))}")
    assert page.locator(".kv-live svg, .kv-stub").first.is_visible()
    assert page.locator(".kv-settings, .kv-hint").first.is_visible()
    context.close()
