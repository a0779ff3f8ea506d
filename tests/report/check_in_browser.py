"""The page in Chromium: no errors, no requests, and everything within reach of mouse, keyboard and finger.

Not part of the other tests, since it needs a browser: `make test-browser`, or

    pip install playwright; apt-get install chromium
    python -m pytest tests/report/check_in_browser.py

`CHROMIUM` may name the program.
"""

import os
import shutil

import pytest
from playwright.sync_api import sync_playwright
from tests.report.models import layers, mixed, stateless

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
MODELS = {"mixed": mixed, "layers": lambda: layers(3), "many": lambda: layers(20), "stateless": stateless}


@pytest.fixture(scope="module")
def browser():
    program = os.environ.get("CHROMIUM") or next((p for p in map(shutil.which, NAMES) if p), None)
    assert program, "no Chromium found: install it (Debian: apt-get install chromium) or set CHROMIUM to its path"
    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield running
        running.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {name: make().report.to_html(folder / f"{name}.html") for name, make in MODELS.items()}


@pytest.fixture
def load(browser, files):
    """Open a page; what it complains about or asks for is an error at the end of the test."""
    opened, found = [], []

    def load(name, width=1000, **options):
        page = browser.new_page(viewport={"width": width, "height": 800}, **options)
        page.on("console", lambda message: found.append(message.text))
        page.on("pageerror", lambda error: found.append(str(error)))
        page.on("request", lambda request: found.append(request.url) if request.url != files[name].as_uri() else None)
        page.goto(files[name].as_uri())
        opened.append(page)
        return page

    yield load
    for page in opened:
        page.close()
    assert not found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 360, 800, 1400])
@pytest.mark.parametrize("name", MODELS)
def test_page_fits_its_window(load, name, width, scheme):
    page = load(name, width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("h1").inner_text().startswith("Etrax report")


def test_text_stays_in_its_box(load):
    for name in MODELS:
        page = load(name)
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        over = page.evaluate(
            """[...document.querySelectorAll('a.node text')].filter(t => {
                const box = t.parentElement.querySelector('rect').getBoundingClientRect();
                const own = t.getBoundingClientRect();
                return own.right > box.right || own.bottom > box.bottom + 1 || own.left < box.left;
            }).map(t => t.textContent)"""
        )
        assert over == []


def test_mouse_shows_the_reason(load):
    page = load("mixed")
    assert page.locator("#panel").is_hidden()
    page.hover("#parameter-1 rect")
    said = page.locator("#panel").inner_text()
    verdicts = list(mixed().report.verdicts.values())
    assert verdicts[1].kind in said and verdicts[1].full.replace("`", "") in said


def test_keyboard_reaches_reason_and_row(load):
    page = load("mixed")
    page.focus("#parameter-2")
    want = list(mixed().report.verdicts.values())[2]
    assert want.reason.replace("`", "") in page.locator("#panel").inner_text()
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#row-2"
    page.focus("#parameter-2")
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()


def test_finger_selects_first_and_follows_then(load):
    page = load("mixed", 360, has_touch=True)
    page.tap("#parameter-3 rect")
    assert page.locator("#panel").is_visible()
    assert page.evaluate("location.hash") == ""
    page.tap("#panel a")
    assert page.evaluate("location.hash") == "#row-3"


def test_filters_leave_what_was_asked_for(load):
    page = load("mixed")
    shown = "[...document.querySelectorAll('#parameters tbody tr')].filter(r => !r.hidden).map(r => r.className)"
    kinds = [str(v.kind) for v in mixed().report.verdicts.values()]
    assert sorted(page.evaluate(shown)) == sorted(kinds)
    page.uncheck("#filters input[value=exact]")
    assert sorted(page.evaluate(shown)) == sorted(k for k in kinds if k != "exact")
    page.fill("#filters input[type=search]", "never")
    assert page.evaluate(shown) == ["unused"]


def test_a_folded_band_opens_from_the_overview(load):
    page = load("many")
    assert not page.evaluate("document.getElementById('band-3').open")
    page.focus("#o-fold-3")
    page.keyboard.press("Enter")
    page.wait_for_function("document.getElementById('band-3').open")
    assert page.locator("#b3-group-3").is_visible()


def test_all_is_readable_without_script(load):
    page = load("mixed", java_script_enabled=False)
    assert page.locator("#parameters tbody tr").count() == len(mixed().report.parameters)
    assert page.locator("#filters").is_hidden()
    assert page.locator("svg.graph title").count() > 10
