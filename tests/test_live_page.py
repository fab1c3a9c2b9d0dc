"""The page's own Python: it draws, grades and runs what the kernel would, and gives way."""

import json
import random
import re
from html import unescape

import pytest

import built_book
from built_book import CALL, MARKS, go, opened
from kvlib import exercises
from kvlib.show import live, try_it

pytestmark = pytest.mark.browser
READY = """() => new Promise(done => {
    const look = () => kvlibPage.runtime.state === "ready" && done();
    kvlibPage.runtime.addEventListener("change", look);
    look();
})"""
DRAWING = r'<div class="kv-live" data-draw="(\w+)" data-controls="([^"]*)"'


@pytest.fixture(scope="session")
def python(book, site, browser):
    """A page whose Python has started, to ask it for many things at once."""
    with opened(browser, site) as (page, faults):
        go(page, f"{site}{next(iter(built_book.texts(book)))}?noidle")
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
    widgets = built_book.on_pages(book, DRAWING)
    assert widgets
    calls = [
        ["render", name, values]
        for name, controls in widgets
        for values in moves(json.loads(unescape(controls)))
    ]
    for (_, name, values), drawn in zip(calls, python(calls), strict=True):
        assert drawn == live.render(name, values), f"{name} at {values}"


def test_the_page_grades_as_the_notebook_does(book, python):
    slugs = built_book.on_pages(book, r'data-exercise="([\w-]+)"')
    assert slugs
    calls, expected = [], []
    for each in (exercises.load(slug) for slug in slugs):
        for source in (each.solution, *each.wrong):
            calls.append(["grade", each.slug, source])
            expected.append(json.loads(live.grade(each.slug, source)))
    for call, answer, right in zip(calls, python(calls), expected, strict=True):
        graded = json.loads(answer)
        assert graded["passed"] == (call[2] == exercises.load(call[1]).solution), call
        assert graded["passed"] == right["passed"], call


def ends(part):
    """Moves each control to both of its ends by keyboard; yields its label each time."""
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


def test_every_widget_moves_by_keyboard_and_says_what_came(book, browser):
    """All of the book's, put on one page, so that its Python starts once."""
    blocks = built_book.on_pages(book, r'<div class="kv-live".*?</small></p></div>')
    name, text = next(iter(built_book.texts(book).items()))
    place = text.index("<article")
    changed = text[:place] + "".join(blocks) + text[place:]
    with built_book.served(book, {name: changed}) as site, opened(browser, site) as (page, faults):
        go(page, f"{site}{name}?noidle")
        parts = page.locator(".kv-live").all()
        for part in parts[: len(blocks)]:
            move_to_the_ends(page, part)
        assert faults == []


def test_python_loads_by_itself_when_the_browser_is_idle(book, site, browser):
    with opened(browser, site) as (page, faults):
        go(page, site + next(iter(built_book.texts(book))))
        page.evaluate(READY)
        assert page.locator(".kv-note:not(:empty)").count() == 0
        assert faults == []


def move_to_the_ends(page, part) -> None:
    controls = json.loads(part.get_attribute("data-controls"))
    assert list(ends(part)) == [each["label"] for each in controls.values() for _ in range(2)]
    last = {key: each["values"][-1] for key, each in controls.items()}
    expected = live.render(part.get_attribute("data-draw"), json.dumps(last))
    title = unescape(re.search("<title>(.*?)</title>", expected)[1])
    wait_until_shown(part, last)
    part.locator(".kv-spoken", has_text=title).wait_for(state="attached")
    assert same_picture(part, expected), last


def wait_until_shown(part, values: dict) -> None:
    """Waits for the picture of these values: others may have the same title."""
    part.page.wait_for_function(
        "([part, text]) => { const shown = JSON.parse(part.dataset.shown ?? 'null'),"
        " asked = JSON.parse(text);"
        " return shown && Object.keys(asked).every(key => shown[key] === asked[key]); }",
        arg=[part.element_handle(), json.dumps(values)],
    )


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
    texts = built_book.texts(book).items()
    name, text = next((n, t) for n, t in texts if all(mark in t for mark in MARKS[:2]))
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


def test_on_paper_a_page_is_light_and_holds_what_can_be_read(exercise_page):
    exercise_page.emulate_media(color_scheme="dark")
    exercise_page.wait_for_selector("html[data-theme=dark]")
    exercise_page.emulate_media(media="print")
    exercise_page.wait_for_selector("html[data-theme=light]")
    for hidden in (".kv-controls", ".kv-editor"):
        assert not exercise_page.locator(hidden).first.is_visible()
    for shown in (".kv-live svg", ".kv-settings", ".kv-stub"):
        assert exercise_page.locator(shown).first.is_visible()
    exercise_page.emulate_media(media="screen")
    exercise_page.wait_for_selector("html[data-theme=dark]")
