"""The page in a real browser: no error, no request; tables sort, and figures are seen."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, sync_playwright

from depl0.app.reports.report import page as report_page
from depl0.app.reports.run import read_run
from tests.support.runs import SCRIPT, write_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for path in map(shutil.which, NAMES) if path), None)
"""the system's own browser: nothing is downloaded"""

pytestmark = [
    pytest.mark.usefixtures("remembered_plans"),
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (make browser installs it)"),
]

WENT_WRONG: list[str] = []


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The opened report of a run whose layers have names with markup in them."""
    folder = tmp_path_factory.mktemp("page")
    run = read_run(write_run(folder / "run", layers=12, gates=20, prefix=SCRIPT))
    (folder / "report.html").write_text(report_page([run]), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("pageerror", lambda error: WENT_WRONG.append(str(error)))
        page.on("console", lambda message: WENT_WRONG.append(message.text))
        own = (folder / "report.html").as_uri()
        page.on("request", lambda request: None if request.url.startswith((own, "data:")) else note(request.url))
        page.goto(own)
        yield page
        browser.close()


def note(url: str) -> None:
    WENT_WRONG.append(f"requested {url}")


def test_opens_without_errors_and_without_requests(page: Page) -> None:
    assert page.title() == "Pruning report: run"
    assert WENT_WRONG == []


def test_tables_sort(page: Page) -> None:
    table = page.locator("table.sortable").first
    cells, head = table.locator("tbody td:nth-child(5)"), table.locator("thead th").nth(4)
    kept = cells.all_text_contents()
    assert kept == [*map(str, range(19, 7, -1)), "10"]
    for expected in (sorted(kept, key=int), sorted(kept, key=int, reverse=True)):
        head.get_by_role("button").click()
        assert cells.all_text_contents() == expected
    assert head.get_attribute("aria-sort") == "descending"


def test_figures_are_seen(page: Page) -> None:
    sizes = page.evaluate("[...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect().width)")
    assert len(sizes) == 5
    assert min(sizes) > 250
    assert page.locator("#structure svg").first.locator("path").count() > 24  # grey and green, for twelve layers


@pytest.mark.parametrize("width", [390, 1366])
def test_the_page_is_as_wide_as_the_screen(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    if width > 1000:  # tables scroll on a phone
        assert page.evaluate(f"{cut}.map(e => e.innerText.slice(0, 60))") == []


def test_dark_changes_the_colours_of_the_screen_alone(page: Page) -> None:
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    light = page.evaluate(colours)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colours)
    axis = page.evaluate("getComputedStyle(document.querySelector('#structure svg text')).fill")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(colours) == light == ["rgb(255, 255, 255)", "rgb(31, 35, 40)"]
    page.emulate_media(media="null", color_scheme="light")
    assert dark == ["rgb(20, 24, 29)", "rgb(228, 232, 236)"]
    assert axis == dark[1]  # the figures' text follows
